//! Replication: what replicas and the append-only file get.
//!
//! Effects are replicated unless the module is certain that there is no reader:
//!
//! - The append-only file is a flag of the context. It is read again in each pass of the server's
//!   event loop and after each CONFIG SET.
//! - Replicas attach only by SYNC or PSYNC, which pass the module's command filter before they run.
//!   A server that was a replica keeps a backlog. If INFO reports no replica and no backlog, there
//!   is none until such a command or a change of role. After it there may always be one.
//! - A node of a cluster has other readers, like migrating slots, so it always replicates.

// perf: `RM_Replicate` looks up the command, makes its strings and frees them before it finds that
// there is no reader. That took 5,300 instructions of an ACQUIRE and its RELEASE on a Redis 7.0
// without replicas and append-only file.

use std::ffi::CStr;

use redis_module::{raw, Context, RedisString};

use crate::server::api;
use crate::server::calls::{self, function, Lent, Passed, Str};
use crate::state::{self, Replicas, State};

/// Forgets if there is an append-only file, so the flag is read again.
pub fn expect_append_only_file(state: &State) {
    state.has_append_only_file.set(None);
}

/// Records that there may be a replica from now on, so everything is replicated.
pub fn expect_replicas() {
    state::with(|state| state.replicas.set(Replicas::Possible));
}

/// Returns true if the replication stream has no reader. Only valid in the context of a command.
#[inline]
pub fn is_unread(ctx: &Context, state: &State) -> bool {
    match (state.replicas.get(), state.has_append_only_file.get()) {
        (Replicas::Possible, _) => false,
        (Replicas::None, Some(has_append_only_file)) => !has_append_only_file,
        (Replicas::Unknown, _) | (_, None) => has_no_replicas_by_lookup(ctx, state),
    }
}

/// Returns the same after asking the server for what isn't known.
#[cold]
fn has_no_replicas_by_lookup(ctx: &Context, state: &State) -> bool {
    let replicas = match state.replicas.get() {
        Replicas::Unknown => look(ctx, state),
        known => known,
    };
    let has_append_only_file = api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    state.has_append_only_file.set(Some(has_append_only_file));
    replicas == Replicas::None && !has_append_only_file
}

fn look(ctx: &Context, state: &State) -> Replicas {
    let none = |field| api::server_info(ctx, c"replication", field).as_deref() == Some("0");
    let nobody = none(c"connected_slaves") && none(c"repl_backlog_active");
    let replicas = if nobody && !api::is_replica() && !api::is_clustered() {
        Replicas::None
    } else {
        Replicas::Possible
    };
    state.replicas.set(replicas);
    replicas
}

/// Counts a change of the data set, like the server does for each change that it propagates: it
/// saves after a number of changes. Only allowed if [`is_unread`], because this replicates the
/// client's command instead of the effect.
#[inline(always)]
pub fn count_change(ctx: &Context) {
    replicate_command(ctx);
}

/// Replicates the client's command.
#[inline(always)]
pub fn replicate_command(ctx: &Context) {
    calls::replicate_verbatim(ctx);
}

/// Replicates `command` with these words.
pub fn replicate(ctx: &Context, command: &CStr, words: &[Str<'_>]) {
    send(ctx, command, c"v", words);
}

/// Replicates `command` with these words to replicas, and leaves it out of the append-only file.
pub fn replicate_to_replicas(ctx: &Context, command: &CStr, words: &[Str<'_>]) {
    send(ctx, command, c"vA", words);
}

fn send(ctx: &Context, command: &CStr, format: &CStr, words: &[Str<'_>]) {
    let (command, format) = (command.as_ptr(), format.as_ptr());
    let (ctx, words, count) = (ctx.ctx, words.as_ptr(), words.len());
    // SAFETY: the context is valid by its type. Each format takes a vector of `count` strings, and
    // `Str` has the layout of the pointer that it wraps.
    unsafe { function!(RedisModule_Replicate)(ctx, command, format, words, count) };
}

/// Writes `command` with these words to an append-only file that is being rewritten.
pub fn emit_aof(io: Lent<'_, raw::RedisModuleIO>, command: &CStr, words: &[RedisString]) {
    let words: Vec<Str<'_>> = words.iter().map(Str::from).collect();
    let (command, format) = (command.as_ptr(), c"v".as_ptr());
    let (io, words, count) = (io.raw(), words.as_ptr(), words.len());
    // SAFETY: as in `replicate`, with a file for a context.
    unsafe { function!(RedisModule_EmitAOF)(io, command, format, words, count) };
}
