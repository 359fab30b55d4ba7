//! Errors, and which of them let a command be sent again.

use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The error of a call on a lock. A call that gets no grant in time returns `None` instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait was cancelled, by `cancel` or by another client's LOCK.CANCEL.
    #[error("the wait for the lock was given up")]
    Cancelled,
    /// The server refused a wait that would never end.
    #[error("the wait would never end: {0}")]
    Deadlock(String),
    /// A session, or replicas, were requested on a shared connection.
    #[error("a session, and a wait for replicas, need a connection of their own, and this one is shared")]
    Unsupported,
    /// Any other error, from the redis crate.
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

/// Returns true if the command should be sent again, on a new connection.
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
        // The server's error to its blocked clients when it becomes a replica.
        _ => {
            error.code() == Some("UNBLOCKED")
                && error
                    .detail()
                    .is_some_and(|text| text.contains("instance state changed"))
        }
    }
}

/// The pause between failed tries, which doubles up to a limit.
pub(crate) struct Backoff(Duration);

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) fn new() -> Backoff {
        Backoff(Backoff::FIRST)
    }

    /// Returns the time of the next try, which is `until` at the latest.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Instant {
        let at = Instant::now() + self.0;
        self.0 = (self.0 * 2).min(Backoff::LONGEST);
        until.map_or(at, |until| at.min(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut backoff = Backoff::new();
        for expected_ms in [50, 100, 200, 400, 800, 1000, 1000] {
            let began = Instant::now();
            let pause = backoff.next(None) - began;
            let expected = Duration::from_millis(expected_ms);
            assert!(
                pause >= expected && pause < expected * 2,
                "{pause:?} for {expected:?}"
            );
        }
        let end = Instant::now();
        assert_eq!(backoff.next(Some(end)), end);
    }

    #[test]
    fn what_a_server_says_is_told_apart() {
        let said =
            |line: &[u8]| redis::parse_redis_value(line).and_then(redis::Value::extract_error);
        let error = |line: &[u8]| said(line).expect_err("an error");
        let passes = |line: &[u8]| may_pass(&error(line));
        assert!(passes(b"-LOADING Redis is loading\r\n"));
        assert!(passes(
            b"-READONLY locks are granted by the primary alone\r\n"
        ));
        assert!(passes(
            b"-UNBLOCKED force unblock, instance state changed (master -> replica?)\r\n"
        ));
        assert!(!passes(b"-UNBLOCKED a newer connection took over\r\n"));
        assert!(!passes(b"-WRONGTYPE Operation\r\n"));
        let cancelled = error(b"-UNBLOCKED this wait was given up by LOCK.CANCEL\r\n");
        assert!(matches!(Error::from(cancelled), Error::Cancelled));
        let deadlock = error(b"-DEADLOCK another holder waits\r\n");
        assert!(matches!(Error::from(deadlock), Error::Deadlock(_)));
    }
}
