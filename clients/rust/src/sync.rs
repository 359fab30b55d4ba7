//! Locks for threads: what a program calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Client;

use crate::error::Error;
use crate::grant::later;
use crate::lines::{Source, ANSWER_WITHIN};
use crate::options::{Keys, Options};
use crate::owner::{Held, Owner, Patience, Shared};

/// Makes locks for threads. Cheap to clone; all clones share their connections.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.lock("orders:42").acquire()?;
/// println!("fence {}", guard.fence());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

/// One owner of a lock. Acquired again while it is held, it counts its holds; so threads that are
/// to wait for each other need a `Lock` each.
#[derive(Clone)]
pub struct Lock {
    owner: Arc<Owner>,
}

/// The lock is held, and released when this goes out of scope.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    owner: Arc<Owner>,
    held: Arc<Held>,
    released: bool,
}

impl Locks {
    /// Takes connections from this client, as many as commands and waits are under way at once.
    pub fn new(client: Client) -> Locks {
        Locks::of(client)
    }

    /// Locks in a cluster. The builder's `retries` are set to 0: what is sent again, and when, is this
    /// library's business.
    #[cfg(feature = "cluster")]
    pub fn cluster(builder: redis::cluster::ClusterClientBuilder) -> Result<Locks, Error> {
        Ok(Locks::of(builder.retries(0).build()?))
    }

    fn of(source: impl Source + 'static) -> Locks {
        Locks {
            shared: Arc::new(Shared::new(Box::new(source))),
        }
    }

    /// An exclusive lock on a key, or on several at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Lock {
        self.lock_with(keys, Options::new())
    }

    /// A lock as the options say.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Lock {
        Lock {
            owner: Arc::new(Owner::new(Arc::clone(&self.shared), keys.into(), options)),
        }
    }
}

impl Lock {
    /// Waits for the lock, for ever.
    pub fn acquire(&self) -> Result<Guard, Error> {
        // Without an end to the time, not got is given up.
        self.take(Patience::ForEver)?.ok_or(Error::Cancelled)
    }

    /// Waits so long; `None` if that wasn't enough.
    pub fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.take(Patience::Until(later(Instant::now(), wait)))
    }

    /// Takes the lock if it is free; `None` if it isn't.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.take(Patience::Try)
    }

    /// Ends the wait of another thread with this `Lock`: its `acquire` fails with
    /// [`Error::Cancelled`]. Tells whether one waited.
    pub fn cancel(&self) -> bool {
        self.owner.cancel()
    }

    /// What names the owner.
    pub fn token(&self) -> &[u8] {
        self.owner.token()
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        self.owner.left()
    }

    fn take(&self, patience: Patience) -> Result<Option<Guard>, Error> {
        let guard = |held| Guard {
            owner: Arc::clone(&self.owner),
            held,
            released: false,
        };
        Ok(self.owner.take(patience)?.map(guard))
    }
}

impl Guard {
    /// The number of this grant, greater than that of each one before it: what the guarded resource compares.
    pub fn fence(&self) -> i64 {
        self.held.grant.fence
    }

    /// What names the owner.
    pub fn token(&self) -> &[u8] {
        self.owner.token()
    }

    /// Whether the lock was lost: the server said so, or the lease is over by this machine's clock.
    pub fn is_lost(&self) -> bool {
        self.held.grant.is_lost()
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        self.owner.left()
    }

    /// Sets the lease, from now on and for renewals. `false`: the lock is lost.
    pub fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.owner.extend(&self.held, lease)
    }

    /// Releases the lock. `false`: it had been lost. It is tried until the lease is over.
    pub fn release(mut self) -> Result<bool, Error> {
        self.released = true;
        self.owner.release(&self.held, self.held.grant.until())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            // Nobody is left to be told. What can't be released now ends with its lease.
            let _ = self
                .owner
                .release(&self.held, Instant::now() + ANSWER_WITHIN);
        }
    }
}
