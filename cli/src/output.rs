//! Bytes and spans, formatted for people.
//!
//! Keys, tokens and client names are untrusted bytes. They must not reach a terminal as control
//! characters.

use std::fmt::Write;
use std::io;

/// Returns bytes as one word. Printable text without spaces, quotes and backslashes stays
/// unchanged. Everything else is escaped and quoted, like in redis-cli.
pub fn word(bytes: &[u8]) -> String {
    let escaped = escaped(bytes);
    let plain = !escaped.is_empty() && !escaped.contains(['\\', '"', '\'', ' ']);
    if plain {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

/// Returns untrusted text as one line.
pub fn line(text: &str) -> String {
    let shown = |character: char| match is_printable(character) {
        true => character.to_string(),
        false => character.escape_default().to_string(),
    };
    text.chars().map(shown).collect()
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push(&mut text, character);
        }
        push_bytes(&mut text, chunk.invalid());
    }
    text
}

fn push(text: &mut String, character: char) {
    match character {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        _ if is_printable(character) => text.push(character),
        _ => push_bytes(text, character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn push_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string can't fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// Returns true if a terminal only displays the character. Control characters, direction marks and
/// combining characters are not printable.
pub fn is_printable(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().eq([character])
}

/// Returns a span in its two largest units.
pub fn span(ms: u64) -> String {
    const SECOND: u64 = 1_000;
    const MINUTE: u64 = 60 * SECOND;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match ms {
        0..SECOND => format!("{ms}ms"),
        SECOND..MINUTE => format!("{}.{}s", ms / SECOND, ms % SECOND / 100),
        MINUTE..HOUR => format!("{}m{:02}s", ms / MINUTE, ms % MINUTE / SECOND),
        HOUR..DAY => format!("{}h{:02}m", ms / HOUR, ms % HOUR / MINUTE),
        _ => format!("{}d{:02}h", ms / DAY, ms % DAY / HOUR),
    }
}

/// Returns true if the output failed because its reader has gone, like in `redis-lock ls | head`.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let of_io = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
    };
    error.is::<Unread>() && error.chain().any(of_io)
}

/// The context of a failed write to the standard output. It is needed because a broken server
/// connection has the same error.
#[derive(Debug)]
pub struct Unread;

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the output can't be written")
    }
}

/// Writes a complete text to the standard output.
pub fn print(text: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    use std::io::Write;
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .context(Unread)
}

/// Writes a line to the standard error. A failed write is ignored, because it must not end the
/// caller's work.
pub fn log(text: impl std::fmt::Display) {
    use std::io::Write;
    // One write, so that the lines of other processes don't mix with this line.
    let _ = io::stderr().write_all(format!("redis-lock: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (bytes, shown) in [
            (&b"orders:42"[..], "orders:42"),
            ("größe:日本".as_bytes(), "größe:日本"),
            (b"", "\"\""),
            (b"two words", "\"two words\""),
            (b"a\"b\\c", r#""a\"b\\c""#),
            (b"\x1b[2J", r#""\x1b[2J""#),
            (b"\0\xff\n\r\t\x07", r#""\x00\xff\n\r\t\x07""#),
            // An eight-bit control character, a direction mark, and an invisible character.
            ("\u{9b}2J".as_bytes(), r#""\xc2\x9b2J""#),
            ("\u{202e}x".as_bytes(), r#""\xe2\x80\xaex""#),
            ("\u{200b}".as_bytes(), r#""\xe2\x80\x8b""#),
        ] {
            assert_eq!(word(bytes), shown, "{bytes:?}");
        }
        assert_eq!(line("it's\x1b[2J\n"), "it's\\u{1b}[2J\\n");
    }

    #[test]
    fn spans_have_two_units() {
        for (ms, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1.0s"),
            (59_999, "59.9s"),
            (61_000, "1m01s"),
            (3_600_000, "1h00m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(span(ms), shown);
        }
    }
}
