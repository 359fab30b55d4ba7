//! A parser that finds the end and the kind of a reply. A benchmark needs no more than that.
//!
//! An error reply is returned as an error, because a benchmark must never measure errors.

use anyhow::{bail, Context, Result};

/// A reply without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Okay,
    /// `+PONG`
    Pong,
    /// Any other status.
    Status,
    /// A number.
    Int(i64),
    /// Nil, in RESP2 or RESP3.
    Nil,
    /// A string.
    Bulk,
    /// An array or set, with its length.
    Array(usize),
    /// A map.
    Map,
    /// A push message, in RESP3.
    Push,
}

/// The reply to a grant: a token and a fence.
pub const GRANT: Reply = Reply::Array(2);

/// Returns the first reply and its length in bytes, or `None` if the reply is incomplete.
pub fn first(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let after = end + 1;
    let line = bytes[..end].strip_suffix(b"\r").context("a lone newline")?;
    let (kind, rest) = line.split_first().context("an empty line")?;
    match kind {
        b'+' => Ok(Some((status(rest), after))),
        b':' => Ok(Some((Reply::Int(number(rest)?), after))),
        b'_' => Ok(Some((Reply::Nil, after))),
        b'-' | b'!' => bail!("answered {}", String::from_utf8_lossy(rest)),
        b'$' | b'=' => bulk(bytes.len(), number(rest)?, after),
        b'*' | b'~' => array(bytes, number(rest)?, after),
        b'%' => items(bytes, 2 * number(rest)?, after, Reply::Map),
        b'>' => items(bytes, number(rest)?, after, Reply::Push),
        b',' | b'#' | b'(' => Ok(Some((Reply::Status, after))),
        _ => bail!("no answer: {:?}", String::from_utf8_lossy(line)),
    }
}

fn status(text: &[u8]) -> Reply {
    match text {
        b"OK" => Reply::Okay,
        b"PONG" => Reply::Pong,
        _ => Reply::Status,
    }
}

fn number(digits: &[u8]) -> Result<i64> {
    let text = std::str::from_utf8(digits)?;
    text.parse().with_context(|| format!("no number: {text:?}"))
}

fn bulk(present: usize, length: i64, after: usize) -> Result<Option<(Reply, usize)>> {
    if length < 0 {
        return Ok(Some((Reply::Nil, after)));
    }
    let end = after + length as usize + 2;
    Ok((end <= present).then_some((Reply::Bulk, end)))
}

fn array(bytes: &[u8], length: i64, after: usize) -> Result<Option<(Reply, usize)>> {
    if length < 0 {
        return Ok(Some((Reply::Nil, after)));
    }
    items(bytes, length, after, Reply::Array(length as usize))
}

/// Skips the items of a reply.
fn items(bytes: &[u8], count: i64, after: usize, whole: Reply) -> Result<Option<(Reply, usize)>> {
    let mut end = after;
    for _ in 0..count {
        let Some((_, length)) = first(&bytes[end..])? else {
            return Ok(None);
        };
        end += length;
    }
    Ok(Some((whole, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_only_when_it_is_whole() -> Result<()> {
        let cases: [(&[u8], Reply); 8] = [
            (b"+OK\r\n", Reply::Okay),
            (b"+PONG\r\n", Reply::Pong),
            (b":-12\r\n", Reply::Int(-12)),
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (b"$4\r\na\r\nb\r\n", Reply::Bulk),
            (b"*2\r\n$1\r\nt\r\n:17\r\n", GRANT),
            (b">3\r\n$1\r\nm\r\n*1\r\n:1\r\n_\r\n", Reply::Push),
        ];
        for (bytes, reply) in cases {
            for part in 0..bytes.len() {
                assert_eq!(first(&bytes[..part])?, None, "{reply:?} at {part}");
            }
            let more = [bytes, b"+OK\r\n"].concat();
            assert_eq!(first(&more)?, Some((reply, bytes.len())));
        }
        Ok(())
    }

    #[test]
    fn an_error_is_never_counted_as_an_answer() {
        for bytes in [&b"-ERR no\r\n"[..], b"*1\r\n-ERR no\r\n", b"OK\r\n", b"\n"] {
            assert!(first(bytes).is_err(), "{bytes:?}");
        }
    }
}
