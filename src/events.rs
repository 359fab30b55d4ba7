//! The server's events, turned into notes for the inbox.

use std::ffi::{c_char, c_int, c_void, CStr};

use redis_lock_core::name::Name;
use redis_module::{raw, Context, RedisString};

use crate::api::{self, server};
use crate::{blocking, boundary, flow, inbox, keyspace, status};

/// All databases, as the server's flush event counts them.
const ALL_DATABASES: i32 = -1;

/// Subscribes to all that concerns locks.
pub fn subscribe(ctx: &Context) -> Result<(), String> {
    api::subscribe(ctx, raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush))?;
    api::subscribe(ctx, raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap))?;
    api::subscribe(ctx, raw::REDISMODULE_EVENT_LOADING, Some(on_loading))?;
    api::subscribe(
        ctx,
        raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        Some(on_client_change),
    )?;
    api::subscribe(ctx, raw::REDISMODULE_EVENT_EVENTLOOP, Some(on_event_loop))?;
    let class = raw::REDISMODULE_NOTIFY_GENERIC;
    match server!(RedisModule_SubscribeToKeyspaceEvents(
        ctx.ctx,
        class,
        Some(on_key)
    )) {
        Some(0) => Ok(()),
        _ => Err("the server refused a subscription to keyspace events".to_owned()),
    }
}

fn note_database(db: i32) {
    if flow::anybody_waits() {
        inbox::note(|inbox| {
            inbox.databases.insert(db);
        });
    }
}

extern "C" fn on_flush(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    if sub != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    boundary::guard(|| {
        // SAFETY: this event's data is a `RedisModuleFlushInfo`, for the time of the call.
        let info = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
        note_database(info.map_or(ALL_DATABASES, |info| info.dbnum));
    });
}

extern "C" fn on_swap(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    boundary::guard(|| {
        // SAFETY: this event's data is a `RedisModuleSwapDbInfo`, for the time of the call.
        let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
        for db in info.map_or([ALL_DATABASES; 2], |info| {
            [info.dbnum_first, info.dbnum_second]
        }) {
            note_database(db);
        }
    });
}

extern "C" fn on_loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
        boundary::guard(|| note_database(ALL_DATABASES));
    }
}

extern "C" fn on_client_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    if sub != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    boundary::guard(|| {
        // SAFETY: this event's data is a `RedisModuleClientInfo`, for the time of the call.
        if let Some(info) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            blocking::note_client_gone(info.id);
        }
    });
}

/// The server slept, so it had sent what it had to send; no client's end was noticed since.
extern "C" fn on_event_loop(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        boundary::guard(blocking::settle_deliveries);
    }
}

extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    if status::any_locks() || flow::anybody_waits() {
        boundary::guard(|| {
            // SAFETY: the server passes the event's name, with its end, for the time of the call.
            let event = unsafe { CStr::from_ptr(event) };
            note_key_event(&Context::new(ctx), event, key);
        });
    }
    raw::REDISMODULE_OK as c_int
}

/// A key may have become a lock, or a lock's expiry may no longer be that of its leases.
fn note_key_event(ctx: &Context, event: &CStr, key: *mut raw::RedisModuleString) {
    let arrived = [c"rename_to", c"move_to"].contains(&event);
    let expiry = [c"expire", c"persist"].contains(&event);
    let restored = event == c"restore";
    if !(arrived || expiry || restored) || !api::is_primary(ctx) {
        return;
    }
    let name = Name::new(api::selected_db(ctx), RedisString::string_as_slice(key));
    let string = RedisString::new(None, key);
    if restored && keyspace::is_lock(ctx, &string) {
        inbox::note(|inbox| {
            inbox.restored.insert(name);
        });
    } else if expiry && keyspace::is_lock(ctx, &string) {
        inbox::note(|inbox| {
            inbox.touched.insert(name);
        });
    } else {
        inbox::note_touched(name);
    }
}
