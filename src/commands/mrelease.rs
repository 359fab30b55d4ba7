//! `LOCK.MRELEASE`: give up a hold of each of several locks that the token holds.

use redis_lock_core::grammar::{self, Keys};
use redis_lock_core::refusal::Refusal;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Spec, TOKEN};
use super::{setting, Command};
use crate::{flow, reply};

pub struct Mrelease;

impl Command for Mrelease {
    const SPEC: Spec = Spec {
        name: c"lock.mrelease",
        flags: c"write getkeys-api",
        summary: c"Gives up one hold of each lock that the token holds, or all of them.",
        complexity: c"O(K log W), K being the keys and W the waiters of the server",
        arity: -4,
        keys: KeySpec::Many,
        args: &[
            Arg::numkeys(),
            Arg::keys(),
            TOKEN,
            Arg::flag(c"all", c"ALL"),
        ],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let order = grammar::release(words, Keys::Many, &setting(ctx))?;
        reply::answer(ctx, &flow::carry_out(ctx, order)?);
        Ok(())
    }
}
