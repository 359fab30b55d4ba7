//! Notifications: messages to publish when a place has ended (NOTIFY).

use crate::values::refusal::Refusal;

/// The longest message, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 1024;

/// The longest name of a channel, in bytes.
pub const MOST_CHANNEL_BYTES: usize = 1024;

/// A channel, and the message to publish there.
///
/// Invariant: `channel_len` is at most the number of `bytes`.
// perf: channel and message share one allocation, because many places may have a notification each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    bytes: Box<[u8]>,
    channel_len: u32,
}

impl Notification {
    /// Returns a notification. The server keeps it as long as its place.
    ///
    /// # Errors
    /// [`Refusal::Message`] if the message is too long, else [`Refusal::ChannelLength`] if the
    /// channel is.
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

    /// Returns the channel.
    pub fn channel(&self) -> &[u8] {
        self.parts().0
    }

    /// Returns the message.
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
            let notification = Notification::new(channel.as_bytes(), message.as_bytes()).unwrap();
            assert_eq!(notification.channel(), channel.as_bytes());
            assert_eq!(notification.message(), message.as_bytes());
        }
    }

    #[test]
    fn a_message_has_at_most_1024_bytes() {
        assert!(Notification::new(b"c", &[b'm'; 1024]).is_ok());
        assert_eq!(
            Notification::new(b"c", &[b'm'; 1025]),
            Err(Refusal::Message)
        );
    }

    #[test]
    fn a_channel_has_at_most_1024_bytes() {
        assert!(Notification::new(&[b'c'; 1024], b"m").is_ok());
        let too_long = [b'c'; 1025];
        assert_eq!(
            Notification::new(&too_long, b"m"),
            Err(Refusal::ChannelLength)
        );
        let both = Notification::new(&too_long, &[b'm'; 1025]);
        assert_eq!(both, Err(Refusal::Message), "the message goes first");
    }
}
