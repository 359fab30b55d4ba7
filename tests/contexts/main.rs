//! Commands in MULTI, in scripts, in functions and on other connections than usual.
//!
//! - `contexts`: MULTI, Lua, functions, CLIENT REPLY and RESP3
//! - `every_context`: every command in every context
//! - `tracking`: CLIENT TRACKING
//! - `keyspace_events`: keyspace events and notifications of keys

mod contexts;
mod every_context;
mod keyspace_events;
mod tracking;
