//! What calls leave behind: no place, no lock, no connection and no thread.

use std::time::Duration;

use serde_json::json;

use crate::driver::Driver;
use crate::servers::{within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

/// The number of rounds of calls, and the most connections or threads by which a client may grow in
/// all of them. One that is left in each round is found.
const ROUNDS: usize = 10;
const MORE: usize = ROUNDS / 2;

/// Plays calls of each kind again and again. The first round opens what a client keeps open.
pub fn many_calls_leave_nothing(world: &mut World) {
    let driver = world.driver();
    driver.lock("lease", json!({"keys": [KEY]}));
    driver.lock("session", json!({"keys": [KEY], "session": true}));
    let round = || ["lease", "session"].map(|lock| play_calls(world, &driver, lock));
    round();
    let [connections, threads] = open(world, &driver);
    for _ in 0..ROUNDS {
        round();
    }
    let most = [connections + MORE, threads + MORE];
    let is_as_before = || {
        let now = open(world, &driver);
        (now[0] < most[0] && now[1] < most[1]).then_some(())
    };
    assert!(
        within(SOON, is_as_before).is_some(),
        "connections and threads were {:?}, and are {:?}",
        [connections, threads],
        open(world, &driver)
    );
}

/// Returns the numbers of connections and threads.
fn open(world: &World, driver: &Driver) -> [usize; 2] {
    [world.servers.connections(), driver.threads()]
}

fn play_calls(world: &World, driver: &Driver, lock: &str) {
    driver.try_acquire(lock).fence();
    assert!(driver.extend(lock, 9000));
    assert!(driver.release(lock));
    let failed = driver.begin_block(lock, SOON, Duration::ZERO, Some("boom"));
    assert_eq!(driver.answer(&failed).error(), Some("failed"));
    world.until_free(KEY);
    world.other_holds(KEY);
    driver.answer(&driver.begin_acquire(lock, Some(20)));
    world.until_nobody_waits(KEY);
    let given_up = driver.begin_acquire(lock, None);
    world.until_waiting(KEY, 1);
    driver.answer(&driver.begin_cancel(&given_up));
    assert_eq!(driver.answer(&given_up).error(), Some("cancelled"));
    world.until_nobody_waits(KEY);
    let waits = driver.begin_acquire(lock, None);
    world.until_waiting(KEY, 1);
    world.other_releases(KEY);
    driver.answer(&waits).fence();
    world.servers.int(&format!("DEL {KEY}"));
    assert!(!driver.release(lock));
    world.assert_free(KEY);
}
