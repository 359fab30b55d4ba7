//! Server processes, and requests to them.

use std::cell::RefCell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use redis::{FromRedisValue, InfoDict};
use redis_lock_rig::{name_of, Plan, Process};

/// Time that a server may take for a request.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The flavour and version that a server program reports.
pub struct Version {
    /// Like "Valkey 8.1.1".
    name: String,
}

impl Version {
    /// Gets the version of a program from the program.
    pub fn of(program: &Path) -> Result<Version> {
        let name = name_of(program)?;
        Ok(Version { name })
    }

    /// Returns the flavour and the version number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the version is of a series, like "Valkey 8.1", or of a flavour.
    pub fn is(&self, series: &str) -> bool {
        self.name
            .strip_prefix(series)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
    }
}

/// The setup that all processes of a run share.
pub struct Setup {
    /// The server's program.
    pub program: PathBuf,
    /// The module, if it is loaded.
    pub module: Option<PathBuf>,
    /// The directory in which each process has its own.
    pub dir: PathBuf,
}

/// Configuration lines of every server.
const CONFIGURATION: &[&str] = &[
    "databases 4",
    "repl-backlog-size 1mb",
    // Nothing may grow with use, because memory is compared between beginning and end.
    "slowlog-log-slower-than -1",
    "latency-tracking no",
    "acllog-max-len 0",
    // A crash report is written at once.
    "crash-memcheck-enabled no",
];

/// A running server. It is killed when this goes out of scope.
pub struct Server {
    role: &'static str,
    process: Process,
    control: RefCell<Option<redis::Connection>>,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(setup: &Setup, role: &'static str, more: &[&str]) -> Result<Server> {
        let dir = setup.dir.join(role);
        fs::create_dir(&dir)?;
        let lines = CONFIGURATION.iter().chain(more);
        let plan = Plan {
            module: setup.module.clone(),
            lines: lines.map(|line| (*line).to_owned()).collect(),
            patience: PATIENCE,
            ..Plan::new(&setup.program)
        };
        let process = Process::start(plan, &dir).context(role)?;
        Ok(Server {
            role,
            process,
            control: RefCell::new(None),
        })
    }

    /// Returns the server's role in the run.
    pub fn role(&self) -> &'static str {
        self.role
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.process.port()
    }

    /// Returns the port of the cluster's bus, if the server is a node of a cluster.
    pub fn bus_port(&self) -> u16 {
        self.process.bus_port()
    }

    /// Calls the command with the words of `line`.
    pub fn ask<T: FromRedisValue>(&self, line: &str) -> Result<T> {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.ask_words(&words)
    }

    /// Calls the command on the server's control connection, which is reopened if it was lost.
    pub fn ask_words<T: FromRedisValue>(&self, words: &[&[u8]]) -> Result<T> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut control = self.control.borrow_mut();
        if control.is_none() {
            *control = Some(connect(self.port())?);
        }
        let connection = control.as_mut().context("a connection")?;
        let answer = command.query(connection);
        if answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            *control = None;
        }
        let line = words.join(b" ".as_slice());
        answer.with_context(|| format!("{}: {}", self.role, line.escape_ascii()))
    }

    /// Returns a number of INFO.
    pub fn info(&self, section: &str, field: &str) -> Result<u64> {
        let info: InfoDict = self.ask(&format!("INFO {section}"))?;
        info.get(field)
            .with_context(|| format!("INFO {section} has no {field}"))
    }

    /// Returns a text of INFO.
    pub fn info_text(&self, section: &str, field: &str) -> Result<String> {
        let info: InfoDict = self.ask(&format!("INFO {section}"))?;
        info.get(field)
            .with_context(|| format!("INFO {section} has no {field}"))
    }

    /// Returns true if the server is a replica.
    pub fn is_replica(&self) -> Result<bool> {
        Ok(self.info_text("replication", "role")? == "slave")
    }

    /// Polls until `holds` returns true. An error of `holds` counts as false.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let last = holds();
            if matches!(last, Ok(true)) {
                return Ok(());
            }
            if let Some(fault) = self.death() {
                bail!("{fault}");
            }
            if Instant::now() > deadline {
                let why = last
                    .err()
                    .map_or(String::new(), |error| format!(": {error:#}"));
                bail!("{}: not within {PATIENCE:?}: {what}{why}", self.role);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns a message if the process has ended.
    pub fn death(&self) -> Option<String> {
        match self.process.ended() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("the {} died: {status}", self.role)),
            Err(error) => Some(format!("the {} is lost: {error:#}", self.role)),
        }
    }

    /// Returns the line of the log that reports a crash, if any.
    pub fn crash_mark(&self) -> Option<String> {
        let line = self.process.crash()?;
        Some(format!("the {}'s log has: {line}", self.role))
    }

    /// Returns the end of the log, from the crash report on if the log has one.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

fn connect(port: u16) -> Result<redis::Connection> {
    let client = redis::Client::open((Ipv4Addr::LOCALHOST.to_string(), port))?;
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}
