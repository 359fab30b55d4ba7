//! Whether the server would let a client write to a key just now.
//!
//! A grant from the timer is a write that no client asked for, so the server asks nobody: not
//! whether there are replicas enough (NOREPLICAS), whether its disk fails (MISCONF), whether the
//! key's slot is served here or its key was migrated away already. So the module asks: it calls a
//! command of its own that is flagged as a write, for that key, and does nothing when it is let
//! through. Where it isn't, a grant could make a second holder.

use std::sync::atomic::{AtomicBool, Ordering};

use redis_lock_core::name::Name;
use redis_lock_core::order::Names;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context};

use crate::api;

/// Whether LOCK.APPLY is called to ask, not to apply.
static ASKING: AtomicBool = AtomicBool::new(false);

/// Whether LOCK.APPLY is called to ask, not to apply.
pub fn is_asking() -> bool {
    ASKING.load(Ordering::Relaxed)
}

/// Of these names, those where the server would let a client write, and the others.
pub fn part(ctx: &Context, names: Vec<Name>) -> (Vec<Name>, Vec<Name>) {
    if is_clustered(ctx) {
        return names.into_iter().partition(|name| may_write(ctx, name));
    }
    // Without slots the answer is the same for all keys.
    match names.first() {
        Some(name) if !may_write(ctx, name) => (Vec::new(), names),
        _ => (names, Vec::new()),
    }
}

/// Whether a name without a key has none anywhere: its slot is served here and not on its way.
pub fn is_served(ctx: &Context, name: &Name) -> bool {
    !is_clustered(ctx) || may_write(ctx, name)
}

fn is_clustered(ctx: &Context) -> bool {
    api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
}

/// Whether the server would let a client write to all of these names.
pub fn may_write_all(ctx: &Context, names: &Names) -> bool {
    names.iter().all(|name| may_write(ctx, name))
}

fn may_write(ctx: &Context, name: &Name) -> bool {
    api::select_db(ctx, name.db);
    let options = CallOptionsBuilder::new()
        .script_mode()
        .errors_as_replies()
        .build();
    let words: [&[u8]; 2] = [&name.key, b"ASK"];
    ASKING.store(true, Ordering::Relaxed);
    let reply: CallResult<'static> = ctx.call_ext("LOCK.APPLY", &options, words.as_slice());
    ASKING.store(false, Ordering::Relaxed);
    reply.is_ok()
}
