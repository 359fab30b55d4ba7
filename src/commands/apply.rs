//! `LOCK.APPLY`: applies an effect from the lock table of another server, or from this server's own
//! append-only file.
//!
//! The command is also the write probe of `engine/writable.rs`. The module calls it for a key to learn
//! if the server would let a client write there, and the command then does nothing.

use redis_lock_core::effect::{self, Parsed};
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::values::name::Name;
use redis_lock_core::values::refusal::Refusal;
use redis_module::{raw, Context};

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};
use crate::engine::effects::{self, Applied};
use crate::engine::{recorder, writable};
use crate::server::{api, propagation, reply};
use crate::state;

pub struct Apply;

impl Command for Apply {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::APPLY,
            keys: Some(Keys::One),
        },
        about: CommandDoc {
            flags: c"write fast",
            summary: c"Internal: how grants and releases reach replicas and the append-only file.",
            complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let Call { ctx, words, .. } = *call;
        if writable::is_probing() {
            reply::simple(ctx, "OK");
            return Ok(());
        }
        if !comes_from_a_server(ctx) {
            return Err(Refusal::ApplyInternal);
        }
        let (key, words) = words.split_first().ok_or(Refusal::Arity)?;
        let applied = match effect::parse(words)? {
            Parsed::Change(change) => effects::apply(ctx, key, change),
            Parsed::Renew {
                deadline_ms,
                others,
            } => {
                let keys = std::iter::once(key).chain(others);
                keys.map(|key| effects::renew(ctx, key, deadline_ms))
                    .fold(Applied::Unchanged, Applied::or)
            }
        };
        match applied {
            Applied::OtherType => return Err(Refusal::WrongType),
            // This is for the replica's own file. The server itself passes the primary's stream on
            // to its replicas.
            Applied::Changed | Applied::Made => {
                propagation::replicate_command(ctx);
                record_unseen(ctx, key);
            }
            Applied::Unchanged => {}
        }
        reply::simple(ctx, "OK");
        Ok(())
    }
}

/// Records a key that was changed without the lock table. A primary gets such effects while a slot
/// is migrated to it as a whole.
fn record_unseen(ctx: &Context, key: &[u8]) {
    if state::has_waiters() && !api::is_replica() {
        recorder::record_touched(Name::new(api::selected_db(ctx), key));
    }
}

/// Returns true if the command comes from another server's replication stream or from this server's
/// append-only file.
fn comes_from_a_server(ctx: &Context) -> bool {
    let servers = raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING;
    api::context_flags(ctx) & servers != 0
}
