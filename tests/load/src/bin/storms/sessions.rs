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

/// How long the append-only file is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// None of them is lost while the connection lives, and nobody notices the renewals.
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

/// A connection that all of them depend on.
fn holder_of(sessions: usize, server: &Server) -> Result<Connection> {
    let mut holder = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION PX {LEASE_MS}");
    holder.pipeline_granted((0..sessions).map(acquire))?;
    Ok(holder)
}

/// How many of them their token still holds.
fn held(asker: &mut Connection, sessions: usize) -> Result<usize> {
    let mut held = 0;
    let check = |key| format!("LOCK.CHECK k{key} t");
    asker.pipeline((0..sessions).map(check), |reply| {
        held += usize::from(reply != Value::Int(0));
        Ok(())
    })?;
    Ok(held)
}

/// By how much the append-only file grows while nobody sends anything.
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
