//! Real servers, thousands of clients, and a clock for the time that other clients have to wait.

mod connection;
mod crowd;
mod pinger;
mod server;
pub mod workload;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

pub use connection::{packed, Connection};
pub use crowd::Crowd;
pub use pinger::{Latency, Pinger};
pub use redis_lock_rig::{name_of, Marks, Plan};
pub use server::Server;

/// Time after which a wait for anything counts as failed. A server that stalls this long counts as
/// gone.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Pause between two polls of a server. It is long enough that polling is no load.
const PAUSE: Duration = Duration::from_millis(10);

/// Returns the exit code of a program. Prints an error in one line.
pub fn exit_code(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}

/// Polls until `holds` returns true. The error at the end of `patience` names `what`.
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
