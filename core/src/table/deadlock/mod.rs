//! Deadlocks: waits that would never end, found as they begin.
//!
//! A lease ends by itself, so most waits end without a release. Two kinds do not:
//!
//! 1. `conversion`: two shared holders both wait to hold the lock alone;
//! 2. `sessions`: connections wait for locks that are tied to each other.

mod conversion;
mod sessions;

pub(super) use sessions::{JoinAt, Newcomer};
