//! The pages of the commands, docs/commands/, and docs/commands.json. The parts of the pages between
//! marks, and the whole of the JSON file, come from the server's description of the commands, so
//! they always agree with the module.

mod argument;
mod command;
mod json;
mod marks;
mod meanings;
mod page;
mod replies;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use redis::Client;
use redis_lock_rig::{Plan, Process};

use marks::Parts;

pub use command::Command;

/// The document with the table of all commands, in the directory of documents.
const INDEX: &str = "commands.md";

/// The file with all commands for programs, in the directory of documents.
const JSON: &str = "commands.json";

/// Starts a server with the module and returns the module's commands.
pub fn commands(server: &Path, module: &Path) -> Result<Vec<Command>> {
    let folder = tempfile::tempdir()?;
    let plan = Plan {
        module: Some(module.to_owned()),
        ..Plan::new(server)
    };
    let process = Process::start(plan, folder.path())?;
    let client = Client::open(("127.0.0.1", process.port()))?;
    command::told(&mut client.get_connection()?)
}

/// Returns the path of a command's page, in the directory of documents.
fn page_of(command: &Command) -> PathBuf {
    Path::new("commands").join(format!("{}.md", command.word()))
}

/// Returns the documents that disagree with the module, with the text that they should have.
pub fn stale(docs: &Path, commands: &[Command]) -> Result<BTreeMap<PathBuf, String>> {
    meanings::check(commands)?;
    let mut fresh = BTreeMap::from([(docs.join(JSON), json::of(commands)?)]);
    let index = docs.join(INDEX);
    fresh.insert(
        index.clone(),
        filled(&index, &page::parts_of_index(commands))?,
    );
    for command in commands {
        let page = docs.join(page_of(command));
        let text = filled(&page, &page::parts_of(command)?)?;
        fresh.insert(page, text);
    }
    fresh.retain(|path, text| fs::read_to_string(path).ok().as_ref() != Some(text));
    Ok(fresh)
}

/// Returns the text of a page with these parts between its marks.
fn filled(page: &Path, parts: &Parts) -> Result<String> {
    let shown = page.display().to_string();
    let text = fs::read_to_string(page).with_context(|| shown.clone())?;
    marks::filled(&text, parts).context(shown)
}
