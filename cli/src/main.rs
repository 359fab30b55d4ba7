//! `redis-lock`: runs commands under locks, and shows, watches and breaks locks.
//!
//! The modules, lowest first: `signals` ends and stops this process by signals, `within` limits the
//! time of work, `output` formats bytes and spans for people, `lock` parses the reply of LOCK.INFO
//! and `hot` that of LOCK.HOT, `json` formats locks for programs, `streams` connects to a server, and
//! `nodes` talks with all of them. `arguments` is the command line. Each command has its own module.

mod arguments;
mod breaking;
mod hot;
mod info;
mod json;
mod listing;
mod lock;
mod nodes;
mod output;
mod run;
mod signals;
mod streams;
mod top;
mod why;
mod within;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use arguments::{Arguments, Task};

/// The exit code if the server is unreachable or refuses the command.
const UNAVAILABLE: u8 = 69;

fn main() -> ExitCode {
    match done(arguments::read()) {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::log(output::line(&format!("{error:#}")));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

fn done(arguments: Arguments) -> Result<ExitCode> {
    let server = arguments.server;
    match arguments.task {
        Task::Run(options) => run::run(&server, &options),
        Task::Ls(options) => listing::list(&server, &options),
        Task::Info(options) => info::show(&server, &options),
        Task::Why(options) => why::explain(&server, &options),
        Task::Top(options) => top::watch(&server, &options),
        Task::Break(options) => breaking::break_lock(&server, &options),
        Task::Completions { shell } => {
            output::print(&completions(shell)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Man { folder } => {
            clap_mangen::generate_to(Arguments::command(), &folder)
                .with_context(|| format!("can't write to {}", folder.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the completions for a shell.
///
/// The script for bash names a command's function in two ways if the program's name has a hyphen,
/// so without the replacement it would complete nothing behind a command.
fn completions(shell: Shell) -> Result<String> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "redis-lock", &mut script);
    let script = String::from_utf8(script)?;
    Ok(script.replace("redis__subcmd__lock", "redis__lock"))
}
