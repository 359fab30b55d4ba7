//! `LOCK.ACQUIRE`: grant it now or not at all.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, LEASE, MODE, REENTRANT, SESSION, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Acquire;

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"lock.acquire",
        flags: c"write deny-oom fast",
        summary: c"Grants a lock if it is free, or renews the caller's own.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        arity: -3,
        keys: KeySpec::One { reads_only: false },
        args: &[Arg::key(), TOKEN, LEASE, MODE, REENTRANT, SESSION],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::acquire(words, Keys::One, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
