//! Locks for tokio.
//!
//! Every future here can be dropped at any time. A dropped acquire gives up its place, and releases
//! a lock that was granted meanwhile. A dropped release goes on. Both happens in the background:
//! see [`Locks::settled`]. Outside of a runtime of tokio, every call fails with
//! [`Error::InvalidArgument`].
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redis_lock_client::aio::Locks;
//!
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
//! let lock = locks.lock("orders:42")?;
//! if let Some(grant) = lock.acquire(None).await? {
//!     println!("fence {}", grant.fence());
//!     grant.release().await?;
//! }
//! # Ok(())
//! # }
//! ```

use std::convert::identity;
use std::sync::Arc;
use std::time::Duration;

use crate::background::Users;
use crate::core::Core;
use crate::error::Error;
use crate::front::front;
use crate::hold::Hold;
use crate::options::{Keys, Options};
use crate::recipe::Recipe;
use crate::servers::Config;

front!(identity, Users::Tasks, AsyncFn, AsyncFnOnce, [async], [.await]);

/// A grant of a lock. Whoever has it may extend or release it, in any task.
///
/// When it goes out of scope, the lock is released in the background.
#[must_use = "the lock is released at once if this isn't kept"]
#[derive(Debug)]
pub struct Grant {
    hold: Arc<Hold>,
}

impl Locks {
    /// Returns when the works of dropped grants and futures are done. If the program ends before
    /// that, the server ends what is left with its lease.
    pub async fn settled(&self) {
        self.core.works.clone().ended().await;
    }
}

impl Lock {
    /// Returns a grant, or `None` if another client has the lock until the limit is over. `None`
    /// waits as long as the option `wait` says, for ever by default. Dropping the future ends the
    /// wait.
    pub async fn acquire(
        &self,
        limit: impl Into<Option<Duration>>,
    ) -> Result<Option<Grant>, Error> {
        let acquired = self.core.acquire(&self.recipe, limit.into());
        Ok(acquired.await?.map(|hold| Grant { hold }))
    }
}

impl Grant {
    /// Returns when the lock is lost, and never if it is released before.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Runs a function with the grant until it ends, or the lock is lost. Releases the lock after
    /// that.
    ///
    /// Returns the function's error if it fails, and [`Error::LockLost`] if the lock was lost. If
    /// only the release finds no server, the observer hears of it.
    pub async fn with<T, E: From<Error>>(
        self,
        body: impl AsyncFnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = tokio::select! {
            biased;
            result = body(&self) => result,
            () = self.lost() => Err(Error::LockLost.into()),
        };
        match self.hold.end_block().await {
            Some(false) => result.and(Err(Error::LockLost.into())),
            Some(true) | None => result,
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.hold.release_in_background();
    }
}
