//! A lock as reported by LOCK.INFO.

use std::collections::HashMap;
use std::ops::Deref;

use anyhow::{Context, Result};
use redis::{from_redis_value, FromRedisValue, Value};
use serde::Serialize;

/// The holders and the waiters of a lock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lock {
    /// The mode: exclusive, shared or free.
    pub mode: String,
    pub holders: Vec<Holder>,
    /// The number of all waiters.
    pub waiters: u64,
    /// The first waiters.
    pub queue: Vec<Waiter>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Holder {
    /// The token, or `None` if this user may not write to the key.
    pub token: Option<Text>,
    pub fence: u64,
    pub holds: u64,
    /// The limit of permits; 0 if there is none.
    pub limit: u64,
    pub permits: u64,
    pub lease_ms: u64,
    pub held_ms: u64,
    #[serde(rename = "session")]
    pub is_session: bool,
    /// The data, or `None` if the module has none for a holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Text>,
    pub client: Option<Client>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waiter {
    /// The token, or `None` if this user may not write to the key.
    pub token: Option<Text>,
    /// The kind of wait: blocked, place or absent.
    pub kind: String,
    pub mode: String,
    /// The limit of permits; 0 if there is none.
    pub limit: u64,
    pub permits: u64,
    pub waiting_ms: u64,
    /// The rest of the timeout; 0 if the wait has none.
    pub timeout_ms: u64,
    /// The rest of KEEP, which runs only without a connection; 0 if the wait ends with its
    /// connection.
    pub keep_ms: u64,
    pub keys: Vec<Text>,
    /// The data, or `None` if the module has none for a waiter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Text>,
    pub client: Option<Client>,
}

/// The connection of a holder or waiter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Client {
    pub id: u64,
    pub address: Text,
    /// The client's name; empty if it has none.
    pub name: Text,
}

/// A key, token, address or name: any bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Text(pub Vec<u8>);

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> Result<Text, redis::ParsingError> {
        from_redis_value(value).map(Text)
    }
}

impl Lock {
    /// Returns the lock for a log, as a user sees it that may not write to the key.
    pub fn without_tokens(mut self) -> Lock {
        self.holders.iter_mut().for_each(|own| own.token = None);
        self.queue.iter_mut().for_each(|waiter| waiter.token = None);
        self
    }

    /// Parses the reply of LOCK.INFO. Returns `None` if the lock has no holder and no waiter.
    pub fn of(answer: Value) -> Result<Option<Lock>> {
        if answer == Value::Nil {
            return Ok(None);
        }
        let mut fields = Fields::of(answer)?;
        Ok(Some(Lock {
            mode: fields.take("mode")?,
            holders: fields.each("holders", Holder::of)?,
            waiters: fields.number("waiters")?,
            queue: fields.each("queue", Waiter::of)?,
        }))
    }

    /// Returns a lock without holders and waiters.
    pub fn free() -> Lock {
        Lock {
            mode: "free".to_owned(),
            holders: Vec::new(),
            waiters: 0,
            queue: Vec::new(),
        }
    }

    /// Returns the age of the oldest grant.
    pub fn held_ms(&self) -> Option<u64> {
        self.holders.iter().map(|holder| holder.held_ms).max()
    }

    /// Returns the rest of the lease that ends last.
    pub fn lease_ms(&self) -> Option<u64> {
        self.holders.iter().map(|holder| holder.lease_ms).max()
    }

    /// Returns the time that the first waiter has waited.
    pub fn waiting_ms(&self) -> Option<u64> {
        self.queue.first().map(|waiter| waiter.waiting_ms)
    }

    /// Returns the number of permits taken, and the lowest limit if there is one.
    pub fn permits(&self) -> (u64, Option<u64>) {
        let limits = self.holders.iter().map(|holder| holder.limit);
        let limit = limits.filter(|limit| *limit > 0).min();
        (
            self.holders.iter().map(|holder| holder.permits).sum(),
            limit,
        )
    }
}

impl Holder {
    fn of(fields: &mut Fields) -> Result<Holder> {
        Ok(Holder {
            token: fields.take("token")?,
            fence: fields.number("fence")?,
            holds: fields.number("holds")?,
            limit: fields.number("limit")?,
            permits: fields.number("permits")?,
            lease_ms: fields.number("lease-ms")?,
            held_ms: fields.number("held-ms")?,
            is_session: fields.number("session")? == 1,
            data: fields.find("data")?,
            client: Client::of(fields)?,
        })
    }
}

impl Waiter {
    fn of(fields: &mut Fields) -> Result<Waiter> {
        Ok(Waiter {
            token: fields.take("token")?,
            kind: fields.take("kind")?,
            mode: fields.take("mode")?,
            limit: fields.number("limit")?,
            permits: fields.number("permits")?,
            waiting_ms: fields.number("waiting-ms")?,
            timeout_ms: fields.number("timeout-ms")?,
            keep_ms: fields.number("keep-ms")?,
            keys: fields.take("keys")?,
            data: fields.find("data")?,
            client: Client::of(fields)?,
        })
    }
}

impl Client {
    fn of(fields: &mut Fields) -> Result<Option<Client>> {
        if !fields.has("client-id") {
            return Ok(None);
        }
        Ok(Some(Client {
            id: fields.number("client-id")?,
            address: fields.take("client-addr")?,
            name: fields.take("client-name")?,
        }))
    }

    /// Returns the client's name, or its address if it has no name.
    pub fn called(&self) -> &[u8] {
        match self.name.is_empty() {
            true => &self.address,
            false => &self.name,
        }
    }
}

/// The named values of a map, or of a flat array in RESP2.
pub struct Fields(HashMap<String, Value>);

impl Fields {
    fn of(value: Value) -> Result<Fields> {
        Ok(Fields(from_redis_value(value)?))
    }

    /// Parses an array of maps.
    pub fn list(value: Value) -> Result<Vec<Fields>> {
        let maps: Vec<Value> = from_redis_value(value)?;
        maps.into_iter().map(Fields::of).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn take<T: FromRedisValue>(&mut self, name: &str) -> Result<T> {
        let value = self.0.remove(name);
        let value = value.with_context(|| format!("no field {name} in the answer"))?;
        from_redis_value(value).with_context(|| name.to_owned())
    }

    /// Takes a field that earlier versions of the module don't have.
    fn find<T: FromRedisValue>(&mut self, name: &str) -> Result<Option<T>> {
        self.has(name).then(|| self.take(name)).transpose()
    }

    pub fn number(&mut self, name: &str) -> Result<u64> {
        let number: i64 = self.take(name)?;
        u64::try_from(number).with_context(|| format!("{name} {number}"))
    }

    fn each<T>(&mut self, name: &str, read: fn(&mut Fields) -> Result<T>) -> Result<Vec<T>> {
        let mut maps = Fields::list(self.take(name)?)?;
        maps.iter_mut().map(read).collect()
    }
}
