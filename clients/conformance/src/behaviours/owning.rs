//! One object, one owner: acquires and releases of a lock object in every state.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::LATE;
use crate::driver::Asked;
use crate::servers::{until, within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

/// A time in which a wrong answer would come.
const A_WHILE: Duration = Duration::from_millis(200);

/// Acquires one object four times. Never two of them are inside. They are granted in their order in
/// the best of some rounds, because a busy driver may begin an order late.
pub fn one_object_has_one_owner(world: &mut World) {
    let orders: Vec<Vec<usize>> = (0..3).map(|_| order_of_four(world)).collect();
    if !orders.contains(&vec![0, 1, 2, 3]) {
        world.set_late();
        panic!("in their order in no round: {orders:?}");
    }
}

fn order_of_four(world: &World) -> Vec<usize> {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let mut waits: Vec<(usize, Asked)> = (0..4)
        .map(|number| {
            let asked = driver.begin_acquire("a", None);
            // The next order is given when the driver must have begun this one.
            thread::sleep(A_WHILE / 2);
            (number, asked)
        })
        .collect();
    let mut order = Vec::new();
    while !waits.is_empty() {
        let is_served = |asked: &Asked| driver.answer_within(asked, Duration::ZERO).is_some();
        let served = within(SOON, || {
            waits.iter().position(|(_, asked)| is_served(asked))
        });
        let (number, asked) = waits.remove(served.expect("the next acquire is granted"));
        driver.answer(&asked).fence();
        order.push(number);
        thread::sleep(A_WHILE / 4);
        let early = waits.iter().find(|(_, asked)| is_served(asked));
        assert!(early.is_none(), "two are inside");
        let info = world.servers.info(KEY).expect("it is held");
        assert_eq!(info.holders[0]["holds"], redis::Value::Int(1));
        assert!(driver.release("a"));
    }
    world.until_free(KEY);
    order
}

/// Waits in the process for the object, which another order of the driver holds.
pub fn a_wait_for_the_own_object_ends_in_time(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    let wait = Duration::from_millis(400);
    let times = [(); 3].map(|()| {
        let asked = driver.begin_acquire("a", Some(400));
        let answer = driver.answer(&asked);
        assert!(!answer.ok());
        assert!(answer.after >= wait, "{:?}", answer.after);
        answer.after
    });
    world.assert_in_time(times.into_iter().min(), wait + LATE);
    let asked = driver.begin_acquire("a", None);
    assert!(driver.answer_within(&asked, A_WHILE).is_none());
    let cancelled = driver.begin_cancel(&asked);
    assert_eq!(driver.answer(&asked).error(), Some("cancelled"));
    assert!(driver.answer(&cancelled).ok());
    assert!(driver.release("a"));
    world.until_free(KEY);
}

/// Accepts both outcomes: a library that knows its caller for the owner raises, because the caller
/// would wait for itself.
pub fn a_held_object_is_refused_or_misused(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    let again = driver.try_acquire("a");
    match again.error() {
        None => assert!(!again.ok()),
        Some(error) => assert_eq!(error, "misuse"),
    }
    assert!(world.left_of(KEY, &token) > 0);
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// Accepts a new grant where each grant has a guard of its own: the guard before it is lost.
pub fn another_hold_of_a_lost_lock_is_a_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 60_000, "reentrant": true}),
    );
    let first = driver.acquire("a");
    world.servers.call(&format!("DEL {KEY}"));
    let again = driver.answer(&driver.begin_acquire("a", Some(2000)));
    match again.error() {
        None => assert!(again.fence() > first),
        Some(error) => {
            assert_eq!(error, "lost", "{again}");
            world.until_free(KEY);
            assert!(!driver.release("a"));
        }
    }
}

/// Accepts a new grant where each grant has a guard of its own or, in Java, each thread a set of holds.
pub fn another_hold_after_a_loss_is_a_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 1000, "renew": false, "reentrant": true}),
    );
    driver.acquire("a");
    until("the lock is lost", || driver.is_lost("a"));
    let again = driver.try_acquire("a");
    match again.error() {
        None => assert!(again.fence() > 0),
        Some(error) => {
            assert_eq!(error, "lost", "{again}");
            assert!(!driver.release("a"));
            driver.acquire("a");
        }
    }
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// Accepts that it isn't acquired, where each grant has a guard of its own.
pub fn another_hold_of_a_lock_that_somebody_took_is_a_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 60_000, "reentrant": true}),
    );
    driver.acquire("a");
    world.servers.call(&format!("DEL {KEY}"));
    world.other_holds(KEY);
    let again = driver.answer(&driver.begin_acquire("a", Some(500)));
    match again.error() {
        None => assert!(!again.ok()),
        Some(error) => {
            assert_eq!(error, "lost", "{again}");
            assert!(!driver.release("a"));
        }
    }
    assert!(world.other_has(KEY));
}

pub fn a_lock_that_is_not_held_cant_be_released(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let released = driver.call(json!({"do": "release", "lock": "a"}));
    assert_eq!(released.error(), Some("misuse"));
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
    let released = driver.call(json!({"do": "release", "lock": "a"}));
    assert_eq!(released.error(), Some("misuse"));
}

pub fn a_lost_lock_is_released_once(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 700, "renew": false}));
    driver.try_acquire("a").fence();
    until("the lock is lost", || driver.is_lost("a"));
    assert!(!driver.release("a"));
    driver.acquire("a");
    assert!(driver.release("a"));
}

pub fn the_fence_stays(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 700, "renew": false}));
    let fence = || {
        driver
            .call(json!({"do": "state", "lock": "a"}))
            .get("fence")
            .clone()
    };
    // Go has no fence but a number.
    assert!([json!(null), json!(0)].contains(&fence()), "{}", fence());
    let lost = driver.try_acquire("a").fence();
    until("the lock is lost", || driver.is_lost("a"));
    assert_eq!(fence(), json!(lost));
    assert!(!driver.release("a"));
    assert_eq!(fence(), json!(lost));
    let released = driver.acquire("a");
    assert!(driver.release("a"));
    assert_eq!(fence(), json!(released));
}

pub fn everything_is_released_at_once(world: &mut World) {
    let driver = world.driver();
    let keys = ["{t}x", "{t}y", "{t}z"];
    for (name, key) in ["a", "b", "c"].iter().zip(keys) {
        driver.lock(name, json!({"keys": [key]}));
        driver.try_acquire(name).fence();
    }
    world.servers.call(&format!("DEL {}", keys[1]));
    world.other_holds(keys[1]);
    let released = driver.call(json!({"do": "release_all"}));
    assert_eq!(released.number("count"), 2);
    assert!(world.other_has(keys[1]));
    world.other_releases(keys[1]);
    keys.iter().for_each(|key| world.until_free(key));
    let released = driver.call(json!({"do": "release_all"}));
    assert_eq!(released.number("count"), 0);
}

pub fn the_server_is_asked_who_owns_the_lock(world: &mut World) {
    let driver = world.driver();
    let owned = || driver.call(json!({"do": "owned", "lock": "a"})).ok();
    driver.lock("a", json!({"keys": ["{t}x", "{t}y"], "lease_ms": 60_000}));
    assert!(!owned());
    driver.try_acquire("a").fence();
    assert!(owned());
    world.servers.call("DEL {t}y");
    assert!(!owned());
    driver.release("a");
    assert!(!owned());
}

/// The suite looks for a drawn token in every line that a driver writes.
pub fn texts_dont_show_the_token(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": ["{t}visible"]}));
    for _ in ["before", "while it is held"] {
        let texts = driver.call(json!({"do": "texts", "lock": "a"}));
        assert!(texts.text().contains("visible"), "{texts}");
        driver.try_acquire("a");
    }
    // A refused command quotes its arguments.
    driver.lock("b", json!({"keys": ["{t}text"]}));
    world.servers.call("SET {t}text 1");
    let refused = driver.try_acquire("b");
    assert_eq!(refused.error(), Some("other"));
    assert!(driver.release("a"));
}

/// Accepts a block that the library ends at the loss, before the block fails by itself.
pub fn a_block_whose_lock_is_lost_says_so(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 900}));
    let work = Duration::from_millis(1200);
    for (fail, expected) in [(None, "lost"), (Some("boom"), "failed")] {
        let block = driver.begin_block("a", Duration::from_secs(1), work, fail);
        until("the block begins", || world.servers.info(KEY).is_some());
        world.servers.call(&format!("DEL {KEY}"));
        let answer = driver.answer(&block);
        if answer.error() == Some("lost") && answer.after < work {
            continue;
        }
        assert_eq!(answer.error(), Some(expected), "{answer}");
        assert!(
            fail.is_none_or(|text| answer.text().contains(text)),
            "{answer}"
        );
    }
    assert!(driver.loss_within("a", SOON).is_some());
}
