//! The time from the holder's release until the waiter has its reply, on an idle server and on a
//! server with other requests.
//!
//! Two clients hand one lock to and fro. The waiter is blocked on the server before the release,
//! because the holder first waits for the reply to a PING that was sent after the waiter's request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use redis_lock_load::{packed, Connection, Server};

use crate::lateness::{Times, MICROSECOND};
use crate::reply::{Reply, GRANT};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{load_script, token, Stage, COMPARE_DELETE_AND_PUBLISH};
use crate::wire::Wire;

/// The benchmark's name.
pub const NAME: &str = "handoff";

/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.RELEASE to LOCK.WAIT";
/// A list of one element.
pub const LIST: &str = "LPUSH to BLPOP";
/// A message, after which the waiter requests the lock.
pub const PUBLISH: &str = "EVALSHA with PUBLISH to SET NX";
/// An empty round trip: the lower bound of all ways.
pub const PING: &str = "PING";

const CHANNEL: &str = "released";
/// The rate of the other requests.
const PER_SECOND: u64 = 50_000;
/// The number of connections that send the other requests.
const CONNECTIONS: usize = 10;
/// The interval between two bursts of other requests.
const TICK: Duration = Duration::from_millis(1);

struct Size {
    samples: usize,
    rounds: usize,
}

/// A way to hand the lock over from one client to the other.
struct Way {
    name: &'static str,
    /// The command of each client that waits. Empty if the client waits for a message.
    wait: [Vec<u8>; 2],
    /// The command of each client that releases the lock.
    give: [Vec<u8>; 2],
    /// The reply or message that notifies the waiter.
    told: Reply,
    /// The command that the notified waiter sends to get the lock, and its reply.
    take: Option<([Vec<u8>; 2], Reply)>,
    /// The first holder's initial command, and its reply.
    first: (Vec<u8>, Reply),
    /// The commands that both clients send before the round.
    prepare: Vec<Vec<u8>>,
}

fn both(command: impl Fn(&str) -> String) -> [Vec<u8>; 2] {
    [0, 1].map(|owner| packed(&command(&token(owner))))
}

fn ways(asker: &mut Connection) -> Result<[Way; 4]> {
    let publish = load_script(asker, COMPARE_DELETE_AND_PUBLISH)?;
    let set = both(|token| format!("SET string {token} NX PX 60000"));
    let nothing = [Vec::new(), Vec::new()];
    Ok([
        Way {
            name: LOCK,
            wait: both(|token| format!("LOCK.WAIT lock {token} PX 60000")),
            give: both(|token| format!("LOCK.RELEASE lock {token}")),
            told: GRANT,
            take: None,
            first: (
                both(|token| format!("LOCK.WAIT lock {token} PX 60000"))[0].clone(),
                GRANT,
            ),
            prepare: Vec::new(),
        },
        Way {
            name: LIST,
            wait: both(|_| "BLPOP list 0".to_owned()),
            give: both(|token| format!("LPUSH list {token}")),
            told: GRANT,
            take: None,
            first: (packed("PING"), Reply::Pong),
            prepare: Vec::new(),
        },
        Way {
            name: PUBLISH,
            wait: nothing.clone(),
            give: both(|token| format!("EVALSHA {publish} 1 string {token} {CHANNEL}")),
            told: Reply::Push,
            take: Some((set.clone(), Reply::Okay)),
            first: (set[0].clone(), Reply::Okay),
            prepare: vec![packed("HELLO 3"), packed(&format!("SUBSCRIBE {CHANNEL}"))],
        },
        Way {
            name: PING,
            wait: nothing.clone(),
            give: both(|_| "PING".to_owned()),
            told: Reply::Pong,
            take: None,
            first: (packed("PING"), Reply::Pong),
            prepare: Vec::new(),
        },
    ])
}

/// Measures all ways, first alone, then with other requests.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            samples: 300,
            rounds: 2,
        },
        Size {
            samples: 5_000,
            rounds: 7,
        },
    );
    let server = stage.start(&[])?;
    let mut ways = ways(&mut server.connect()?)?;
    interleaved(
        size.rounds,
        &mut ways,
        progress,
        |way| format!("{NAME}, alone: {}", way.name),
        |_, way| {
            let place = Place::new(NAME, "alone", 0, way.name);
            let times = round_of(way, &server, size.samples)?;
            note(&times, sheet, &place)
        },
    )?;
    interleaved(
        size.rounds,
        &mut ways,
        progress,
        |way| format!("{NAME}, beside others: {}", way.name),
        |_, way| {
            let place = Place::new(NAME, "beside 50,000 requests/s", 0, way.name);
            let (times, others) = beside_others(&server, || round_of(way, &server, size.samples))?;
            note(&times, sheet, &place)?;
            sheet.note_some(&place, metric::OTHERS, others)
        },
    )
}

fn note(times: &Times, sheet: &mut Sheet, place: &Place) -> Result<()> {
    let metrics = [metric::TIME_P50, metric::TIME_P99, metric::TIME_MAX];
    times.note(sheet, place, metrics, MICROSECOND)
}

fn round_of(way: &Way, server: &Server, samples: usize) -> Result<Times> {
    server.connect()?.call("DEL lock list string")?;
    let mut pair = [Wire::open(server.port())?, Wire::open(server.port())?];
    for wire in &mut pair {
        for command in &way.prepare {
            wire.send(command)?;
            wire.reply()?;
        }
    }
    pair[0].call(&way.first.0, way.first.1)?;
    let mut times = Times::new()?;
    for sample in 0..samples {
        let time = if way.name == PING {
            round_trip(&mut pair[0], &way.give[0])?
        } else {
            hand_over(way, &mut pair, sample % 2)?
        };
        times.record(time)?;
    }
    Ok(times)
}

fn round_trip(wire: &mut Wire, ping: &[u8]) -> Result<Duration> {
    let begin = Instant::now();
    wire.call(ping, Reply::Pong)?;
    Ok(begin.elapsed())
}

/// Hands the lock over from the holder to the other client, and returns the time.
fn hand_over(way: &Way, pair: &mut [Wire; 2], holder: usize) -> Result<Duration> {
    let next = 1 - holder;
    pair[next].send(&way.wait[next])?;
    pair[holder].call(&packed("PING"), Reply::Pong)?;
    let begin = Instant::now();
    pair[holder].send(&way.give[holder])?;
    pair[next].expect(way.told)?;
    if let Some((take, granted)) = &way.take {
        pair[next].call(&take[next], *granted)?;
    }
    let took = begin.elapsed();
    let mut answers = vec![Reply::Int(1)];
    if way.told == Reply::Push {
        // The holder receives its own message too, before or after its reply.
        answers.push(Reply::Push);
    }
    for _ in 0..answers.len() {
        let reply = pair[holder].reply()?;
        let known = answers.iter().position(|answer| *answer == reply);
        answers.remove(known.with_context(|| format!("answered {reply:?}"))?);
    }
    Ok(took)
}

/// Runs `work` while other clients send requests. Returns its result and the rate of these requests
/// per second.
fn beside_others<T>(server: &Server, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let others = scope.spawn(|| ask(server, &stop, &answered));
        // The other clients reach their rate meanwhile.
        thread::sleep(50 * TICK);
        let (begin, before) = (Instant::now(), answered.load(Ordering::Relaxed));
        let done = work();
        let count = answered.load(Ordering::Relaxed) - before;
        let rate = count as f64 / begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        others
            .join()
            .map_err(|_| anyhow!("the others panicked"))??;
        Ok((done?, rate))
    })
}

/// Sends requests at a steady rate, on all connections in turn.
fn ask(server: &Server, stop: &AtomicBool, answered: &AtomicU64) -> Result<()> {
    let mut wires = Vec::new();
    for _ in 0..CONNECTIONS {
        wires.push(Wire::open(server.port())?);
    }
    wires[0].call(&packed("SET other value"), Reply::Okay)?;
    let each = PER_SECOND as usize * TICK.as_micros() as usize / 1_000_000 / CONNECTIONS;
    ensure!(each > 0, "less than one request a tick");
    let burst = packed("GET other").repeat(each);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += TICK;
        for wire in &mut wires {
            wire.send(&burst)?;
        }
        for wire in &mut wires {
            for _ in 0..each {
                wire.expect(Reply::Bulk)?;
            }
        }
        answered.fetch_add((each * CONNECTIONS) as u64, Ordering::Relaxed);
    }
    Ok(())
}
