//! A process that was paused, and what its calls give when it goes on.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::cells::{rounds, Column, Due};
use crate::servers::until;
use crate::world::World;

/// A block's work, in whose middle the process is paused for longer than its lease.
const WORK: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_secs(5);

/// The locks are lost, by the process's own clock. The block says so, unless it fails by itself before
/// the library ends it.
pub fn paused(world: &mut World) {
    use Column::{Block, Extend, FailingBlock, Release};
    rounds(world, "paused", |world, round| {
        let driver = world.driver();
        for column in [Release, Extend, Block, FailingBlock] {
            let options = json!({"keys": [column.key()], "lease_ms": 900});
            driver.lock(column.lock(), options);
        }
        let block = driver.begin_block(Block.lock(), WAIT, WORK, None);
        let failing = driver.begin_block(FailingBlock.lock(), WAIT, WORK, Some("boom"));
        for column in [Block, FailingBlock] {
            driver
                .event_of_lock("in", column.lock(), WAIT)
                .expect("the block begins");
        }
        for column in [Release, Extend] {
            driver.try_acquire(column.lock()).fence();
        }
        driver.stop();
        for column in [Release, Extend, Block, FailingBlock] {
            until("the lease is over", || {
                world.servers.info(&column.key()).is_none()
            });
        }
        driver.signal(Signal::CONT);
        let now = Instant::now();
        let released = driver.begin_release(Release.lock());
        let extended = driver.begin_extend(Extend.lock(), 6000);
        round.cell(&driver, Release, &released, Due::at_once(now), &["false"]);
        round.cell(&driver, Extend, &extended, Due::at_once(now), &["false"]);
        let due = Due::by(now, WORK);
        round.cell(&driver, Block, &block, due, &["lost"]);
        let ended = round.cell(&driver, FailingBlock, &failing, due, &["failed", "lost"]);
        round.check(FailingBlock, "its error comes out of its end", || {
            ended.is_none_or(|it| it.error() == Some("failed") || it.after < WORK)
        });
    });
}

/// A wait whose limit ended meanwhile ends at once, and leaves nothing.
pub fn paused_in_a_wait(world: &mut World) {
    use Column::Limit;
    rounds(world, "paused_in_a_wait", |world, round| {
        let driver = world.driver();
        driver.lock(
            Limit.lock(),
            json!({"keys": [Limit.key()], "keep_ms": 2000}),
        );
        world.other_holds(&Limit.key());
        let limited = driver.begin_acquire(Limit.lock(), Some(800));
        world.until_waiting(&Limit.key(), 1);
        driver.stop();
        thread::sleep(Duration::from_millis(1200));
        driver.signal(Signal::CONT);
        let due = Due::at_once(Instant::now());
        round.cell(&driver, Limit, &limited, due, &["false", "unavailable"]);
        round.until(Limit, "nobody waits", || world.waiters(&Limit.key()) == 0);
        world.other_releases(&Limit.key());
    });
}
