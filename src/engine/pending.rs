//! Leaving pending events: the server's callbacks do, and what can't be done now.

use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::session_id::SessionId;

use crate::server::{api, clock, timer};
use crate::state;
use crate::state::pending::{Event, Pending};

/// Leaves an event and has the timer look at it in the next pass of the server's loop.
pub fn record(event: impl FnOnce(&mut Pending)) {
    state::pending(event);
    timer::fire_soon();
}

/// A key came, went or changed: of interest where somebody waits for it.
pub fn record_touched(name: Name) {
    if may_have_queue(&name) {
        record(|pending| {
            pending.touched.insert(&name);
        });
    }
}

/// Whether somebody may wait for this name.
fn may_have_queue(name: &Name) -> bool {
    state::anybody_waits() && state::look(|table| table.queues().has_queue(name)).unwrap_or(true)
}

/// Whether something may be tied to this connection.
pub fn may_have_sessions(client_id: u64) -> bool {
    state::any_sessions()
        && state::look(|table| table.sessions().has_client(client_id)).unwrap_or(true)
}

/// Somebody looks at a lock. Where it has several holders, the end of each lease is to be seen by those
/// who track the key; of a lock that came with a file or from a primary the table doesn't know yet.
pub fn watch_leases(name: &Name, lock: &Lock) {
    let several = lock.holders().len() > 1 && !api::is_replica();
    if several && state::look(|table| !table.is_scheduled(name)) == Some(true) {
        record(|pending| {
            pending.touched.insert(name);
        });
    }
}

/// Counts the holds of a lock that left its key, unless the lock table has decided about them. Holds of a replica
/// are its primary's to count, and a file that is loaded has those of an earlier life.
pub fn count_unlinked(lock: &Lock) {
    let is_decided = state::with(|state| state.applying.get());
    if is_decided || api::is_replica() || api::is_loading() {
        return;
    }
    let now_ms = clock::now().ms();
    state::with(|state| state.unlinked(|unlinked| unlinked.unlink(lock, now_ms)));
}

/// The values with these sessions left their keys. Where the lock table has ended those grants itself, there is
/// nothing left to record.
pub fn record_unlinked(mut sessions: Vec<SessionId>) {
    let known = state::look(|table| sessions.retain(|session| table.sessions().contains(*session)));
    if known.is_none() || !sessions.is_empty() {
        record(|pending| pending.events.push(Event::Unlinked(sessions)));
    }
}
