//! `LOCK.HELP`: the commands, at the prompt.

use redis_lock_core::refusal::Refusal;
use redis_module::{raw, Context};

use super::spec::{KeySpec, Spec};
use super::Command;
use crate::reply;

pub struct Help;

/// The first line tells the version, which `concat!` can't make a C string of.
const HEAD: &str = concat!("redis-lock ", env!("CARGO_PKG_VERSION"));

const LINES: [&std::ffi::CStr; 19] = [
    c"LOCK.ACQUIRE key token [PX ms | EX s] [SHARED [LIMIT n]] [REENTRANT] [SESSION]",
    c"    Grant the lock now, [token, fence], or answer nil. Token *: the server draws one.",
    c"LOCK.WAIT key token [PX ms | EX s] [BLOCK ms] [SHARED [LIMIT n]] [REENTRANT] [SESSION]",
    c"    As ACQUIRE, but wait in line for at most BLOCK ms; 0 or none: for ever.",
    c"LOCK.EXTEND key token [PX ms | EX s] [SESSION]",
    c"    Set the lease to now + PX: 1, or 0 when the token doesn't hold the lock.",
    c"LOCK.RELEASE key token [ALL]",
    c"    Give up one hold, or ALL: 1, or 0 when the token doesn't hold the lock.",
    c"LOCK.CHECK key token",
    c"    Milliseconds left of the token's lease, 0 when it doesn't hold the lock.",
    c"LOCK.INFO key [WAITERS count]",
    c"    Who holds the lock and who waits for it; nil when nobody does.",
    c"LOCK.MACQUIRE | LOCK.MWAIT | LOCK.MEXTEND | LOCK.MRELEASE numkeys key [key ...] token ...",
    c"    The same for several keys at once: all of them or none, one token, one fence.",
    c"LOCK.HELP",
    c"    This text.",
    c"DEL key",
    c"    Free the lock by force. Whoever waits is next.",
    c"SCAN 0 TYPE redislock lists the locks.",
];

impl Command for Help {
    const SPEC: Spec = Spec {
        name: c"lock.help",
        flags: c"fast allow-loading allow-stale",
        summary: c"Lists the lock commands.",
        complexity: c"O(1)",
        arity: 1,
        keys: KeySpec::None,
        args: &[],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        if !words.is_empty() {
            return Err(Refusal::Arity);
        }
        reply::array(ctx, LINES.len() + 1);
        reply::simple(ctx, HEAD);
        for line in LINES {
            raw::reply_with_simple_string(ctx.ctx, line.as_ptr());
        }
        Ok(())
    }
}
