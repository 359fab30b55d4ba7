//! The hash slots of a cluster: the slot of a key, and a key for a slot.
//!
//! The rule is that of the Redis Cluster specification: CRC-16/XMODEM modulo 16384. If a key has a
//! non-empty part between its first `{` and the next `}`, only that part is hashed.

/// The distribution of keys among servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// One server has all keys.
    None,
    /// Each server of a cluster has the keys of its slots.
    BySlot,
}

/// The number of slots.
pub const SLOTS: u16 = 16_384;

const POLYNOMIAL: u16 = 0x1021;

/// Returns the slot of a key.
pub fn of_key(key: &[u8]) -> u16 {
    crc(hashed_part(key)) % SLOTS
}

/// Returns a function of a slot. It returns the two bytes that make a key of the slot when they
/// follow `prefix`. The prefix must not contain `{`.
// perf: the checksum of the prefix takes ten times as long as the rest, and some callers ask for all
// slots.
pub fn suffixes_for(prefix: &[u8]) -> impl Fn(u16) -> [u8; 2] {
    // The checksum after two more bytes depends only on their XOR with the checksum so far, and
    // each XOR gives another checksum.
    let before = crc(prefix);
    move |slot| (before ^ before_two_zeros(slot)).to_be_bytes()
}

fn hashed_part(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let len = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..len)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc(bytes: &[u8]) -> u16 {
    let next_bit = |crc: u16| match crc & 0x8000 {
        0 => crc << 1,
        _ => (crc << 1) ^ POLYNOMIAL,
    };
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| next_bit(crc))
    })
}

/// Returns the checksum that becomes `crc` when two zero bytes follow.
fn before_two_zeros(crc: u16) -> u16 {
    (0..16).fold(crc, |crc, _| match crc & 1 {
        0 => crc >> 1,
        _ => ((crc ^ POLYNOMIAL) >> 1) | 0x8000,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_as_the_specification_has_them() {
        let table: [(&[u8], u16); 9] = [
            (b"", 0),
            (b"123456789", 12_739),
            (b"foo", 12_182),
            (b"{user1000}.following", of_key(b"user1000")),
            (b"{user1000}.followers", of_key(b"{user1000}.following")),
            (b"foo{}{bar}", crc(b"foo{}{bar}") % SLOTS),
            (b"foo{{bar}}zap", of_key(b"{{bar}")),
            (b"foo{bar}{zap}", of_key(b"bar")),
            (b"a}b{", crc(b"a}b{") % SLOTS),
        ];
        for (key, slot) in table {
            assert_eq!(of_key(key), slot, "{}", key.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn every_slot_has_a_key_with_any_prefix(prefix in "[a-z0-9}]{0,40}", slot in 0..SLOTS) {
            let mut key = prefix.into_bytes();
            let suffix = suffixes_for(&key)(slot);
            key.extend(suffix);
            prop_assert_eq!(of_key(&key), slot);
        }
    }
}
