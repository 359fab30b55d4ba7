//! The commands of one owner, and the parsing of their replies.

use std::time::Duration;

use redis::{cmd, Cmd, ErrorKind, RedisError, RedisResult, Value};

use crate::options::{Keys, Options, Renewal};

/// The commands of one owner, for each of its tokens.
pub(crate) struct Commands {
    pub(crate) keys: Keys,
    pub(crate) options: Options,
    /// The time within which replicas are to acknowledge a grant.
    replicas_within: Duration,
}

/// The kind of a request for a lock.
pub(crate) enum Request {
    /// One attempt: ACQUIRE.
    Try,
    /// A wait that has its connection to itself: WAIT. `None` sets no limit.
    Wait(Option<Duration>),
    /// A place in the queue, for a shared connection: QUEUE. The server publishes `message` on
    /// `channel` when asking again is worthwhile.
    Place { channel: String, message: u64 },
}

/// The parsed reply to a [`Request`].
pub(crate) enum Answer {
    Granted(i64),
    NotGranted,
    /// The token has a place in the queue.
    Place,
}

impl Commands {
    pub(crate) fn new(keys: Keys, options: Options, replicas_within: Duration) -> Commands {
        Commands {
            keys,
            options,
            replicas_within,
        }
    }

    /// Returns the chosen token, or a new random one.
    pub(crate) fn token(&self) -> Vec<u8> {
        let random = || format!("{:032x}", rand::random::<u128>()).into_bytes();
        self.options.token.clone().unwrap_or_else(random)
    }

    /// Returns the command of a request that is to have `holds` holds.
    pub(crate) fn take(&self, token: &[u8], request: &Request, holds: u32, lease: Duration) -> Cmd {
        let options = &self.options;
        let name = match request {
            Request::Try => "ACQUIRE",
            Request::Wait(_) => "WAIT",
            Request::Place { .. } => "QUEUE",
        };
        let mut command = self.with_lease(name, token, lease);
        if let Request::Wait(Some(left)) = request {
            command.arg("BLOCK").arg(ms(*left).max(1));
        }
        // No KEEP with SESSION, because it would also keep the grant after the connection closes.
        if !matches!(request, Request::Try) && !self.is_session() {
            command.arg("KEEP").arg(ms(options.keep));
        }
        if let Request::Place { channel, message } = request {
            command.arg("NOTIFY").arg(channel).arg(message);
        }
        if options.is_shared || options.limit.is_some() {
            command.arg("SHARED");
        }
        if let Some(limit) = options.limit {
            command.arg("LIMIT").arg(limit);
            command.arg("PERMITS").arg(options.permits.unwrap_or(1));
        }
        // A hold that is added leaves the lock tied to the connection of the first one.
        if self.is_session() && holds == 1 {
            command.arg("SESSION");
        }
        if let Some(data) = &options.data {
            command.arg("DATA").arg(data);
        }
        if let Some(replicas) = options.replicas {
            command.arg("REPLICAS").arg(replicas);
            command.arg("WITHIN").arg(ms(self.replicas_within));
        }
        command.arg("HOLDS").arg(holds).take()
    }

    pub(crate) fn is_session(&self) -> bool {
        self.options.renewal == Renewal::Session
    }

    /// Returns the longest time for which the server holds back a granted lock.
    pub(crate) fn held_back(&self) -> Duration {
        let within = self.replicas_within;
        self.options.replicas.map_or(Duration::ZERO, |_| within)
    }

    pub(crate) fn extend(&self, token: &[u8], lease: Duration) -> Cmd {
        self.with_lease("EXTEND", token, lease)
    }

    /// Returns an EXTEND that also ties a session's grant to the connection that sends it.
    pub(crate) fn renew(&self, token: &[u8], lease: Duration) -> Cmd {
        let mut command = self.extend(token, lease);
        if self.is_session() {
            command.arg("SESSION");
        }
        command
    }

    /// Returns a RELEASE that leaves `holds` holds.
    pub(crate) fn release(&self, token: &[u8], holds: u32) -> Cmd {
        let mut command = self.of_all_keys("RELEASE", token);
        command.arg("HOLDS").arg(holds).take()
    }

    /// Returns an EXTEND that sets a last lease, and unties a session's grant from its connection.
    pub(crate) fn release_after(&self, token: &[u8], rest: Duration) -> Cmd {
        let mut command = self.extend(token, rest);
        if self.is_session() {
            command.arg("NOSESSION");
        }
        command
    }

    /// Returns a CANCEL. One key is enough, because a wait for several keys is cancelled as a
    /// whole.
    pub(crate) fn cancel(&self, token: &[u8]) -> Cmd {
        of_key("CANCEL", self.first_key(), token)
    }

    /// Returns one CHECK for each key.
    pub(crate) fn checks<'a>(&'a self, token: &'a [u8]) -> impl Iterator<Item = Cmd> + 'a {
        let keys = self.keys.0.iter();
        keys.map(move |key| of_key("CHECK", key, token))
    }

    /// Returns true if an EXTEND or a RELEASE found all keys held.
    pub(crate) fn held_all(&self, answer: &Value) -> bool {
        matches!(answer, Value::Int(held) if usize::try_from(*held) == Ok(self.keys.0.len()))
    }

    /// Returns the key that selects the node of a cluster.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.keys.0.first().map_or(&[], Vec::as_slice)
    }

    fn of_all_keys(&self, name: &str, token: &[u8]) -> Cmd {
        if let [key] = self.keys.0.as_slice() {
            return of_key(name, key, token);
        }
        let mut command = cmd(&format!("LOCK.M{name}"));
        command.arg(self.keys.0.len()).arg(&self.keys.0);
        command.arg(token).take()
    }

    fn with_lease(&self, name: &str, token: &[u8], lease: Duration) -> Cmd {
        let mut command = self.of_all_keys(name, token);
        command.arg("PX").arg(ms(lease)).take()
    }
}

fn of_key(name: &str, key: &[u8], token: &[u8]) -> Cmd {
    let mut command = cmd(&format!("LOCK.{name}"));
    command.arg(key).arg(token).take()
}

/// Parses the reply to ACQUIRE, WAIT or QUEUE.
pub(crate) fn answer(value: &Value) -> RedisResult<Answer> {
    match value {
        Value::Nil => return Ok(Answer::NotGranted),
        Value::Int(_) => return Ok(Answer::Place),
        Value::Array(grant) => {
            if let [_, Value::Int(fence)] = grant.as_slice() {
                return Ok(Answer::Granted(*fence));
            }
        }
        _ => {}
    }
    Err(not_ours())
}

/// Parses the reply to CHECK, which is the remaining lease.
pub(crate) fn left(value: &Value) -> RedisResult<Duration> {
    match value {
        Value::Int(left) => Ok(Duration::from_millis(u64::try_from(*left).unwrap_or(0))),
        _ => Err(not_ours()),
    }
}

fn not_ours() -> RedisError {
    let said = "not an answer of the redis-lock module";
    (ErrorKind::UnexpectedReturnType, said).into()
}

/// Returns milliseconds, rounded up because a time must not end early.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
