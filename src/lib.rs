//! redis-lock: distributed locks as a native data type of Redis and Valkey.
//!
//! The path of a command, file by file:
//!
//! 1. [`commands`] has one file per verb. `redis_lock_core::grammar` parses the words.
//! 2. [`engine::execute`] passes the operation to the lock table (`redis_lock_core::table`), which
//!    settles and decides.
//! 3. [`engine::effects`] applies and replicates the effects that the table returns.
//! 4. [`server::reply`] replies to the caller, [`engine::blocking`] to the waiters.
//!
//! The server also calls [`callbacks`] without a command. They leave pending events, which
//! [`engine::cron`] carries out when the module's timer fires.
//!
//! The layers, each using only those below it: [`commands`] and [`callbacks`], [`engine`],
//! [`server`], [`state`], the core. This crate decides nothing about locks.
//!
//! All code here runs in calls of the server, which holds its lock meanwhile, see
//! [`state::entered`]. The exception is the free callback of [`datatype`].
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

use redis_module::{raw, Context};

use callbacks::{datatype, events, info_section};
use engine::{blocking, cron};
use server::calls::Str;
use server::memory::Counted;
use server::{api, boundary, config, filter, keepalive, key_events, random, timer};
use state::entered::{self, Entered};

/// The version in the server's form: 10000 * major + 100 * minor + patch.
const VERSION: c_int = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Returns the number that these digits spell.
const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted(&state::BYTES);

/// A step of loading. Returns the reason if the module can't be loaded.
type LoadStep = fn(&Context) -> Result<(), String>;

/// The steps of loading, in order. Questions to the server come before registrations, and
/// registrations that the server can't take back come last. A module that fails to load is freed,
/// and what it had registered would point to freed code.
const STEPS: [LoadStep; 17] = [
    boundary::print_no_backtraces,
    api::prepare,
    set_timer,
    blocking::draw_decoy,
    draw_mark_key,
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
    info_section::register,
    filter::register,
];

/// Loads the module: the server's entry point.
///
/// The macro of the crate `redis-module` is not used. It registers settings before the module can
/// check the server's functions, and it panics if a function is missing. That would abort the
/// server.
///
/// # Safety
/// Only the server may call this, with its lock held, and with a context and `argc` strings that are
/// valid until the call returns.
#[no_mangle]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the caller guarantees that `ctx` is the server's context for this call. The name is a
    // C string.
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
    // SAFETY: the caller guarantees that: the server holds its lock while it loads a module, and
    // passes a context and `argc` strings that are valid until this returns.
    let (entered, ctx, arguments) =
        unsafe { (Entered::new(), api::context(ctx), api::strings(argv, argc)) };
    entered::record_main_thread();
    let loaded = boundary::guard(entered, |_| load(&ctx, taken, arguments));
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

fn load(ctx: &Context, taken: c_int, arguments: &[Str<'_>]) -> Result<(), String> {
    if taken != raw::REDISMODULE_OK as c_int {
        return Err("a module named lock is loaded already".to_owned());
    }
    // Before the arguments: reading them needs functions that the server may lack.
    api::probe(ctx)?;
    let words: Vec<&[u8]> = arguments.iter().map(|it| it.bytes()).collect();
    config::take_arguments(&words)?;
    STEPS.iter().try_for_each(|step| step(ctx))
}

/// Looks for modules that are loaded already. The server sends an event for each that is loaded
/// later.
fn look_for_other_modules(ctx: &Context) -> Result<(), String> {
    key_events::look_for_other_modules(ctx);
    Ok(())
}

/// Draws the secret key of the marks of tokens that have left.
fn draw_mark_key(_: &Context) -> Result<(), String> {
    let mut key = [0; 16];
    random::fill(&mut key).map_err(|why| why.text().to_owned())?;
    state::change(|table| table.leave_marks().set_hash_key(key));
    Ok(())
}

/// Reads `maxclients`. The server sends an event for each CONFIG SET that changes it later.
fn read_max_clients(ctx: &Context) -> Result<(), String> {
    config::read_max_clients(ctx);
    Ok(())
}

fn set_timer(_: &Context) -> Result<(), String> {
    timer::on_fire(cron::fire);
    Ok(())
}
