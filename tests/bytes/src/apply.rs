//! The words of LOCK.APPLY. A line is one command, and its words are separated by tabs.
//!
//! 1. Words that are read as a change are written and read again as the same change.
//! 2. A lock that any changes have made can be stored and read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_lock_core::effect::{self, Change, Parsed};
use redis_lock_core::values::codec::{decode, encode};
use redis_lock_core::values::lock::Lock;

fuzz_target!(|bytes: &[u8]| {
    let mut lock = Lock::free();
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
        match effect::parse(&words) {
            Ok(Parsed::Change(change)) => {
                check_again(&change);
                effect::apply(&mut lock, &change);
            }
            Ok(Parsed::Renew {
                deadline_ms,
                others,
            }) => check_renewal(deadline_ms, others),
            Err(_) => {}
        }
        if !lock.is_free() {
            assert_eq!(decode(&encode(&lock)).as_ref(), Ok(&lock));
        }
    }
});

fn check_again(change: &Change) {
    let words = effect::words(change).expect("words");
    let words: Vec<&[u8]> = words.iter().map(effect::Word::as_slice).collect();
    assert_eq!(effect::parse(&words), Ok(Parsed::Change(change.clone())));
}

fn check_renewal(deadline_ms: u64, others: &[&[u8]]) {
    let words = effect::renewal_words(deadline_ms);
    let words = words.iter().map(effect::Word::as_slice);
    let words: Vec<&[u8]> = words.chain(others.iter().copied()).collect();
    let renewal = Parsed::Renew {
        deadline_ms,
        others,
    };
    assert_eq!(effect::parse(&words), Ok(renewal));
}
