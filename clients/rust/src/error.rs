//! What goes wrong, and what may be sent again.

use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why a call on a lock failed. Not getting a lock in time is no error: it is `None`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait was given up, by `cancel` or by a LOCK.CANCEL of somebody else.
    #[error("the wait for the lock was given up")]
    Cancelled,
    /// The server refused a wait that would never end.
    #[error("the wait would never end: {0}")]
    Deadlock(String),
    /// A session needs a connection of its own.
    #[error("a session needs a connection of its own, and this one is shared")]
    Unsupported,
    /// Anything else, as the redis crate says it.
    #[error(transparent)]
    Redis(RedisError),
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        let detail = error.detail().unwrap_or_default();
        match error.code() {
            Some("UNBLOCKED") if detail.contains("LOCK.CANCEL") => Error::Cancelled,
            Some("DEADLOCK") => Error::Deadlock(detail.to_owned()),
            _ => Error::Redis(error),
        }
    }
}

/// Whether the same command is to be sent again on a new connection.
pub(crate) fn may_pass(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
        ),
        // The server's own words to those who wait as it becomes a replica.
        _ => {
            error.code() == Some("UNBLOCKED")
                && error
                    .detail()
                    .is_some_and(|text| text.contains("instance state changed"))
        }
    }
}

/// Ever longer pauses between tries that fail.
pub(crate) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Backoff {
        Backoff(Backoff::FIRST)
    }

    /// When to try again, but no later than `until`.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Instant {
        let at = Instant::now() + self.0;
        self.0 = (self.0 * 2).min(Backoff::LONGEST);
        until.map_or(at, |until| at.min(until))
    }
}
