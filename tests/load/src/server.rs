//! A server process with the module, in a directory of its own.

use std::io::Error;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

use crate::{until, Connection};

/// A running server. It is killed, and its directory removed, when this goes out of scope.
pub struct Server {
    process: Process,
    dir: TempDir,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(plan: Plan) -> Result<Server> {
        let dir = tempfile::Builder::new()
            .prefix("redis-lock-load-")
            .tempdir()?;
        let process = Process::start(plan, dir.path())?;
        Ok(Server { process, dir })
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.process.port()
    }

    /// Returns the server's working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Opens a new connection.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.port())
    }

    /// Stops the process (SIGSTOP).
    pub fn freeze(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Lets a stopped process go on (SIGCONT).
    pub fn thaw(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    fn signal(&self, number: libc::c_int) -> Result<()> {
        let id = libc::pid_t::try_from(self.process.id())?;
        // SAFETY: the call takes only numbers. The process is this one's child and was not waited
        // for, so no other process has its id.
        let sent = unsafe { libc::kill(id, number) };
        ensure!(sent == 0, "signal {number}: {}", Error::last_os_error());
        Ok(())
    }

    /// Waits for the end of the process, and returns its exit status.
    pub fn until_ended(&self, patience: Duration) -> Result<ExitStatus> {
        until("the server's end", patience, || {
            Ok(self.process.ended()?.is_some())
        })?;
        self.process.ended()?.context("an end")
    }
}
