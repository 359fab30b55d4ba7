//! The parts of a page that come from the module, in Markdown.

use crate::command::{Command, Keys};
use crate::marks::Parts;

/// Returns the parts of a command's page.
pub fn parts_of(command: &Command) -> Parts {
    let mut parts = Parts::from([("command", head(command))]);
    if !command.arguments.is_empty() {
        parts.insert("arguments", arguments(command));
    }
    parts
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
    match &command.keys {
        Some(keys) if keys.counted => SEVERAL,
        _ if flag("denyoom") => ACQUIRE,
        _ if flag("write") => HOLD,
        _ => INSPECT,
    }
}

fn index_row(command: &Command) -> String {
    let link = format!("[{}](commands/{}.md)", command.name(), command.word());
    row(&[link, command.summary.clone()])
}

fn head(command: &Command) -> String {
    let facts: String = facts(command)
        .into_iter()
        .map(|(name, text)| row(&[name.to_owned(), text]))
        .collect();
    format!(
        "{}\n\n```\n{}\n```\n\n| | |\n|---|---|\n{facts}",
        command.summary, command.synopsis
    )
}

fn facts(command: &Command) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("since", command.since.clone()),
        ("complexity", command.complexity.clone()),
        ("words", words(command.arity)),
        ("flags", coded(command.flags.iter().map(String::as_str))),
        ("ACL categories", coded(command.categories())),
    ];
    facts.extend(command.keys.as_ref().map(|keys| ("keys", keys_told(keys))));
    facts
}

/// Returns the text about the number of words of a command, its name included.
fn words(arity: i64) -> String {
    match arity {
        1 => "the command's name alone".to_owned(),
        0.. => format!("{arity}, the command's name included"),
        ..=-1 => format!("{} or more, the command's name included", -arity),
    }
}

fn keys_told(keys: &Keys) -> String {
    let place = if keys.counted {
        "as many as the first word behind the name says, behind that"
    } else {
        "the first word behind the name"
    };
    let access = if keys.flags.contains("RO") {
        "read"
    } else {
        "read and written"
    };
    format!("{place}; {access}")
}

fn arguments(command: &Command) -> String {
    let rows = command.arguments.iter().flat_map(|it| it.rows());
    let rows: String = rows.map(|cells| row(&cells)).collect();
    format!("| argument | type | given |\n|---|---|---|\n{rows}")
}

fn coded<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

fn row(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}
