//! Tests of the lock table through its public interface: each rule as a scene, and a random walk
//! through all commands.

mod cost;
mod deadlock;
mod naive_contention;
mod rules;
mod walk;
mod world;
