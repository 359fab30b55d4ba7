//! The module's clocks: the server's wall clock, which keys and leases end by, and a steady one for
//! all that it measures itself.
//!
//! The steady clock shows what the wall clock showed when it was looked at first, and goes on from
//! there, whoever sets the wall clock. So the two show the same until somebody does.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lazy_static::lazy_static;
use redis_lock_core::Moment;

struct Start {
    instant: Instant,
    wall_us: u64,
}

lazy_static! {
    static ref START: Start = Start {
        instant: Instant::now(),
        wall_us: wall_us(),
    };
}

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

/// A clock before 1970 reads as 1970.
fn wall_us() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX / 2)
}

fn steady_us() -> u64 {
    let passed = START.instant.elapsed().as_micros();
    let passed = u64::try_from(passed).unwrap_or(u64::MAX / 2);
    START.wall_us.saturating_add(passed)
}
