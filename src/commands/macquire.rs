//! `LOCK.MACQUIRE`: grant several locks now, all of them or none.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, LEASE, MODE, REENTRANT, SESSION, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Macquire;

impl Command for Macquire {
    const SPEC: Spec = Spec {
        name: c"lock.macquire",
        flags: c"write deny-oom getkeys-api",
        summary: c"Grants several locks if all of them are free, or none.",
        complexity: c"O(K), K being the keys",
        arity: -4,
        keys: KeySpec::Many,
        args: &[
            Arg::numkeys(),
            Arg::keys(),
            TOKEN,
            LEASE,
            MODE,
            REENTRANT,
            SESSION,
        ],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::acquire(words, Keys::Many, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
