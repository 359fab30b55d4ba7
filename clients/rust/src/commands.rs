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

/// What ACQUIRE, WAIT and QUEUE are answered.
pub(crate) enum Answer {
    Granted(i64),
    NotNow,
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

    pub(crate) fn acquire(&self, holds: u32) -> Cmd {
        let mut command = self.asking("ACQUIRE", self.options.lease);
        self.add_mode(&mut command, holds);
        self.add_session(&mut command);
        command
    }

    /// `left` is the time that is left for the wait, if it ends at all.
    pub(crate) fn wait(&self, holds: u32, left: Option<Duration>) -> Cmd {
        let mut command = self.asking("WAIT", self.options.lease);
        if let Some(left) = left {
            command.arg("BLOCK").arg(ms(left).max(1));
        }
        self.add_mode(&mut command, holds);
        match self.options.renewal {
            // With SESSION, KEEP would keep the grant beyond the connection, too.
            Renewal::Session => self.add_session(&mut command),
            Renewal::Client | Renewal::Nobody => {
                command.arg("KEEP").arg(ms(self.options.keep));
            }
        }
        command
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn queue(&self, holds: u32, channel: &str, message: u64) -> Cmd {
        let mut command = self.asking("QUEUE", self.options.lease);
        command.arg("KEEP").arg(ms(self.options.keep));
        command.arg("NOTIFY").arg(channel).arg(message);
        self.add_mode(&mut command, holds);
        command
    }

    pub(crate) fn extend(&self, lease: Duration) -> Cmd {
        self.asking("EXTEND", lease)
    }

    /// Extends, and ties the grant to the connection that sends this.
    pub(crate) fn tie(&self, lease: Duration) -> Cmd {
        let mut command = self.asking("EXTEND", lease);
        command.arg("SESSION");
        command
    }

    /// Leaves so many holds.
    pub(crate) fn release(&self, holds: u32) -> Cmd {
        let mut command = self.start("RELEASE");
        command.arg("HOLDS").arg(holds);
        command
    }

    /// One key stands for all of a wait.
    pub(crate) fn cancel(&self) -> Cmd {
        let mut command = cmd("LOCK.CANCEL");
        command.arg(self.route()).arg(&self.token);
        command
    }

    /// One for each key.
    pub(crate) fn checks(&self) -> impl Iterator<Item = Cmd> + '_ {
        self.keys.iter().map(|key| {
            let mut command = cmd("LOCK.CHECK");
            command.arg(key).arg(&self.token);
            command
        })
    }

    /// Whether an EXTEND or a RELEASE of all keys was carried out.
    pub(crate) fn held_all(&self, answer: &Value) -> bool {
        matches!(answer, Value::Int(held) if usize::try_from(*held) == Ok(self.keys.len()))
    }

    fn start(&self, name: &str) -> Cmd {
        let mut command = match self.keys.len() {
            1 => cmd(&format!("LOCK.{name}")),
            count => {
                let mut command = cmd(&format!("LOCK.M{name}"));
                command.arg(count);
                command
            }
        };
        command.arg(&self.keys).arg(&self.token);
        command
    }

    fn asking(&self, name: &str, lease: Duration) -> Cmd {
        let mut command = self.start(name);
        command.arg("PX").arg(ms(lease));
        command
    }

    fn add_mode(&self, command: &mut Cmd, holds: u32) {
        match self.options.mode {
            Mode::Exclusive => {}
            Mode::Shared => {
                command.arg("SHARED");
            }
            Mode::Limited { limit, permits } => {
                command.arg("SHARED").arg("LIMIT").arg(limit);
                command.arg("PERMITS").arg(permits);
            }
        }
        command.arg("HOLDS").arg(holds);
    }

    fn add_session(&self, command: &mut Cmd) {
        if self.options.renewal == Renewal::Session {
            command.arg("SESSION");
        }
    }
}

/// Reads the answer to ACQUIRE, WAIT or QUEUE.
pub(crate) fn answer(value: &Value) -> RedisResult<Answer> {
    match value {
        Value::Nil | Value::Int(_) => Ok(Answer::NotNow),
        Value::Array(grant) => match grant.as_slice() {
            [_, Value::Int(fence)] => Ok(Answer::Granted(*fence)),
            _ => Err(not_ours()),
        },
        _ => Err(not_ours()),
    }
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
