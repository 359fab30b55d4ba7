//! The test if the server would let a client write a key now.
//!
//! A grant by the timer is a write without a client, so the server doesn't check it. It doesn't
//! check that there are enough replicas (NOREPLICAS) and that the disk works (MISCONF). Nor does it
//! check that the key's slot is served here and the key hasn't migrated.
//!
//! So the module calls a command of its own that is flagged as a write, for that key. The command
//! does nothing if the server lets it through. If the server refuses it, a grant could make a
//! second holder.

use redis_lock_core::values::name::{Name, Names};
use redis_module::{CallOptionsBuilder, CallResult};

use crate::server::{api, key};
use crate::state;

/// Returns true if LOCK.APPLY is called to ask, not to apply.
pub fn is_probing() -> bool {
    state::with(|state| state.probing.get())
}

/// Returns the names where the server would let a client write, and the others.
pub fn partition(names: Vec<Name>) -> (Vec<Name>, Vec<Name>) {
    if api::is_clustered() {
        return names.into_iter().partition(may_write);
    }
    // Without slots all keys have the same answer.
    match names.first() {
        Some(name) if !may_write(name) => (Vec::new(), names),
        _ => (names, Vec::new()),
    }
}

/// Returns true if a name without a key has none on any server: its slot is served here and doesn't
/// migrate.
pub fn is_here(name: &Name) -> bool {
    !api::is_clustered() || would_take(name)
}

/// Returns true if the server would let a client write all the names.
pub fn may_write_all(names: &Names) -> bool {
    names.iter().all(may_write)
}

fn may_write(name: &Name) -> bool {
    would_take(name) || has_arrived(name)
}

/// Returns true if the server would take a write from a client without ASKING.
fn would_take(name: &Name) -> bool {
    let _probe = Probe::begin();
    call(name, "LOCK.APPLY", &[name.key(), b"ASK"]).is_ok()
}

/// Returns true if a lock has arrived here in a slot that migrates key by key. The lock can't be on
/// the other node then, and clients that are redirected from there are served here.
///
/// The server shows this by refusing to restore a value over the key. Without a slot that migrates
/// here it refuses the slot instead.
fn has_arrived(name: &Name) -> bool {
    if !api::is_clustered() || !key::has_lock(&api::own_context(), name) {
        return false;
    }
    let reply = call(name, "RESTORE-ASKING", &[name.key(), b"0", b""]);
    let refusal = reply.err().and_then(|error| error.to_utf8_string());
    refusal.is_some_and(|text| text.starts_with("BUSYKEY"))
}

/// Calls a command in the module's own context. The current client may have sent ASKING or
/// READONLY, which says nothing about where a key is.
fn call(name: &Name, command: &str, words: &[&[u8]]) -> CallResult<'static> {
    let ctx = api::own_context();
    api::select_db(&ctx, name.db);
    let options = CallOptionsBuilder::new()
        .script_mode()
        .errors_as_replies()
        .build();
    ctx.call_ext(command, &options, words)
}

/// A guard: while it exists, LOCK.APPLY only asks.
struct Probe;

impl Probe {
    fn begin() -> Self {
        state::with(|state| state.probing.set(true));
        Self
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        state::with(|state| state.probing.set(false));
    }
}
