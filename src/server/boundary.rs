//! The boundary between the server and the module: no panic crosses it.
//!
//! A panic that unwinds out of an `extern "C"` function aborts the process, and with it the
//! database. The code is written so that it can't panic. If it does all the same, the step is lost
//! and the server's log says so.

use std::any::Any;
use std::panic::{self, catch_unwind, AssertUnwindSafe};

use redis_module::Context;

use crate::server::api;
use crate::state::entered::Entered;
use crate::state::{self, State};

/// Makes a panic print its text and its place, but no backtrace. Valkey 9.1 crashes when a
/// backtrace is printed, which `RUST_BACKTRACE` asks for.
pub fn print_no_backtraces(_: &Context) -> Result<(), String> {
    panic::set_hook(Box::new(|panic| eprintln!("redis-lock {panic}")));
    Ok(())
}

/// Runs a step of the module in a call of the server. Returns `None` if it panicked.
///
/// Unwind safety: a step borrows shared state through a `RefCell`, whose borrow ends when the step
/// unwinds, and a [`Raised`](redis_lock_core::raised::Raised) flag falls. If the lock table panics
/// while it decides, nothing of that operation was applied.
#[inline(always)]
#[cfg_attr(feature = "planted-panics", track_caller)]
pub fn guard<T>(entered: Entered, step: impl FnOnce(&State) -> T) -> Option<T> {
    guard_without_state(|| step(state::of(&entered)))
}

/// Runs a step that any thread may run, without the server's lock. Returns `None` if it panicked.
#[inline(always)]
#[cfg_attr(feature = "planted-panics", track_caller)]
pub fn guard_without_state<T>(step: impl FnOnce() -> T) -> Option<T> {
    #[cfg(feature = "planted-panics")]
    let step = planted::before(step);
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(value) => Some(value),
        Err(panic) => {
            report(&*panic);
            None
        }
    }
}

#[cold]
#[inline(never)]
fn report(panic: &(dyn Any + Send)) {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no message".to_owned());
    let text = format!("a step panicked, please report it: {text}");
    api::log_anywhere(c"warning", &text);
}

/// Panics on purpose, for `make test-panics`.
#[cfg(feature = "planted-panics")]
mod planted {
    use std::env;
    use std::panic::{self, Location};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::LazyLock;

    /// The step that panics, as `file:line` of its call of the boundary.
    static PLACE: LazyLock<Option<String>> = LazyLock::new(|| env::var("REDIS_LOCK_PANIC").ok());
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

    /// Returns the step, with a panic before it if it is the one chosen and comes for the first time.
    #[track_caller]
    pub fn before<T>(step: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let caller = Location::caller();
        move || {
            let here = PLACE.as_ref().is_some_and(|place| {
                let (file, line) = place.rsplit_once(':').unwrap_or((place, ""));
                file == caller.file() && line == caller.line().to_string()
            });
            if here && !HAS_PANICKED.swap(true, Ordering::Relaxed) {
                // The hook isn't called, so a test can tell this from a panic that nobody planted.
                panic::resume_unwind(Box::new(format!("planted at {caller}")));
            }
            step()
        }
    }
}
