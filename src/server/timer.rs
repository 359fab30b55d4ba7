//! The module's one timer: one timer of the server's, armed for the earliest moment that was asked for.
//!
//! The server's timers fire by the wall clock: should somebody set that one back, none fires until it
//! has caught up. So the module looks at both clocks before the server sleeps, see [`state_now`], and
//! arms its timer anew when they have moved apart. The timer fires at or after the time that it was
//! armed for, never before.
//!
//! Nor is one armed while it fires: the server looks at its clock once and then fires all that is due by
//! that, also what was armed meanwhile. Were the clock set back in between, it would fire for as long as it was
//! set back, and serve nobody. So what is armed then is postponed until the server goes to sleep.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use redis_module::{raw, Context};

use crate::server::api::{self, server};
use crate::server::{boundary, clock};
use crate::state::{self, Armed, Firing};

/// The longest period of a timer, in ms: it fires in vain then, and is armed again.
const LONGEST_PERIOD_MS: u64 = 1 << 40;

/// How late the timer may fire before it is taken for one that doesn't, in ms: a server that reads its
/// own clock at times only may have armed it by a time that was set since.
const LATE_MS: u64 = 20;

/// By how much the clocks have to move apart to be looked at, in ms: more than rounding makes of it.
const SET_CLOCK_MS: u64 = 5;

/// What runs when the timer fires.
static ON_FIRE: OnceLock<fn(&Context)> = OnceLock::new();

/// Whether the armed timer will fire in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerState {
    /// It will fire in time, or none is armed.
    InTime,
    /// Somebody set the wall clock since it was armed.
    ClockSet,
    /// It should have fired by now.
    Overdue,
}

/// Says what runs when the timer fires.
pub fn on_fire(run: fn(&Context)) {
    // Where loading failed before, it was said already.
    ON_FIRE.get_or_init(|| run);
}

/// Has the timer fire in the next pass of the server's loop.
pub fn fire_soon() {
    arm(clock::steady_ms());
}

/// Has the timer fire in so many ms, unless it fires before that anyway.
pub fn fire_in(wait_ms: u64) {
    arm(clock::steady_ms().saturating_add(wait_ms));
}

/// Whether the timer is armed, or to be armed, for `due_ms` on the steady clock or sooner.
pub fn fires_by(due_ms: u64) -> bool {
    let (armed, firing) = state::with(|state| (state.timer.get(), state.firing.get()));
    let armed_ms = armed.map(|armed| armed.due_ms);
    let postponed_ms = firing.postponed_ms();
    armed_ms
        .into_iter()
        .chain(postponed_ms)
        .any(|ms| ms <= due_ms)
}

/// Arms the timer for `due_ms` on the steady clock, unless it fires before that anyway.
pub fn arm(due_ms: u64) {
    if fires_by(due_ms) {
        return;
    }
    disarm();
    if state::with(|state| state.firing.get()) == Firing::No {
        create(due_ms);
    } else {
        state::with(|state| state.firing.set(Firing::Postpones(due_ms)));
    }
}

/// The server goes to sleep: what was armed while the timer fired is armed now.
pub fn arm_postponed() {
    let firing = state::with(|state| state.firing.replace(Firing::No));
    if let Some(due_ms) = firing.postponed_ms() {
        arm(due_ms);
    }
}

fn create(due_ms: u64) {
    let now = clock::now();
    let period_ms = due_ms.saturating_sub(now.steady_ms);
    let timer = server!(RedisModule_CreateTimer(
        api::own_context().ctx,
        period_ms.min(LONGEST_PERIOD_MS) as i64,
        Some(fire),
        ptr::null_mut()
    ));
    let armed = timer.map(|timer| Armed {
        timer,
        due_ms,
        set_by_ms: clock::set_by_ms(now),
    });
    state::with(|state| state.timer.set(armed));
}

/// Has the timer fire no more.
pub fn disarm() {
    state::with(|state| state.firing.set(state.firing.get().without_postponed()));
    if let Some(Armed { timer, .. }) = state::with(|state| state.timer.take()) {
        let ctx = api::own_context();
        server!(RedisModule_StopTimer(ctx.ctx, timer, ptr::null_mut()));
    }
}

/// Whether the armed timer will fire in time, by what the clocks show now.
pub fn state_now() -> TimerState {
    let Some(armed) = state::with(|state| state.timer.get()) else {
        return TimerState::InTime;
    };
    let now = clock::now();
    if clock::set_by_ms(now).abs_diff(armed.set_by_ms) > SET_CLOCK_MS {
        TimerState::ClockSet
    } else if now.steady_ms > armed.due_ms.saturating_add(LATE_MS) {
        TimerState::Overdue
    } else {
        TimerState::InTime
    }
}

extern "C" fn fire(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    boundary::guard(|| {
        state::with(|state| {
            state.timer.set(None);
            state.firing.set(Firing::Yes);
        });
        if let Some(run) = ON_FIRE.get() {
            run(&Context::new(ctx));
        }
    });
}
