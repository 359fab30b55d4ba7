//! The commands in the format of the command descriptions in Redis's own sources.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use serde_json::{json, Value};

use crate::argument::{Argument, Kind};
use crate::command::{Command, FindKeys, Keys};
use crate::replies;

#[derive(Serialize)]
struct Described<'a> {
    summary: &'a str,
    complexity: &'a str,
    group: &'static str,
    since: &'a str,
    arity: i64,
    history: &'a [(String, String)],
    command_flags: Vec<String>,
    acl_categories: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    key_specs: Vec<KeySpec<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<ArgumentSpec<'a>>,
    reply_schema: Value,
}

#[derive(Serialize)]
struct KeySpec<'a> {
    flags: Vec<String>,
    begin_search: Value,
    find_keys: &'a FindKeys,
}

#[derive(Serialize)]
struct ArgumentSpec<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The key spec of a key: the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_spec_index: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "is_false")]
    optional: bool,
    #[serde(skip_serializing_if = "is_false")]
    multiple: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    arguments: Vec<ArgumentSpec<'a>>,
}

/// Returns the descriptions of all commands, by their names.
pub fn of(commands: &[Command]) -> Result<String> {
    let described: BTreeMap<&str, Described<'_>> = commands
        .iter()
        .map(|command| (command.name(), described(command)))
        .collect();
    Ok(serde_json::to_string_pretty(&described)? + "\n")
}

fn described(command: &Command) -> Described<'_> {
    Described {
        summary: &command.summary,
        complexity: &command.complexity,
        group: "module",
        since: &command.since,
        arity: command.arity,
        history: &command.history,
        command_flags: upper_case(command.flags.iter().map(String::as_str)),
        acl_categories: upper_case(command.categories()),
        key_specs: command.keys.iter().map(key_spec).collect(),
        arguments: command.arguments.iter().map(argument).collect(),
        reply_schema: replies::schema(command),
    }
}

fn key_spec(keys: &Keys) -> KeySpec<'_> {
    KeySpec {
        flags: upper_case(keys.flags.iter().map(String::as_str)),
        begin_search: json!({"index": {"pos": keys.begin}}),
        find_keys: &keys.find,
    }
}

fn argument(argument: &Argument) -> ArgumentSpec<'_> {
    let (kind, parts): (_, &[Argument]) = match &argument.kind {
        Kind::Key => ("key", &[]),
        Kind::Text => ("string", &[]),
        Kind::Number => ("integer", &[]),
        Kind::Word => ("pure-token", &[]),
        Kind::OneOf(parts) => ("oneof", parts),
        Kind::Block(parts) => ("block", parts),
    };
    ArgumentSpec {
        name: &argument.name,
        kind,
        key_spec_index: (kind == "key").then_some(0),
        token: argument.word.as_deref(),
        optional: argument.optional,
        multiple: argument.multiple,
        arguments: parts.iter().map(self::argument).collect(),
    }
}

/// Returns the names of flags and categories as Redis's sources write them.
fn upper_case<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names = names.into_iter();
    names
        .map(|name| name.trim_start_matches('@').to_uppercase())
        .collect()
}

/// Returns true if a field is left out.
// The serializer passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}
