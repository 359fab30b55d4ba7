//! Keys as the server's strings.

use redis_lock_core::branch::likely;
use redis_module::{raw, RedisString};

use crate::server::api;

/// The words of the command that runs, behind its name: as the server's strings and as bytes. They live
/// as long as it runs.
#[derive(Clone, Copy)]
pub struct CommandStrings<'a> {
    strings: &'a [*mut raw::RedisModuleString],
    words: &'a [&'a [u8]],
}

/// A string of the server's: one that came with the command, or one of our own.
pub enum ServerString<'a> {
    /// The server's, alive as long as the command runs, and its bytes.
    OfCommand(*mut raw::RedisModuleString, &'a [u8]),
    /// Freed when the value goes.
    Own(RedisString),
}

impl<'a> CommandStrings<'a> {
    /// No command runs.
    pub const NONE: CommandStrings<'static> = CommandStrings {
        strings: &[],
        words: &[],
    };

    /// # Safety
    /// The strings are the server's, live as long as the borrow, and have these bytes, one by one.
    pub const unsafe fn new(
        strings: &'a [*mut raw::RedisModuleString],
        words: &'a [&'a [u8]],
    ) -> Self {
        Self { strings, words }
    }

    /// Whether a command runs that came with words.
    pub const fn is_some(self) -> bool {
        !self.strings.is_empty()
    }

    /// A string with these bytes. Most that a command needs came with it, as its first or second word.
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

    /// The string with this number, if it has these bytes.
    #[inline(always)]
    fn at(self, number: usize, bytes: &[u8]) -> Option<ServerString<'a>> {
        let (string, word) = (self.strings.get(number)?, self.words.get(number)?);
        likely(*word == bytes).then_some(ServerString::OfCommand(*string, word))
    }
}

impl ServerString<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::OfCommand(_, bytes) => bytes,
            Self::Own(string) => string.as_slice(),
        }
    }

    /// The server's pointer, valid as long as this value.
    pub fn as_ptr(&self) -> *mut raw::RedisModuleString {
        match self {
            Self::OfCommand(string, _) => *string,
            Self::Own(string) => string.inner,
        }
    }
}
