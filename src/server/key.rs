//! Keys that hold locks: opened, read, stored, made to expire.

use std::ffi::c_int;

use redis_lock_core::branch::likely;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::{Expiry, Packed};
use redis_lock_core::values::session_id::SessionId;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::lock_type;
use crate::state;

/// To read a key and to change it.
pub const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// To look at a key without counting as an access to it.
pub const UNNOTICED: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH;

/// An open key; closed when the value goes.
pub struct Key {
    key: *mut raw::RedisModuleKey,
    content: Content,
}

/// What a key held as it was opened.
#[derive(Clone, Copy)]
enum Content {
    Nothing,
    /// Never null.
    Lock(*mut Packed),
    OtherType,
}

impl Drop for Key {
    fn drop(&mut self) {
        if !self.key.is_null() {
            server!(RedisModule_CloseKey(self.key));
        }
    }
}

/// What an open key holds.
pub enum Found<'a> {
    /// No key.
    Nothing,
    /// A lock.
    Lock(&'a mut Packed),
    /// A key of another type.
    OtherType,
}

impl Key {
    /// Opens a key in the context's database. This may run callbacks: a key that has expired is
    /// deleted here, and the deletion replicated.
    ///
    /// As long as it is open nothing else may be asked of the server that could delete keys.
    #[inline(always)]
    pub fn open(ctx: &Context, string: *mut raw::RedisModuleString, mode: u32) -> Self {
        let key = server!(RedisModule_OpenKey(ctx.ctx, string, mode as c_int));
        let key = key.unwrap_or(std::ptr::null_mut());
        Self {
            key,
            content: content_of(key),
        }
    }

    /// Opens the key of a name, in whichever database it is.
    pub fn of(ctx: &Context, name: &Name, mode: u32) -> Self {
        api::select_db(ctx, name.db);
        Self::open(ctx, api::string(name.key()).inner, mode)
    }

    /// What the key held as it was opened.
    pub fn found(&mut self) -> Found<'_> {
        match self.content {
            Content::Nothing => Found::Nothing,
            // SAFETY: values of our type are made by `store_new` and the type's `load` alone, each from a
            // `Box<Packed>`; the key is open, on the main thread, and borrowed, and `delete` takes it.
            Content::Lock(lock) => Found::Lock(unsafe { &mut *lock }),
            Content::OtherType => Found::OtherType,
        }
    }

    /// When the key expires, in ms since the epoch, if it does.
    pub fn expiry_ms(&self) -> Option<u64> {
        // A missing key that was opened to be read has no handle, and this call can't do without.
        let key = (!self.key.is_null()).then_some(self.key)?;
        u64::try_from(server!(RedisModule_GetAbsExpire(key))?).ok()
    }

    /// Sets when the key expires, in ms since the epoch.
    pub fn set_expiry_ms(&self, expiry_ms: u64) {
        let expiry_ms = i64::try_from(expiry_ms).unwrap_or(i64::MAX);
        server!(RedisModule_SetAbsExpire(self.key, expiry_ms));
    }

    /// The same key, which counts as missing, truly without a value.
    ///
    /// While writes are paused the server keeps what has expired, and asserts that nobody stores anything
    /// there. Who pauses writes in a MULTI goes on to write in it: there only UNLINK gets rid of the value.
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

    /// Stores a lock where there is no key, until this moment on the wall clock, in ms; closes the key.
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

    /// Deletes the key, and closes it.
    #[inline(always)]
    pub fn delete(self) {
        state::with(|state| state.deleting.set(true));
        server!(RedisModule_DeleteKey(self.key));
        state::with(|state| state.deleting.set(false));
    }
}

#[inline(always)]
fn content_of(key: *mut raw::RedisModuleKey) -> Content {
    if key.is_null() {
        return Content::Nothing;
    }
    let kind = server!(RedisModule_KeyType(key)).unwrap_or(0);
    match kind as isize {
        raw::REDISMODULE_KEYTYPE_EMPTY => Content::Nothing,
        raw::REDISMODULE_KEYTYPE_MODULE
            if server!(RedisModule_ModuleTypeGetType(key)) == Some(lock_type::raw_type()) =>
        {
            let value = server!(RedisModule_ModuleTypeGetValue(key));
            let value = value.filter(|value| !value.is_null());
            value.map_or(Content::OtherType, |value| Content::Lock(value.cast()))
        }
        _ => Content::OtherType,
    }
}

/// The sessions of the lock that a key of the context's database holds.
pub fn sessions_at(ctx: &Context, string: &RedisString) -> Vec<SessionId> {
    match Key::open(ctx, string.inner, UNNOTICED).found() {
        Found::Lock(lock) => sessions_of(&lock.unpack()),
        Found::Nothing | Found::OtherType => Vec::new(),
    }
}

/// The sessions of a lock.
pub fn sessions_of(lock: &Lock) -> Vec<SessionId> {
    let sessions = lock.holders().iter().map(|holder| holder.session);
    sessions
        .filter(|session| *session != SessionId::NONE)
        .collect()
}

/// Whether a key of the context's database holds a lock, without counting as an access to it. Something
/// happened to the key: what was known of its expiry is known no more.
pub fn forget_expiry(ctx: &Context, string: &RedisString) -> bool {
    match Key::open(ctx, string.inner, UNNOTICED).found() {
        Found::Lock(lock) => {
            lock.set_expiry(Expiry::Unknown);
            true
        }
        Found::Nothing | Found::OtherType => false,
    }
}

/// Whether a name holds a lock, without counting as an access to it.
pub fn has_lock(ctx: &Context, name: &Name) -> bool {
    matches!(Key::of(ctx, name, UNNOTICED).found(), Found::Lock(_))
}
