//! Many SESSION locks with short leases, which the server has to renew all the time.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::Value;
use redis_lock_load::{until, Connection, PATIENCE};

use crate::report::Report;
use crate::stage::{beside_ping, Stage};

const SESSIONS: usize = 20_000;

const LEASE_MS: usize = 300;

const BOUND_MS: f64 = 20.0;

/// How long the append-only file is watched.
const WATCHED: Duration = Duration::from_secs(5);

/// None of them is lost while the connection lives, and nobody notices the renewals.
pub fn renewals(stage: &Stage, report: &mut Report) -> Result<()> {
    let sessions = stage.scaled(SESSIONS);
    let server = stage.start()?;
    let (mut asker, mut holder) = (server.connect()?, server.connect()?);
    let acquire = |key| format!("LOCK.ACQUIRE k{key} t SESSION PX {LEASE_MS}");
    holder.pipeline_granted((0..sessions).map(acquire))?;
    let latency = beside_ping(&server, || {
        thread::sleep(stage.renewal());
        Ok(())
    })?;
    let lost = sessions - held(&mut asker, sessions)?;
    let what = format!(
        "{sessions} SESSION locks, PX {LEASE_MS}, {:?}",
        stage.renewal()
    );
    report.bounded_latency(&what, &latency, BOUND_MS);
    report.at_most(&format!("{what}: lost"), lost as f64, 0.0, "");

    let bytes = bytes_per_second(&mut asker, server.dir(), stage.scaled_time(WATCHED))?;
    report.number(&format!("{what}: append-only file"), bytes / 1e3, "KB/s");
    Ok(())
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

/// By how much the append-only file grows once it is on.
fn bytes_per_second(asker: &mut Connection, dir: &Path, time: Duration) -> Result<f64> {
    asker.call("CONFIG SET appendonly yes")?;
    until("an append-only file", PATIENCE, || {
        let idle = asker.info("persistence", "aof_rewrite_in_progress")? == "0";
        let scheduled = asker.info("persistence", "aof_rewrite_scheduled")? == "1";
        Ok(idle && !scheduled && asker.info("persistence", "aof_enabled")? == "1")
    })?;
    let folder = dir.join("appendonlydir");
    let (begin, before) = (Instant::now(), size(&folder)?);
    thread::sleep(time);
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
