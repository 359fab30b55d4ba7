//! Many waiters of one process, most of which give up.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::driver::Asked;
use crate::servers::{until, within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

const SECONDS: u64 = 4;
const MOST_WAIT_MS: u64 = 300;

/// The default command timeout, within which a release returns.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The fewest grants of a storm.
const GRANTS: u64 = 50;

/// The most connections of a client some seconds after a storm.
const CONNECTIONS: usize = 40;

pub fn five_hundred_of_one_process_wait_shortly(world: &mut World) {
    storm(world, 500);
}

pub fn a_thousand_of_one_process_wait_shortly(world: &mut World) {
    storm(world, 1000);
}

/// The waiters of one process, and the most connections that all of them have.
const WAITERS: usize = 1000;
const OF_WAITERS: usize = 12;

/// A limit that ends when the outage is known.
const LIMIT_MS: u64 = 6000;

/// The time in which an outage that was reported might be reported again.
const A_WHILE: Duration = Duration::from_millis(1500);

/// Checks that so many waiters share some connections, report one outage, and leave nothing.
pub fn a_thousand_of_one_process_report_one_outage(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.acquire("a");
    assert!(driver.release("a"));
    world.other_holds(KEY);
    let waits: Vec<Asked> = (0..WAITERS)
        .map(|_| driver.begin_acquire("a", None))
        .collect();
    // The process lets a few of its waiters ask.
    until("they wait", || world.waiters(KEY) >= 4);
    let connections = world.servers.connections();
    assert!(connections <= OF_WAITERS, "{connections} connections");
    // It is behind those that ask, so it hears of the outage from them.
    let limited = driver.begin_acquire("a", Some(LIMIT_MS));
    world.servers.stop();
    let reported = driver.event_within("unavailable", 2 * SOON);
    assert!(reported.is_some(), "no outage is reported");
    thread::sleep(A_WHILE);
    assert_eq!(driver.answer(&limited).error(), Some("unavailable"));
    let cancelled: Vec<Asked> = waits.iter().map(|it| driver.begin_cancel(it)).collect();
    for asked in &cancelled {
        driver.answer(asked);
    }
    for asked in &waits {
        assert_eq!(driver.answer(asked).error(), Some("cancelled"));
    }
    assert_eq!(driver.events("unavailable"), 1);
    world.servers.go_on();
    world.until_served();
    world.until_nobody_waits(KEY);
    world.other_releases(KEY);
    world.until_free(KEY);
}

/// Has so many tasks acquire, hold and release one lock, with limits that are shorter than the queue.
fn storm(world: &mut World, tasks: usize) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let ended = driver.call(json!({
        "do": "storm", "lock": "a", "tasks": tasks, "seconds": SECONDS, "most_wait_ms": MOST_WAIT_MS,
    }));
    assert!(ended.ok());
    if ended.number("grants") < GRANTS {
        world.set_late();
        panic!("too few grants: {ended}");
    }
    let release_ms = ended.get("release_p99_ms").as_f64().expect("a time");
    world.assert_in_time(Some(Duration::from_secs_f64(release_ms / 1000.0)), TIMEOUT);
    assert!(driver.events("unavailable") <= 1, "{ended}");
    world.until_nobody_waits(KEY);
    world.until_free(KEY);
    let few = || (world.servers.connections() <= CONNECTIONS).then_some(());
    assert!(
        within(SOON + Duration::from_secs(SECONDS), few).is_some(),
        "{} connections stay open",
        world.servers.connections()
    );
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
}
