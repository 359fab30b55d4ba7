//! The module's clocks: the wall clock, which keys and leases end by, and a steady clock for all
//! times that the module measures itself.
//!
//! The steady clock starts with the wall clock's first reading and never jumps. So both clocks show
//! the same until the wall clock is set.

use redis_lock_core::values::time::Now;

use crate::state::{self, State};

/// Returns the present time on both clocks.
pub fn now() -> Now {
    Now {
        steady_ms: steady_us() / 1000,
        wall_us: wall_us(),
    }
}

/// Returns the steady clock, in ms.
pub fn steady_ms() -> u64 {
    steady_us() / 1000
}

/// Returns a monotonic clock in ms that starts at an unknown time, so only differences count. On
/// Linux it may be some ms behind.
// perf: on Linux reading it costs a quarter of the exact clock.
pub fn noted_ms() -> u64 {
    #[cfg(target_os = "linux")]
    const NOTED: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
    #[cfg(not(target_os = "linux"))]
    const NOTED: libc::clockid_t = libc::CLOCK_MONOTONIC;
    us_of(look_at(NOTED)) / 1000
}

/// Returns the time in ms by which the wall clock is ahead of the steady clock; negative: behind.
pub const fn set_by_ms(at: Now) -> i64 {
    at.ms() as i64 - at.steady_ms as i64
}

/// Returns the wall clock in microseconds since the Unix epoch; 0 before 1970.
pub fn wall_us() -> u64 {
    us_of(look_at(libc::CLOCK_REALTIME))
}

#[inline(always)]
fn look_at(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock_gettime` writes to `now`, a local variable that is valid for the call. The
    // clocks used here exist, so the call can't fail.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

#[inline(always)]
fn us_of(time: libc::timespec) -> u64 {
    // No clock shows a time beyond 64 bits of microseconds.
    let seconds = time.tv_sec.max(0).unsigned_abs();
    let nanoseconds = time.tv_nsec.unsigned_abs();
    seconds
        .wrapping_mul(1_000_000)
        .wrapping_add(nanoseconds / 1000)
}

/// Returns the steady clock, in microseconds.
pub fn steady_us() -> u64 {
    state::with(steady_us_in)
}

/// Like [`steady_us`].
#[inline]
pub fn steady_us_in(state: &State) -> u64 {
    let systems_us = us_of(look_at(libc::CLOCK_MONOTONIC));
    let begin = || (systems_us, wall_us());
    let (start_us, wall_us_then) = *state.start.get_or_init(begin);
    wall_us_then.saturating_add(systems_us.saturating_sub(start_us))
}
