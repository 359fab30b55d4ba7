//! Real servers, clients by the thousand, and a clock on how long the server keeps others waiting.

mod connection;
mod crowd;
mod pinger;
mod server;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

pub use connection::{packed, Connection};
pub use crowd::Crowd;
pub use pinger::{Latency, Pinger};
pub use redis_lock_rig::{name_of, Plan};
pub use server::Server;

/// How long anything is waited for before it counts as failed. A server that stands still for so
/// long is as good as gone.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long to wait before a server is asked again for the same thing: rarely enough to be no load.
const PAUSE: Duration = Duration::from_millis(10);

/// The exit code of a program. What kept it from its work is told in one line.
pub fn told(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}

/// Polls until `holds` is true; `what` is named in the failure.
pub fn until(
    what: &str,
    patience: Duration,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !holds()? {
        if Instant::now() > deadline {
            bail!("not within {patience:?}: {what}");
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
