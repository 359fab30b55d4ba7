//! Whether the server would let a client write to a key just now.
//!
//! A grant from the timer is a write that no client asked for, so the server asks nobody: not
//! whether there are replicas enough (NOREPLICAS), whether its disk fails (MISCONF), whether the
//! key's slot is served here or its key was migrated away already. So the module asks: it calls a
//! command of its own that is flagged as a write, for that key, and does nothing when it is let
//! through. Where it isn't, a grant could make a second holder.

use redis_lock_core::values::name::{Name, Names};
use redis_module::{CallOptionsBuilder, CallResult};

use crate::server::{api, key};
use crate::state;

/// Whether LOCK.APPLY is called to ask, not to apply.
pub fn is_asking() -> bool {
    state::with(|state| state.asking.get())
}

/// Of these names, those where the server would let a client write, and the others.
pub fn partition(names: Vec<Name>) -> (Vec<Name>, Vec<Name>) {
    if api::is_clustered() {
        return names.into_iter().partition(may_write);
    }
    // Without slots the answer is the same for all keys.
    match names.first() {
        Some(name) if !may_write(name) => (Vec::new(), names),
        _ => (names, Vec::new()),
    }
}

/// Whether a name without a key has none anywhere: its slot is served here and not on its way.
pub fn is_here(name: &Name) -> bool {
    !api::is_clustered() || would_take(name)
}

/// Whether the server would let a client write to all of these names.
pub fn may_write_all(names: &Names) -> bool {
    names.iter().all(may_write)
}

fn may_write(name: &Name) -> bool {
    would_take(name) || has_arrived(name)
}

/// Whether the server would take a write from a client that comes by itself.
fn would_take(name: &Name) -> bool {
    let _asking = Asking::begin();
    call(name, "LOCK.APPLY", &[name.key(), b"ASK"]).is_ok()
}

/// Whether a lock is here in a slot that comes in key by key. It can't be at the other node then, and
/// clients that are sent on from there are served here. The server tells by refusing to restore
/// anything over it; elsewhere it refuses the slot.
fn has_arrived(name: &Name) -> bool {
    if !api::is_clustered() || !key::has_lock(&api::own_context(), name) {
        return false;
    }
    let reply = call(name, "RESTORE-ASKING", &[name.key(), b"0", b""]);
    let refusal = reply.err().and_then(|error| error.to_utf8_string());
    refusal.is_some_and(|text| text.starts_with("BUSYKEY"))
}

/// Calls a command in the module's own context: what the client of the moment may do, because it
/// said ASKING or READONLY, says nothing about where a key is.
fn call(name: &Name, command: &str, words: &[&[u8]]) -> CallResult<'static> {
    let ctx = api::own_context();
    api::select_db(&ctx, name.db);
    let options = CallOptionsBuilder::new()
        .script_mode()
        .errors_as_replies()
        .build();
    ctx.call_ext(command, &options, words)
}

/// For as long as it lives, LOCK.APPLY is called to ask.
struct Asking;

impl Asking {
    fn begin() -> Self {
        state::with(|state| state.asking.set(true));
        Self
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        state::with(|state| state.asking.set(false));
    }
}
