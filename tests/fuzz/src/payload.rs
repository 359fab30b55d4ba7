//! Payloads for RESTORE: dumps of locks, whole, flipped and forged.
//!
//! ```text
//! type byte 7 | 0x81 and the type's name and version, u64 big-endian
//! opcode 5 | length | body, the last 4 bytes its CRC-32 | opcode 0 | RDB version u16 | CRC-64
//! ```
//! The CRC-64 covers everything before it. This module knows nothing else of the body, so that its
//! encoding may change.

use std::cell::RefCell;
use std::collections::VecDeque;

use crc::{Crc, CRC_32_ISO_HDLC, CRC_64_REDIS};
use rand::rngs::StdRng;
use rand::RngExt;

const BODY_SUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const PAYLOAD_SUM: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// The first bytes of the dump of a module's value.
const MODULE_VALUE: [u8; 2] = [7, 0x81];

/// Length of the type byte, and of the type's name and version.
const HEAD_LEN: usize = 10;

/// Length of the opcode after the body, the RDB version and the checksum.
const TAIL_LEN: usize = 11;

const SUM_LEN: usize = 8;

/// Number of dumps that are kept, the newest.
const KEPT: usize = 32;

/// Dumps that servers have returned.
#[derive(Default)]
pub struct Payloads {
    seen: RefCell<VecDeque<Vec<u8>>>,
}

impl Payloads {
    /// Keeps a dump of a module's value. Ignores other dumps, because a plain server that skips the
    /// checksum dies of RESTORE with a changed one.
    pub fn keep(&self, dump: &[u8]) {
        if !dump.starts_with(&MODULE_VALUE) || dump.len() < HEAD_LEN + 3 + TAIL_LEN {
            return;
        }
        let mut seen = self.seen.borrow_mut();
        if seen.len() == KEPT {
            seen.pop_front();
        }
        seen.push_back(dump.to_vec());
    }

    /// Returns a dump, unchanged or changed.
    pub fn draw(&self, rng: &mut StdRng) -> Vec<u8> {
        let seen = self.seen.borrow();
        if seen.is_empty() {
            return b"no dump was seen yet".to_vec();
        }
        let mut payload = seen[rng.random_range(0..seen.len())].clone();
        match rng.random_range(0..10) {
            0..4 => {}
            // Changed like on a bad line, with a checksum that doesn't fit.
            4 => change(&mut payload, HEAD_LEN, rng),
            // Changed, with a checksum that fits, so that the module has to load the payload.
            5 => {
                change_inside(&mut payload, HEAD_LEN, rng);
                seal(&mut payload);
            }
            _ => {
                let body = body_start(&payload);
                change_inside(&mut payload, body, rng);
                seal_body(&mut payload);
                seal(&mut payload);
            }
        }
        payload
    }
}

/// Returns the start of the body, after the opcode and a length of one byte or two.
fn body_start(payload: &[u8]) -> usize {
    let length_len = match payload.get(HEAD_LEN + 1) {
        Some(first) if first >> 6 == 0 => 1,
        _ => 2,
    };
    HEAD_LEN + 1 + length_len
}

/// Changes bytes between `from` and the body's checksum.
fn change_inside(payload: &mut Vec<u8>, from: usize, rng: &mut StdRng) {
    let tail = payload.split_off(payload.len().saturating_sub(TAIL_LEN + 4));
    change(payload, from, rng);
    payload.extend(tail);
}

/// Changes bytes after the first `from`, or cuts them off.
fn change(bytes: &mut Vec<u8>, from: usize, rng: &mut StdRng) {
    if bytes.len() <= from {
        return;
    }
    let place = rng.random_range(from..bytes.len());
    match rng.random_range(0..6) {
        0 | 1 => bytes[place] ^= 1 << rng.random_range(0..8),
        2 => bytes[place] = rng.random(),
        3 => overwrite(bytes, place, &number(rng).to_le_bytes()),
        4 => {
            let other = rng.random_range(from..bytes.len());
            let len = rng.random_range(1..=8).min(bytes.len() - other);
            let piece = bytes[other..other + len].to_vec();
            overwrite(bytes, place, &piece);
        }
        _ => bytes.truncate(place),
    }
}

fn overwrite(bytes: &mut [u8], place: usize, with: &[u8]) {
    let len = with.len().min(bytes.len() - place);
    bytes[place..place + len].copy_from_slice(&with[..len]);
}

fn number(rng: &mut StdRng) -> u64 {
    match rng.random_range(0..4) {
        0 => rng.random_range(0..3),
        1 => u64::MAX,
        2 => 1 << 53,
        _ => rng.random(),
    }
}

fn seal_body(payload: &mut [u8]) {
    let Some(end) = payload.len().checked_sub(TAIL_LEN + 4) else {
        return;
    };
    if let Some(body) = payload.get(body_start(payload)..end) {
        let sum = BODY_SUM.checksum(body);
        payload[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn seal(payload: &mut [u8]) {
    let Some(end) = payload.len().checked_sub(SUM_LEN) else {
        return;
    };
    let sum = PAYLOAD_SUM.checksum(&payload[..end]);
    payload[end..].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn dump() -> Vec<u8> {
        let mut dump = MODULE_VALUE.to_vec();
        dump.extend([0; 8]);
        dump.extend([5, 20]);
        dump.extend(0..20);
        dump.extend([0; TAIL_LEN]);
        seal_body(&mut dump);
        seal(&mut dump);
        dump
    }

    #[test]
    fn dumps_come_whole_and_changed_with_and_without_sums_that_fit() {
        let payloads = Payloads::default();
        payloads.keep(b"\x00\x01a string's dump");
        payloads.keep(&dump());
        let mut rng = StdRng::seed_from_u64(1);
        let drawn: Vec<Vec<u8>> = (0..500).map(|_| payloads.draw(&mut rng)).collect();
        let fits = |payload: &&Vec<u8>| {
            let mut sealed = payload.to_vec();
            seal(&mut sealed);
            sealed == **payload
        };
        let (sound, broken): (Vec<_>, Vec<_>) = drawn.iter().partition(fits);
        assert!(sound.contains(&&dump()));
        assert!(sound.iter().any(|payload| **payload != dump()));
        assert!(!broken.is_empty());
    }
}
