//! A server process of its own, with the module.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use tempfile::TempDir;

use crate::Connection;

/// Ports below those that a system gives to outgoing connections, so that no client sits on one.
const PORTS: std::ops::Range<u16> = 11_000..31_000;

const LOG_FILE: &str = "server.log";

/// What is to be started.
pub struct Plan {
    /// Words before the program's own, for a tool that runs it.
    pub under: Vec<OsString>,
    /// The server's program.
    pub program: PathBuf,
    /// The module's library.
    pub module: PathBuf,
    /// Lines of its configuration.
    pub lines: Vec<String>,
    /// How long it may take until it answers.
    pub patience: Duration,
}

/// A running server. It is killed, and its directory removed, when this goes out of scope.
pub struct Server {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Server {
    /// Starts a server without persistence and waits until it answers.
    pub fn start(plan: &Plan) -> Result<Server> {
        let mut refused = anyhow!("no try was made");
        for _ in 0..20 {
            let server = Server::launch(plan, rand::random_range(PORTS))?;
            match server.until_ready(plan.patience) {
                Ok(server) => return Ok(server),
                Err(Refused::PortTaken) => refused = anyhow!("no free port"),
                Err(Refused::Other(reason)) => return Err(reason),
            }
        }
        Err(refused)
    }

    fn launch(plan: &Plan, port: u16) -> Result<Server> {
        let dir = tempfile::Builder::new()
            .prefix("redis-lock-load-")
            .tempdir()?;
        let module = plan.module.canonicalize();
        let module = module.with_context(|| plan.module.display().to_string())?;
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir \"{}\"", dir.path().display()),
            format!("logfile \"{}\"", dir.path().join(LOG_FILE).display()),
            "save \"\"".to_owned(),
            "enable-debug-command yes".to_owned(),
            format!("loadmodule \"{}\"", module.display()),
        ];
        let config = dir.path().join("server.conf");
        fs::write(&config, [&lines[..], &plan.lines[..]].concat().join("\n"))?;
        let mut words = plan.under.clone();
        words.extend([plan.program.clone().into(), config.into()]);
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{:?} can't be run", words[0]))?;
        Ok(Server { child, dir, port })
    }

    fn until_ready(mut self, patience: Duration) -> Result<Server, Refused> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                let log = self.log();
                return Err(if log.contains("Address already in use") {
                    Refused::PortTaken
                } else {
                    Refused::Other(anyhow!("the server ended with {status}\n{log}"))
                });
            }
            if self.answers().is_ok() {
                return Ok(self);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(Refused::Other(anyhow!("no answer in {patience:?}")))
    }

    /// Whether it is this process that answers on the port.
    fn answers(&self) -> Result<()> {
        let owner = self.connect()?.info("server", "process_id")?;
        if owner != self.child.id().to_string() {
            bail!("another server has the port");
        }
        Ok(())
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.port)
    }

    /// Everything in its log so far.
    pub fn log(&self) -> String {
        fs::read(self.dir.path().join(LOG_FILE))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Waits for its end.
    pub fn until_ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("the server still runs after {patience:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to kill, and only the wait matters.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Why a process didn't become a server.
enum Refused {
    PortTaken,
    Other(anyhow::Error),
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Refused {
        Refused::Other(error.into())
    }
}
