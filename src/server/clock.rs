//! The module's clocks: the server's wall clock, which keys and leases end by, and a steady one for
//! all that it measures itself.
//!
//! The steady clock shows what the wall clock showed when it was looked at first, and goes on from
//! there, whoever sets the wall clock. So the two show the same until somebody does.

use std::time::{Duration, Instant};

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

/// How far the wall clock is ahead of the steady one at a moment, in ms; negative: behind.
pub const fn set_by_ms(at: Moment) -> i64 {
    at.ms() as i64 - at.steady_ms as i64
}

/// The wall clock: microseconds since the Unix epoch. Before 1970 it reads as 1970.
pub fn wall_us() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is written to `now`, which is there and ours. This clock can't fail.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.map_or(0, |seconds| {
        seconds.saturating_mul(1_000_000) + nanoseconds.unwrap_or(0) / 1000
    })
}

fn steady_us() -> u64 {
    let (start, wall_us_then) = state::with(|state| *state.start.get_or_init(look));
    wall_us_then.saturating_add(us(start.elapsed()))
}

/// Both clocks at one moment.
fn look() -> (Instant, u64) {
    (Instant::now(), wall_us())
}

fn us(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000) + u64::from(span.subsec_micros())
}
