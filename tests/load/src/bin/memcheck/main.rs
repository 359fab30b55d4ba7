//! A server under valgrind while its clients are killed in every way.

mod findings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use redis_lock_load::workload::{self, Act, ACTS};
use redis_lock_load::{exit_code, Plan, Server};

use crate::findings::Finding;

/// Time that the server may take to start, and to end, under valgrind. At the end valgrind looks
/// for leaks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of rounds of a full run.
const ROUNDS: u32 = 5;

/// Number of findings that are printed in full.
const MOST_PRINTED: usize = 10;

/// Runs a server with the module under valgrind and kills its clients in every way. Fails if the
/// server read or wrote memory that isn't its own, or if the module lost memory.
#[derive(Parser)]
struct Options {
    /// The server's program; its allocator must be a library of its own, like in Debian's package
    server: PathBuf,
    /// The module's library, built for debugging
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// Plays each act only once
    #[arg(long)]
    quick: bool,
    /// Plays only the acts with this text in their name
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    exit_code(checked(&Options::parse()))
}

fn checked(options: &Options) -> Result<ExitCode> {
    let valgrind = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    ensure!(
        valgrind.is_ok_and(|status| status.success()),
        "valgrind can't be run: install the package valgrind"
    );
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("valgrind.xml");
    let server = start(options, &file)?;
    let ended = run(server, options);
    if let Err(error) = &ended {
        println!("\nthe server didn't live to its shutdown: {error:#}");
    }
    let findings = findings::read(&file, &options.module)?;
    let (invalid, lost): (Vec<_>, Vec<_>) = findings.into_iter().partition(Finding::is_access);
    let failed = [
        judge("invalid reads and writes", &invalid),
        judge("memory lost by the module", &lost),
        ended.is_err(),
    ];
    let failed = failed.into_iter().filter(|failed| *failed).count();
    println!("\n{} passed, {failed} failed", 3 - failed);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Prints the findings, and returns true if there are any.
fn judge(what: &str, findings: &[Finding]) -> bool {
    println!("\n{what}: {}", findings.len());
    for finding in findings.iter().take(MOST_PRINTED) {
        println!("{finding}");
    }
    !findings.is_empty()
}

/// Starts a server under valgrind, which writes its findings to `file`.
fn start(options: &Options, file: &Path) -> Result<Server> {
    let lines = [
        "client-output-buffer-limit pubsub 1mb 0 0",
        "aof-use-rdb-preamble no",
    ];
    let server = Server::start(Plan {
        under: valgrind(file),
        module: Some(options.module.clone()),
        lines: lines.map(str::to_owned).to_vec(),
        patience: PATIENCE,
        ..Plan::new(&options.server)
    })?;
    ensure_seen(&server)?;
    Ok(server)
}

/// Plays all acts, and shuts the server down.
fn run(server: Server, options: &Options) -> Result<()> {
    let played = play(&server, options);
    // Valgrind writes the end of its report only if the server exits.
    let waiters = workload::shut_down(&server);
    let status = server.until_ended(PATIENCE)?;
    played?;
    drop(waiters?);
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}

fn play(server: &Server, options: &Options) -> Result<()> {
    let rounds = if options.quick { 1 } else { ROUNDS };
    let only = &options.only;
    let acts: Vec<&Act> = ACTS
        .iter()
        .filter(|(name, _)| name.contains(only.as_str()))
        .collect();
    ensure!(!acts.is_empty(), "nothing has {only:?} in its name");
    for round in 1..=rounds {
        for (name, act) in &acts {
            let begin = Instant::now();
            act(server).with_context(|| (*name).to_owned())?;
            workload::reuse_freed_memory(server).with_context(|| format!("after {name}"))?;
            let took = begin.elapsed().as_secs_f64();
            println!("round {round}/{rounds}: {name} ({took:.1} s)");
        }
    }
    Ok(())
}

fn valgrind(file: &Path) -> Vec<OsString> {
    let mut xml_file = OsString::from("--xml-file=");
    xml_file.push(file);
    let options = [
        "valgrind",
        // Without this the server would use jemalloc, which is unknown to valgrind.
        "--soname-synonyms=somalloc=*jemalloc*",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=none",
        "--undef-value-errors=no",
        "--num-callers=30",
        // Freed memory stays unused for a long time.
        "--freelist-vol=200000000",
        "--child-silent-after-fork=yes",
        "--xml=yes",
    ];
    let options = options.into_iter().map(OsString::from);
    options.chain([xml_file]).collect()
}

/// Returns an error if valgrind doesn't allocate the server's memory, because it would see nothing
/// then. A jemalloc that valgrind replaced has allocated hardly anything, and reports that.
fn ensure_seen(server: &Server) -> Result<()> {
    let mut asker = server.connect()?;
    if asker.info("memory", "mem_allocator")? == "libc" {
        return Ok(());
    }
    let used: u64 = asker.info("memory", "used_memory")?.parse()?;
    let allocated: u64 = asker.info("memory", "allocator_allocated")?.parse()?;
    if allocated > used / 2 {
        bail!(
            "valgrind can't see what this server frees: its allocator is part of the program, or the \
             program starts another one"
        );
    }
    Ok(())
}
