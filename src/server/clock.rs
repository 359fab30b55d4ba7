//! The module's clocks: the server's wall clock, which keys and leases end by, and a steady one for
//! all that it measures itself.
//!
//! The steady clock shows what the wall clock showed when it was looked at first, and goes on from
//! there, whoever sets the wall clock. So the two show the same until somebody does.

use std::time::{SystemTime, UNIX_EPOCH};

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

/// How far the wall clock is ahead of the steady one, in ms; negative: behind.
pub fn set_by_ms() -> i64 {
    let (wall, steady) = (wall_us() as i64, steady_us() as i64);
    (wall - steady) / 1000
}

/// The wall clock: microseconds since the Unix epoch.
pub fn wall_us() -> u64 {
    since_epoch_us(SystemTime::now())
}

fn steady_us() -> u64 {
    let (instant, wall) = state::with(|state| state.start);
    let passed = instant.elapsed();
    let passed = passed.as_secs().saturating_mul(1_000_000) + u64::from(passed.subsec_micros());
    since_epoch_us(wall).saturating_add(passed)
}

/// A clock before 1970 reads as 1970.
fn since_epoch_us(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_secs().saturating_mul(1_000_000) + u64::from(since_epoch.subsec_micros())
}
