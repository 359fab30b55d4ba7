//! The commands of one lock as they are sent, and how their answers are read.

use std::time::Duration;

use redis::{cmd, Cmd, ErrorKind, RedisError, RedisResult, Value};

use crate::options::{Keys, Mode, Options, Renewal};

/// One owner's words to the server.
pub(crate) struct Commands {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) token: Vec<u8>,
    pub(crate) options: Options,
}

/// How a lock is asked for.
#[derive(PartialEq, Eq)]
pub(crate) enum Request {
    /// Once.
    Try,
    /// By a wait that has its connection to itself.
    Wait,
    /// By a place in the queue, where the connection is shared. This message on this channel tells of the turn.
    #[cfg_attr(
        not(feature = "tokio"),
        expect(dead_code, reason = "threads share none")
    )]
    Place { channel: String, message: u64 },
}

/// What that is answered.
pub(crate) enum Answer {
    Granted(i64),
    NotGranted,
    /// It has a place in the queue.
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

    /// What a cluster finds the node by.
    pub(crate) fn route(&self) -> &[u8] {
        self.keys.first().map_or(&[], Vec::as_slice)
    }

    /// `left` is the time that is left for a wait, if it ends at all.
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
        // With SESSION, KEEP would keep the grant beyond the connection, too.
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
        command.arg("HOLDS").arg(holds).take()
    }

    pub(crate) fn extend(&self, lease: Duration) -> Cmd {
        self.with_lease("EXTEND", lease)
    }

    /// Extends, and ties the grant of a session to the connection that sends this.
    pub(crate) fn renew(&self, lease: Duration) -> Cmd {
        let mut command = self.extend(lease);
        if self.options.renewal == Renewal::Session {
            command.arg("SESSION");
        }
        command
    }

    /// Leaves so many holds.
    pub(crate) fn release(&self, holds: u32) -> Cmd {
        self.of_all_keys("RELEASE").arg("HOLDS").arg(holds).take()
    }

    /// Leaves the grant to the end of this lease, and unties it from its connection.
    pub(crate) fn release_after(&self, rest: Duration) -> Cmd {
        let mut command = self.extend(rest);
        if self.options.renewal == Renewal::Session {
            command.arg("NOSESSION");
        }
        command
    }

    /// One key stands for all of a wait.
    pub(crate) fn cancel(&self) -> Cmd {
        self.of_key("CANCEL", self.route())
    }

    /// One for each key.
    pub(crate) fn checks(&self) -> impl Iterator<Item = Cmd> + '_ {
        self.keys.iter().map(|key| self.of_key("CHECK", key))
    }

    /// Whether an EXTEND or a RELEASE of all keys was carried out.
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

/// Reads the answer to ACQUIRE, WAIT or QUEUE.
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

/// Reads the answer to CHECK: what is left of the lease.
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

/// Rounded up: a wait must not end before its time.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
