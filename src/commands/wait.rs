//! `LOCK.WAIT` and `LOCK.MWAIT`: grant locks now, or block the client until its turn comes. With
//! several keys, its turn comes when it is first in all their queues.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, SingleAndMulti};
use super::spec::{CommandDoc, SINCE_0_1_0};
use crate::engine::blocking;

pub struct Wait;

impl SingleAndMulti for Wait {
    const VERB: &Verb = &syntax::WAIT;

    const ONE: CommandDoc = CommandDoc {
        flags: c"write deny-oom blocking",
        summary:
            c"Grants a lock, or blocks until it is handed over or BLOCK milliseconds have passed.",
        complexity: c"O(log W) to queue, W being the waiters of the server; else as LOCK.ACQUIRE",
        history: SINCE_0_1_0,
    };

    const MANY: CommandDoc = CommandDoc {
        flags: c"write deny-oom blocking getkeys-api",
        summary: c"Grants several locks, or blocks until all are handed over or BLOCK milliseconds have passed.",
        complexity: c"O(K log W) to queue, K being the keys and W the waiters of the server",
        history: SINCE_0_1_0,
    };

    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        let mut operation = grammar::wait(call.words, keys, &call.parse_context);
        if let Ok(operation) = &mut operation {
            blocking::make_nonblocking_where_required(call.ctx, call.state, operation);
        }
        call.submit(&operation)
    }
}
