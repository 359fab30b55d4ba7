//! Many SESSION locks with short leases, which the server has to renew all the time.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::Value;
use redis_lock_load::{Connection, Server};

use crate::report::Score;
use crate::stage::{beside_ping, Stage};

const SESSIONS: usize = 20_000;

const LEASE_MS: usize = 300;

const BOUND_MS: f64 = 20.0;

/// Time for which the append-only file is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// Checks that no lock is lost while its connection lives, and that the renewals delay no PING.
pub fn renewals(stage: &Stage, score: &mut Score) -> Result<()> {
    let sessions = stage.scaled(SESSIONS);
    let server = stage.start()?;
    let mut asker = server.connect()?;
    let _holder = holder_of(sessions, &server)?;
    let latency = beside_ping(&server, || {
        thread::sleep(stage.renewal());
        Ok(())
    })?;
    let lost = sessions - held(&mut asker, sessions)?;
    let what = format!("{sessions} SESSION locks, PX {LEASE_MS}");
    let time = stage.renewal();
    score.bounded_latency(&format!("{what}: {time:?}"), &latency, BOUND_MS);
    score.at_most(&format!("{what}: lost"), lost as f64, 0.0, "");

    let bytes = bytes_per_second(sessions, stage)?;
    score.number(&format!("{what}: append-only file"), bytes / 1e3, "KB/s");
    Ok(())
}

/// Returns a connection to which all locks are tied.
fn holder_of(sessions: usize, server: &Server) -> Result<Connection> {
    let mut holder = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION PX {LEASE_MS}");
    holder.pipeline_granted((0..sessions).map(acquire))?;
    Ok(holder)
}

/// Returns the number of locks that their token still holds.
fn held(asker: &mut Connection, sessions: usize) -> Result<usize> {
    let mut held = 0;
    let check = |key| format!("LOCK.CHECK k{key} t");
    asker.pipeline((0..sessions).map(check), |reply| {
        held += usize::from(reply != Value::Int(0));
        Ok(())
    })?;
    Ok(held)
}

/// Returns the growth of the append-only file while no client sends anything, in bytes per second.
fn bytes_per_second(sessions: usize, stage: &Stage) -> Result<f64> {
    let server = stage.start_with(&["appendonly yes"])?;
    let _holder = holder_of(sessions, &server)?;
    let folder = server.dir().join("appendonlydir");
    let (begin, before) = (Instant::now(), size(&folder)?);
    thread::sleep(stage.scaled_time(WATCHED));
    let grown = size(&folder)?.saturating_sub(before);
    Ok(grown as f64 / begin.elapsed().as_secs_f64())
}

fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for file in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        sum += file?.metadata()?.len();
    }
    Ok(sum)
}
