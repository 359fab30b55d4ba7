//! Locks as JSON. A key, token or name that isn't UTF-8 is written as `{"hex": "..."}`, so no byte
//! is lost.

use std::fmt::Write;

use anyhow::Result;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::hot::Hot;
use crate::lock::{Lock, Text};
use crate::output;

/// A lock with its key.
#[derive(Serialize)]
struct Shown<'a> {
    key: Text,
    #[serde(flatten)]
    lock: &'a Lock,
}

impl<'a> Shown<'a> {
    fn of(key: &[u8], lock: &'a Lock) -> Shown<'a> {
        let key = Text(key.to_vec());
        Shown { key, lock }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = str::from_utf8(self) {
            return serializer.serialize_str(text);
        }
        let mut hex = String::new();
        for byte in self.iter() {
            // Writing to a string can't fail.
            let _ = write!(hex, "{byte:02x}");
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("hex", &hex)?;
        map.end()
    }
}

/// Returns a lock as JSON, or null if the lock has no holder and no waiter.
pub fn of_lock(key: &[u8], lock: Option<&Lock>) -> Result<String> {
    harmless(&lock.map(|lock| Shown::of(key, lock)))
}

/// A key with its lock now, and its contention of the last minutes.
#[derive(Serialize)]
struct Reasons<'a> {
    key: Text,
    lock: Option<&'a Lock>,
    contention: Option<&'a Hot>,
}

/// Returns a lock and its contention as JSON. Each is null if there is none.
pub fn of_reasons(key: &[u8], lock: Option<&Lock>, contention: Option<&Hot>) -> Result<String> {
    let key = Text(key.to_vec());
    harmless(&Reasons {
        key,
        lock,
        contention,
    })
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
        if character == '\n' || output::is_printable(character) {
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

    #[test]
    fn every_key_can_be_read_back() {
        for key in ["plain", "\x1b[2J\u{9b}2J", "\u{202e}\u{e0001}\"\\"] {
            let text = of_lock(key.as_bytes(), Some(&Lock::free())).unwrap();
            assert!(
                text.chars()
                    .all(|it| it == '\n' || output::is_printable(it)),
                "{text:?}"
            );
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["key"], key);
        }
        let text = of_lock(b"\xff\0", Some(&Lock::free())).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["key"]["hex"], "ff00");
    }
}
