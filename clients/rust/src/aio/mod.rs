//! Locks for tokio. All of them share one connection, so they wait by LOCK.QUEUE, and are told of their
//! turn by a message.
//!
//! Every future here can be dropped at any time. A dropped `acquire` gives its place up, and releases
//! what was granted meanwhile; a dropped `release` or `extend` is carried out all the same. That happens in
//! the background: see [`Locks::settled`].

mod bells;
mod lines;
mod owner;

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::Client;

use crate::commands::Commands;
use crate::error::Error;
use crate::grant::later;
use crate::lines::ANSWER_WITHIN;
use crate::options::{Keys, Options, Renewal};
use lines::{Line, Own};
use owner::{Held, Owner, Patience, Shared};

/// Makes locks for tasks. Cheap to clone; all clones share one connection for commands and one that
/// listens, or in a cluster one for both to each node.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::aio::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.lock("orders:42").acquire().await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

/// One owner of a lock. Acquired again while it is held, it counts its holds; so tasks that are to
/// wait for each other need a `Lock` each.
#[derive(Clone)]
pub struct Lock {
    owner: Arc<Owner>,
}

/// The lock is held. When this goes out of scope a task releases it in the background.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    owner: Arc<Owner>,
    held: Arc<Held>,
    released: bool,
}

impl Locks {
    /// Takes a connection for commands and one that listens from this client, when they are needed.
    ///
    /// Like all of these, it has to be called within a tokio runtime.
    pub fn new(client: Client) -> Locks {
        Locks::of(Own::new(client.clone(), None), client)
    }

    /// Sends commands over this connection, and listens on one from the client, which is also where a
    /// new one comes from when this one is lost.
    pub fn on_multiplexed(client: Client, connection: MultiplexedConnection) -> Locks {
        Locks::of(Own::new(client.clone(), Some(connection)), client)
    }

    /// Sends commands over this connection, and listens on one from the client.
    pub fn on_manager(client: Client, manager: ConnectionManager) -> Locks {
        Locks::of(manager, client)
    }

    fn of(line: impl Line + 'static, client: Client) -> Locks {
        let ear = bells::listen(client);
        Locks {
            shared: Arc::new(Shared::new(Box::new(line), Box::new(ear))),
        }
    }

    /// Locks in a cluster. The builder is set to RESP3 and to a push sender of this library: by
    /// these a task is told of its turn.
    #[cfg(feature = "cluster-async")]
    pub async fn cluster(builder: redis::cluster::ClusterClientBuilder) -> Result<Locks, Error> {
        let (connection, ear) = lines::cluster(builder).await?;
        Ok(Locks {
            shared: Arc::new(Shared::new(Box::new(connection), Box::new(ear))),
        })
    }

    /// An exclusive lock on a key, or on several at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Lock {
        self.lock_of(keys.into(), Options::new())
    }

    /// A lock as the options say. Sessions are [`Error::Unsupported`] here.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        match options.renewal {
            Renewal::Session => Err(Error::Unsupported),
            Renewal::Client | Renewal::Nobody => Ok(self.lock_of(keys.into(), options)),
        }
    }

    /// Comes back when all is done that dropped guards and futures have left to the background. A program
    /// that ends before that leaves those locks to the end of their leases.
    pub async fn settled(&self) {
        self.shared.settled().await;
    }

    fn lock_of(&self, keys: Keys, options: Options) -> Lock {
        let commands = Commands::new(keys, options);
        Lock {
            owner: Arc::new(Owner::new(Arc::clone(&self.shared), commands)),
        }
    }
}

impl Lock {
    /// Waits for the lock, for ever.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        // Without an end to the time, not got is given up.
        self.owner
            .take(Patience::ForEver)
            .await?
            .ok_or(Error::Cancelled)
    }

    /// Waits so long; `None` if that wasn't enough.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.owner
            .take(Patience::Until(later(Instant::now(), wait)))
            .await
    }

    /// Takes the lock if it is free; `None` if it isn't.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.owner.take(Patience::Try).await
    }

    /// What names the owner.
    pub fn token(&self) -> &[u8] {
        self.owner.token()
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.owner.left().await
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

    /// Comes back when the lock is lost; never, if it is released before.
    pub async fn lost(&self) {
        let mut lost = self.held.lost.subscribe();
        if lost.wait_for(|lost| *lost).await.is_err() {
            pending().await
        }
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.owner.left().await
    }

    /// Sets the lease, from now on and for renewals. `false`: the lock is lost.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.owner.extend(Arc::clone(&self.held), lease).await
    }

    /// Releases the lock. `false`: it had been lost. It is tried until the lease is over.
    pub async fn release(mut self) -> Result<bool, Error> {
        self.released = true;
        let until = self.held.grant.until();
        self.owner.release(Arc::clone(&self.held), until).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            let until = Instant::now() + ANSWER_WITHIN;
            self.owner.release_alone(Arc::clone(&self.held), until);
        }
    }
}
