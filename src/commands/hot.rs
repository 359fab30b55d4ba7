//! `LOCK.HOT`: replies the keys that are waited for most.

use std::collections::HashMap;

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Syntax};
use redis_lock_core::table::HotName;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::refusal::Refusal;
use redis_module::Context;

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};
use crate::server::rights::Caller;
use crate::server::{clock, reply};
use crate::state;

pub struct Hot;

impl Command for Hot {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::HOT,
            keys: None,
        },
        about: CommandDoc {
            flags: c"readonly",
            summary: c"Returns the keys that were waited for most in the last minutes.",
            complexity: c"O(N + K*log(N)), N being the waiters and K the keys looked at: those \
                          shown, and hotter ones that the caller may not read",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let ctx = call.ctx;
        let most = grammar::hot(call.words)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let now_ms = clock::steady_ms();
        let caller = Caller::of(ctx);
        let mut dbs = HashMap::new();
        let may_read = |name: &Name| {
            let may_look = dbs.entry(name.db);
            *may_look.or_insert_with(|| caller.may_look_at(name.db)) && caller.may_read(name.key())
        };
        let hottest = state::look(|table| table.hottest(most, now_ms, may_read));
        let hottest = hottest.ok_or(Refusal::Reentered)?;
        reply::array(ctx, hottest.len());
        for name in &hottest {
            tell(ctx, name);
        }
        Ok(())
    }
}

fn tell(
    ctx: &Context,
    HotName {
        name,
        counts,
        waiters,
    }: &HotName,
) {
    reply::map(ctx, 9);
    reply::bulk(ctx, b"key");
    reply::bulk(ctx, name.key());
    for (field, number) in [
        ("db", u64::try_from(name.db).unwrap_or(0)),
        ("waited-ms", counts.waited_ms),
        ("longest-wait-ms", counts.longest_wait_ms),
        ("waiters", *waiters as u64),
        ("waits", counts.waits),
        ("refused", counts.refused),
        ("grants", counts.grants),
        ("held-ms", counts.held_ms),
    ] {
        reply::bulk(ctx, field.as_bytes());
        reply::integer(ctx, number);
    }
}
