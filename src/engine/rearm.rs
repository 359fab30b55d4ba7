//! Arming the timer for the next due time.

use redis_lock_core::budget::MOST_A_FIRING;
use redis_lock_core::store::KeyState;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Expiry;
use redis_module::Context;

use crate::engine::store::OUTLIVES_MS;
use crate::server::key::{self, Key};
use crate::server::{api, clock, timer};
use crate::state::{self, State};

/// The time in ms before the end of a lease at which its key is made to outlive it. A server that
/// stalls for less than this, in a fork or a slow command, is still in time.
const LEAD_MS: u64 = OUTLIVES_MS;

/// Arms the timer for the next time at which the table has something to settle. In a cluster it is
/// armed earlier, so that the key still exists at that time. Work that is due already starts in
/// `least_ms` at the earliest.
pub fn rearm(state: &State, least_ms: u64) {
    if let Some(due_ms) = state.look(LockTable::next_due_ms).flatten() {
        rearm_for(state, due_ms, least_ms);
    }
}

/// Like [`rearm`], if it is known that the table has something to settle at this time.
#[inline(never)]
pub fn rearm_for(state: &State, due_ms: u64, least_ms: u64) {
    let is_clustered = state.server.get().is_clustered;
    let lead_ms = is_clustered.then(next_lead_ms).flatten();
    let due_ms = lead_ms.map_or(due_ms, |ms| ms.min(due_ms));
    if !timer::fires_by(state, due_ms) {
        timer::arm(due_ms.max(clock::steady_ms().saturating_add(least_ms)));
    }
}

/// Returns the next time at which a key is to be made to outlive its lock, on the steady clock in ms.
fn next_lead_ms() -> Option<u64> {
    let next_ms = state::look(|table| table.queues().next_unannounced_ms());
    next_ms.flatten().map(|ms| ms.saturating_sub(LEAD_MS))
}

/// Lets the key of each lock that has waiters and whose leases are about to end outlive the lock. Only
/// the timer does this, because in a command the server finds no key of another slot.
pub fn let_contended_keys_outlive(ctx: &Context) {
    if !api::is_clustered() {
        return;
    }
    let now = clock::now();
    let steady_until_ms = now.steady_ms.saturating_add(LEAD_MS);
    let ending = state::change(|table| table.announce_ends(steady_until_ms, MOST_A_FIRING));
    for name in ending.unwrap_or_default() {
        let_outlive(ctx, &name, now.ms().saturating_add(LEAD_MS));
    }
}

/// Lets the key of a lock outlive its leases for a moment if they end by `until_ms`, in ms of the wall
/// clock. Only this server does so.
///
/// In a slot that migrates key by key, a missing key is served by the other node. If the key
/// expired in the millisecond of the lease's end, the next client would be granted the lock there.
/// The waiters here would wait until the migration is over.
///
/// A key that expires before its lease is left alone: EXPIRE has just shortened the lease, and the
/// next settling sees that only by the key's expiry.
fn let_outlive(ctx: &Context, name: &Name, until_ms: u64) {
    // SAFETY: the server is asked for nothing but this key's expiry until the key is closed.
    let mut key = unsafe { Key::of(ctx, name, key::WRITE) };
    let KeyState::Lock(lock) = key.found() else {
        return;
    };
    let latest_ms = lock.unpack().latest_deadline_ms();
    let Some(latest_ms) = latest_ms.filter(|ms| *ms <= until_ms) else {
        return;
    };
    lock.set_expiry(Expiry::Unknown);
    if key.expiry_ms().is_none_or(|ms| ms >= latest_ms) {
        key.set_expiry_ms(latest_ms.saturating_add(OUTLIVES_MS));
    }
}
