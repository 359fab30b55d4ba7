//! The module's command filter: what it has to know of commands that aren't its own.
//!
//! The server shows every command to the filter before it looks at it. Two things are noted, nothing
//! is changed: who runs a script next, and that somebody may be changing users' rights. All other
//! commands cost a look at their first letter.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use redis_module::{raw, Context, RedisString};

use crate::api::{self, server};

/// The commands that run a script or, in a transaction, may run one.
pub const RUNNERS: [&[u8]; 7] = [
    b"eval",
    b"eval_ro",
    b"evalsha",
    b"evalsha_ro",
    b"fcall",
    b"fcall_ro",
    b"exec",
];

/// The client of the last command that was one of [`RUNNERS`]; 0 where the server doesn't tell.
static CLIENT: AtomicU64 = AtomicU64::new(0);

/// Which of [`RUNNERS`] that was.
static COMMAND: AtomicUsize = AtomicUsize::new(0);

/// How many bytes its words have.
static WORD_BYTES: AtomicU64 = AtomicU64::new(0);

/// The last command that runs a script, as the filter saw it.
pub struct Run {
    /// Its client; 0 where the server doesn't tell that (Redis before 7.2).
    pub client_id: u64,
    /// Its name.
    pub command: &'static [u8],
    /// How many bytes its words have.
    pub word_bytes: u64,
}

/// Counts the commands that may have changed a user's rights.
static RIGHTS: AtomicU64 = AtomicU64::new(0);

/// Registers the filter. This module's own calls don't pass it.
pub fn register(ctx: &Context) -> Result<(), String> {
    let flags = raw::REDISMODULE_CMDFILTER_NOSELF as i32;
    match server!(RedisModule_RegisterCommandFilter(
        ctx.ctx,
        Some(on_command),
        flags
    )) {
        Some(filter) if !filter.is_null() => Ok(()),
        _ => Err("the server refused a command filter".to_owned()),
    }
}

/// The last command that runs a script.
pub fn last_run() -> Run {
    let command = RUNNERS.get(COMMAND.load(Ordering::Relaxed));
    Run {
        client_id: CLIENT.load(Ordering::Relaxed),
        command: command.copied().unwrap_or_default(),
        word_bytes: WORD_BYTES.load(Ordering::Relaxed),
    }
}

/// A number that is another one after somebody's rights may have changed.
pub fn rights_version() -> u64 {
    RIGHTS.load(Ordering::Relaxed)
}

extern "C" fn on_command(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let name = word(filter, 0);
    let Some(first) = name.first() else { return };
    if matches!(first | 0x20, b'a' | b'e' | b'f') {
        note(filter, name);
    }
}

fn note(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    // A transaction may hold either.
    let is_exec = name.eq_ignore_ascii_case(b"exec");
    if is_exec || name.eq_ignore_ascii_case(b"acl") {
        RIGHTS.fetch_add(1, Ordering::Relaxed);
    }
    let runner = RUNNERS
        .iter()
        .position(|runner| name.eq_ignore_ascii_case(runner));
    // What a script calls passes here too.
    let scripted = || api::is_script_running(&api::own_context());
    let Some(runner) = runner.filter(|_| !scripted()) else {
        return;
    };
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter));
    let count = server!(RedisModule_CommandFilterArgsCount(filter)).unwrap_or(0);
    let bytes: usize = (0..count).map(|at| word(filter, at).len()).sum();
    CLIENT.store(client_id.unwrap_or(0), Ordering::Relaxed);
    COMMAND.store(runner, Ordering::Relaxed);
    WORD_BYTES.store(bytes as u64, Ordering::Relaxed);
}

/// A word of the command; empty where there is none.
fn word<'a>(filter: *mut raw::RedisModuleCommandFilterCtx, at: i32) -> &'a [u8] {
    let string = server!(RedisModule_CommandFilterArgGet(filter, at));
    match string.filter(|string| !string.is_null()) {
        Some(string) => RedisString::string_as_slice(string),
        None => &[],
    }
}
