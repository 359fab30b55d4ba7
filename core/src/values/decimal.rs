//! Numbers as words of a command.

/// A whole number of decimal digits: no sign, space, fraction or leading zero.
pub fn parse(word: &[u8]) -> Option<u64> {
    let padded = word.len() > 1 && word.first() == Some(&b'0');
    if word.is_empty() || padded {
        return None;
    }
    word.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        let number = number.checked_mul(10)?.checked_add(digit.into())?;
        (digit < 10).then_some(number)
    })
}
