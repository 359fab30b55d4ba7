//! The engine: asks the lock table to decide, for a command, the timer or an event, and carries out
//! its decision.

pub mod absorb;
pub mod access;
pub mod acknowledgements;
pub mod blocking;
pub mod cron;
pub mod effects;
pub mod execute;
pub mod publications;
pub mod rearm;
pub mod recorder;
pub mod store;
pub mod writable;
