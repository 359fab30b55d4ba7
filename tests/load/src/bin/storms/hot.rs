//! LOCK.HOT while 100,000 keys are waited for, and a million others are contended for and gone.

use anyhow::{ensure, Result};
use redis::Value;

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

/// Number of keys with a waiter each.
const WAITED_FOR: usize = 100_000;

/// Number of keys that come and go.
const GONE: usize = 1_000_000;

/// Number of LOCK.HOT meanwhile.
const LOOKS: usize = 50;

/// Bound of the server's processor time for one LOCK.HOT, in ms.
const HOT_BOUND_MS: f64 = 20.0;

/// Bound of the server's processor time for one command on a key that comes and goes, in
/// microseconds.
const COMMAND_BOUND_US: f64 = 10.0;

const PING_BOUND_MS: f64 = 30.0;

/// Asks for the hottest keys again and again.
pub fn asked(stage: &Stage, score: &mut Score) -> Result<()> {
    let (waited_for, gone) = (stage.scaled(WAITED_FOR), stage.scaled(GONE));
    let server = stage.start_with(&["lock.max-tickets 0"])?;
    let mut client = server.connect()?;
    let (mut asker, mut meter) = (server.connect()?, server.connect()?);
    let holders = (0..waited_for).map(|key| format!("LOCK.ACQUIRE k{key:06} h {LONG}"));
    client.pipeline_granted(holders)?;
    let places = (0..waited_for).map(|key| format!("LOCK.QUEUE k{key:06} w {LONG} KEEP 600000"));
    client.pipeline_granted(places)?;

    let (mut asked_s, mut others_s) = (0.0, 0.0);
    let all: Vec<usize> = (0..gone).collect();
    let latency = beside_ping(&server, || {
        for some in all.chunks(gone / LOOKS) {
            let begun = meter.server_cpu()?;
            let contended = some.iter().flat_map(|key| {
                [
                    format!("LOCK.ACQUIRE g{key} h {LONG}"),
                    format!("LOCK.ACQUIRE g{key} w {LONG}"),
                    format!("LOCK.RELEASE g{key} h"),
                ]
            });
            client.pipeline(contended, |_| Ok(()))?;
            let sent = meter.server_cpu()?;
            let Value::Array(hottest) = asker.call("LOCK.HOT COUNT 128")? else {
                anyhow::bail!("no keys");
            };
            ensure!(hottest.len() == 128, "{} keys", hottest.len());
            asked_s += (meter.server_cpu()? - sent).as_secs_f64();
            others_s += (sent - begun).as_secs_f64();
        }
        Ok(())
    })?;
    let what = format!("LOCK.HOT of {waited_for} keys with a waiter");
    let each_ms = asked_s * 1e3 / LOOKS as f64;
    score.at_most(&what, each_ms, HOT_BOUND_MS, "ms of the server");
    let what = format!("{gone} keys refused and gone");
    let each_us = others_s * 1e6 / (gone * 3) as f64;
    score.at_most(&what, each_us, COMMAND_BOUND_US, "us of the server, each");
    score.bounded_latency("LOCK.HOT beside them", &latency, PING_BOUND_MS);

    asker.granted("ACL SETUSER none on nopass %R~none* +@all")?;
    asker.granted("AUTH none any")?;
    let before = meter.server_cpu()?;
    let Value::Array(readable) = asker.call("LOCK.HOT")? else {
        anyhow::bail!("no array");
    };
    ensure!(readable.is_empty(), "{} keys", readable.len());
    let took_ms = (meter.server_cpu()? - before).as_secs_f64() * 1e3;
    let what = "LOCK.HOT of a user who may read none of them";
    score.at_most(what, took_ms, HOT_BOUND_MS, "ms of the server");
    Ok(())
}
