//! What replicas and the append-only file get.
//!
//! `RM_Replicate` finds the command, makes its strings and frees them again before it learns that
//! nobody listens: 5,300 instructions of an ACQUIRE and its RELEASE on a Redis 7.0 without replicas and
//! without an append-only file. So the module finds out by itself, where it can be certain:
//!
//! - whether there is an append-only file is a flag of the context, read anew in each pass of the server's
//!   loop and after each CONFIG SET;
//! - replicas attach by SYNC or PSYNC alone, which pass the module's command filter before they run,
//!   and a server that was a replica itself keeps a backlog. Once INFO has said that there is no replica
//!   and no backlog there is none until one of these happens. From then on there may always be one;
//! - a node of a cluster has other listeners (slots on their way), so there it is never assumed.

use std::ffi::CStr;

use redis_module::{raw, Context, RedisString};

use crate::server::api::{self, server};
use crate::state::{self, Audience, State};

/// An append-only file may be there now, or there may be none any more: the flag is to be read anew.
pub fn expect_append_only_file() {
    state::with(|state| state.has_append_only_file.set(None));
}

/// A replica may attach now, or the server was one: from now on everything is replicated.
pub fn expect_replicas() {
    state::with(|state| state.audience.set(Audience::Replicas));
}

/// Whether nobody reads what is replicated. For the context of a command alone: elsewhere the answer
/// is no.
#[inline]
pub fn is_unread(ctx: &Context, state: &State) -> bool {
    match (state.audience.get(), state.has_append_only_file.get()) {
        (Audience::Replicas, _) => false,
        (Audience::None, Some(has_append_only_file)) => !has_append_only_file,
        (Audience::Unknown, _) | (_, None) => is_found_unread(ctx, state),
    }
}

/// Asks the server for what isn't known.
#[cold]
fn is_found_unread(ctx: &Context, state: &State) -> bool {
    let audience = match state.audience.get() {
        Audience::Unknown => look(ctx, state),
        known => known,
    };
    let has_append_only_file = api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_AOF != 0;
    state.has_append_only_file.set(Some(has_append_only_file));
    audience == Audience::None && !has_append_only_file
}

fn look(ctx: &Context, state: &State) -> Audience {
    let none = |field| api::server_info(ctx, c"replication", field).as_deref() == Some("0");
    let nobody = none(c"connected_slaves") && none(c"repl_backlog_active");
    let audience = if nobody && !api::is_replica() && !api::is_clustered() {
        Audience::None
    } else {
        Audience::Replicas
    };
    state.audience.set(audience);
    audience
}

/// Counts a change of the data set, as the server does with each that it propagates: after so many of
/// them it saves. Only where [`is_unread`]: what the client sent is no effect, nobody may read it.
pub fn count_change(ctx: &Context) {
    server!(RedisModule_ReplicateVerbatim(ctx.ctx));
}

/// Replicates `command` with these words.
pub fn replicate(ctx: &Context, command: &CStr, words: &[*mut raw::RedisModuleString]) {
    server!(RedisModule_Replicate(
        ctx.ctx,
        command.as_ptr(),
        c"v".as_ptr(),
        words.as_ptr(),
        words.len(),
    ));
}

/// Writes `command` with these words to an append-only file that is being rewritten.
///
/// # Safety
/// `io` is what the server handed to the type's rewrite callback that is running.
pub unsafe fn emit_aof(io: *mut raw::RedisModuleIO, command: &CStr, words: &[RedisString]) {
    let pointers = api::pointers(words);
    server!(RedisModule_EmitAOF(
        io,
        command.as_ptr(),
        c"v".as_ptr(),
        pointers.as_ptr(),
        pointers.len(),
    ));
}
