//! What the server is told of a command: COMMAND DOCS, COMMAND GETKEYS, ACL key patterns and the
//! hints of redis-cli come from here.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_module::{raw, Context};

use crate::api::server;

/// One command's metadata.
pub struct Spec {
    /// Its name, in lower case as the server keeps it.
    pub name: &'static CStr,
    /// The server's command flags.
    pub flags: &'static CStr,
    /// One sentence.
    pub summary: &'static CStr,
    /// In words, the letters explained.
    pub complexity: &'static CStr,
    /// How many words, the name included; negative: at least so many.
    pub arity: c_int,
    /// Where its keys are.
    pub keys: KeySpec,
    /// Its arguments, in the order of the synopsis.
    pub args: &'static [Arg],
}

/// Where a command's keys are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeySpec {
    /// None.
    None,
    /// The word behind the name.
    One {
        /// Whether the key is only looked at.
        reads_only: bool,
    },
    /// A number behind the name, and so many words behind that; they are written.
    Many,
}

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A key.
    Key,
    /// Any bytes.
    Text,
    /// A number.
    Integer,
    /// A word that stands for itself.
    Flag,
    /// One of its parts.
    OneOf,
    /// All of its parts.
    Block,
}

/// One argument.
#[derive(Clone, Copy)]
pub struct Arg {
    name: &'static CStr,
    kind: Kind,
    token: Option<&'static CStr>,
    flags: u32,
    parts: &'static [Arg],
}

impl Arg {
    const fn new(name: &'static CStr, kind: Kind) -> Self {
        Self {
            name,
            kind,
            token: None,
            flags: raw::REDISMODULE_CMD_ARG_NONE,
            parts: &[],
        }
    }

    const fn optional(self) -> Self {
        Self {
            flags: raw::REDISMODULE_CMD_ARG_OPTIONAL,
            ..self
        }
    }

    const fn behind(self, token: &'static CStr) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }

    const fn of(self, parts: &'static [Arg]) -> Self {
        Self { parts, ..self }
    }

    /// How many keys follow.
    pub const fn numkeys() -> Self {
        Self::new(c"numkeys", Kind::Integer)
    }

    /// The keys that the key spec finds.
    pub const fn keys() -> Self {
        Self::many(c"key", Kind::Key)
    }

    /// The key that the key spec finds.
    pub const fn key() -> Self {
        Self::new(c"key", Kind::Key)
    }

    /// An optional value behind a word.
    pub const fn option(name: &'static CStr, kind: Kind, token: &'static CStr) -> Self {
        Self::new(name, kind).behind(token).optional()
    }

    /// An optional word.
    pub const fn flag(name: &'static CStr, token: &'static CStr) -> Self {
        Self::option(name, Kind::Flag, token)
    }

    /// One or more values.
    pub const fn many(name: &'static CStr, kind: Kind) -> Self {
        Self {
            flags: raw::REDISMODULE_CMD_ARG_MULTIPLE,
            ..Self::new(name, kind)
        }
    }
}

/// `token`
pub const TOKEN: Arg = Arg::new(c"token", Kind::Text);

/// `[PX ms | EX s]`
pub const LEASE: Arg = Arg::new(c"lease", Kind::OneOf).optional().of(&[
    Arg::new(c"milliseconds", Kind::Integer).behind(c"PX"),
    Arg::new(c"seconds", Kind::Integer).behind(c"EX"),
]);

/// `[BLOCK ms]`
pub const BLOCK: Arg = Arg::option(c"block-milliseconds", Kind::Integer, c"BLOCK");

/// `[SHARED [LIMIT n]]`
pub const MODE: Arg = Arg::new(c"mode", Kind::Block).optional().of(&[
    Arg::new(c"shared", Kind::Flag).behind(c"SHARED"),
    Arg::option(c"limit", Kind::Integer, c"LIMIT"),
]);

/// `[REENTRANT]`
pub const REENTRANT: Arg = Arg::flag(c"reentrant", c"REENTRANT");

/// `[SESSION]`
pub const SESSION: Arg = Arg::flag(c"session", c"SESSION");

type Entry =
    extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Registers a command with its metadata.
pub fn register(ctx: &Context, spec: &Spec, entry: Entry) -> Result<(), String> {
    let (first, last, step) = match spec.keys {
        KeySpec::None | KeySpec::Many => (0, 0, 0),
        KeySpec::One { .. } => (1, 1, 1),
    };
    let created = server!(RedisModule_CreateCommand(
        ctx.ctx,
        spec.name.as_ptr(),
        Some(entry),
        spec.flags.as_ptr(),
        first,
        last,
        step,
    ));
    if created != Some(0) || !describe(ctx, spec) || !categorise(ctx, spec) {
        return Err(format!(
            "the server refused the command {}",
            spec.name.to_string_lossy()
        ));
    }
    Ok(())
}

/// Puts the command into the ACL categories of its flags, where the server lets modules do so (from
/// Redis 7.2 on).
fn categorise(ctx: &Context, spec: &Spec) -> bool {
    let flags: Vec<_> = spec.flags.to_bytes().split(|byte| *byte == b' ').collect();
    let mut categories = vec![if flags.contains(&b"fast".as_slice()) {
        "fast"
    } else {
        "slow"
    }];
    let named = [
        ("write", "write"),
        ("readonly", "read"),
        ("blocking", "blocking"),
    ];
    categories.extend(
        named
            .iter()
            .filter(|(flag, _)| flags.contains(&flag.as_bytes()))
            .map(|(_, category)| *category),
    );
    let categories = CString::new(categories.join(" ")).unwrap_or_default();
    let command = server!(RedisModule_GetCommand(ctx.ctx, spec.name.as_ptr()));
    let set = command.and_then(|command| {
        server!(RedisModule_SetCommandACLCategories(
            command,
            categories.as_ptr()
        ))
    });
    set.is_none_or(|status| status == 0)
}

/// Tells the server the metadata; it keeps copies.
fn describe(ctx: &Context, spec: &Spec) -> bool {
    let Some(command) = server!(RedisModule_GetCommand(ctx.ctx, spec.name.as_ptr())) else {
        return false;
    };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut key_specs = key_specs(spec.keys);
    let mut kept = Vec::new();
    let args = lay_out(spec.args, &mut kept);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.arity,
        key_specs: key_specs.as_mut_ptr(),
        args,
    };
    server!(RedisModule_SetCommandInfo(command, &raw const info)) == Some(0)
}

/// The key specs of a command, ended by one that is all zeros.
fn key_specs(keys: KeySpec) -> Vec<raw::RedisModuleCommandKeySpec> {
    // SAFETY: a key spec is plain data; all zeros is how the API ends the list of them.
    let end = unsafe { std::mem::zeroed::<raw::RedisModuleCommandKeySpec>() };
    let mut spec = end;
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
    let writes = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE;
    match keys {
        KeySpec::None => return vec![end],
        KeySpec::One { reads_only } => {
            let reads = raw::REDISMODULE_CMD_KEY_RO;
            let access = if reads_only { reads } else { writes };
            spec.flags = u64::from(access | raw::REDISMODULE_CMD_KEY_ACCESS);
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
        }
        KeySpec::Many => {
            spec.flags = u64::from(writes | raw::REDISMODULE_CMD_KEY_ACCESS);
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
        }
    }
    vec![spec, end]
}

type RawArgs = Box<[raw::RedisModuleCommandArg]>;

/// Lays arguments out as the API wants them, ended by one that is all zeros. The pointer is valid
/// as long as `kept` is.
fn lay_out(args: &[Arg], kept: &mut Vec<RawArgs>) -> *mut raw::RedisModuleCommandArg {
    if args.is_empty() {
        return ptr::null_mut();
    }
    let mut laid: Vec<_> = args.iter().map(|arg| raw_arg(arg, kept)).collect();
    // SAFETY: an argument is plain data; all zeros is how the API ends the list of them.
    laid.push(unsafe { std::mem::zeroed() });
    let mut laid = laid.into_boxed_slice();
    let pointer = laid.as_mut_ptr();
    kept.push(laid);
    pointer
}

fn raw_arg(arg: &Arg, kept: &mut Vec<RawArgs>) -> raw::RedisModuleCommandArg {
    let type_ = match arg.kind {
        Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        Kind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        Kind::OneOf => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        Kind::Block => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    };
    raw::RedisModuleCommandArg {
        name: arg.name.as_ptr(),
        type_,
        key_spec_index: if arg.kind == Kind::Key { 0 } else { -1 },
        token: arg.token.map_or(ptr::null(), CStr::as_ptr),
        summary: ptr::null(),
        since: ptr::null(),
        flags: arg.flags as c_int,
        deprecated_since: ptr::null(),
        subargs: lay_out(arg.parts, kept),
        display_text: ptr::null(),
    }
}
