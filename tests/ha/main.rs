//! Many real servers at once: replicas, Sentinel, Cluster, independent masters.
//!
//! `cargo test` leaves this out; `make test-ha` runs it.

mod acknowledged;
mod atomic_migration;
mod cluster;
mod cluster_crowds;
mod contenders;
mod failover;
mod fences;
mod masters;
mod nodes;
mod places_program;
mod replica_waits;
mod replication;
mod sentinel;
mod slot_migration;
mod slots_that_turn_back;
mod waiters_sent_on;
mod ways_out;
