//! Where a storm is played, and how great it is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use redis_lock_load::{name_of, Latency, Pinger, Plan, Server, PATIENCE};

/// How many times smaller a quick run is.
const QUICK: usize = 10;

/// How long sessions are renewed unless told otherwise.
const RENEWAL: Duration = Duration::from_secs(60);

/// A kind of server, and the size of what is played on it.
pub struct Stage {
    program: PathBuf,
    module: PathBuf,
    divisor: usize,
    renewal: Duration,
}

impl Stage {
    /// Where a full run is played, or a quick one.
    pub fn new(program: &Path, module: &Path, quick: bool, seconds: Option<u64>) -> Stage {
        let divisor = if quick { QUICK } else { 1 };
        Stage {
            program: program.to_owned(),
            module: module.to_owned(),
            divisor,
            renewal: seconds.map_or(RENEWAL / divisor as u32, Duration::from_secs),
        }
    }

    /// What the program says of itself.
    pub fn server_name(&self) -> Result<String> {
        name_of(&self.program)
    }

    /// A number of a full run, in the size of this one.
    pub fn scaled(&self, number: usize) -> usize {
        number / self.divisor
    }

    /// How long a steady load lasts that has to last a while at least.
    pub fn scaled_time(&self, time: Duration) -> Duration {
        time / self.divisor as u32
    }

    /// How long sessions are renewed.
    pub fn renewal(&self) -> Duration {
        self.renewal
    }

    /// A server of its own for a storm.
    pub fn start(&self) -> Result<Server> {
        self.start_with(&[])
    }

    /// As `start`, with more configuration.
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

/// How long PING takes while something is done.
pub fn beside_ping(server: &Server, work: impl FnOnce() -> Result<()>) -> Result<Latency> {
    let pinger = Pinger::start(server.port())?;
    let done = work();
    let latency = pinger.stop();
    done?;
    latency
}

/// `LOCK.<command> numkeys key ...`, with the same keys for all who ask for so many.
pub fn on_keys(command: &str, count: usize) -> String {
    let keys: Vec<String> = (0..count).map(|key| format!("k{key}")).collect();
    format!("LOCK.{command} {count} {}", keys.join(" "))
}

/// A lease that no storm outlives.
pub const LONG: &str = "PX 600000";
