//! The line between the server and the module: no panic crosses it.
//!
//! A panic that unwinds out of an `extern "C"` function aborts the process, and with it somebody's
//! database. The code is written so that it can't panic; should it do so all the same, the step it
//! happened in is lost and said so in the server's log.

use std::any::Any;
use std::panic::{self, catch_unwind, AssertUnwindSafe};

use redis_module::Context;

use crate::server::api;

/// Has a panic print its text and its place, and no backtrace: a Valkey 9.1 dies of one that is printed in it, where
/// the environment asks for it (`RUST_BACKTRACE`).
pub fn print_no_backtraces(_: &Context) -> Result<(), String> {
    panic::set_hook(Box::new(|panic| eprintln!("redis-lock {panic}")));
    Ok(())
}

/// Runs a step of the module; `None` when it panicked.
///
/// Unwind safety: what a step shares with others is borrowed through a `RefCell`, whose borrow ends
/// as the step unwinds. Should the lock table panic while it decides, nothing of that operation
/// was applied.
pub fn guard<T>(step: impl FnOnce() -> T) -> Option<T> {
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
    api::log(&api::own_context(), c"warning", &text);
}
