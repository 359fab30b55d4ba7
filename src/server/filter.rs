//! The module's command filter: what it has to know of commands that aren't its own.
//!
//! The server shows every command to the filter before it looks at it. Four things are recorded,
//! nothing is changed: who runs a script next, that somebody may be changing users' rights, that a
//! replica attaches, and that a connection is reset. All other commands cost a look at their first letter and their length.

use redis_module::{raw, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::{clock, propagation, timer};
use crate::state::pending::Event;
use crate::state::{self, Postponed, ScriptRun};

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

/// The last command that runs a script, of those that run as they come.
pub fn last_run() -> ScriptRun {
    state::with(|state| state.last_script.get())
}

/// Records the client that runs the last such command: as long as no other one comes, it is the caller of the script
/// that runs.
pub fn record_caller(caller: Option<u64>) {
    state::with(|state| {
        let last = state.last_script.get();
        state.last_script.set(ScriptRun { caller, ..last });
    });
}

/// Returns true if commands that run scripts may run later than the filter saw them.
pub fn any_postponed() -> bool {
    state::with(|state| state.postponed.get() != Postponed::None)
}

/// Returns the first postponed command that `is_running`. Those before it have run: the server goes on with all in
/// the order in which they came.
pub fn postponed_run(is_running: impl Fn(&ScriptRun) -> bool) -> Option<ScriptRun> {
    let postponed = state::with(|state| state.postponed_scripts.borrow().clone());
    let (at, run) = postponed
        .iter()
        .enumerate()
        .find(|(_, run)| is_running(run))?;
    state::with(|state| drop(state.postponed_scripts.borrow_mut().drain(..at)));
    Some(*run)
}

/// Forgets the postponed commands once all have run: the server was seen to pause no clients both before and after
/// it went to sleep. Before it sleeps it goes on with all that it doesn't pause any more.
#[cold]
#[inline(never)]
pub fn forget_those_that_ran() {
    let is_paused = api::is_paused();
    state::with(|state| match state.postponed.get() {
        Postponed::None => {}
        Postponed::Some | Postponed::Resumed if is_paused => state.postponed.set(Postponed::Some),
        Postponed::Some => state.postponed.set(Postponed::Resumed),
        Postponed::Resumed => {
            state.postponed.set(Postponed::None);
            state.postponed_scripts.borrow_mut().clear();
        }
    });
}

/// A number that is another one after somebody's rights may have changed.
pub fn rights_version() -> u64 {
    state::with(|state| state.rights_version.get())
}

extern "C" fn on_command(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let name = word(filter, 0);
    let Some(first) = name.first() else { return };
    match (first | 0x20, name.len()) {
        (b'a' | b'e' | b'f', _) => examine(filter, name),
        (b's', 4) | (b'p', 5) => expect_replica(name),
        (b'r', 5) if state::any_sessions() => expect_reset(filter, name),
        _ => {}
    }
}

/// A replica attaches by this command, if it is one of those.
fn expect_replica(name: &[u8]) {
    if name.eq_ignore_ascii_case(b"sync") || name.eq_ignore_ascii_case(b"psync") {
        propagation::expect_replicas();
    }
}

/// A connection is reset by this command, if it is that one and the server will take it, as it does from
/// every user: what is tied to that connection ends as if it was closed. Redis before 7.2 doesn't tell whose it is.
fn expect_reset(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    let count = server!(RedisModule_CommandFilterArgsCount(filter));
    if !name.eq_ignore_ascii_case(b"reset") || count != Some(1) {
        return;
    }
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter)).unwrap_or(0);
    let is_tied = state::look(|table| table.sessions().has_client(client_id)).unwrap_or(true);
    if is_tied {
        state::pending(|pending| {
            pending
                .events
                .push(Event::Closed(client_id, clock::now().ms()))
        });
        timer::fire_soon();
    }
}

fn examine(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    // A transaction may hold either.
    let is_exec = name.eq_ignore_ascii_case(b"exec");
    if is_exec || name.eq_ignore_ascii_case(b"acl") {
        state::with(|state| state.rights_version.set(state.rights_version.get() + 1));
    }
    let runner = RUNNERS
        .iter()
        .find(|runner| name.eq_ignore_ascii_case(runner));
    // What a script calls passes here too.
    let scripted = || api::is_script_running(&api::own_context());
    let Some(command) = runner.copied().filter(|_| !scripted()) else {
        return;
    };
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter));
    let count = server!(RedisModule_CommandFilterArgsCount(filter)).unwrap_or(0);
    let bytes: usize = (0..count).map(|at| word(filter, at).len()).sum();
    record_run(ScriptRun {
        client_id: client_id.unwrap_or(0),
        command,
        word_bytes: bytes as u64,
        caller: None,
    });
}

/// Records a command that runs a script: now, or once the server pauses its client no more. The filter doesn't see it
/// again then, except on Redis before 7.2.
fn record_run(run: ScriptRun) {
    let may_be_postponed = run.client_id != 0 && api::is_paused();
    state::with(|state| {
        if may_be_postponed {
            state.postponed.set(Postponed::Some);
            state.postponed_scripts.borrow_mut().push_back(run);
        } else {
            state.last_script.set(run);
        }
    });
}

/// A word of the command; empty where there is none.
fn word<'a>(filter: *mut raw::RedisModuleCommandFilterCtx, at: i32) -> &'a [u8] {
    let string = server!(RedisModule_CommandFilterArgGet(filter, at));
    match string.filter(|string| !string.is_null()) {
        Some(string) => RedisString::string_as_slice(string),
        None => &[],
    }
}
