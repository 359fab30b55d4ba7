//! Deadlocks: waits that would never end, found as they begin.
//!
//! A lease ends by itself, so most waits end without a release. Two kinds do not:
//!
//! 1. `conversion`: two shared holders both wait to hold the lock alone;
//! 2. `connections`: connections wait for locks that are tied to each other. `search` finds those
//!    that could be among them, `graph` those that are stuck.

mod connections;
mod conversion;
mod graph;
mod search;
mod way_out;

pub(super) use search::{JoinAt, Newcomer};
