//! The ways to acquire and release an uncontended lock, two commands each.

use anyhow::Result;
use redis_lock_load::Connection;

use crate::reply::{Reply, GRANT};
use crate::stage::{load_script, token, CompareAndDelete, Script, COMPARE_AND_DELETE};
use crate::wire::Wire;

/// Two round trips alone: the lower bound of a pair.
pub const PING: &str = "PING + PING";
/// A release without a check of the owner. It is unsafe, and the lower bound of the ways that
/// check.
pub const DELETE: &str = "SET NX PX + DEL";
/// The way of the libraries.
pub const SCRIPT: &str = "SET NX PX + EVALSHA";
/// The compare-and-delete command of the newest servers.
pub const COMPARE: &str = "SET NX PX + compare-and-delete";
/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.ACQUIRE + LOCK.RELEASE";

/// A lease longer than any run.
const LEASE: &str = "PX 600000";

/// One way, with its packed commands for a number of keys.
pub struct Pairs {
    /// The name of the way.
    pub name: &'static str,
    script: Script,
    wanted: [Reply; 2],
    count: usize,
}

impl Pairs {
    fn new(
        name: &'static str,
        count: usize,
        wanted: [Reply; 2],
        commands: impl Fn(&str, &str) -> [String; 2],
    ) -> Pairs {
        let mut script = Script::default();
        for number in 0..count {
            for command in commands(&format!("lock:{number:06}"), &token(number)) {
                script.push(&command);
            }
        }
        Pairs {
            name,
            script,
            wanted,
            count,
        }
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sends the pairs from the first number up to the second, `pipeline` commands at once, and
    /// checks every reply.
    pub fn play(&self, wire: &mut Wire, pairs: (usize, usize), pipeline: usize) -> Result<()> {
        let (mut at, end) = (2 * pairs.0, 2 * pairs.1);
        while at < end {
            let next = end.min(at + pipeline);
            wire.send(self.script.part(at, next))?;
            for command in at..next {
                wire.expect(self.wanted[command % 2])?;
            }
            at = next;
        }
        Ok(())
    }
}

/// Returns all ways that the server supports, for `count` keys.
pub fn all(asker: &mut Connection, count: usize) -> Result<Vec<Pairs>> {
    let sha = load_script(asker, COMPARE_AND_DELETE)?;
    let set = |key: &str, token: &str| format!("SET {key} {token} NX {LEASE}");
    let one = Reply::Int(1);
    let mut all = vec![
        Pairs::new(PING, count, [Reply::Pong; 2], |_, _| {
            ["PING".to_owned(), "PING".to_owned()]
        }),
        Pairs::new(DELETE, count, [Reply::Okay, one], |key, token| {
            [set(key, token), format!("DEL {key}")]
        }),
        Pairs::new(SCRIPT, count, [Reply::Okay, one], |key, token| {
            [set(key, token), format!("EVALSHA {sha} 1 {key} {token}")]
        }),
        Pairs::new(LOCK, count, [GRANT, one], |key, token| {
            [
                format!("LOCK.ACQUIRE {key} {token} {LEASE}"),
                format!("LOCK.RELEASE {key} {token}"),
            ]
        }),
    ];
    if let Some(compare) = CompareAndDelete::of(asker) {
        let commands = |key: &str, token: &str| [set(key, token), compare.on(key, token)];
        let compared = Pairs::new(COMPARE, count, [Reply::Okay, one], commands);
        all.insert(2, compared);
    }
    Ok(all)
}
