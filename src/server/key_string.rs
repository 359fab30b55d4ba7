//! Keys and words as strings of the server.

use redis_lock_core::hints::likely;
use redis_module::RedisString;

use crate::server::api;
use crate::server::calls::Str;

/// The words of the running command behind its name, as strings of the server and as bytes. They
/// are valid as long as the command runs.
#[derive(Clone, Copy)]
pub struct CommandStrings<'a> {
    strings: &'a [Str<'a>],
    words: &'a [&'a [u8]],
}

/// A string of the server: one of the command's, or one of our own.
pub enum ServerString<'a> {
    /// A string of the running command, valid as long as the command runs, and its bytes.
    OfCommand(Str<'a>, &'a [u8]),
    /// A string of our own, freed when the value is dropped.
    Own(RedisString),
}

impl<'a> CommandStrings<'a> {
    /// No command.
    pub const NONE: CommandStrings<'static> = CommandStrings {
        strings: &[],
        words: &[],
    };

    /// Wraps the words of a command, and their bytes, one by one.
    pub const fn new(strings: &'a [Str<'a>], words: &'a [&'a [u8]]) -> Self {
        Self { strings, words }
    }

    /// Returns true if a command with words runs.
    pub const fn is_some(self) -> bool {
        !self.strings.is_empty()
    }

    /// Returns a string with these bytes.
    // perf: most strings that a command needs are its own first or second word.
    #[inline]
    pub fn find(self, bytes: &[u8]) -> ServerString<'a> {
        let first = self.at(0, bytes);
        first.unwrap_or_else(|| self.find_behind(bytes))
    }

    #[inline(never)]
    fn find_behind(self, bytes: &[u8]) -> ServerString<'a> {
        let second = self.at(1, bytes);
        second.unwrap_or_else(|| ServerString::Own(api::string(bytes)))
    }

    /// Returns the command's string with this index, if it has these bytes.
    #[inline(always)]
    fn at(self, number: usize, bytes: &[u8]) -> Option<ServerString<'a>> {
        let (string, word) = (self.strings.get(number)?, self.words.get(number)?);
        likely(*word == bytes).then_some(ServerString::OfCommand(*string, word))
    }
}

impl ServerString<'_> {
    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::OfCommand(_, bytes) => bytes,
            Self::Own(string) => string.as_slice(),
        }
    }

    /// Returns the string for a call of the server.
    #[inline(always)]
    pub fn as_str(&self) -> Str<'_> {
        match self {
            Self::OfCommand(string, _) => *string,
            Self::Own(string) => Str::from(string),
        }
    }
}
