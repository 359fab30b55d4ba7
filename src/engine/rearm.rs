//! When the timer is to fire next.

use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Expiry;
use redis_module::Context;

use crate::engine::store::OUTLIVES_MS;
use crate::server::key::{self, Found, Key};
use crate::server::{api, clock, timer};
use crate::state::{self, State};

/// How many names and timeouts one firing of the timer settles: the server serves others in between.
pub const MOST_A_FIRING: usize = 256;

/// How long before the end of a lease its key is made to outlive it, in ms. A server that stands still
/// for less than this, to fork or in a slow command, has done so before it stood still, or comes to it
/// in time.
const LEAD_MS: u64 = OUTLIVES_MS;

/// Has the timer fire when the table next has to settle something; in a cluster, also before that, so
/// that the key is there when it does. What is due already is done no sooner than in `least_ms`.
pub fn rearm(state: &State, least_ms: u64) {
    if let Some(due_ms) = state.look(LockTable::next_due_ms).flatten() {
        rearm_for(due_ms, least_ms);
    }
}

/// As [`rearm`], where the table is known to have something to settle at this time.
#[inline(never)]
pub fn rearm_for(due_ms: u64, least_ms: u64) {
    let lead_ms = api::is_clustered().then(next_lead_ms).flatten();
    let due_ms = lead_ms.map_or(due_ms, |ms| ms.min(due_ms));
    if !timer::fires_by(due_ms) {
        timer::arm(due_ms.max(clock::steady_ms().saturating_add(least_ms)));
    }
}

/// When the next key is to be made to outlive its lock, on the steady clock in ms.
fn next_lead_ms() -> Option<u64> {
    let next_ms = state::look(|table| table.queues().next_unannounced_ms());
    next_ms.flatten().map(|ms| ms.saturating_sub(LEAD_MS))
}

/// Lets the keys outlive their locks whose leases are about to end for somebody who waits. The timer does this
/// and no command: in a command a server finds a key of another slot missing.
pub fn let_contended_keys_outlive(ctx: &Context) {
    if !api::is_clustered() {
        return;
    }
    let now = clock::now();
    let until_ms = now.steady_ms.saturating_add(LEAD_MS);
    for name in
        state::change(|table| table.announce_ends(until_ms, MOST_A_FIRING)).unwrap_or_default()
    {
        let_outlive(ctx, &name, now.ms().saturating_add(LEAD_MS));
    }
}

/// Lets the key of a lock whose leases are over by `until_ms` outlive them for a moment, on this server
/// alone. In a slot that migrates key by key, a missing key is the other node's business: were the
/// server to expire it in the very millisecond of the lease's end, whoever comes next would be granted
/// the lock there, and those who wait here would wait until the migration is over.
///
/// A key that expires before its lease is left alone: somebody has just cut the lease short, and it is
/// by the key's expiry that the next settling learns of it.
fn let_outlive(ctx: &Context, name: &Name, until_ms: u64) {
    let mut key = Key::of(ctx, name, key::WRITE);
    let Found::Lock(lock) = key.found() else {
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
