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
        reason: &'static str,
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
    /// Returns the outage of a command that got no reply in time.
    pub(crate) fn late(server: &str, within: Duration) -> Error {
        Error::Unavailable {
            text: format!("no answer from {server} within {} ms", within.as_millis()),
            cause: None,
        }
    }

    /// Classifies an error of a server. `token` is removed from the texts.
    pub(crate) fn of(error: RedisError, server: &str, token: &[u8]) -> Error {
        if is_broken(&error) || may_pass(&error) {
            return Error::Unavailable {
                text: format!("{server}: {error}"),
                cause: Some(error),
            };
        }
        let error = match is_refused_by_all(&error) {
            true => (ErrorKind::AuthenticationFailed, REFUSAL).into(),
            false => without(token, error),
        };
        let detail = || error.detail().unwrap_or_default().to_owned();
        match error.code() {
            Some("UNBLOCKED") => Error::Cancelled,
            Some("DEADLOCK") => Error::Deadlock(detail()),
            Some("NOREPLICAS") => Error::NotReplicated(detail()),
            Some("ERR") if is_unknown_lock_command(&error) => Error::ModuleMissing,
            _ => Error::Redis(error),
        }
    }

    /// Returns true if sending the command again can help.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// Returns true if no reply came in time.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Error::Unavailable { cause: None, .. })
    }

    /// Returns true if the connection failed, or leads to a server that can't grant the lock.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self, Error::Unavailable { cause: Some(error), .. } if is_broken(error))
    }
}

fn is_broken(error: &RedisError) -> bool {
    match (error.code(), error.kind()) {
        (Some(code), _) => ["READONLY", "MOVED"].contains(&code),
        (None, ErrorKind::Io) => !is_refused_by_all(error),
        (None, ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound) => true,
        (None, kind) => kind == ErrorKind::MasterNameNotFoundBySentinel,
    }
}

/// Returns true if the server can't serve the lock at the moment.
fn may_pass(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    match error.code().unwrap_or_default() {
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" => true,
        "OOM" | "MISCONF" | "BUSY" => true,
        // A late command of this acquire may have taken over the place.
        "UNBLOCKED" => ["instance state changed", "took over this place"]
            .iter()
            .any(|it| detail.contains(it)),
        // The error of min-replicas-to-write, not that of the option replicas.
        "NOREPLICAS" => detail.contains("Not enough good replicas"),
        "ERR" => detail.contains("max number of clients"),
        _ => false,
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
