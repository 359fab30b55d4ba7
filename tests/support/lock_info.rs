//! The answer of LOCK.INFO, from the map of RESP3 as from the flat array of RESP2.

use std::collections::BTreeMap;

use redis::Value;

use super::reply::Expect;

/// The named fields of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields(BTreeMap<String, Value>);

impl Fields {
    /// Reads a map, or an array of names and values in turn.
    #[track_caller]
    pub fn of(value: Value) -> Fields {
        let pairs: Vec<(Value, Value)> = match value {
            Value::Map(pairs) => pairs,
            Value::Array(items) => {
                assert!(items.len() % 2 == 0, "a name without a value: {items:?}");
                items
                    .chunks(2)
                    .map(|pair| (pair[0].clone(), pair[1].clone()))
                    .collect()
            }
            other => panic!("not a map: {other:?}"),
        };
        let count = pairs.len();
        let fields: BTreeMap<String, Value> = pairs
            .into_iter()
            .map(|(name, value)| (Ok(name).text(), value))
            .collect();
        assert_eq!(fields.len(), count, "a field given twice");
        Fields(fields)
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Whether the field is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The field as it is.
    #[track_caller]
    pub fn get(&self, name: &str) -> Value {
        match self.0.get(name) {
            Some(value) => value.clone(),
            None => panic!("no field {name} among {:?}", self.names()),
        }
    }

    /// A field that is a number.
    #[track_caller]
    pub fn int(&self, name: &str) -> i64 {
        Ok(self.get(name)).int()
    }

    /// A field that is a string.
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        Ok(self.get(name)).text()
    }

    /// A field that is a list of maps.
    #[track_caller]
    pub fn maps(&self, name: &str) -> Vec<Fields> {
        Ok(self.get(name))
            .list()
            .into_iter()
            .map(Fields::of)
            .collect()
    }
}

/// A lock as LOCK.INFO tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct LockInfo {
    /// exclusive, shared or free.
    pub mode: String,
    /// One map for each holder.
    pub holders: Vec<Fields>,
    /// How many wait.
    pub waiters: i64,
    /// The first of those who wait.
    pub queue: Vec<Fields>,
}

impl LockInfo {
    /// Reads the reply of LOCK.INFO; a nil is a lock that nobody holds or waits for.
    #[track_caller]
    pub fn of(value: Value) -> Option<LockInfo> {
        if value == Value::Nil {
            return None;
        }
        let fields = Fields::of(value);
        assert_eq!(fields.names(), ["holders", "mode", "queue", "waiters"]);
        Some(LockInfo {
            mode: fields.text("mode"),
            holders: fields.maps("holders"),
            waiters: fields.int("waiters"),
            queue: fields.maps("queue"),
        })
    }

    /// The tokens of the holders; empty where they aren't for the caller.
    pub fn holder_tokens(&self) -> Vec<String> {
        let token = |holder: &Fields| match holder.get("token") {
            Value::Nil => String::new(),
            token => Ok(token).text(),
        };
        self.holders.iter().map(token).collect()
    }

    /// The tokens of those who wait, in their order.
    pub fn queue_tokens(&self) -> Vec<String> {
        self.queue
            .iter()
            .map(|waiter| waiter.text("token"))
            .collect()
    }

    /// The only holder.
    #[track_caller]
    pub fn holder(&self) -> &Fields {
        match self.holders.as_slice() {
            [holder] => holder,
            others => panic!("one holder was expected: {others:?}"),
        }
    }
}
