//! State that the lock table keeps between operations: the queues, the sessions, and the schedule
//! of names to settle.

pub mod backlog;
pub mod buckets;
pub mod contention;
pub mod durations;
pub mod hand_over;
pub mod lacking;
pub mod leave_marks;
pub mod lost_holds;
pub mod queue;
pub mod ranked_list;
pub mod replica_waits;
pub mod schedule;
pub mod sessions;
pub mod slab;
pub mod waiter;
