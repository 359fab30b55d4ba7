//! Waits: the queue, its order, and every way in which a wait ends.
//!
//! - `queue`: LOCK.WAIT and its queue
//! - `wake_ups`: every event that can let a waiter through, as one table
//! - `keep`: KEEP: waiters whose connection is lost
//! - `leave`: LOCK.RELEASE ... LEAVE: tokens that have left
//! - `freed_clients`: clients that the server frees while they wait
//! - `refused_writes`: grants while the server refuses writes
//! - `places`: LOCK.QUEUE: places without a connection
//! - `places_program`: a program of threads that all use places
//! - `notify`: NOTIFY: the message when a place is granted
//! - `slow_commands`: waits beside commands that take long
//! - `deadlock`: waits that would never end
//! - `script_clients`: the clients by which the server runs scripts

mod deadlock;
mod freed_clients;
mod keep;
mod leave;
mod notify;
mod places;
mod places_program;
mod queue;
mod refused_writes;
mod script_clients;
mod slow_commands;
mod wake_ups;
