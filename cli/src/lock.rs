//! A lock as LOCK.INFO tells it.

use std::collections::HashMap;

use anyhow::{bail, Context, Result};
use redis::Value;

/// Who holds a lock, and who waits for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Lock {
    /// exclusive, shared or free.
    pub mode: String,
    pub holders: Vec<Holder>,
    /// How many wait in all.
    pub waiters: u64,
    /// The first of them.
    pub queue: Vec<Waiter>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// None where it isn't for us.
    pub token: Option<Vec<u8>>,
    pub fence: u64,
    pub holds: u64,
    /// 0: none.
    pub limit: u64,
    pub permits: u64,
    pub lease_ms: u64,
    pub held_ms: u64,
    pub is_session: bool,
    pub client: Option<Client>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Waiter {
    /// None where it isn't for us.
    pub token: Option<Vec<u8>>,
    /// blocked, place or absent.
    pub kind: String,
    pub mode: String,
    /// 0: none.
    pub limit: u64,
    pub permits: u64,
    pub waiting_ms: u64,
    /// 0: it waits for ever.
    pub timeout_ms: u64,
    /// 0: the place goes with the connection.
    pub keep_ms: u64,
    pub keys: Vec<Vec<u8>>,
    pub client: Option<Client>,
}

/// The connection of a holder or waiter.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    pub id: u64,
    pub address: Vec<u8>,
    /// Empty: it has none.
    pub name: Vec<u8>,
}

impl Lock {
    /// Reads the answer of LOCK.INFO; none when nobody holds the lock or waits.
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

    /// How long the first of its holders has held it.
    pub fn held_ms(&self) -> Option<u64> {
        self.holders.iter().map(|holder| holder.held_ms).max()
    }

    /// What is left of the lease that ends last.
    pub fn lease_ms(&self) -> Option<u64> {
        self.holders.iter().map(|holder| holder.lease_ms).max()
    }

    /// How long the first in the queue has waited.
    pub fn waiting_ms(&self) -> Option<u64> {
        self.queue.first().map(|waiter| waiter.waiting_ms)
    }

    /// How many permits are taken, and of how many where there is a limit.
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

    /// What to call it: its name, else its address.
    pub fn called(&self) -> &[u8] {
        match self.name.is_empty() {
            true => &self.address,
            false => &self.name,
        }
    }
}

/// The named values of a map, or of a flat array as RESP2 has it.
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

/// The bytes of a string.
pub fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => bail!("{other:?} is no string"),
    }
}

/// The items of an array.
pub fn items(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        other => bail!("{other:?} is no array"),
    }
}

fn text(value: Value) -> Result<String> {
    Ok(String::from_utf8(bytes(value)?)?)
}
