//! The module's settings: `CONFIG SET lock.…`, redis.conf, MODULE LOADEX.

use std::sync::atomic::{AtomicI64, Ordering};

use lazy_static::lazy_static;
use redis_module::Context;

/// The greatest `lock.default-lease`, in ms.
pub const LONGEST_LEASE_MS: i64 = redis_lock_core::MAX_SPAN_MS as i64;

/// The greatest `lock.max-waiters`.
pub const MOST_WAITERS: i64 = u32::MAX as i64;

/// A setting that the server has not set yet.
const UNSET: i64 = -1;

lazy_static! {
    /// `lock.default-lease`: the lease of a grant that names none, in ms.
    pub static ref DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(UNSET);
    /// `lock.max-waiters`: how many clients may wait on the whole server; 0: no limit.
    pub static ref MAX_WAITERS: AtomicI64 = AtomicI64::new(UNSET);
}

/// Refuses the load where a value was refused: the server sets every setting, to its default at
/// least, and stops at the first bad one. Left to itself it would try to unload the module, which a
/// Valkey doesn't survive.
pub fn check(_: &Context) -> Result<(), String> {
    let settings = [&*DEFAULT_LEASE_MS, &*MAX_WAITERS];
    if settings
        .iter()
        .any(|setting| setting.load(Ordering::Relaxed) == UNSET)
    {
        return Err("the value of a setting was refused".to_owned());
    }
    Ok(())
}

/// The lease of a grant that names none, in ms.
pub fn default_lease_ms() -> u64 {
    DEFAULT_LEASE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How many clients may wait; 0: no limit.
pub fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// A lock is a key like any other: under an eviction policy that takes keys with a TTL it can go
/// before its lease ends, and two clients would believe that they hold it.
pub fn warn_of_eviction(ctx: &Context) -> Result<(), String> {
    let policy = ctx.server_info("memory").field("maxmemory_policy");
    let policy = policy
        .map(|policy| policy.to_string_lossy())
        .unwrap_or_default();
    if policy.starts_with("allkeys-") || policy.starts_with("volatile-") {
        ctx.log_warning(&format!(
            "lock: maxmemory-policy is {policy}: locks can be evicted while they are held; \
             use noeviction on a server that keeps locks"
        ));
    }
    Ok(())
}
