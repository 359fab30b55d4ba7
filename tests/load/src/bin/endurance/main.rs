//! A server under mixed load for hours. Its memory, its descriptors and its latency must stay as they
//! were.
//!
//! One client after the other is removed in each way that `workload` knows. Meanwhile another takes and
//! releases a lock, and a pinger sends a PING each millisecond. Each minute becomes a [`Sample`].

mod drawing;
mod sample;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use clap::Parser;
use redis_lock_load::workload::{self, ACTS};
use redis_lock_load::{exit_code, Connection, Pinger, Plan, Server};

use crate::sample::{Sample, CURVES};

/// Time between two samples.
const MINUTE: Duration = Duration::from_secs(60);

/// Time between two grants of the client that takes a lock all the time.
const PACE: Duration = Duration::from_millis(20);

/// Puts a server with the module under mixed load for hours, and draws its memory, descriptors and
/// latency. Fails if one of them grows.
#[derive(Parser)]
struct Options {
    /// The server's program
    server: PathBuf,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// Hours of load
    #[arg(long, default_value_t = 8.0)]
    hours: f64,
    /// Seconds of rest between two acts. One second leaves other programs half of a core
    #[arg(long, default_value_t = 1.0)]
    rest: f64,
    /// The folder for the drawing
    #[arg(long)]
    results: PathBuf,
}

fn main() -> ExitCode {
    exit_code(checked(&Options::parse()))
}

fn checked(options: &Options) -> Result<ExitCode> {
    let server = start(options)?;
    let end = Instant::now() + Duration::from_secs_f64(options.hours * 3600.0);
    let rest = Duration::from_secs_f64(options.rest);
    let samples = load(&server, end, rest)?;
    fs::create_dir_all(&options.results)?;
    let file = options.results.join("endurance.svg");
    fs::write(&file, drawing::of(&samples)?).with_context(|| file.display().to_string())?;
    println!("drawn: {}", file.display());
    let grown: Vec<String> = CURVES
        .iter()
        .filter_map(|curve| curve.growth(&samples))
        .collect();
    for growth in &grown {
        println!("{growth}");
    }
    println!(
        "{} passed, {} failed",
        CURVES.len() - grown.len(),
        grown.len()
    );
    Ok(ExitCode::from(u8::from(!grown.is_empty())))
}

/// Starts a server with the settings that `workload` needs.
fn start(options: &Options) -> Result<Server> {
    let lines = ["client-output-buffer-limit pubsub 1mb 0 0", "save \"\""];
    Server::start(Plan {
        module: Some(options.module.clone()),
        lines: lines.map(str::to_owned).to_vec(),
        ..Plan::new(&options.server)
    })
}

/// Puts the server under load until `end`, and returns a sample for each minute.
fn load(server: &Server, end: Instant, rest: Duration) -> Result<Vec<Sample>> {
    let (is_over, grants) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let taker = scope.spawn(|| take(server, &is_over, &grants));
        let samples = minutes(server, end, rest, &grants);
        is_over.store(true, Ordering::Release);
        let taken = taker.join().map_err(|_| anyhow!("the taker panicked"))?;
        taken.and(samples)
    })
}

/// Plays all acts again and again until `end`.
fn minutes(
    server: &Server,
    end: Instant,
    rest: Duration,
    grants: &AtomicU64,
) -> Result<Vec<Sample>> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    let mut acts = ACTS.iter().cycle();
    while Instant::now() < end {
        let pinger = Pinger::start(server.port())?;
        let minute = Instant::now() + MINUTE;
        let mut played = 0;
        while Instant::now() < minute {
            let (name, act) = acts.next().context("an act")?;
            act(server).with_context(|| (*name).to_owned())?;
            workload::reuse_freed_memory(server).with_context(|| format!("after {name}"))?;
            played += 1;
            thread::sleep(rest);
        }
        let latency = pinger.stop()?;
        let sample = Sample::take(server, begin.elapsed(), &latency)?;
        println!(
            "{sample}, {played} acts, {} grants",
            grants.swap(0, Ordering::Relaxed)
        );
        samples.push(sample);
    }
    Ok(samples)
}

/// Takes and releases a lock until the load is over, and connects anew when an act has ended the
/// connection.
fn take(server: &Server, is_over: &AtomicBool, grants: &AtomicU64) -> Result<()> {
    while !is_over.load(Ordering::Acquire) {
        let mut client = server.connect()?;
        while !is_over.load(Ordering::Acquire) && pair(&mut client).is_ok() {
            grants.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PACE);
        }
    }
    Ok(())
}

fn pair(client: &mut Connection) -> Result<()> {
    client.granted("LOCK.ACQUIRE taken t PX 5000 DATA why")?;
    client.call("LOCK.EXTEND taken t PX 9000 GT")?;
    client.call("LOCK.QUEUE taken q PX 5000 KEEP 50")?;
    client.call("LOCK.RELEASE taken t")?;
    client.call("LOCK.RELEASE taken q LEAVE 50")?;
    Ok(())
}
