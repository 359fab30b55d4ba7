//! A recipe of a lock: its keys and options, and the commands that they make.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{cmd, Cmd, Value};

use crate::error::Error;
use crate::observer::Subject;
use crate::options::{Keys, Options};

/// The longest margin by default.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// The longest time of LEAVE that the server accepts.
const LONGEST_LEAVE: Duration = Duration::from_secs(24 * 60 * 60);

/// The keys and options of a lock. Its clones share it.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// A number that no other lock of this process has.
    pub(crate) id: u64,
    pub(crate) keys: Keys,
    pub(crate) options: Options,
}

impl Recipe {
    /// Returns a recipe, or an error that names the first wrong argument.
    pub(crate) fn new(keys: Keys, options: Options) -> Result<Recipe, Error> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        keys.check()?;
        options.check()?;
        let id = LAST.fetch_add(1, Ordering::Relaxed);
        Ok(Recipe { id, keys, options })
    }

    /// Returns what an observer hears of.
    pub(crate) fn subject(&self, fence: Option<i64>) -> Subject<'_> {
        Subject {
            lock_id: self.id,
            keys: &self.keys,
            fence,
        }
    }

    /// Returns the key that decides which server has the lock.
    pub(crate) fn key(&self) -> &[u8] {
        &self.keys.0[0]
    }

    /// Returns true if a reply of EXTEND or RELEASE counts all keys.
    pub(crate) fn is_all(&self, reply: &Value) -> bool {
        let count = i64::try_from(self.keys.0.len());
        count.is_ok_and(|count| *reply == Value::Int(count))
    }

    /// Returns the time between the deadline and the end of the lease at the server.
    pub(crate) fn margin(&self) -> Duration {
        let usual = (self.options.lease / 10).min(LONGEST_MARGIN);
        self.options.margin.unwrap_or(usual)
    }

    pub(crate) fn first_lease(&self) -> Duration {
        let longest = self.options.longest_hold().saturating_add(self.margin());
        longest.min(self.options.lease)
    }

    /// Returns how long the server may have a place or a grant of a token that it doesn't hear of.
    pub(crate) fn longest_trace(&self) -> Duration {
        self.first_lease().max(self.options.keep)
    }

    /// Returns the command that asks for the lock, and waits for it.
    pub(crate) fn ask(&self, token: &[u8], wait: Option<Wait>, replicated: Duration) -> Cmd {
        let options = &self.options;
        let verb = wait.as_ref().map_or("ACQUIRE", |_| "WAIT");
        let mut command = self.command(verb, token);
        command.arg("PX").arg(ms(self.first_lease()));
        if options.is_shared || options.limit.is_some() {
            command.arg("SHARED");
        }
        if let Some(limit) = options.limit {
            command.arg("LIMIT").arg(limit);
            command.arg("PERMITS").arg(options.permits.unwrap_or(1));
        }
        if let Some(data) = &options.data {
            command.arg("DATA").arg(data);
        }
        if let Some(wait) = wait {
            command.arg("BLOCK").arg(ms(wait.block));
            if let Some(keep) = wait.keep {
                command.arg("KEEP").arg(ms(keep));
            }
        }
        if let Some(replicas) = options.replicas {
            command.arg("REPLICAS").arg(replicas);
            command.arg("WITHIN").arg(ms(replicated));
        }
        command
    }

    /// Returns the EXTEND that ties the grant of a session to the connection of the command.
    pub(crate) fn extend(&self, token: &[u8], lease: Duration) -> Cmd {
        let mut command = self.command("EXTEND", token);
        command.arg("PX").arg(ms(lease)).arg("GT");
        if self.options.is_session {
            command.arg("SESSION");
        }
        command
    }

    /// Returns the RELEASE. `leave` is the time in which late commands of the token are refused.
    pub(crate) fn release(&self, token: &[u8], leave: Option<Duration>) -> Cmd {
        let mut command = self.command("RELEASE", token);
        if let Some(time) = leave {
            command.arg("LEAVE").arg(ms(time.min(LONGEST_LEAVE)));
        }
        command
    }

    /// Returns the command that ends the lock later, without its connection.
    pub(crate) fn release_after(&self, token: &[u8], rest: Duration) -> Cmd {
        let mut command = self.command("EXTEND", token);
        command.arg("PX").arg(ms(rest));
        if self.options.is_session {
            command.arg("NOSESSION");
        }
        command
    }

    fn command(&self, verb: &str, token: &[u8]) -> Cmd {
        let keys = &self.keys.0;
        let mut command = match keys.len() {
            1 => cmd(&format!("LOCK.{verb}")),
            _ => cmd(&format!("LOCK.M{verb}")),
        };
        if keys.len() > 1 {
            command.arg(keys.len());
        }
        command.arg(keys).arg(token);
        command
    }
}

/// The time for which a command waits. Without `keep`, it leaves no place.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) block: Duration,
    pub(crate) keep: Option<Duration>,
}

/// Returns a time in whole milliseconds, rounded up, and at least one.
fn ms(time: Duration) -> u64 {
    let ms = time.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(ms).unwrap_or(u64::MAX)
}
