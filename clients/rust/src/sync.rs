//! Locks for threads. A thread drives the library's runtime while it waits for a call.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::background::{is_out_of_reach, run, Users};
use crate::core::Core;
use crate::error::Error;
use crate::front::front;
use crate::hold::{Hold, Phase};
use crate::options::{Keys, Options};
use crate::recipe::Recipe;
use crate::servers::Config;

front!(run, Users::Threads, Fn, FnOnce, [], []);

/// A grant of a lock. Whoever has it may extend or release it, in any thread.
///
/// When it goes out of scope, the lock is released. That takes the command timeout at most, and
/// then goes on in the background.
#[must_use = "the lock is released at once if this isn't kept"]
#[derive(Debug)]
pub struct Grant {
    hold: Arc<Hold>,
}

/// A switch that ends waits from another thread. Its clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// Makes a switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the waits that have this switch, now and later: they fail with [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    async fn is_on(&self) {
        // It can't fail, because the sender is in `self`.
        let _ = self.0.subscribe().wait_for(|is_on| *is_on).await;
    }
}

impl Locks {
    /// Returns when the works that calls left to the background are done. If the program ends
    /// before that, the server ends what is left with its lease.
    pub fn settled(&self) -> Result<(), Error> {
        run(self.core.works.clone().ended());
        Ok(())
    }
}

impl Lock {
    /// Returns a grant, or `None` if another client has the lock until the limit is over. `None`
    /// waits as long as the option `wait` says, for ever by default.
    pub fn acquire(&self, limit: impl Into<Option<Duration>>) -> Result<Option<Grant>, Error> {
        self.acquire_unless(limit, &Cancel::new())
    }

    /// Does what `acquire` does, and fails with [`Error::Cancelled`] once the switch is on.
    pub fn acquire_unless(
        &self,
        limit: impl Into<Option<Duration>>,
        cancel: &Cancel,
    ) -> Result<Option<Grant>, Error> {
        let acquire = self.core.acquire(&self.recipe, limit.into());
        let hold = run(async {
            tokio::select! {
                biased;
                () = cancel.is_on() => Err(Error::Cancelled),
                acquired = acquire => acquired,
            }
        })?;
        Ok(hold.map(|hold| Grant { hold }))
    }
}

impl Grant {
    /// Calls a function with the grant, and releases the lock.
    ///
    /// Returns the function's error if it fails, and otherwise [`Error::LockLost`] if the lock was
    /// lost. If only the release finds no server, the observer hears of it.
    pub fn with<T, E: From<Error>>(
        self,
        body: impl FnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = body(&self);
        match run(self.hold.end_block()) {
            Some(false) => result.and(Err(Error::LockLost.into())),
            Some(true) | None => result,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // Nobody waits for the end of what is lost, and a thread that ends can't drive a runtime.
        if self.is_lost() || is_out_of_reach() {
            self.hold.release_in_background();
        } else if self.hold.phase() != Phase::Left {
            run(self.hold.end_block());
        }
    }
}
