//! `LOCK.HELP`: lists the commands at the prompt.

use redis_lock_core::grammar::syntax::{self, Keys, Syntax, Verb};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};
use crate::server::reply;

pub struct Help;

/// The first line, with the version.
const HEAD: &str = concat!("redis-lock ", env!("CARGO_PKG_VERSION"));

/// A line after the first one.
enum Line {
    Synopsis(&'static Verb, Option<Keys>),
    Text(&'static str),
}

use Line::{Synopsis, Text};

const ONE: Option<Keys> = Some(Keys::One);
const MANY: Option<Keys> = Some(Keys::Many);

const LINES: [Line; 33] = [
    Synopsis(&syntax::ACQUIRE, ONE),
    Text("    Grant the lock now, [token, fence], or answer nil. Token *: the server draws one."),
    Synopsis(&syntax::WAIT, ONE),
    Text("    As ACQUIRE, but wait in line for at most BLOCK ms; 0 or none: for ever."),
    Text("    KEEP: the place stays for ms after BLOCK, and after a lost connection."),
    Synopsis(&syntax::QUEUE, ONE),
    Text("    As ACQUIRE, or answer the token's place in the queue, kept for KEEP ms. Send it again."),
    Synopsis(&syntax::CANCEL, ONE),
    Text("    Give up the token's wait or place: 1, or 0 when it has none. A grant stays."),
    Synopsis(&syntax::EXTEND, ONE),
    Text("    Set the lease to now + PX, or its own length: 1, or 0 when the token doesn't hold the lock."),
    Text("    GT: only if it then ends later."),
    Synopsis(&syntax::RELEASE, ONE),
    Text(
        "    Give up one hold, or ALL, or all but n: 1, or 0 when the token doesn't hold the lock.",
    ),
    Text("    LEAVE: end all its holds and waits; for ms answer LEFT to its ACQUIRE, WAIT and QUEUE."),
    Synopsis(&syntax::CHECK, ONE),
    Text("    Milliseconds left of the token's lease, 0 when it doesn't hold the lock."),
    Synopsis(&syntax::INFO, ONE),
    Text("    Who holds the lock and who waits for it; nil when nobody does."),
    Synopsis(&syntax::HOT, None),
    Text("    Which keys were waited for most in this minute and the last one, hottest first."),
    Synopsis(&syntax::ACQUIRE, MANY),
    Synopsis(&syntax::WAIT, MANY),
    Synopsis(&syntax::QUEUE, MANY),
    Synopsis(&syntax::EXTEND, MANY),
    Text("    The same for several keys at once: all of them or none, one token, one fence."),
    Synopsis(&syntax::RELEASE, MANY),
    Text("    The same for those of the keys that the token holds: how many it has released."),
    Synopsis(&syntax::HELP, None),
    Text("    This text."),
    Text("DEL key"),
    Text("    Free the lock by force. Whoever waits is next."),
    Text("SCAN 0 TYPE redislock lists the locks."),
];

impl Command for Help {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::HELP,
            keys: None,
        },
        about: CommandDoc {
            flags: c"fast allow-loading allow-stale",
            summary: c"Lists the lock commands.",
            complexity: c"O(1)",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let Call { ctx, words, .. } = *call;
        if !words.is_empty() {
            return Err(Refusal::Arity);
        }
        reply::array(ctx, LINES.len() + 1);
        reply::simple(ctx, HEAD);
        for line in LINES {
            match line {
                Synopsis(verb, keys) => reply::simple(ctx, &Syntax { verb, keys }.synopsis()),
                Text(text) => reply::simple(ctx, text),
            }
        }
        Ok(())
    }
}
