//! `LOCK.EXTEND` and `LOCK.MEXTEND`: set the lease of held locks to now + PX, or to its own length.
//! LOCK.MEXTEND sets all of them or none.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, SingleAndMulti};
use super::spec::{CommandDoc, SINCE_0_1_0};

pub struct Extend;

impl SingleAndMulti for Extend {
    const VERB: &Verb = &syntax::EXTEND;

    const ONE: CommandDoc = CommandDoc {
        flags: c"write fast",
        summary: c"Sets the lease of a held lock anew, counted from now.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        history: SINCE_0_1_0,
    };

    const MANY: CommandDoc = CommandDoc {
        flags: c"write getkeys-api",
        summary: c"Sets the lease of several held locks anew, if the token holds all of them.",
        complexity: c"O(K), K being the keys",
        history: SINCE_0_1_0,
    };

    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        call.submit(&grammar::extend(call.words, keys, &call.parse_context))
    }
}
