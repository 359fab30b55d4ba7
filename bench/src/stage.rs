//! Which server is measured, with which module, and what it can do.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use redis::Value;
use redis_lock_load::{packed, Connection, Plan, Server, PATIENCE};

use crate::sheet::Extent;

/// Files that a server needs beside its clients' connections.
const OTHER_FILES: u64 = 200;

/// The clients of the greatest crowd.
const MOST_CLIENTS: u64 = 10_000;

/// What the module calls itself.
const MODULE: &str = "lock";

/// The script that everybody uses to give a lock back.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// As `COMPARE_AND_DELETE`, and tells those who wait on a channel.
pub const COMPARE_DELETE_AND_PUBLISH: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) \
     redis.call('publish',ARGV[2],'1') return 1 else return 0 end";

/// Configuration of every server: nothing is written unless a benchmark says so, and no rewrite of an
/// append-only file falls into one round alone.
const ALWAYS: [&str; 3] = [
    "maxclients 15000",
    "tcp-backlog 1024",
    "auto-aof-rewrite-percentage 0",
];

/// A kind of server, and how much is measured on it.
pub struct Stage {
    program: PathBuf,
    module: PathBuf,
    extent: Extent,
}

impl Stage {
    /// For a program and a module.
    pub fn new(program: &Path, module: &Path, extent: Extent) -> Stage {
        Stage {
            program: program.to_owned(),
            module: module.to_owned(),
            extent,
        }
    }

    /// How much.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// A server of its own, with more configuration.
    pub fn start(&self, lines: &[&str]) -> Result<Server> {
        self.start_under(Vec::new(), lines, PATIENCE)
    }

    /// As `start`, run by another program.
    pub fn start_under(
        &self,
        under: Vec<OsString>,
        lines: &[&str],
        patience: Duration,
    ) -> Result<Server> {
        let lines = ALWAYS.iter().chain(lines).map(|line| (*line).to_owned());
        Server::start(Plan {
            under,
            module: Some(self.module.clone()),
            lines: lines.collect(),
            patience,
            ..Plan::new(&self.program)
        })
    }

    /// What the program says of itself: a name and a version.
    pub fn server_name(&self) -> Result<String> {
        let shown = || self.program.display().to_string();
        let output = Command::new(&self.program).arg("--version").output();
        let text = String::from_utf8(output.with_context(shown)?.stdout)?;
        let mut words = text.split_whitespace();
        let name = words.next().with_context(shown)?.to_owned();
        let version = words.find_map(|word| word.strip_prefix("v="));
        Ok(format!("{name} {}", version.with_context(shown)?))
    }

    /// The module's version, from a server that has loaded it.
    pub fn module_version(&self) -> Result<String> {
        let server = self.start(&[])?;
        let mut asker = server.connect()?;
        let modules = words(&asker.call("MODULE LIST")?);
        let mut modules = modules.iter().skip_while(|word| *word != MODULE);
        modules.find(|word| *word == "ver");
        let version = modules.next().context("MODULE LIST tells no version")?;
        let version: u32 = version.parse()?;
        let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
        Ok(format!("{major}.{minor}.{patch}"))
    }
}

/// All words of an answer, in their order.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(words).collect(),
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::Int(number) => vec![number.to_string()],
        Value::SimpleString(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// How a server that can compare and delete in one command is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareAndDelete {
    /// `DELEX key IFEQ value`, Redis 8.4 and later.
    Delex,
    /// `DELIFEQ key value`, Valkey 9.0 and later.
    Delifeq,
}

impl CompareAndDelete {
    /// Which of them a server knows, if any.
    pub fn of(asker: &mut Connection) -> Option<CompareAndDelete> {
        let both = [CompareAndDelete::Delex, CompareAndDelete::Delifeq];
        let mut known = both.into_iter();
        known.find(|command| asker.count(&command.on("nothing", "none")).is_ok())
    }

    /// The command for a key and a value.
    pub fn on(self, key: &str, value: &str) -> String {
        match self {
            CompareAndDelete::Delex => format!("DELEX {key} IFEQ {value}"),
            CompareAndDelete::Delifeq => format!("DELIFEQ {key} {value}"),
        }
    }
}

/// Loads the script that gives a lock back, and answers its name for EVALSHA.
pub fn load_script(asker: &mut Connection, script: &str) -> Result<String> {
    let sha = asker.call_words(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
    Ok(redis::from_redis_value(sha)?)
}

/// A token of 32 bytes, as most clients make them.
pub fn token(number: usize) -> String {
    format!("token-{number:026}")
}

/// Commands packed one after the other, to be written many at a time.
#[derive(Default)]
pub struct Script {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Script {
    /// Adds a command.
    pub fn push(&mut self, command: &str) {
        self.bytes.extend_from_slice(&packed(command));
        self.ends.push(self.bytes.len());
    }

    /// The bytes of the commands from one index up to another.
    pub fn part(&self, from: usize, to: usize) -> &[u8] {
        let end_of = |count: usize| count.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.bytes[end_of(from)..end_of(to)]
    }
}

/// Lets this process, and the servers that it starts, have the connections that they need.
pub fn raise_file_limit() -> Result<()> {
    let needed = MOST_CLIENTS + OTHER_FILES;
    let limit = rlimit::increase_nofile_limit(u64::MAX).context("the limit of open files")?;
    ensure!(
        limit >= needed,
        "a process may have {limit} open files here, {needed} are needed: see `ulimit -Hn`"
    );
    Ok(())
}
