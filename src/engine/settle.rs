//! What is settled when no command does it: the timer's work.
//!
//! The timer is armed for the earliest lease end or timeout that somebody waits for, for the next
//! renewal of a session, and at once when there are pending events. In a cluster it also fires shortly
//! before a lease ends that somebody waits for.

use std::mem;

use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::values::name::Name;
use redis_module::Context;

use crate::engine::rearm::{let_contended_keys_outlive, rearm, MOST_A_FIRING};
use crate::engine::{blocking, execute, pending, publications, writable};
use crate::server::slots::Elsewhere;
use crate::server::timer::{self, TimerState};
use crate::server::{api, clock, fence_key, key};
use crate::state;
use crate::state::pending::Pending;

/// When to look again at what may not be granted now, as during CLIENT PAUSE, in ms.
const RETRY_MS: u64 = 5;

/// When to look again at locks for which nobody waits and where the server would refuse a client's
/// write, in ms. A slot's migration can take long, and asking costs a call for each lock.
const DEFERRED_MS: u64 = 1_000;

/// When to look again whether slots are another node's by now, in ms.
const SLOTS_MS: u64 = 500;

/// After how many names of hand-overs no other one is taken back in the same firing.
const MOST_TAKEN_BACK: usize = 2_048;

/// How many places are given up at once.
const MOST_GIVEN_UP: usize = 2_048;

/// How long the clocks are not looked at after they were, in ms: a busy server goes to sleep ten thousand
/// times a second.
const CLOCKS_MS: u64 = 10;

/// Arms what was postponed. Looks again at once, at all that is due at some time, if somebody set the wall clock, or if the timer
/// should have fired by now.
pub fn check_clock() {
    timer::arm_postponed();
    if !is_look_due() {
        return;
    }
    match timer::state_now() {
        TimerState::InTime => return,
        TimerState::ClockSet => {
            state::change(|table| table.clock_was_set(clock::steady_ms()));
        }
        TimerState::Overdue => {}
    }
    timer::disarm();
    timer::fire_soon();
}

/// Whether the clocks are to be looked at again.
fn is_look_due() -> bool {
    let now_ms = clock::noted_ms();
    state::with(|state| {
        let is_due = now_ms >= state.looked_ms.get().saturating_add(CLOCKS_MS);
        if is_due {
            state.looked_ms.set(now_ms);
        }
        is_due
    })
}

/// Whether to leave what is due to the next pass of the server's loop: a command has just made so much
/// work, as by killing thousands of clients, that others have waited long enough.
fn yields() -> bool {
    let much = state::pending(|pending| pending.events.len() > MOST_A_FIRING);
    state::with(|state| {
        let yields = much && !state.yielded.get();
        state.yielded.set(yields);
        yields
    })
}

/// What the timer does.
pub fn fire(ctx: &Context) {
    if !api::answers_at_once() {
        blocking::unblock_decided();
    }
    publications::publish_pending(ctx);
    if yields() {
        timer::fire_in(1);
    } else if api::may_write_unasked(ctx) {
        settle(ctx);
        let_contended_keys_outlive(ctx);
        state::with(|state| rearm(state, 0));
    } else if api::is_replica() {
        execute::demote();
        if state::anybody_waits() {
            time_out_only(ctx);
        }
    } else {
        time_out_only(ctx);
    }
}

/// Where nothing may be granted now, a BLOCK ends all the same.
fn time_out_only(ctx: &Context) {
    execute::time_out(ctx, MOST_A_FIRING);
    timer::fire_in(RETRY_MS);
}

fn settle(ctx: &Context) {
    // A name that a dead connection leaves is due now: the next firing is a millisecond away.
    execute::absorb();
    let is_undelivered = take_back_undelivered(ctx);
    if state::pending(|pending| std::mem::take(&mut pending.has_new_replica)) {
        fence_key::delete_on_replicas(ctx);
    }
    let (names, deferred) = writable::partition(due_names());
    execute::execute_unasked(ctx, |table, world| {
        table.settle_due(&names, MOST_A_FIRING, world)
    });
    let more = state::pending(|pending| {
        pending.settling.clear();
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

/// Takes back what was handed to clients that are gone, where that may be written now: a part of it at a time.
/// Returns true if some of it was not looked at.
fn take_back_undelivered(ctx: &Context) -> bool {
    let mut rest = state::pending(|pending| mem::take(&mut pending.undelivered)).into_iter();
    let mut retained = Vec::new();
    let mut names = 0;
    while names < MOST_TAKEN_BACK {
        let Some(undelivered) = rest.next() else {
            break;
        };
        names += undelivered.names.count();
        if writable::may_write_all(&undelivered.names) {
            take_back(ctx, &undelivered);
        } else if has_any_lock(ctx, &undelivered) {
            retained.push(undelivered);
        }
    }
    let is_left = rest.len() > 0;
    state::pending(|pending| drop(pending.undelivered.splice(0..0, rest.chain(retained))));
    is_left
}

fn has_any_lock(ctx: &Context, HandOver { names, .. }: &HandOver) -> bool {
    names.iter().any(|name| key::has_lock(ctx, name))
}

fn take_back(ctx: &Context, undelivered: &HandOver) {
    execute::execute_unasked(ctx, |table, world| table.take_back(undelivered, world));
}

/// Leaves what may not be settled now for later, where there is still a lock or a waiter. Where
/// neither is, as after a slot has moved to another server, nothing is left to do.
fn defer(ctx: &Context, names: Vec<Name>) {
    if !names.is_empty() {
        give_up_places(&names);
        execute::defer(ctx, &names, MOST_A_FIRING);
    }
    let until_ms = clock::steady_ms().saturating_add(DEFERRED_MS);
    for name in names {
        let there = key::has_lock(ctx, &name);
        state::pending(|pending| {
            if there {
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
    let soon_ms = undelivered.then(|| clock::steady_ms().saturating_add(RETRY_MS));
    if let Some(due_ms) = later_ms.into_iter().chain(soon_ms).min() {
        timer::arm(due_ms);
    }
}

/// Gives up the places at names in slots that other nodes serve by now. Those who are blocked there are sent
/// on by the server; who asks for a place again is sent on then.
fn give_up_places(names: &[Name]) {
    let steady_ms = clock::steady_ms();
    let is_due = state::with(|state| state.slots_due_ms.get()) <= steady_ms;
    let any_places = || state::look(|table| table.queues().place_count() > 0) == Some(true);
    if !api::is_clustered() || !is_due || !any_places() {
        return;
    }
    let elsewhere = Elsewhere::now();
    let gone = names.iter().filter(|name| elsewhere.has(name.key()));
    let gone: Vec<Name> = gone.cloned().collect();
    let left = state::change(|table| table.drop_places_at(&gone, MOST_GIVEN_UP));
    let left = left.unwrap_or_default();
    if left.is_empty() {
        state::with(|state| state.slots_due_ms.set(steady_ms.saturating_add(SLOTS_MS)));
    } else {
        pending::record(|pending| pending.touched.extend(left));
    }
}

/// The names of the pending events and those that the table finds due, as many as one firing takes on. Restored
/// names stay recorded as such until they are settled, so that a command in between reads them right.
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

/// Returns the next names that somebody waits for in databases that were flushed or swapped.
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
