//! `redis-lock ls`.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{presets, ContentArrangement, Table};

use crate::arguments::{Ls, Server};
use crate::json;
use crate::lock::Lock;
use crate::nodes::{Locks, Nodes};
use crate::output;

const COLUMNS: [&str; 7] = ["KEY", "MODE", "HOLDERS", "WAITERS", "HELD", "LEASE", "BY"];

pub fn list(server: &Server, options: &Ls) -> Result<ExitCode> {
    let locks = Nodes::connect(server)?.locks(options.pattern.as_bytes())?;
    let text = match options.json {
        true => json::of_locks(locks.iter().map(|(key, lock)| (key.as_slice(), lock)))?,
        false => table(&locks),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn table(locks: &Locks) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(COLUMNS);
    for (key, lock) in locks {
        table.add_row(row(key, lock));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

fn row(key: &[u8], lock: &Lock) -> [String; COLUMNS.len()] {
    [
        output::word(key),
        lock.mode.clone(),
        holders(lock),
        lock.waiters.to_string(),
        span(lock.held_ms()),
        span(lock.lease_ms()),
        by(lock),
    ]
}

/// Returns a span, or `-` if there is none.
pub fn span(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".to_owned(), output::span)
}

/// Returns the number of holders, or the permits taken and the limit if there is a limit.
pub fn holders(lock: &Lock) -> String {
    match lock.permits() {
        (taken, Some(limit)) => format!("{taken}/{limit}"),
        (_, None) => lock.holders.len().to_string(),
    }
}

/// Returns the name or address of the first holder that is still connected, or `-`.
pub fn by(lock: &Lock) -> String {
    let client = lock
        .holders
        .iter()
        .find_map(|holder| holder.client.as_ref());
    client.map_or_else(|| "-".to_owned(), |client| output::word(client.called()))
}
