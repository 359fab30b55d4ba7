//! The server's handle of the native type, and values of it.
//!
//! A value is a `Box<Packed>` that the server owns through a raw pointer.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use redis_lock_core::values::packed::Packed;
use redis_module::raw;

use crate::state::{self, LOCKS};

/// Records the handle that the server gave for the type.
pub fn set_raw_type(raw_type: *mut raw::RedisModuleType) {
    state::with(|state| state.raw_type.set(raw_type));
}

/// The server's handle of the type.
pub fn raw_type() -> *mut raw::RedisModuleType {
    state::with(|state| state.raw_type.get())
}

/// Hands a lock over to the server. [`from_value`] takes it back.
pub fn into_value(lock: Packed) -> *mut c_void {
    LOCKS.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(lock)).cast()
}

/// Takes a lock back that the server is done with. On any thread.
///
/// # Safety
/// `value` came from [`into_value`], and nobody uses it after.
pub unsafe fn from_value(value: *mut c_void) -> Box<Packed> {
    LOCKS.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: the caller's.
    unsafe { Box::from_raw(value.cast::<Packed>()) }
}

/// The lock behind a value of the type.
///
/// # Safety
/// `value` came from [`into_value`], was not freed, and is not written to while the borrow lives.
pub unsafe fn lock_of<'a>(value: *const c_void) -> &'a Packed {
    // SAFETY: the caller's.
    unsafe { &*value.cast::<Packed>() }
}
