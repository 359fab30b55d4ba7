//! The module's settings: `CONFIG SET lock.…`, redis.conf, MODULE LOADEX, and the module's arguments.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_lock_core::store::Limits;
use redis_lock_core::values::decimal;
use redis_module::configuration::{register_i64_configuration, ConfigurationFlags};
use redis_module::{Context, RedisValue};

use crate::server::api::{self, server};
use crate::state::{
    DEFAULT_KEEP_MS, DEFAULT_LEASE_MS, MAX_CLIENTS, MAX_TICKETS, MAX_WAITERS, UNSET,
};

/// The greatest `lock.default-lease` and `lock.default-keep`, in ms.
const LONGEST_SPAN_MS: i64 = redis_lock_core::values::moment::MAX_SPAN_MS as i64;

/// The greatest `lock.max-waiters` and `lock.max-tickets`.
const MOST_WAITERS: i64 = u32::MAX as i64;

/// A setting that is a number.
struct Setting {
    /// Behind the module's name and a dot; as an argument, without.
    name: &'static str,
    /// Where its value is; [`UNSET`] until the server, or an argument, has set it.
    value: &'static AtomicI64,
    default: i64,
    range: RangeInclusive<i64>,
}

const SETTINGS: [Setting; 4] = [
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
];

/// Takes the module's arguments, names and values in turn: each is the setting's default from here on.
///
/// So what the configuration says wins, as it must: that is where CONFIG REWRITE leaves what was set at
/// run time.
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

/// Words as they can stand in the log.
fn quoted(words: &[&[u8]]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.escape_ascii().to_string())
        .collect();
    format!("'{}'", words.join(" "))
}

/// Registers the settings and loads the values that the configuration has for them.
///
/// Refuses the load where a value was refused: the server sets every setting, to its default at
/// least, and stops at the first bad one. Left to itself it would try to unload the module, which a
/// Valkey doesn't survive.
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
    server!(RedisModule_LoadConfigs(ctx.ctx));
    let is_unset = |setting: &Setting| setting.value.load(Ordering::Relaxed) == UNSET;
    if SETTINGS.iter().any(is_unset) {
        return Err("the value of a setting was refused".to_owned());
    }
    Ok(())
}

/// The lease of a grant that names none, in ms.
pub fn default_lease_ms() -> u64 {
    DEFAULT_LEASE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How long a place is kept that says nothing of it, in ms.
pub fn default_keep_ms() -> u64 {
    DEFAULT_KEEP_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How many may wait.
pub fn limits() -> Limits {
    Limits {
        max_waiters: max_waiters(),
        max_tickets: max_tickets(),
    }
}

/// How many may wait without a connection; 0: no limit.
pub fn max_tickets() -> usize {
    usize::try_from(MAX_TICKETS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// How many clients may wait; 0: no limit. At least a tenth of `maxclients` is left to those who don't wait, because a
/// lock that nobody can connect to release stays held.
pub fn max_waiters() -> usize {
    let set = usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0);
    match usize::try_from(MAX_CLIENTS.load(Ordering::Relaxed)) {
        Ok(max_clients) => least_limit(set, (max_clients * 9 / 10).max(1)),
        Err(_) => set,
    }
}

/// The lesser of two limits, where 0 is none.
fn least_limit(one: usize, other: usize) -> usize {
    if one == 0 {
        other
    } else {
        one.min(other)
    }
}

/// Reads the server's `maxclients`. INFO has it also where CONFIG is renamed.
pub fn read_max_clients(ctx: &Context) {
    let text = api::server_info(ctx, c"clients", c"maxclients");
    let max_clients = text.and_then(|text| text.parse().ok()).unwrap_or(UNSET);
    MAX_CLIENTS.store(max_clients, Ordering::Relaxed);
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

/// Returns the value of a setting of the server's, if it tells.
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
