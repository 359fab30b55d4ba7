//! The rules of redis-lock, as a library without a server.
//!
//! The core calls no server API, reads no clock, draws no random number and does no I/O. Time and
//! randomness come in as arguments. Everything that has to happen comes out as values.
//!
//! 1. [`grammar`] parses the words of a command into an [`operation::Operation`].
//! 2. [`table::LockTable::decide`] settles the operation's names, decides, and settles the names
//!    that the decision changed.
//! 3. The changes to the keyspace come out as [`effect::Effect`]s. The server applies them and
//!    sends them to the replicas and the append-only file.
//! 4. The [`decision::Decision`] holds the caller's answer, the outcome of each wait that is over,
//!    and the messages to publish.
//!
//! The holders of a lock are in its [`values::lock::Lock`], a value that the server stores. Queues
//! and sessions are in the lock table. They end with the server process, because the connections
//! that they belong to end with it.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod budget;
pub mod decision;
pub mod effect;
pub mod grammar;
pub mod hints;
pub mod operation;
pub mod raised;
pub mod state;
pub mod store;
pub mod table;
mod transaction;
pub mod values;
