//! A recipe of a lock: its keys and options, and the commands that they make.

use std::fmt;
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
        let longest = self.options.max_hold.map(|hold| hold + self.margin());
        longest.map_or(self.options.lease, |it| it.min(self.options.lease))
    }

    /// Returns how long the server may have a place or a grant of a token that it doesn't hear of.
    pub(crate) fn longest_trace(&self) -> Duration {
        self.first_lease().max(self.options.keep)
    }

    pub(crate) fn acquire(&self, token: &[u8], replicas_within: Duration) -> Cmd {
        let mut command = self.grant("ACQUIRE", token);
        self.add_replicas(&mut command, replicas_within);
        command
    }

    /// Returns the WAIT of a part of the time that is left. The last one leaves no place.
    pub(crate) fn wait(
        &self,
        token: &[u8],
        block: Duration,
        left: Duration,
        replicas_within: Duration,
    ) -> Cmd {
        let mut command = self.grant("WAIT", token);
        command.arg("BLOCK").arg(ms(block).max(1));
        if block < left {
            let rest = left.saturating_add(Duration::from_secs(1));
            command.arg("KEEP").arg(ms(self.options.keep.min(rest)));
        }
        self.add_replicas(&mut command, replicas_within);
        command
    }

    /// Returns the EXTEND that ties the grant of a session to the connection of the command.
    pub(crate) fn extend(&self, token: &[u8], lease: Duration) -> Cmd {
        let mut command = self.command("EXTEND", token);
        command.arg("PX").arg(ms(lease).max(1)).arg("GT");
        if self.options.is_session {
            command.arg("SESSION");
        }
        command
    }

    pub(crate) fn release(&self, token: &[u8]) -> Cmd {
        self.command("RELEASE", token)
    }

    /// Returns the command that ends the lock later, without its connection.
    pub(crate) fn release_after(&self, token: &[u8], rest: Duration) -> Cmd {
        let mut command = self.command("EXTEND", token);
        command.arg("PX").arg(ms(rest).max(1));
        if self.options.is_session {
            command.arg("NOSESSION");
        }
        command
    }

    pub(crate) fn leave(&self, token: &[u8], time: Duration) -> Cmd {
        let mut command = self.command("RELEASE", token);
        command.arg("LEAVE").arg(ms(time.min(LONGEST_LEAVE)).max(1));
        command
    }

    fn grant(&self, verb: &str, token: &[u8]) -> Cmd {
        let options = &self.options;
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
        command
    }

    fn add_replicas(&self, command: &mut Cmd, within: Duration) {
        if let Some(replicas) = self.options.replicas {
            command.arg("REPLICAS").arg(replicas);
            command.arg("WITHIN").arg(ms(within).max(1));
        }
    }

    fn command(&self, verb: &str, token: &[u8]) -> Cmd {
        let mut command = match self.keys.0.as_slice() {
            [_] => cmd(&format!("LOCK.{verb}")),
            keys => {
                let mut command = cmd(&format!("LOCK.M{verb}"));
                command.arg(keys.len());
                command
            }
        };
        command.arg(&self.keys.0).arg(token);
        command
    }
}

/// Returns a time in whole milliseconds, rounded up.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("keys", &self.keys.to_string())
            .field("options", &self.options)
            .finish()
    }
}
