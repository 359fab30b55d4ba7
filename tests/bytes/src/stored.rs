//! The bytes of a stored lock: an RDB file, DUMP and RESTORE.
//!
//! 1. Bytes without the right checksum are refused.
//! 2. Bytes that are read as a lock are those that the lock is written as: a lock has one form.
//! 3. The effects that make the lock anew, as words, lead to the same lock.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_lock_core::effect::{self, Change, Parsed};
use redis_lock_core::values::codec::{decode, encode};
use redis_lock_core::values::lock::Lock;

fuzz_target!(|body: &[u8]| {
    let sum = crc32fast::hash(body).to_le_bytes();
    let sealed = [body, &sum].concat();
    let broken = [body, &sum.map(|byte| !byte)].concat();
    assert!(decode(&broken).is_err(), "a wrong checksum");
    let Ok(lock) = decode(&sealed) else { return };
    assert!(!lock.is_free());
    assert_eq!(encode(&lock), sealed, "{lock:?}");
    let mut copy = Lock::free();
    for change in effect::all_grants(&lock) {
        effect::apply(&mut copy, &sent(&change));
    }
    assert_eq!(copy, lock);
});

/// Returns a change as a replica gets it.
fn sent(change: &Change) -> Change {
    let words = effect::words(change).expect("the words of a grant");
    let words: Vec<&[u8]> = words.iter().map(effect::Word::as_slice).collect();
    match effect::parse(&words) {
        Ok(Parsed::Change(change)) => change,
        other => panic!("{change:?} is read as {other:?}"),
    }
}
