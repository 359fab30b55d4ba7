//! The module's timer: one timer of the server, armed for the earliest requested time.
//!
//! 1. The timer fires at or after the time for which it was armed, never before.
//! 2. The server's timers use the wall clock. If the wall clock is set back, no timer fires until
//!    the clock has caught up. So both clocks are compared before the server sleeps (see
//!    [`state_now`]), and the timer is armed again if they have moved apart.
//! 3. While the timer fires it is not armed; a request is postponed until the server sleeps. The
//!    server reads its clock once and then fires all timers that are due, including new ones. If
//!    the clock was set back meanwhile, a new timer would fire again and again. The server would
//!    serve no client for as long as the clock was set back.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use redis_module::{raw, Context};

use crate::server::calls::function;
use crate::server::{api, boundary, clock};
use crate::state::entered::Entered;
use crate::state::{self, Armed, Firing, State};

/// The longest period of a timer, in ms. A longer one fires in between and is armed again.
const LONGEST_PERIOD_MS: u64 = 1 << 40;

/// The delay in ms after which the timer counts as overdue. A server that reads its clock only at
/// times may have armed it by a time that was set since.
const LATE_MS: u64 = 20;

/// The difference in ms from which the wall clock counts as set. It is larger than rounding errors.
const SET_CLOCK_MS: u64 = 5;

/// The function that runs when the timer fires.
static ON_FIRE: OnceLock<fn(&Context)> = OnceLock::new();

/// The prospect of the armed timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerState {
    /// The timer will fire in time, or is not armed.
    InTime,
    /// The wall clock was set since the clocks were last compared.
    ClockSet,
    /// The timer should have fired by now.
    Overdue,
}

/// Sets the function that runs when the timer fires.
pub fn on_fire(run: fn(&Context)) {
    // It is already set if an earlier load failed.
    ON_FIRE.get_or_init(|| run);
}

/// Fires the timer in the next pass of the server's event loop.
pub fn fire_soon() {
    arm(clock::steady_ms());
}

/// Fires the timer in `wait_ms`, unless it fires earlier anyway.
pub fn fire_in(wait_ms: u64) {
    arm(clock::steady_ms().saturating_add(wait_ms));
}

/// Returns true if the timer is armed, or to be armed, for `due_ms` on the steady clock or earlier.
pub fn fires_by(state: &State, due_ms: u64) -> bool {
    let armed_ms = state.timer.get().map(|armed| armed.due_ms);
    let is_by_then = |ms| ms <= due_ms;
    armed_ms.is_some_and(is_by_then) || state.firing.get().postponed_ms().is_some_and(is_by_then)
}

/// Arms the timer for `due_ms` on the steady clock, unless it fires earlier anyway.
pub fn arm(due_ms: u64) {
    if state::with(|state| fires_by(state, due_ms)) {
        return;
    }
    disarm();
    if state::with(|state| state.firing.get()) == Firing::No {
        create(due_ms);
    } else {
        state::with(|state| state.firing.set(Firing::Postpones(due_ms)));
    }
}

/// Arms the timer for a time that was requested while it fired. Called before the server sleeps.
pub fn arm_postponed(state: &State) {
    let firing = state.firing.replace(Firing::No);
    if let Some(due_ms) = firing.postponed_ms() {
        arm(due_ms);
    }
}

fn create(due_ms: u64) {
    let period_ms = due_ms.saturating_sub(clock::steady_ms());
    let (ctx, period_ms) = (api::own_context(), period_ms.min(LONGEST_PERIOD_MS) as i64);
    // SAFETY: the context is valid by its type. The callback ignores its data, and requires what the
    // server passes it.
    let timer = unsafe {
        function!(RedisModule_CreateTimer)(ctx.ctx, period_ms, Some(fire), ptr::null_mut())
    };
    state::with(|state| state.timer.set(Some(Armed { timer, due_ms })));
}

/// Disarms the timer.
pub fn disarm() {
    state::with(|state| state.firing.set(state.firing.get().without_postponed()));
    if let Some(Armed { timer, .. }) = state::with(|state| state.timer.take()) {
        let ctx = api::own_context();
        // SAFETY: the context is valid by its type. The server looks the timer up by its number, and
        // writes no data to null.
        unsafe { function!(RedisModule_StopTimer)(ctx.ctx, timer, ptr::null_mut()) };
    }
}

/// Returns the prospect of the armed timer, by the present clocks. Returns [`TimerState::ClockSet`] once
/// for each time that the clock was set, whether a timer is armed or not.
pub fn state_now(state: &State) -> TimerState {
    let now = clock::now();
    let set_by_ms = clock::set_by_ms(now);
    if set_by_ms.abs_diff(state.set_by_ms.get()) > SET_CLOCK_MS {
        state.set_by_ms.set(set_by_ms);
        return TimerState::ClockSet;
    }
    let is_overdue = |armed: Armed| now.steady_ms > armed.due_ms.saturating_add(LATE_MS);
    match state.timer.get() {
        Some(armed) if is_overdue(armed) => TimerState::Overdue,
        Some(_) | None => TimerState::InTime,
    }
}

unsafe extern "C" fn fire(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |state| {
        state.timer.set(None);
        state.firing.set(Firing::Yes);
        if let Some(run) = ON_FIRE.get() {
            run(&ctx);
        }
    });
}
