//! Outages from the start, outages in the middle of each call, and outages that end in time.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::cells::{rounds, Column, Due, Round, CLEAN, COMMAND_TIMEOUT, PATIENT_MS};
use super::faults::{Outage, Waits, KILLED, OUT_OF_MEMORY};
use crate::driver::{Asked, Driver};
use crate::servers::within;
use crate::table::Ability;
use crate::world::World;

const WAIT: Duration = Duration::from_millis(900);
const WAIT_MS: u64 = 900;

/// The limit of a wait, and the work of a block, in whose middle the outage begins.
const LONG: Duration = Duration::from_millis(2000);
const LONG_MS: u64 = 2000;

/// The time within which a wait for ever reports an outage that begins in its middle.
const REPORTED: Duration = Duration::from_secs(5);

/// The lease of locks that a library doesn't renew or release in time: longer than a row.
const LEASE_MS: u64 = 20_000;

/// The KEEP of a place whose client can't cancel it.
const KEEP_MS: u64 = 2000;

const UNAVAILABLE: &[&str] = &["unavailable"];

/// Returns a driver whose calls give up soon.
fn driver(world: &World) -> Driver {
    let timeout_ms = u64::try_from(COMMAND_TIMEOUT.as_millis()).expect("a short time");
    world.driver_with(json!({"command_timeout_ms": timeout_ms}))
}

fn make_lock(driver: &Driver, column: Column) {
    let options = json!({"keys": [column.key()], "lease_ms": LEASE_MS, "keep_ms": KEEP_MS});
    driver.lock(column.lock(), options);
}

/// Acquires a free lock. A busy client may need several tries to connect.
fn hold(driver: &Driver, column: Column) {
    let granted = || {
        driver
            .try_acquire(column.lock())
            .error()
            .is_none()
            .then_some(())
    };
    assert!(within(CLEAN, granted).is_some(), "{column}: not granted");
}

fn begin_try(driver: &Driver, column: Column) -> Asked {
    driver.begin_acquire(column.lock(), Some(0))
}

/// Returns when a call ends that was cancelled while no server replies.
fn cancellation(world: &World, from: Instant) -> Due {
    match world.has(Ability::Interruption) {
        true => Due::at_once(from),
        false => Due::by(from, COMMAND_TIMEOUT),
    }
}

/// Plays the calls of a client that finds the outage when it begins.
pub fn before(world: &mut World, row: &str, outage: &Outage) {
    (outage.prepare)(world);
    rounds(world, row, |world, round| {
        (outage.begin)(world);
        let driver = driver(world);
        play_before(world, round, outage, &driver);
    });
}

fn play_before(world: &mut World, round: &mut Round, outage: &Outage, driver: &Driver) {
    use Column::{Block, Cancel, Ever, Limit, Try};
    for column in [Try, Limit, Ever, Cancel, Block] {
        make_lock(driver, column);
    }
    let tried = begin_try(driver, Try);
    let limited = driver.begin_acquire(Limit.lock(), Some(WAIT_MS));
    let waits = driver.begin_acquire(Ever.lock(), None);
    let given_up = driver.begin_acquire(Cancel.lock(), None);
    let block = driver.begin_block(Block.lock(), WAIT, Duration::ZERO, None);

    thread::sleep(Duration::from_millis(300));
    let cancelled = driver.begin_cancel(&given_up);
    let at_once = Due::at_once(cancelled.at);
    let due = cancellation(world, cancelled.at);
    round.cell(driver, Cancel, &given_up, due, &["cancelled"]);
    round.cell(driver, Cancel, &cancelled, at_once, &["true"]);
    let due = Due::after(tried.at, COMMAND_TIMEOUT);
    round.cell(driver, Try, &tried, due, UNAVAILABLE);
    let due = Due::after(limited.at, WAIT);
    round.cell(driver, Limit, &limited, due, UNAVAILABLE);
    let due = Due::after(block.at, WAIT);
    round.cell(driver, Block, &block, due, UNAVAILABLE);
    report(round, driver, Due::by(waits.at, COMMAND_TIMEOUT));

    (outage.end)(world);
    served(round, driver, &waits);
    for column in [Try, Limit, Ever, Cancel, Block] {
        round.until_free(world, column);
    }
}

/// Checks that the driver reported an outage in time.
fn report(round: &mut Round, driver: &Driver, due: Due) {
    match driver.event_within("unavailable", REPORTED) {
        Some(event) => round.time(Column::Ever, event.at, due, &event.content.to_string()),
        None => round.check(Column::Ever, "the observer hears of the outage", || false),
    }
}

/// Checks that the wait for ever is granted after the outage, and releases the lock.
fn served(round: &mut Round, driver: &Driver, waits: &Asked) {
    let due = Due::by(Instant::now(), CLEAN);
    let granted = round.cell(driver, Column::Ever, waits, due, &["true"]);
    if granted.is_some_and(|it| it.error().is_none()) {
        round.release(driver, Column::Ever);
    }
}

/// Plays the calls that are under way, or of a client that is connected, when the outage begins.
/// The waits and blocks have drivers of their own, so that each driver reports the outage of one
/// wait.
pub fn during(world: &mut World, row: &str, outage: &Outage) {
    let can_renew = world.has(Ability::Background);
    (outage.prepare)(world);
    rounds(world, row, |world, round| {
        let (driver, waiter) = (driver(world), driver(world));
        play_during(world, round, outage, [&driver, &waiter], can_renew);
    });
}

fn play_during(
    world: &mut World,
    round: &mut Round,
    outage: &Outage,
    [driver, waiter]: [&Driver; 2],
    can_renew: bool,
) {
    use Column::{Block, Cancel, Ever, Extend, FailingBlock, Limit, Release, Try};
    for column in [Try, Limit, Cancel, Release, Extend, Block, FailingBlock] {
        make_lock(driver, column);
    }
    make_lock(waiter, Ever);
    for column in [Limit, Cancel, Ever] {
        world.other_holds(&column.key());
    }
    for column in [Release, Extend] {
        hold(driver, column);
    }
    // A client that has tried has its connection.
    hold(driver, Try);
    driver.answer(&driver.begin_release(Try.lock()));
    world.until_free(&Try.key());
    let waits = waiter.begin_acquire(Ever.lock(), None);
    let given_up = driver.begin_acquire(Cancel.lock(), None);
    for column in [Ever, Cancel] {
        world.until_waiting(&column.key(), 1);
    }
    let block = driver.begin_block(Block.lock(), REPORTED, LONG, None);
    let failing = driver.begin_block(FailingBlock.lock(), REPORTED, LONG, Some("boom"));
    let [inside, inside_failing] = [Block, FailingBlock].map(|column| {
        let event = driver.event_of_lock("in", column.lock(), REPORTED);
        event.expect("the block begins").at
    });
    let limited = driver.begin_acquire(Limit.lock(), Some(LONG_MS));
    world.until_waiting(&Limit.key(), 1);

    (outage.begin)(world);
    let began = Instant::now();
    let tried = begin_try(driver, Try);
    let released = driver.begin_release(Release.lock());
    let extended = driver.begin_extend(Extend.lock(), LEASE_MS);
    let cancelled = driver.begin_cancel(&given_up);

    let at_once = Due::at_once(cancelled.at);
    let due = cancellation(world, cancelled.at);
    round.cell(driver, Cancel, &given_up, due, &["cancelled"]);
    round.cell(driver, Cancel, &cancelled, at_once, &["true"]);
    for (column, asked) in [(Try, &tried), (Release, &released), (Extend, &extended)] {
        let due = Due::after(asked.at, COMMAND_TIMEOUT);
        round.cell(driver, column, asked, due, UNAVAILABLE);
    }
    // The latest reply counts, and it may have come before the outage.
    let limited_by = &["unavailable", "false"];
    let due = Due::after(limited.at, LONG);
    round.cell(driver, Limit, &limited, due, limited_by);
    let ends = [
        (Block, &block, inside, "true"),
        (FailingBlock, &failing, inside_failing, "failed"),
    ];
    for (column, asked, inside, expected) in ends {
        let due = Due::by(inside, LONG + COMMAND_TIMEOUT);
        round.cell(driver, column, asked, due, &[expected]);
    }
    if outage.waits == Waits::AreCutOff {
        report(round, waiter, Due::by(began, REPORTED));
    }

    (outage.end)(world);
    world.other_releases(&Ever.key());
    served(round, waiter, &waits);
    round.until_free(world, Try);
    for column in [Limit, Cancel] {
        round.until(column, "nobody waits", || world.waiters(&column.key()) == 0);
    }
    for column in [Release, Block, FailingBlock] {
        if can_renew {
            round.until_free(world, column);
        } else {
            // Its release may be left to the end of the lease, and the next round needs the key.
            world.servers.call(&format!("DEL {}", column.key()));
        }
    }
    round.release(driver, Extend);
    round.until_free(world, Extend);
}

/// Plays the calls that a server executes although it has no memory left.
pub fn out_of_memory_during(world: &mut World) {
    use Column::{Block, Extend, Release};
    rounds(world, "out_of_memory_during", |world, round| {
        let driver = world.driver_with(json!({"command_timeout_ms": PATIENT_MS}));
        for column in [Release, Extend, Block] {
            make_lock(&driver, column);
        }
        for column in [Release, Extend] {
            hold(&driver, column);
        }
        let work = Duration::from_millis(200);
        let block = driver.begin_block(Block.lock(), REPORTED, work, None);
        let inside = driver.event_of_lock("in", Block.lock(), REPORTED);
        let inside = inside.expect("the block begins").at;
        (OUT_OF_MEMORY.begin)(world);
        let released = driver.begin_release(Release.lock());
        round.cell(
            &driver,
            Release,
            &released,
            Due::at_once(released.at),
            &["true"],
        );
        let extended = driver.begin_extend(Extend.lock(), LEASE_MS);
        round.cell(
            &driver,
            Extend,
            &extended,
            Due::at_once(extended.at),
            &["true"],
        );
        round.cell(&driver, Block, &block, Due::by(inside, work), &["true"]);
        round.release(&driver, Extend);
        (OUT_OF_MEMORY.end)(world);
        for column in [Release, Extend, Block] {
            round.until_free(world, column);
        }
    });
}

/// Kills the server and starts it again while each call waits for its reply.
pub fn restarted(world: &mut World) {
    rounds(world, "restarted", |world, round| {
        use Column::{Block, Extend, Limit, Release, Try};
        let driver = world.driver_with(json!({"command_timeout_ms": PATIENT_MS}));
        for column in [Try, Limit, Release, Extend, Block] {
            make_lock(&driver, column);
        }
        for column in [Release, Extend] {
            hold(&driver, column);
        }
        let block = driver.begin_block(Block.lock(), REPORTED, Duration::from_millis(300), None);
        driver
            .event_of_lock("in", Block.lock(), REPORTED)
            .expect("the block begins");
        (KILLED.begin)(world);
        let calls = [
            (Try, begin_try(&driver, Try)),
            (Limit, driver.begin_acquire(Limit.lock(), Some(8000))),
            (Release, driver.begin_release(Release.lock())),
            (Extend, driver.begin_extend(Extend.lock(), LEASE_MS)),
            (Block, block),
        ];
        thread::sleep(Duration::from_millis(500));
        (KILLED.end)(world);
        let due = Due::by(Instant::now(), CLEAN);
        for (column, asked) in &calls {
            round.cell(&driver, *column, asked, due, &["true"]);
        }
        for column in [Try, Limit, Extend] {
            round.release(&driver, column);
        }
        for column in [Try, Limit, Release, Extend, Block] {
            round.until_free(world, column);
        }
    });
}

/// Stops a node whose slots another node takes over. The client must look for the slots anew.
pub fn taken_over(world: &mut World) {
    let driver = world.driver_with(json!({"command_timeout_ms": PATIENT_MS}));
    driver.lock("warm", json!({"keys": ["{t}warm"]}));
    driver.try_acquire("warm").fence();
    world.servers.take_over();
    let mut round = Round::default();
    let calls = [Column::Try, Column::Limit].map(|column| {
        make_lock(&driver, column);
        let wait_ms = if column == Column::Try { 0 } else { 8000 };
        (column, driver.begin_acquire(column.lock(), Some(wait_ms)))
    });
    for (column, asked) in &calls {
        let due = Due::by(asked.at, Duration::from_secs(7));
        round.cell(&driver, *column, asked, due, &["true"]);
        round.check(*column, "the lock is at the new node", || {
            world.servers.info(&column.key()).is_some()
        });
        let released = driver.begin_release(column.lock());
        let due = Due::by(released.at, Duration::from_secs(7));
        round.cell(&driver, *column, &released, due, &["true"]);
        round.until_free(world, *column);
    }
    round.end("taken_over");
}
