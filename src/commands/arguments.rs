//! A command's arguments in the form of the server's module API.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_lock_core::grammar::syntax::{Keys, Kind, Opt, OptionGroup, Rest, Syntax, Value};
use redis_module::raw;

/// Returns a word in lower case. The word must have no NUL.
pub fn lower_case(word: &[u8]) -> CString {
    CString::new(word.to_ascii_lowercase()).unwrap_or_default()
}

/// An argument in the form of the API.
pub type RawArg = raw::RedisModuleCommandArg;
type RawType = raw::RedisModuleCommandArgType;

const KEY: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY;
const TEXT: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING;
const NUMBER: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER;
const WORD: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN;
const ONE_OF: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
const BLOCK: RawType = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;

/// A syntax in the form of the API. Pointers to its arguments are valid as long as this value.
#[derive(Default)]
pub struct Arguments {
    lists: Vec<Box<[RawArg]>>,
    names: Vec<CString>,
}

impl Arguments {
    /// Returns the list of a command's arguments, or null if it has none.
    pub fn of(&mut self, syntax: &Syntax) -> *mut RawArg {
        let mut args = match syntax.keys {
            None => vec![],
            Some(Keys::One) => vec![argument(c"key", KEY)],
            Some(Keys::Many) => vec![
                argument(c"numkeys", NUMBER),
                multiple(argument(c"key", KEY)),
            ],
        };
        args.extend(syntax.verb.token.map(|_| argument(c"token", TEXT)));
        match syntax.verb.rest {
            Rest::Options(groups) => args.extend(
                groups
                    .iter()
                    .map(|group| optional(self.option_group(group))),
            ),
            Rest::Words(word) => args.push(multiple(value(&word))),
        }
        self.list(args)
    }

    fn option_group(&mut self, group: &OptionGroup) -> RawArg {
        match group {
            OptionGroup::Free(option) => self.option(option),
            OptionGroup::OneOf(name, groups) => {
                let parts = groups
                    .iter()
                    .map(|group| self.option_group(group))
                    .collect();
                self.group(name, ONE_OF, parts)
            }
            OptionGroup::Prefixed(name, first, others) => {
                let mut parts = vec![self.option(first)];
                parts.extend(
                    others
                        .iter()
                        .map(|other| optional(self.option_group(other))),
                );
                self.group(name, BLOCK, parts)
            }
        }
    }

    /// Returns an option: its word, followed by nothing, a value, or a block of several values.
    fn option(&mut self, option: &Opt) -> RawArg {
        let behind = match option.values {
            [] => self.named_as(option, argument(c"", WORD)),
            [only] => value(only),
            several => {
                let block = self.group(c"", BLOCK, several.iter().map(value).collect());
                self.named_as(option, block)
            }
        };
        RawArg {
            token: option.word.as_ptr(),
            ..behind
        }
    }

    /// Returns an argument named after an option's word.
    fn named_as(&mut self, option: &Opt, arg: RawArg) -> RawArg {
        let name = lower_case(option.word.to_bytes());
        let named = RawArg {
            name: name.as_ptr(),
            ..arg
        };
        self.names.push(name);
        named
    }

    fn group(&mut self, name: &'static CStr, type_: RawType, parts: Vec<RawArg>) -> RawArg {
        RawArg {
            subargs: self.list(parts),
            ..argument(name, type_)
        }
    }

    /// Stores a list, ended by an argument of zeros. Returns a pointer to it, or null if it is
    /// empty.
    fn list(&mut self, mut args: Vec<RawArg>) -> *mut RawArg {
        if args.is_empty() {
            return ptr::null_mut();
        }
        // SAFETY: an argument has only numbers and pointers that may be null, for which all zeros is
        // a valid value. It ends a list in the API.
        args.push(unsafe { std::mem::zeroed() });
        let mut args = args.into_boxed_slice();
        let pointer = args.as_mut_ptr();
        self.lists.push(args);
        pointer
    }
}

fn argument(name: &'static CStr, type_: RawType) -> RawArg {
    RawArg {
        name: name.as_ptr(),
        type_,
        key_spec_index: if type_ == KEY { 0 } else { -1 },
        token: ptr::null(),
        summary: ptr::null(),
        since: ptr::null(),
        flags: raw::REDISMODULE_CMD_ARG_NONE as c_int,
        deprecated_since: ptr::null(),
        subargs: ptr::null_mut(),
        display_text: ptr::null(),
    }
}

fn value(value: &Value) -> RawArg {
    argument(
        value.name,
        match value.kind {
            Kind::Number => NUMBER,
            Kind::Text => TEXT,
        },
    )
}

fn optional(arg: RawArg) -> RawArg {
    RawArg {
        flags: raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int,
        ..arg
    }
}

fn multiple(arg: RawArg) -> RawArg {
    RawArg {
        flags: raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int,
        ..arg
    }
}
