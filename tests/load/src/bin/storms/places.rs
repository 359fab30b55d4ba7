//! One key with 100,000 places: joined, kept, cancelled, left to lapse, granted one after the
//! other.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use redis::Value;
use redis_lock_load::{until, Connection, PATIENCE};

use crate::report::Score;
use crate::stage::{beside_ping, Stage, LONG};

const PLACES: usize = 100_000;

/// Bound of the server's processor time for one command, in microseconds.
const COMMAND_BOUND_US: f64 = 50.0;

/// Bound of the server's memory for one place, in bytes.
const PLACE_BOUND_BYTES: f64 = 600.0;

const PING_BOUND_MS: f64 = 20.0;

/// Step from one place to the next, if the order is not that of the queue. It is prime, so that
/// each place comes once.
const STRIDE: usize = 7_919;

/// Bound of the server's processor time for one LOCK.INFO, in ms.
const INFO_BOUND_MS: f64 = 20.0;

/// Time after which all places lapse at once. All their commands must be sent within it.
const UNTIL_LAPSE: Duration = Duration::from_secs(10);
/// Number of commands sent with the same KEEP. The server gets them within 2 ms.
const PIPELINED_AT_ONCE: usize = 50;

/// Two connections to a server at which `h` holds `k`, the number of places, and the score.
struct Scene<'a> {
    client: Connection,
    asker: Connection,
    places: usize,
    score: &'a mut Score,
}

impl Scene<'_> {
    /// Returns the name of a measurement in the report.
    fn what(&self, what: &str) -> String {
        format!("{} places on one key: {what}", self.places)
    }

    /// Sends commands, and scores the server's processor time for each.
    fn measure(
        &mut self,
        what: &str,
        commands: impl Iterator<Item = String>,
        judge: impl FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let mut sent = 0_usize;
        let before = self.asker.server_cpu()?;
        let counted = commands.inspect(|_| sent += 1);
        self.client.pipeline(counted, judge)?;
        let took = self.asker.server_cpu()? - before;
        let each_us = took.as_secs_f64() * 1e6 / sent as f64;
        let what = self.what(what);
        self.score
            .at_most(&what, each_us, COMMAND_BOUND_US, "us of the server, each");
        Ok(())
    }

    /// Returns the numbers of all places, each once, out of order.
    fn out_of_order(&self) -> impl Iterator<Item = usize> {
        let places = self.places;
        (0..places).map(move |turn| turn * STRIDE % places)
    }

    fn join(&mut self) -> Result<()> {
        let queue = |index| format!("LOCK.QUEUE k t{index} {LONG} KEEP 600000");
        let mut next = 0..;
        self.measure("to join", (0..self.places).map(queue), |reply| {
            expect(&reply, next.next().map(|index| index + 1))
        })
    }

    fn used_memory(&mut self) -> Result<f64> {
        Ok(self.asker.info("memory", "used_memory")?.parse()?)
    }

    fn until_none_is_left(&mut self) -> Result<()> {
        until("no place left", PATIENCE, || {
            Ok(self.asker.info("lock", "lock_places")? == "0")
        })
    }
}

fn expect(reply: &Value, place: Option<usize>) -> Result<()> {
    let place = place.context("a place")? as i64;
    ensure!(*reply == Value::Int(place), "{reply:?} instead of {place}");
    Ok(())
}

/// Starts a server with a held lock and an empty queue.
fn scene<'a>(stage: &Stage, score: &'a mut Score) -> Result<(redis_lock_load::Server, Scene<'a>)> {
    let server = stage.start()?;
    let mut client = server.connect()?;
    client.granted(&format!("LOCK.ACQUIRE k h {LONG}"))?;
    let asker = server.connect()?;
    let places = stage.scaled(PLACES);
    Ok((
        server,
        Scene {
            client,
            asker,
            places,
            score,
        },
    ))
}

/// Scores joining, keeping and leaving the places, and their memory.
pub fn kept(stage: &Stage, score: &mut Score) -> Result<()> {
    let (server, mut scene) = scene(stage, score)?;
    let before = scene.used_memory()?;
    let latency = beside_ping(&server, || scene.join())?;
    let what = scene.what("joined, beside it");
    scene.score.bounded_latency(&what, &latency, PING_BOUND_MS);
    let each = (scene.used_memory()? - before) / scene.places as f64;
    let what = scene.what("memory");
    scene
        .score
        .at_most(&what, each, PLACE_BOUND_BYTES, "bytes each");

    let queue = |index| format!("LOCK.QUEUE k t{index} {LONG} KEEP 600000");
    let mut expected = scene.out_of_order();
    let again = scene.out_of_order().map(queue);
    scene.measure("to keep, and to ask for the position", again, |reply| {
        expect(&reply, expected.next().map(|index| index + 1))
    })?;
    let cancel = |index| format!("LOCK.CANCEL k t{index}");
    let given_up = scene.out_of_order().map(cancel);
    scene.measure("to leave", given_up, |reply| expect(&reply, Some(1)))?;
    let left = scene.client.count("LOCK.QUEUE k last")?;
    ensure!(left == 1, "a place is left: {left}");
    Ok(())
}

/// Lets all places lapse at the same time.
pub fn lapsed(stage: &Stage, score: &mut Score) -> Result<()> {
    let (server, mut scene) = scene(stage, score)?;
    scene.join()?;
    let end = Instant::now() + UNTIL_LAPSE;
    let all: Vec<usize> = (0..scene.places).collect();
    for few in all.chunks(PIPELINED_AT_ONCE) {
        let keep_ms = end.saturating_duration_since(Instant::now()).as_millis();
        ensure!(keep_ms > 0, "too slow to have all places end at once");
        let queue = few
            .iter()
            .map(|index| format!("LOCK.QUEUE k t{index} {LONG} KEEP {keep_ms}"));
        scene.client.pipeline(queue, |_| Ok(()))?;
    }
    let latency = beside_ping(&server, || scene.until_none_is_left())?;
    let what = scene.what("all lapse at once");
    scene.score.bounded_latency(&what, &latency, PING_BOUND_MS);
    let lapses: usize = scene.asker.info("lock", "lock_lapsed_places")?.parse()?;
    ensure!(lapses == scene.places, "{lapses} lapsed");
    Ok(())
}

/// Grants the lock to one place after the other. Each token claims the lock, and then releases it.
pub fn granted(stage: &Stage, score: &mut Score) -> Result<()> {
    let (server, mut scene) = scene(stage, score)?;
    scene.join()?;
    scene.client.count("LOCK.RELEASE k h")?;
    let turns = (0..scene.places).flat_map(|index| {
        [
            format!("LOCK.QUEUE k t{index} {LONG}"),
            format!("LOCK.RELEASE k t{index}"),
        ]
    });
    let latency = beside_ping(&server, || {
        scene.measure("to claim, or to release for the next", turns, |reply| {
            let is_place = matches!(reply, Value::Int(place) if place != 1);
            ensure!(!is_place, "not granted: {reply:?}");
            Ok(())
        })
    })?;
    let what = scene.what("granted in turn, beside it");
    scene.score.bounded_latency(&what, &latency, PING_BOUND_MS);
    let grants: usize = scene.asker.info("lock", "lock_grants")?.parse()?;
    // One grant to `h`, and one to each place. A claim is no grant.
    ensure!(grants == scene.places + 1, "{grants} grants");
    scene.until_none_is_left()
}

/// Asks LOCK.INFO for all places. It shows the first few thousand of them.
pub fn shown(stage: &Stage, score: &mut Score) -> Result<()> {
    let (_server, mut scene) = scene(stage, score)?;
    scene.join()?;
    let before = scene.asker.server_cpu()?;
    let info = format!("LOCK.INFO k WAITERS {}", scene.places);
    let Value::Array(_) = scene.client.call(&info)? else {
        anyhow::bail!("no lock");
    };
    let took = scene.asker.server_cpu()? - before;
    let what = scene.what("asked of LOCK.INFO");
    let took_ms = took.as_secs_f64() * 1e3;
    scene
        .score
        .at_most(&what, took_ms, INFO_BOUND_MS, "ms of the server");
    Ok(())
}
