//! Grants as owners: acquires and releases of a lock in every state.

use std::time::Duration;

use serde_json::json;

use crate::servers::{until, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

pub fn a_lock_is_refused_while_a_grant_of_it_holds(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    assert!(!driver.try_acquire("a").ok());
    assert!(world.left_of(KEY, &token) > 0);
    assert!(driver.release("a"));
    world.assert_free(KEY);
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
    world.until_free(KEY);
    assert!(!driver.release("a"));
    assert!(driver.losses("a") <= 1);
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
    // A grant that takes a third of the lease is asked for again, also after the DEL.
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 2400}));
    let work = Duration::from_millis(1500);
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
