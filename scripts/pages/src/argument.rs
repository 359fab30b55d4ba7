//! Arguments of a command, from COMMAND DOCS.

use std::collections::{BTreeSet, HashMap};

use anyhow::{bail, Context, Result};
use redis::{from_redis_value, Value};

/// An argument, or several arguments that belong together.
#[derive(Debug, Clone)]
pub struct Argument {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The word before the value, if any.
    pub(crate) word: Option<String>,
    pub(crate) optional: bool,
    pub(crate) multiple: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Key,
    Text,
    Number,
    /// A word that stands for itself.
    Word,
    OneOf(Vec<Argument>),
    Block(Vec<Argument>),
}

/// An argument as a row of the table of arguments.
#[derive(Debug)]
pub struct Row {
    /// The notation, like `PX milliseconds`.
    pub written: String,
    /// The first word of the notation.
    pub word: String,
    /// The type.
    pub kind: String,
    /// True if a command may omit the argument.
    pub optional: bool,
    /// The conditions of the argument, a sentence each.
    pub conditions: Vec<String>,
}

impl Argument {
    /// Reads an argument from the reply.
    pub fn of(value: Value) -> Result<Self> {
        let mut fields: HashMap<String, Value> = from_redis_value(value)?;
        let name: String = taken(&mut fields, "name")?;
        let parts = match fields.remove("arguments") {
            Some(parts) => list_of(parts)?,
            None => Vec::new(),
        };
        let kind: String = taken(&mut fields, "type")?;
        let kind = match kind.as_str() {
            "key" => Kind::Key,
            "string" => Kind::Text,
            "integer" => Kind::Number,
            "pure-token" => Kind::Word,
            "oneof" => Kind::OneOf(parts),
            "block" => Kind::Block(parts),
            other => bail!("{name}: an argument of type {other}"),
        };
        let word = fields.remove("token").map(from_redis_value).transpose()?;
        let flags: BTreeSet<String> = match fields.remove("flags") {
            Some(flags) => from_redis_value(flags)?,
            None => BTreeSet::new(),
        };
        Ok(Self {
            name,
            kind,
            word,
            optional: flags.contains("optional"),
            multiple: flags.contains("multiple"),
        })
    }

    /// Returns the argument's rows in the table of arguments.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = match &self.kind {
            Kind::OneOf(parts) => alternatives(parts),
            Kind::Block(parts) if self.word.is_none() => led(parts),
            kind => vec![Row {
                written: self.written(),
                word: self.first_word(),
                kind: kind.told(),
                optional: self.optional,
                conditions: Vec::new(),
            }],
        };
        for row in &mut rows {
            row.optional |= self.optional;
            if self.multiple {
                row.conditions.push("One or more.".to_owned());
            }
        }
        rows
    }

    /// Returns the notation, like `PX milliseconds`.
    fn written(&self) -> String {
        let values = match &self.kind {
            Kind::Word => None,
            Kind::Block(parts) => Some(
                parts
                    .iter()
                    .map(Self::written)
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            _ => Some(self.name.clone()),
        };
        let words: Vec<String> = self.word.iter().cloned().chain(values).collect();
        words.join(" ")
    }

    /// Returns the first word of the notation.
    fn first_word(&self) -> String {
        match (&self.word, &self.kind) {
            (None, Kind::Block(parts)) => parts.first().map(Self::first_word).unwrap_or_default(),
            (Some(word), _) => word.clone(),
            (None, _) => self.name.clone(),
        }
    }
}

impl Kind {
    fn told(&self) -> String {
        match self {
            Self::Key => "key".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Number => "integer".to_owned(),
            Self::Word => "word".to_owned(),
            Self::OneOf(_) => String::new(),
            Self::Block(parts) => {
                let kinds: Vec<String> = parts.iter().map(|part| part.kind.told()).collect();
                kinds.join(", ")
            }
        }
    }
}

/// Returns the rows of arguments of which at most one is given.
fn alternatives(parts: &[Argument]) -> Vec<Row> {
    let first_words: Vec<String> = parts.iter().map(Argument::first_word).collect();
    let rows = parts.iter().enumerate().flat_map(|(place, part)| {
        let others = first_words.iter().enumerate();
        let others = others.filter(|(other, _)| *other != place);
        let others: Vec<String> = others.map(|(_, word)| format!("`{word}`")).collect();
        let mut rows = part.rows();
        if let Some(first) = rows.first_mut() {
            let condition = format!("Not with {}.", others.join(" or "));
            first.conditions.push(condition);
        }
        rows
    });
    rows.collect()
}

/// Returns the rows of a first argument, and of others that are given only with the first.
fn led(parts: &[Argument]) -> Vec<Row> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let mut rows = first.rows();
    for other in others {
        let mut led = other.rows();
        if let Some(row) = led.first_mut() {
            let condition = format!("Only with `{}`.", first.first_word());
            row.conditions.push(condition);
        }
        rows.extend(led);
    }
    rows
}

/// Returns the arguments in a list.
pub fn list_of(value: Value) -> Result<Vec<Argument>> {
    let list: Vec<Value> = from_redis_value(value)?;
    list.into_iter().map(Argument::of).collect()
}

/// Removes a required field and returns its value.
pub fn taken<T: redis::FromRedisValue>(
    fields: &mut HashMap<String, Value>,
    name: &str,
) -> Result<T> {
    let value = fields.remove(name);
    let value = value.with_context(|| format!("no {name}"))?;
    Ok(from_redis_value(value)?)
}
