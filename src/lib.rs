//! redis-lock: distributed locks as a native data type of Redis and Valkey.
//!
//! How a command flows, file by file:
//!
//! 1. [`commands`] has one file a verb; the words are read by `redis_lock_core::grammar`;
//! 2. [`engine::execute`] hands the operation to the lock table (`redis_lock_core::table`), which
//!    settles and decides;
//! 3. [`engine::apply`] applies and replicates the effects that come back;
//! 4. [`server::reply`] answers the caller, [`engine::blocking`] those who waited.
//!
//! What happens without a command comes in through [`callbacks`], which leave pending events, and is
//! carried out by [`engine::settle`] when the module's timer fires. Floor by floor, each using only
//! those below: [`commands`] and [`callbacks`], [`engine`], [`server`], [`state`], the core. This crate
//! decides nothing about locks.
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

mod callbacks;
mod commands;
mod engine;
mod server;
mod state;

use std::ffi::c_int;

use redis_module::{raw, Context, RedisString};

use callbacks::{datatype, events, info};
use engine::{blocking, settle};
use server::memory::Counted;
use server::{api, boundary, config, filter, keepalive, key_events, timer};

/// The version as the server keeps it: 10000 * major + 100 * minor + patch.
const VERSION: c_int = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// The number that these digits spell.
const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// A step of loading: it says why the module can't be loaded, if it can't.
type LoadStep = fn(&Context) -> Result<(), String>;

/// What is asked comes before what is registered, and what the server can't take back comes last: a
/// module that fails to load is freed, and what it still has registered then would lead nowhere.
const STEPS: [LoadStep; 16] = [
    boundary::print_no_backtraces,
    api::prepare,
    set_timer,
    blocking::draw_decoy,
    datatype::register,
    config::register,
    commands::register,
    config::warn_of_eviction,
    config::warn_of_timeout,
    read_max_clients,
    keepalive::warn_if_unable,
    look_for_other_modules,
    filter::look_for_commands,
    events::subscribe,
    info::register,
    filter::register,
];

/// Where the server enters the module.
///
/// The crate `redis-module` has a macro for this. It registers settings before the module could ask
/// for the functions it needs, and panics where one is missing: that would take the server down.
///
/// # Safety
/// Called by the server alone, with a context and strings that live for the time of the call.
#[no_mangle]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context is the server's, the name ends with its NUL.
    let taken = unsafe {
        raw::Export_RedisModule_Init(
            ctx,
            c"lock".as_ptr(),
            VERSION,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if !api::has_memory() {
        return raw::REDISMODULE_ERR as c_int;
    }
    let ctx = Context::new(ctx);
    // SAFETY: the server passes `argc` strings, alive for the time of the call.
    let arguments = unsafe { api::strings(argv, argc) };
    let loaded = boundary::guard(|| load(&ctx, taken, arguments));
    let loaded = loaded.unwrap_or_else(|| Err("loading it panicked".to_owned()));
    let (status, level, text) = match loaded {
        Ok(()) => (
            raw::REDISMODULE_OK,
            c"notice",
            concat!("redis-lock ", env!("CARGO_PKG_VERSION"), " loaded").to_owned(),
        ),
        Err(why) => (
            raw::REDISMODULE_ERR,
            c"warning",
            format!("not loaded: {why}"),
        ),
    };
    api::log(&ctx, level, &text);
    status as c_int
}

fn load(
    ctx: &Context,
    taken: c_int,
    arguments: &[*mut raw::RedisModuleString],
) -> Result<(), String> {
    if taken != raw::REDISMODULE_OK as c_int {
        return Err("a module named lock is loaded already".to_owned());
    }
    // A server that lacks what it takes to read an argument is refused for that.
    api::probe(ctx)?;
    let words: Vec<&[u8]> = arguments
        .iter()
        .map(|it| RedisString::string_as_slice(*it))
        .collect();
    config::take_arguments(&words)?;
    STEPS.iter().try_for_each(|step| step(ctx))
}

/// Those that are loaded already: of each that is loaded later the server tells.
fn look_for_other_modules(ctx: &Context) -> Result<(), String> {
    key_events::look_for_other_modules(ctx);
    Ok(())
}

/// The server tells of each CONFIG SET that changes it later.
fn read_max_clients(ctx: &Context) -> Result<(), String> {
    config::read_max_clients(ctx);
    Ok(())
}

fn set_timer(_: &Context) -> Result<(), String> {
    timer::on_fire(settle::fire);
    Ok(())
}
