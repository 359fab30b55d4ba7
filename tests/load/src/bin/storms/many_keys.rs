//! One command with 10,000 keys. Its cost may grow in proportion to the keys, but not faster.

use std::time::Duration;

use anyhow::{ensure, Result};
use redis::Value;
use redis_lock_load::{Connection, Server};

use crate::report::Score;
use crate::stage::{beside_ping, on_keys, Stage, LONG};

const KEYS: usize = 10_000;

const BOUND_MS: f64 = 100.0;

/// Factor by which twice the keys may cost more.
const GROWTH: f64 = 2.5;

/// Number of tries, of which the cheapest counts. Other work of the machine makes no try cheaper.
const TRIES: usize = 3;

/// An operation on many keys at once.
#[derive(Clone, Copy)]
pub enum Strike {
    /// An MWAIT enters all queues, and leaves them when its BLOCK ends.
    TimesOut,
    /// An MWAIT enters all queues, and is granted when the only held key is released.
    Granted,
    /// An MACQUIRE takes all keys.
    Acquired,
    /// An MRELEASE releases all keys.
    Released,
    /// An MRELEASE releases all keys, for which an MWAIT waits.
    HandedOver,
}

/// The server before the strike.
struct Scene {
    holder: Connection,
    waiter: Connection,
    keys: usize,
}

impl Strike {
    fn name(self) -> &'static str {
        match self {
            Strike::TimesOut => "MWAIT, times out",
            Strike::Granted => "MWAIT, granted",
            Strike::Acquired => "MACQUIRE",
            Strike::Released => "MRELEASE",
            Strike::HandedOver => "MRELEASE before an MWAIT",
        }
    }

    fn prepare(self, server: &Server, keys: usize) -> Result<Scene> {
        let (mut holder, mut waiter) = (server.connect()?, server.connect()?);
        match self {
            Strike::TimesOut | Strike::Granted => {
                holder.granted(&format!("LOCK.ACQUIRE k{} h {LONG}", keys - 1))?;
            }
            Strike::Acquired => {}
            Strike::Released | Strike::HandedOver => {
                holder.granted(&format!("{} h {LONG}", on_keys("MACQUIRE", keys)))?;
            }
        }
        if let Strike::HandedOver = self {
            waiter.send(&format!("{} w {LONG}", on_keys("MWAIT", keys)))?;
            holder.until_blocked(1)?;
        }
        Ok(Scene {
            holder,
            waiter,
            keys,
        })
    }

    fn strike(self, scene: &mut Scene) -> Result<()> {
        let Scene {
            holder,
            waiter,
            keys,
        } = scene;
        match self {
            Strike::TimesOut => {
                let reply = waiter.call(&format!("{} w BLOCK 200", on_keys("MWAIT", *keys)))?;
                ensure!(reply == Value::Nil, "granted what another holds: {reply:?}");
            }
            Strike::Granted => {
                waiter.send(&format!("{} w {LONG}", on_keys("MWAIT", *keys)))?;
                holder.until_blocked(1)?;
                holder.call(&format!("LOCK.RELEASE k{} h", *keys - 1))?;
                ensure!(waiter.reply()? != Value::Nil, "not granted");
            }
            Strike::Acquired => {
                waiter.granted(&format!("{} w {LONG}", on_keys("MACQUIRE", *keys)))?;
            }
            Strike::Released => {
                release(holder, *keys)?;
            }
            Strike::HandedOver => {
                release(holder, *keys)?;
                ensure!(waiter.reply()? != Value::Nil, "not granted");
            }
        }
        Ok(())
    }

    /// Returns the processor time that the strike takes on a server of its own.
    fn cost(self, stage: &Stage, keys: usize) -> Result<Duration> {
        let server = stage.start()?;
        let mut asker = server.connect()?;
        let mut scene = self.prepare(&server, keys)?;
        let before = asker.server_cpu()?;
        self.strike(&mut scene)?;
        Ok(asker.server_cpu()? - before)
    }
}

fn release(holder: &mut Connection, keys: usize) -> Result<()> {
    let released = holder.count(&format!("{} h", on_keys("MRELEASE", keys)))?;
    ensure!(released as usize == keys, "released {released} of {keys}");
    Ok(())
}

/// Scores PING during one strike, then the growth of the strike's cost with twice the keys.
pub fn play(strike: Strike, stage: &Stage, score: &mut Score) -> Result<()> {
    let keys = stage.scaled(KEYS);
    let name = strike.name();
    let server = stage.start()?;
    let mut scene = strike.prepare(&server, keys)?;
    let latency = beside_ping(&server, || strike.strike(&mut scene))?;
    score.bounded_latency(&format!("{keys} keys: {name}"), &latency, BOUND_MS);

    let cheapest = |keys| -> Result<Duration> {
        let costs = (0..TRIES).map(|_| strike.cost(stage, keys));
        Ok(costs
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .min()
            .unwrap_or_default())
    };
    if keys < KEYS {
        // A few milliseconds of processor time say nothing about their growth. The tests of the
        // core count steps instead.
        return Ok(());
    }
    let (once, twice) = (cheapest(keys)?, cheapest(2 * keys)?);
    score.at_most(
        &format!("{} keys: {name}: server time", 2 * keys),
        twice.as_secs_f64() / once.as_secs_f64(),
        GROWTH,
        &format!("times {:.1} ms", once.as_secs_f64() * 1e3),
    );
    Ok(())
}
