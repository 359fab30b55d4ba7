//! The keys of a lock, and its options.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::observer::Subject;

/// The longest time of any option and argument, which the server accepts.
const LONGEST: Duration = Duration::from_millis((1 << 53) - 1);

/// The longest hold by default.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

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

/// A function that hears of a loss.
#[derive(Clone)]
pub(crate) struct OnLost(pub(crate) Arc<dyn Fn(&Subject<'_>) + Send + Sync>);

impl fmt::Debug for OnLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

/// Makes the options: a field for each, with its default, and the method that sets it.
macro_rules! options {
    ($(
        $(#[$doc:meta])*
        $field:ident: $type:ty = $default:expr,
        by $name:ident($($argument:ident: $kind:ty)?) => $value:expr;
    )*) => {
        /// Options of a lock. `Options::new()` is an exclusive lock with a lease of 30 seconds,
        /// which is renewed while the lock is held, for 24 hours at most.
        ///
        /// Times are rounded up to whole milliseconds. Each is 1 ms to 2^53 - 1 ms, unless its
        /// option says otherwise. `lock_with` checks all values.
        #[derive(Clone, Debug)]
        #[must_use = "options do nothing until they are passed to `lock_with`"]
        pub struct Options {
            $(pub(crate) $field: $type,)*
        }

        impl Default for Options {
            fn default() -> Options {
                Options {
                    $($field: $default,)*
                }
            }
        }

        impl Options {
            $(
                $(#[$doc])*
                pub fn $name(mut self $(, $argument: $kind)?) -> Options {
                    self.$field = $value;
                    self
                }
            )*
        }
    };
}

options! {
    /// Sets the lease, 30 s by default: how long the lock stays if nothing renews it.
    lease: Duration = Duration::from_secs(30), by lease(lease: Duration) => lease;
    /// Sets how long an acquire without a limit waits, for ever by default. Zero tries once.
    wait: Option<Duration> = None, by wait(wait: Duration) => Some(wait);
    /// Sets the longest time between two renewals, if a third of the lease is longer.
    renew_every: Duration = LONGEST, by renew_every(every: Duration) => every;
    /// Turns renewal off. The lock is lost at the end of the lease unless the caller extends it.
    renews: bool = true, by without_renewal() => false;
    /// Sets how long before the end of the lease a grant counts as lost, so that the program can
    /// stop before another client has the lock. It is shorter than the lease, and by default a
    /// tenth of it, at most 1 s. Zero is none.
    margin: Option<Duration> = None, by margin(margin: Duration) => Some(margin);
    /// Sets the longest hold, 24 h by default. The last renewal ends then, and the lock is lost.
    max_hold: Option<Duration> = Some(DAY), by max_hold(max_hold: Duration) => Some(max_hold);
    /// Keeps the lock for at least this long after its grant, also if it is released earlier. Zero
    /// by default. A lock that was lost isn't kept.
    at_least: Duration = Duration::ZERO, by at_least(at_least: Duration) => at_least;
    /// Sets how long the server keeps the place in the queue while the connection is lost, 10 s by
    /// default.
    keep: Duration = Duration::from_secs(10), by keep(keep: Duration) => keep;
    /// Makes the lock shared: shared holders admit each other.
    is_shared: bool = false, by shared() => true;
    /// Makes the lock a semaphore of this many permits, 1 to 2^32 - 1.
    limit: Option<u32> = None, by limit(limit: u32) => Some(limit);
    /// Sets how many permits of the semaphore this lock takes, 1 by default.
    permits: Option<u32> = None, by permits(permits: u32) => Some(permits);
    /// Ties each grant to a connection of its own. The server releases the lock when the connection
    /// closes.
    is_session: bool = false, by session() => true;
    /// Sets the data of the holder, up to 1024 bytes, which LOCK.INFO shows to everyone who may
    /// read the key.
    data: Option<Vec<u8>> = None, by data(data: impl Into<Vec<u8>>) => Some(data.into());
    /// Lets a grant count only when this many replicas, 1 to 1000, have acknowledged it within the
    /// command timeout. Otherwise acquiring fails with [`Error::NotReplicated`], and the lock is
    /// released.
    replicas: Option<u32> = None, by replicas(replicas: u32) => Some(replicas);
    /// Sets a function that is called once for each loss, in a thread of its own.
    on_lost: Option<OnLost> = None,
    by on_lost(on_lost: impl Fn(&Subject<'_>) + Send + Sync + 'static) =>
        Some(OnLost(Arc::new(on_lost)));
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Renews the lock as long as it is held.
    pub fn without_max_hold(mut self) -> Options {
        self.max_hold = None;
        self
    }

    /// Returns the longest hold. A lease that is never renewed has no limit.
    pub(crate) fn longest_hold(&self) -> Duration {
        let longest = self.max_hold.filter(|_| self.renews || self.is_session);
        longest.unwrap_or(Duration::MAX)
    }

    /// Returns an error that names the first wrong option.
    pub(crate) fn check(&self) -> Result<(), Error> {
        positive("lease", self.lease)?;
        positive("keep", self.keep)?;
        positive("renew_every", self.renew_every)?;
        positive("max_hold", self.max_hold.unwrap_or(DAY))?;
        not_too_long("at_least", self.at_least)?;
        not_too_long("wait", self.wait.unwrap_or_default())?;
        let (margin, limit) = (self.margin.unwrap_or_default(), self.limit.unwrap_or(1));
        rule("margin", margin < self.lease, "must be below the lease")?;
        rule("limit", limit > 0, "must be 1 to 4294967295")?;
        let has_limit = self.limit.is_some() || self.permits.is_none();
        rule("permits", has_limit, "needs a limit")?;
        let are_there = self.permits.is_none_or(|it| (1..=limit).contains(&it));
        rule("permits", are_there, "must be 1 to the limit")?;
        let is_short = self.data.as_ref().is_none_or(|it| it.len() <= 1024);
        rule("data", is_short, "must be up to 1024 bytes")?;
        let are_few = self.replicas.is_none_or(|it| (1..=1000).contains(&it));
        rule("replicas", are_few, "must be 1 to 1000")
    }
}

impl Keys {
    /// Returns the keys one by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let unique: HashSet<_> = self.iter().collect();
        rule("keys", !self.0.is_empty(), "a lock needs a key")?;
        rule("keys", unique.len() == self.0.len(), "a key is there twice")
    }
}

pub(crate) fn positive(argument: &'static str, time: Duration) -> Result<(), Error> {
    rule(argument, !time.is_zero(), "must be longer than zero")?;
    not_too_long(argument, time)
}

pub(crate) fn not_too_long(argument: &'static str, time: Duration) -> Result<(), Error> {
    rule(argument, time <= LONGEST, "must be up to 2^53 - 1 ms")
}

/// Returns an error of an argument that breaks a rule.
pub(crate) fn rule(
    argument: &'static str,
    is_kept: bool,
    reason: &'static str,
) -> Result<(), Error> {
    is_kept
        .then_some(())
        .ok_or(Error::InvalidArgument { argument, reason })
}
