//! Server processes, their ports, and what is sent to them: what the tests, the fuzzer and the load
//! share.

mod ports;
mod process;
pub mod sources;
mod wire;

pub use ports::free_port;
pub use process::{name_of, Plan, Process};
pub use wire::{packed, reply_end};
