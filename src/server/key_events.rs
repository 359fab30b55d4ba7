//! Keyspace events of the module's own.
//!
//! An event is sent only if a client or another module may hear it:
//!
//! - Clients hear the classes in `notify-keyspace-events`, which is read for each event.
//! - Other modules may have subscribed, so each event is sent if there are any. Their presence is
//!   read from MODULE LIST when this module is loaded, and again when another one is. Modules that
//!   are part of the server don't count, see [`BUILT_IN`].

// perf: `RM_NotifyKeyspaceEvent` calls each module that subscribes to the event's class, and makes
// a client for the call. This module is one of them for each `del` that it sends. That and the
// events themselves took 740 instructions of an ACQUIRE and its RELEASE on Redis 7.0.

use std::ffi::{c_int, CStr};

use redis_lock_core::hints::unlikely;
use redis_module::{Context, RedisValue};

use crate::server::api;
use crate::server::calls::{self, Str};
use crate::state::{self, State};

/// This module, and modules that are part of the server and subscribe to no keyspace event. Redis
/// has its vector sets as a module since 8.0, Valkey its Lua since 9.1.
const BUILT_IN: [&[u8]; 3] = [b"lock", b"vectorset", b"lua"];

/// Sends an event of this class, `REDISMODULE_NOTIFY_*`, about a key of the context's database,
/// unless no client or module can hear it.
#[inline(always)]
pub fn send(ctx: &Context, state: &State, class: c_int, event: &CStr, key: Str<'_>) {
    if unlikely(may_be_heard(state, class)) {
        notify(ctx, class, event, key);
    }
}

/// Returns true if a client or another module may hear events of this class.
#[inline(always)]
pub fn may_be_heard(state: &State, class: c_int) -> bool {
    state.server.get().has_other_modules || calls::get_notify_keyspace_events() & class != 0
}

#[inline(never)]
fn notify(ctx: &Context, class: c_int, event: &CStr, key: Str<'_>) {
    calls::notify_keyspace_event(ctx, class, event, key);
}

/// Reads from the server if there are other modules.
pub fn look_for_other_modules(ctx: &Context) {
    let has_other_modules = module_names(ctx).is_none_or(|names| {
        let counts = |name: &Vec<u8>| !BUILT_IN.contains(&name.as_slice());
        names.iter().any(counts)
    });
    state::with(|state| {
        let mut facts = state.server.get();
        facts.has_other_modules = has_other_modules;
        state.server.set(facts);
    });
}

/// Returns the names in MODULE LIST, or `None` if the list can't be read.
fn module_names(ctx: &Context) -> Option<Vec<Vec<u8>>> {
    match ctx.call("MODULE", &["LIST"]) {
        Ok(RedisValue::Array(modules)) => modules.into_iter().map(name_of).collect(),
        _ => None,
    }
}

/// Returns the name in a module's fields, which are names and values in turn.
fn name_of(module: RedisValue) -> Option<Vec<u8>> {
    let RedisValue::Array(fields) = module else {
        return None;
    };
    let mut fields = fields.into_iter();
    while let (Some(field), Some(value)) = (fields.next(), fields.next()) {
        if api::text(field)? == b"name" {
            return api::text(value);
        }
    }
    None
}
