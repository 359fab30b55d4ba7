//! A server's process.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{Error, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use redis::{from_redis_value, Client, Cmd, FromRedisValue, InfoDict, Parser, RedisResult, Value};

use crate::{free_port, packed};

/// The marks that a server writes after a fault in itself or in the module.
const CRASH_MARKS: [&str; 7] = [
    "=== REDIS BUG REPORT",
    "=== VALKEY BUG REPORT",
    "ASSERTION FAILED",
    "Sanitizer",
    "panicked at",
    "a step panicked",
    "Guru Meditation",
];

/// The marks of the line with the cause, in the head of a report.
const CAUSE_MARKS: [&str; 2] = ["==> ", "crashed by signal"];

/// The most lines in the head of a report.
const REPORT_HEAD_LINES: usize = 30;

const CONFIG_FILE: &str = "server.conf";
const LOG_FILE: &str = "server.log";

/// The file for the server's output before it has a log.
const STDERR_FILE: &str = "server.err";

/// The number of lines shown of each of these files.
const TAIL_LINES: usize = 60;

/// The most starts of a server whose port is taken each time.
const STARTS: u32 = 20;

/// The pause between two checks that a starting server is ready.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns the name and version of a server program, like "Valkey 8.1.1".
pub fn name_of(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| format!("{} can't be run", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text
        .split_once(" server v=")
        .and_then(|(flavour, rest)| Some((flavour, rest.split_whitespace().next()?)));
    let (flavour, number) = name.with_context(|| format!("{} is no server", program.display()))?;
    Ok(format!("{flavour} {number}"))
}

/// The settings with which a process is started, the first time and later.
pub struct Plan {
    /// The server's program.
    pub program: PathBuf,
    /// The words before the program, for a tool that runs it.
    pub under: Vec<OsString>,
    /// The module that the server loads, if any.
    pub module: Option<PathBuf>,
    /// More lines of configuration, after the lines that every server here has.
    pub lines: Vec<String>,
    /// The words after the configuration file.
    pub arguments: Vec<String>,
    /// Variables of the environment, in addition to the variables of this process.
    pub environment: Vec<(String, String)>,
    /// The longest time until the server replies.
    pub patience: Duration,
}

impl Plan {
    /// Returns a plan with the program alone.
    pub fn new(program: &Path) -> Plan {
        Plan {
            program: program.to_owned(),
            under: Vec::new(),
            module: None,
            lines: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            patience: Duration::from_secs(15),
        }
    }

    fn configuration(&self, dir: &Path, ports: Ports) -> String {
        let always = [
            format!("port {}", ports.clients),
            // Otherwise 10,000 above, where the system gives ports to outgoing connections.
            format!("cluster-port {}", ports.bus),
            "bind 127.0.0.1".to_owned(),
            format!("dir \"{}\"", dir.display()),
            format!("logfile \"{}\"", dir.join(LOG_FILE).display()),
            "save \"\"".to_owned(),
            "enable-debug-command yes".to_owned(),
            "enable-module-command yes".to_owned(),
            // A replica is served at once instead of five seconds later.
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        let module = self.module.iter();
        let module = module.map(|path| format!("loadmodule \"{}\"", path.display()));
        let lines = always.into_iter().chain(module).chain(self.lines.clone());
        lines.map(|line| line + "\n").collect()
    }

    fn command(&self, config: &Path) -> Command {
        let words: Vec<OsString> = self
            .under
            .iter()
            .cloned()
            .chain([self.program.clone().into(), config.into()])
            .collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.arguments);
        command.envs(self.environment.iter().cloned());
        command
    }
}

/// The ports of a process: for clients, and for the bus if it is a node of a cluster.
#[derive(Clone, Copy)]
struct Ports {
    clients: u16,
    bus: u16,
}

/// A running server. It is killed when this goes out of scope, and its directory stays.
pub struct Process {
    plan: Plan,
    dir: PathBuf,
    ports: Ports,
    child: Mutex<Child>,
}

/// The reason why a process didn't become a server.
enum Refused {
    PortTaken,
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused::Other(error)
    }
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Refused {
        Refused::Other(error.into())
    }
}

impl Process {
    /// Starts a server on a free port, in a directory of its own, and waits until it replies.
    pub fn start(mut plan: Plan, dir: &Path) -> Result<Process> {
        if let Some(module) = &mut plan.module {
            let path = module.canonicalize();
            *module = path.with_context(|| format!("no module at {}", module.display()))?;
        }
        for _ in 0..STARTS {
            let ports = Ports {
                clients: free_port(),
                bus: free_port(),
            };
            match launched(&plan, dir, ports) {
                Ok(child) => {
                    return Ok(Process {
                        plan,
                        dir: dir.to_owned(),
                        ports,
                        child: Mutex::new(child),
                    })
                }
                // The log of the next try has that try alone.
                Err(Refused::PortTaken) => fs::remove_file(dir.join(LOG_FILE))?,
                Err(Refused::Other(reason)) => {
                    bail!("the server didn't start: {reason:#}\n{}", log_tail(dir))
                }
            }
        }
        bail!("no free port for the server in {STARTS} starts");
    }

    /// Starts the server again in the same directory and on the same ports. Kills it first if it is
    /// still running.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        match launched(&self.plan, &self.dir, self.ports) {
            Ok(child) => self.child = Mutex::new(child),
            Err(Refused::PortTaken) => bail!("port {} is taken", self.port()),
            Err(Refused::Other(reason)) => bail!("no restart: {reason:#}\n{}", self.log_tail()),
        }
        Ok(())
    }

    /// Adds a line to the configuration, for the next start.
    pub fn add_line(&mut self, line: &str) {
        self.plan.lines.push(line.to_owned());
    }

    /// Sets another module, for the next start.
    pub fn load_instead(&mut self, module: &Path) {
        self.plan.module = Some(module.to_owned());
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.ports.clients
    }

    /// Returns the port of the cluster's bus, if the server is a node of a cluster.
    pub fn bus_port(&self) -> u16 {
        self.ports.bus
    }

    /// Returns the server's working directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Returns the exit status of the process, if it has ended.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        self.child().try_wait().context("the server's process")
    }

    /// Ends the process without a chance to save anything.
    pub fn kill(&self) {
        kill(&mut self.child());
    }

    /// Asks the process to end by itself (SIGTERM).
    pub fn terminate(&self) -> Result<()> {
        self.signal(libc::SIGTERM)?;
        Ok(())
    }

    /// Stops the process (SIGSTOP), and waits until it has stopped. Everything that it is sent
    /// meanwhile stays in its sockets.
    pub fn freeze(&self) -> Result<()> {
        let id = self.signal(libc::SIGSTOP)?;
        let mut status = 0;
        // SAFETY: `status` is writable, and the process is a child that was not waited for.
        let changed = unsafe { libc::waitpid(id, &raw mut status, libc::WUNTRACED) };
        ensure!(
            changed == id && libc::WIFSTOPPED(status),
            "the process should have stopped: {status:#x}"
        );
        Ok(())
    }

    /// Continues a stopped process (SIGCONT).
    pub fn thaw(&self) -> Result<()> {
        self.signal(libc::SIGCONT)?;
        Ok(())
    }

    fn signal(&self, signal: libc::c_int) -> Result<libc::pid_t> {
        let id = libc::pid_t::try_from(self.id())?;
        // SAFETY: the call takes numbers only. The process is a child that was not waited for, so no
        // other process has its id.
        let sent = unsafe { libc::kill(id, signal) };
        ensure!(sent == 0, "signal {signal}: {}", Error::last_os_error());
        Ok(id)
    }

    /// Sends a command whose words contain no spaces, on a new connection, because older connections
    /// may have been killed.
    pub fn ask<T: FromRedisValue>(&self, command: &str) -> RedisResult<T> {
        let mut words = Cmd::new();
        words.arg(command.split(' ').collect::<Vec<_>>());
        let mut connection =
            Client::open((Ipv4Addr::LOCALHOST.to_string(), self.port()))?.get_connection()?;
        words.query(&mut connection)
    }

    /// Returns everything in the server's log so far.
    pub fn log(&self) -> String {
        read_text(&self.dir.join(LOG_FILE))
    }

    /// Returns the sign of a fault in the server or in the module: the first such line that the
    /// server wrote, and the cause that a report gives.
    pub fn crash(&self) -> Option<String> {
        crash(&(self.log() + &read_text(&self.dir.join(STDERR_FILE))))
    }

    /// Returns the end of the server's output. If it has the report of a crash, returns the part
    /// from a little before the report.
    pub fn log_tail(&self) -> String {
        log_tail(&self.dir)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launched(plan: &Plan, dir: &Path, ports: Ports) -> Result<Child, Refused> {
    let config = dir.join(CONFIG_FILE);
    fs::write(&config, plan.configuration(dir, ports))?;
    let stderr = OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(STDERR_FILE))?;
    let mut child = plan
        .command(&config)
        .stdin(Stdio::null())
        .stdout(stderr.try_clone()?)
        .stderr(stderr)
        .spawn()
        .with_context(|| format!("{} can't be run", plan.program.display()))?;
    let ready = until_ready(&mut child, plan, dir, ports.clients);
    if ready.is_err() {
        kill(&mut child);
    }
    ready.map(|()| child)
}

fn until_ready(child: &mut Child, plan: &Plan, dir: &Path, port: u16) -> Result<(), Refused> {
    let deadline = Instant::now() + plan.patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            let log = read_text(&dir.join(LOG_FILE));
            return Err(if log.contains("Address already in use") {
                Refused::PortTaken
            } else {
                anyhow!("it ended with {status}").into()
            });
        }
        if is_ready(child.id(), port, plan.patience).unwrap_or(false) {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(anyhow!("no answer within {:?}", plan.patience).into())
}

/// Returns true if this process replies on the port and has loaded its data.
fn is_ready(process: u32, port: u16, patience: Duration) -> Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&packed(&["INFO", "server"]))?;
    stream.write_all(&packed(&["PING"]))?;
    let mut replies = Parser::new();
    let info: InfoDict = from_redis_value(replies.parse_value(&stream)?)?;
    let pong = replies.parse_value(&stream)?;
    Ok(info.get("process_id") == Some(process) && pong == Value::SimpleString("PONG".to_owned()))
}

fn kill(child: &mut Child) {
    // If the process has ended by itself, there is nothing to kill, and only the wait matters.
    drop(child.kill());
    drop(child.wait());
}

fn is_of_a_crash(line: &&str) -> bool {
    CRASH_MARKS.iter().any(|mark| line.contains(mark))
}

fn crash(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !is_of_a_crash(line));
    let first = lines.next()?;
    let is_cause = |line: &&str| CAUSE_MARKS.iter().any(|mark| line.contains(mark));
    let causes: Vec<&str> = lines.take(REPORT_HEAD_LINES).filter(is_cause).collect();
    Some([&[first], causes.as_slice()].concat().join(" | "))
}

fn log_tail(dir: &Path) -> String {
    let tail = |name| {
        let text = read_text(&dir.join(name));
        format!("--- {name}\n{}\n", shown(&text))
    };
    [LOG_FILE, STDERR_FILE].map(tail).concat()
}

/// Returns the part of a text to show: its end, or the part from a little before the report of a
/// crash.
fn shown(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let end = lines.len().saturating_sub(TAIL_LINES);
    let crash = lines.iter().position(is_of_a_crash);
    let from = crash.map_or(end, |crash| crash.saturating_sub(5));
    let shown: Vec<&str> = lines[from..].iter().take(TAIL_LINES).copied().collect();
    shown.join("\n")
}

fn read_text(path: &Path) -> String {
    fs::read(path).map_or_else(
        |_| String::new(),
        |all| String::from_utf8_lossy(&all).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_with_its_cause() {
        assert_eq!(crash("all is well\n==> so far"), None);
        assert_eq!(
            crash("fine\nthread panicked at x\nmore").unwrap(),
            "thread panicked at x"
        );
        let report =
            "=== REDIS BUG REPORT START\n# === ASSERTION FAILED ===\n# ==> db.c:1 'x'\nBacktrace:";
        assert_eq!(
            crash(report).unwrap(),
            "=== REDIS BUG REPORT START | # ==> db.c:1 'x'"
        );
    }

    #[test]
    fn the_end_is_shown_and_a_crash_from_a_little_before_it_on() {
        let lines = |range: std::ops::Range<u32>| {
            let lines: Vec<String> = range.map(|number| format!("line {number}")).collect();
            lines.join("\n")
        };
        assert_eq!(shown("one\ntwo"), "one\ntwo");
        assert_eq!(shown(&lines(0..100)), lines(40..100));
        let crash = format!("{}\nASSERTION FAILED\n{}", lines(0..50), lines(50..200));
        let expected = format!("{}\nASSERTION FAILED\n{}", lines(45..50), lines(50..104));
        assert_eq!(shown(&crash), expected);
    }
}
