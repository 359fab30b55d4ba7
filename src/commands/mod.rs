//! The commands, one file each, and how the server comes to know them.

mod acquire;
mod apply;
mod check;
mod extend;
mod help;
mod info;
mod macquire;
mod mextend;
mod mrelease;
mod mwait;
mod release;
mod spec;
mod wait;

use std::ffi::c_int;

use redis_lock_core::grammar::{self, Setting};
use redis_lock_core::refusal::Refusal;
use redis_module::{raw, Context, RedisString};

use crate::api::server;
use crate::{api, boundary, config, reply, tokens};
use spec::Spec;

/// A command: what the server is told of it, and what it does.
trait Command {
    /// For COMMAND DOCS, ACL and cluster clients.
    const SPEC: Spec;

    /// Carries the command out and replies, unless the client waits or the command is refused.
    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal>;
}

/// Registers all commands.
pub fn register(ctx: &Context) -> Result<(), String> {
    spec::register(ctx, &acquire::Acquire::SPEC, entry::<acquire::Acquire>)?;
    spec::register(ctx, &wait::Wait::SPEC, entry::<wait::Wait>)?;
    spec::register(ctx, &extend::Extend::SPEC, entry::<extend::Extend>)?;
    spec::register(ctx, &release::Release::SPEC, entry::<release::Release>)?;
    spec::register(ctx, &check::Check::SPEC, entry::<check::Check>)?;
    spec::register(ctx, &info::Info::SPEC, entry::<info::Info>)?;
    spec::register(ctx, &macquire::Macquire::SPEC, entry::<macquire::Macquire>)?;
    spec::register(ctx, &mextend::Mextend::SPEC, entry::<mextend::Mextend>)?;
    spec::register(ctx, &mrelease::Mrelease::SPEC, entry::<mrelease::Mrelease>)?;
    spec::register(ctx, &mwait::Mwait::SPEC, entry::<mwait::Mwait>)?;
    spec::register(ctx, &help::Help::SPEC, entry::<help::Help>)?;
    spec::register(ctx, &apply::Apply::SPEC, entry::<apply::Apply>)
}

/// Where the server enters a command.
extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let ctx = Context::new(ctx);
    let refused = boundary::guard(|| {
        // SAFETY: the server passes `argc` strings, alive for the time of the call.
        let words = unsafe { words(argv, argc) };
        if server!(RedisModule_IsKeysPositionRequest(ctx.ctx)) == Some(1) {
            tell_keys(&ctx, &words);
            return None;
        }
        C::run(&ctx, words.get(1..).unwrap_or_default()).err()
    });
    if let Some(why) = refused.unwrap_or(Some(Refusal::Panicked)) {
        reply::refusal(&ctx, why);
    }
    raw::REDISMODULE_OK as c_int
}

/// Tells where the keys of an M command are. In a cluster, Redis 7.0 and Valkey ask the command itself
/// and not its key spec. A number that is no number is left for the command to refuse.
fn tell_keys(ctx: &Context, words: &[&[u8]]) {
    let numkeys = words
        .get(1)
        .and_then(|word| grammar::decimal(word))
        .unwrap_or(0);
    let last = words.len().saturating_sub(1);
    for position in (2..=last).take(usize::try_from(numkeys).unwrap_or(0)) {
        server!(RedisModule_KeyAtPos(ctx.ctx, position as c_int));
    }
}

/// # Safety
/// `argv` points to `argc` strings of the server's, which live as long as the borrow.
unsafe fn words<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Vec<&'a [u8]> {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the caller's.
    let strings = unsafe { std::slice::from_raw_parts(argv, count) };
    strings
        .iter()
        .map(|string| RedisString::string_as_slice(*string))
        .collect()
}

/// What this client's words are read against.
fn setting(ctx: &Context) -> Setting<'static> {
    Setting {
        db: api::selected_db(ctx),
        default_lease_ms: config::default_lease_ms(),
        draw_token: &tokens::draw,
    }
}
