//! The clients that send operations: their ids, and what LOCK.INFO replies about them.

use std::cell::Cell;

use redis_lock_core::hints::likely;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::LeaseKind;
use redis_module::{raw, Context};

use crate::server::{api, calls, filter, keepalive, rights};
use crate::state::{ScriptRun, State, CALLERS};

/// A connected client.
pub struct Client {
    /// Its id, as in CLIENT LIST.
    pub id: u64,
    /// Its address and port, as in CLIENT LIST: an IPv6 address is in brackets.
    pub addr: String,
    /// Its name; empty when unset.
    pub name: Vec<u8>,
}

/// Returns true if the client with this id is subscribed to any channel.
///
/// # Safety
/// As [`api::client_info`].
pub unsafe fn is_subscriber(id: u64) -> bool {
    let flag = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_PUBSUB);
    // SAFETY: by the caller.
    unsafe { api::client_info(id) }.is_some_and(|info| info.flags & flag != 0)
}

/// Returns the client with this id, which was recorded with an operation, if it is connected.
///
/// # Safety
/// As [`api::client_info`].
pub unsafe fn find(ctx: &Context, id: u64) -> Option<Client> {
    // SAFETY: by the caller.
    let info = unsafe { api::client_info(id) }?;
    let addr = info.addr.iter().map(|byte| *byte as u8);
    let addr: Vec<u8> = addr.take_while(|byte| *byte != 0).collect();
    let (addr, port) = (String::from_utf8_lossy(&addr), info.port);
    Some(Client {
        id,
        addr: if addr.contains(':') {
            format!("[{addr}]:{port}")
        } else {
            format!("{addr}:{port}")
        },
        name: name(ctx, id),
    })
}

/// Returns the client id to record for the operation, or 0 for a client without a connection (a
/// script's, or that of another module's call).
///
/// The server runs such commands by a client of its own, which outlives them and has no connection.
/// Its id is never kept: Valkey 9.1 finds that client by its id, in functions that then take it for a
/// connected one. A session is tied to the connection that called the script.
///
/// # Errors
/// [`Refusal::CallerUnknown`] if the caller of a script can't be found, and [`Refusal::NoConnection`]
/// for a session of a client without a connection.
// perf: a plain grant by a script records 0, because its caller is not worth the search.
pub fn caller(ctx: &Context, state: &State, lease_kind: LeaseKind) -> Result<u64, Refusal> {
    let client_id = api::client_id(ctx);
    // perf: a client that once had a connection keeps it, so the server is asked only about others.
    let is_known = known(state, client_id).is_some_and(|known| known.get() == client_id);
    let is_session = matches!(lease_kind, LeaseKind::Session { .. });
    if likely(is_known && !is_session) {
        return Ok(client_id);
    }
    if is_session {
        return watched_caller(ctx, state, client_id);
    }
    Ok(if has_connection(ctx, state, client_id) {
        client_id
    } else {
        0
    })
}

/// Returns the client that a session is tied to, and sets its socket to detect a vanished machine.
#[inline(never)]
fn watched_caller(ctx: &Context, state: &State, client_id: u64) -> Result<u64, Refusal> {
    let caller = session_caller(ctx, state, client_id)?;
    keepalive::watch(ctx, state, caller);
    Ok(caller)
}

/// Returns the client that a session is tied to: the caller itself, or the caller of the running
/// script.
fn session_caller(ctx: &Context, state: &State, client_id: u64) -> Result<u64, Refusal> {
    let caller = if api::is_script_running(ctx) {
        script_caller(ctx).ok_or(Refusal::CallerUnknown)?
    } else {
        client_id
    };
    let connected = Some(caller).filter(|id| is_connected(ctx, state, *id));
    connected.ok_or(Refusal::NoConnection)
}

/// Returns true if this client, which runs a command, has a connection. Then it is recorded as one
/// that has.
#[inline(never)]
fn has_connection(ctx: &Context, state: &State, client_id: u64) -> bool {
    let has_connection = !api::is_script_running(ctx) && is_connected(ctx, state, client_id);
    if let Some(known) = known(state, client_id).filter(|_| has_connection) {
        known.set(client_id);
    }
    has_connection
}

/// Returns true if the client with this id, which calls a command or a script, is connected. The client
/// of a script or of another module's call is not.
pub fn is_connected(ctx: &Context, state: &State, id: u64) -> bool {
    known(state, id).is_some_and(|known| known.get() == id)
        || rights::user_name_of(ctx, id).is_some()
}

/// Returns the place in which a client's id is recorded if it has a connection.
fn known(state: &State, id: u64) -> Option<&Cell<u64>> {
    let place = usize::try_from(id % CALLERS as u64).ok();
    place.and_then(|place| state.callers.get(place))
}

/// Returns the caller of the running script, which the API doesn't report. Except after CLIENT
/// PAUSE, it is the client whose command the filter saw last.
// perf: looked up once per script. CLIENT LIST takes 29 ms with 5,000 clients, so only one client
// is listed if the filter knows which.
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

/// Returns the caller of the running script if other scripts were postponed and one of them may be
/// running now.
///
/// A client that has sent a part of its next command looks as if its last command ran. If two
/// clients seem to run a script, the result is `None`.
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

/// Returns the client's id and the bytes of its words, if it may be running a script now.
fn running_client(ctx: &Context, id: u64) -> Option<(u64, u64)> {
    let line = api::call_text(ctx, "CLIENT", &["LIST", "ID", &id.to_string()])?;
    let running = Running::of(line.trim_ascii())?;
    Some((running.id, running.word_bytes))
}

/// Looks up the caller of the running script among all clients.
///
/// While a client's command runs, the server still holds its words. It also holds the words that
/// have arrived of a client's next command. If several clients match, the command that the filter
/// saw last and the length of its words decide.
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

/// Returns true if a client that is being closed was sent all its replies: it asked for the close,
/// as by QUIT, and the server holds no reply for it any more. The server keeps no replies for a
/// connection that is known to be broken.
pub fn was_sent_all_replies(ctx: &Context, id: u64) -> bool {
    let words = ["LIST", "ID", &id.to_string()];
    let line = api::call_text(ctx, "CLIENT", &words).unwrap_or_default();
    let is_none = |name| field(&line, name) == Some(b"0".as_slice());
    let closes_after_reply = field(&line, "flags=").is_some_and(|flags| flags.contains(&b'c'));
    closes_after_reply && is_none("obl=") && is_none("oll=")
}

/// Returns a field of a line of CLIENT LIST. `name` includes the equals sign.
fn field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut fields = line.split(|byte| byte.is_ascii_whitespace());
    fields.find_map(|field| field.strip_prefix(name.as_bytes()))
}

/// A client that may be running a script now.
struct Running<'a> {
    id: u64,
    command: &'a [u8],
    /// The total length in bytes of its words that the server holds.
    word_bytes: u64,
}

impl<'a> Running<'a> {
    /// Returns the client in a line of CLIENT LIST, if its last command runs scripts and the server
    /// holds its words. The server also holds those of a blocked or paused client, which runs
    /// nothing. A client that runs a transaction is still in the MULTI state.
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
    // SAFETY: the server makes the name for the module.
    let name = unsafe { api::owned_string(calls::get_client_name_by_id(ctx, id)) };
    name.map_or_else(Vec::new, |name| name.as_slice().to_vec())
}
