//! The module's allocator. Its memory comes from the server, so it counts in `used_memory` and
//! against `maxmemory`. It is also counted here on its own.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::alloc::RedisAlloc;

/// The server's allocator with a count of the bytes in use.
pub struct Counted(pub &'static AtomicU64);

// SAFETY: the server's `RM_Alloc` returns memory of at least the size that it is asked for, which no
// one else uses until `RM_Free`. `RedisAlloc` asks for the layout's size or more. The alignment is
// checked here.
unsafe impl GlobalAlloc for Counted {
    /// Returns null if the server's memory is not aligned as the layout requires.
    ///
    /// `RM_Alloc` takes no alignment. jemalloc and glibc align to 16 what has 16 bytes or more, which
    /// is all that the module needs. jemalloc also aligns a size that is a multiple of a greater
    /// power of two, but glibc doesn't.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the size is not 0. It never fails, because the server
        // aborts if it is out of memory.
        let memory = unsafe { RedisAlloc.alloc(layout) };
        if memory.addr() & (layout.align() - 1) != 0 {
            // SAFETY: the memory was allocated just now with this layout, and is not used.
            unsafe { RedisAlloc.dealloc(memory, layout) };
            return ptr::null_mut();
        }
        self.0.fetch_add(layout.size() as u64, Ordering::Relaxed);
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.0.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller guarantees that the memory came from `alloc` above with this layout.
        unsafe { RedisAlloc.dealloc(memory, layout) }
    }
}
