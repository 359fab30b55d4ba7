//! The commands of one lock, and the parsing of their replies.

use std::time::Duration;

use redis::{cmd, Cmd, ErrorKind, RedisError, RedisResult, Value};

use crate::options::{Keys, Mode, Options, Renewal};

/// The time within which replicas are to acknowledge a grant.
const REPLICAS_WITHIN: Duration = Duration::from_secs(2);

/// The commands of one owner.
pub(crate) struct Commands {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) token: Vec<u8>,
    pub(crate) options: Options,
}

/// The kind of a request for a lock.
#[derive(PartialEq, Eq)]
pub(crate) enum Request {
    /// One attempt: ACQUIRE.
    Try,
    /// A wait that has its connection to itself: WAIT.
    Wait,
    /// A place in the queue, for a shared connection: QUEUE. The server publishes `message` on
    /// `channel` when asking again is worthwhile.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "threads share no connection")
    )]
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
    pub(crate) fn new(keys: Keys, options: Options) -> Commands {
        let random = || format!("{:032x}", rand::random::<u128>()).into_bytes();
        Commands {
            keys: keys.0,
            token: options.token.clone().unwrap_or_else(random),
            options,
        }
    }

    /// Returns the key that selects the node of a cluster.
    pub(crate) fn route(&self) -> &[u8] {
        self.keys.first().map_or(&[], Vec::as_slice)
    }

    /// Returns the command of a request that is to have `holds` holds. `left` is the remaining time
    /// of a wait; `None` sets no limit.
    pub(crate) fn take(&self, request: &Request, holds: u32, left: Option<Duration>) -> Cmd {
        let is_session = self.options.renewal == Renewal::Session;
        let name = match request {
            Request::Try => "ACQUIRE",
            Request::Wait => "WAIT",
            Request::Place { .. } => "QUEUE",
        };
        let mut command = self.with_lease(name, self.options.lease);
        if let (Request::Wait, Some(left)) = (request, left) {
            command.arg("BLOCK").arg(ms(left).max(1));
        }
        // No KEEP with SESSION, because it would also keep the grant after the connection closes.
        if *request != Request::Try && !is_session {
            command.arg("KEEP").arg(ms(self.options.keep));
        }
        if let Request::Place { channel, message } = request {
            command.arg("NOTIFY").arg(channel).arg(message);
        }
        if self.options.mode != Mode::Exclusive {
            command.arg("SHARED");
        }
        if let Mode::Limited { limit, permits } = self.options.mode {
            command.arg("LIMIT").arg(limit);
            command.arg("PERMITS").arg(permits);
        }
        if is_session {
            command.arg("SESSION");
        }
        if let Some(data) = &self.options.data {
            command.arg("DATA").arg(data);
        }
        if let Some(replicas) = self.options.replicas {
            command.arg("REPLICAS").arg(replicas);
            command.arg("WITHIN").arg(ms(REPLICAS_WITHIN));
        }
        command.arg("HOLDS").arg(holds).take()
    }

    /// Returns the longest time for which the server holds back a granted lock.
    pub(crate) fn held_back(&self) -> Duration {
        self.options
            .replicas
            .map_or(Duration::ZERO, |_| REPLICAS_WITHIN)
    }

    pub(crate) fn extend(&self, lease: Duration) -> Cmd {
        self.with_lease("EXTEND", lease)
    }

    /// Returns an EXTEND that also ties a session's grant to the connection that sends it.
    pub(crate) fn renew(&self, lease: Duration) -> Cmd {
        let mut command = self.extend(lease);
        if self.options.renewal == Renewal::Session {
            command.arg("SESSION");
        }
        command
    }

    /// Returns a RELEASE that leaves `holds` holds.
    pub(crate) fn release(&self, holds: u32) -> Cmd {
        self.of_all_keys("RELEASE").arg("HOLDS").arg(holds).take()
    }

    /// Returns an EXTEND that sets a last lease, and unties a session's grant from its connection.
    pub(crate) fn release_after(&self, rest: Duration) -> Cmd {
        let mut command = self.extend(rest);
        if self.options.renewal == Renewal::Session {
            command.arg("NOSESSION");
        }
        command
    }

    /// Returns a CANCEL. One key is enough, because a wait for several keys is cancelled as a
    /// whole.
    pub(crate) fn cancel(&self) -> Cmd {
        self.of_key("CANCEL", self.route())
    }

    /// Returns one CHECK for each key.
    pub(crate) fn checks(&self) -> impl Iterator<Item = Cmd> + '_ {
        self.keys.iter().map(|key| self.of_key("CHECK", key))
    }

    /// Returns true if an EXTEND or a RELEASE found all keys held.
    pub(crate) fn held_all(&self, answer: &Value) -> bool {
        matches!(answer, Value::Int(held) if usize::try_from(*held) == Ok(self.keys.len()))
    }

    fn of_key(&self, name: &str, key: &[u8]) -> Cmd {
        cmd(&format!("LOCK.{name}"))
            .arg(key)
            .arg(&self.token)
            .take()
    }

    fn of_all_keys(&self, name: &str) -> Cmd {
        if let [key] = self.keys.as_slice() {
            return self.of_key(name, key);
        }
        let mut command = cmd(&format!("LOCK.M{name}"));
        command.arg(self.keys.len()).arg(&self.keys);
        command.arg(&self.token).take()
    }

    fn with_lease(&self, name: &str, lease: Duration) -> Cmd {
        self.of_all_keys(name).arg("PX").arg(ms(lease)).take()
    }
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

/// Returns milliseconds, rounded up because a wait must not end early.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
