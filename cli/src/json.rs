//! Locks as JSON. A key, token or name that isn't UTF-8 is written as `{"hex": "..."}`, so no byte
//! is lost.

use std::fmt::Write;

use anyhow::Result;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::lock::{Client, Holder, Lock, Waiter};
use crate::shown;

/// A lock with its key.
#[derive(Serialize)]
struct Shown<'a> {
    key: Text<'a>,
    mode: &'a str,
    holders: Vec<ShownHolder<'a>>,
    waiters: u64,
    queue: Vec<ShownWaiter<'a>>,
}

#[derive(Serialize)]
struct ShownHolder<'a> {
    token: Option<Text<'a>>,
    fence: u64,
    holds: u64,
    limit: u64,
    permits: u64,
    lease_ms: u64,
    held_ms: u64,
    session: bool,
    client: Option<ShownClient<'a>>,
}

#[derive(Serialize)]
struct ShownWaiter<'a> {
    token: Option<Text<'a>>,
    kind: &'a str,
    mode: &'a str,
    limit: u64,
    permits: u64,
    waiting_ms: u64,
    timeout_ms: u64,
    keep_ms: u64,
    keys: Vec<Text<'a>>,
    client: Option<ShownClient<'a>>,
}

#[derive(Serialize)]
struct ShownClient<'a> {
    id: u64,
    address: Text<'a>,
    name: Text<'a>,
}

struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut hex = String::new();
        for byte in self.0 {
            // Writing to a string can't fail.
            let _ = write!(hex, "{byte:02x}");
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("hex", &hex)?;
        map.end()
    }
}

impl<'a> Shown<'a> {
    fn of(key: &'a [u8], lock: &'a Lock) -> Shown<'a> {
        Shown {
            key: Text(key),
            mode: &lock.mode,
            holders: lock.holders.iter().map(ShownHolder::of).collect(),
            waiters: lock.waiters,
            queue: lock.queue.iter().map(ShownWaiter::of).collect(),
        }
    }
}

impl<'a> ShownHolder<'a> {
    fn of(holder: &'a Holder) -> ShownHolder<'a> {
        ShownHolder {
            token: holder.token.as_deref().map(Text),
            fence: holder.fence,
            holds: holder.holds,
            limit: holder.limit,
            permits: holder.permits,
            lease_ms: holder.lease_ms,
            held_ms: holder.held_ms,
            session: holder.is_session,
            client: holder.client.as_ref().map(ShownClient::of),
        }
    }
}

impl<'a> ShownWaiter<'a> {
    fn of(waiter: &'a Waiter) -> ShownWaiter<'a> {
        ShownWaiter {
            token: waiter.token.as_deref().map(Text),
            kind: &waiter.kind,
            mode: &waiter.mode,
            limit: waiter.limit,
            permits: waiter.permits,
            waiting_ms: waiter.waiting_ms,
            timeout_ms: waiter.timeout_ms,
            keep_ms: waiter.keep_ms,
            keys: waiter.keys.iter().map(|key| Text(key)).collect(),
            client: waiter.client.as_ref().map(ShownClient::of),
        }
    }
}

impl<'a> ShownClient<'a> {
    fn of(client: &'a Client) -> ShownClient<'a> {
        ShownClient {
            id: client.id,
            address: Text(&client.address),
            name: Text(&client.name),
        }
    }
}

/// Returns a lock as JSON, or null if the lock has no holder and no waiter.
pub fn of_lock(key: &[u8], lock: Option<&Lock>) -> Result<String> {
    harmless(&lock.map(|lock| Shown::of(key, lock)))
}

/// Returns locks as an array of JSON.
pub fn of_locks<'a>(locks: impl IntoIterator<Item = (&'a [u8], &'a Lock)>) -> Result<String> {
    let shown: Vec<Shown<'_>> = locks
        .into_iter()
        .map(|(key, lock)| Shown::of(key, lock))
        .collect();
    harmless(&shown)
}

/// Returns a value as JSON that is safe to print on a terminal.
///
/// JSON permits some characters that a terminal may interpret. They are escaped too, which is valid
/// because they occur only in strings.
fn harmless(value: &impl Serialize) -> Result<String> {
    let mut text = String::new();
    for character in serde_json::to_string_pretty(value)?.chars() {
        if character == '\n' || shown::is_printable(character) {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string can't fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free() -> Lock {
        Lock {
            mode: "free".to_owned(),
            holders: Vec::new(),
            waiters: 0,
            queue: Vec::new(),
        }
    }

    #[test]
    fn every_key_can_be_read_back() {
        for key in ["plain", "\x1b[2J\u{9b}2J", "\u{202e}\u{e0001}\"\\"] {
            let text = of_lock(key.as_bytes(), Some(&free())).unwrap();
            assert!(
                text.chars().all(|it| it == '\n' || shown::is_printable(it)),
                "{text:?}"
            );
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["key"], key);
        }
        let text = of_lock(b"\xff\0", Some(&free())).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["key"]["hex"], "ff00");
    }
}
