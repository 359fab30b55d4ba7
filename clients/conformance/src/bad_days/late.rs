//! Commands that reach the server when their calls are over, and another has the lock.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::cells::CLEAN;
use super::sentinel::leave_idle_connections;
use crate::driver::{Answer, Driver};
use crate::relay::Relay;
use crate::servers::{until, within};
use crate::world::World;

const KEY: &str = "{t}k";

const TIMEOUT_MS: u64 = 600;

/// The limit of an acquire, and the time after which an acquire without a limit is cancelled.
const WAIT_MS: u64 = 400;

/// A time in which a late command would be seen.
const A_WHILE: Duration = Duration::from_millis(1000);
const LOOK: Duration = Duration::from_millis(20);

/// The acquires of a round: each tries, waits with a limit, or is cancelled, and meets the other
/// holder or a free lock when its command arrives.
const ACQUIRES: [(&str, Option<u64>, bool); 6] = [
    ("try", Some(0), true),
    ("try-free", Some(0), false),
    ("limit", Some(WAIT_MS), true),
    ("limit-free", Some(WAIT_MS), false),
    ("cancel", None, true),
    ("cancel-free", None, false),
];

fn key(lock: &str) -> String {
    format!("{{t}}{lock}")
}

/// Returns a driver with idle connections to a relay.
fn driver(world: &mut World) -> Driver {
    world.servers.relay();
    let driver = world.driver_with(json!({"command_timeout_ms": TIMEOUT_MS}));
    leave_idle_connections(world, &driver, ACQUIRES.len());
    driver
}

/// Holds back every connection, so that the cleanup is late, too. It overtakes the acquire.
pub fn late_acquires(world: &mut World) {
    play_acquires(world, Relay::hold_back);
}

/// Holds back the connections that are open, so that the cleanup on another one comes first.
pub fn late_acquires_of_old_connections(world: &mut World) {
    play_acquires(world, Relay::hold_back_open);
}

fn play_acquires(world: &mut World, hold_back: fn(&Relay)) {
    let driver = driver(world);
    for (lock, ..) in ACQUIRES {
        driver.lock(lock, json!({"keys": [key(lock)], "lease_ms": 20_000}));
    }
    hold_back(world.servers.relay());
    let asked = ACQUIRES.map(|(lock, wait_ms, _)| driver.begin_acquire(lock, wait_ms));
    thread::sleep(Duration::from_millis(WAIT_MS));
    for (asked, (lock, wait_ms, _)) in asked.iter().zip(ACQUIRES) {
        if wait_ms.is_none() {
            driver.answer(&driver.begin_cancel(asked));
        }
        assert_ended(&driver, lock, &driver.answer(asked));
    }
    for (lock, _, is_held) in ACQUIRES {
        if is_held {
            until_other_holds(world, &key(lock));
        }
    }
    deliver(world);
    for (lock, _, is_held) in ACQUIRES {
        world.until_nobody_waits(&key(lock));
        if is_held {
            assert!(world.other_has(&key(lock)), "{lock}");
            world.other_releases(&key(lock));
        }
        world.until_free(&key(lock));
    }
    assert_free_for_good(world);
}

/// Asserts that an acquire ended without a lock. One that got it on another connection gives it
/// back.
fn assert_ended(driver: &Driver, lock: &str, answer: &Answer) {
    match answer.error() {
        None if answer.ok() => drop(driver.begin_release(lock)),
        None => {}
        Some(error) => assert!(["unavailable", "cancelled"].contains(&error), "{answer}"),
    }
}

/// Delivers the commands that were held back.
fn deliver(world: &mut World) {
    let before = world.commands_of_locks();
    world.servers.relay().pass();
    until("late commands have come", || {
        world.commands_of_locks() != before
    });
}

fn until_other_holds(world: &World, key: &str) {
    let acquire = format!("LOCK.ACQUIRE {key} other PX 600000");
    let holds = || (world.servers.call(&acquire) != redis::Value::Nil).then_some(());
    assert!(within(CLEAN, holds).is_some(), "{key} isn't free");
}

fn assert_free_for_good(world: &World) {
    let began = Instant::now();
    while began.elapsed() < A_WHILE {
        for (lock, ..) in ACQUIRES {
            world.assert_free(&key(lock));
        }
        thread::sleep(LOOK);
    }
}

pub fn a_late_release(world: &mut World) {
    play_release(world, Relay::hold_back);
}

pub fn a_late_release_of_an_old_connection(world: &mut World) {
    play_release(world, Relay::hold_back_open);
}

fn play_release(world: &mut World, hold_back: fn(&Relay)) {
    let driver = driver(world);
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 2000}));
    driver.try_acquire("a").fence();
    hold_back(world.servers.relay());
    let released = driver.answer(&driver.begin_release("a"));
    let limit = Duration::from_millis(TIMEOUT_MS);
    assert!(
        released.error().is_none_or(|it| it == "unavailable"),
        "{released}"
    );
    assert!(released.after < limit + A_WHILE, "{released}");
    until_other_holds(world, KEY);
    deliver(world);
    let began = Instant::now();
    while began.elapsed() < A_WHILE {
        assert!(world.other_has(KEY));
        thread::sleep(LOOK);
    }
    world.other_releases(KEY);
    world.assert_free(KEY);
}

/// The server never hears of the end of the connection on which it is waited, and grants there.
pub fn a_silent_death_of_a_wait(world: &mut World) {
    world.servers.relay();
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world.servers.relay().swallow_open();
    world.other_releases(KEY);
    let answer = driver.answer_within(&asked, Duration::from_secs(8));
    answer.expect("the wait is served").fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}
