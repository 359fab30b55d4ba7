//! The locks of all servers, read little by little.
//!
//! Only some keys are locks, and only SCAN finds them, by a look at every key. A survey spreads this
//! over time, so that it costs a server little. In between, it reads what matters at once: the locks
//! on the screen, and those that clients wait for, which LOCK.HOT reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::arguments::Server;
use crate::hot::HotKeys;
use crate::lock::Lock;
use crate::nodes::{Cursor, Locks, Node, Nodes, PAGE};

/// The most keys that one server visits in a second. A key takes it about a microsecond.
const KEYS_PER_SECOND: u32 = 20_000;

/// The number of keys that a server visits in the time for one LOCK.INFO.
const KEYS_PER_LOCK: u32 = 5;

/// The most locks that are kept, besides those with waiters.
const MOST_LOCKS: usize = 100_000;

/// A snapshot of the locks.
pub struct Snapshot {
    pub locks: Locks,
    /// The contention of the last minutes.
    pub hot: HotKeys,
    /// Every lock was read since then.
    pub since: Instant,
    /// True if all keys have been visited. Until then, locks are missing.
    pub is_complete: bool,
}

/// A survey of all servers.
pub struct Survey {
    nodes: Nodes,
    pattern: Vec<u8>,
    /// One for each node.
    sweeps: Vec<Sweep>,
}

impl Survey {
    pub fn new(mut nodes: Nodes, pattern: Vec<u8>) -> Survey {
        let sweeps = nodes.each().map(|_| Sweep::new()).collect();
        Survey {
            nodes,
            pattern,
            sweeps,
        }
    }

    pub fn connect(server: &Server, pattern: Vec<u8>) -> Result<Survey> {
        Ok(Survey::new(Nodes::connect(server)?, pattern))
    }

    /// Reads the hot locks, those at the keys `shown`, and some others.
    pub fn snapshot(&mut self, shown: &BTreeSet<Vec<u8>>) -> Result<Snapshot> {
        let mut snapshot = Snapshot {
            locks: Locks::new(),
            hot: HotKeys::new(),
            since: Instant::now(),
            is_complete: true,
        };
        for (node, sweep) in self.nodes.each().zip(&mut self.sweeps) {
            let hot = node.hottest()?.unwrap_or_default();
            sweep.read(node, &self.pattern, shown, &hot)?;
            let known = sweep.known.iter();
            let known = known.map(|(key, known)| (key.clone(), known.lock.clone()));
            snapshot.locks.extend(known);
            snapshot.hot.extend(hot);
            snapshot.since = snapshot.since.min(sweep.since);
            snapshot.is_complete &= sweep.is_complete;
        }
        // A pattern might leave out the key of a hot lock that is free right now.
        if is_every_key(&self.pattern) {
            for key in snapshot.hot.keys() {
                snapshot.locks.entry(key.clone()).or_insert_with(Lock::free);
            }
        }
        Ok(snapshot)
    }
}

/// The locks of one server.
struct Sweep {
    known: BTreeMap<Vec<u8>, Known>,
    cursor: Cursor,
    /// The time when the cursor was at the start.
    began: Instant,
    /// The time when the last sweep began that visited all keys; until then, of the first one.
    since: Instant,
    is_complete: bool,
    /// The number of keys that may be visited, and the time until which it is counted.
    credit: f64,
    counted: Instant,
}

struct Known {
    lock: Lock,
    read: Instant,
}

impl Sweep {
    fn new() -> Sweep {
        let now = Instant::now();
        Sweep {
            known: BTreeMap::new(),
            cursor: Cursor::default(),
            began: now,
            since: now,
            is_complete: false,
            credit: KEYS_PER_SECOND.into(),
            counted: now,
        }
    }

    fn read(
        &mut self,
        node: &mut Node,
        pattern: &[u8],
        shown: &BTreeSet<Vec<u8>>,
        hot: &HotKeys,
    ) -> Result<()> {
        let is_known = |key: &&Vec<u8>| self.known.contains_key(*key);
        let is_wanted = |key: &&Vec<u8>| is_every_key(pattern) || is_known(key);
        let shown = shown.iter().filter(is_known);
        let keys: BTreeSet<&Vec<u8>> = hot.keys().filter(is_wanted).chain(shown).collect();
        let keys: Vec<Vec<u8>> = keys.into_iter().cloned().collect();
        self.update(node, &keys)?;
        self.earn();
        while self.credit > 0.0 {
            let page = node.page(&self.cursor, pattern)?;
            let locks = u32::try_from(page.keys.len()).unwrap_or(u32::MAX);
            self.credit -= f64::from(PAGE) + f64::from(KEYS_PER_LOCK) * f64::from(locks);
            self.update(node, &page.keys)?;
            self.cursor = page.next;
            if self.cursor.is_start() {
                self.complete();
                break;
            }
        }
        Ok(())
    }

    /// Adds the credit for the time since the last call.
    fn earn(&mut self) {
        let most = f64::from(KEYS_PER_SECOND);
        let now = Instant::now();
        let time: Duration = now - self.counted;
        self.credit = (self.credit + most * time.as_secs_f64()).min(most);
        self.counted = now;
    }

    /// Reads the locks at these keys.
    fn update(&mut self, node: &mut Node, keys: &[Vec<u8>]) -> Result<()> {
        let read = Instant::now();
        let mut locks = node.infos(keys)?;
        for key in keys {
            match locks.remove(key) {
                Some(lock) if self.has_room_for(key, &lock) => {
                    self.known.insert(key.clone(), Known { lock, read });
                }
                Some(_) => {}
                None => drop(self.known.remove(key)),
            }
        }
        Ok(())
    }

    fn has_room_for(&self, key: &[u8], lock: &Lock) -> bool {
        self.known.len() < MOST_LOCKS || lock.waiters > 0 || self.known.contains_key(key)
    }

    /// Forgets the locks that the sweep didn't find, and begins another one.
    fn complete(&mut self) {
        let began = self.began;
        self.known.retain(|_, known| known.read >= began);
        self.since = began;
        self.is_complete = true;
        self.began = Instant::now();
    }
}

fn is_every_key(pattern: &[u8]) -> bool {
    pattern == b"*"
}
