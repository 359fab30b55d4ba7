//! The generated parts of a page, in Markdown.

use anyhow::Result;

use crate::argument::Row;
use crate::command::{Command, FindKeys, Keys};
use crate::marks::Parts;
use crate::meanings;
use crate::replies;

/// The note on the ACL categories of a command.
const CATEGORIES: &str =
    "¹ Redis 7.0 has no categories for commands of modules, and Redis 7.2 has no `@lock`: \
     [categories](../operate/security.md#categories).";

/// Returns the parts of a command's page.
pub fn parts_of(command: &Command) -> Result<Parts> {
    let mut parts = Parts::from([
        ("facts", facts(command)),
        ("synopsis", format!("```\n{}\n```\n", command.synopsis)),
        ("history", history(command)),
    ]);
    if !command.arguments.is_empty() {
        parts.insert("arguments", arguments(command)?);
    }
    Ok(parts)
}

/// The groups of the index, in their order.
const GROUPS: [&str; 4] = [ACQUIRE, HOLD, INSPECT, SEVERAL];
const ACQUIRE: &str = "Acquire";
const HOLD: &str = "Hold, release, cancel";
const INSPECT: &str = "Inspect";
const SEVERAL: &str = "Several keys";

/// Returns the parts of the page about all commands.
pub fn parts_of_index(commands: &[Command]) -> Parts {
    let tables = GROUPS.map(|group| {
        let of_group = commands.iter().filter(|command| group_of(command) == group);
        let rows: String = of_group.map(index_row).collect();
        format!("### {group}\n\n| command | |\n|---|---|\n{rows}")
    });
    Parts::from([("commands", tables.join("\n"))])
}

/// Returns the group by what the server knows of the command. Only commands that ask for a lock
/// are refused when memory is short.
fn group_of(command: &Command) -> &'static str {
    let flag = |name| command.flags.contains(name);
    if command.has_several_keys() {
        SEVERAL
    } else if flag("denyoom") {
        ACQUIRE
    } else if flag("write") {
        HOLD
    } else {
        INSPECT
    }
}

fn index_row(command: &Command) -> String {
    let link = format!("[{}](commands/{}.md)", command.name(), command.word());
    row(&[link, command.summary.clone()])
}

fn facts(command: &Command) -> String {
    let mut facts = vec![
        ("Available since", command.since.clone()),
        ("Time complexity", command.complexity.clone()),
        ("Arity", arity(command.arity)),
    ];
    facts.extend(
        command
            .keys
            .as_ref()
            .map(|keys| ("Key specs", key_specs(keys))),
    );
    facts.extend([
        ("ACL categories¹", coded(command.categories())),
        ("Flags", coded(command.flags.iter().map(String::as_str))),
        ("Replies", linked_replies(command)),
    ]);
    let rows: String = facts
        .into_iter()
        .map(|(name, text)| row(&[name.to_owned(), text]))
        .collect();
    format!(
        "{}\n\n| | |\n|---|---|\n{rows}\n{CATEGORIES}\n",
        command.summary
    )
}

/// Returns the text about the number of words of a command, its name included.
fn arity(arity: i64) -> String {
    match arity {
        0.. => format!("{arity} (the command's name included)"),
        ..=-1 => format!("{arity} (at least {}, the command's name included)", -arity),
    }
}

fn key_specs(keys: &Keys) -> String {
    let place = match keys.find {
        FindKeys::Range { .. } => "first argument".to_owned(),
        FindKeys::Keynum { .. } => "as many as the first argument says, behind it".to_owned(),
    };
    format!("{place}; {}", coded(keys.flags.iter().map(String::as_str)))
}

fn linked_replies(command: &Command) -> String {
    let names = replies::types(command);
    format!("[{}](#reply)", names.join(", "))
}

fn arguments(command: &Command) -> Result<String> {
    let rows = command.arguments.iter().flat_map(|it| it.rows());
    let rows: Result<String> = rows
        .map(|argument| argument_row(command, argument))
        .collect();
    Ok(format!(
        "| argument | type | default | range | meaning |\n|---|---|---|---|---|\n{}",
        rows?
    ))
}

fn argument_row(command: &Command, argument: Row) -> Result<String> {
    let meaning = meanings::of(command, &argument.word)?;
    let default = if argument.optional {
        meaning.default
    } else {
        "required"
    };
    let mut text = meaning.text.to_owned();
    for condition in &argument.conditions {
        text.push(' ');
        text.push_str(condition);
    }
    Ok(row(&[
        format!("`{}`", argument.written),
        argument.kind,
        default.to_owned(),
        meaning.range.to_owned(),
        text,
    ]))
}

fn history(command: &Command) -> String {
    let rows = command.history.iter();
    let rows: String = rows
        .map(|(version, change)| row(&[version.clone(), change.clone()]))
        .collect();
    format!("| version | change |\n|---|---|\n{rows}")
}

fn coded<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

fn row(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}
