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

/// A longer lease than that of the other extension.
const LONG_MS: u64 = 600_000;

/// A time in which late commands would be seen, and one for a single command.
const A_WHILE: Duration = Duration::from_millis(1000);
const A_MOMENT: Duration = Duration::from_millis(300);
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
    let _driver = end_acquires(world, Relay::hold_back);
    deliver_acquires(world);
}

/// Holds back the connections that are open, so that the cleanup on another one comes first.
pub fn late_acquires_of_old_connections(world: &mut World) {
    let _driver = end_acquires(world, Relay::hold_back_open);
    until_released(world, ACQUIRES.len());
    deliver_acquires(world);
}

/// Waits for so many releases, after two for each idle connection.
fn until_released(world: &World, count: usize) {
    let all = 2 * ACQUIRES.len() + count;
    until("releases have come", || {
        world.calls_of("lock.release") >= all as u64
    });
}

/// Begins the acquires, whose commands are held back, and waits for their ends.
fn end_acquires(world: &mut World, hold_back: fn(&Relay)) -> Driver {
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
    driver
}

fn deliver_acquires(world: &mut World) {
    deliver(world);
    for (lock, _, is_held) in ACQUIRES {
        world.until_nobody_waits(&key(lock));
        if is_held {
            assert!(world.other_has(&key(lock)), "{lock}");
            world.other_releases(&key(lock));
        }
        world.until_free(&key(lock));
    }
    for_a_while(A_WHILE, || {
        for (lock, ..) in ACQUIRES {
            world.assert_free(&key(lock));
        }
    });
}

/// An acquire gets its grant on a second connection, and is released. Its first command arrives then.
pub fn a_late_acquire_after_the_release(world: &mut World) {
    let driver = driver(world);
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 20_000}));
    world.servers.relay().hold_back_open();
    let asked = driver.begin_acquire("a", Some(8000));
    driver.answer(&asked).fence();
    assert_released(&driver.answer(&driver.begin_release("a")));
    until_released(world, 1);
    deliver(world);
    world.until_free(KEY);
    for_a_while(A_MOMENT, || world.assert_free(KEY));
    assert_eq!(driver.losses("a"), 0);
}

/// A lease that ends in the row, and the time in which it does.
const SHORT_MS: u64 = 3000;
const UNTIL_SHORT_ENDS: Duration = Duration::from_millis(4500);

/// An acquire gets its grant on a second connection, and is extended. Its first command arrives then,
/// and sets its own lease, which is shorter.
pub fn a_late_acquire_after_an_extension(world: &mut World) {
    let driver = extended_before_its_acquire(world);
    for_a_while(UNTIL_SHORT_ENDS, || assert!(is_at_server(world)));
    assert_eq!(driver.losses("a"), 0);
    assert!(driver.release("a"));
}

/// The same, and no extension gets through afterwards.
pub fn a_late_acquire_after_an_extension_and_before_an_outage(world: &mut World) {
    let driver = extended_before_its_acquire(world);
    world.servers.relay().swallow();
    for_a_while(UNTIL_SHORT_ENDS, || {
        if driver.left("a") > 0 {
            assert!(is_at_server(world), "the client alone holds it");
        }
    });
    assert!(driver.is_lost("a"));
}

/// Returns a driver whose lock has the lease of its late acquire, and not that of its extension.
fn extended_before_its_acquire(world: &mut World) -> Driver {
    let driver = driver(world);
    driver.lock("a", json!({"keys": [KEY], "lease_ms": SHORT_MS}));
    world.servers.relay().hold_back_open();
    let asked = driver.begin_acquire("a", Some(8000));
    driver.answer(&asked).fence();
    until_extended(&driver);
    deliver(world);
    driver
}

fn is_at_server(world: &World) -> bool {
    world.servers.info(KEY).is_some()
}

/// Extends a lock to a longer lease. An attempt may use another connection that was open.
fn until_extended(driver: &Driver) {
    until("a longer extension has come", || {
        let extended = driver.answer(&driver.begin_extend("a", LONG_MS));
        extended.error().is_none() && extended.ok()
    });
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

fn for_a_while(time: Duration, look: impl Fn()) {
    let began = Instant::now();
    while began.elapsed() < time {
        look();
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
    assert_released(&driver.answer(&driver.begin_release("a")));
    until_other_holds(world, KEY);
    deliver(world);
    for_a_while(A_WHILE, || assert!(world.other_has(KEY)));
    world.other_releases(KEY);
    world.assert_free(KEY);
}

/// The release gets a reply when the lease has ended, so another may have had the lock.
pub fn a_release_that_never_came_and_its_repetition(world: &mut World) {
    world.servers.relay();
    let driver = world.driver_with(json!({"command_timeout_ms": 6000}));
    let options = json!({"keys": [KEY], "lease_ms": 900, "renew": false});
    driver.lock("a", options);
    driver.try_acquire("a").fence();
    world.servers.relay().swallow_open();
    let released = driver.answer(&driver.begin_release("a"));
    assert_eq!(released.error(), None, "{released}");
    assert!(!released.ok(), "{released}");
}

/// A short extension arrives after a longer one.
pub fn a_late_extension(world: &mut World) {
    let driver = driver(world);
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 20_000, "renew": false}),
    );
    driver.try_acquire("a").fence();
    world.servers.relay().hold_back_open();
    driver.answer(&driver.begin_extend("a", 20_000));
    until_extended(&driver);
    deliver(world);
    let token = world.holder(KEY);
    for_a_while(A_MOMENT, || {
        let left_ms = world.left_of(KEY, &token);
        assert!(left_ms > 20_000, "{left_ms} ms left");
    });
    assert!(driver.release("a"));
}

/// Asserts that a release returned in time, though it may go on without its caller.
fn assert_released(answer: &Answer) {
    let limit = Duration::from_millis(TIMEOUT_MS);
    assert!(
        answer.error().is_none_or(|it| it == "unavailable"),
        "{answer}"
    );
    assert!(answer.after < limit + A_WHILE, "{answer}");
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

/// A wait arrives after the next one of its acquire, which has another connection, and takes its place.
pub fn a_late_wait(world: &mut World) {
    world.servers.relay();
    let driver = world.driver_with(json!({"command_timeout_ms": TIMEOUT_MS}));
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    // A client that doesn't block has no connection to take over from.
    if world.has_blocked(KEY) {
        world.servers.relay().hold_back_open();
        world.until_waiting(KEY, 0);
        world.until_waiting(KEY, 1);
        deliver(world);
    }
    world.other_releases(KEY);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}
