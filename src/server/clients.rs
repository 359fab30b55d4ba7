//! The clients that operations come from: who they are, and what LOCK.INFO tells of them.

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr::NonNull;

use redis_lock_core::branch::likely;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::Life;
use redis_module::{raw, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::{filter, keepalive};
use crate::state::{ScriptRun, State, CALLERS};

/// A connected client.
pub struct Client {
    /// Its id, as in CLIENT LIST.
    pub id: u64,
    /// Its address and port.
    pub addr: String,
    /// Its name; empty when unset.
    pub name: Vec<u8>,
}

/// Whether the client with this id is subscribed to any channel.
pub fn is_subscriber(id: u64) -> bool {
    let flag = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_PUBSUB);
    api::client_info(id).is_some_and(|info| info.flags & flag != 0)
}

/// The client with this id, while it is connected.
pub fn find(ctx: &Context, id: u64) -> Option<Client> {
    let info = api::client_info(id)?;
    // SAFETY: the server wrote a string with its end into `addr`, which was all zeros before.
    let addr = unsafe { CStr::from_ptr(info.addr.as_ptr()) };
    Some(Client {
        id,
        addr: format!("{}:{}", addr.to_string_lossy(), info.port),
        name: name(ctx, id),
    })
}

/// Who gives an operation; 0: nobody whose connection could be looked at or lost.
///
/// A script's commands are run by a client of the server's own, which outlives them all, has no
/// connection, and on Valkey 9.1 is found by its id all the same, by functions that then take it for
/// a connected one. Its id is never kept. A session has to be tied to the connection that called the
/// script; for a plain grant that is not worth the search.
///
/// # Errors
/// [`Refusal::CallerUnknown`] where the caller of a script is not to be made out.
pub fn caller(ctx: &Context, state: &State, life: Life) -> Result<u64, Refusal> {
    let client_id = api::client_id(ctx);
    let place = usize::try_from(client_id % CALLERS as u64).ok();
    let known = place.and_then(|place| state.callers.get(place));
    // Who came by itself once is no script's: the server is asked of those alone who aren't known to have done so.
    let is_known = known.is_some_and(|known| known.get() == client_id);
    let is_session = matches!(life, Life::Session { .. });
    if likely(is_known && !is_session) {
        return Ok(client_id);
    }
    if is_session {
        return watched_caller(ctx, state, client_id);
    }
    let is_a_scripts = is_a_scripts(ctx, client_id, known);
    Ok(if is_a_scripts { 0 } else { client_id })
}

/// Returns the client that a session is tied to, after its socket was set to notice a vanished machine.
#[inline(never)]
fn watched_caller(ctx: &Context, state: &State, client_id: u64) -> Result<u64, Refusal> {
    let caller = session_caller(ctx, client_id)?;
    keepalive::watch(ctx, state, caller);
    Ok(caller)
}

/// Whose connection a session is tied to.
fn session_caller(ctx: &Context, client_id: u64) -> Result<u64, Refusal> {
    if api::is_script_running(ctx) {
        script_caller(ctx).ok_or(Refusal::CallerUnknown)
    } else {
        Ok(client_id)
    }
}

/// Whether this client, which runs a command, is the one that a script's are run by. One that isn't is remembered
/// where `known` is.
#[inline(never)]
fn is_a_scripts(ctx: &Context, client_id: u64, known: Option<&Cell<u64>>) -> bool {
    let is_a_scripts = api::is_script_running(ctx);
    if let Some(known) = known.filter(|_| !is_a_scripts) {
        known.set(client_id);
    }
    is_a_scripts
}

/// The caller of the running script; the API doesn't tell who it is. It is the client whose command the filter saw
/// last, except after CLIENT PAUSE.
///
/// perf: looked up once a script. CLIENT LIST takes 29 ms with 5,000 clients, so it is asked for one client where the
/// server tells the filter which.
fn script_caller(ctx: &Context) -> Option<u64> {
    let run = filter::last_run();
    if filter::any_postponed_scripts() {
        return resumed_caller(ctx, run);
    }
    if run.caller.is_none() {
        filter::record_caller(match run.client_id {
            0 => listed_caller(ctx, run),
            client_id => running_client(ctx, client_id).map(|(id, _)| id),
        });
    }
    filter::last_run().caller
}

/// The caller of the running script where others were postponed, and one of them may have been resumed: the one that
/// runs. A client that has sent a part of its next command looks as if its last one ran; where two seem to run, it is
/// not made out.
fn resumed_caller(ctx: &Context, last: ScriptRun) -> Option<u64> {
    let at_once = running_client(ctx, last.client_id).map(|(id, _)| id);
    let postponed = filter::postponed_run(|run| {
        let running = running_client(ctx, run.client_id);
        running.is_some_and(|(_, word_bytes)| word_bytes == run.word_bytes)
    });
    match (at_once, postponed) {
        (Some(id), None) => Some(id),
        (None, Some(run)) => Some(run.client_id),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

/// The same client and the bytes of its words, if it may be running a script just now.
fn running_client(ctx: &Context, id: u64) -> Option<(u64, u64)> {
    let line = api::call_text(ctx, "CLIENT", &["LIST", "ID", &id.to_string()])?;
    let running = Running::of(line.trim_ascii())?;
    Some((running.id, running.word_bytes))
}

/// Looks for the caller of the running script among all clients.
///
/// While a client's command runs, the server still holds its words. It also holds those that have
/// arrived of a client's next command. Where that makes two fit, it is the one with the same command as the filter
/// saw last, and words of the same length.
fn listed_caller(ctx: &Context, run: ScriptRun) -> Option<u64> {
    let list = api::call_text(ctx, "CLIENT", &["LIST"])?;
    let lines = list.split(|byte| *byte == b'\n');
    let running: Vec<Running<'_>> = lines.filter_map(Running::of).collect();
    if let [only] = running.as_slice() {
        return Some(only.id);
    }
    let is_seen =
        |one: &&Running<'_>| one.command == run.command && one.word_bytes == run.word_bytes;
    let mut seen = running.iter().filter(is_seen);
    let caller = seen.next()?;
    seen.next().is_none().then_some(caller.id)
}

/// Whether a client that is just being closed was sent all its replies first: it asked for that, by
/// QUIT for instance, and the server holds none any more. What is said to a client whose connection is
/// known to be broken isn't even kept.
pub fn was_sent_all_replies(ctx: &Context, id: u64) -> bool {
    let words = ["LIST", "ID", &id.to_string()];
    let line = api::call_text(ctx, "CLIENT", &words).unwrap_or_default();
    let is_none = |name| field(&line, name) == Some(b"0".as_slice());
    let closes_after_reply = field(&line, "flags=").is_some_and(|flags| flags.contains(&b'c'));
    closes_after_reply && is_none("obl=") && is_none("oll=")
}

/// A field of a line of CLIENT LIST; `name` with its equals sign.
fn field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut fields = line.split(|byte| byte.is_ascii_whitespace());
    fields.find_map(|field| field.strip_prefix(name.as_bytes()))
}

/// A client that may be running a script just now.
struct Running<'a> {
    id: u64,
    command: &'a [u8],
    /// How many bytes the words have that the server holds of it.
    word_bytes: u64,
}

impl<'a> Running<'a> {
    /// The client that a line of CLIENT LIST tells of, if its last command runs scripts and its words
    /// are held. A blocked or paused client's are held too; it runs nothing. Who runs a transaction is
    /// still in it.
    fn of(line: &'a [u8]) -> Option<Self> {
        let number = |name| std::str::from_utf8(field(line, name)?).ok()?.parse().ok();
        let word_bytes = number("argv-mem=")?;
        let command = field(line, "cmd=")?;
        let runs = filter::RUNNERS.contains(&command);
        let blocked = field(line, "flags=")?.contains(&b'b');
        let left_it = command == b"exec" && field(line, "multi=")? == b"-1";
        (runs && word_bytes > 0 && !blocked && !left_it).then_some(Self {
            id: number("id=")?,
            command,
            word_bytes,
        })
    }
}

fn name(ctx: &Context, id: u64) -> Vec<u8> {
    let name = server!(RedisModule_GetClientNameById(ctx.ctx, id));
    let Some(name) = name.and_then(NonNull::new) else {
        return Vec::new();
    };
    // The server made this string for us: the value frees it as it goes.
    let name = RedisString::from_redis_module_string(ctx.ctx, name.as_ptr());
    name.as_slice().to_vec()
}
