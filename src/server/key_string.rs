//! Keys as the server's strings.

use redis_module::{raw, RedisString};

use crate::server::api;

/// The words of the command that runs, as the server's strings. They live as long as it runs.
#[derive(Clone, Copy)]
pub struct CommandStrings<'a>(&'a [*mut raw::RedisModuleString]);

/// A string of the server's: one that came with the command, or one of our own.
pub enum ServerString {
    /// The server's, alive as long as the command runs.
    OfCommand(*mut raw::RedisModuleString),
    /// Freed when the value goes.
    Own(RedisString),
}

impl<'a> CommandStrings<'a> {
    /// No command runs.
    pub const NONE: CommandStrings<'static> = CommandStrings(&[]);

    /// # Safety
    /// The strings are the server's, and live as long as the borrow.
    pub const unsafe fn new(strings: &'a [*mut raw::RedisModuleString]) -> Self {
        Self(strings)
    }

    /// Whether a command runs.
    pub const fn is_some(self) -> bool {
        !self.0.is_empty()
    }

    /// A string with these bytes. Most that a command needs came with it, as its first or second word.
    pub fn find(self, bytes: &[u8]) -> ServerString {
        for word in self.0.iter().skip(1).take(2) {
            if RedisString::string_as_slice(*word) == bytes {
                return ServerString::OfCommand(*word);
            }
        }
        ServerString::Own(api::string(bytes))
    }
}

impl ServerString {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        RedisString::string_as_slice(self.as_ptr())
    }

    /// The server's pointer, valid as long as this value.
    pub fn as_ptr(&self) -> *mut raw::RedisModuleString {
        match self {
            Self::OfCommand(string) => *string,
            Self::Own(string) => string.inner,
        }
    }
}
