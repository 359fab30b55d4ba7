//! The module's allocator. Its memory comes from the server, so it counts in `used_memory` and
//! against `maxmemory`. It is also counted here on its own.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering;

use redis_module::alloc::RedisAlloc;

use crate::state::BYTES;

/// The server's allocator with a count of the bytes in use.
pub struct Counted;

// SAFETY: all memory comes from the server's allocator, which fulfils the contract of
// `GlobalAlloc`. The counting touches none of it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `alloc`. It never fails, because the server
        // aborts if it is out of memory.
        unsafe { RedisAlloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller guarantees that the memory came from `alloc` above with this layout.
        unsafe { RedisAlloc.dealloc(memory, layout) }
    }
}
