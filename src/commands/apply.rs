//! `LOCK.APPLY`: an effect of another server's desk, or of this one's in an earlier life.

use redis_lock_core::effect::{self, Parsed};
use redis_lock_core::name::Name;
use redis_lock_core::refusal::Refusal;
use redis_module::{raw, Context};

use super::spec::{Arg, KeySpec, Kind, Spec};
use super::Command;
use crate::api::{self, server};
use crate::keyspace::{self, Applied};
use crate::{flow, inbox, permission};

pub struct Apply;

impl Command for Apply {
    const SPEC: Spec = Spec {
        name: c"lock.apply",
        flags: c"write fast",
        summary: c"Internal: how grants and releases reach replicas and the append-only file.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        arity: -3,
        keys: KeySpec::One { reads_only: false },
        args: &[Arg::key(), Arg::many(c"effect", Kind::Text)],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        if permission::is_asking() {
            raw::reply_with_simple_string(ctx.ctx, c"OK".as_ptr());
            return Ok(());
        }
        if !comes_from_a_server(ctx) {
            return Err(Refusal::ApplyInternal);
        }
        let (key, words) = words.split_first().ok_or(Refusal::Arity)?;
        let applied = match effect::parse(words)? {
            Parsed::Change(change) => keyspace::apply(ctx, &api::string(key), &change),
            Parsed::Renew {
                deadline_ms,
                others,
            } => {
                let keys = std::iter::once(key).chain(others);
                keys.map(|key| keyspace::renew(ctx, &api::string(key), deadline_ms))
                    .fold(Applied::Unchanged, Applied::or)
            }
        };
        match applied {
            Applied::Foreign => return Err(Refusal::WrongType),
            // A replica passes its primary's stream on by itself; this is for its own file.
            Applied::Changed | Applied::Made => {
                server!(RedisModule_ReplicateVerbatim(ctx.ctx));
                note_behind_the_desk(ctx, key);
            }
            Applied::Unchanged => {}
        }
        raw::reply_with_simple_string(ctx.ctx, c"OK".as_ptr());
        Ok(())
    }
}

/// A primary gets effects while a slot comes in as a whole: the desk has no part in them.
fn note_behind_the_desk(ctx: &Context, key: &[u8]) {
    if flow::anybody_waits() && !api::is_replica() {
        inbox::note_touched(Name::new(api::selected_db(ctx), key));
    }
}

/// Effects come from this server's primary or from its append-only file.
fn comes_from_a_server(ctx: &Context) -> bool {
    let servers = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
    api::context_flags(ctx) & servers != 0
}
