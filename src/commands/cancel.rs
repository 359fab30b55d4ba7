//! `LOCK.CANCEL`: end a token's waits and places at a key, on whichever connection they are.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};

pub struct Cancel;

impl Command for Cancel {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::CANCEL,
            keys: Some(Keys::One),
        },
        about: CommandDoc {
            flags: c"write fast",
            summary: c"Ends all waits and places of a token that include the key; a grant stays.",
            complexity: c"O(C K log W), C being the waits ended, K their keys and W the waiters of the server",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        call.submit(&grammar::cancel(call.words, &call.parse_context))
    }
}
