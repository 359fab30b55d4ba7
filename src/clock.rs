//! The module's one clock: the server's wall clock, which its keys expire by.

use redis_lock_core::Moment;
use std::time::{SystemTime, UNIX_EPOCH};

/// Now. A clock before 1970 reads as 1970.
pub fn now() -> Moment {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Moment {
        us: u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX / 2),
    }
}
