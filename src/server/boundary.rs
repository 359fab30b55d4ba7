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
pub fn guard<T>(entered: Entered, step: impl FnOnce(&State) -> T) -> Option<T> {
    guard_without_state(|| step(state::of(&entered)))
}

/// Runs a step that any thread may run, without the server's lock. Returns `None` if it panicked.
#[inline(always)]
pub fn guard_without_state<T>(step: impl FnOnce() -> T) -> Option<T> {
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
