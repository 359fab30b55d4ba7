//! `LOCK.ACQUIRE` and `LOCK.MACQUIRE`: grant locks now or not at all.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, SingleAndMulti};
use super::spec::{CommandDoc, SINCE_0_1_0};

pub struct Acquire;

impl SingleAndMulti for Acquire {
    const VERB: &Verb = &syntax::ACQUIRE;

    const ONE: CommandDoc = CommandDoc {
        flags: c"write deny-oom fast",
        summary: c"Grants a lock if it is free, or renews the caller's own.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        history: SINCE_0_1_0,
    };

    const MANY: CommandDoc = CommandDoc {
        flags: c"write deny-oom getkeys-api",
        summary: c"Grants several locks if all of them are free, or none.",
        complexity: c"O(K), K being the keys",
        history: SINCE_0_1_0,
    };

    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        call.submit(&grammar::acquire(call.words, keys, &call.parse_context))
    }
}
