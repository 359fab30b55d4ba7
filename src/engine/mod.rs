//! What a command, the timer or an event comes to. The lock table decides; here it is asked, and what it
//! says is carried out.

pub mod apply;
pub mod blocking;
pub mod execute;
pub mod pending;
pub mod publications;
pub mod rearm;
pub mod settle;
pub mod store;
pub mod writable;
