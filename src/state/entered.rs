//! The proof that this thread runs a call of the server, which holds its lock.
//!
//! The server calls the module with its lock held: on its main thread, or on a thread of another
//! module that has taken the lock. So calls of two threads never overlap. Exceptions are the type's
//! free callback, and INFO for a crash report.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_lock_core::hints::unlikely;

/// The thread that runs a call of the server; 0: none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// A call of the server that runs on this thread, until the value is dropped.
pub struct Entered {
    /// The thread of the call in which this call was made; 0: none.
    outer: usize,
    /// Makes the type `!Send`, because the proof is one of this thread.
    of_this_thread: PhantomData<*mut ()>,
}

impl Entered {
    /// Records that the server has called the module.
    ///
    /// # Safety
    /// The server has called the module on this thread with its lock held. The value is dropped
    /// before that call returns.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        let outer = THREAD.load(Ordering::Relaxed);
        THREAD.store(this_thread(), Ordering::Relaxed);
        Self {
            outer,
            of_this_thread: PhantomData,
        }
    }
}

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        THREAD.store(self.outer, Ordering::Relaxed);
    }
}

/// The thread that loaded the module: the server's main thread.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Records that this is the server's main thread.
pub fn record_main_thread() {
    MAIN_THREAD.store(this_thread(), Ordering::Relaxed);
}

/// Returns true if this is the server's main thread and no other thread runs a call of the server.
pub fn is_main_thread_alone() -> bool {
    let this = this_thread();
    let thread = THREAD.load(Ordering::Relaxed);
    MAIN_THREAD.load(Ordering::Relaxed) == this && (thread == 0 || thread == this)
}

/// Panics if this thread runs no call of the server.
// perf: six instructions. A thread-local variable of a shared object takes 20.
#[inline(always)]
pub fn check() {
    if unlikely(THREAD.load(Ordering::Relaxed) != this_thread()) {
        refuse();
    }
}

#[cold]
#[inline(never)]
#[expect(clippy::panic, reason = "the alternative is a data race")]
fn refuse() -> ! {
    panic!("the module's state is used outside of a call of the server")
}

#[inline(always)]
fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no precondition and can't fail.
    unsafe { libc::pthread_self() as usize }
}
