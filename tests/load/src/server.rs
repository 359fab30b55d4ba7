//! A server process with the module, in a directory of its own.

use std::env;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

use crate::{until, Connection, PATIENCE};

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
        self.process.freeze()
    }

    /// Lets a stopped process go on (SIGCONT).
    pub fn thaw(&self) -> Result<()> {
        self.process.thaw()
    }

    /// Waits for the end of the process, and returns its exit status.
    pub fn until_ended(&self, patience: Duration) -> Result<ExitStatus> {
        until("the server's end", patience, || {
            Ok(self.process.ended()?.is_some())
        })?;
        self.process.ended()?.context("an end")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A build that records a profile writes it as its process ends by itself.
        if env::var_os("LLVM_PROFILE_FILE").is_some() && self.process.terminate().is_ok() {
            drop(self.until_ended(PATIENCE));
        }
    }
}
