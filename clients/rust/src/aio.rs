//! Locks for tokio.
//!
//! Every future here can be dropped at any time. A dropped acquire gives up its place, and releases
//! a lock that was granted meanwhile. A dropped release goes on. Both happens in the background: see
//! [`Locks::settled`].

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::background::Background;
use crate::core::Core;
use crate::error::Error;
use crate::facts::facts;
use crate::hold::{Hold, Phase};
use crate::options::{Keys, Options};
use crate::recipe::Recipe;
use crate::servers::Config;

/// The locks of a program, for tasks of tokio. Clones are cheap and share their connections.
///
/// Outside of a runtime of tokio, every call fails with [`Error::InvalidArgument`].
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::aio::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let lock = locks.lock("orders:42")?;
/// if let Some(grant) = lock.acquire(None).await? {
///     println!("fence {}", grant.fence());
///     grant.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    core: Arc<Core>,
}

/// A lock: keys and options. It has no state, so all tasks may share it.
#[derive(Clone)]
#[must_use = "a lock protects nothing until it is acquired"]
pub struct Lock {
    core: Arc<Core>,
    recipe: Arc<Recipe>,
}

/// A grant of a lock. Whoever has it may extend or release it, in any task.
///
/// When it goes out of scope, the lock is released in the background.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Grant {
    hold: Arc<Hold>,
}

impl Locks {
    /// Makes locks, which connect when they are needed.
    pub fn new(servers: impl Into<Config>) -> Locks {
        Locks {
            core: Core::new(servers.into()),
        }
    }

    /// Returns an exclusive lock on a key, or on several keys at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Result<Lock, Error> {
        self.lock_with(keys, Options::new())
    }

    /// Returns a lock with these options.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        Ok(Lock {
            core: Arc::clone(&self.core),
            recipe: Arc::new(Recipe::new(keys.into(), options)?),
        })
    }

    /// Returns a grant that another process acquired and detached, or `None` if it has ended.
    pub async fn adopt(
        &self,
        keys: impl Into<Keys>,
        token: impl Into<Vec<u8>>,
        fence: i64,
        options: Options,
    ) -> Result<Option<Grant>, Error> {
        let lock = self.lock_with(keys, options)?;
        let adopted = self
            .core
            .adopt(&lock.recipe, token.into(), fence, background()?);
        Ok(adopted.await?.map(|hold| Grant { hold }))
    }

    /// Returns the result of `read`, or if that is `None` of `compute`: one caller computes at a
    /// time. The others wait, and then read all at once. So `compute` must store its result where
    /// `read` finds it.
    pub async fn once<T, E: From<Error>>(
        &self,
        keys: impl Into<Keys>,
        options: Options,
        read: impl AsyncFn() -> Result<Option<T>, E>,
        compute: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let keys = keys.into();
        let lock = self.lock_with(keys.clone(), options.clone())?;
        let readers = self.lock_with(keys, options.shared())?;
        if let Some(result) = read().await? {
            return Ok(result);
        }
        let mut grant = lock.try_acquire().await?;
        if grant.is_none() {
            if let Some(result) = readers.with(async |_| read().await).await? {
                return Ok(result);
            }
            // The caller that computed failed, so the others take turns.
            grant = lock.acquire(None).await?;
        }
        let grant = grant.ok_or(Error::NotAcquired)?;
        let body = async |_: &Grant| match read().await? {
            Some(result) => Ok(result),
            None => compute().await,
        };
        grant.with(body).await
    }

    /// Releases all grants of these locks. Returns how many still held.
    pub async fn release_all(&self) -> Result<usize, Error> {
        self.core.release_all().await
    }

    /// Returns when the cleanups of dropped grants and futures are done. If the program ends before
    /// that, the server ends what is left with its lease.
    pub async fn settled(&self) {
        self.core.settled().await;
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
        let acquired = self.core.acquire(&self.recipe, limit.into(), background()?);
        Ok(acquired.await?.map(|hold| Grant { hold }))
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub async fn try_acquire(&self) -> Result<Option<Grant>, Error> {
        self.acquire(Duration::ZERO).await
    }

    /// Acquires the lock as `acquire(None)` does, and runs a function with the grant until it ends,
    /// or the lock is lost. Releases the lock after that.
    ///
    /// Returns the function's error if it fails, and [`Error::LockLost`] if the lock was lost. If
    /// only the release finds no server, the observer hears of it.
    pub async fn with<T, E: From<Error>>(
        &self,
        body: impl AsyncFnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        let grant = self.acquire(None).await?;
        grant.ok_or(Error::NotAcquired)?.with(body).await
    }

    /// Returns true if any client holds one of the keys.
    pub async fn locked(&self) -> Result<bool, Error> {
        self.core.is_locked(&self.recipe, background()?).await
    }
}

facts!(Locks, Lock, Grant);

impl Grant {
    /// Returns when the lock is lost, and never if it is released before.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Asks the server whether this grant holds all its keys.
    pub async fn owned(&self) -> Result<bool, Error> {
        self.hold.is_owned().await
    }

    /// Lets the lease end after `lease` from now, or later. Later renewals use it, too. Returns
    /// `false` if the lock was lost. After an error, the old lease and its renewal go on.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.hold.extend(lease).await
    }

    /// Releases the lock. Returns `false` if it had been lost. After [`Error::Unavailable`], the
    /// release goes on in the background, until the lease ends.
    pub async fn release(self) -> Result<bool, Error> {
        self.hold.release(self.hold.release_ends()).await
    }

    /// Lets the lock end after `rest` from now, and not with its connection. Nothing renews it any
    /// more. Returns `false` if it had been lost. A `rest` that is too long is refused, and the lock
    /// is released at once.
    pub async fn release_after(self, rest: Duration) -> Result<bool, Error> {
        self.hold.stay(rest)?;
        self.release().await
    }

    /// Runs a function with the grant and releases the lock, as [`Lock::with`] does.
    pub async fn with<T, E: From<Error>>(
        self,
        body: impl AsyncFnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = tokio::select! {
            biased;
            result = body(&self) => result,
            () = self.lost() => Err(Error::LockLost.into()),
        };
        if self.hold.phase() == Phase::Left {
            return result;
        }
        match self.hold.release(self.hold.release_ends()).await {
            Ok(true) => result,
            Ok(false) => result.and(Err(Error::LockLost.into())),
            Err(error) => {
                self.hold.not_released(&error);
                result
            }
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.hold.release_in_background();
    }
}

/// Returns the runtime of the caller.
fn background() -> Result<Background, Error> {
    let handle = Handle::try_current();
    let none = |_| Error::argument("runtime", "this must run in a runtime of tokio");
    handle.map(Background::Tasks).map_err(none)
}
