//! The native type `redislock`: callbacks to save, load, free and measure a value.
//!
//! A value is a `Box<Packed>` that the server owns through a raw pointer. Loading checks every
//! byte, because a client that may call RESTORE chooses them. `free` may run on another thread and
//! uses nothing but the value.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use redis_lock_core::effect;
use redis_lock_core::hints::likely;
use redis_lock_core::values::codec::{self, Unreadable, DATA_VERSION, ENCODING_VERSION};
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Packed;
use redis_module::native_types::RedisType;
use redis_module::{raw, Context, RedisString, TYPE_METHOD_VERSION};

use crate::engine::recorder;
use crate::server::api::{self, server};
use crate::server::fence_key::MAX_FENCE;
use crate::server::lock_type::{self, lock_of};
use crate::server::{boundary, clock, key, propagation};
use crate::state::pending_events::Event;
use crate::state::{self, FENCES};

/// The type, registered at load. The server requires a name of nine characters.
static LOCK_TYPE: RedisType = RedisType::new(
    "redislock",
    ENCODING_VERSION,
    raw::RedisModuleTypeMethods {
        version: TYPE_METHOD_VERSION,
        rdb_load: Some(load),
        rdb_save: Some(save),
        aof_rewrite: Some(rewrite),
        free: Some(free),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        unlink2: Some(unlink),
        free_effort: Some(free_effort),
        aux_load: None,
        aux_save: None,
        aux_save2: None,
        aux_save_triggers: 0,
        unlink: None,
        copy: None,
        copy2: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
    },
);

/// Registers the type.
pub fn register(ctx: &Context) -> Result<(), String> {
    LOCK_TYPE.create_data_type(ctx.ctx).map_err(str::to_owned)?;
    lock_type::set_raw_type(*LOCK_TYPE.raw_type.borrow());
    Ok(())
}

extern "C" fn save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    boundary::guard(|| {
        // SAFETY: the server passes a live value of the type, in a child or on the main thread.
        let bytes = codec::encode(&unsafe { lock_of(value) }.unpack());
        server!(RedisModule_SaveStringBuffer(
            io,
            bytes.as_ptr().cast(),
            bytes.len()
        ));
    });
}

unsafe extern "C" fn load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let value = boundary::guard(|| {
        // SAFETY: `io` is the server's pointer for this call.
        let lock = unsafe { read(io, version) }?;
        Some(lock_type::into_value(Packed::new(lock)))
    });
    value.flatten().unwrap_or(ptr::null_mut())
}

/// Reads a lock from an RDB stream. Returns `None` if it is not valid.
///
/// # Safety
/// `io` is the pointer that the server passed to the load callback, which is still running.
unsafe fn read(io: *mut raw::RedisModuleIO, version: c_int) -> Option<Lock> {
    // The server's own files are trusted, because refusing them would keep it from starting. So is
    // the data of the primary, which judged it by its own clock.
    let trusted = api::is_loading() || api::is_replica();
    if version != ENCODING_VERSION {
        // Not for RESTORE, because any client could fill the log with it.
        if trusted {
            tell_of_version(version);
        }
        return None;
    }
    let mut len = 0;
    let buffer = server!(RedisModule_LoadStringBuffer(io, &raw mut len))?;
    if buffer.is_null() {
        return None;
    }
    // SAFETY: the server returned `len` bytes at `buffer`, which the module owns until it frees
    // them below.
    let lock = codec::decode(unsafe { slice::from_raw_parts(buffer.cast(), len) });
    // SAFETY: the buffer came from `LoadStringBuffer`, whose result the module has to free. It is
    // not used after.
    unsafe { api::free(buffer.cast()) };
    if let Err(Unreadable::UnknownVersion(version)) = lock {
        if trusted {
            tell_of_version(version.into());
        }
    }
    let lock = lock.ok()?;
    if !trusted && !FENCES.is_credible(lock.highest_fence(), clock::wall_us()) {
        return None;
    }
    // On a replica that takes writes, a RESTORE of its own client is trusted too.
    FENCES.raise(lock.highest_fence().min(MAX_FENCE));
    Some(lock)
}

/// Logs the reason why a lock can't be read. The server logs only the fact.
fn tell_of_version(version: c_int) {
    let text = format!(
        "a stored lock has format {version}, and redis-lock {} reads formats {ENCODING_VERSION} and \
         {DATA_VERSION}: load the version that wrote it",
        env!("CARGO_PKG_VERSION")
    );
    api::log(&api::own_context(), c"warning", &text);
}

extern "C" fn rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    boundary::guard(|| {
        let key = RedisString::string_as_slice(key);
        // SAFETY: the server passes a live value of the type.
        for words in rewritten(key, &unsafe { lock_of(value) }.unpack()) {
            // SAFETY: `io` is the server's pointer for this call.
            unsafe { propagation::emit_aof(io, c"LOCK.APPLY", &words) };
        }
    });
}

extern "C" fn free(value: *mut c_void) {
    // SAFETY: the server passes a value of `into_value` once, and doesn't use it after.
    unsafe { lock_type::free_value(value) };
}

extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of the type.
    size_of::<Packed>() + unsafe { lock_of(value) }.heap_bytes()
}

/// Returns the number of holders, at least 1 because a released lock has none. 0 would mean that
/// the server frees the value on another thread.
extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of the type.
    unsafe { lock_of(value) }.holder_count().max(1)
}

extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    boundary::guard(|| {
        // SAFETY: the server passes a live value of the type.
        let bytes = codec::encode(&unsafe { lock_of(value) }.unpack());
        server!(RedisModule_DigestAddStringBuffer(
            digest,
            bytes.as_ptr().cast(),
            bytes.len()
        ));
        server!(RedisModule_DigestEndSequence(digest));
    });
}

/// Records that a lock leaves its key, by any way except a flush.
extern "C" fn unlink(key: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    if likely(state::with(|state| state.deleting.get())) {
        return;
    }
    // SAFETY: the server passes a live value of the type.
    record_unlinked(key, unsafe { lock_of(value) });
}

#[inline(never)]
fn record_unlinked(key: *mut raw::RedisModuleKeyOptCtx, value: &Packed) {
    boundary::guard(|| {
        let (lock, now_ms) = (value.unpack(), clock::now().ms());
        recorder::count_unlinked(&lock, now_ms);
        let is_last_ms = lock.latest_deadline_ms() == Some(now_ms);
        // A lock whose key the server has expired early goes on.
        if state::any_replica_waits() && !is_last_ms {
            if let Some(name) = name_of(key) {
                let left = Box::new(lock.clone());
                recorder::record(|pending| pending.events.push(Event::LockLeft(name, left)));
            }
        }
        // The lock table may have scheduled a name for the ends of its leases.
        let is_one_of_several = lock.holders().len() > 1;
        if is_last_ms || is_one_of_several || state::has_waiters() || state::any_sessions() {
            let sessions = key::sessions_of(&lock);
            if let Some(name) = name_of(key) {
                // The server renews a lock with sessions long before its lease ends.
                if is_last_ms && sessions.is_empty() {
                    state::with(|state| state.early_expiries.leave(name.clone(), lock));
                }
                recorder::record_touched(name);
            }
            recorder::record_unlinked(sessions);
        }
    });
}

fn name_of(key: *mut raw::RedisModuleKeyOptCtx) -> Option<Name> {
    let name = server!(RedisModule_GetKeyNameFromOptCtx(key)).filter(|name| !name.is_null())?;
    let db = server!(RedisModule_GetDbIdFromOptCtx(key))?;
    Some(Name::new(db, RedisString::string_as_slice(name)))
}

/// Returns the words of a stored lock for an append-only file, one list for each LOCK.APPLY.
fn rewritten(key: &[u8], lock: &Lock) -> Vec<Vec<RedisString>> {
    let changes = effect::all_grants(lock);
    let lines = changes.iter().filter_map(effect::words);
    lines
        .map(|words| {
            let words = words.iter().map(|word| api::string(word.as_slice()));
            std::iter::once(api::string(key)).chain(words).collect()
        })
        .collect()
}
