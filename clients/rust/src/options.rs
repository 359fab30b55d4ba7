//! The keys of a lock, and its options.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The keys of one lock. Several keys are granted together or not at all. In a cluster they must be
/// in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys(pub(crate) Vec<Vec<u8>>);

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys(vec![key.into()])
    }
}

impl From<String> for Keys {
    fn from(key: String) -> Keys {
        Keys(vec![key.into()])
    }
}

impl<K: Into<Vec<u8>>> From<Vec<K>> for Keys {
    fn from(keys: Vec<K>) -> Keys {
        Keys(keys.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Vec<u8>>, const N: usize> From<[K; N]> for Keys {
    fn from(keys: [K; N]) -> Keys {
        Keys(keys.into_iter().map(Into::into).collect())
    }
}

/// The mode of a lock, which decides the other holders that it admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Limited { limit: u32, permits: u32 },
}

/// The sender of a lease's renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// This library, at a third of the lease.
    Client,
    /// The server, while the connection is open.
    Session,
    Nobody,
}

/// Options of a lock. `Options::new()` is an exclusive lock with a lease of 30 seconds, which is
/// renewed while the lock is held.
#[derive(Clone)]
pub struct Options {
    pub(crate) lease: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) keep: Duration,
    pub(crate) mode: Mode,
    pub(crate) renewal: Renewal,
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) replicas: Option<u32>,
    pub(crate) on_lost: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Options {
    /// Returns the defaults: an exclusive lock, a lease of 30 s, renewed, a place in the queue that
    /// is kept for 10 s, a random token.
    pub fn new() -> Options {
        Options {
            lease: Duration::from_secs(30),
            renew_every: Duration::MAX,
            keep: Duration::from_secs(10),
            mode: Mode::Exclusive,
            renewal: Renewal::Client,
            token: None,
            data: None,
            replicas: None,
            on_lost: None,
        }
    }

    /// Sets the lease, which counts from the grant or the last renewal. Rounded up to whole
    /// milliseconds.
    pub fn lease(mut self, lease: Duration) -> Options {
        self.lease = lease;
        self
    }

    /// Sets the longest time between two renewals. The lease is renewed at a third of it if that is
    /// sooner.
    pub fn renew_every(mut self, every: Duration) -> Options {
        self.renew_every = every;
        self
    }

    /// Sets how long the place in the queue is kept while the connection is lost.
    pub fn keep(mut self, keep: Duration) -> Options {
        self.keep = keep;
        self
    }

    /// Sets the token, which names the owner. By default each [`Lock`](crate::Lock) is an owner of
    /// its own, with a token of 128 random bits.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Options {
        self.token = Some(token.into());
        self
    }

    /// Sets the data of the holder, up to 1024 bytes, which LOCK.INFO shows to everyone who may read
    /// the key.
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Options {
        self.data = Some(data.into());
        self
    }

    /// Holds a grant back until this number of replicas have acknowledged it. If they don't within 2
    /// s, or fewer are online, acquiring the lock fails with NOREPLICAS, and what was granted is
    /// released. Not available on a shared connection (`aio`).
    pub fn replicas(mut self, replicas: u32) -> Options {
        self.replicas = Some(replicas);
        self
    }

    /// Makes the lock shared: shared holders admit each other.
    pub fn shared(mut self) -> Options {
        self.mode = Mode::Shared;
        self
    }

    /// Makes the lock a semaphore of `limit` permits, of which this holder takes `permits`.
    pub fn semaphore(mut self, limit: u32, permits: u32) -> Options {
        self.mode = Mode::Limited { limit, permits };
        self
    }

    /// Turns renewal off. The lock is lost at the end of the lease unless the caller extends it.
    pub fn without_renewal(mut self) -> Options {
        self.renewal = Renewal::Nobody;
        self
    }

    /// Ties the lock to a connection of its own. The server renews the lease while the connection
    /// is open, and releases the lock when it closes. Not available on a shared connection (`aio`).
    pub fn session(mut self) -> Options {
        self.renewal = Renewal::Session;
        self
    }

    /// Sets a callback that runs once for each loss of the lock before its release. It runs in the
    /// thread or task that detects the loss, so it should be short.
    pub fn on_lost(mut self, on_lost: impl Fn() + Send + Sync + 'static) -> Options {
        self.on_lost = Some(Arc::new(on_lost));
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token gives control of the lock, so it stays out of logs.
        f.debug_struct("Options")
            .field("lease", &self.lease)
            .field("renew_every", &self.renew_every)
            .field("keep", &self.keep)
            .field("mode", &self.mode)
            .field("renewal", &self.renewal)
            .finish_non_exhaustive()
    }
}
