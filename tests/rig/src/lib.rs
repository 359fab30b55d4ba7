//! Server processes, their ports and their protocol. The tests, the fuzzer and the load generator
//! share this crate.

mod ports;
mod process;
pub mod sources;
mod wire;

pub use ports::free_port;
pub use process::{name_of, Plan, Process};
pub use wire::{packed, reply_end};
