//! `LOCK.APPLY`: an effect of another server's lock table, or of this one's in an earlier life.

use redis_lock_core::effect::{self, Parsed};
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::values::name::Name;
use redis_lock_core::values::refusal::Refusal;
use redis_module::{raw, Context};

use super::command::{Call, Command};
use super::spec::{About, Spec};
use crate::engine::apply::{self, Applied};
use crate::engine::{pending, writable};
use crate::server::api::{self, server};
use crate::state;

pub struct Apply;

impl Command for Apply {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::APPLY,
            keys: Some(Keys::One),
        },
        about: About {
            flags: c"write fast",
            summary: c"Internal: how grants and releases reach replicas and the append-only file.",
            complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let Call { ctx, words, .. } = *call;
        if writable::is_asking() {
            raw::reply_with_simple_string(ctx.ctx, c"OK".as_ptr());
            return Ok(());
        }
        if !comes_from_a_server(ctx) {
            return Err(Refusal::ApplyInternal);
        }
        let (key, words) = words.split_first().ok_or(Refusal::Arity)?;
        let applied = match effect::parse(words)? {
            Parsed::Change(change) => apply::apply(ctx, key, &change),
            Parsed::Renew {
                deadline_ms,
                others,
            } => {
                let keys = std::iter::once(key).chain(others);
                keys.map(|key| apply::renew(ctx, key, deadline_ms))
                    .fold(Applied::Unchanged, Applied::or)
            }
        };
        match applied {
            Applied::OtherType => return Err(Refusal::WrongType),
            // A replica passes its primary's stream on by itself; this is for its own file.
            Applied::Changed | Applied::Made => {
                server!(RedisModule_ReplicateVerbatim(ctx.ctx));
                record_unseen(ctx, key);
            }
            Applied::Unchanged => {}
        }
        raw::reply_with_simple_string(ctx.ctx, c"OK".as_ptr());
        Ok(())
    }
}

/// A primary gets effects while a slot comes in as a whole: the table has no part in them.
fn record_unseen(ctx: &Context, key: &[u8]) {
    if state::anybody_waits() && !api::is_replica() {
        pending::record_touched(Name::new(api::selected_db(ctx), key));
    }
}

/// Effects come from this server's primary or from its append-only file.
fn comes_from_a_server(ctx: &Context) -> bool {
    let servers = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
    api::context_flags(ctx) & servers != 0
}
