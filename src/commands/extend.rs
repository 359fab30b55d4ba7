//! `LOCK.EXTEND`: set the lease of a lock that the token holds to now + PX.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, LEASE, SESSION, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Extend;

impl Command for Extend {
    const SPEC: Spec = Spec {
        name: c"lock.extend",
        flags: c"write fast",
        summary: c"Sets the lease of a held lock anew, counted from now.",
        complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
        arity: -3,
        keys: KeySpec::One { reads_only: false },
        args: &[Arg::key(), TOKEN, LEASE, SESSION],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::extend(words, Keys::One, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
