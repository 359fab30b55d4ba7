//! The server and the size of a storm.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use redis_lock_load::{name_of, Latency, Pinger, Plan, Server, PATIENCE};

/// Factor by which a quick run is smaller.
const QUICK: usize = 10;

/// Default of the time for which sessions are renewed.
const RENEWAL: Duration = Duration::from_secs(60);

/// A kind of server, and the size of the storms on it.
pub struct Stage {
    program: PathBuf,
    module: PathBuf,
    divisor: usize,
    renewal: Duration,
}

impl Stage {
    /// Returns the stage of a full run, or of a quick run.
    pub fn new(program: &Path, module: &Path, quick: bool, seconds: Option<u64>) -> Stage {
        let divisor = if quick { QUICK } else { 1 };
        Stage {
            program: program.to_owned(),
            module: module.to_owned(),
            divisor,
            renewal: seconds.map_or(RENEWAL / divisor as u32, Duration::from_secs),
        }
    }

    /// Returns the name that the program reports.
    pub fn server_name(&self) -> Result<String> {
        name_of(&self.program)
    }

    /// Returns a number of a full run, scaled to the size of this run.
    pub fn scaled(&self, number: usize) -> usize {
        number / self.divisor
    }

    /// Returns the time of a steady load in a full run, scaled to the size of this run.
    pub fn scaled_time(&self, time: Duration) -> Duration {
        time / self.divisor as u32
    }

    /// Returns the time for which sessions are renewed.
    pub fn renewal(&self) -> Duration {
        self.renewal
    }

    /// Starts a server for one storm.
    pub fn start(&self) -> Result<Server> {
        self.start_with(&[])
    }

    /// Like `start`, with more configuration.
    pub fn start_with(&self, lines: &[&str]) -> Result<Server> {
        let always = ["maxclients 15000", "tcp-backlog 1024", "lock.max-waiters 0"];
        let lines = always.iter().chain(lines).map(|line| (*line).to_owned());
        Server::start(Plan {
            module: Some(self.module.clone()),
            lines: lines.collect(),
            patience: PATIENCE,
            ..Plan::new(&self.program)
        })
    }
}

/// Returns the latency of PING during `work`.
pub fn beside_ping(server: &Server, work: impl FnOnce() -> Result<()>) -> Result<Latency> {
    let pinger = Pinger::start(server.port())?;
    let done = work();
    let latency = pinger.stop();
    done?;
    latency
}

/// Returns `LOCK.<command> numkeys key ...`. Equal counts give equal keys.
pub fn on_keys(command: &str, count: usize) -> String {
    let keys: Vec<String> = (0..count).map(|key| format!("k{key}")).collect();
    format!("LOCK.{command} {count} {}", keys.join(" "))
}

/// A lease longer than any storm.
pub const LONG: &str = "PX 600000";
