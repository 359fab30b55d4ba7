//! Replies that are late, from a server that is well.

use std::time::Duration;

use serde_json::json;

use super::LATE;
use crate::world::World;

const KEY: &str = "{t}k";

/// The default command timeout.
const TIMEOUT: Duration = Duration::from_secs(1);

pub fn replies_that_are_300_ms_late(world: &mut World) {
    play(world, Duration::from_millis(300), 2000, 1000);
}

pub fn replies_that_are_150_ms_late(world: &mut World) {
    play(world, Duration::from_millis(150), 500, 500);
}

/// Checks that a free lock is acquired, that a held one is refused and not reported as an outage, and
/// that a release is in time. The driver has connected before.
fn play(world: &mut World, delay: Duration, free_ms: u64, held_ms: u64) {
    world.servers.relay();
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.acquire("a");
    assert!(driver.release("a"));
    world.servers.relay().delay_replies(delay);
    let times = [(); 3].map(|()| {
        driver
            .answer(&driver.begin_acquire("a", Some(free_ms)))
            .fence();
        let released = driver.call(json!({"do": "release", "lock": "a"}));
        assert!(released.ok());
        world.other_holds(KEY);
        let refused = driver.answer(&driver.begin_acquire("a", Some(held_ms)));
        assert!(!refused.ok());
        world.until_nobody_waits(KEY);
        world.other_releases(KEY);
        (released.after, refused.after)
    });
    let best = times.map(|(released, _)| released).into_iter().min();
    world.assert_in_time(best, TIMEOUT);
    let best = times.map(|(_, refused)| refused).into_iter().min();
    world.assert_in_time(best, Duration::from_millis(held_ms) + LATE);
    assert!(!world.sightings.has_outage(), "an outage is observed");
}
