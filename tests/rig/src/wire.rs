//! The protocol at the level of bytes: the form of commands on the wire, and the ends of replies.

use anyhow::{bail, Result};
use redis::Cmd;

/// Returns the bytes of a command with these words.
pub fn packed(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command.get_packed_command()
}

/// Returns the end of the first reply in these bytes, in RESP2 and RESP3. Returns `None` if the
/// reply is incomplete. Returns an error if the bytes are no reply.
///
/// The `redis` crate reads the values, but it doesn't give the end of a reply. Tests need the end
/// to look at the bytes: a nil is `$-1`, `*-1` or `_`, and other data may follow a reply. The crate
/// also refuses errors that aren't UTF-8, which servers send if they quote a binary word. The crate
/// `redis-protocol` gives the end for RESP2 or for RESP3, but its RESP3 has no `$-1`. A connection
/// that changes from one protocol to the other needs both.
pub fn reply_end(bytes: &[u8]) -> Result<Option<usize>> {
    let mut end = 0;
    // The number of values still to come.
    let mut left = 1u64;
    while left > 0 {
        let Some(line) = line(&bytes[end..]) else {
            return Ok(None);
        };
        left = left - 1 + parts(line)?;
        end += line.len() + 2 + text_len(line)?;
        if end > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(end))
}

fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}

/// Returns the number of values inside this value, from its first line.
fn parts(line: &[u8]) -> Result<u64> {
    Ok(match line.first() {
        Some(b'*' | b'~' | b'>') => count(line)?,
        Some(b'%') => count(line)? * 2,
        // The value that an attribute describes follows it.
        Some(b'|') => count(line)? * 2 + 1,
        _ => 0,
    })
}

/// Returns the number of bytes of text after the first line, with their line end.
fn text_len(line: &[u8]) -> Result<usize> {
    match line.first() {
        Some(b'$' | b'!' | b'=') if line.get(1) == Some(&b'-') => Ok(0),
        Some(b'$' | b'!' | b'=') => Ok(usize::try_from(count(line)?)? + 2),
        Some(b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' | b'*' | b'~' | b'>' | b'%' | b'|') => {
            Ok(0)
        }
        _ => bail!("no reply begins with {:?}", String::from_utf8_lossy(line)),
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
    fn replies_end_where_they_end() {
        let replies: [&[u8]; 10] = [
            b"+OK\r\n",
            b"-ERR unknown command '\xff'\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$4\r\n\r\n\r\n\r\n",
            b"*2\r\n$1\r\nx\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n~2\r\n_\r\n#t\r\n",
            b"|1\r\n+a\r\n+b\r\n,1.5\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        ];
        for reply in replies {
            for len in 0..reply.len() {
                assert_eq!(reply_end(&reply[..len]).unwrap(), None, "{len}");
            }
            let more = [reply, b"+next\r\n"].concat();
            assert_eq!(reply_end(&more).unwrap(), Some(reply.len()));
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        assert!(reply_end(b"OK\r\n").is_err());
        assert!(reply_end(b"*x\r\n").is_err());
    }
}
