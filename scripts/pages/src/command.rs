//! The module's commands, from a server's LOCK.HELP, COMMAND INFO and COMMAND DOCS.

use std::collections::{BTreeSet, HashMap};

use anyhow::{bail, Context, Result};
use redis::{cmd, from_redis_value, Connection, Value};
use serde::Serialize;

use crate::argument::{list_of, taken, Argument};

/// Flags that the server sets by itself for every command of a module.
const OF_THE_SERVER: [&str; 2] = ["module", "movablekeys"];

/// A command for clients.
#[derive(Debug, Clone)]
pub struct Command {
    pub(crate) synopsis: String,
    pub(crate) summary: String,
    pub(crate) since: String,
    pub(crate) complexity: String,
    /// The versions that changed the command, with their changes.
    pub(crate) history: Vec<(String, String)>,
    pub(crate) arity: i64,
    pub(crate) flags: BTreeSet<String>,
    pub(crate) keys: Option<Keys>,
    pub(crate) arguments: Vec<Argument>,
}

/// The keys of a command: where they are, and their flags.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    /// The position of the argument with which the search begins.
    pub(crate) begin: i64,
    pub(crate) find: FindKeys,
    pub(crate) flags: BTreeSet<String>,
}

/// The way to find the keys from where the search begins.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FindKeys {
    /// From the first key to the last one.
    Range { lastkey: i64, step: i64, limit: i64 },
    /// Several keys. The argument before them is their number.
    Keynum {
        keynumidx: i64,
        firstkey: i64,
        step: i64,
    },
}

impl Command {
    /// Returns the name, like `LOCK.ACQUIRE`.
    pub fn name(&self) -> &str {
        self.synopsis.split(' ').next().unwrap_or_default()
    }

    /// Returns the name of the command's page, like `acquire`.
    pub(crate) fn word(&self) -> String {
        self.name().trim_start_matches("LOCK.").to_lowercase()
    }

    /// Returns the command's action, like `ACQUIRE` for LOCK.ACQUIRE and LOCK.MACQUIRE.
    pub(crate) fn verb(&self) -> &str {
        let word = self.name().trim_start_matches("LOCK.");
        if self.has_several_keys() {
            word.trim_start_matches('M')
        } else {
            word
        }
    }

    /// Returns true if a number of keys precedes the keys.
    pub(crate) fn has_several_keys(&self) -> bool {
        let keys = self.keys.as_ref();
        keys.is_some_and(|keys| matches!(keys.find, FindKeys::Keynum { .. }))
    }

    /// Returns the ACL categories that the module requests, if the server supports that.
    pub fn categories(&self) -> BTreeSet<&'static str> {
        let speed = if self.flags.contains("fast") {
            "@fast"
        } else {
            "@slow"
        };
        let named = [
            ("write", "@write"),
            ("readonly", "@read"),
            ("blocking", "@blocking"),
        ];
        let named = named.iter().filter(|(flag, _)| self.flags.contains(*flag));
        named
            .map(|(_, category)| *category)
            .chain([speed, "@lock"])
            .collect()
    }
}

/// Returns all commands for clients, in the order of LOCK.HELP.
pub(crate) fn told(server: &mut Connection) -> Result<Vec<Command>> {
    let help: Vec<String> = cmd("LOCK.HELP").query(server)?;
    let synopses = help.into_iter().filter(|line| line.starts_with("LOCK."));
    synopses.map(|synopsis| of(server, synopsis)).collect()
}

fn of(server: &mut Connection, synopsis: String) -> Result<Command> {
    let name = synopsis
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_lowercase();
    let docs: HashMap<String, Value> = cmd("COMMAND").arg("DOCS").arg(&name).query(server)?;
    let docs = docs.into_values().next();
    let mut docs: HashMap<String, Value> = from_redis_value(docs.context("no COMMAND DOCS")?)?;
    let info: Vec<Value> = cmd("COMMAND").arg("INFO").arg(&name).query(server)?;
    let info = info.into_iter().next().context("no COMMAND INFO")?;
    let Value::Array(info) = info else {
        bail!("the server doesn't know {name}");
    };
    let [_, arity, flags, _, _, _, _, _, key_specs, ..] = info.as_slice() else {
        bail!("COMMAND INFO {name} is too short");
    };
    let mut flags: BTreeSet<String> = from_redis_value(flags.clone())?;
    flags.retain(|flag| !OF_THE_SERVER.contains(&flag.as_str()));
    let arguments = docs.remove("arguments").map(list_of).transpose()?;
    Ok(Command {
        synopsis,
        summary: taken(&mut docs, "summary")?,
        since: taken(&mut docs, "since")?,
        complexity: taken(&mut docs, "complexity")?,
        history: taken(&mut docs, "history")?,
        arity: from_redis_value(arity.clone())?,
        flags,
        keys: keys(key_specs)?,
        arguments: arguments.unwrap_or_default(),
    })
}

fn keys(specs: &Value) -> Result<Option<Keys>> {
    let specs: Vec<Value> = from_redis_value(specs.clone())?;
    let Some(spec) = specs.into_iter().next() else {
        return Ok(None);
    };
    let mut spec: HashMap<String, Value> = from_redis_value(spec)?;
    let mut begin: HashMap<String, Value> = taken(&mut spec, "begin_search")?;
    let mut begin: HashMap<String, i64> = taken(&mut begin, "spec")?;
    Ok(Some(Keys {
        begin: begin.remove("index").context("no index")?,
        find: find_keys(taken(&mut spec, "find_keys")?)?,
        flags: taken(&mut spec, "flags")?,
    }))
}

fn find_keys(mut find: HashMap<String, Value>) -> Result<FindKeys> {
    let way: String = taken(&mut find, "type")?;
    let mut numbers: HashMap<String, i64> = taken(&mut find, "spec")?;
    let mut number = |name: &str| numbers.remove(name).with_context(|| format!("no {name}"));
    Ok(match way.as_str() {
        "range" => FindKeys::Range {
            lastkey: number("lastkey")?,
            step: number("keystep")?,
            limit: number("limit")?,
        },
        "keynum" => FindKeys::Keynum {
            keynumidx: number("keynumidx")?,
            firstkey: number("firstkey")?,
            step: number("keystep")?,
        },
        other => bail!("keys are found by {other}"),
    })
}
