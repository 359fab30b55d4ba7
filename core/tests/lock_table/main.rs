//! Tests of the lock table through its public interface: each rule as a scene, and a random walk
//! through all commands.

mod client_model;
mod cost;
mod deadlock;
mod judge;
mod naive_contention;
mod recorded;
mod rules;
mod search;
mod simulation;
mod small_world;
mod stream;
mod walk;
mod world;
