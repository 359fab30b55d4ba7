//! The keys of a lock, and its options.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::observer::Subject;

/// The longest time of any option and argument, which the server accepts.
const LONGEST: Duration = Duration::from_millis((1 << 53) - 1);

/// The keys of one lock. Several keys are granted together or not at all. In a cluster they must be
/// in one slot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys(pub(crate) Vec<Vec<u8>>);

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys(vec![key.into()])
    }
}

impl From<&[u8]> for Keys {
    fn from(key: &[u8]) -> Keys {
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
        let keys = self.iter().map(String::from_utf8_lossy);
        f.write_str(&keys.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes the methods that set one option each.
macro_rules! setters {
    ($(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $kind:ty)?) => $field:ident: $value:expr;
    )*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self $(, $argument: $kind)?) -> Options {
                self.$field = $value;
                self
            }
        )*
    };
}

/// A function that hears of a loss.
#[derive(Clone)]
pub(crate) struct OnLost(pub(crate) Arc<dyn Fn(&Subject<'_>) + Send + Sync>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

/// Options of a lock. `Options::new()` is an exclusive lock with a lease of 30 seconds, which is
/// renewed while the lock is held, for 24 hours at most.
///
/// Times are rounded up to whole milliseconds. Each is 1 ms to 2^53 - 1 ms, unless its option says
/// otherwise. `lock_with` checks all values.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until they are passed to `lock_with`"]
pub struct Options {
    pub(crate) lease: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) keep: Duration,
    pub(crate) margin: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) is_shared: bool,
    pub(crate) is_session: bool,
    pub(crate) renews: bool,
    pub(crate) renew_every: Duration,
    pub(crate) limit: Option<u32>,
    pub(crate) permits: Option<u32>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) replicas: Option<u32>,
    pub(crate) on_lost: Option<OnLost>,
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Options {
        Options {
            lease: Duration::from_secs(30),
            wait: None,
            keep: Duration::from_secs(10),
            margin: None,
            max_hold: Some(Duration::from_secs(24 * 60 * 60)),
            at_least: Duration::ZERO,
            is_shared: false,
            is_session: false,
            renews: true,
            renew_every: Duration::MAX,
            limit: None,
            permits: None,
            data: None,
            replicas: None,
            on_lost: None,
        }
    }

    setters! {
        /// Sets the lease, 30 s by default: how long the lock stays if nothing renews it.
        lease(lease: Duration) => lease: lease;
        /// Sets how long an acquire without a limit waits, for ever by default. Zero tries once.
        wait(wait: Duration) => wait: Some(wait);
        /// Sets the longest time between two renewals, if a third of the lease is longer.
        renew_every(every: Duration) => renew_every: every;
        /// Turns renewal off. The lock is lost at the end of the lease unless the caller extends it.
        without_renewal() => renews: false;
        /// Sets how long before the end of the lease a grant counts as lost, so that the program can
        /// stop before another client has the lock. It is shorter than the lease, and by default a
        /// tenth of it, at most 1 s. Zero is none.
        margin(margin: Duration) => margin: Some(margin);
        /// Sets the longest hold, 24 h by default. The last renewal ends then, and the lock is lost.
        max_hold(max_hold: Duration) => max_hold: Some(max_hold);
        /// Renews the lock as long as it is held.
        without_max_hold() => max_hold: None;
        /// Keeps the lock for at least this long after its grant, also if it is released earlier. Zero
        /// by default. A lock that was lost isn't kept.
        at_least(at_least: Duration) => at_least: at_least;
        /// Sets how long the server keeps the place in the queue while the connection is lost, 10 s by
        /// default.
        keep(keep: Duration) => keep: keep;
        /// Makes the lock shared: shared holders admit each other.
        shared() => is_shared: true;
        /// Makes the lock a semaphore of this many permits, 1 to 2^32 - 1.
        limit(limit: u32) => limit: Some(limit);
        /// Sets how many permits of the semaphore this lock takes, 1 by default.
        permits(permits: u32) => permits: Some(permits);
        /// Ties each grant to a connection of its own. The server releases the lock when the connection
        /// closes.
        session() => is_session: true;
        /// Sets the data of the holder, up to 1024 bytes, which LOCK.INFO shows to everyone who may read
        /// the key.
        data(data: impl Into<Vec<u8>>) => data: Some(data.into());
        /// Lets a grant count only when this many replicas, 1 to 1000, have acknowledged it within the
        /// command timeout. Otherwise acquiring fails with [`Error::NotReplicated`], and the lock is
        /// released.
        replicas(replicas: u32) => replicas: Some(replicas);
        /// Sets a function that is called once for each loss, in a thread of its own.
        on_lost(on_lost: impl Fn(&Subject<'_>) + Send + Sync + 'static) =>
            on_lost: Some(OnLost(Arc::new(on_lost)));
    }

    /// Returns an error that names the first wrong option.
    pub(crate) fn check(&self) -> Result<(), Error> {
        positive("lease", self.lease)?;
        positive("keep", self.keep)?;
        positive("renew_every", self.renew_every.min(LONGEST))?;
        self.max_hold
            .map_or(Ok(()), |it| positive("max_hold", it))?;
        not_too_long("at_least", self.at_least)?;
        self.wait.map_or(Ok(()), |it| not_too_long("wait", it))?;
        if self.margin.is_some_and(|margin| margin >= self.lease) {
            return Err(Error::argument("margin", "must be shorter than the lease"));
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
    /// Returns the keys one by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

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
