//! `LOCK.CHECK`: replies what is left of a token's lease, in ms.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::store::KeyState;
use redis_lock_core::table::{self};
use redis_lock_core::values::name::Names;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::time;

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};
use crate::engine::{blocking, recorder, store};
use crate::server::{clock, reply};

pub struct Check;

impl Command for Check {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::CHECK,
            keys: Some(Keys::One),
        },
        about: CommandDoc {
            flags: c"readonly fast",
            summary:
                c"Returns the remaining lease of a token in milliseconds, or 0 if it doesn't hold the lock.",
            complexity: c"O(N), N being the holders of a shared lock; O(1) for an exclusive one",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let ctx = call.ctx;
        let (name, token) = grammar::check(call.words, &call.parse_context)?;
        let now_ms = clock::now().ms();
        let deadline_ms = match store::read_settled(ctx, &name) {
            KeyState::OtherType => return Err(Refusal::WrongType),
            KeyState::Empty => None,
            KeyState::Lock(stored) => {
                let lock = table::as_of(stored, now_ms);
                recorder::watch_leases(&name, &lock);
                lock.holder(&token).map(|own| own.deadline_ms)
            }
        };
        if deadline_ms.is_some() {
            blocking::record_told(&token, &Names::one(name));
        }
        reply::integer(
            ctx,
            deadline_ms.map_or(0, |deadline_ms| time::left_ms(deadline_ms, now_ms)),
        );
        Ok(())
    }
}
