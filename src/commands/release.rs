//! `LOCK.RELEASE` and `LOCK.MRELEASE`: give up holds; the last one hands the lock to the next in the
//! queue. Of several locks, holds of each that the token holds.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, Twins};
use super::spec::About;

pub struct Release;

impl Twins for Release {
    const VERB: &Verb = &syntax::RELEASE;

    const ONE: About = About {
        flags: c"write fast",
        summary: c"Gives up holds of a lock, one unless told, and hands the lock over when it was the last.",
        complexity: c"O(log W), W being the waiters of the server; O(1) when nobody waits",
    };

    const MANY: About = About {
        flags: c"write getkeys-api",
        summary: c"Gives up holds of each lock that the token holds, one unless told.",
        complexity: c"O(K log W), K being the keys and W the waiters of the server",
    };

    fn run(call: &Call<'_>, keys: Keys) -> Result<(), Refusal> {
        call.execute(&grammar::release(call.words, keys, &call.setting))
    }
}
