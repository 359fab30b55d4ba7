//! The observer's events of waits, grants and outages.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::bad_days::{as_user, change_user, faults::make_user, PASSWORD};
use crate::driver::Driver;
use crate::servers::{until, within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

/// The time in which an outage might be reported once more.
const A_WHILE: Duration = Duration::from_millis(1500);

/// Checks that the driver wrote of one wait of this lock, its length and its outcome.
fn assert_waited(driver: &Driver, lock: &str, least_ms: u64, outcome: &str) {
    let event = driver.event_of_lock("waited", lock, SOON);
    let event = event.unwrap_or_else(|| panic!("the wait of {lock} is not observed"));
    assert_eq!(event.content["outcome"], outcome, "{event:?}");
    let waited_ms = event.content["ms"].as_f64().expect("a length");
    let bounds = least_ms as f64 - 20.0..least_ms as f64 + 5000.0;
    assert!(bounds.contains(&waited_ms), "{event:?}");
    assert_eq!(driver.events_of_lock("waited", lock), 1);
}

pub fn waits_and_grants_are_observed(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    assert!(driver.event_of_lock("granted", "a", SOON).is_some());
    driver.lock("b", json!({"keys": [KEY]}));
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    thread::sleep(Duration::from_millis(300));
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    assert_waited(&driver, "b", 300, "granted");
    assert!(driver.event_of_lock("granted", "b", SOON).is_some());
    assert_eq!(driver.events_of_lock("waited", "a"), 0);
    assert!(driver.release("b"));
    for name in ["a", "b"] {
        assert_eq!(driver.events_of_lock("granted", name), 1);
    }
}

pub fn ends_of_waits_are_observed(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    for name in ["connects", "limited", "given-up", "failed"] {
        driver.lock(name, json!({"keys": [KEY]}));
    }
    // A client connects for its first command, which takes long on a busy machine.
    assert!(!driver.try_acquire("connects").ok());
    assert_waited(&driver, "connects", 0, "not acquired");
    let limited = driver.begin_acquire("limited", Some(1000));
    let given_up = driver.begin_acquire("given-up", None);
    assert!(!driver.answer(&limited).ok());
    assert_waited(&driver, "limited", 1000, "not acquired");
    world.until_waiting(KEY, 1);
    driver.answer(&driver.begin_cancel(&given_up));
    assert_eq!(driver.answer(&given_up).error(), Some("cancelled"));
    assert_waited(&driver, "given-up", 0, "cancelled");
    world.until_nobody_waits(KEY);
    let failed = driver.begin_acquire("failed", None);
    world.until_waiting(KEY, 1);
    // An error that comes as soon as a reply ends no wait.
    thread::sleep(Duration::from_millis(300));
    // A final error ends the wait.
    world.servers.call(&format!("SET {KEY} text"));
    assert_eq!(driver.answer(&failed).error(), Some("other"));
    assert_waited(&driver, "failed", 300, "failed");
    assert_eq!(driver.events_of_lock("granted", "limited"), 0);
}

/// The first outage is that of a renewal, and the second one that of a wait for another key. Each is
/// reported once.
pub fn each_outage_is_reported(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": ["{t}a"], "lease_ms": 2000}));
    driver.lock("b", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    world.servers.stop();
    assert!(driver.event_within("unavailable", 2 * SOON).is_some());
    assert!(driver.loss_within("a", SOON).is_some());
    world.servers.go_on();
    world.until_free("{t}a");
    world.other_holds(KEY);
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    assert_eq!(driver.events("unavailable"), 1);
    world.servers.stop();
    let again = || (driver.events("unavailable") > 1).then_some(());
    let reported = within(2 * SOON, again);
    assert!(reported.is_some(), "the second outage isn't reported");
    thread::sleep(A_WHILE);
    world.servers.go_on();
    world.until_served();
    world.other_releases(KEY);
    driver.answer(&waits).fence();
    assert!(driver.release("b"));
    assert_eq!(driver.events("unavailable"), 2);
}

pub fn an_outage_that_its_caller_gets_isnt_reported(world: &mut World) {
    let driver = world.driver_with(json!({"command_timeout_ms": 600}));
    driver.lock(
        "a",
        json!({"keys": [KEY], "keep_ms": 1000, "lease_ms": 2000}),
    );
    driver.acquire("a");
    assert!(driver.release("a"));
    world.servers.stop();
    for wait_ms in [0, 700] {
        let answer = driver.answer(&driver.begin_acquire("a", Some(wait_ms)));
        assert_eq!(answer.error(), Some("unavailable"), "{answer}");
    }
    // The acquires clean up in the background.
    thread::sleep(A_WHILE);
    assert_eq!(driver.events("unavailable"), 0);
    world.servers.go_on();
    world.until_served();
    world.until_free(KEY);
}

/// Renewals that the server refuses are reported once until one succeeds, and again for the next grant.
pub fn refused_renewals_are_reported_once(world: &mut World) {
    make_user(world);
    change_user(world, "+@all");
    let driver = world.driver_with(as_user(PASSWORD));
    let reported = |count| {
        let are = || (driver.events("unavailable") == count).then_some(());
        assert!(within(2 * SOON, are).is_some(), "not {count} refusals");
    };
    for name in ["a", "b"] {
        driver.lock(
            name,
            json!({"keys": [format!("{{t}}{name}")], "lease_ms": 4500}),
        );
    }
    driver.try_acquire("a").fence();
    change_user(world, "-lock.extend");
    assert!(driver.loss_within("a", 2 * SOON).is_some());
    assert_eq!(driver.events("unavailable"), 1);

    driver.try_acquire("b").fence();
    reported(2);
    change_user(world, "+@all");
    let token = world.holder("{t}b");
    let is_renewed = || world.left_of("{t}b", &token) > 4000;
    until("a renewal succeeds", is_renewed);
    change_user(world, "-lock.extend");
    reported(3);
    assert!(driver.loss_within("b", 2 * SOON).is_some());
    assert_eq!(driver.events("unavailable"), 3);
}
