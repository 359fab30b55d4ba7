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

use crate::server::calls::{self, function, OpenKey, Owned, Str};
use crate::server::{api, lock_type};
use crate::state;

/// The mode to read and change a key.
pub const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// The mode to read a key without counting an access to it.
pub const UNNOTICED: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH;

/// An open key, closed when the value is dropped.
pub struct Key {
    /// `None` if the key is missing and was opened to read.
    key: Option<OpenKey>,
    /// The content when the key was opened. A lock is never null.
    content: KeyState<*mut Packed>,
}

/// Opens a key in the context's database. The server may run callbacks: it deletes an expired key
/// here and replicates the deletion.
///
/// # Safety
/// While the key is open, the server is asked for nothing else that could delete keys.
#[inline(always)]
pub unsafe fn open(ctx: &Context, string: Str<'_>, mode: u32) -> Option<OpenKey> {
    let string = calls::Passed::raw(&string);
    // SAFETY: the context and the string are valid by their types, and the server copies a
    // reference to the string. It returns null, or a key that the module has to close.
    unsafe {
        Owned::new(function!(RedisModule_OpenKey)(
            ctx.ctx,
            string,
            mode as c_int,
        ))
    }
}

impl Key {
    /// Opens a key in the context's database, see [`open`].
    ///
    /// # Safety
    /// While the value exists, the server is asked for nothing else that could delete keys.
    #[inline(always)]
    pub unsafe fn open(ctx: &Context, string: Str<'_>, mode: u32) -> Self {
        // SAFETY: by the caller.
        let key = unsafe { open(ctx, string, mode) };
        let content = key.as_ref().map_or(KeyState::Empty, content_of);
        Self { key, content }
    }

    /// Opens the key of a name, and selects its database for that.
    ///
    /// # Safety
    /// As [`Key::open`].
    pub unsafe fn of(ctx: &Context, name: &Name, mode: u32) -> Self {
        api::select_db(ctx, name.db);
        // SAFETY: by the caller.
        unsafe { Self::open(ctx, Str::from(&api::string(name.key())), mode) }
    }

    /// Returns the content of the key when it was opened.
    pub fn found(&mut self) -> KeyState<&mut Packed> {
        match self.content {
            KeyState::Empty => KeyState::Empty,
            // SAFETY: the key is of the module's type, so `lock_type::into_value` made the value.
            // The server keeps it until the key is deleted: by `delete`, which consumes `self`, or
            // by another call, which the caller of `open` excludes. The borrow of `self` makes the
            // reference unique, because only one value opens the key at a time.
            KeyState::Lock(lock) => KeyState::Lock(unsafe { &mut *lock }),
            KeyState::OtherType => KeyState::OtherType,
        }
    }

    /// Returns the key's expiry in ms since the epoch, if it has one.
    pub fn expiry_ms(&self) -> Option<u64> {
        u64::try_from(calls::get_abs_expire(self.key.as_ref()?)).ok()
    }

    /// Sets the key's expiry, in ms since the epoch.
    pub fn set_expiry_ms(&self, expiry_ms: u64) {
        if let Some(key) = &self.key {
            calls::set_abs_expire(key, i64::try_from(expiry_ms).unwrap_or(i64::MAX));
        }
    }

    /// Returns the same key, which must count as missing, without an expired value.
    ///
    /// While writes are paused the server keeps expired values, and asserts that nothing is stored
    /// over them. A client that pauses writes inside a MULTI can still write there. In that case
    /// only UNLINK removes the value.
    #[inline(always)]
    pub fn without_leftover(self, ctx: &Context, string: Str<'_>) -> Self {
        if likely(!api::is_paused()) {
            return self;
        }
        self.emptied(ctx, string)
    }

    #[cold]
    fn emptied(self, ctx: &Context, string: Str<'_>) -> Self {
        if api::is_replica() {
            return self;
        }
        drop(self);
        let options = CallOptionsBuilder::new().replicate().build();
        drop(ctx.call_ext::<_, CallResult<'_>>("UNLINK", &options, &[string.bytes()]));
        // SAFETY: the key takes the place of `self`, for whose time the caller of `open` guarantees
        // that.
        unsafe { Self::open(ctx, string, WRITE) }
    }

    /// Stores a lock under the key, which must be missing, with an expiry in ms since the epoch.
    /// Closes the key.
    #[inline(always)]
    pub fn store_new(self, lock: Packed, expiry_ms: u64) {
        if let Some(key) = &self.key {
            let (key, raw_type) = (calls::Passed::raw(key), lock_type::raw_type());
            let value = lock_type::into_value(lock);
            // SAFETY: the key is open. The value is of the type, and only the server has it from
            // now on.
            unsafe { function!(RedisModule_ModuleTypeSetValue)(key, raw_type, value) };
        }
        self.set_expiry_ms(expiry_ms);
    }

    /// Deletes the key and closes it.
    #[inline(always)]
    pub fn delete(self) {
        state::with(|state| {
            let _deleting = Raised::new(&state.deleting);
            self.key.as_ref().map(calls::delete_key);
        });
    }
}

#[inline(always)]
fn content_of(key: &OpenKey) -> KeyState<*mut Packed> {
    match calls::key_type(key) as isize {
        raw::REDISMODULE_KEYTYPE_EMPTY => KeyState::Empty,
        raw::REDISMODULE_KEYTYPE_MODULE if calls::get_module_type(key) == lock_type::raw_type() => {
            let value = calls::get_module_value(key);
            if value.is_null() {
                KeyState::OtherType
            } else {
                KeyState::Lock(value.cast())
            }
        }
        _ => KeyState::OtherType,
    }
}

/// Returns the sessions of the lock at a key of the context's database.
pub fn sessions_at(ctx: &Context, string: &RedisString) -> Vec<SessionId> {
    // SAFETY: the key is closed before the next call of the server.
    match unsafe { Key::open(ctx, string.into(), UNNOTICED) }.found() {
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
    // SAFETY: the key is closed before the next call of the server.
    match unsafe { Key::open(ctx, string.into(), UNNOTICED) }.found() {
        KeyState::Lock(lock) => {
            lock.set_expiry(Expiry::Unknown);
            true
        }
        KeyState::Empty | KeyState::OtherType => false,
    }
}

/// Returns true if a name holds a lock. Counts no access to the key.
pub fn has_lock(ctx: &Context, name: &Name) -> bool {
    // SAFETY: the key is closed before the next call of the server.
    let mut key = unsafe { Key::of(ctx, name, UNNOTICED) };
    matches!(key.found(), KeyState::Lock(_))
}
