//! The server's handle of the native type, and the values of the type.
//!
//! A value is a `Box<Packed>` that the server owns through a raw pointer.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_lock_core::values::packed::Packed;
use redis_module::raw;

use crate::state::LOCKS;

/// The memory of the value that was freed last, kept for the next one. Null, or memory from
/// [`into_value`] that only this static owns. Any thread may free values.
// perf: most locks are released before another one is made. Freeing and allocating 64 bytes costs
// as much as all other work on them.
static SPARE: AtomicPtr<MaybeUninit<Packed>> = AtomicPtr::new(ptr::null_mut());

/// The server's handle of the type.
static RAW_TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// Records the handle that the server returned for the type.
pub fn set_raw_type(raw_type: *mut raw::RedisModuleType) {
    RAW_TYPE.store(raw_type, Ordering::Relaxed);
}

/// Returns the server's handle of the type.
#[inline(always)]
pub fn raw_type() -> *mut raw::RedisModuleType {
    RAW_TYPE.load(Ordering::Relaxed)
}

/// Passes the ownership of a lock to the server, until [`free_value`].
pub fn into_value(lock: Packed) -> *mut c_void {
    LOCKS.fetch_add(1, Ordering::Relaxed);
    let memory = spare(ptr::null_mut()).unwrap_or_else(allocated);
    Box::into_raw(Box::write(memory, lock)).cast()
}

#[inline(never)]
fn allocated() -> Box<MaybeUninit<Packed>> {
    Box::new_uninit()
}

// `free_value` drops it on any thread.
const _: fn() = || {
    const fn is_send<T: Send>() {}
    is_send::<Packed>();
};

/// Frees a lock that the server no longer uses. Called on any thread.
///
/// # Safety
/// `value` came from [`into_value`], and is not used after this call.
pub unsafe fn free_value(value: *mut c_void) {
    LOCKS.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: the caller guarantees that `value` is a live `Packed` that is not used elsewhere.
    // Only the `Packed` is dropped here; its memory goes to `spare`.
    unsafe { ptr::drop_in_place(value.cast::<Packed>()) };
    drop(spare(value.cast()));
}

/// Keeps this memory and returns the memory that was kept before, if any.
fn spare(kept: *mut MaybeUninit<Packed>) -> Option<Box<MaybeUninit<Packed>>> {
    // AcqRel: the thread that takes the memory must see that the previous thread no longer uses it.
    let memory = SPARE.swap(kept, Ordering::AcqRel);
    // SAFETY: the pointer is null, or came from a `Box` of `into_value`. The swap removed it from
    // `SPARE`, so no other code owns it.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(memory) })
}

/// Returns the lock behind a value of the type.
///
/// # Safety
/// `value` came from [`into_value`] and was not freed. It is not written to while the borrow lives.
pub unsafe fn lock_of<'a>(value: *const c_void) -> &'a Packed {
    // SAFETY: the caller guarantees the contract above.
    unsafe { &*value.cast::<Packed>() }
}
