//! Replies that are late, from a server that is well.

use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::LATE;
use crate::bad_days::PATIENT_MS;
use crate::driver::Driver;
use crate::table::Ability;
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

/// A lease, its margin, and a delay of replies that is less than a third of the lease.
const LEASE_MS: u64 = 1800;
const MARGIN_MS: u64 = 180;
const DELAY: Duration = Duration::from_millis(450);

/// A lease of which the delay is more than a third.
const LATE_LEASE_MS: u64 = 900;

/// The time by which the clocks of a client and a server may differ in a lease.
const DRIFT_MS: i64 = 50;

/// Looks after an acquire, after an extension, and during renewals.
pub fn what_is_left_counts_from_the_request(world: &mut World) {
    let driver = delayed(world, LEASE_MS, DELAY);
    driver
        .answer(&driver.begin_acquire("a", Some(5000)))
        .fence();
    assert_margin(world, &driver);
    assert!(driver.extend("a", LEASE_MS));
    assert_margin(world, &driver);
    let began = Instant::now();
    while world.has(Ability::Background) && began.elapsed() < Duration::from_millis(LEASE_MS) {
        assert_margin(world, &driver);
    }
    assert_eq!(driver.losses("a"), 0);
    assert!(driver.release("a"));
}

/// Returns a driver with a lock, whose replies are delayed from now on. It has connected before, and
/// waits for a reply for longer than the delay.
fn delayed(world: &mut World, lease_ms: u64, delay: Duration) -> Driver {
    world.servers.relay();
    let driver = world.driver_with(json!({"command_timeout_ms": PATIENT_MS}));
    driver.lock("a", recipe(lease_ms, json!({})));
    driver.acquire("a");
    assert!(driver.release("a"));
    world.servers.relay().delay_replies(delay);
    driver
}

/// Returns the options of a lock, with some more.
fn recipe(lease_ms: u64, mut more: Value) -> Value {
    more["keys"] = json!([KEY]);
    more["lease_ms"] = json!(lease_ms);
    more
}

/// Asserts that the client's deadline is a margin before the end of the lease at the server.
fn assert_margin(world: &World, driver: &Driver) {
    let began = Instant::now();
    let left_ms = driver.left("a");
    let at_server_ms = world.left_of(KEY, &world.holder(KEY));
    let took_ms = i64::try_from(began.elapsed().as_millis()).expect("a short time");
    let deadline_ms = i64::try_from(left_ms + MARGIN_MS).expect("a short time");
    assert!(left_ms > 0, "the lock is lost");
    assert!(
        deadline_ms <= at_server_ms + took_ms + DRIFT_MS,
        "{left_ms} ms are left, {at_server_ms} ms at the server {took_ms} ms later"
    );
}

/// Every reply takes longer than a third of the lease, so no grant is held.
pub fn a_grant_that_took_a_third_of_its_lease_isnt_held(world: &mut World) {
    play_late_grant(world, json!({}), 1200);
}

/// A session is asked for twice, and the second reply is as late. Its new connection takes some replies.
pub fn a_session_that_took_a_third_of_its_lease_isnt_held(world: &mut World) {
    play_late_grant(world, json!({"session": true}), 4000);
}

fn play_late_grant(world: &mut World, options: Value, limit_ms: u64) {
    let driver = delayed(world, LATE_LEASE_MS, DELAY);
    driver.lock("a", recipe(LATE_LEASE_MS, options));
    let limit = Duration::from_millis(limit_ms);
    let asked = driver.begin_acquire("a", Some(limit_ms));
    let answer = driver.answer(&asked);
    assert_eq!(answer.error(), Some("unavailable"), "{answer}");
    assert!(answer.after >= limit, "{answer}");
    world.assert_in_time(Some(answer.after), limit + LATE);
    world.servers.relay().delay_replies(Duration::ZERO);
    world.until_free(KEY);
    assert_eq!(driver.losses("a"), 0);
}
