//! Errors, and which of them are outages: errors after which a command is sent again.

use std::time::Duration;

use redis::{make_extension_error, ErrorKind, RedisError};
use tokio::time::Instant;

/// The error of a call on a lock.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument was refused. Nothing was sent.
    #[error("{argument}: {reason}")]
    InvalidArgument {
        /// The name of the argument.
        argument: &'static str,
        /// The rule that the argument breaks.
        reason: String,
    },
    /// The wait option of the lock ended while someone else held the lock.
    #[error("the lock was not acquired within {0:?}")]
    NotAcquired(Duration),
    /// The wait was cancelled, by `cancel` or by another client's LOCK.CANCEL.
    #[error("the wait for the lock was cancelled")]
    Cancelled,
    /// The server refused a wait that would never end.
    #[error("the wait would never end: {0}")]
    Deadlock(String),
    /// No server answered in time, or the server could not serve the lock at the moment.
    #[error("{text}")]
    Unavailable {
        /// The cause in words.
        text: String,
        /// The last error of the redis crate, unless a reply was missing.
        #[source]
        cause: Option<RedisError>,
    },
    /// The server doesn't know the commands of locks.
    #[error("this server hasn't loaded redis-lock")]
    ModuleMissing,
    /// Too few replicas acknowledged the grant. It was released.
    #[error("too few replicas have the lock: {0}")]
    NotReplicated(String),
    /// The lock was released before, by `release_all`.
    #[error("the lock was released before")]
    NotHeld,
    /// Any other error of the server or the redis crate.
    #[error(transparent)]
    Redis(RedisError),
}

impl Error {
    pub(crate) fn argument(argument: &'static str, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        Error::InvalidArgument { argument, reason }
    }
}

/// The reason why a command has no reply that counts.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Sending the command again can help.
    Outage(Outage),
    /// The key is at another node, to which the command goes at once.
    Moved(Redirect),
    /// Sending the command again can't help.
    Final(Error),
}

/// A server that doesn't answer, or can't serve locks at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    text: String,
    cause: Option<RedisError>,
    /// True if the command was sent and not refused, so it may have run.
    pub(crate) may_have_run: bool,
}

/// The address of a node, as the error of another node names it.
#[derive(Clone, Debug)]
pub(crate) struct Redirect {
    pub(crate) address: String,
    /// True if only this command is to go there (ASK).
    pub(crate) once: bool,
}

impl Outage {
    pub(crate) fn new(text: String) -> Outage {
        Outage {
            text,
            cause: None,
            may_have_run: false,
        }
    }

    pub(crate) fn no_answer(server: &str, within: Duration) -> Outage {
        Outage::new(format!(
            "no answer from the server {server} within {}",
            shown(within)
        ))
    }

    /// Returns the outage of a command that was sent.
    pub(crate) fn after_sending(self) -> Outage {
        Outage {
            may_have_run: true,
            ..self
        }
    }

    /// Returns the error for the caller, with more words at its end.
    pub(crate) fn error(&self, more: &str) -> Error {
        Error::Unavailable {
            text: format!("{}{more}", self.text),
            cause: self.cause.clone(),
        }
    }
}

impl Failure {
    /// Classifies an error of a server. `token` is removed from the texts.
    pub(crate) fn of(error: RedisError, server: &str, token: &[u8]) -> Failure {
        let detail = error.detail().unwrap_or_default();
        let code = error.code().unwrap_or_default();
        if let Some((address, _)) = error.redirect_node() {
            return Failure::Moved(Redirect {
                address: address.to_owned(),
                once: code == "ASK",
            });
        }
        let is_outage = match code {
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "OOM"
            | "MISCONF" | "BUSY" => true,
            "UNBLOCKED" => detail.contains("instance state changed"),
            "ERR" => detail.contains("max number of clients"),
            _ => matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse),
        };
        if is_outage {
            let text = format!("{server}: {}", words(&error));
            return Failure::Outage(Outage {
                text,
                cause: Some(error),
                may_have_run: false,
            });
        }
        Failure::Final(match code {
            "UNBLOCKED" if detail.contains("LOCK.CANCEL") => Error::Cancelled,
            "DEADLOCK" => Error::Deadlock(detail.to_owned()),
            "NOREPLICAS" => Error::NotReplicated(detail.to_owned()),
            _ if detail.contains("unknown command") => Error::ModuleMissing,
            _ => Error::Redis(without(token, error)),
        })
    }
}

/// Returns the cause of an outage in words.
fn words(error: &RedisError) -> String {
    if error.is_connection_refusal() {
        return "connection refused".to_owned();
    }
    if error.is_connection_dropped() {
        return "the connection was lost".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some("LOADING"), _) => "the server is loading its data".to_owned(),
        (Some("READONLY"), _) => "the server is a replica, which grants no locks".to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => {
            let text = error.to_string();
            let end = text.find(" (os error").unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

/// Returns the error without the token, which a server may quote.
fn without(token: &[u8], error: RedisError) -> RedisError {
    let token = String::from_utf8_lossy(token);
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) if !token.is_empty() && detail.contains(&*token) => {
            make_extension_error(code.to_owned(), Some(detail.replace(&*token, "<token>")))
        }
        _ => error,
    }
}

/// Returns a duration as people write it: 250 ms, 1 s, 1.5 s.
pub(crate) fn shown(duration: Duration) -> String {
    let ms = (duration.as_secs_f64() * 1000.0).round();
    if ms < 1000.0 {
        format!("{ms} ms")
    } else {
        format!("{} s", (ms / 100.0).round() / 10.0)
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

    /// Returns the time of the next try after one that began at `began`. A try that has taken longer
    /// than the pause needs none.
    pub(crate) fn next(&mut self, began: Instant) -> Instant {
        let at = Instant::now().max(began + self.0);
        self.0 = (self.0 * 2).min(Backoff::LONGEST);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(line: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let error = reply.and_then(redis::Value::extract_error);
        Failure::of(error.expect_err("an error"), "server", b"secret")
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut backoff = Backoff::new();
        for expected_ms in [50, 100, 200, 400, 800, 1000, 1000] {
            let began = Instant::now();
            let pause = backoff.next(began) - began;
            let expected = Duration::from_millis(expected_ms);
            assert!(pause >= expected && pause < expected * 2, "{pause:?}");
        }
        let long_ago = Instant::now() - Duration::from_secs(2);
        assert!(backoff.next(long_ago) <= Instant::now());
    }

    #[test]
    fn what_may_pass_is_an_outage() {
        for line in [
            "LOADING Redis is loading the dataset in memory",
            "READONLY locks are granted by the primary alone",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Errors writing to the AOF file",
            "BUSY Redis is busy running a script",
            "ERR max number of clients reached",
            "UNBLOCKED force unblock, instance state changed (master -> replica?)",
        ] {
            assert!(matches!(failure(line), Failure::Outage(_)), "{line}");
        }
        for line in [
            "UNBLOCKED a newer connection took over",
            "WRONGTYPE Operation",
            "NOPERM this user has no permissions",
            "MAXWAITERS too many",
            "ERR syntax error",
        ] {
            let failure = failure(line);
            assert!(matches!(failure, Failure::Final(Error::Redis(_))), "{line}");
        }
    }

    #[test]
    fn errors_of_locks_have_their_own_kinds() {
        let error = |line| match failure(line) {
            Failure::Final(error) => error,
            other => panic!("{other:?}"),
        };
        let cancelled = error("UNBLOCKED this wait was given up by LOCK.CANCEL");
        assert!(matches!(cancelled, Error::Cancelled));
        let deadlock = error("DEADLOCK another holder waits");
        assert!(matches!(deadlock, Error::Deadlock(_)));
        let replicas = error("NOREPLICAS too few");
        assert!(matches!(replicas, Error::NotReplicated(_)));
        let unknown = error("ERR unknown command 'LOCK.WAIT', with args beginning with: 'secret'");
        assert!(matches!(unknown, Error::ModuleMissing));
        let text = format!("{0} {0:?}", error("ERR 'secret' is wrong"));
        assert!(text.contains("<token>") && !text.contains("secret"));
    }

    #[test]
    fn an_error_of_a_command_without_a_token_keeps_its_text() {
        let reply = redis::parse_redis_value(b"-WRONGPASS invalid password\r\n");
        let error = reply.and_then(redis::Value::extract_error);
        let failure = Failure::of(error.expect_err("an error"), "server", b"");
        let Failure::Final(Error::Redis(error)) = failure else {
            panic!("{failure:?}");
        };
        assert_eq!(error.detail(), Some("invalid password"));
    }

    #[test]
    fn an_outage_has_its_cause_in_words() {
        let text = |failure| match failure {
            Failure::Outage(outage) => outage.error("").to_string(),
            other => panic!("{other:?}"),
        };
        let of = |kind: std::io::ErrorKind| {
            text(Failure::of(
                std::io::Error::from(kind).into(),
                "server",
                b"secret",
            ))
        };
        use std::io::ErrorKind::{BrokenPipe, ConnectionRefused};
        assert_eq!(of(ConnectionRefused), "server: connection refused");
        assert_eq!(of(BrokenPipe), "server: the connection was lost");
        let numbered = std::io::Error::from_raw_os_error(113);
        let numbered = text(Failure::of(numbered.into(), "server", b"secret"));
        assert!(!numbered.contains("os error"), "{numbered}");
        let loading = text(failure("LOADING Redis is loading"));
        assert_eq!(loading, "server: the server is loading its data");
        for (ms, words) in [(0, "0 ms"), (250, "250 ms"), (1000, "1 s"), (1540, "1.5 s")] {
            assert_eq!(shown(Duration::from_millis(ms)), words);
        }
    }
}
