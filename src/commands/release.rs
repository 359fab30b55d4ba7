//! `LOCK.RELEASE`: give up a hold; the last one hands the lock to the next in line.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"lock.release",
        flags: c"write fast",
        summary: c"Gives up one hold of a lock, or all of them, and hands the lock over when it was the last.",
        complexity: c"O(log W), W being the waiters of the server; O(1) when nobody waits",
        arity: -3,
        keys: KeySpec::One { reads_only: false },
        args: &[Arg::key(), TOKEN, Arg::flag(c"all", c"ALL")],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::release(words, Keys::One, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
