//! What is to be published once a place's wait is over (NOTIFY).

use crate::values::refusal::Refusal;

/// The longest message, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 1024;

/// The longest name of a channel, in bytes.
pub const MOST_CHANNEL_BYTES: usize = 1024;

/// A channel, and the message that is to be published there. Many places have one each, so both lie in
/// one piece of memory.
///
/// Invariant: `channel_len` is at most the number of `bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    bytes: Box<[u8]>,
    channel_len: u32,
}

impl Notice {
    /// A message for a channel, which the server keeps for as long as the place.
    ///
    /// # Errors
    /// [`Refusal::Message`] or else [`Refusal::ChannelLength`] if one of them is too long.
    pub fn new(channel: &[u8], message: &[u8]) -> Result<Self, Refusal> {
        if message.len() > MOST_MESSAGE_BYTES {
            return Err(Refusal::Message);
        }
        let channel_len = u32::try_from(channel.len()).ok();
        let channel_len = channel_len.filter(|_| channel.len() <= MOST_CHANNEL_BYTES);
        Ok(Self {
            bytes: [channel, message].concat().into(),
            channel_len: channel_len.ok_or(Refusal::ChannelLength)?,
        })
    }

    /// Where it is published.
    pub fn channel(&self) -> &[u8] {
        self.parts().0
    }

    /// What is published.
    pub fn message(&self) -> &[u8] {
        self.parts().1
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let parts = self.bytes.split_at_checked(self.channel_len as usize);
        parts.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_a_channel_and_a_message_apart() {
        for (channel, message) in [("c", "m"), ("", ""), ("c", ""), ("", "m"), ("cc", "mmm")] {
            let notice = Notice::new(channel.as_bytes(), message.as_bytes()).unwrap();
            assert_eq!(notice.channel(), channel.as_bytes());
            assert_eq!(notice.message(), message.as_bytes());
        }
    }

    #[test]
    fn a_message_has_at_most_1024_bytes() {
        assert!(Notice::new(b"c", &[b'm'; 1024]).is_ok());
        assert_eq!(Notice::new(b"c", &[b'm'; 1025]), Err(Refusal::Message));
    }

    #[test]
    fn a_channel_has_at_most_1024_bytes() {
        assert!(Notice::new(&[b'c'; 1024], b"m").is_ok());
        let too_long = [b'c'; 1025];
        assert_eq!(Notice::new(&too_long, b"m"), Err(Refusal::ChannelLength));
        let both = Notice::new(&too_long, &[b'm'; 1025]);
        assert_eq!(both, Err(Refusal::Message), "the message goes first");
    }
}
