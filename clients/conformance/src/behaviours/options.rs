//! Options of a lock: limit, data, least and longest time, replicas; and the guarded block.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use serde_json::json;

use super::LATE;
use crate::servers::{until, SOON};
use crate::world::{text, World};

const KEY: &str = "{t}k";

pub fn a_limit_alone_makes_a_semaphore(world: &mut World) {
    let driver = world.driver();
    for name in ["a", "b", "c"] {
        driver.lock(name, json!({"keys": [KEY], "limit": 2}));
    }
    driver.try_acquire("a").fence();
    driver.try_acquire("b").fence();
    assert!(!driver.try_acquire("c").ok());
    assert!(driver.release("a"));
    driver.try_acquire("c").fence();
    assert!(driver.release("b"));
    assert!(driver.release("c"));
    world.assert_free(KEY);
}

pub fn data_is_seen(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "data": "host-7"}));
    driver.try_acquire("a").fence();
    driver.lock("b", json!({"keys": [KEY], "data": "host-8"}));
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    let info = world.servers.info(KEY).expect("it is held");
    assert_eq!(text(&info.holders[0]["data"]), "host-7");
    assert_eq!(text(&info.queue[0]["data"]), "host-8");
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    let info = world.servers.info(KEY).expect("it is held");
    assert_eq!(text(&info.holders[0]["data"]), "host-8");
    assert!(driver.release("b"));
    world.assert_free(KEY);
}

/// Plays a lock of two keys with an option of each kind. It is acquired at once, waited for and
/// extended.
pub fn options_hold_together(world: &mut World) {
    let setting = world.setting.clone();
    world.servers.add_replica(&setting);
    let driver = world.driver();
    let keys = ["{t}x", "{t}y"];
    let least = Duration::from_millis(1500);
    let options = json!({
        "keys": keys, "limit": 5, "permits": 3, "session": true, "data": "host-7", "replicas": 1,
        "at_least_ms": 1500, "lease_ms": 30_000,
    });
    for name in ["a", "b"] {
        driver.lock(name, options.clone());
    }
    let began = Instant::now();
    driver
        .answer(&driver.begin_acquire("a", Some(5000)))
        .fence();
    assert_has_options(world, keys);
    let waits = driver.begin_acquire("b", Some(15_000));
    world.until_waiting(keys[0], 1);
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    assert_has_options(world, keys);
    assert!(driver.extend("b", 60_000));
    assert_has_options(world, keys);
    let token = world.holder(keys[0]);
    for key in keys {
        assert!(world.left_of(key, &token) > 50_000);
    }
    assert!(driver.release("b"));
    keys.iter().for_each(|key| world.until_free(key));
}

/// Asserts that both keys have one holder, which the replica knows, with the options of the row.
#[track_caller]
fn assert_has_options(world: &World, keys: [&str; 2]) {
    for key in keys {
        let info = world.servers.info(key).expect("it is held");
        let holder = &info.holders[0];
        for (field, value) in [("limit", 5), ("permits", 3), ("session", 1)] {
            assert_eq!(holder[field], Value::Int(value), "{field} of {key}");
        }
        assert_eq!(text(&holder["data"]), "host-7");
        assert_eq!(info.holders.len(), 1);
        let exists = world.servers.at_replica(&format!("EXISTS {key}"));
        assert_eq!(exists, Value::Int(1));
    }
}

/// Checks that the lock is free for others at the end of its least time, which counts from the
/// grant: never before, and not late in the best of some rounds.
pub fn a_lock_stays_for_its_least_time(world: &mut World) {
    let driver = world.driver();
    let least = Duration::from_millis(1200);
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 60_000, "at_least_ms": 1200}),
    );
    let times = [(); 3].map(|()| {
        let asked = Instant::now();
        // The library may learn of the end a little later than the server.
        let granted = driver.answer(&driver.begin_acquire("a", Some(1000)));
        granted.fence();
        assert!(driver.release("a"));
        let again = driver.call(json!({"do": "release", "lock": "a"}));
        assert_eq!(again.error(), Some("misuse"));
        until("the lock is free", || world.servers.info(KEY).is_none());
        assert!(asked.elapsed() >= least, "{:?}", asked.elapsed());
        granted.at.elapsed()
    });
    world.assert_in_time(times.into_iter().min(), least + LATE);
    // After that time the release frees the lock at once.
    driver.acquire("a");
    assert_eq!(driver.loss_within("a", least), None);
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

pub fn a_lock_that_stays_is_refused_to_its_own_object(world: &mut World) {
    let driver = world.driver();
    let lock = json!({"keys": [KEY], "lease_ms": 60_000, "at_least_ms": 2500});
    driver.lock("a", lock);
    let first = driver.acquire("a");
    assert!(driver.release("a"));
    assert!(!driver.try_acquire("a").ok());
    assert!(driver.acquire("a") > first);
    assert!(driver.release("a"));
}

/// The least time counts from the grant, and not from the command that waited for it.
pub fn a_lock_that_was_waited_for_stays_for_its_least_time(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    let lock = json!({"keys": [KEY], "lease_ms": 60_000, "at_least_ms": 2500});
    driver.lock("a", lock);
    let waits = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    thread::sleep(Duration::from_millis(1500));
    let freed = Instant::now();
    world.other_releases(KEY);
    driver.answer(&waits).fence();
    assert!(driver.release("a"));
    until("the lock is free", || world.servers.info(KEY).is_none());
    assert!(
        freed.elapsed() >= Duration::from_millis(2500),
        "{:?}",
        freed.elapsed()
    );
}

pub fn a_session_stays_for_its_least_time(world: &mut World) {
    let driver = world.driver();
    let lock = json!({"keys": [KEY], "lease_ms": 60_000, "at_least_ms": 2500, "session": true});
    driver.lock("a", lock);
    let asked = Instant::now();
    driver.acquire("a");
    assert!(driver.release("a"));
    until("the lock is free", || world.servers.info(KEY).is_none());
    assert!(
        asked.elapsed() >= Duration::from_millis(2500),
        "{:?}",
        asked.elapsed()
    );
}

pub fn a_lost_lock_doesnt_stay_for_its_least_time(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 60_000, "at_least_ms": 60_000}),
    );
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {KEY}"));
    world.other_holds(KEY);
    assert!(!driver.release("a"));
    assert!(world.other_has(KEY));
}

/// Checks that a lock is renewed to the end of its longest hold, and that its loss is reported
/// there, not late in the best of some rounds. A longest hold may be shorter than the lease.
pub fn the_longest_hold_ends_in_time(world: &mut World) {
    for lease_ms in [1000, 3000] {
        play_longest_hold(world, lease_ms);
    }
}

fn play_longest_hold(world: &mut World, lease_ms: u64) {
    let driver = world.driver();
    let longest = Duration::from_millis(1800);
    let times = ["a", "b", "c"].map(|name| {
        let key = format!("{KEY}{name}");
        let options = json!({"keys": [key], "lease_ms": lease_ms, "max_hold_ms": 1800});
        driver.lock(name, options);
        let asked = Instant::now();
        driver.try_acquire(name).fence();
        let told = driver.loss_within(name, longest + SOON);
        let after = told.expect("the loss is told") - asked;
        assert!(after >= longest, "told after {after:?}");
        until("the lock is free", || world.servers.info(&key).is_none());
        let freed = asked.elapsed();
        assert!(!driver.release(name));
        (after, freed)
    });
    let [told, freed] = [times.map(|(told, _)| told), times.map(|(_, freed)| freed)];
    world.assert_in_time(told.into_iter().min(), longest + LATE);
    // Otherwise the last renewal's lease would still run.
    world.assert_in_time(freed.into_iter().min(), longest + 2 * LATE);
}

/// The longest hold is how long a lease is renewed, a day by default.
pub fn a_lease_that_is_not_renewed_is_as_long_as_asked(world: &mut World) {
    let driver = world.driver();
    let lease_ms = 2 * 86_400_000;
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": lease_ms, "renew": false}),
    );
    driver.try_acquire("a").fence();
    let left_ms = world.servers.int(&format!("PTTL {KEY}"));
    assert!(left_ms > lease_ms - 60_000, "{left_ms}");
    assert!(driver.release("a"));
}

/// The server renews a session while its connection is open. So the library closes it after the loss.
pub fn a_session_ends_after_its_longest_hold(world: &mut World) {
    let driver = world.driver();
    let options = json!({"keys": [KEY], "lease_ms": 1000, "session": true, "max_hold_ms": 500});
    driver.lock("a", options);
    driver.try_acquire("a").fence();
    assert!(driver.loss_within("a", SOON).is_some());
    until("the lock is free", || world.servers.info(KEY).is_none());
    assert!(!driver.release("a"));
}

pub fn a_block_releases_and_has_its_fence(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let wait = Duration::from_secs(5);
    let block = |fail| driver.answer(&driver.begin_block("a", wait, Duration::ZERO, fail));
    let first = block(None).fence();
    world.assert_free(KEY);
    let failed = block(Some("boom"));
    assert_eq!(failed.error(), Some("failed"), "{failed}");
    assert!(failed.text().contains("boom"), "{failed}");
    if world.client == "rust-tokio" {
        // A drop can't wait, so the guard is released in the background.
        until("the lock is free", || world.servers.info(KEY).is_none());
    }
    world.assert_free(KEY);
    assert!(block(None).fence() > first);
    world.other_holds(KEY);
    let short = driver.begin_block("a", Duration::from_secs(1), Duration::ZERO, None);
    let refused = driver.answer(&short);
    assert_eq!(refused.error(), Some("not_acquired"), "{refused}");
    world.other_releases(KEY);
}

pub fn replicas_acknowledge(world: &mut World) {
    let setting = world.setting.clone();
    world.servers.add_replica(&setting);
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "replicas": 1}));
    driver.try_acquire("a").fence();
    assert_eq!(
        world.servers.at_replica(&format!("EXISTS {KEY}")),
        Value::Int(1)
    );
    driver.lock("b", json!({"keys": [KEY], "replicas": 1}));
    let waits = driver.begin_acquire("b", Some(5000));
    world.until_waiting(KEY, 1);
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    assert!(driver.release("b"));
    world.assert_free(KEY);
}

pub fn too_few_replicas_are_told(world: &mut World) {
    let driver = world.driver();
    for session in [false, true] {
        let options = json!({"keys": [KEY], "replicas": 1, "session": session});
        driver.lock("a", options);
        for wait_ms in [Some(0), Some(15_000), None] {
            let asked = driver.begin_acquire("a", wait_ms);
            let answer = driver.answer(&asked);
            assert_eq!(answer.error(), Some("not_replicated"), "{answer}");
            assert!(answer.after < Duration::from_secs(10), "{answer}");
        }
        world.until_free(KEY);
    }
}

/// The replica is there, and acknowledges nothing. What was granted is released. A busy machine may
/// deliver the server's error too late in some rounds.
pub fn silent_replicas_are_told(world: &mut World) {
    let setting = world.setting.clone();
    world.servers.add_replica(&setting);
    let timeout = Duration::from_millis(600);
    let driver = world.driver_with(json!({"command_timeout_ms": 600}));
    driver.lock("a", json!({"keys": [KEY], "replicas": 1}));
    world.servers.stop_replica();
    let told = [(); 3].map(|()| {
        let answer = driver.try_acquire("a");
        let error = answer.error().unwrap_or_default();
        assert!(
            ["not_replicated", "unavailable"].contains(&error),
            "{answer}"
        );
        world.until_free(KEY);
        (error == "not_replicated").then_some(answer.after)
    });
    world.assert_in_time(told.into_iter().flatten().min(), timeout + LATE);
}
