//! The module as a part of its server: settings, INFO, removal.
//!
//! - `churn`: what is left of thousands of clients
//! - `config`: settings
//! - `info_times`: times and percentiles in INFO
//! - `operations`: what an operator does by docs/operate/
//! - `removal`: MODULE UNLOAD and the way back
//! - `spans`: the bounds of leases and timeouts

mod churn;
mod config;
mod entered;
mod info_times;
mod memory;
mod operations;
mod removal;
mod spans;
