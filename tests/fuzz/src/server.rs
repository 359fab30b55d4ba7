//! Server processes and what is asked of them.

use std::cell::RefCell;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use redis::{FromRedisValue, InfoDict};

/// What a server writes when it has met a fault in itself or in the module.
const CRASH_MARKS: [&str; 7] = [
    "=== REDIS BUG REPORT",
    "=== VALKEY BUG REPORT",
    "ASSERTION FAILED",
    "Sanitizer",
    "panicked at",
    "a step panicked",
    "Guru Meditation",
];

/// How many lines of a log are shown.
const TAIL_LINES: usize = 60;

/// How long a server may take to do what it was asked.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Below the ports that systems give to outgoing connections, as are those of a cluster's bus.
const PORTS: Range<u16> = 11_000..21_000;

/// How far above a node's port its bus listens.
const BUS_ABOVE: u16 = 10_000;

/// How often a server is started where others take its port.
const STARTS: u32 = 20;

/// What a server program says of itself.
pub struct Version {
    /// As in "Valkey 8.1.1".
    name: String,
}

impl Version {
    /// Asks a program.
    pub fn of(program: &Path) -> Result<Version> {
        let output = process::Command::new(program)
            .arg("--version")
            .output()
            .with_context(|| format!("{} can't be run", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let name = text
            .split_once(" server v=")
            .and_then(|(flavour, rest)| Some((flavour, rest.split_whitespace().next()?)));
        let (flavour, number) =
            name.with_context(|| format!("{} is no server", program.display()))?;
        Ok(Version {
            name: format!("{flavour} {number}"),
        })
    }

    /// With flavour and number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is of a series, as in "Valkey 8.1", or of a flavour.
    pub fn is(&self, series: &str) -> bool {
        self.name
            .strip_prefix(series)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
    }
}

/// What is the same for all processes of a run.
pub struct Setup {
    /// The server's program.
    pub program: PathBuf,
    /// The module, if it is loaded.
    pub module: Option<PathBuf>,
    /// Where each process has a directory of its own.
    pub dir: PathBuf,
}

/// A running server. It is killed when this goes out of scope.
pub struct Server {
    role: &'static str,
    child: RefCell<Child>,
    dir: PathBuf,
    port: u16,
    control: RefCell<Option<redis::Connection>>,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(setup: &Setup, role: &'static str, more: &[String]) -> Result<Server> {
        for _ in 0..STARTS {
            let server = Server::launch(setup, role, more)?;
            // On its port there may be a server of somebody else.
            let process = u64::from(server.child.borrow().id());
            let answers = server.until("it answers", || {
                Ok(server.info("server", "process_id")? == process)
            });
            match answers {
                Ok(()) => return Ok(server),
                // Somebody else took the port after it was found free.
                Err(_) if server.log().contains("Address already in use") => {}
                Err(error) => return Err(error.context(server.log_tail())),
            }
        }
        bail!("the {role} found no free port in {STARTS} starts");
    }

    fn launch(setup: &Setup, role: &'static str, more: &[String]) -> Result<Server> {
        let dir = setup.dir.join(role);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)?;
        let port = free_port()?;
        let config = dir.join("server.conf");
        fs::write(&config, configuration(setup, port, &dir, more))?;
        let stderr = fs::File::create(dir.join("server.err"))?;
        let child = process::Command::new(&setup.program)
            .arg(&config)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(stderr.try_clone()?)
            .stderr(stderr)
            .spawn()?;
        Ok(Server {
            role,
            child: RefCell::new(child),
            dir,
            port,
            control: RefCell::new(None),
        })
    }

    /// What it is in the run.
    pub fn role(&self) -> &'static str {
        self.role
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Asks with the words of a line.
    pub fn ask<T: FromRedisValue>(&self, line: &str) -> Result<T> {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.ask_words(&words)
    }

    /// Asks, on a connection of its own that is made anew where it was lost.
    pub fn ask_words<T: FromRedisValue>(&self, words: &[&[u8]]) -> Result<T> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let mut control = self.control.borrow_mut();
        if control.is_none() {
            *control = Some(connect(self.port)?);
        }
        let connection = control.as_mut().context("a connection")?;
        let answer = command.query(connection);
        if answer.as_ref().is_err_and(redis::RedisError::is_io_error) {
            *control = None;
        }
        let line = words.join(b" ".as_slice());
        answer.with_context(|| format!("{}: {}", self.role, line.escape_ascii()))
    }

    /// One number of INFO.
    pub fn info(&self, section: &str, field: &str) -> Result<u64> {
        let info: InfoDict = self.ask(&format!("INFO {section}"))?;
        info.get(field)
            .with_context(|| format!("INFO {section} has no {field}"))
    }

    /// One text of INFO.
    pub fn info_text(&self, section: &str, field: &str) -> Result<String> {
        let info: InfoDict = self.ask(&format!("INFO {section}"))?;
        info.get(field)
            .with_context(|| format!("INFO {section} has no {field}"))
    }

    /// Polls until something holds. A question that fails is asked again.
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

    /// How the process ended, if it did.
    pub fn death(&self) -> Option<String> {
        match self.child.borrow_mut().try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("the {} died: {status}", self.role)),
            Err(error) => Some(format!("the {} is lost: {error}", self.role)),
        }
    }

    /// What in the log tells of a fault.
    pub fn crash_mark(&self) -> Option<String> {
        let log = self.log();
        let line = log
            .lines()
            .find(|line| CRASH_MARKS.iter().any(|mark| line.contains(mark)))?;
        Some(format!("the {}'s log has: {line}", self.role))
    }

    /// The log's end; where it has the report of a crash, from there on.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let crash = lines
            .iter()
            .position(|line| CRASH_MARKS.iter().any(|mark| line.contains(mark)));
        let from = crash.map_or(lines.len().saturating_sub(TAIL_LINES), |crash| {
            crash.saturating_sub(5)
        });
        let shown: Vec<&str> = lines[from..].iter().take(TAIL_LINES).copied().collect();
        shown.join("\n")
    }

    fn log(&self) -> String {
        ["server.log", "server.err"]
            .iter()
            .filter_map(|name| fs::read(self.dir.join(name)).ok())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        // It may be dead already: then there is only the wait.
        drop(child.kill());
        drop(child.wait());
    }
}

fn configuration(setup: &Setup, port: u16, dir: &Path, more: &[String]) -> String {
    let mut lines = vec![
        format!("port {port}"),
        "bind 127.0.0.1".to_owned(),
        format!("dir \"{}\"", dir.display()),
        "logfile server.log".to_owned(),
        "databases 4".to_owned(),
        "save \"\"".to_owned(),
        "enable-debug-command yes".to_owned(),
        "repl-diskless-sync-delay 0".to_owned(),
        "repl-backlog-size 1mb".to_owned(),
        // Memory is compared between beginning and end: nothing that grows with what was seen.
        "slowlog-log-slower-than -1".to_owned(),
        "latency-tracking no".to_owned(),
        "acllog-max-len 0".to_owned(),
        // A report of a crash comes at once.
        "crash-memcheck-enabled no".to_owned(),
    ];
    if let Some(module) = &setup.module {
        lines.push(format!("loadmodule \"{}\"", module.display()));
    }
    lines.extend_from_slice(more);
    lines.join("\n") + "\n"
}

fn connect(port: u16) -> Result<redis::Connection> {
    let client = redis::Client::open((Ipv4Addr::LOCALHOST.to_string(), port))?;
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// A port that nobody listens on, nor on the one of the cluster's bus above it.
fn free_port() -> Result<u16> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let from = rand::random_range(0..PORTS.len());
    let mut ports = PORTS.cycle().skip(from).take(PORTS.len());
    ports
        .find(|port| is_free(*port) && is_free(*port + BUS_ABOVE))
        .context("no free port")
}
