//! The syntax of each command, defined once. The parser, the synopsis and COMMAND DOCS are derived
//! from it, so they cannot differ.
//!
//! An option has three parts: a constant here, an entry in each verb that takes it, and a field of
//! `Options`, which reads it.

use std::ffi::CStr;

use crate::grammar::options::{ArgIndex, Options};

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Decimal digits.
    Number,
    /// Any bytes.
    Text,
}

/// A value that takes one word.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// The value's name in the synopsis.
    pub shown: &'static str,
    /// The value's name in COMMAND DOCS.
    pub name: &'static CStr,
    /// The value's kind.
    pub kind: Kind,
}

impl Value {
    const fn number(shown: &'static str, name: &'static CStr) -> Self {
        Self {
            shown,
            name,
            kind: Kind::Number,
        }
    }

    const fn text(shown: &'static str, name: &'static CStr) -> Self {
        Self {
            shown,
            name,
            kind: Kind::Text,
        }
    }
}

/// A function that returns the field of an option, which records the option's index.
type Field = for<'g, 'a> fn(&'g mut Options<'a>) -> &'g mut ArgIndex;

/// An option: its own word, and the values behind it.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The option's word, accepted in any case.
    pub word: &'static CStr,
    /// The values; empty for an option without any.
    pub values: &'static [Value],
    pub(in crate::grammar) field: Field,
}

/// Options that belong together. A command takes each at most once, in any order.
#[derive(Clone, Copy, Debug)]
pub enum OptionGroup {
    /// `[BLOCK ms]`
    Free(Opt),
    /// `[PX ms | EX s]`: at most one of them. The string is the group's name in COMMAND DOCS.
    OneOf(&'static CStr, &'static [OptionGroup]),
    /// `[SHARED [LIMIT n]]`: the others only with the first one. The string is the group's name in
    /// COMMAND DOCS.
    Prefixed(&'static CStr, Opt, &'static [OptionGroup]),
}

/// The form of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// `key ...`
    One,
    /// `numkeys key [key ...] ...`
    Many,
}

/// The tokens that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A new or an existing token; `*` draws a new one.
    GivenOrNew,
    /// An existing token; `*` is refused.
    Existing,
}

/// The words behind the keys and the token.
#[derive(Clone, Copy, Debug)]
pub enum Rest {
    /// Options, or no words.
    Options(&'static [OptionGroup]),
    /// One word or more.
    Words(Value),
}

/// A command's action, and its arguments apart from the keys.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// `ACQUIRE` for LOCK.ACQUIRE and LOCK.MACQUIRE.
    pub word: &'static str,
    /// The token behind the keys, if the verb takes one.
    pub token: Option<TokenKind>,
    /// The words behind the token.
    pub rest: Rest,
}

/// A command: a verb, and the form of its keys.
#[derive(Clone, Copy, Debug)]
pub struct Syntax {
    /// The verb.
    pub verb: &'static Verb,
    /// The form of the keys; `None` for a command without keys.
    pub keys: Option<Keys>,
}

const PX: Opt = Opt {
    word: c"PX",
    values: &[Value::number("ms", c"milliseconds")],
    field: |given| &mut given.px,
};

const EX: Opt = Opt {
    word: c"EX",
    values: &[Value::number("s", c"seconds")],
    field: |given| &mut given.ex,
};

const BLOCK: Opt = Opt {
    word: c"BLOCK",
    values: &[Value::number("ms", c"block-milliseconds")],
    field: |given| &mut given.block,
};

const SHARED: Opt = Opt {
    word: c"SHARED",
    values: &[],
    field: |given| &mut given.shared,
};

const LIMIT: Opt = Opt {
    word: c"LIMIT",
    values: &[Value::number("n", c"limit")],
    field: |given| &mut given.limit,
};

const PERMITS: Opt = Opt {
    word: c"PERMITS",
    values: &[Value::number("m", c"permits")],
    field: |given| &mut given.permits,
};

const REENTRANT: Opt = Opt {
    word: c"REENTRANT",
    values: &[],
    field: |given| &mut given.reentrant,
};

const HOLDS: Opt = Opt {
    word: c"HOLDS",
    values: &[Value::number("n", c"holds")],
    field: |given| &mut given.holds,
};

const SESSION: Opt = Opt {
    word: c"SESSION",
    values: &[],
    field: |given| &mut given.session,
};

const KEEP: Opt = Opt {
    word: c"KEEP",
    values: &[Value::number("ms", c"keep-milliseconds")],
    field: |given| &mut given.keep,
};

const NOTIFY: Opt = Opt {
    word: c"NOTIFY",
    values: &[
        Value::text("channel", c"channel"),
        Value::text("message", c"message"),
    ],
    field: |given| &mut given.notify,
};

const NOSESSION: Opt = Opt {
    word: c"NOSESSION",
    values: &[],
    field: |given| &mut given.nosession,
};

const ALL: Opt = Opt {
    word: c"ALL",
    values: &[],
    field: |given| &mut given.all,
};

const WAITERS: Opt = Opt {
    word: c"WAITERS",
    values: &[Value::number("count", c"count")],
    field: |given| &mut given.waiters,
};

const DATA: Opt = Opt {
    word: c"DATA",
    values: &[Value::text("bytes", c"data")],
    field: |given| &mut given.data,
};

const REPLICAS: Opt = Opt {
    word: c"REPLICAS",
    values: &[Value::number("n", c"replicas")],
    field: |given| &mut given.replicas,
};

const WITHIN: Opt = Opt {
    word: c"WITHIN",
    values: &[Value::number("ms", c"within-milliseconds")],
    field: |given| &mut given.within,
};

const FENCE: Opt = Opt {
    word: c"FENCE",
    values: &[Value::number("n", c"fence")],
    field: |given| &mut given.fence,
};

const GT: Opt = Opt {
    word: c"GT",
    values: &[],
    field: |given| &mut given.gt,
};

const LEAVE: Opt = Opt {
    word: c"LEAVE",
    values: &[Value::number("ms", c"leave-milliseconds")],
    field: |given| &mut given.leave,
};

const COUNT: Opt = Opt {
    word: c"COUNT",
    values: &[Value::number("n", c"count")],
    field: |given| &mut given.count,
};

const LEASE: OptionGroup =
    OptionGroup::OneOf(c"lease", &[OptionGroup::Free(PX), OptionGroup::Free(EX)]);
const LIMITED: OptionGroup =
    OptionGroup::Prefixed(c"limited", LIMIT, &[OptionGroup::Free(PERMITS)]);
const MODE: OptionGroup = OptionGroup::Prefixed(c"mode", SHARED, &[LIMITED]);
const REPEAT: OptionGroup = OptionGroup::OneOf(
    c"repeat",
    &[OptionGroup::Free(REENTRANT), OptionGroup::Free(HOLDS)],
);
const TIE: OptionGroup = OptionGroup::Prefixed(c"session", SESSION, &[OptionGroup::Free(KEEP)]);

const ACKNOWLEDGED: OptionGroup =
    OptionGroup::Prefixed(c"acknowledged", REPLICAS, &[OptionGroup::Free(WITHIN)]);

/// The verb that grants now or not at all.
pub const ACQUIRE: Verb = Verb {
    word: "ACQUIRE",
    token: Some(TokenKind::GivenOrNew),
    rest: Rest::Options(&[
        LEASE,
        MODE,
        REPEAT,
        TIE,
        OptionGroup::Free(DATA),
        ACKNOWLEDGED,
    ]),
};

/// The verb that grants now, or queues.
pub const WAIT: Verb = Verb {
    word: "WAIT",
    token: Some(TokenKind::GivenOrNew),
    rest: Rest::Options(&[
        LEASE,
        OptionGroup::Free(BLOCK),
        MODE,
        REPEAT,
        OptionGroup::Free(SESSION),
        OptionGroup::Free(KEEP),
        OptionGroup::Free(DATA),
        ACKNOWLEDGED,
    ]),
};

/// The verb that grants now, or takes a place, which needs no connection.
pub const QUEUE: Verb = Verb {
    word: "QUEUE",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[
        LEASE,
        OptionGroup::Free(KEEP),
        OptionGroup::Free(NOTIFY),
        MODE,
        OptionGroup::Free(HOLDS),
        OptionGroup::Free(DATA),
    ]),
};

/// The verb that cancels waits.
pub const CANCEL: Verb = Verb {
    word: "CANCEL",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[]),
};

/// The verb that sets a new lease.
pub const EXTEND: Verb = Verb {
    word: "EXTEND",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[
        LEASE,
        OptionGroup::Free(GT),
        OptionGroup::OneOf(c"tie", &[TIE, OptionGroup::Free(NOSESSION)]),
        OptionGroup::Free(DATA),
        ACKNOWLEDGED,
        OptionGroup::Free(FENCE),
    ]),
};

/// The verb that gives up holds.
pub const RELEASE: Verb = Verb {
    word: "RELEASE",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[OptionGroup::OneOf(
        c"end",
        &[
            OptionGroup::Free(ALL),
            OptionGroup::Free(HOLDS),
            OptionGroup::Free(LEAVE),
        ],
    )]),
};

/// The verb that shows a token's lease.
pub const CHECK: Verb = Verb {
    word: "CHECK",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[]),
};

/// The verb that shows a lock and its queue.
pub const INFO: Verb = Verb {
    word: "INFO",
    token: None,
    rest: Rest::Options(&[OptionGroup::Free(WAITERS)]),
};

/// The verb that shows where waiting happens.
pub const HOT: Verb = Verb {
    word: "HOT",
    token: None,
    rest: Rest::Options(&[OptionGroup::Free(COUNT)]),
};

/// The verb that lists the commands.
pub const HELP: Verb = Verb {
    word: "HELP",
    token: None,
    rest: Rest::Options(&[]),
};

/// The verb that applies an effect. The meaning of its words is in `effect.rs`.
pub const APPLY: Verb = Verb {
    word: "APPLY",
    token: None,
    rest: Rest::Words(Value::text("effect", c"effect")),
};
