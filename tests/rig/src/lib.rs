//! Server processes, their ports and their protocol, and documents with generated parts. The tests,
//! the fuzzer, the load generator and the writers of documents share this crate.

mod clock;
mod cluster;
pub mod compiled;
mod marks;
mod ports;
mod process;
pub mod sources;
mod wire;

pub use clock::Clock;
pub use cluster::{form_cluster, node_lines};
pub use marks::Marks;
pub use ports::free_port;
pub use process::{name_of, Plan, Process};
pub use wire::{packed, reply_end};
