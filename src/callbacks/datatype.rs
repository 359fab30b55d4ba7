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
use redis_lock_core::values::fence::MAX_RESTORED_AHEAD_US;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Packed;
use redis_module::native_types::RedisType;
use redis_module::{raw, Context, RedisString, TYPE_METHOD_VERSION};

use crate::engine::recorder;
use crate::server::calls::{self, function, Lent, Passed, Str};
use crate::server::lock_type::{self, lock_of};
use crate::server::{api, boundary, clock, key, propagation};
use crate::state::entered::Entered;
use crate::state::pending_events::Event;
use crate::state::{self, State, FENCES};

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

unsafe extern "C" fn save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server calls this with a live value of the type, which it keeps until this
    // returns. It holds its lock, or this is a child of its own, whose only thread runs this.
    let (entered, lock) = unsafe { (Entered::new(), lock_of(value)) };
    boundary::guard(entered, |_| {
        let bytes = codec::encode(&lock.unpack());
        let (text, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: `io` is the server's file for this call, and `text` has `len` bytes.
        unsafe { function!(RedisModule_SaveStringBuffer)(io, text, len) };
    });
}

unsafe extern "C" fn load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    // SAFETY: the server calls this with its lock held. It keeps the file until this returns.
    let (entered, io) = unsafe { (Entered::new(), Lent::new(io)) };
    let value = boundary::guard(entered, |_| {
        Some(lock_type::into_value(Packed::new(read(io, version)?)))
    });
    value.flatten().unwrap_or(ptr::null_mut())
}

/// The greatest fence to which a trusted lock raises the counter, of the year 2112. As many numbers
/// are left after it.
const MAX_TRUSTED_FENCE: u64 = 1 << 52;

/// Reads a lock from an RDB stream. Returns `None` if it is not valid.
fn read(io: Lent<'_, raw::RedisModuleIO>, version: c_int) -> Option<Lock> {
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
    // SAFETY: the file is valid by its type. The server writes the length to a local variable.
    let buffer = unsafe { function!(RedisModule_LoadStringBuffer)(io.raw(), &raw mut len) };
    if buffer.is_null() {
        return None;
    }
    // SAFETY: the server returned `len` bytes at `buffer`, which the module owns until it frees
    // them below. `decode` copies what it keeps.
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
    let highest = lock.highest_fence();
    if !trusted && !FENCES.is_credible(highest, clock::wall_us(), MAX_RESTORED_AHEAD_US) {
        return None;
    }
    // On a replica that takes writes, a RESTORE of its own client is trusted too.
    FENCES.raise(highest.min(MAX_TRUSTED_FENCE));
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

unsafe extern "C" fn rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: as in `save`, with the name of the value's key.
    let (entered, lock) = unsafe { (Entered::new(), lock_of(value)) };
    // SAFETY: as above.
    let (io, key) = unsafe { (Lent::new(io), Str::new(key)) };
    boundary::guard(entered, |_| {
        for words in rewritten(key.bytes(), &lock.unpack()) {
            propagation::emit_aof(io, c"LOCK.APPLY", &words);
        }
    });
}

/// Frees a value. Called on any thread, without the server's lock.
unsafe extern "C" fn free(value: *mut c_void) {
    boundary::guard_without_state(|| {
        // SAFETY: the server passes a value of `into_value` once, and doesn't use it after.
        unsafe { lock_type::free_value(value) }
    });
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of the type, with its lock held.
    let lock = unsafe { lock_of(value) };
    let bytes = boundary::guard_without_state(|| size_of::<Packed>() + lock.heap_bytes());
    bytes.unwrap_or(size_of::<Packed>())
}

/// Returns the number of holders, at least 1 because a released lock has none. 0 would mean that
/// the server frees the value on another thread.
unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a live value of the type, with its lock held.
    let lock = unsafe { lock_of(value) };
    boundary::guard_without_state(|| lock.holder_count().max(1)).unwrap_or(1)
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server calls this with its lock held and a live value of the type. It keeps the
    // value and the digest until this returns.
    let (entered, lock, digest) = unsafe { (Entered::new(), lock_of(value), Lent::new(digest)) };
    boundary::guard(entered, |_| {
        let bytes = codec::encode(&lock.unpack());
        let (text, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the digest is valid by its type, and `text` has `len` bytes.
        unsafe { function!(RedisModule_DigestAddStringBuffer)(digest.raw(), text, len) };
        calls::digest_end_sequence(digest);
    });
}

/// Records that a lock leaves its key, by any way except a flush.
unsafe extern "C" fn unlink(key: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    // SAFETY: the server calls this with its lock held. It keeps the key's name and the live value
    // of the type until this returns.
    let (entered, key, lock) = unsafe { (Entered::new(), Lent::new(key), lock_of(value)) };
    boundary::guard(entered, |state| {
        if !likely(state.deleting.get()) {
            record_unlinked(state, key, lock);
        }
    });
}

#[inline(never)]
fn record_unlinked(state: &State, key: Lent<'_, raw::RedisModuleKeyOptCtx>, value: &Packed) {
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
                state.early_expiries.leave(name.clone(), lock);
            }
            recorder::record_touched(name);
        }
        recorder::record_unlinked(sessions);
    }
}

fn name_of(key: Lent<'_, raw::RedisModuleKeyOptCtx>) -> Option<Name> {
    let name = calls::get_key_name_from_opt_ctx(key);
    if name.is_null() {
        return None;
    }
    // SAFETY: the server keeps the name as long as the key's context.
    let name = unsafe { Str::new(name.cast_mut()) };
    Some(Name::new(calls::get_db_id_from_opt_ctx(key), name.bytes()))
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
