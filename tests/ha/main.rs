//! Many real servers at once: replicas, Sentinel, Cluster, independent masters.
//!
//! `cargo test` leaves this out; `make test-ha` runs it.

#[path = "../support/mod.rs"]
mod support;

mod atomic_migration;
mod cluster;
mod nodes;
mod slot_migration;
