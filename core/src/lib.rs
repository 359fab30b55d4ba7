//! The rules of redis-lock, as a library without a server.
//!
//! Nothing in here knows Redis, reads a clock, draws a random number or does I/O. Time and
//! randomness come in as arguments; what has to happen comes out as values. The flow is
//!
//! 1. [`grammar`] turns the words of a command into an [`operation::Operation`];
//! 2. [`table::LockTable::execute`] settles the names concerned, decides, and settles again;
//! 3. its [`decision::Decision`] holds the answer for the caller, the [`effect::Effect`]s that the
//!    keyspace, the replicas and the append-only file get, and the waiters whose wait is over.
//!
//! What holds of a lock is in its [`values::lock::Lock`], a value that the server keeps. Queues and
//! sessions are kept by the lock table and end with the server, as the connections do that they are
//! made of.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod branch;
pub mod decision;
pub mod effect;
pub mod grammar;
pub mod operation;
pub mod state;
pub mod store;
pub mod table;
mod transaction;
pub mod values;
