//! `LOCK.CANCEL`: give up a token's wait, wherever its connection is, or its place.

use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::values::refusal::Refusal;

use super::command::{Call, Command};
use super::spec::{About, Spec};

pub struct Cancel;

impl Command for Cancel {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::CANCEL,
            keys: Some(Keys::One),
        },
        about: About {
            flags: c"write fast",
            summary: c"Gives up all waits and places of a token that need a key; a grant stays.",
            complexity: c"O(C K log W), C being the waits given up, K their keys and W the waiters of the server",
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        call.execute(&grammar::cancel(call.words, &call.setting))
    }
}
