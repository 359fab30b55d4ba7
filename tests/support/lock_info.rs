//! The reply of LOCK.INFO, from the map of RESP3 or from the flat array of RESP2.

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

    /// Returns the names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Returns true if the field exists.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the value of a field.
    #[track_caller]
    pub fn get(&self, name: &str) -> Value {
        match self.0.get(name) {
            Some(value) => value.clone(),
            None => panic!("no field {name} among {:?}", self.names()),
        }
    }

    /// Returns a field that is a number.
    #[track_caller]
    pub fn int(&self, name: &str) -> i64 {
        Ok(self.get(name)).int()
    }

    /// Returns a field that is a string.
    #[track_caller]
    pub fn text(&self, name: &str) -> String {
        Ok(self.get(name)).text()
    }

    /// Returns a field that is a list of maps.
    #[track_caller]
    pub fn maps(&self, name: &str) -> Vec<Fields> {
        Ok(self.get(name))
            .list()
            .into_iter()
            .map(Fields::of)
            .collect()
    }
}

/// A lock that LOCK.INFO shows.
#[derive(Debug, Clone, PartialEq)]
pub struct LockInfo {
    /// exclusive, shared or free.
    pub mode: String,
    /// One map for each holder.
    pub holders: Vec<Fields>,
    /// The number of waiters.
    pub waiters: i64,
    /// The first waiters of the queue.
    pub queue: Vec<Fields>,
}

impl LockInfo {
    /// Reads the reply of LOCK.INFO. Returns `None` for a nil: a key without a holder or a waiter.
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

    /// Returns the tokens of the holders. A token that the caller may not see is empty.
    pub fn holder_tokens(&self) -> Vec<String> {
        let token = |holder: &Fields| match holder.get("token") {
            Value::Nil => String::new(),
            token => Ok(token).text(),
        };
        self.holders.iter().map(token).collect()
    }

    /// Returns the tokens of the waiters, in their order.
    pub fn queue_tokens(&self) -> Vec<String> {
        self.queue
            .iter()
            .map(|waiter| waiter.text("token"))
            .collect()
    }

    /// Returns the only holder.
    #[track_caller]
    pub fn holder(&self) -> &Fields {
        match self.holders.as_slice() {
            [holder] => holder,
            others => panic!("one holder was expected: {others:?}"),
        }
    }
}
