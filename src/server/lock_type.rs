//! The server's handle of the native type, and values of it.
//!
//! A value is a `Box<Packed>` that the server owns through a raw pointer.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_lock_core::values::packed::Packed;
use redis_module::raw;

use crate::state::{self, LOCKS};

/// The memory of the value that was freed last, for the next: most locks are released before another is
/// made, and to give 64 bytes back and ask for them again costs as much as all that is done with them.
/// Null, or made by [`into_value`] and owned by this alone. Values are freed on any thread.
static SPARE: AtomicPtr<MaybeUninit<Packed>> = AtomicPtr::new(ptr::null_mut());

/// Records the handle that the server gave for the type.
pub fn set_raw_type(raw_type: *mut raw::RedisModuleType) {
    state::with(|state| state.raw_type.set(raw_type));
}

/// The server's handle of the type.
pub fn raw_type() -> *mut raw::RedisModuleType {
    state::with(|state| state.raw_type.get())
}

/// Hands a lock over to the server, until [`free_value`].
pub fn into_value(lock: Packed) -> *mut c_void {
    LOCKS.fetch_add(1, Ordering::Relaxed);
    let memory = spare(ptr::null_mut()).unwrap_or_else(allocated);
    Box::into_raw(Box::write(memory, lock)).cast()
}

#[inline(never)]
fn allocated() -> Box<MaybeUninit<Packed>> {
    Box::new_uninit()
}

/// Frees a lock that the server is done with. On any thread.
///
/// # Safety
/// `value` came from [`into_value`], and nobody uses it after.
pub unsafe fn free_value(value: *mut c_void) {
    LOCKS.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: the caller's: it is a `Packed`, alive and used by nobody else. Its memory is kept without it.
    unsafe { ptr::drop_in_place(value.cast::<Packed>()) };
    drop(spare(value.cast()));
}

/// Keeps this memory and hands out what was kept before, if anything was.
fn spare(kept: *mut MaybeUninit<Packed>) -> Option<Box<MaybeUninit<Packed>>> {
    // What one thread leaves here another may take: it has to see that the first is done with it.
    let memory = SPARE.swap(kept, Ordering::AcqRel);
    // SAFETY: what lies there is null, or came from `into_value`'s box and is nobody else's: the swap took
    // it away.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(memory) })
}

/// The lock behind a value of the type.
///
/// # Safety
/// `value` came from [`into_value`], was not freed, and is not written to while the borrow lives.
pub unsafe fn lock_of<'a>(value: *const c_void) -> &'a Packed {
    // SAFETY: the caller's.
    unsafe { &*value.cast::<Packed>() }
}
