//! The hash slots of a cluster: which one a key is in, and how to make a key for one.
//!
//! The rule is that of the Redis Cluster specification: CRC-16/XMODEM of the key, or of what stands
//! between its first `{` and the next `}` if that is not nothing, modulo 16384.

/// How keys are divided among servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// One server has them all.
    None,
    /// By slot, in a cluster.
    BySlot,
}

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

const POLYNOMIAL: u16 = 0x1021;

/// The slot of a key.
pub fn of_key(key: &[u8]) -> u16 {
    crc(hashed_part(key)) % SLOTS
}

/// The two bytes that, behind `prefix`, make a key of this slot. The prefix must have no `{`.
pub fn suffix_for(prefix: &[u8], slot: u16) -> [u8; 2] {
    // The checksum of two more bytes depends on their sum with the checksum so far alone, one to one.
    (crc(prefix) ^ before_two_zeros(slot)).to_be_bytes()
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

/// The checksum that becomes `crc` when two zero bytes are added.
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
            let suffix = suffix_for(&key, slot);
            key.extend(suffix);
            prop_assert_eq!(of_key(&key), slot);
        }
    }
}
