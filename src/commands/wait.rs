//! `LOCK.WAIT`: grant it now, or block the client until its turn comes.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, BLOCK, LEASE, MODE, REENTRANT, SESSION, TOKEN};
use super::{setting, Command};
use crate::{blocking, flow, reply};

pub struct Wait;

impl Command for Wait {
    const SPEC: Spec = Spec {
        name: c"lock.wait",
        flags: c"write deny-oom blocking",
        summary:
            c"Grants a lock, or blocks until it is handed over or BLOCK milliseconds have passed.",
        complexity: c"O(log W) to queue, W being the waiters of the server; else as LOCK.ACQUIRE",
        arity: -3,
        keys: KeySpec::One { reads_only: false },
        args: &[Arg::key(), TOKEN, LEASE, BLOCK, MODE, REENTRANT, SESSION],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::wait(words, Keys::One, &setting(ctx))?;
        let order = blocking::patient_where_it_may(ctx, order);
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
