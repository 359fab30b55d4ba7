//! Locks for tokio. All locks share one connection, so tasks wait by LOCK.QUEUE, and a message
//! notifies each task of its turn. Sessions, and waits for replicas, have a connection of their own.
//!
//! Every future here can be dropped at any time. A dropped `acquire` gives up its place, and
//! releases a lock that was granted meanwhile. A dropped `release` or `extend` is carried out all
//! the same. That happens in the background: see [`Locks::settled`].

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::core::{Core, Waits};
use crate::error::Error;
use crate::grant::{Grant, Phase};
use crate::options::{Keys, Options};
use crate::owner::Owner;
use crate::servers::Config;

/// The locks of a program, for tasks. Clones are cheap and share one connection.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::aio::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.acquire("orders:42").await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    core: Arc<Core>,
}

/// A handle of a lock. It protects nothing until it is acquired.
///
/// A handle and its clones are one owner: if it is acquired, a second acquire waits for the release,
/// in order, like tokio's `Mutex`.
#[derive(Clone, Debug)]
#[must_use = "a handle protects nothing until it is acquired"]
pub struct Lock {
    owner: Arc<Owner>,
}

/// A held lock. When the guard goes out of scope, the lock is released in the background.
#[derive(Debug)]
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    owner: Arc<Owner>,
    grant: Arc<Grant>,
    is_released: bool,
}

impl Locks {
    /// Makes locks, which connect when they are needed.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn new(servers: impl Into<Config>) -> Locks {
        Locks {
            core: Arc::new(Core::new(servers.into(), Handle::current(), Waits::Places)),
        }
    }

    /// Returns a handle of an exclusive lock on a key, or on several keys at once.
    pub fn handle(&self, keys: impl Into<Keys>) -> Result<Lock, Error> {
        self.handle_with(keys, Options::new())
    }

    /// Returns a handle of a lock with these options.
    pub fn handle_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        let owner = Owner::new(Arc::clone(&self.core), keys.into(), options)?;
        Ok(Lock {
            owner: Arc::new(owner),
        })
    }

    /// Waits for an exclusive lock, for ever.
    pub async fn acquire(&self, keys: impl Into<Keys>) -> Result<Guard, Error> {
        self.handle(keys)?.acquire().await
    }

    /// Releases everything that these locks hold. Returns how many locks were still held.
    pub async fn release_all(&self) -> Result<usize, Error> {
        self.core.release_all().await
    }

    /// Returns when the work for all dropped guards and futures is done. If the program ends before
    /// that, those locks end with their leases.
    pub async fn settled(&self) {
        self.core.settled().await;
    }
}

impl Lock {
    /// Waits for the lock, for ever or as long as the option `wait` says.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        Ok(self.guard(self.owner.acquire().await?))
    }

    /// Waits for the lock for at most `wait`. Returns `None` if someone else has it then.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let grant = self.owner.acquire_within(Some(wait)).await?;
        Ok(grant.map(|grant| self.guard(grant)))
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.acquire_within(Duration::ZERO).await
    }

    /// Cancels the acquires of this handle that are in progress: they fail with
    /// [`Error::Cancelled`]. Returns false if there are none.
    pub fn cancel(&self) -> bool {
        self.owner.cancel()
    }

    /// Returns the keys.
    pub fn keys(&self) -> &Keys {
        &self.owner.commands.keys
    }

    /// Returns the token of the latest acquire, which gives control of the lock: keep it out of logs.
    pub fn token(&self) -> Vec<u8> {
        self.owner.token()
    }

    /// Returns the fence of the latest grant, also after its end. `None` before the first grant.
    pub fn fence(&self) -> Option<i64> {
        self.owner.fence()
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.owner.left(&self.owner.token()).await
    }

    /// Asks the server whether this handle holds its keys now.
    pub async fn owned(&self) -> Result<bool, Error> {
        Ok(!self.left().await?.is_zero())
    }

    fn guard(&self, grant: Arc<Grant>) -> Guard {
        Guard {
            owner: Arc::clone(&self.owner),
            grant,
            is_released: false,
        }
    }
}

impl Guard {
    /// Returns the fence of this grant, which is greater than the fence of every earlier grant. The
    /// guarded resource compares it.
    pub fn fence(&self) -> i64 {
        self.grant.fence
    }

    /// Returns the owner's token, which gives control of the lock: keep it out of logs.
    pub fn token(&self) -> &[u8] {
        &self.grant.token
    }

    /// Returns true if the lock was lost: the server said so, or the lease has ended on the local
    /// monotonic clock.
    pub fn is_lost(&self) -> bool {
        self.grant.is_lost()
    }

    /// Returns when the lock is lost, and never if it is released first.
    pub async fn lost(&self) {
        let mut changes = self.grant.changes();
        // This can't fail, because the sender exists.
        let _ = changes.wait_for(|phase| *phase == Phase::Lost).await;
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.owner.left(&self.grant.token).await
    }

    /// Asks the server whether the lock is held now.
    pub async fn owned(&self) -> Result<bool, Error> {
        Ok(!self.left().await?.is_zero())
    }

    /// Sets the lease, which counts from now and is used by later renewals too. Returns `false` if
    /// the lock is lost. After an error, the old lease and its renewal go on.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.owner.extend(&self.grant, lease).await
    }

    /// Releases the lock. Returns `false` if it had been lost. After [`Error::Unavailable`], the
    /// release goes on in the background, until the lease ends.
    pub async fn release(mut self) -> Result<bool, Error> {
        self.is_released = true;
        self.owner.release(&self.grant).await
    }

    /// Sets a last lease of `rest`, at whose end the lock is released. Nothing renews it any more,
    /// and a session no longer ends it. Returns `false` if the lock had been lost. If `rest` is
    /// longer than 2^53 - 1 ms, it is refused, and the lock is released at once.
    ///
    /// If the handle is reentrant and has other holds, only this guard's hold ends, and at once.
    pub async fn release_after(mut self, rest: Duration) -> Result<bool, Error> {
        let released = self.owner.release_after(&self.grant, rest)?;
        self.is_released = true;
        released.await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            drop(self.owner.abandon(&self.grant));
        }
    }
}
