//! `LOCK.QUEUE` and `LOCK.MQUEUE`: grant it now, or tell the token's place in the queue, which needs no
//! connection.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::operation::{Action, Operation};
use redis_lock_core::values::refusal::Refusal;
use redis_module::Context;

use super::command::{Call, Twins};
use super::spec::About;
use crate::server::rights::Caller;

pub struct Queue;

impl Twins for Queue {
    const VERB: &Verb = &syntax::QUEUE;

    const ONE: About = About {
        flags: c"write deny-oom fast",
        summary: c"Grants a lock, or takes or keeps a place in its queue that needs no connection.",
        complexity: c"O(log W), W being the waiters of the server; else as LOCK.ACQUIRE",
    };

    const MANY: About = About {
        flags: c"write deny-oom getkeys-api",
        summary: c"Grants several locks, or takes or keeps a place in all their queues.",
        complexity: c"O(K log W), K being the keys and W the waiters of the server",
    };

    fn run(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        let operation = grammar::queue(call.words, keys, &call.setting);
        if let Ok(operation) = &operation {
            check_channel(call.ctx, operation)?;
        }
        call.execute(&operation)
    }
}

/// A command's channel is no key of it, so the server doesn't look at the caller's right to it.
fn check_channel(ctx: &Context, operation: &Operation) -> Result<(), Refusal> {
    match &operation.action {
        Action::Queue {
            notice: Some(notice),
            ..
        } if !Caller::of(ctx).may_publish(notice.channel()) => Err(Refusal::NoChannelPermission),
        _ => Ok(()),
    }
}
