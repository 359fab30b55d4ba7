//! The ways to take a lock that nobody contends for and to give it back: two commands each.

use anyhow::Result;
use redis_lock_load::Connection;

use crate::reply::{Reply, GRANT};
use crate::stage::{load_script, token, CompareAndDelete, Script, COMPARE_AND_DELETE};
use crate::wire::Wire;

/// Nothing but two round trips: what a pair costs at least.
pub const PING: &str = "PING + PING";
/// Without a check whose lock it is: what nobody should do, and the floor of all who do.
pub const DELETE: &str = "SET NX PX + DEL";
/// What the libraries do.
pub const SCRIPT: &str = "SET NX PX + EVALSHA";
/// What the newest servers can do by themselves.
pub const COMPARE: &str = "SET NX PX + compare-and-delete";
/// This module.
pub const LOCK: &str = "LOCK.ACQUIRE + LOCK.RELEASE";

/// Longer than any run.
const LEASE: &str = "PX 600000";

/// One way, with its commands for a number of keys packed.
pub struct Pairs {
    /// What it is called.
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

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sends the pairs from one number up to another, so many commands at once, and checks every
    /// answer.
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

/// All ways that a server knows, for so many keys.
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
