//! `LOCK.MEXTEND`: set the lease of several locks, all of them or none.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, LEASE, SESSION, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Mextend;

impl Command for Mextend {
    const SPEC: Spec = Spec {
        name: c"lock.mextend",
        flags: c"write getkeys-api",
        summary: c"Sets the lease of several held locks anew, if the token holds all of them.",
        complexity: c"O(K), K being the keys",
        arity: -4,
        keys: KeySpec::Many,
        args: &[Arg::numkeys(), Arg::keys(), TOKEN, LEASE, SESSION],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::extend(words, Keys::Many, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
