//! How each command is written, told once: the parser, the synopsis and COMMAND DOCS are made from
//! what stands here, so they can't differ.
//!
//! An option is a constant here, a place in the verbs that take it, and a field of `Given`, which
//! reads it.

use std::ffi::CStr;

use crate::grammar::given::{Given, ValuesAt};

/// What a value is.
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
    /// As the synopsis has it.
    pub shown: &'static str,
    /// As COMMAND DOCS has it.
    pub name: &'static CStr,
    /// What it may be.
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

/// Where it is noted of an option that it was found.
type Field = for<'g, 'a> fn(&'g mut Given<'a>) -> &'g mut ValuesAt;

/// An option: a word of its own, and the values behind it.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Taken in any case.
    pub word: &'static CStr,
    /// None for a word that stands for itself.
    pub values: &'static [Value],
    pub(in crate::grammar) field: Field,
}

/// Options that belong together. A command is given each at most once, in any order.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// `[BLOCK ms]`
    Free(Opt),
    /// `[PX ms | EX s]`: one of them at most. COMMAND DOCS has a name for them.
    OneOf(&'static CStr, &'static [Part]),
    /// `[SHARED [LIMIT n]]`: the others only where the first is. COMMAND DOCS has a name for them.
    Led(&'static CStr, Opt, &'static [Part]),
}

/// How a command names its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// `key ...`
    One,
    /// `numkeys key [key ...] ...`
    Many,
}

/// What may stand for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// One that owns or wants to own; `*` draws one.
    GivenOrNew,
    /// One that exists already; `*` is refused.
    Existing,
}

/// What comes behind the keys and the token.
#[derive(Clone, Copy, Debug)]
pub enum Rest {
    /// Options, or nothing at all.
    Options(&'static [Part]),
    /// One word or more.
    Words(Value),
}

/// What a command does with its keys, and what it is told beside them.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// `ACQUIRE` for LOCK.ACQUIRE and LOCK.MACQUIRE.
    pub word: &'static str,
    /// The word behind the keys, if that is a token.
    pub token: Option<TokenKind>,
    /// What comes last.
    pub rest: Rest,
}

/// A command: a verb with its keys.
#[derive(Clone, Copy, Debug)]
pub struct Syntax {
    /// What it does.
    pub verb: &'static Verb,
    /// Upon which keys, if any.
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

const LEASE: Part = Part::OneOf(c"lease", &[Part::Free(PX), Part::Free(EX)]);
const LIMITED: Part = Part::Led(c"limited", LIMIT, &[Part::Free(PERMITS)]);
const MODE: Part = Part::Led(c"mode", SHARED, &[LIMITED]);
const REPEAT: Part = Part::OneOf(c"repeat", &[Part::Free(REENTRANT), Part::Free(HOLDS)]);
const TIE: Part = Part::Led(c"session", SESSION, &[Part::Free(KEEP)]);

/// Grants now or not at all.
pub const ACQUIRE: Verb = Verb {
    word: "ACQUIRE",
    token: Some(TokenKind::GivenOrNew),
    rest: Rest::Options(&[LEASE, MODE, REPEAT, TIE]),
};

/// Grants now, or queues.
pub const WAIT: Verb = Verb {
    word: "WAIT",
    token: Some(TokenKind::GivenOrNew),
    rest: Rest::Options(&[
        LEASE,
        Part::Free(BLOCK),
        MODE,
        REPEAT,
        Part::Free(SESSION),
        Part::Free(KEEP),
    ]),
};

/// Grants now, or takes a place that needs no connection.
pub const QUEUE: Verb = Verb {
    word: "QUEUE",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[
        LEASE,
        Part::Free(KEEP),
        Part::Free(NOTIFY),
        MODE,
        Part::Free(HOLDS),
    ]),
};

/// Gives up a wait.
pub const CANCEL: Verb = Verb {
    word: "CANCEL",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[]),
};

/// Sets the lease anew.
pub const EXTEND: Verb = Verb {
    word: "EXTEND",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[LEASE, Part::OneOf(c"tie", &[TIE, Part::Free(NOSESSION)])]),
};

/// Gives up holds.
pub const RELEASE: Verb = Verb {
    word: "RELEASE",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[Part::OneOf(c"leave", &[Part::Free(ALL), Part::Free(HOLDS)])]),
};

/// Looks at a token's lease.
pub const CHECK: Verb = Verb {
    word: "CHECK",
    token: Some(TokenKind::Existing),
    rest: Rest::Options(&[]),
};

/// Looks at a lock and its queue.
pub const INFO: Verb = Verb {
    word: "INFO",
    token: None,
    rest: Rest::Options(&[Part::Free(WAITERS)]),
};

/// Lists the commands.
pub const HELP: Verb = Verb {
    word: "HELP",
    token: None,
    rest: Rest::Options(&[]),
};

/// Carries an effect; what its words mean is in `effect.rs`.
pub const APPLY: Verb = Verb {
    word: "APPLY",
    token: None,
    rest: Rest::Words(Value::text("effect", c"effect")),
};
