//! A key's contention as reported by LOCK.HOT.

use std::collections::BTreeMap;

use anyhow::Result;
use redis::Value;
use serde::Serialize;

use crate::lock::{Fields, Text};

/// The most keys that LOCK.HOT replies.
pub const MOST_KEYS: u64 = 128;

/// Contention by the keys of one database.
pub type HotKeys = BTreeMap<Vec<u8>, Hot>;

/// The contention at a key in this minute and the one before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hot {
    /// The length of all waits. Those that go on count from their beginning.
    pub waited_ms: u64,
    pub longest_wait_ms: u64,
    /// The number of waiters now.
    pub waiters: u64,
    /// The number of waits that began.
    pub waits: u64,
    /// The number of acquisitions that were refused.
    pub refused: u64,
    /// The number of holders that went while a client waited.
    pub grants: u64,
    /// The time for which these holders had held the lock.
    pub held_ms: u64,
}

/// Parses the reply of LOCK.HOT. Returns the keys of a database.
pub fn of(answer: Value, database: i64) -> Result<HotKeys> {
    let mut keys = HotKeys::new();
    for mut fields in Fields::list(answer)? {
        let Text(key) = fields.take("key")?;
        let is_own = fields.take::<i64>("db")? == database;
        let hot = Hot {
            waited_ms: fields.number("waited-ms")?,
            longest_wait_ms: fields.number("longest-wait-ms")?,
            waiters: fields.number("waiters")?,
            waits: fields.number("waits")?,
            refused: fields.number("refused")?,
            grants: fields.number("grants")?,
            held_ms: fields.number("held-ms")?,
        };
        if is_own {
            keys.insert(key, hot);
        }
    }
    Ok(keys)
}
