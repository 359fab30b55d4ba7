//! A shared lock with 10,000 holders.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::Connection;

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const HOLDERS: usize = 10_000;

const BOUND_MS: f64 = 50.0;

/// What a repeat by a holder may take beyond a SET, in microseconds.
const REPEAT_BOUND_US: f64 = 50.0;

/// How many round trips the median is taken of.
const TRIPS: usize = 1_001;

/// The lock is built up, repeated, and given up hold by hold.
pub fn play(stage: &Stage, score: &mut Score) -> Result<()> {
    let holders = stage.scaled(HOLDERS);
    let server = stage.start()?;
    let mut client = server.connect()?;
    let begin = Instant::now();
    let acquire = |index| format!("LOCK.ACQUIRE k t{index} SHARED SESSION {LONG}");
    let latency = beside_ping(&server, || {
        client.pipeline_granted((0..holders).map(acquire))
    })?;
    let what = format!("{holders} holders of one lock: built with SESSION");
    score.bounded_latency(&what, &latency, BOUND_MS);
    score.number(&what, begin.elapsed().as_secs_f64(), "s");

    let set = median_trip(&mut client, "SET other value")?;
    let repeat = format!("LOCK.ACQUIRE k t{} SHARED {LONG}", holders / 2);
    let repeat = median_trip(&mut client, &repeat)?;
    score.at_most(
        &format!("{holders} holders of one lock: a repeat, beyond a SET"),
        (repeat.as_secs_f64() - set.as_secs_f64()) * 1e6,
        REPEAT_BOUND_US,
        &format!("us; the SET {:.1} us", set.as_secs_f64() * 1e6),
    );

    let begin = Instant::now();
    let release = |index| format!("LOCK.RELEASE k t{index}");
    let latency = beside_ping(&server, || {
        client.pipeline_granted((0..holders).map(release))
    })?;
    let what = format!("{holders} holders of one lock: each releases");
    score.bounded_latency(&what, &latency, BOUND_MS);
    score.number(&what, begin.elapsed().as_secs_f64(), "s");
    ensure!(client.count("EXISTS k")? == 0, "the lock is still held");
    Ok(())
}

fn median_trip(client: &mut Connection, command: &str) -> Result<Duration> {
    let mut trips = Vec::new();
    for _ in 0..TRIPS {
        let begin = Instant::now();
        client.granted(command)?;
        trips.push(begin.elapsed());
    }
    trips.sort_unstable();
    Ok(trips[trips.len() / 2])
}
