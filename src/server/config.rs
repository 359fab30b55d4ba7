//! The module's settings: `CONFIG SET lock.…`, redis.conf, MODULE LOADEX, and the module's
//! arguments.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_lock_core::store::Limits;
use redis_lock_core::values::decimal;
use redis_lock_core::values::refusal::Refusal;
use redis_module::configuration::{register_i64_configuration, ConfigurationFlags};
use redis_module::{Context, RedisValue};

use crate::server::{api, calls};
use crate::state::{
    DEFAULT_KEEP_MS, DEFAULT_LEASE_MS, MAX_CLIENTS, MAX_TICKETS, MAX_WAITERS, REPLICAS_TIMEOUT_MS,
    UNSET,
};

/// The greatest `lock.default-lease`, `lock.default-keep` and `lock.replicas-timeout`, in ms.
const LONGEST_SPAN_MS: i64 = redis_lock_core::values::time::MAX_SPAN_MS as i64;

/// The greatest `lock.max-waiters` and `lock.max-tickets`.
const MOST_WAITERS: i64 = u32::MAX as i64;

/// A numeric setting.
struct Setting {
    /// The name of the argument. The setting's name has the prefix `lock.`.
    name: &'static str,
    /// The value; [`UNSET`] until the server or an argument has set it.
    value: &'static AtomicI64,
    default: i64,
    range: RangeInclusive<i64>,
}

const SETTINGS: [Setting; 5] = [
    Setting {
        name: "default-lease",
        value: &DEFAULT_LEASE_MS,
        default: 30_000,
        range: 1..=LONGEST_SPAN_MS,
    },
    Setting {
        name: "default-keep",
        value: &DEFAULT_KEEP_MS,
        default: 10_000,
        range: 1..=LONGEST_SPAN_MS,
    },
    Setting {
        name: "max-tickets",
        value: &MAX_TICKETS,
        default: 100_000,
        range: 0..=MOST_WAITERS,
    },
    Setting {
        name: "max-waiters",
        value: &MAX_WAITERS,
        default: 10_000,
        range: 0..=MOST_WAITERS,
    },
    Setting {
        name: "replicas-timeout",
        value: &REPLICAS_TIMEOUT_MS,
        default: 2_000,
        range: 1..=LONGEST_SPAN_MS,
    },
];

/// Takes the module's arguments, names and values in turn. Each becomes the default of its setting.
///
/// Configuration overrides arguments, because CONFIG REWRITE stores in it what was set at run time.
pub fn take_arguments(words: &[&[u8]]) -> Result<(), String> {
    for setting in SETTINGS {
        setting.value.store(UNSET, Ordering::Relaxed);
    }
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("the argument {} has no value", quoted(pair)));
        };
        let setting = SETTINGS
            .into_iter()
            .find(|setting| name.eq_ignore_ascii_case(setting.name.as_bytes()))
            .ok_or_else(|| format!("{} is no argument of this module", quoted(&[name])))?;
        let number = decimal::parse(value).and_then(|number| i64::try_from(number).ok());
        let number = number.filter(|number| setting.range.contains(number));
        let number = number.ok_or_else(|| {
            let (least, most) = (setting.range.start(), setting.range.end());
            let given = quoted(pair);
            format!("the argument {given} is refused: the value must be {least} to {most}")
        })?;
        if setting.value.swap(number, Ordering::Relaxed) != UNSET {
            return Err(format!("the argument {} is given twice", setting.name));
        }
    }
    Ok(())
}

/// Returns words as text for the log.
fn quoted(words: &[&[u8]]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.escape_ascii().to_string())
        .collect();
    format!("'{}'", words.join(" "))
}

/// Registers the settings and loads their values from the configuration.
///
/// Returns an error if a value was refused. The server sets every setting, at least to its default,
/// and stops at the first bad value. Otherwise the server would try to unload the module, which
/// crashes a Valkey.
pub fn register(ctx: &Context) -> Result<(), String> {
    for setting in SETTINGS {
        let default = match setting.value.swap(UNSET, Ordering::Relaxed) {
            UNSET => setting.default,
            given => given,
        };
        register_i64_configuration(
            ctx,
            setting.name,
            setting.value,
            default,
            *setting.range.start(),
            *setting.range.end(),
            ConfigurationFlags::DEFAULT,
            None,
        );
    }
    calls::load_configs(ctx);
    let is_unset = |setting: &Setting| setting.value.load(Ordering::Relaxed) == UNSET;
    if SETTINGS.iter().any(is_unset) {
        return Err("the value of a setting was refused".to_owned());
    }
    Ok(())
}

/// Returns the lease in ms of a grant without PX.
pub fn default_lease_ms() -> u64 {
    DEFAULT_LEASE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// Returns the time in ms for which a place without KEEP is kept.
pub fn default_keep_ms() -> u64 {
    DEFAULT_KEEP_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// Returns the time in ms for which a command with REPLICAS and without WITHIN waits for replicas.
pub fn replicas_timeout_ms() -> u64 {
    REPLICAS_TIMEOUT_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// Returns the limits of waiters. At least a tenth of `maxclients` is left to other clients. Otherwise
/// no client could connect to release a lock.
pub fn limits() -> Limits {
    let set = usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0);
    let max_clients = usize::try_from(MAX_CLIENTS.load(Ordering::Relaxed)).ok();
    let most_of_clients = max_clients.map(|max_clients| (max_clients * 9 / 10).max(1));
    let (max_waiters, max_waiters_refusal) = match most_of_clients {
        Some(most) if set == 0 || most < set => (most, Refusal::MaxClients),
        Some(_) | None => (set, Refusal::MaxWaiters),
    };
    Limits {
        max_waiters,
        max_waiters_refusal,
        max_tickets: max_tickets(),
    }
}

/// Returns the most waiters without a connection; 0: no limit.
pub fn max_tickets() -> usize {
    usize::try_from(MAX_TICKETS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// Reads the server's `maxclients`, from INFO because CONFIG may be renamed.
pub fn read_max_clients(ctx: &Context) {
    let text = api::server_info(ctx, c"clients", c"maxclients");
    let max_clients = text.and_then(|text| text.parse().ok()).unwrap_or(UNSET);
    MAX_CLIENTS.store(max_clients, Ordering::Relaxed);
}

/// Warns of an eviction policy that can evict a lock before its lease ends. Two clients would then
/// believe that they hold it.
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

/// Warns of a server `timeout`. It closes connections that send nothing for that time, which ends
/// what is tied to them.
pub fn warn_of_timeout(ctx: &Context) -> Result<(), String> {
    let Some(seconds) = of_server(ctx, "timeout") else {
        return Ok(());
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

/// Returns the value of a setting of the server, or `None` if CONFIG GET fails.
pub fn of_server(ctx: &Context, name: &str) -> Option<String> {
    let Ok(RedisValue::Array(values)) = ctx.call("CONFIG", &["GET", name]) else {
        return None;
    };
    match values.get(1)? {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => Some(text.clone()),
        RedisValue::StringBuffer(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn warn(ctx: &Context, text: &str) {
    api::log(ctx, c"warning", text);
}
