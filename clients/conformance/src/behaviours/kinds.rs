//! Shared locks, semaphores, several keys, and two processes that count.

use std::panic::resume_unwind;
use std::thread;

use redis::from_redis_value;
use serde_json::json;

use crate::driver::Driver;
use crate::world::World;

const KEY: &str = "{t}k";
const COUNTER: &str = "{t}counter";

pub fn readers_share_and_a_writer_waits_for_all(world: &mut World) {
    let driver = world.driver();
    for name in ["a", "b", "late"] {
        driver.lock(name, json!({"keys": [KEY], "shared": true}));
    }
    driver.lock("writer", json!({"keys": [KEY]}));
    driver.try_acquire("a").fence();
    driver.try_acquire("b").fence();
    let writer = driver.begin_acquire("writer", None);
    world.until_waiting(KEY, 1);
    assert!(!driver.try_acquire("late").ok());
    assert!(driver.release("a"));
    assert_eq!(world.waiters(KEY), 1);
    assert!(driver.release("b"));
    driver.answer(&writer).fence();
    assert!(!driver.try_acquire("late").ok());
    assert!(driver.release("writer"));
    driver.try_acquire("late").fence();
    assert!(driver.release("late"));
    world.assert_free(KEY);
}

pub fn a_limit_admits_as_many_permits(world: &mut World) {
    let driver = world.driver();
    for (name, permits) in [("a", json!(2)), ("b", json!(2)), ("c", json!(null))] {
        let options = json!({"keys": [KEY], "shared": true, "limit": 3, "permits": permits});
        driver.lock(name, options);
    }
    driver.try_acquire("a").fence();
    assert!(!driver.try_acquire("b").ok());
    driver.try_acquire("c").fence();
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    assert!(driver.release("b"));
    assert!(driver.release("c"));
    world.assert_free(KEY);
}

pub fn several_keys_are_got_all_or_none(world: &mut World) {
    let driver = world.driver();
    let keys = ["{t}x", "{t}y"];
    driver.lock("a", json!({"keys": keys}));
    world.other_holds(keys[1]);
    assert!(!driver.try_acquire("a").ok());
    world.assert_free(keys[0]);
    let waits = driver.begin_acquire("a", Some(5000));
    world.until_waiting(keys[0], 1);
    world.other_releases(keys[1]);
    let fence = driver.answer(&waits).fence();
    for key in keys {
        let info = world.servers.info(key).expect("it is held");
        let held: u64 = from_redis_value(info.holders[0]["fence"].clone()).expect("a number");
        assert_eq!(held, fence);
    }
    assert!(driver.left("a") > 0);
    assert!(driver.extend("a", 60_000));
    let token = world.holder(keys[0]);
    for key in keys {
        assert!(world.left_of(key, &token) > 50_000);
    }
    assert!(driver.release("a"));
    keys.iter().for_each(|key| world.assert_free(key));
    // A cancelled wait leaves a place on neither key.
    world.other_holds(keys[1]);
    let waits = driver.begin_acquire("a", None);
    world.until_waiting(keys[0], 1);
    let cancelled = driver.begin_cancel(&waits);
    assert_eq!(driver.answer(&waits).error(), Some("cancelled"));
    assert!(driver.answer(&cancelled).ok());
    world.until_free(keys[0]);
    world.until_nobody_waits(keys[1]);
    // The release ends the remaining hold, and reports that not all keys were held.
    world.other_releases(keys[1]);
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {}", keys[0]));
    assert!(!driver.release("a"));
    keys.iter().for_each(|key| world.assert_free(key));
}

pub fn one_lost_key_of_several_is_told(world: &mut World) {
    let driver = world.driver();
    let keys = ["{t}x", "{t}y"];
    driver.lock("a", json!({"keys": keys, "lease_ms": 3000}));
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {}", keys[0]));
    let token = world.holder(keys[1]);
    let told = driver.loss_within("a", std::time::Duration::from_secs(6));
    assert!(told.is_some(), "the loss is told");
    // The program may still be at work with the other key.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(world.left_of(keys[1], &token) > 0, "the other key is held");
    assert!(!driver.release("a"));
    keys.iter().for_each(|key| world.assert_free(key));
}

/// Runs two processes with 200 increments each. Increments would be lost if both held the lock.
pub fn no_increment_is_lost(world: &mut World) {
    let drivers = [world.driver(), world.driver()];
    world.servers.call(&format!("SET {COUNTER} 0"));
    let servers = &world.servers;
    let count = |driver: &Driver| {
        driver.lock("a", json!({"keys": [KEY], "lease_ms": 10_000}));
        for _ in 0..200 {
            driver.acquire("a");
            let counted = servers.int(&format!("GET {COUNTER}"));
            servers.call(&format!("SET {COUNTER} {}", counted + 1));
            assert!(driver.release("a"));
        }
    };
    thread::scope(|scope| {
        let threads = drivers
            .each_ref()
            .map(|driver| scope.spawn(|| count(driver)));
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|payload| resume_unwind(payload));
        }
    });
    assert_eq!(servers.int(&format!("GET {COUNTER}")), 400);
    world.assert_free(KEY);
}
