//! `LOCK.QUEUE` and `LOCK.MQUEUE`: grant locks now, or reply the rank of the token's place in the
//! queue. A place needs no connection.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, SingleAndMulti};
use super::spec::{CommandDoc, SINCE_0_1_0};
use crate::engine::access;

pub struct Queue;

impl SingleAndMulti for Queue {
    const VERB: &Verb = &syntax::QUEUE;

    const ONE: CommandDoc = CommandDoc {
        flags: c"write deny-oom fast",
        summary: c"Grants a lock, or takes or keeps a place in its queue that needs no connection.",
        complexity: c"O(log W), W being the waiters of the server; else as LOCK.ACQUIRE",
        history: SINCE_0_1_0,
    };

    const MANY: CommandDoc = CommandDoc {
        flags: c"write deny-oom getkeys-api",
        summary: c"Grants several locks, or takes or keeps a place in all their queues.",
        complexity: c"O(K log W), K being the keys and W the waiters of the server",
        history: SINCE_0_1_0,
    };

    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        let operation = grammar::queue(call.words, keys, &call.parse_context);
        if let Ok(operation) = &operation {
            access::check_channel(call.ctx, operation)?;
        }
        call.submit(&operation)
    }
}
