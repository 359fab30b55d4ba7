//! The module's clocks: the server's wall clock, which keys and leases end by, and a steady one for
//! all that it measures itself.
//!
//! The steady clock shows what the wall clock showed when it was looked at first, and goes on from
//! there, whoever sets the wall clock. So the two show the same until somebody does.

use redis_lock_core::values::moment::Moment;

use crate::state;

/// Now.
pub fn now() -> Moment {
    Moment {
        steady_ms: steady_us() / 1000,
        us: wall_us(),
    }
}

/// The steady clock, in ms.
pub fn steady_ms() -> u64 {
    steady_us() / 1000
}

/// The steady clock as the system last noted it, some ms ago at most where it has such a note: to look at
/// that costs a quarter. From an unknown start; only differences mean anything.
pub fn noted_ms() -> u64 {
    #[cfg(target_os = "linux")]
    const NOTED: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
    #[cfg(not(target_os = "linux"))]
    const NOTED: libc::clockid_t = libc::CLOCK_MONOTONIC;
    us_of(look_at(NOTED)) / 1000
}

/// How far the wall clock is ahead of the steady one at a moment, in ms; negative: behind.
pub const fn set_by_ms(at: Moment) -> i64 {
    at.ms() as i64 - at.steady_ms as i64
}

/// The wall clock: microseconds since the Unix epoch. Before 1970 it reads as 1970.
pub fn wall_us() -> u64 {
    us_of(look_at(libc::CLOCK_REALTIME))
}

#[inline(always)]
fn look_at(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written to `now`, which is there and ours. The clocks asked for can't fail.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

#[inline(always)]
fn us_of(time: libc::timespec) -> u64 {
    // No clock shows a time that is too late for 64 bits.
    let seconds = time.tv_sec.max(0).unsigned_abs();
    let nanoseconds = time.tv_nsec.unsigned_abs();
    seconds
        .wrapping_mul(1_000_000)
        .wrapping_add(nanoseconds / 1000)
}

fn steady_us() -> u64 {
    let systems_us = us_of(look_at(libc::CLOCK_MONOTONIC));
    let begin = || (systems_us, wall_us());
    let (start_us, wall_us_then) = state::with(|state| *state.start.get_or_init(begin));
    wall_us_then.saturating_add(systems_us.saturating_sub(start_us))
}
