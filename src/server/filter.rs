//! The module's command filter, which records the other commands that concern the module.
//!
//! The server passes every command to the filter before it looks the command up. The filter records
//! five things and changes nothing: the client that runs a script next, changes of users' rights,
//! attaching replicas, acknowledgements of replicas, and connections that are reset.
//!
//! A command passes the filter when it arrives. If the server postpones it, as in CLIENT PAUSE, it
//! runs later without passing again (before Redis 7.2 it does pass again).

// perf: all other commands cost a look at their first letter and their length.

use redis_lock_core::hints::unlikely;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context};

use crate::server::calls::{self, function, Filter, Lent, Str};
use crate::server::{api, boundary, clock, propagation, replicas, timer};
use crate::state::entered::Entered;
use crate::state::pending_events::Event;
use crate::state::{self, Postponed, ScriptRun, State};

/// The commands that run a script, or may run one in a transaction.
pub const RUNNERS: [&[u8]; 7] = [
    b"eval",
    b"eval_ro",
    b"evalsha",
    b"evalsha_ro",
    b"fcall",
    b"fcall_ro",
    b"exec",
];

/// Looks up which of the filter's commands have their own names, in case `rename-command` has
/// renamed them. The API doesn't report new names.
///
/// If ACL or EXEC has another name, no command shows when rights change.
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

/// Gives up watching for changes of rights if there are other modules. Another module can change
/// rights without a command. It can also turn a command into ACL behind this filter, or call ACL
/// without passing the filter.
pub fn look_at_other_modules() {
    state::with(|state| {
        if state.server.get().has_other_modules {
            state.rights.borrow_mut().go_blind();
        }
    });
}

/// Returns true if a command of the server still has its own name. The call has a wrong number of
/// words, so the command doesn't run, and the error contains its name.
fn is_there(ctx: &Context, command: &str, words: &[&str]) -> bool {
    let options = CallOptionsBuilder::new().errors_as_replies().build();
    let reply: CallResult<'_> = ctx.call_ext(command, &options, words);
    let error = reply.err().and_then(|error| error.to_utf8_string());
    let expected = format!("wrong number of arguments for '{command}'").to_ascii_lowercase();
    error.is_some_and(|error| error.to_ascii_lowercase().contains(&expected))
}

/// Registers the filter. The module's own calls don't pass it.
pub fn register(ctx: &Context) -> Result<(), String> {
    let flags = raw::REDISMODULE_CMDFILTER_NOSELF as i32;
    // SAFETY: the context is valid by its type. The callback requires what the server passes it.
    let filter =
        unsafe { function!(RedisModule_RegisterCommandFilter)(ctx.ctx, Some(on_command), flags) };
    if filter.is_null() {
        return Err("the server refused a command filter".to_owned());
    }
    Ok(())
}

/// Returns the last command that runs a script and was not postponed.
pub fn last_run() -> ScriptRun {
    state::with(|state| state.last_script.get())
}

/// Records the client of the command that [`last_run`] returns. Until the next one arrives, this
/// client is the caller of the running script.
pub fn record_caller(caller: Option<u64>) {
    state::with(|state| {
        let last = state.last_script.get();
        state.last_script.set(ScriptRun { caller, ..last });
    });
}

/// Returns true if commands that run scripts may run after the filter saw them.
pub fn any_postponed_scripts() -> bool {
    state::with(|state| !state.postponed_scripts.borrow().is_empty())
}

/// Returns the first postponed command that `is_running`. Forgets those before it: they have run,
/// because the server resumes commands in the order of their arrival.
pub fn postponed_run(is_running: impl Fn(&ScriptRun) -> bool) -> Option<ScriptRun> {
    let postponed = state::with(|state| state.postponed_scripts.borrow().clone());
    let (at, run) = postponed
        .iter()
        .enumerate()
        .find(|(_, run)| is_running(run))?;
    state::with(|state| drop(state.postponed_scripts.borrow_mut().drain(..at)));
    Some(*run)
}

/// Forgets the postponed commands once all have run, and ends the ties of clients whose RESET was
/// among them.
///
/// All have run if two calls in a row see no pause. The server sleeps between two calls, and resumes
/// its clients before it sleeps.
#[cold]
#[inline(never)]
pub fn forget_run_commands() {
    let is_paused = api::is_paused();
    state::with(|state| match state.postponed.get() {
        Postponed::None => {}
        Postponed::Some | Postponed::Resumed if is_paused => state.postponed.set(Postponed::Some),
        Postponed::Some => state.postponed.set(Postponed::Resumed),
        Postponed::Resumed => {
            state.postponed.set(Postponed::None);
            state.postponed_scripts.take();
            state.postponed_resets.take().into_iter().for_each(end_ties);
        }
    });
}

unsafe extern "C" fn on_command(filter: *mut raw::RedisModuleCommandFilterCtx) {
    // SAFETY: the server calls this with its lock held. It keeps the command until this returns.
    let (entered, filter) = unsafe { (Entered::new(), Lent::new(filter)) };
    boundary::guard(entered, |state| look_at(state, filter));
}

#[inline(always)]
fn look_at(state: &State, filter: Filter<'_>) {
    let name = word(filter, 0);
    let Some(first) = name.first() else { return };
    if unlikely(state.rights.borrow().is_changing()) {
        end_change(filter);
    }
    if unlikely(!state.postponed_resets.borrow().is_empty()) {
        end_postponed_reset(filter);
    }
    match (first | 0x20, name.len()) {
        (b'a' | b'e' | b'f', _) => examine(filter, name),
        (b's', 4) | (b'p', 5) => expect_replica(name),
        (b'r', 5) if state::any_sessions() => expect_reset(filter, name),
        (b'r', 8) if state::any_replica_waits() => expect_acknowledgement(name),
        _ => {}
    }
}

/// Records that the last change of rights by this client has run. It has run if the client sends
/// another command and is not in a transaction.
#[inline(never)]
fn end_change(filter: Filter<'_>) {
    let Some(client_id) = calls::command_filter_get_client_id(filter) else {
        return;
    };
    let is_changer = state::with(|state| state.rights.borrow().has_changer(client_id));
    // SAFETY: a changer is a client that sent ACL itself, outside of a script.
    if is_changer && !unsafe { api::is_in_transaction(client_id) } {
        state::with(|state| state.rights.borrow_mut().forget_changer(client_id));
    }
}

/// Records that a replica attaches, if the command is SYNC or PSYNC.
fn expect_replica(name: &[u8]) {
    if name.eq_ignore_ascii_case(b"sync") || name.eq_ignore_ascii_case(b"psync") {
        propagation::expect_replicas();
    }
}

/// Requests a check of the replicas if the command is REPLCONF, by which a replica acknowledges.
fn expect_acknowledgement(name: &[u8]) {
    if name.eq_ignore_ascii_case(b"replconf") {
        replicas::request_check();
    }
}

/// Records a RESET that the server will accept, of a client with ties. They end as if the connection
/// closed, once the server has run the RESET. Before Redis 7.2 the filter can't know the client, and
/// records nothing.
///
/// A RESET in a pause of writes alone is not postponed by the server. It is recorded as postponed
/// all the same, because the API doesn't report the kind of pause. No lock can be granted in such a
/// pause, so no waiter waits longer.
fn expect_reset(filter: Filter<'_>, name: &[u8]) {
    let count = calls::command_filter_args_count(filter);
    let has_reset = state::with(|state| state.has_reset.get());
    if !has_reset || !name.eq_ignore_ascii_case(b"reset") || count != 1 {
        return;
    }
    let client_id = calls::command_filter_get_client_id(filter).unwrap_or(0);
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

/// Ends the ties of this command's client if its RESET was postponed, because that RESET has run by
/// now.
#[cold]
fn end_postponed_reset(filter: Filter<'_>) {
    let client_id = calls::command_filter_get_client_id(filter).unwrap_or(0);
    let was_reset = state::with(|state| {
        let mut resets = state.postponed_resets.borrow_mut();
        let at = resets.iter().position(|reset| *reset == client_id);
        at.map(|at| resets.swap_remove(at)).is_some()
    });
    if was_reset {
        end_ties(client_id);
    }
}

/// Ends all ties of a connection, as if it closed now.
fn end_ties(client_id: u64) {
    let closed = Event::Closed(client_id, clock::now().ms());
    state::pending(|pending| pending.events.push(closed));
    timer::fire_soon();
}

/// Records a change of rights, or a command that runs a script.
fn examine(filter: Filter<'_>, name: &[u8]) {
    record_rights(filter, name);
    let runner = RUNNERS
        .iter()
        .find(|runner| name.eq_ignore_ascii_case(runner));
    // Commands called by a script pass the filter too.
    let scripted = || api::is_script_running(&api::own_context());
    let Some(command) = runner.copied().filter(|_| !scripted()) else {
        return;
    };
    let client_id = calls::command_filter_get_client_id(filter);
    let count = calls::command_filter_args_count(filter);
    let bytes: usize = (0..count).map(|at| word(filter, at).len()).sum();
    record_run(ScriptRun {
        client_id: client_id.unwrap_or(0),
        command,
        word_bytes: bytes as u64,
        caller: None,
    });
}

/// Records a command that runs a script now, or later if the server has paused its client. Then the
/// filter doesn't see it again, except before Redis 7.2. The server postpones one command of a client
/// at most, so its older one has run: a pause of writes lets scripts run that only read.
fn record_run(run: ScriptRun) {
    let may_be_postponed = run.client_id != 0 && api::is_paused();
    state::with(|state| {
        if may_be_postponed {
            state.postponed.set(Postponed::Some);
            let mut scripts = state.postponed_scripts.borrow_mut();
            scripts.retain(|it| it.client_id != run.client_id);
            scripts.push_back(run);
        } else {
            state.last_script.set(run);
        }
    });
}

/// Records a command that can change users' rights.
///
/// Before Redis 7.2 the filter can't know the client. There each command passes the filter right
/// before it runs, and EXEC passes with all that it holds.
fn record_rights(filter: Filter<'_>, name: &[u8]) {
    let client_id = calls::command_filter_get_client_id(filter);
    let is_change = name.eq_ignore_ascii_case(b"acl")
        || (client_id.is_none() && name.eq_ignore_ascii_case(b"exec"));
    if !is_change {
        return;
    }
    // Commands called by a script run at once.
    let held_back = client_id.filter(|_| !api::is_script_running(&api::own_context()));
    state::with(|state| {
        let mut rights = state.rights.borrow_mut();
        match held_back {
            Some(client_id) => rights.record_changer(client_id),
            None => rights.record_change(),
        }
    });
}

/// Returns a word of the command, or an empty one if there is none.
fn word(filter: Filter<'_>, at: i32) -> &[u8] {
    let string = calls::command_filter_arg_get(filter, at);
    if string.is_null() {
        return &[];
    }
    // SAFETY: the string is a word of the command, and valid as long as this filter looks at it: the
    // module's filter changes no word.
    unsafe { Str::new(string) }.bytes()
}
