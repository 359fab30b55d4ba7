//! What the lock table remembers between two operations: who waits, which grants are tied to a
//! connection, and what is to be looked at when.

pub mod buckets;
pub mod durations;
pub mod hand_over;
pub mod lacking;
pub mod line;
pub mod lost_holds;
pub mod place;
pub mod positions;
pub mod queue;
pub mod queue_table;
pub mod schedule;
pub mod sessions;
