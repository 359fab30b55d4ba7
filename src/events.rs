//! The server's events, turned into notes for the inbox.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::atomic::{AtomicI32, Ordering};

use redis_lock_core::name::Name;
use redis_module::{raw, Context, RedisString};

use crate::api::{self, server};
use crate::inbox::Event;
use crate::{alarm, blocking, boundary, flow, inbox, keyspace, status};

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
    api::subscribe(
        ctx,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        Some(on_role_change),
    )?;
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
        let db = info.map_or(inbox::ALL_DATABASES, |info| info.dbnum);
        if flow::any_ties() {
            inbox::note(|inbox| inbox.events.push(Event::Flushed(db)));
        }
        note_database(db);
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
        let Some(info) = info else { return };
        if status::any_locks() {
            inbox::note(|inbox| inbox.swap_databases(info.dbnum_first, info.dbnum_second));
        }
        note_database(info.dbnum_first);
        note_database(info.dbnum_second);
    });
}

extern "C" fn on_loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
        boundary::guard(|| note_database(inbox::ALL_DATABASES));
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
            if flow::may_have_ties(info.id) {
                inbox::note(|inbox| inbox.events.push(Event::Closed(info.id)));
            }
        }
    });
}

/// The timer does what the new role asks for.
extern "C" fn on_role_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    boundary::guard(|| {
        api::note_role(&Context::new(ctx));
        if api::is_replica() {
            inbox::with(|inbox| inbox.events.push(Event::Demoted));
        }
        alarm::ring_at_once();
    });
}

extern "C" fn on_event_loop(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    boundary::guard(|| match sub {
        raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => {
            blocking::before_sleep();
            alarm::heed_set_clock();
        }
        raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => blocking::after_sleep(),
        _ => {}
    });
}

extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        // SAFETY: the server passes the event's name, with its end, for the time of the call.
        let event = unsafe { CStr::from_ptr(event) };
        if status::any_locks() || flow::anybody_waits() {
            note_key_event(&ctx, event, key);
        }
        keep_home(&ctx, event);
    });
    raw::REDISMODULE_OK as c_int
}

/// A key may have become a lock, or a lock's expiry may no longer be that of its leases.
fn note_key_event(ctx: &Context, event: &CStr, key: *mut raw::RedisModuleString) {
    let event = match event.to_bytes() {
        b"expire" | b"persist" => KeyEvent::Expiry,
        b"restore" => KeyEvent::Restored,
        b"rename_from" | b"move_from" => KeyEvent::Leaves,
        b"rename_to" | b"move_to" => KeyEvent::Arrives,
        _ => return,
    };
    if api::is_replica() {
        return;
    }
    let string = RedisString::new(None, key);
    // Most keys that are given an expiry are no locks: find that out first.
    let lock = event == KeyEvent::Leaves || keyspace::is_lock(ctx, &string);
    if !lock && !flow::anybody_waits() {
        return;
    }
    let name = Name::new(api::selected_db(ctx), string.as_slice());
    match event {
        KeyEvent::Leaves => inbox::with(|inbox| inbox.leaving = Some(name)),
        KeyEvent::Arrives if lock => note_arrival(ctx, &string, name),
        KeyEvent::Expiry if lock => inbox::note(|inbox| {
            inbox.touched.insert(name);
        }),
        KeyEvent::Restored if lock => inbox::note(|inbox| {
            inbox.restored.insert(name.clone());
            inbox.touched.insert(name);
        }),
        KeyEvent::Arrives | KeyEvent::Expiry | KeyEvent::Restored => inbox::note_touched(name),
    }
}

/// What a keyspace event means for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyEvent {
    Expiry,
    Restored,
    Leaves,
    Arrives,
}

/// A lock was renamed or moved: its ties, and what was noted of it under its old name, come along.
fn note_arrival(ctx: &Context, string: &RedisString, name: Name) {
    let ties = keyspace::ties_at(ctx, string);
    inbox::note(|inbox| {
        if !ties.is_empty() {
            inbox.events.push(Event::Arrived(ties, name.clone()));
        }
        let old = inbox.leaving.take();
        if old.is_some_and(|old| inbox.restored.remove(&old)) {
            inbox.restored.insert(name.clone());
        }
        inbox.touched.insert(name);
    });
}

/// The database that the last MOVE came from.
static HOME: AtomicI32 = AtomicI32::new(0);

/// Leads a client back to its database after MOVE. Valkey 8.1 calls modules of a key event with the
/// client itself, selects the event's database for it and leaves it there (valkey#4024), so that its
/// next command, and the replication of this one, would go to the wrong database. Other servers call
/// with a client of their own, for which this means nothing.
fn keep_home(ctx: &Context, event: &CStr) {
    match event.to_bytes() {
        b"move_from" => HOME.store(api::selected_db(ctx), Ordering::Relaxed),
        b"move_to" => api::select_db(ctx, HOME.load(Ordering::Relaxed)),
        _ => {}
    }
}
