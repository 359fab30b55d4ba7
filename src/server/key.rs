//! Keys that hold locks: opening, reading, storing, expiry.

use std::ffi::c_int;

use redis_lock_core::hints::likely;
use redis_lock_core::raised::Raised;
use redis_lock_core::store::KeyState;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::{Expiry, Packed};
use redis_lock_core::values::session_id::SessionId;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::lock_type;
use crate::state;

/// The mode to read and change a key.
pub const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// The mode to read a key without counting an access to it.
pub const UNNOTICED: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH;

/// An open key, closed when the value is dropped.
pub struct Key {
    key: *mut raw::RedisModuleKey,
    /// The content when the key was opened. A lock is never null.
    content: KeyState<*mut Packed>,
}

impl Drop for Key {
    fn drop(&mut self) {
        if !self.key.is_null() {
            server!(RedisModule_CloseKey(self.key));
        }
    }
}

impl Key {
    /// Opens a key in the context's database. The server may run callbacks: it deletes an expired
    /// key here and replicates the deletion.
    ///
    /// While the key is open, the server must not be asked for anything else that could delete
    /// keys.
    #[inline(always)]
    pub fn open(ctx: &Context, string: *mut raw::RedisModuleString, mode: u32) -> Self {
        let key = server!(RedisModule_OpenKey(ctx.ctx, string, mode as c_int));
        let key = key.unwrap_or(std::ptr::null_mut());
        Self {
            key,
            content: content_of(key),
        }
    }

    /// Opens the key of a name, and selects its database for that.
    pub fn of(ctx: &Context, name: &Name, mode: u32) -> Self {
        api::select_db(ctx, name.db);
        Self::open(ctx, api::string(name.key()).inner, mode)
    }

    /// Returns the content of the key when it was opened.
    pub fn found(&mut self) -> KeyState<&mut Packed> {
        match self.content {
            KeyState::Empty => KeyState::Empty,
            // SAFETY: `store_new` and the type's `load` alone make values of this type, each from a
            // `Box<Packed>`. The server keeps the value while the key is open. All of this is on
            // the main thread, the borrow of `self` makes the reference unique, and `delete`
            // consumes the key.
            KeyState::Lock(lock) => KeyState::Lock(unsafe { &mut *lock }),
            KeyState::OtherType => KeyState::OtherType,
        }
    }

    /// Returns the key's expiry in ms since the epoch, if it has one.
    pub fn expiry_ms(&self) -> Option<u64> {
        // A missing key opened for reading has no handle, which this call requires.
        let key = (!self.key.is_null()).then_some(self.key)?;
        u64::try_from(server!(RedisModule_GetAbsExpire(key))?).ok()
    }

    /// Sets the key's expiry, in ms since the epoch.
    pub fn set_expiry_ms(&self, expiry_ms: u64) {
        let expiry_ms = i64::try_from(expiry_ms).unwrap_or(i64::MAX);
        server!(RedisModule_SetAbsExpire(self.key, expiry_ms));
    }

    /// Returns the same key, which must count as missing, without an expired value.
    ///
    /// While writes are paused the server keeps expired values, and asserts that nothing is stored
    /// over them. A client that pauses writes inside a MULTI can still write there. In that case
    /// only UNLINK removes the value.
    #[inline(always)]
    pub fn without_leftover(self, ctx: &Context, string: *mut raw::RedisModuleString) -> Self {
        if likely(!api::is_paused()) {
            return self;
        }
        self.emptied(ctx, string)
    }

    #[cold]
    fn emptied(self, ctx: &Context, string: *mut raw::RedisModuleString) -> Self {
        if api::is_replica() {
            return self;
        }
        drop(self);
        let options = CallOptionsBuilder::new().replicate().build();
        let key = RedisString::string_as_slice(string);
        drop(ctx.call_ext::<_, CallResult<'_>>("UNLINK", &options, &[key]));
        Self::open(ctx, string, WRITE)
    }

    /// Stores a lock under the key, which must be missing, with an expiry in ms since the epoch.
    /// Closes the key.
    #[inline(always)]
    pub fn store_new(self, lock: Packed, expiry_ms: u64) {
        let value = lock_type::into_value(lock);
        server!(RedisModule_ModuleTypeSetValue(
            self.key,
            lock_type::raw_type(),
            value
        ));
        self.set_expiry_ms(expiry_ms);
    }

    /// Deletes the key and closes it.
    #[inline(always)]
    pub fn delete(self) {
        state::with(|state| {
            let _deleting = Raised::new(&state.deleting);
            server!(RedisModule_DeleteKey(self.key));
        });
    }
}

#[inline(always)]
fn content_of(key: *mut raw::RedisModuleKey) -> KeyState<*mut Packed> {
    if key.is_null() {
        return KeyState::Empty;
    }
    let kind = server!(RedisModule_KeyType(key)).unwrap_or(0);
    match kind as isize {
        raw::REDISMODULE_KEYTYPE_EMPTY => KeyState::Empty,
        raw::REDISMODULE_KEYTYPE_MODULE
            if server!(RedisModule_ModuleTypeGetType(key)) == Some(lock_type::raw_type()) =>
        {
            let value = server!(RedisModule_ModuleTypeGetValue(key));
            let value = value.filter(|value| !value.is_null());
            value.map_or(KeyState::OtherType, |value| KeyState::Lock(value.cast()))
        }
        _ => KeyState::OtherType,
    }
}

/// Returns the sessions of the lock at a key of the context's database.
pub fn sessions_at(ctx: &Context, string: &RedisString) -> Vec<SessionId> {
    match Key::open(ctx, string.inner, UNNOTICED).found() {
        KeyState::Lock(lock) => sessions_of(&lock.unpack()),
        KeyState::Empty | KeyState::OtherType => Vec::new(),
    }
}

/// Returns the sessions of a lock.
pub fn sessions_of(lock: &Lock) -> Vec<SessionId> {
    let sessions = lock.holders().iter().map(|holder| holder.session);
    sessions
        .filter(|session| *session != SessionId::NONE)
        .collect()
}

/// Returns true if a key of the context's database holds a lock. Forgets what is known of the key's
/// expiry, because something happened to the key. Counts no access to it.
pub fn forget_expiry(ctx: &Context, string: &RedisString) -> bool {
    match Key::open(ctx, string.inner, UNNOTICED).found() {
        KeyState::Lock(lock) => {
            lock.set_expiry(Expiry::Unknown);
            true
        }
        KeyState::Empty | KeyState::OtherType => false,
    }
}

/// Returns true if a name holds a lock. Counts no access to the key.
pub fn has_lock(ctx: &Context, name: &Name) -> bool {
    matches!(Key::of(ctx, name, UNNOTICED).found(), KeyState::Lock(_))
}
