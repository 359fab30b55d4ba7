//! The delay between the end of a holder's lease and the waiter's grant, by the number of volatile
//! keys on the server.
//!
//! A lease ends at the millisecond that PEXPIRETIME returns for the key. This program reads the
//! same clock as the server. The leases of a round end one after the other, a few milliseconds
//! apart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Result};
use redis_lock_load::{packed, Connection, Server, PATIENCE};

use crate::clients::Clients;
use crate::lateness::{Times, MILLISECOND};
use crate::reply::GRANT;
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};

/// The benchmark's name.
pub const NAME: &str = "lease-end";

/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.WAIT";

struct Size {
    keys: [u64; 3],
    waiters: usize,
    rounds: usize,
}

/// Measures the delay with each number of volatile keys.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            keys: [0, 10_000, 100_000],
            waiters: 50,
            rounds: 2,
        },
        Size {
            keys: [0, 100_000, 1_000_000],
            waiters: 500,
            rounds: 5,
        },
    );
    let server = stage.start(&[])?;
    let mut clients = Clients::connect(server.port(), size.waiters)?;
    let mut asker = server.connect()?;
    let mut present = 0;
    for keys in size.keys {
        fill(&mut asker, present, keys)?;
        present = keys;
        let name = |who: &&str| format!("{NAME}, {keys}: {who}");
        interleaved(size.rounds, &mut [LOCK], progress, name, |_, who| {
            let times = round_of(&server, &mut clients)?;
            let place = Place::new(NAME, "", keys, who);
            let metrics = [metric::LATE_P50, metric::LATE_P99, metric::LATE_MAX];
            times.note(sheet, &place, metrics, MILLISECOND)
        })?;
    }
    Ok(())
}

/// Adds volatile keys that outlive the run.
fn fill(asker: &mut Connection, from: u64, to: u64) -> Result<()> {
    let set = |key: u64| format!("SET volatile:{key} value PX {}", 3_600_000 + key);
    asker.pipeline_granted((from..to).map(set))
}

fn round_of(server: &Server, clients: &mut Clients) -> Result<Times> {
    let mut asker = server.connect()?;
    let count = clients.len();
    // All clients can begin to wait within the first lease. The next leases end 4 ms apart.
    let lease = |index: usize| 300 + 4 * index;
    let acquire =
        |index: usize| format!("LOCK.ACQUIRE lock:{index} {} PX {}", token(0), lease(index));
    asker.pipeline_granted((0..count).map(acquire))?;
    let mut ends = Vec::new();
    let asked = (0..count).map(|index| format!("PEXPIRETIME lock:{index}"));
    asker.pipeline(asked, |reply| match reply {
        redis::Value::Int(at) if at > 0 => {
            ends.push(Duration::from_millis(at as u64));
            Ok(())
        }
        other => bail!("PEXPIRETIME answered {other:?}"),
    })?;
    for index in 0..count {
        let wait = format!("LOCK.WAIT lock:{index} {} PX 60000", token(1));
        clients.send(index, &packed(&wait))?;
    }
    let times = until_granted(clients, &ends)?;
    let release = (0..count).map(|index| format!("LOCK.RELEASE lock:{index} {}", token(1)));
    asker.pipeline(release, |reply| {
        ensure!(reply == redis::Value::Int(1), "answered {reply:?}");
        Ok(())
    })?;
    Ok(times)
}

/// Returns the delay of each grant after the end of the lease before it.
fn until_granted(clients: &mut Clients, ends: &[Duration]) -> Result<Times> {
    let mut times = Times::new()?;
    let mut granted = 0;
    let mut replies = Vec::new();
    while granted < ends.len() {
        clients.receive(PATIENCE, &mut replies)?;
        ensure!(!replies.is_empty(), "{granted} were granted");
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        for (index, reply) in replies.drain(..) {
            ensure!(reply == GRANT, "client {index} was answered {reply:?}");
            let Some(late) = now.checked_sub(ends[index]) else {
                bail!("client {index} was granted before the lease had ended");
            };
            times.record(late)?;
            granted += 1;
        }
    }
    Ok(times)
}
