//! `LOCK.MWAIT`: grant several locks now, or block the client until it is first in all their queues.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, BLOCK, LEASE, MODE, REENTRANT, SESSION, TOKEN};
use super::{setting, Command};
use crate::{blocking, flow, reply};

pub struct Mwait;

impl Command for Mwait {
    const SPEC: Spec = Spec {
        name: c"lock.mwait",
        flags: c"write deny-oom blocking getkeys-api",
        summary: c"Grants several locks, or blocks until all are handed over or BLOCK milliseconds have passed.",
        complexity: c"O(K log W) to queue, K being the keys and W the waiters of the server",
        arity: -4,
        keys: KeySpec::Many,
        args: &[Arg::numkeys(), Arg::keys(), TOKEN, LEASE, BLOCK, MODE, REENTRANT, SESSION],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::wait(words, Keys::Many, &setting(ctx))?;
        let order = blocking::patient_where_it_may(ctx, order);
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
