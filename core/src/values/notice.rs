//! What is to be published once a place's wait is over (NOTIFY).

/// The longest message, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 1024;

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
    /// A message for a channel; `None` where the message is too long, or the channel's name beyond what
    /// any server takes.
    pub fn new(channel: &[u8], message: &[u8]) -> Option<Self> {
        if message.len() > MOST_MESSAGE_BYTES {
            return None;
        }
        Some(Self {
            bytes: [channel, message].concat().into(),
            channel_len: u32::try_from(channel.len()).ok()?,
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
        assert!(Notice::new(b"c", &[b'm'; 1024]).is_some());
        assert_eq!(Notice::new(b"c", &[b'm'; 1025]), None);
    }
}
