//! The module's command filter: what it has to know of commands that aren't its own.
//!
//! The server shows every command to the filter before it looks at it. Four things are recorded,
//! nothing is changed: who runs a script next, that somebody may be changing users' rights, that a
//! replica attaches, and that a connection is reset. All other commands cost a look at their first letter and their length.
//!
//! A command passes the filter as it arrives. If the server holds it back, as in CLIENT PAUSE, it runs later and doesn't
//! pass again (Redis before 7.2: it does).

use redis_lock_core::branch::unlikely;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

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

/// Finds out which of the commands that the filter looks for go by their own names, `rename-command` being what it is.
/// The server tells nobody what it calls them else.
///
/// Where ACL or EXEC has another name, no command tells when rights change.
pub fn look_for_commands(ctx: &Context) -> Result<(), String> {
    let sees_changes = is_there(ctx, "ACL", &[]) && is_there(ctx, "EXEC", &["x"]);
    let has_reset = is_there(ctx, "RESET", &["x"]);
    state::with(|state| {
        state.has_reset.set(has_reset);
        if !sees_changes {
            state.rights.borrow_mut().go_blind();
        }
    });
    look_at_other_modules();
    Ok(())
}

/// Gives up watching for changes of rights where there are other modules. One can change rights without a command, turn
/// another command into ACL behind this filter, or call ACL where the server doesn't show it to this module.
pub fn look_at_other_modules() {
    state::with(|state| {
        if state.server.get().has_other_modules {
            state.rights.borrow_mut().go_blind();
        }
    });
}

/// Returns true if this name means the server's command of this name. It is called with a wrong number of words, so it
/// doesn't run; the server says which command has got them.
fn is_there(ctx: &Context, command: &str, words: &[&str]) -> bool {
    let options = CallOptionsBuilder::new().errors_as_replies().build();
    let reply: CallResult<'_> = ctx.call_ext(command, &options, words);
    let error = reply.err().and_then(|error| error.to_utf8_string());
    let expected = format!("wrong number of arguments for '{command}'").to_ascii_lowercase();
    error.is_some_and(|error| error.to_ascii_lowercase().contains(&expected))
}

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
pub fn any_postponed_scripts() -> bool {
    state::with(|state| !state.postponed_scripts.borrow().is_empty())
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

/// Forgets the postponed commands once all have run, and ends the ties of clients that a RESET of them has reset.
/// All have run when the server was seen to pause no clients both before and after it went to sleep, because it
/// resumes its clients before it sleeps.
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
            state.postponed_resets.take().into_iter().for_each(end_ties);
        }
    });
}

extern "C" fn on_command(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let name = word(filter, 0);
    let Some(first) = name.first() else { return };
    if unlikely(state::with(|state| state.rights.borrow().is_changing())) {
        end_change(filter);
    }
    if unlikely(state::with(|state| {
        !state.postponed_resets.borrow().is_empty()
    })) {
        end_postponed_reset(filter);
    }
    match (first | 0x20, name.len()) {
        (b'a' | b'e' | b'f', _) => examine(filter, name),
        (b's', 4) | (b'p', 5) => expect_replica(name),
        (b'r', 5) if state::any_sessions() => expect_reset(filter, name),
        _ => {}
    }
}

/// A client that changes rights gives another command: the one before has run, unless it is queued in a transaction.
#[inline(never)]
fn end_change(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let Some(client_id) = server!(RedisModule_CommandFilterGetClientId(filter)) else {
        return;
    };
    let is_changer = state::with(|state| state.rights.borrow().has_changer(client_id));
    if is_changer && !api::is_in_transaction(client_id) {
        state::with(|state| state.rights.borrow_mut().forget_changer(client_id));
    }
}

/// A replica attaches by this command, if it is one of those.
fn expect_replica(name: &[u8]) {
    if name.eq_ignore_ascii_case(b"sync") || name.eq_ignore_ascii_case(b"psync") {
        propagation::expect_replicas();
    }
}

/// A connection is reset by this command, if it is that one and the server will take it, as it does from
/// every user: what is tied to that connection ends as if it was closed, once the server has run it.
/// Redis before 7.2 doesn't tell whose it is.
///
/// A RESET that comes in a pause of writes alone isn't held back. It is recorded all the same, because the API doesn't
/// tell which pause it is. No lock can be granted in such a pause, so no waiter waits longer because of that.
fn expect_reset(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    let count = server!(RedisModule_CommandFilterArgsCount(filter));
    let has_reset = state::with(|state| state.has_reset.get());
    if !has_reset || !name.eq_ignore_ascii_case(b"reset") || count != Some(1) {
        return;
    }
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter)).unwrap_or(0);
    if !state::look(|table| table.sessions().has_client(client_id)).unwrap_or(true) {
        return;
    }
    if !api::is_paused() {
        end_ties(client_id);
        return;
    }
    state::with(|state| {
        state.postponed.set(Postponed::Some);
        state.postponed_resets.borrow_mut().push(client_id);
    });
}

/// Ends the ties of this command's client if its RESET was postponed: that one has run by now.
#[cold]
fn end_postponed_reset(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter)).unwrap_or(0);
    let was_reset = state::with(|state| {
        let mut resets = state.postponed_resets.borrow_mut();
        let at = resets.iter().position(|reset| *reset == client_id);
        at.map(|at| resets.swap_remove(at)).is_some()
    });
    if was_reset {
        end_ties(client_id);
    }
}

/// Ends what is tied to a connection, as if it was closed just now.
fn end_ties(client_id: u64) {
    let closed = Event::Closed(client_id, clock::now().ms());
    state::pending(|pending| pending.events.push(closed));
    timer::fire_soon();
}

fn examine(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    record_rights(filter, name);
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

/// Somebody's rights are changed by this command, if it is one that can.
///
/// Redis before 7.2 doesn't tell whose it is; there each command passes the filter right before it runs, EXEC too, with
/// all that it holds.
fn record_rights(filter: *mut raw::RedisModuleCommandFilterCtx, name: &[u8]) {
    let client_id = server!(RedisModule_CommandFilterGetClientId(filter));
    let is_change = name.eq_ignore_ascii_case(b"acl")
        || (client_id.is_none() && name.eq_ignore_ascii_case(b"exec"));
    if !is_change {
        return;
    }
    // A script's own calls run at once.
    let held_back = client_id.filter(|_| !api::is_script_running(&api::own_context()));
    state::with(|state| {
        let mut rights = state.rights.borrow_mut();
        match held_back {
            Some(client_id) => rights.record_changer(client_id),
            None => rights.record_change(),
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
