//! The keys of a lock, and its options.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// The longest time of any option and argument, which the server accepts.
const LONGEST: Duration = Duration::from_millis((1 << 53) - 1);

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

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self
            .0
            .iter()
            .map(|key| String::from_utf8_lossy(key))
            .collect();
        f.write_str(&keys.join(", "))
    }
}

/// The sender of a lease's renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// This library, at a third of the lease.
    Client,
    /// The server too, while the connection is open.
    Session,
    Nobody,
}

/// Options of a lock. `Options::new()` is an exclusive lock with a lease of 30 seconds, which is
/// renewed while the lock is held, for 24 hours at most.
///
/// Times are rounded up to whole milliseconds. Each is 1 ms to 2^53 - 1 ms, unless its option says
/// otherwise. `handle_with` checks all values.
#[derive(Clone)]
#[must_use = "options do nothing until they are passed to `handle_with`"]
pub struct Options {
    pub(crate) lease: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) renew_every: Duration,
    pub(crate) keep: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) is_shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) permits: Option<u32>,
    pub(crate) renewal: Renewal,
    pub(crate) is_reentrant: bool,
    pub(crate) token: Option<Vec<u8>>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) replicas: Option<u32>,
    pub(crate) on_lost: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Options {
        Options {
            lease: Duration::from_secs(30),
            wait: None,
            renew_every: Duration::MAX,
            keep: Duration::from_secs(10),
            max_hold: Some(Duration::from_secs(24 * 60 * 60)),
            at_least: Duration::ZERO,
            is_shared: false,
            limit: None,
            permits: None,
            renewal: Renewal::Client,
            is_reentrant: false,
            token: None,
            data: None,
            replicas: None,
            on_lost: None,
        }
    }

    /// Sets the lease, 30 s by default: how long the lock stays if nothing renews it.
    pub fn lease(mut self, lease: Duration) -> Options {
        self.lease = lease;
        self
    }

    /// Sets how long `acquire` waits, for ever by default. `acquire` then fails with
    /// [`Error::NotAcquired`]. Zero tries once.
    pub fn wait(mut self, wait: Duration) -> Options {
        self.wait = Some(wait);
        self
    }

    /// Sets the longest time between two renewals, if a third of the lease is longer.
    pub fn renew_every(mut self, every: Duration) -> Options {
        self.renew_every = every;
        self
    }

    /// Turns renewal off. The lock is lost at the end of the lease unless the caller extends it.
    pub fn without_renewal(mut self) -> Options {
        self.renewal = Renewal::Nobody;
        self
    }

    /// Sets the longest hold, 24 h by default. The last renewal ends then, and the lock is lost.
    pub fn max_hold(mut self, max_hold: Duration) -> Options {
        self.max_hold = Some(max_hold);
        self
    }

    /// Renews the lock as long as it is held.
    pub fn without_max_hold(mut self) -> Options {
        self.max_hold = None;
        self
    }

    /// Keeps the lock for at least this long after its grant, also if it is released earlier. Zero
    /// by default. A lock that was lost isn't kept.
    pub fn at_least(mut self, at_least: Duration) -> Options {
        self.at_least = at_least;
        self
    }

    /// Sets how long the server keeps the place in the queue while the connection is lost, 10 s by
    /// default.
    pub fn keep(mut self, keep: Duration) -> Options {
        self.keep = keep;
        self
    }

    /// Makes the lock shared: shared holders admit each other.
    pub fn shared(mut self) -> Options {
        self.is_shared = true;
        self
    }

    /// Makes the lock a semaphore of this many permits, 1 to 2^32 - 1.
    pub fn limit(mut self, limit: u32) -> Options {
        self.limit = Some(limit);
        self
    }

    /// Sets how many permits of the semaphore this lock takes, 1 by default.
    pub fn permits(mut self, permits: u32) -> Options {
        self.permits = Some(permits);
        self
    }

    /// Ties the lock to a connection of its own. The server renews the lease while the connection
    /// is open, and releases the lock when the connection closes.
    pub fn session(mut self) -> Options {
        self.renewal = Renewal::Session;
        self
    }

    /// Lets a handle acquire its lock again while it holds it. Each guard is then one hold. By
    /// default, a second acquire of a handle waits for the release.
    pub fn reentrant(mut self) -> Options {
        self.is_reentrant = true;
        self
    }

    /// Sets the token, which names the owner: 1 to 256 bytes, not `*`. By default each handle has a
    /// token of 128 random bits. It draws another one if commands of the last one may still arrive. A
    /// chosen token stays, so its next acquire waits for the cleanup of an earlier call.
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

    /// Lets a grant count only when this many replicas, 1 to 1000, have acknowledged it within the
    /// command timeout. Otherwise acquiring fails with [`Error::NotReplicated`], and the lock is
    /// released.
    pub fn replicas(mut self, replicas: u32) -> Options {
        self.replicas = Some(replicas);
        self
    }

    /// Sets a callback that runs once for each loss of the lock, in a thread for callbacks.
    pub fn on_lost(mut self, on_lost: impl Fn() + Send + Sync + 'static) -> Options {
        self.on_lost = Some(Arc::new(on_lost));
        self
    }

    /// Returns an error that names the first wrong option.
    pub(crate) fn check(&self) -> Result<(), Error> {
        positive("lease", self.lease)?;
        positive("keep", self.keep)?;
        if self.renew_every.is_zero() {
            return Err(Error::argument("renew_every", "must be longer than zero"));
        }
        self.max_hold
            .map_or(Ok(()), |it| positive("max_hold", it))?;
        not_too_long("at_least", self.at_least)?;
        self.wait.map_or(Ok(()), |it| not_too_long("wait", it))?;
        if let Some(token) = &self.token {
            if token.is_empty() || token.len() > 256 || token == b"*" {
                return Err(Error::argument(
                    "token",
                    "must be 1 to 256 bytes, and not *",
                ));
            }
        }
        match (self.limit, self.permits) {
            (None, Some(_)) => return Err(Error::argument("permits", "needs a limit")),
            (Some(0), _) => return Err(Error::argument("limit", "must be 1 to 4294967295")),
            (Some(limit), Some(permits)) if permits == 0 || permits > limit => {
                return Err(Error::argument("permits", format!("must be 1 to {limit}")));
            }
            _ => {}
        }
        if self.data.as_ref().is_some_and(|data| data.len() > 1024) {
            return Err(Error::argument("data", "must be up to 1024 bytes"));
        }
        if self.replicas.is_some_and(|it| !(1..=1000).contains(&it)) {
            return Err(Error::argument("replicas", "must be 1 to 1000"));
        }
        Ok(())
    }
}

impl Keys {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.is_empty() {
            return Err(Error::argument("keys", "a lock needs a key"));
        }
        let mut seen = HashSet::new();
        match self.0.iter().find(|key| !seen.insert(*key)) {
            Some(key) => {
                let key = String::from_utf8_lossy(key);
                Err(Error::argument("keys", format!("{key} is there twice")))
            }
            None => Ok(()),
        }
    }
}

pub(crate) fn positive(argument: &'static str, time: Duration) -> Result<(), Error> {
    if time.is_zero() {
        return Err(Error::argument(argument, "must be longer than zero"));
    }
    not_too_long(argument, time)
}

pub(crate) fn not_too_long(argument: &'static str, time: Duration) -> Result<(), Error> {
    if time > LONGEST {
        return Err(Error::argument(argument, "must be up to 2^53 - 1 ms"));
    }
    Ok(())
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
            .field("wait", &self.wait)
            .field("keep", &self.keep)
            .field("max_hold", &self.max_hold)
            .field("at_least", &self.at_least)
            .field("shared", &self.is_shared)
            .field("limit", &self.limit)
            .field("permits", &self.permits)
            .field("renewal", &self.renewal)
            .field("reentrant", &self.is_reentrant)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
