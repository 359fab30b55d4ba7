//! A shared lock with 10,000 holders.

use std::time::Instant;

use anyhow::{ensure, Result};
use redis::Value;

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const HOLDERS: usize = 10_000;

const BOUND_MS: f64 = 50.0;

/// Bound of the server's processor time for a holder's repeat, in microseconds. The time of a round
/// trip depends on the machine: if it is busy, two SETs differ by more than this bound.
const REPEAT_BOUND_US: f64 = 50.0;

/// Bound of the server's processor time for one holder that LOCK.INFO shows, in microseconds.
const INFO_BOUND_US: f64 = 3.0;

const REPEATS: usize = 10_000;

/// Takes the lock for one holder after the other, repeats one hold, and releases hold by hold.
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

    let repeat = format!("LOCK.ACQUIRE k t{} SHARED {LONG}", holders / 2);
    let mut asker = server.connect()?;
    let before = asker.server_cpu()?;
    client.pipeline_granted((0..REPEATS).map(|_| repeat.clone()))?;
    let took = asker.server_cpu()? - before;
    score.at_most(
        &format!("{holders} holders of one lock: a repeat by one in the middle"),
        took.as_secs_f64() * 1e6 / REPEATS as f64,
        REPEAT_BOUND_US,
        "us of the server, each",
    );

    let before = asker.server_cpu()?;
    let Value::Array(_) = client.call("LOCK.INFO k")? else {
        anyhow::bail!("no lock");
    };
    let took = asker.server_cpu()? - before;
    score.at_most(
        &format!("{holders} holders of one lock: asked of LOCK.INFO"),
        took.as_secs_f64() * 1e6 / holders as f64,
        INFO_BOUND_US,
        "us of the server, each",
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
