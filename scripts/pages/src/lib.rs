//! The pages of the commands, docs/commands/. Their parts between marks come from the module, so
//! these parts always agree with it. And the source of the site that shows all pages.

mod argument;
mod command;
mod marks;
mod page;
pub mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use redis::Client;
use redis_lock_rig::{Plan, Process};

pub use command::Command;

/// The document with the table of all commands, in the directory of documents.
const INDEX: &str = "commands.md";

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
    let mut stale = BTreeMap::new();
    let pages = commands
        .iter()
        .map(|command| (page_of(command), page::parts_of(command)));
    let index = (INDEX.into(), page::parts_of_index(commands));
    for (name, parts) in pages.chain([index]) {
        let path = docs.join(name);
        let shown = path.display().to_string();
        let text = fs::read_to_string(&path).with_context(|| shown.clone())?;
        let filled = marks::filled(&text, &parts).context(shown)?;
        if filled != text {
            stale.insert(path, filled);
        }
    }
    Ok(stale)
}
