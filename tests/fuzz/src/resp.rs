//! The protocol: commands as they are sent, and where answers end.

use anyhow::{bail, Result};

use crate::grammar::Command;

/// A command as an array of bulk strings.
pub fn encode(command: &Command, out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", command.len()).bytes());
    for word in command {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend(word);
        out.extend(b"\r\n");
    }
}

/// What a server sent, up to its end.
#[derive(Debug, PartialEq)]
pub struct Frame<'a> {
    /// All of it, the byte that tells its type included.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame, if all of it is there. RESP2 and RESP3.
    pub fn first(bytes: &'a [u8]) -> Result<Option<Frame<'a>>> {
        let mut end = 0;
        // How many values are still to come.
        let mut left = 1u64;
        while left > 0 {
            let Some(line) = line(&bytes[end..]) else {
                return Ok(None);
            };
            end += line.len() + 2;
            left = left - 1 + parts(line)?;
            end += text_len(line)?;
            if end > bytes.len() {
                return Ok(None);
            }
        }
        Ok(Some(Frame {
            bytes: &bytes[..end],
        }))
    }

    /// Whether a command is answered with this, which a RESP3 push doesn't do.
    pub fn is_answer(&self) -> bool {
        !self.bytes.starts_with(b">")
    }

    /// The number, where it is one.
    pub fn integer(&self) -> Option<u64> {
        let text = self.bytes.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// The text, where it is a bulk string.
    pub fn bulk(&self) -> Option<&'a [u8]> {
        let rest = self.bytes.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
        let line = line(rest)?;
        rest.get(line.len() + 2..)
    }
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}

/// How many values belong to this one, from its first line.
fn parts(line: &[u8]) -> Result<u64> {
    Ok(match line.first() {
        Some(b'*' | b'~' | b'>') => count(line)?,
        Some(b'%') => count(line)? * 2,
        // What an attribute is about comes behind it.
        Some(b'|') => count(line)? * 2 + 1,
        _ => 0,
    })
}

/// How many bytes of text come behind the first line.
fn text_len(line: &[u8]) -> Result<usize> {
    match line.first() {
        Some(b'$' | b'!' | b'=') if line.get(1) == Some(&b'-') => Ok(0),
        Some(b'$' | b'!' | b'=') => Ok(usize::try_from(count(line)?)? + 2),
        Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'*' | b'~' | b'>' | b'%' | b'|') => {
            Ok(0)
        }
        _ => bail!("no answer begins with {:?}", String::from_utf8_lossy(line)),
    }
}

fn count(line: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(&line[1..]);
    match text.parse::<i64>() {
        // A null.
        Ok(-1) => Ok(0),
        Ok(count) => Ok(u64::try_from(count)?),
        Err(_) => bail!("no length: {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_end_where_they_end() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$4\r\n\r\n\r\n\r\n",
            b"*2\r\n$1\r\nx\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n~2\r\n_\r\n#t\r\n",
            b"|1\r\n+a\r\n+b\r\n,1.5\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        ];
        for frame in frames {
            for len in 0..frame.len() {
                assert_eq!(Frame::first(&frame[..len]).unwrap(), None, "{len}");
            }
            let more = [frame, b"+next\r\n"].concat();
            let first = Frame::first(&more).unwrap().unwrap();
            assert_eq!(first.bytes, frame);
            assert_eq!(first.is_answer(), frame[0] != b'>');
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        assert!(Frame::first(b"OK\r\n").is_err());
        assert!(Frame::first(b"*x\r\n").is_err());
    }

    #[test]
    fn numbers_and_texts_are_read() {
        let frame = |bytes| Frame::first(bytes).unwrap().unwrap();
        assert_eq!(frame(b":7\r\n").integer(), Some(7));
        assert_eq!(frame(b"$3\r\na\r\n\r\n").bulk(), Some(b"a\r\n".as_slice()));
        assert_eq!(frame(b"+OK\r\n").bulk(), None);
    }
}
