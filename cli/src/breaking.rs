//! `redis-lock break`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::{bail, ensure, Result};

use crate::arguments::{Break, Server};
use crate::info;
use crate::lock::Lock;
use crate::nodes::Nodes;
use crate::output;

/// The number of waiters shown before the question.
const SHOWN_WAITERS: u64 = 3;

/// The exit code if no grant was ended.
const NOT_BROKEN: u8 = 1;

pub fn break_lock(server: &Server, options: &Break) -> Result<ExitCode> {
    let key = options.key.as_bytes();
    let mut nodes = Nodes::connect(server)?;
    let lock = nodes.lock(key, SHOWN_WAITERS)?;
    let Some(lock) = lock.filter(|lock| !lock.holders.is_empty()) else {
        output::print(&format!("nobody holds {}\n", output::word(key)))?;
        return Ok(ExitCode::from(NOT_BROKEN));
    };
    let tokens = tokens(&lock)?;
    output::print(&info::text(key, &lock))?;
    if !options.yes && !is_confirmed()? {
        return Ok(ExitCode::from(NOT_BROKEN));
    }
    let mut ended = 0;
    for token in &tokens {
        ended += usize::from(nodes.release(key, token)?);
    }
    let gone = match tokens.len() - ended {
        0 => String::new(),
        left => format!(", {left} had ended already"),
    };
    output::print(&format!("{ended} broken{gone}\n"))?;
    Ok(if ended > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_BROKEN)
    })
}

/// Returns the tokens of the holders. A grant is ended by its token, so a grant to another token in
/// the meantime stays.
fn tokens(lock: &Lock) -> Result<Vec<&[u8]>> {
    let tokens: Option<Vec<&[u8]>> = lock
        .holders
        .iter()
        .map(|holder| holder.token.as_deref())
        .collect();
    match tokens {
        Some(tokens) => Ok(tokens),
        None => bail!("this user may not write to the key, so it can't break the lock"),
    }
}

fn is_confirmed() -> Result<bool> {
    ensure!(
        io::stdin().is_terminal(),
        "not asked, because the input is no terminal: --yes breaks it without"
    );
    io::stderr().write_all(b"Take it away? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
