//! What is locked, and how.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The keys of one lock. Several are locked all or none; in a cluster they have to be in one slot.
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

/// Who else may hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Limited { limit: u32, permits: u32 },
}

/// Who sends the renewals of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// This library, at a third of the lease.
    Client,
    /// The server, as long as the connection lives.
    Session,
    Nobody,
}

/// How a lock is taken: `Options::new()` is an exclusive lock with a lease of 30 seconds that is
/// renewed while it is held.
#[derive(Clone)]
pub struct Options {
    pub(crate) lease: Duration,
    pub(crate) renew_every: Duration,
    pub(crate) keep: Duration,
    pub(crate) mode: Mode,
    pub(crate) renewal: Renewal,
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) on_lost: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Options {
    /// An exclusive lock, a lease of 30 s, renewed, a place kept for 10 s, a random token.
    pub fn new() -> Options {
        Options {
            lease: Duration::from_secs(30),
            renew_every: Duration::MAX,
            keep: Duration::from_secs(10),
            mode: Mode::Exclusive,
            renewal: Renewal::Client,
            token: None,
            on_lost: None,
        }
    }

    /// For how long the lock is granted, from the grant or the last renewal. Whole milliseconds.
    pub fn lease(mut self, lease: Duration) -> Options {
        self.lease = lease;
        self
    }

    /// The longest time between two renewals. The lease is renewed at a third of it if that is sooner.
    pub fn renew_every(mut self, every: Duration) -> Options {
        self.renew_every = every;
        self
    }

    /// For how long the place in the queue stays while the connection is away.
    pub fn keep(mut self, keep: Duration) -> Options {
        self.keep = keep;
        self
    }

    /// Names the owner. Without this each [`Lock`](crate::Lock) is an owner of its own, with 128
    /// random bits as its token.
    pub fn token(mut self, token: impl Into<Vec<u8>>) -> Options {
        self.token = Some(token.into());
        self
    }

    /// Shared holders admit each other.
    pub fn shared(mut self) -> Options {
        self.mode = Mode::Shared;
        self
    }

    /// A semaphore: at most `limit` hold it, of whom this one counts as `permits`.
    pub fn semaphore(mut self, limit: u32, permits: u32) -> Options {
        self.mode = Mode::Limited { limit, permits };
        self
    }

    /// The lease ends when it ends: nobody renews it.
    pub fn without_renewal(mut self) -> Options {
        self.renewal = Renewal::Nobody;
        self
    }

    /// Ties the lock to a connection of its own: the server renews the lease while the connection
    /// lives, and frees the lock as soon as it is closed. Not where a connection is shared.
    pub fn session(mut self) -> Options {
        self.renewal = Renewal::Session;
        self
    }

    /// Called once for each time that the lock is lost before it was released. It is called in
    /// the thread or task that found out, so it should be short.
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
        // The token is a key to the lock, and stays out of logs.
        f.debug_struct("Options")
            .field("lease", &self.lease)
            .field("renew_every", &self.renew_every)
            .field("keep", &self.keep)
            .field("mode", &self.mode)
            .field("renewal", &self.renewal)
            .finish_non_exhaustive()
    }
}
