//! The module's settings: `CONFIG SET lock.…`, redis.conf, MODULE LOADEX.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::configuration::{register_i64_configuration, ConfigurationFlags};
use redis_module::{Context, RedisValue};

use crate::server::api::{self, server};
use crate::state::{DEFAULT_KEEP_MS, DEFAULT_LEASE_MS, MAX_TICKETS, MAX_WAITERS, UNSET};

/// The greatest `lock.default-lease` and `lock.default-keep`, in ms.
const LONGEST_SPAN_MS: i64 = redis_lock_core::values::moment::MAX_SPAN_MS as i64;

/// The greatest `lock.max-waiters` and `lock.max-tickets`.
const MOST_WAITERS: i64 = u32::MAX as i64;

/// Registers the settings and loads the values that the configuration has for them.
///
/// Refuses the load where a value was refused: the server sets every setting, to its default at
/// least, and stops at the first bad one. Left to itself it would try to unload the module, which a
/// Valkey doesn't survive.
pub fn register(ctx: &Context) -> Result<(), String> {
    register_number(
        ctx,
        "default-lease",
        &DEFAULT_LEASE_MS,
        30_000,
        1..=LONGEST_SPAN_MS,
    );
    register_number(
        ctx,
        "default-keep",
        &DEFAULT_KEEP_MS,
        10_000,
        1..=LONGEST_SPAN_MS,
    );
    register_number(ctx, "max-waiters", &MAX_WAITERS, 10_000, 0..=MOST_WAITERS);
    register_number(ctx, "max-tickets", &MAX_TICKETS, 100_000, 0..=MOST_WAITERS);
    server!(RedisModule_LoadConfigs(ctx.ctx));
    let settings = [
        &DEFAULT_LEASE_MS,
        &DEFAULT_KEEP_MS,
        &MAX_WAITERS,
        &MAX_TICKETS,
    ];
    if settings
        .iter()
        .any(|setting| setting.load(Ordering::Relaxed) == UNSET)
    {
        return Err("the value of a setting was refused".to_owned());
    }
    Ok(())
}

fn register_number(
    ctx: &Context,
    name: &str,
    value: &'static AtomicI64,
    default: i64,
    range: RangeInclusive<i64>,
) {
    let flags = ConfigurationFlags::DEFAULT;
    register_i64_configuration(
        ctx,
        name,
        value,
        default,
        *range.start(),
        *range.end(),
        flags,
        None,
    );
}

/// The lease of a grant that names none, in ms.
pub fn default_lease_ms() -> u64 {
    DEFAULT_LEASE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How long a place is kept that says nothing of it, in ms.
pub fn default_keep_ms() -> u64 {
    DEFAULT_KEEP_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How many may wait without a connection; 0: no limit.
pub fn max_tickets() -> usize {
    usize::try_from(MAX_TICKETS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// How many clients may wait; 0: no limit.
pub fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// A lock is a key like any other: under an eviction policy that takes keys with a TTL it can go
/// before its lease ends, and two clients would believe that they hold it.
pub fn warn_of_eviction(ctx: &Context) -> Result<(), String> {
    let policy = api::server_info(ctx, c"memory", c"maxmemory_policy").unwrap_or_default();
    if policy.starts_with("allkeys-") || policy.starts_with("volatile-") {
        warn(
            ctx,
            &format!(
                "maxmemory-policy is {policy}: locks can be evicted while they are held; \
                 use noeviction on a server that keeps locks"
            ),
        );
    }
    Ok(())
}

/// The server's `timeout` closes connections that send nothing for so long, and with them goes what is
/// tied to them.
pub fn warn_of_timeout(ctx: &Context) -> Result<(), String> {
    let Ok(RedisValue::Array(values)) = ctx.call("CONFIG", &["GET", "timeout"]) else {
        return Ok(());
    };
    let seconds = match values.get(1) {
        Some(RedisValue::SimpleString(text) | RedisValue::BulkString(text)) => text.clone(),
        Some(RedisValue::StringBuffer(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => return Ok(()),
    };
    if seconds != "0" {
        warn(
            ctx,
            &format!(
                "timeout is {seconds} s: the server closes connections that are idle for so long, \
                 and their SESSION grants end; use timeout 0 on a server that keeps such locks"
            ),
        );
    }
    Ok(())
}

fn warn(ctx: &Context, text: &str) {
    api::log(ctx, c"warning", text);
}
