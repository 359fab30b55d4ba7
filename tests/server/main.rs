//! The module as a part of its server: settings, INFO, removal.
//!
//! - `config`: settings
//! - `info_times`: times and percentiles in INFO
//! - `operations`: what an operator does by docs/operate/
//! - `removal`: MODULE UNLOAD and the way back
//! - `spans`: the bounds of leases and timeouts

mod config;
mod entered;
mod info_times;
mod memory;
mod operations;
mod removal;
mod spans;
