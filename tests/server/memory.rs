//! The module's allocator, on a server whose memory is aligned to 16 bytes and no more.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;

#[path = "../../src/server/memory.rs"]
mod module_memory;

use module_memory::Counted;

static BYTES: AtomicU64 = AtomicU64::new(0);

static FREED: AtomicU64 = AtomicU64::new(0);

#[repr(align(32))]
struct Room(#[expect(dead_code, reason = "used by its address")] [u8; 64]);

static mut ROOM: Room = Room([0; 64]);

/// Returns memory that is aligned to 16, but not to 32.
unsafe extern "C" fn allocate(_: usize) -> *mut c_void {
    // SAFETY: the address is inside of the static.
    unsafe { (&raw mut ROOM).byte_add(16).cast() }
}

unsafe extern "C" fn free(_: *mut c_void) {
    FREED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn memory_that_is_not_aligned_as_asked_is_refused() {
    // SAFETY: no other test of this process uses the API, and no other thread.
    unsafe {
        raw::RedisModule_Alloc = Some(allocate);
        raw::RedisModule_Free = Some(free);
    }
    let layout = |align| Layout::from_size_align(32, align).unwrap();
    let counted = Counted(&BYTES);
    // SAFETY: the size is not 0.
    let memory = unsafe { counted.alloc(layout(16)) };
    assert!(!memory.is_null());
    assert_eq!(BYTES.load(Ordering::Relaxed), 32);
    // SAFETY: the memory came from this allocator with this layout.
    unsafe { counted.dealloc(memory, layout(16)) };
    assert_eq!(BYTES.load(Ordering::Relaxed), 0);
    assert_eq!(FREED.load(Ordering::Relaxed), 1);
    // SAFETY: the size is not 0.
    assert!(unsafe { counted.alloc(layout(32)) }.is_null());
    assert_eq!(BYTES.load(Ordering::Relaxed), 0);
    assert_eq!(FREED.load(Ordering::Relaxed), 2);
}
