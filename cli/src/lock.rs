//! A lock as reported by LOCK.INFO.

use std::collections::HashMap;

use anyhow::{bail, Context, Result};
use redis::Value;

/// The holders and the waiters of a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Lock {
    /// The mode: exclusive, shared or free.
    pub mode: String,
    pub holders: Vec<Holder>,
    /// The number of all waiters.
    pub waiters: u64,
    /// The first waiters.
    pub queue: Vec<Waiter>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The token, or `None` if this user may not write to the key.
    pub token: Option<Vec<u8>>,
    pub fence: u64,
    pub holds: u64,
    /// The limit of permits; 0 if there is none.
    pub limit: u64,
    pub permits: u64,
    pub lease_ms: u64,
    pub held_ms: u64,
    pub is_session: bool,
    pub client: Option<Client>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Waiter {
    /// The token, or `None` if this user may not write to the key.
    pub token: Option<Vec<u8>>,
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
    pub keys: Vec<Vec<u8>>,
    pub client: Option<Client>,
}

/// The connection of a holder or waiter.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    pub id: u64,
    pub address: Vec<u8>,
    /// The client's name; empty if it has none.
    pub name: Vec<u8>,
}

impl Lock {
    /// Parses the reply of LOCK.INFO. Returns `None` if the lock has no holder and no waiter.
    pub fn of(answer: Value) -> Result<Option<Lock>> {
        if answer == Value::Nil {
            return Ok(None);
        }
        let mut fields = Fields::of(answer)?;
        Ok(Some(Lock {
            mode: fields.text("mode")?,
            holders: fields.each("holders", Holder::of)?,
            waiters: fields.number("waiters")?,
            queue: fields.each("queue", Waiter::of)?,
        }))
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
            token: fields.bytes_or_nil("token")?,
            fence: fields.number("fence")?,
            holds: fields.number("holds")?,
            limit: fields.number("limit")?,
            permits: fields.number("permits")?,
            lease_ms: fields.number("lease-ms")?,
            held_ms: fields.number("held-ms")?,
            is_session: fields.number("session")? == 1,
            client: Client::of(fields)?,
        })
    }
}

impl Waiter {
    fn of(fields: &mut Fields) -> Result<Waiter> {
        Ok(Waiter {
            token: fields.bytes_or_nil("token")?,
            kind: fields.text("kind")?,
            mode: fields.text("mode")?,
            limit: fields.number("limit")?,
            permits: fields.number("permits")?,
            waiting_ms: fields.number("waiting-ms")?,
            timeout_ms: fields.number("timeout-ms")?,
            keep_ms: fields.number("keep-ms")?,
            keys: items(fields.take("keys")?)?
                .into_iter()
                .map(bytes)
                .collect::<Result<_>>()?,
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
            address: fields.bytes("client-addr")?,
            name: fields.bytes("client-name")?,
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
struct Fields(HashMap<String, Value>);

impl Fields {
    fn of(value: Value) -> Result<Fields> {
        let pairs: Vec<(Value, Value)> = match value {
            Value::Map(pairs) => pairs,
            Value::Array(items) => {
                let (pairs, rest) = items.as_chunks::<2>();
                if !rest.is_empty() {
                    bail!("a name without a value");
                }
                pairs
                    .iter()
                    .cloned()
                    .map(|[name, value]| (name, value))
                    .collect()
            }
            other => bail!("{other:?} is no map"),
        };
        let named = |(name, value)| Ok((text(name)?, value));
        Ok(Fields(pairs.into_iter().map(named).collect::<Result<_>>()?))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn take(&mut self, name: &str) -> Result<Value> {
        self.0
            .remove(name)
            .with_context(|| format!("no field {name} in the answer"))
    }

    fn number(&mut self, name: &str) -> Result<u64> {
        match self.take(name)? {
            Value::Int(number) => u64::try_from(number).with_context(|| format!("{name} {number}")),
            other => bail!("{name}: {other:?} is no number"),
        }
    }

    fn bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        bytes(self.take(name)?)
    }

    fn bytes_or_nil(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.take(name)? {
            Value::Nil => Ok(None),
            value => bytes(value).map(Some),
        }
    }

    fn text(&mut self, name: &str) -> Result<String> {
        text(self.take(name)?)
    }

    fn each<T>(&mut self, name: &str, read: fn(&mut Fields) -> Result<T>) -> Result<Vec<T>> {
        let maps = items(self.take(name)?)?.into_iter();
        maps.map(|map| read(&mut Fields::of(map)?)).collect()
    }
}

/// Returns the bytes of a string.
pub fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => bail!("{other:?} is no string"),
    }
}

/// Returns the items of an array or set.
pub fn items(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        other => bail!("{other:?} is no array"),
    }
}

fn text(value: Value) -> Result<String> {
    Ok(String::from_utf8(bytes(value)?)?)
}
