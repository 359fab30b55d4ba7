//! The observer's events of waits and grants.

use std::time::Duration;

use serde_json::json;

use crate::driver::Driver;
use crate::servers::SOON;
use crate::world::World;

const KEY: &str = "{t}k";

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
    std::thread::sleep(Duration::from_millis(300));
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
    std::thread::sleep(Duration::from_millis(300));
    // A final error ends the wait.
    world.servers.call(&format!("SET {KEY} text"));
    assert_eq!(driver.answer(&failed).error(), Some("other"));
    assert_waited(&driver, "failed", 300, "failed");
    assert_eq!(driver.events_of_lock("granted", "limited"), 0);
}
