//! The module's one timer: it settles what is due when no command does.
//!
//! The server's timers ring by the wall clock: should somebody set that one back, none rings until it
//! has caught up. So the module looks at both clocks before the server sleeps, and arms its timer anew
//! when they have moved apart.
//!
//! It is armed for the earliest lease end or timeout that somebody waits for, for the next renewal
//! of a session, and at once when the inbox has a note. It rings at or after the time it was armed
//! for, never before. In a cluster it also rings shortly before a lease ends that somebody waits for.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use lazy_static::lazy_static;
use redis_lock_core::desk::{Caller, Desk};
use redis_lock_core::hand_over::HandOver;
use redis_lock_core::name::Name;
use redis_lock_core::order::Order;
use redis_module::{raw, Context, RedisGILGuard};

use crate::api::{self, server};
use crate::{boundary, clock, flow, inbox, keyspace, permission};

/// How many names and timeouts one ring settles: the server serves others in between.
const MOST_A_RING: usize = 256;

/// When to look again at what may not be granted now, as during CLIENT PAUSE, in ms.
const RETRY_MS: u64 = 5;

/// When to look again at locks for which nobody waits and where the server would refuse a client's
/// write, in ms. A slot's migration can take long, and asking costs a call for each lock.
const HELD_BACK_MS: u64 = 1_000;

/// How long before the end of a lease its key is made to outlive it, in ms. A server that stands still
/// for less than this, to fork or in a slow command, has done so before it stood still, or comes to it
/// in time.
const LEAD_MS: u64 = keyspace::OUTLIVES_MS;

#[derive(Clone, Copy)]
struct Armed {
    timer: raw::RedisModuleTimerID,
    /// On the steady clock.
    due_ms: u64,
    /// How far the wall clock was ahead of that one.
    set_by_ms: i64,
}

/// The longest period of a timer, in ms: it rings in vain then, and is armed again.
const LONGEST_PERIOD_MS: u64 = 1 << 40;

/// How late the timer may ring before it is taken for one that doesn't, in ms: a server that reads its
/// own clock at times only may have armed it by a time that was set since.
const LATE_MS: u64 = 20;

/// By how much the clocks have to move apart to be looked at, in ms: more than rounding makes of it.
const SET_CLOCK_MS: u64 = 5;

lazy_static! {
    static ref ARMED: RedisGILGuard<Cell<Option<Armed>>> = RedisGILGuard::default();
}

/// Has the timer ring in the next pass of the server's loop.
pub fn ring_at_once() {
    arm(clock::steady_ms());
}

/// Has the timer ring when the desk next has to settle something; in a cluster, also before that, so
/// that the key is there when it does. What is due already is done no sooner than in `least_ms`.
pub fn rearm(ctx: &Context, least_ms: u64) {
    let due_ms = flow::look(Desk::next_due_ms).flatten();
    let lead_ms = match due_ms {
        Some(_) if api::is_clustered() => let_contended_keys_outlive(ctx),
        _ => None,
    };
    if let Some(due_ms) = due_ms.into_iter().chain(lead_ms).min() {
        arm(due_ms.max(clock::steady_ms().saturating_add(least_ms)));
    }
}

/// Lets the keys outlive their locks whose leases are about to end for somebody who waits. When there
/// is more to do, on the steady clock in ms.
fn let_contended_keys_outlive(ctx: &Context) -> Option<u64> {
    let now = clock::now();
    let until_ms = now.steady_ms.saturating_add(LEAD_MS);
    for name in flow::announce_ends(ctx, until_ms, MOST_A_RING) {
        keyspace::let_outlive(ctx, &name, now.ms().saturating_add(LEAD_MS));
    }
    let next_ms = flow::look(|desk| desk.queues().next_unannounced_ms());
    next_ms.flatten().map(|ms| ms.saturating_sub(LEAD_MS))
}

/// Arms the timer for `due_ms` on the steady clock, unless it rings before that anyway.
fn arm(due_ms: u64) {
    let ctx = api::own_context();
    let armed = ARMED.lock(&ctx);
    let earlier = armed.get().is_some_and(|armed| armed.due_ms <= due_ms);
    if earlier {
        return;
    }
    disarm(&ctx);
    let period_ms = due_ms.saturating_sub(clock::steady_ms());
    let timer = server!(RedisModule_CreateTimer(
        ctx.ctx,
        period_ms.min(LONGEST_PERIOD_MS) as i64,
        Some(ring),
        ptr::null_mut()
    ));
    armed.set(timer.map(|timer| Armed {
        timer,
        due_ms,
        set_by_ms: clock::set_by_ms(),
    }));
}

fn disarm(ctx: &Context) {
    if let Some(Armed { timer, .. }) = ARMED.lock(ctx).take() {
        server!(RedisModule_StopTimer(ctx.ctx, timer, ptr::null_mut()));
    }
}

/// Looks again at once, at all that is due at some time, if somebody set the wall clock, or if the timer
/// should have rung by now.
pub fn heed_set_clock() {
    let ctx = api::own_context();
    let Some(armed) = ARMED.lock(&ctx).get() else {
        return;
    };
    if clock::set_by_ms().abs_diff(armed.set_by_ms) > SET_CLOCK_MS {
        flow::clock_was_set(&ctx);
        disarm(&ctx);
        ring_at_once();
    } else if clock::steady_ms() > armed.due_ms.saturating_add(LATE_MS) {
        disarm(&ctx);
        arm(clock::steady_ms());
    }
}

/// Whether the last ring was put off, so that the server's other clients come first.
static PUT_OFF: AtomicBool = AtomicBool::new(false);

/// Whether to put a ring off to the next pass of the server's loop: a command has just made so much
/// work, as by killing thousands of clients, that others have waited long enough.
fn gives_way() -> bool {
    let much = inbox::with(|inbox| inbox.events.len() > MOST_A_RING);
    let gives_way = much && !PUT_OFF.load(Ordering::Relaxed);
    PUT_OFF.store(gives_way, Ordering::Relaxed);
    gives_way
}

extern "C" fn ring(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        ARMED.lock(&ctx).set(None);
        if gives_way() {
            arm(clock::steady_ms().saturating_add(1));
        } else if api::may_write_unasked(&ctx) {
            settle(&ctx);
            rearm(&ctx, 0);
        } else if api::is_replica() {
            flow::stand_down(&ctx);
            if flow::anybody_waits() {
                bide(&ctx);
            }
        } else {
            bide(&ctx);
        }
    });
}

/// Where nothing may be granted now, a BLOCK ends all the same.
fn bide(ctx: &Context) {
    flow::carry_out_unasked(ctx, |desk, world| desk.time_out_due(MOST_A_RING, world));
    arm(clock::steady_ms().saturating_add(RETRY_MS));
}

fn settle(ctx: &Context) {
    // A name that a dead connection leaves is due now: the next ring is a millisecond away.
    flow::take_in(ctx);
    take_back_undelivered(ctx);
    let (names, held_back) = permission::part(due_names(ctx));
    flow::carry_out_unasked(ctx, |desk, world| {
        desk.settle_due(&names, MOST_A_RING, world)
    });
    let more = inbox::with(|inbox| {
        for name in &names {
            inbox.restored.remove(name);
        }
        !inbox.touched.is_empty()
    });
    if more {
        ring_at_once();
    }
    hold_back(ctx, held_back);
}

/// Takes back what was handed to clients that are gone, where that may be written now.
fn take_back_undelivered(ctx: &Context) {
    for undelivered in inbox::with(|inbox| std::mem::take(&mut inbox.undelivered)) {
        if permission::may_write_all(&undelivered.names) {
            take_back(ctx, undelivered);
        } else if undelivered
            .names
            .iter()
            .any(|name| keyspace::has_lock(ctx, name))
        {
            inbox::with(|inbox| inbox.undelivered.push(undelivered));
        }
    }
}

fn take_back(ctx: &Context, undelivered: HandOver) {
    let order = Order::TakeBack(undelivered);
    flow::carry_out_unasked(ctx, |desk, world| {
        desk.carry_out(order, Caller::NOBODY, world)
    });
}

/// Leaves what may not be settled now for later, where there is still a lock or a waiter. Where
/// neither is, as after a slot has moved to another server, nothing is left to do.
fn hold_back(ctx: &Context, names: Vec<Name>) {
    if !names.is_empty() {
        flow::put_off(ctx, &names, MOST_A_RING);
    }
    let until_ms = clock::steady_ms().saturating_add(HELD_BACK_MS);
    for name in names {
        let there = keyspace::has_lock(ctx, &name);
        inbox::with(|inbox| {
            if there {
                inbox.hold_back(name, until_ms);
            } else {
                inbox.restored.remove(&name);
            }
        });
    }
    let (later_ms, undelivered) = inbox::with(|inbox| {
        let later_ms = (!inbox.held_back.is_empty()).then_some(inbox.held_back_until_ms);
        (later_ms, !inbox.undelivered.is_empty())
    });
    let soon_ms = undelivered.then(|| clock::steady_ms().saturating_add(RETRY_MS));
    if let Some(due_ms) = later_ms.into_iter().chain(soon_ms).min() {
        arm(due_ms);
    }
}

/// The names of the inbox and those that the desk finds due, as many as one ring takes on. Restored
/// names stay noted as such until they are settled, so that a command in between reads them right.
fn due_names(ctx: &Context) -> Vec<Name> {
    touch_flushed();
    let mut due = flow::due_names(ctx, MOST_A_RING);
    due.extend(inbox::with(|inbox| {
        inbox.release_held_back(clock::steady_ms());
        let noted: Vec<Name> = inbox.touched.iter().take(MOST_A_RING).cloned().collect();
        for name in &noted {
            inbox.touched.remove(name);
        }
        noted
    }));
    due.sort_unstable();
    due.dedup();
    due
}

/// Notes the names that somebody waits for in databases that were flushed or swapped.
fn touch_flushed() {
    let databases = inbox::with(|inbox| std::mem::take(&mut inbox.databases));
    if databases.is_empty() {
        return;
    }
    let all = databases.contains(&inbox::ALL_DATABASES);
    let flushed = |name: &&Name| all || databases.contains(&name.db);
    let names = flow::look(|desk| {
        let names = desk.queues().names().filter(flushed);
        names.cloned().collect::<Vec<_>>()
    });
    inbox::with(|inbox| inbox.touched.extend(names.unwrap_or_default()));
}
