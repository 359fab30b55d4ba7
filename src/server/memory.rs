//! The module's memory: it comes from the server, counts in its `used_memory` and against `maxmemory`, and
//! is counted here on its own.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering;

use redis_module::alloc::RedisAlloc;

use crate::state::BYTES;

/// The server's allocator, and how much is in use of it.
pub struct Counted;

// SAFETY: what is allocated and freed is the server's allocator's, which keeps to the contract; counting
// touches none of it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's. The server ends where it has no memory left, so none fails.
        unsafe { RedisAlloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's: the memory came from `alloc` above.
        unsafe { RedisAlloc.dealloc(memory, layout) }
    }
}
