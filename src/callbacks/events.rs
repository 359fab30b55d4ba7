//! The server's events, recorded as pending events for the timer and the next operation.

use std::ffi::{c_char, c_int, c_void, CStr};

use redis_lock_core::hints::unlikely;
use redis_lock_core::state::lost_holds::UnlinkedHolds;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::{Name, Relocation};
use redis_module::{raw, Context, RedisString};

use crate::engine::{acknowledgements, blocking, cron, recorder};
use crate::server::calls::{function, Str};
use crate::server::{
    api, boundary, clock, config, fence_key, filter, keepalive, key, key_events, propagation,
    replicas, timer,
};
use crate::state::entered::Entered;
use crate::state::pending_events::{Event, ALL_DATABASES};
use crate::state::{self, FENCES};

/// Subscribes to all events that concern locks.
pub fn subscribe(ctx: &Context) -> Result<(), String> {
    let callbacks: [(u64, raw::RedisModuleEventCallback); 10] = [
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap)),
        (raw::REDISMODULE_EVENT_LOADING, Some(on_loading)),
        (raw::REDISMODULE_EVENT_PERSISTENCE, Some(on_persistence)),
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            Some(on_replica_change),
        ),
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(on_client_change)),
        (raw::REDISMODULE_EVENT_CONFIG, Some(on_config_change)),
        (raw::REDISMODULE_EVENT_EVENTLOOP, Some(on_event_loop)),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            Some(on_role_change),
        ),
        (raw::REDISMODULE_EVENT_MODULE_CHANGE, Some(on_module_change)),
    ];
    for (event, callback) in callbacks {
        // SAFETY: each callback requires what the server passes it for its event.
        unsafe { api::subscribe(ctx, event, callback) }?;
    }
    let class = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED;
    // SAFETY: the context is valid by its type. The callback requires what the server passes it.
    let status =
        unsafe { function!(RedisModule_SubscribeToKeyspaceEvents)(ctx.ctx, class, Some(on_key)) };
    match status {
        0 => Ok(()),
        _ => Err("the server refused a subscription to keyspace events".to_owned()),
    }
}

fn record_database(db: i32) {
    if state::has_waiters() {
        recorder::record(|pending| {
            pending.databases.insert(db);
        });
    }
}

unsafe extern "C" fn on_flush(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held.
    let entered = unsafe { Entered::new() };
    boundary::guard(entered, |_| {
        if sub != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
            // An append-only file has the last fence in front of what was appended later.
            if api::is_loading() {
                fence_key::take_in();
            }
            return;
        }
        state::with(|state| state.early_expiries.clear());
        // SAFETY: by its documentation, the server passes this event a `RedisModuleFlushInfo` or
        // null, and keeps it until this returns.
        let info = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
        let db = info.map_or(ALL_DATABASES, |info| info.dbnum);
        let any_scheduled = state::look(LockTable::is_any_scheduled).unwrap_or(true);
        if any_scheduled || state::any_sessions() || state::any_replica_waits() {
            recorder::record(|pending| pending.events.push(Event::Flushed(db)));
        }
        record_database(db);
    });
}

unsafe extern "C" fn on_swap(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held.
    let entered = unsafe { Entered::new() };
    boundary::guard(entered, |_| {
        // SAFETY: as in `on_flush`, with a `RedisModuleSwapDbInfo`.
        let info = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
        let Some(info) = info else { return };
        state::with(|state| state.early_expiries.clear());
        if state::any_locks() {
            blocking::relocate(&Relocation::Swapped(info.dbnum_first, info.dbnum_second));
            recorder::record(|pending| pending.swap_databases(info.dbnum_first, info.dbnum_second));
        }
        record_database(info.dbnum_first);
        record_database(info.dbnum_second);
    });
}

unsafe extern "C" fn on_loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
        // SAFETY: the server calls this with its lock held.
        let entered = unsafe { Entered::new() };
        boundary::guard(entered, |_| {
            fence_key::take_in();
            record_database(ALL_DATABASES);
        });
    }
}

/// Handles the start and the end of writing a file, by this process or a child. The event names the
/// writer.
unsafe extern "C" fn on_persistence(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held.
    let entered = unsafe { Entered::new() };
    boundary::guard(entered, |_| match sub {
        raw::REDISMODULE_SUBEVENT_PERSISTENCE_ENDED
        | raw::REDISMODULE_SUBEVENT_PERSISTENCE_FAILED => fence_key::take_out(),
        _ => fence_key::put(),
    });
}

unsafe extern "C" fn on_replica_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held.
    let entered = unsafe { Entered::new() };
    boundary::guard(entered, |_| {
        replicas::note_change();
        if sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
            recorder::record(|pending| pending.has_new_replica = true);
        }
    });
}

unsafe extern "C" fn on_client_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    if sub != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: the server calls this with its lock held.
    let entered = unsafe { Entered::new() };
    boundary::guard(entered, |_| {
        // SAFETY: as in `on_flush`, with a `RedisModuleClientInfo`.
        if let Some(info) = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() } {
            blocking::record_client_gone(info.id);
            state::with(|state| state.rights.borrow_mut().forget_changer(info.id));
            keepalive::forget(info.id);
            if recorder::may_have_sessions(info.id) {
                let closed = Event::Closed(info.id, clock::now().ms());
                recorder::record(|pending| pending.events.push(closed));
            }
        }
    });
}

unsafe extern "C" fn on_config_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |state| {
        propagation::expect_append_only_file(state);
        config::read_max_clients(&ctx);
    });
}

/// Handles the load or unload of another module.
unsafe extern "C" fn on_module_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |_| {
        key_events::look_for_other_modules(&ctx);
        filter::look_at_other_modules();
    });
}

/// Handles a change of the server's role. The timer does the rest.
unsafe extern "C" fn on_role_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |_| {
        let was_replica = api::is_replica();
        api::record_role(&ctx);
        propagation::expect_replicas();
        if api::is_replica() {
            state::pending(|pending| pending.events.push(Event::Demoted));
        } else if was_replica && FENCES.promote(clock::wall_us()) {
            state::pending(|pending| pending.has_skipped_fences = true);
        }
        timer::fire_soon();
    });
}

unsafe extern "C" fn on_event_loop(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |state| match sub {
        raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP => {
            acknowledgements::before_sleep(&ctx, state);
            blocking::before_sleep(state);
            cron::check_clock(state);
        }
        raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP => {
            propagation::expect_append_only_file(state);
            blocking::after_sleep(state);
        }
        _ => {}
    });
}

unsafe extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes the event's name, a C string that it keeps until this returns.
    if unlikely(may_concern_locks(unsafe { event.read() })) {
        // SAFETY: as above, for this call.
        unsafe { on_expiry_or_move(ctx, event, key) };
    }
    raw::REDISMODULE_OK as c_int
}

/// Returns true if an event may concern locks, by the first letter of its name.
// perf: all other events pass here too, for each SET and DEL of every client.
fn may_concern_locks(first: c_char) -> bool {
    matches!(first as u8, b'e' | b'p' | b'r' | b'm')
}

/// Handles a keyspace event that may concern locks.
///
/// # Safety
/// The arguments are the server's for a call of [`on_key`] that runs.
#[inline(never)]
unsafe fn on_expiry_or_move(
    ctx: *mut raw::RedisModuleCtx,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) {
    // SAFETY: the server calls `on_key` with its lock held and a context for the call. It keeps the
    // event's name, a C string, and the key's name until `on_key` returns.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    // SAFETY: as above.
    let (event, key) = unsafe { (CStr::from_ptr(event), Str::new(key)) };
    boundary::guard(entered, |_| {
        if event == c"expired" {
            record_expired(&ctx, key);
        } else if state::any_locks() || state::has_waiters() {
            if unlikely(is_where_it_was(&ctx, event, key)) {
                record_arrival_elsewhere(&ctx, event, key);
            } else {
                record_key_event(&ctx, event, key);
            }
        }
        keep_home(&ctx, event);
    });
}

/// Returns true if the server calls at the arrival of a moved key with the database that the key has
/// left. Valkey 9.1 does so in a transaction.
fn is_where_it_was(ctx: &Context, event: &CStr, key: Str<'_>) -> bool {
    event == c"move_to"
        && state::pending(|pending| {
            let left = pending.leaving.as_ref();
            left.is_some_and(|it| it.db == api::selected_db(ctx) && it.key() == key.bytes())
        })
}

/// Records the arrival of a key in every database except the context's, because any may be the one.
/// If another has a lock of this name too, it is where it was.
fn record_arrival_elsewhere(ctx: &Context, event: &CStr, key: Str<'_>) {
    let (left, own) = (api::selected_db(ctx), api::own_context());
    for _ in api::databases(&own).filter(|db| *db != left) {
        record_key_event(&own, event, key);
    }
}

/// Records that a key may have become a lock, or that a lock's expiry may no longer be that of its
/// leases.
fn record_key_event(ctx: &Context, event: &CStr, key: Str<'_>) {
    let event = match event.to_bytes() {
        b"expire" | b"persist" => KeyEvent::Expiry,
        b"restore" => KeyEvent::Restored,
        b"rename_from" | b"move_from" => KeyEvent::Leaves,
        b"rename_to" | b"move_to" => KeyEvent::Arrives,
        _ => return,
    };
    let string = key.retained();
    // Most keys that get an expiry are no locks, so the key's type is checked first. A key that
    // leaves is checked when it arrives.
    let lock = event == KeyEvent::Leaves || key::forget_expiry(ctx, &string);
    if api::is_replica() || (!lock && !state::has_waiters()) {
        return;
    }
    let name = Name::new(api::selected_db(ctx), string.as_slice());
    match event {
        KeyEvent::Leaves => state::pending(|pending| pending.leaving = Some(name)),
        KeyEvent::Arrives if lock => record_arrival(ctx, &string, name),
        KeyEvent::Expiry if lock => recorder::record(|pending| {
            pending.touched.insert(&name);
        }),
        KeyEvent::Restored if lock => recorder::record(|pending| {
            pending.restored.insert(&name);
            pending.touched.insert(&name);
        }),
        KeyEvent::Arrives | KeyEvent::Expiry | KeyEvent::Restored => recorder::record_touched(name),
    }
}

fn record_expired(ctx: &Context, key: Str<'_>) {
    state::with(|state| {
        if state.early_expiries.is_leaving() {
            let name = Name::new(api::selected_db(ctx), key.bytes());
            if state.early_expiries.expire(&name) {
                timer::fire_in(1);
            }
        }
    });
}

/// The meaning of a keyspace event for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyEvent {
    Expiry,
    Restored,
    Leaves,
    Arrives,
}

/// Records that a lock was renamed or moved, with its sessions and what was recorded of its old
/// name. The old name is touched already, because the lock was unlinked there.
fn record_arrival(ctx: &Context, string: &RedisString, name: Name) {
    state::with(|state| state.unlinked(UnlinkedHolds::arrive));
    let sessions = key::sessions_at(ctx, string);
    let old = state::pending(|pending| pending.leaving.take());
    recorder::record(|pending| {
        if !sessions.is_empty() {
            pending.events.push(Event::Arrived(sessions, name.clone()));
        }
        if let Some(old) = &old {
            if pending.restored.remove(old) {
                pending.restored.insert(&name);
            }
        }
        pending.touched.insert(&name);
    });
    if let Some(old) = old {
        let moved = Relocation::Moved(old, name);
        blocking::relocate(&moved);
        if state::has_waiters() || state::any_replica_waits() {
            state::pending(|pending| pending.events.push(Event::Relocated(moved)));
        }
    }
}

/// Restores a client's database after MOVE. Valkey 8.1 calls modules of a key event with the client
/// itself. It selects the event's database for that client and doesn't restore it (valkey#4024).
/// The client's next command, and the replication of this one, would use the wrong database. Other
/// servers call with another client, for which this has no effect.
fn keep_home(ctx: &Context, event: &CStr) {
    match event.to_bytes() {
        b"move_from" => state::with(|state| state.moved_from_db.set(api::selected_db(ctx))),
        b"move_to" => api::select_db(ctx, state::with(|state| state.moved_from_db.get())),
        _ => {}
    }
}
