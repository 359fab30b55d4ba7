//! The module as a part of its server: settings, INFO, removal.
//!
//! - `churn`: what is left of thousands of clients
//! - `config`: settings
//! - `info_times`: times and percentiles in INFO
//! - `name_set`: the module's set of names, with the tests in its own file
//! - `operations`: what an operator does by docs/operate/
//! - `removal`: MODULE UNLOAD and the way back
//! - `spans`: the bounds of leases and timeouts

mod churn;
mod config;
mod entered;
mod info_times;
mod memory;
#[path = "../../src/state/name_set.rs"]
mod name_set;
mod operations;
mod removal;
mod spans;
