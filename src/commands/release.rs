//! `LOCK.RELEASE` and `LOCK.MRELEASE`: release holds. Releasing the last hold hands the lock over
//! to the next waiter. LOCK.MRELEASE releases holds of each lock that the token holds. With LEAVE the
//! token's waits end too, and its late commands are turned away.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, SingleAndMulti};
use super::spec::{CommandDoc, SINCE_0_1_0};

pub struct Release;

impl SingleAndMulti for Release {
    const VERB: &Verb = &syntax::RELEASE;

    const ONE: CommandDoc = CommandDoc {
        flags: c"write fast",
        summary:
            c"Removes holds of a lock, one by default, and releases the lock with the last one.",
        complexity: c"O(log W), W being the waiters of the server; O(1) when nobody waits; with LEAVE that of LOCK.CANCEL too",
        history: SINCE_0_1_0,
    };

    const MANY: CommandDoc = CommandDoc {
        flags: c"write getkeys-api",
        summary: c"Removes holds of each lock that the token holds, one by default.",
        complexity: c"O(K log W), K being the keys and W the waiters of the server; with LEAVE that of LOCK.CANCEL too",
        history: SINCE_0_1_0,
    };

    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        call.submit(&grammar::release(call.words, keys, &call.parse_context))
    }
}
