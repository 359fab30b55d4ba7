//! Decimal numbers in the words of a command.

/// The most digits that always fit in 64 bits.
const NO_OVERFLOW: usize = 19;

/// Parses a whole number of decimal digits. Returns `None` for a sign, space, fraction or leading
/// zero, and for a number of more than 64 bits.
pub fn parse(word: &[u8]) -> Option<u64> {
    let padded = word.len() > 1 && word.first() == Some(&b'0');
    if word.is_empty() || padded {
        return None;
    }
    let (head, tail) = word.split_at(word.len().min(NO_OVERFLOW));
    let mut number = 0;
    for byte in head {
        number = number * 10 + digit(*byte)?;
    }
    tail.iter().try_fold(number, |number, byte| {
        number.checked_mul(10)?.checked_add(digit(*byte)?)
    })
}

fn digit(byte: u8) -> Option<u64> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(digit.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_no_number_holds_is_none() {
        let most = u64::MAX.to_string();
        assert_eq!(parse(most.as_bytes()), Some(u64::MAX));
        for word in [
            "18446744073709551616",
            "99999999999999999999",
            "184467440737095516150",
        ] {
            assert_eq!(parse(word.as_bytes()), None, "{word}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_the_standard_library_reads_them(word in "[0-9]{1,21}|[0-9+ -]{1,3}") {
            let padded = word.len() > 1 && word.starts_with('0');
            let standard = word.parse().ok().filter(|_| !padded && !word.starts_with('+'));
            prop_assert_eq!(parse(word.as_bytes()), standard);
        }
    }

    #[test]
    fn the_characters_beside_the_digits_are_none() {
        for (word, number) in [
            ("0", Some(0)),
            ("9", Some(9)),
            ("/", None),
            (":", None),
            ("1:", None),
        ] {
            assert_eq!(parse(word.as_bytes()), number, "{word}");
        }
    }
}
