//! The timer's work: what is settled without a command.
//!
//! The timer is armed for the next end of a lease or timeout that concerns a waiter, or the next
//! renewal of a session. If there are pending events it is armed for now. In a cluster it also
//! fires shortly before a lease with waiters ends.

use std::mem;

use redis_lock_core::budget::{MOST_A_FIRING, MOST_GIVEN_UP, MOST_TAKEN_BACK};
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::Name;
use redis_module::Context;

use crate::engine::rearm::{let_contended_keys_outlive, rearm};
use crate::engine::{
    absorb, acknowledgements, blocking, execute, publications, recorder, writable,
};
use crate::server::calls::{self, Str};
use crate::server::slots::ForeignSlots;
use crate::server::timer::{self, TimerState};
use crate::server::{api, clock, fence_key, key};
use crate::state::blocked::Granted;
use crate::state::pending_events::Pending;
use crate::state::{self, State};

/// The delay in ms before looking again at names that may not be granted now, like during CLIENT
/// PAUSE.
const PAUSED_RETRY_MS: u64 = 5;

/// The delay in ms before looking again at locks without waiters that the server would not let a
/// client write. A slot's migration can take long.
// perf: each lock costs a call.
const DEFERRED_MS: u64 = 1_000;

/// The delay in ms between two look-ups of slots that other nodes have taken over.
const SLOTS_MS: u64 = 500;

/// The time in ms between two comparisons of the clocks.
// perf: a busy server goes to sleep ten thousand times a second.
const CLOCKS_MS: u64 = 10;

/// Arms a postponed timer. If the wall clock was set or the timer is overdue, it also fires the
/// timer at once. After a set clock all scheduled names are then due. Called before the server
/// sleeps.
pub fn check_clock(state: &State) {
    timer::arm_postponed(state);
    if is_comparison_due(state) {
        compare_clocks(state);
    }
}

#[inline(never)]
fn compare_clocks(state: &State) {
    match timer::state_now(state) {
        TimerState::InTime => return,
        TimerState::ClockSet => {
            state.change(|table| table.clock_was_set(clock::steady_ms()));
        }
        TimerState::Overdue => {}
    }
    timer::disarm();
    timer::fire_soon();
}

/// Returns true if the clocks are to be compared again.
fn is_comparison_due(state: &State) -> bool {
    let now_ms = clock::noted_ms();
    let is_due = now_ms >= state.compared_ms.get().saturating_add(CLOCKS_MS);
    if is_due {
        state.compared_ms.set(now_ms);
    }
    is_due
}

/// Returns true if the due work is left to the next firing, because a command has just made a lot of
/// it, like a kill of thousands of clients. So the server serves its other clients first. Never
/// returns true twice in a row.
fn yields() -> bool {
    let much = state::pending(|pending| pending.events.len() > MOST_A_FIRING);
    state::with(|state| {
        let yields = much && !state.yielded.get();
        state.yielded.set(yields);
        yields
    })
}

/// Runs the timer's work.
pub fn fire(ctx: &Context) {
    state::with(|state| {
        if !api::unblock_must_wait_for_sleep(state) {
            blocking::unblock_decided(state);
        }
    });
    state::change(|table| table.leave_marks().sweep(clock::steady_ms()));
    publications::publish_pending(ctx);
    signal_ended_early_expiries(ctx);
    acknowledgements::go_on();
    if yields() {
        timer::fire_in(1);
    } else if api::may_write_unasked(ctx) {
        settle_due_names(ctx);
        let_contended_keys_outlive(ctx);
        state::with(|state| rearm(state, 0));
    } else if api::is_replica() {
        execute::demote();
        if state::has_waiters() {
            time_out_only(ctx);
        }
        if let Some(due_ms) = state::look(LockTable::next_sweep_ms).flatten() {
            timer::arm(due_ms);
        }
    } else {
        time_out_only(ctx);
    }
}

/// Signals the keys of locks that the server expired early and that have ended since. A client that
/// was notified of the expiry may have read the lock in what was left of its lease.
fn signal_ended_early_expiries(ctx: &Context) {
    state::with(|state| {
        if state.early_expiries.is_any() {
            for name in state.early_expiries.take_ended(clock::now().ms()) {
                api::select_db(ctx, name.db);
                let string = api::string(name.key());
                calls::signal_modified_key(ctx, Str::from(&string));
            }
            if state.early_expiries.is_any() {
                timer::fire_in(1);
            }
        }
    });
}

/// Ends the waits whose BLOCK is over while nothing may be granted.
fn time_out_only(ctx: &Context) {
    execute::time_out(ctx, MOST_A_FIRING);
    timer::fire_in(PAUSED_RETRY_MS);
}

/// Absorbs the pending events, takes back undelivered hand-overs, and settles the names that are
/// due.
fn settle_due_names(ctx: &Context) {
    // The events are absorbed first, because a name that a dead connection left is due now.
    absorb::absorb();
    let is_undelivered = take_back_undelivered(ctx);
    if state::pending(|pending| mem::take(&mut pending.has_new_replica)) {
        fence_key::delete_on_replicas(ctx);
    }
    if state::pending(|pending| mem::take(&mut pending.has_skipped_fences)) {
        fence_key::replicate_counter(ctx);
    }
    let (names, deferred) = writable::partition(due_names());
    execute::execute_background(ctx, |table, environment| {
        table.settle_due(&names, MOST_A_FIRING, environment)
    });
    let more = state::pending(|pending| {
        pending.settling.clear();
        // Until now, so that a command in between has read them correctly.
        for name in &names {
            pending.restored.remove(name);
        }
        pending.has_due()
    });
    if more || is_undelivered {
        timer::fire_soon();
    }
    defer(ctx, deferred);
}

/// Takes back hand-overs to clients that are gone, up to [`MOST_TAKEN_BACK`] names. If its names may
/// not be written now, a hand-over is kept while any of its locks is left, and otherwise dropped. It
/// is also kept while a reply may still tell its token of the grant, and until a later one is taken
/// back, which may have replaced it. Returns true if there is more to take back.
fn take_back_undelivered(ctx: &Context) -> bool {
    let all = state::pending(|pending| mem::take(&mut pending.undelivered));
    if all.is_empty() {
        return false;
    }
    let unsent = state::blocked(|blocked| Granted::by(blocked.unsent()));
    let latest = Granted::by(all.iter());
    let mut rest = all.into_iter();
    let (mut retained, mut waiting) = (Vec::new(), Vec::new());
    let (mut name_count, mut goes_on) = (0, false);
    while name_count < MOST_TAKEN_BACK {
        let Some(undelivered) = rest.next() else {
            break;
        };
        name_count += undelivered.names.count();
        if unsent.tells_of(&undelivered) {
            goes_on = true;
            waiting.push(undelivered);
        } else if latest.fence_beside(&undelivered) > Some(undelivered.grant.fence) {
            waiting.push(undelivered);
        } else if writable::may_write_all(&undelivered.names) {
            goes_on = true;
            take_back(ctx, &undelivered);
        } else if has_any_lock(ctx, &undelivered) {
            retained.push(undelivered);
        }
    }
    let is_left = rest.len() > 0 || (goes_on && !waiting.is_empty());
    let kept = rest.chain(waiting).chain(retained);
    state::pending(|pending| drop(pending.undelivered.splice(0..0, kept)));
    is_left
}

fn has_any_lock(ctx: &Context, HandOver { names, .. }: &HandOver) -> bool {
    names.iter().any(|name| key::has_lock(ctx, name))
}

fn take_back(ctx: &Context, undelivered: &HandOver) {
    execute::execute_background(ctx, |table, environment| {
        table.take_back(undelivered, environment)
    });
}

/// Defers names that may not be settled now if they still have a lock or a waiter. Other names need
/// nothing more, like those in a slot that has moved to another server. Arms the timer for deferred
/// names and for hand-overs that are still to be taken back.
fn defer(ctx: &Context, names: Vec<Name>) {
    if !names.is_empty() {
        give_up_places(&names);
        execute::defer(ctx, &names, MOST_A_FIRING);
    }
    let until_ms = clock::steady_ms().saturating_add(DEFERRED_MS);
    for name in names {
        let has_lock = key::has_lock(ctx, &name);
        state::pending(|pending| {
            if has_lock {
                pending.defer(&name, until_ms);
            } else {
                pending.restored.remove(&name);
            }
        });
    }
    let (later_ms, undelivered) = state::pending(|pending| {
        let later_ms = (!pending.deferred.is_empty()).then_some(pending.deferred_until_ms);
        (later_ms, !pending.undelivered.is_empty())
    });
    let soon_ms = undelivered.then(|| clock::steady_ms().saturating_add(PAUSED_RETRY_MS));
    if let Some(due_ms) = later_ms.into_iter().chain(soon_ms).min() {
        timer::arm(due_ms);
    }
}

/// Drops the places at names in slots that other nodes serve now. The server redirects blocked
/// clients itself, and a token that repeats LOCK.QUEUE is redirected then.
fn give_up_places(names: &[Name]) {
    let steady_ms = clock::steady_ms();
    let is_due = state::with(|state| state.slots_due_ms.get()) <= steady_ms;
    let any_places = || state::look(|table| table.queues().place_count() > 0) == Some(true);
    if !api::is_clustered() || !is_due || !any_places() {
        return;
    }
    let elsewhere = ForeignSlots::now();
    let gone = names.iter().filter(|name| elsewhere.has(name.key()));
    let gone: Vec<Name> = gone.cloned().collect();
    let left = state::change(|table| table.drop_places_at(&gone, MOST_GIVEN_UP, steady_ms));
    let left = left.unwrap_or_default();
    if left.is_empty() {
        state::with(|state| state.slots_due_ms.set(steady_ms.saturating_add(SLOTS_MS)));
    } else {
        recorder::record(|pending| pending.touched.extend(left));
    }
}

/// Returns the names of the pending events and those that the table finds due, as many as one
/// firing handles. Moves the names of the events from touched to settling.
fn due_names() -> Vec<Name> {
    let mut due = state::change(|table| table.due_names(clock::steady_ms(), MOST_A_FIRING))
        .unwrap_or_default();
    let mut touched = flushed_names();
    state::pending(|pending| {
        pending.release_deferred(clock::steady_ms());
        touched.extend(pending.touched.take(MOST_A_FIRING));
        pending.settling.extend(touched.iter().cloned());
    });
    due.extend(touched);
    due.sort_unstable();
    due.dedup();
    due
}

/// Returns the next names with waiters in databases that were flushed or swapped.
fn flushed_names() -> Vec<Name> {
    let Some(mut search) = state::pending(Pending::take_search) else {
        return Vec::new();
    };
    let found = state::look(|table| {
        let (below, names) = table.queues().names_below(search.below, MOST_A_FIRING);
        let names = names.filter(|name| search.is_for(name));
        (below, names.cloned().collect())
    });
    let (below, names) = found.unwrap_or((search.below, Vec::new()));
    search.below = below;
    state::pending(|pending| pending.go_on(search));
    names
}
