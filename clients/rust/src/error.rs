//! Errors, and which of them are outages: errors after which a command is sent again.

use std::time::Duration;

use redis::{make_extension_error, ErrorKind, RedisError};

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
    /// The wait of a guarded block ended while another client held the lock.
    #[error("somebody else had the lock all the time")]
    NotAcquired,
    /// The lock was lost before its release.
    #[error("the lock was lost before it was released")]
    LockLost,
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
    /// Sending the command again can't help.
    Final(Error),
}

/// A server that doesn't reply, or can't serve locks at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    text: String,
    cause: Option<RedisError>,
    /// True if no reply came in time, and false if something failed.
    pub(crate) is_late: bool,
}

impl Failure {
    /// Returns the outage of a command that got no reply in time.
    pub(crate) fn late(server: &str, within: Duration) -> Failure {
        Failure::Outage(Outage {
            text: format!("no answer from {server} within {}", shown(within)),
            cause: None,
            is_late: true,
        })
    }

    pub(crate) fn outage(text: String) -> Failure {
        Failure::Outage(Outage {
            text,
            cause: None,
            is_late: false,
        })
    }

    /// Classifies an error of a server. `token` is removed from the texts.
    pub(crate) fn of(error: RedisError, server: &str, token: &[u8]) -> Failure {
        if is_outage(&error) && !is_refused_by_all(&error) {
            return Failure::Outage(Outage {
                text: format!("{server}: {}", words(&error)),
                is_late: error.is_timeout(),
                cause: Some(error),
            });
        }
        let error = match is_refused_by_all(&error) {
            true => (ErrorKind::AuthenticationFailed, REFUSAL).into(),
            false => without(token, error),
        };
        let detail = || error.detail().unwrap_or_default().to_owned();
        Failure::Final(match error.code() {
            Some("UNBLOCKED") => Error::Cancelled,
            Some("DEADLOCK") => Error::Deadlock(detail()),
            Some("NOREPLICAS") => Error::NotReplicated(detail()),
            Some("ERR") if is_unknown_lock_command(&error) => Error::ModuleMissing,
            _ => Error::Redis(error),
        })
    }

    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Failure::Outage(outage) if outage.is_late)
    }

    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Failure::Outage(_))
    }

    pub(crate) fn is_not_replicated(&self) -> bool {
        matches!(self, Failure::Final(Error::NotReplicated(_)))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Outage(Outage { text, cause, .. }) => Error::Unavailable { text, cause },
            Failure::Final(error) => error,
        }
    }
}

/// Returns true if the same command may succeed later, or at another server.
fn is_outage(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        Some(
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK"
            | "OOM" | "MISCONF" | "BUSY",
        ) => true,
        Some("UNBLOCKED") => detail.contains("instance state changed"),
        // The error of min-replicas-to-write, not that of the option replicas.
        Some("NOREPLICAS") => detail.contains("Not enough good replicas"),
        Some("ERR") => detail.contains("max number of clients"),
        Some(_) => false,
        None => matches!(
            error.kind(),
            ErrorKind::Io
                | ErrorKind::Parse
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::MasterNameNotFoundBySentinel
        ),
    }
}

/// The text of the redis crate for a refused user or password.
const REFUSAL: &str = "Password authentication failed";

/// Returns true if no node of a cluster can be used because they refuse the user or the password.
fn is_refused_by_all(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.kind() == ErrorKind::Io && ["NOAUTH", REFUSAL].iter().any(|it| detail.contains(it))
}

fn is_unknown_lock_command(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.starts_with("unknown command 'lock.")
}

/// Returns the cause of an outage in words.
fn words(error: &RedisError) -> String {
    if error.is_connection_refusal() {
        return "connection refused".to_owned();
    }
    if error.is_connection_dropped() && error.detail().is_none() || error.kind() == ErrorKind::Parse
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(line: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let error = reply.and_then(redis::Value::extract_error);
        Failure::of(error.expect_err("an error"), "server", b"secret")
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
        let text = |failure: Failure| match failure {
            Failure::Outage(_) => Error::from(failure).to_string(),
            Failure::Final(error) => panic!("{error:?}"),
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
