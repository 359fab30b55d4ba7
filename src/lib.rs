//! redis-lock: distributed locks as a native data type of Redis and Valkey.
//!
//! How a command flows, file by file:
//!
//! 1. [`commands`] has one file a command; the words are read by `redis_lock_core::grammar`;
//! 2. [`flow`] hands the order to the desk (`redis_lock_core::desk`), which settles and decides;
//! 3. [`keyspace`] applies and replicates the effects that come back;
//! 4. [`reply`] answers the caller, [`blocking`] those who waited.
//!
//! What happens without a command comes in through [`events`] into [`inbox`], and is carried out by
//! [`alarm`], the module's one timer. This crate decides nothing about locks.
//!
//! Everything here runs on the server's main thread, but for the free and save callbacks of
//! [`datatype`].
#![allow(
    missing_docs,
    reason = "the crate exports nothing but what redis_module! writes"
)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the docs are read with their private items"
)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod alarm;
mod api;
mod blocking;
mod boundary;
mod clients;
mod clock;
mod commands;
mod config;
mod datatype;
mod events;
mod flow;
mod inbox;
mod keyspace;
mod permission;
mod reply;
mod status;
mod tokens;

use redis_module::alloc::RedisAlloc;
use redis_module::configuration::ConfigurationFlags;
use redis_module::{redis_module, Context, RedisString, Status};

use crate::config::{DEFAULT_LEASE_MS, LONGEST_LEASE_MS, MAX_WAITERS, MOST_WAITERS};
use crate::datatype::LOCK_TYPE;

/// A step of loading: it says why the module can't be loaded, if it can't.
type LoadStep = fn(&Context) -> Result<(), String>;

fn init(ctx: &Context, _args: &[RedisString]) -> Status {
    let steps: [LoadStep; 6] = [
        api::probe,
        config::check,
        commands::register,
        events::subscribe,
        status::register,
        config::warn_of_eviction,
    ];
    for step in steps {
        if let Err(why) = step(ctx) {
            ctx.log_warning(&format!("lock: not loaded: {why}"));
            return Status::Err;
        }
    }
    Status::Ok
}

redis_module! {
    name: "lock",
    version: 1,
    allocator: (RedisAlloc, RedisAlloc),
    data_types: [LOCK_TYPE],
    init: init,
    configurations: [
        i64: [
            ["default-lease", &*DEFAULT_LEASE_MS, 30_000, 1, LONGEST_LEASE_MS, ConfigurationFlags::DEFAULT, None],
            ["max-waiters", &*MAX_WAITERS, 10_000, 0, MOST_WAITERS, ConfigurationFlags::DEFAULT, None],
        ],
        string: [],
        bool: [],
        enum: [],
        module_args_as_configuration: false,
    ]
}
