//! The server under test: its program, the module that it loads, and its capabilities.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use redis::Value;
use redis_lock_load::{name_of, packed, Connection, Plan, Server, PATIENCE};

use crate::sheet::Extent;

/// Open files of a server in addition to its client connections.
const OTHER_FILES: u64 = 200;

/// The most clients of any benchmark.
const MOST_CLIENTS: u64 = 10_000;

/// The module's name in MODULE LIST.
const MODULE: &str = "lock";

/// The common script that releases a lock.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// Like `COMPARE_AND_DELETE`, and notifies the waiters on a channel.
pub const COMPARE_DELETE_AND_PUBLISH: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) \
     redis.call('publish',ARGV[2],'1') return 1 else return 0 end";

/// The configuration of every server. A server writes nothing to disk unless a benchmark asks for
/// that. The automatic rewrite of the append-only file is off, because it would affect one round
/// only.
const ALWAYS: [&str; 3] = [
    "maxclients 15000",
    "tcp-backlog 1024",
    "auto-aof-rewrite-percentage 0",
];

/// A server program, the module that it loads, and the extent of the measurements.
pub struct Stage {
    program: PathBuf,
    module: PathBuf,
    extent: Extent,
}

impl Stage {
    /// Returns a stage for a program and a module.
    pub fn new(program: &Path, module: &Path, extent: Extent) -> Stage {
        Stage {
            program: program.to_owned(),
            module: module.to_owned(),
            extent,
        }
    }

    /// Returns the extent of the measurements.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Starts a new server with additional configuration lines.
    pub fn start(&self, lines: &[&str]) -> Result<Server> {
        self.start_under(Vec::new(), lines, PATIENCE)
    }

    /// Like `start`, but runs the server under another program.
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

    /// Returns the name and version that the program prints.
    pub fn server_name(&self) -> Result<String> {
        name_of(&self.program)
    }

    /// Starts a server with the module, and returns the module's version from MODULE LIST.
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

/// Returns all words of a reply, in order.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(words).collect(),
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::Int(number) => vec![number.to_string()],
        Value::SimpleString(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// The command that compares and deletes on servers that have such a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareAndDelete {
    /// `DELEX key IFEQ value`, Redis 8.4 and later.
    Delex,
    /// `DELIFEQ key value`, Valkey 9.0 and later.
    Delifeq,
}

impl CompareAndDelete {
    /// Returns the command that the server supports, if any.
    pub fn of(asker: &mut Connection) -> Option<CompareAndDelete> {
        let both = [CompareAndDelete::Delex, CompareAndDelete::Delifeq];
        let mut known = both.into_iter();
        known.find(|command| asker.count(&command.on("nothing", "none")).is_ok())
    }

    /// Returns the command for a key and a value.
    pub fn on(self, key: &str, value: &str) -> String {
        match self {
            CompareAndDelete::Delex => format!("DELEX {key} IFEQ {value}"),
            CompareAndDelete::Delifeq => format!("DELIFEQ {key} {value}"),
        }
    }
}

/// Loads a script, and returns its SHA1 for EVALSHA.
pub fn load_script(asker: &mut Connection, script: &str) -> Result<String> {
    let sha = asker.call_words(&[b"SCRIPT", b"LOAD", script.as_bytes()])?;
    Ok(redis::from_redis_value(sha)?)
}

/// Returns a token of 32 bytes, the length that most clients use.
pub fn token(number: usize) -> String {
    format!("token-{number:026}")
}

/// Packed commands, one after the other, so that many can be sent in one write.
#[derive(Default)]
pub struct Script {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Script {
    /// Appends a command.
    pub fn push(&mut self, command: &str) {
        self.bytes.extend_from_slice(&packed(command));
        self.ends.push(self.bytes.len());
    }

    /// Returns the bytes of the commands from `from` up to `to`, exclusive.
    pub fn part(&self, from: usize, to: usize) -> &[u8] {
        let end_of = |count: usize| count.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.bytes[end_of(from)..end_of(to)]
    }
}

/// Raises the limit of open files for this process and the servers that it starts. Fails if the
/// limit stays too low for the benchmarks' connections.
pub fn raise_file_limit() -> Result<()> {
    let needed = MOST_CLIENTS + OTHER_FILES;
    let limit = rlimit::increase_nofile_limit(u64::MAX).context("the limit of open files")?;
    ensure!(
        limit >= needed,
        "a process may have {limit} open files here, {needed} are needed: see `ulimit -Hn`"
    );
    Ok(())
}
