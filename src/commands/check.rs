//! `LOCK.CHECK`: how much of the lease is left to this token.

use redis_lock_core::desk::{self, Slot};
use redis_lock_core::grammar;
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, TOKEN};
use super::{setting, Command};
use crate::{clock, flow, keyspace, reply};

pub struct Check;

impl Command for Check {
    const SPEC: Spec = Spec {
        name: c"lock.check",
        flags: c"readonly fast",
        summary:
            c"Tells how many milliseconds of its lease a token has left, 0 when it doesn't hold.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        arity: 3,
        keys: KeySpec::One { reads_only: true },
        args: &[Arg::key(), TOKEN],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let (name, token) = grammar::check(words, &setting(ctx))?;
        let now_ms = clock::now().ms();
        let deadline_ms = match keyspace::read_settled(ctx, &name) {
            Slot::Foreign => return Err(Refusal::WrongType),
            Slot::Empty => None,
            Slot::Lock(stored) => {
                let lock = desk::seen(stored, now_ms);
                flow::look_after(&name, &lock);
                lock.holder(&token).map(|own| own.deadline_ms)
            }
        };
        reply::integer(
            ctx,
            deadline_ms.map_or(0, |deadline_ms| deadline_ms - now_ms),
        );
        Ok(())
    }
}
