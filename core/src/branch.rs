//! Which way a branch goes where nobody waits and nothing goes wrong.
//!
//! A server that serves a lock and its release executes more code than fits into the first level of a
//! processor's instruction cache, so that each line of it that is touched is fetched anew for each command
//! (DESIGN.md tells what that costs). What is said to be unlikely here lies
//! behind the function's likely code, and not between it. Nothing but the place of the code depends on it.

/// To be called where code gets seldom: the compiler takes a branch that leads there for one that is seldom taken.
#[cold]
#[inline]
pub const fn seldom() {}

/// The condition, which mostly holds.
#[inline(always)]
pub const fn likely(condition: bool) -> bool {
    if !condition {
        seldom();
    }
    condition
}

/// The condition, which seldom holds.
#[inline(always)]
pub const fn unlikely(condition: bool) -> bool {
    if condition {
        seldom();
    }
    condition
}
