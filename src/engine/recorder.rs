//! Recording of pending events, by the server's callbacks and for work that can't be done now.

use redis_lock_core::table::LockTable;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::session_id::SessionId;

use crate::server::{api, timer};
use crate::state;
use crate::state::pending_events::{Event, Pending};

/// Records an event and fires the timer in the next pass of the server's event loop.
pub fn record(event: impl FnOnce(&mut Pending)) {
    state::pending(event);
    timer::fire_soon();
}

/// Records that a key was created, deleted or changed, if it may have waiters or a time at which it is
/// to be settled.
pub fn record_touched(name: Name) {
    if is_known(&name) {
        record(|pending| {
            pending.touched.insert(&name);
        });
    }
}

/// Returns true if the lock table may have a queue or a time of this name.
fn is_known(name: &Name) -> bool {
    let is_known = |table: &LockTable| table.queues().has_queue(name) || table.is_scheduled(name);
    state::look(is_known).unwrap_or(true)
}

/// Returns true if a grant may be tied to this connection.
pub fn may_have_sessions(client_id: u64) -> bool {
    state::any_sessions()
        && state::look(|table| table.sessions().has_client(client_id)).unwrap_or(true)
}

/// Has the table watch the leases of a lock that a client reads. If the lock has several holders,
/// clients that track the key must see the end of each lease. The table doesn't know of a lock that
/// came with a file or from a primary.
pub fn watch_leases(name: &Name, lock: &Lock) {
    let several = lock.holders().len() > 1 && !api::is_replica();
    if several && state::look(|table| !table.is_scheduled(name)) == Some(true) {
        record(|pending| {
            pending.touched.insert(name);
        });
    }
}

/// Counts the holds of a lock that left its key, unless the lock table has decided about them. A
/// replica's holds are counted by its primary. Holds of a file that is loaded were counted before.
pub fn count_unlinked(lock: &Lock, now_ms: u64) {
    let is_decided = state::with(|state| state.applying.get());
    if is_decided || api::is_replica() || api::is_loading() {
        return;
    }
    state::with(|state| state.unlinked(|unlinked| unlinked.unlink(lock, now_ms)));
}

/// Records that the values with these sessions left their keys. Sessions that the lock table has
/// ended itself need no record.
pub fn record_unlinked(mut sessions: Vec<SessionId>) {
    let known = state::look(|table| sessions.retain(|session| table.sessions().contains(*session)));
    if known.is_none() || !sessions.is_empty() {
        record(|pending| pending.events.push(Event::Unlinked(sessions)));
    }
}
