//! Leases, losses and releases of a grant.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::LATE;
use crate::servers::{until, within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

pub fn a_lease_is_renewed_beyond_its_end(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 3000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(4500) {
        assert!(world.left_of(KEY, &token) > 0, "{:?}", began.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(!driver.is_lost("a"));
    let renewals = world.calls_of("lock.extend");
    assert!((2..=5).contains(&renewals), "{renewals} renewals");
    assert!(driver.release("a"));
    world.assert_free(KEY);
    // A released lock is not renewed.
    driver.lock("b", json!({"keys": [KEY]}));
    driver.try_acquire("b").fence();
    let told = driver.loss_within("a", Duration::from_millis(1500));
    assert_eq!(told, None);
}

/// Checks that the report is never before the client's own deadline, and not late in the best of some
/// rounds.
pub fn a_lease_that_is_not_renewed_is_told_lost_in_time(world: &mut World) {
    let driver = world.driver();
    let lease = Duration::from_secs(2);
    let deadline = lease - lease / 10;
    let times = ["a", "b", "c"].map(|name| {
        let options = json!({"keys": [format!("{KEY}{name}")], "lease_ms": 2000, "renew": false});
        driver.lock(name, options);
        let asked = Instant::now();
        driver.try_acquire(name).fence();
        assert!(!driver.is_lost(name));
        let told = driver.loss_within(name, lease + SOON);
        let after = told.expect("the loss is told") - asked;
        assert!(after >= deadline, "told after {after:?}");
        assert!(driver.is_lost(name));
        assert!(!driver.release(name));
        assert_eq!(driver.losses(name), 1);
        after
    });
    world.assert_in_time(times.into_iter().min(), deadline + LATE);
}

pub fn a_deleted_lock_is_told_lost_within_a_lease(world: &mut World) {
    let driver = world.driver();
    let lease = Duration::from_secs(3);
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 3000}));
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {KEY}"));
    let deleted = Instant::now();
    world.other_holds(KEY);
    let told = driver.loss_within("a", lease + SOON);
    let after = told
        .expect("the loss is told")
        .saturating_duration_since(deleted);
    assert!(after <= lease, "told after {after:?}");
    assert!(driver.is_lost("a"));
    assert!(!driver.release("a"));
    assert!(world.other_has(KEY));
    thread::sleep(lease);
    assert_eq!(driver.losses("a"), 1);
}

pub fn a_release_after_a_loss_spares_the_next_holder(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 60_000}));
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {KEY}"));
    world.other_holds(KEY);
    assert!(!driver.release("a"));
    assert!(world.other_has(KEY));
}

pub fn a_lock_can_be_used_again_after_a_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 3000, "renew": false}),
    );
    let first = driver.try_acquire("a").fence();
    until("the lock is lost", || driver.is_lost("a"));
    until("the server expired the grant", || {
        world.servers.info(KEY).is_none()
    });
    let second = driver.acquire("a");
    assert!(second > first);
    assert!(!driver.is_lost("a"));
    let info = world.servers.info(KEY).expect("it is held");
    assert_eq!(info.holders[0]["holds"], redis::Value::Int(1));
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

pub fn an_extension_sets_the_lease(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 2000, "renew": false}),
    );
    driver.try_acquire("a").fence();
    assert!(driver.extend("a", 60_000));
    let left_ms = world.left_of(KEY, &world.holder(KEY));
    assert!((50_000..=60_000).contains(&left_ms), "{left_ms} ms left");
    // The first lease would have ended by now, and must not be reported as lost.
    assert_eq!(driver.loss_within("a", Duration::from_millis(2500)), None);
    assert!(!driver.is_lost("a"));
    world.servers.call(&format!("DEL {KEY}"));
    assert!(!driver.extend("a", 60_000));
    assert!(driver.is_lost("a"));
}

pub fn renewals_set_the_lease_of_the_extension(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 900}));
    driver.try_acquire("a").fence();
    assert!(driver.extend("a", 3000));
    let (token, began) = (world.holder(KEY), Instant::now());
    while began.elapsed() < Duration::from_millis(4500) {
        let left_ms = world.left_of(KEY, &token);
        // It is renewed when 2,000 ms are left.
        assert!(left_ms > 1000, "{left_ms} ms left");
    }
    assert!(driver.release("a"));
}

/// A shorter extension leaves the lease as it is, and renewals set its length.
pub fn renewals_set_the_lease_of_a_shorter_extension(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 6000}));
    driver.try_acquire("a").fence();
    assert!(driver.extend("a", 2000));
    let token = world.holder(KEY);
    assert!(world.left_of(KEY, &token) > 2000);
    until("the lease is the shorter one", || {
        let left_ms = world.left_of(KEY, &token);
        assert!(left_ms > 0, "the lock is lost");
        left_ms <= 2000
    });
    // The renewals go on.
    assert_eq!(driver.loss_within("a", Duration::from_millis(2500)), None);
    assert!(driver.release("a"));
}

pub fn an_extension_that_is_refused_tells_of_the_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 60_000, "renew": false}),
    );
    driver.try_acquire("a").fence();
    world.servers.call(&format!("DEL {KEY}"));
    assert!(!driver.extend("a", 60_000));
    let told = driver.loss_within("a", SOON);
    assert!(told.is_some(), "the loss is told");
    assert_eq!(driver.losses("a"), 1);
}

pub fn what_is_left_is_told(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 60_000}));
    assert_eq!(driver.left("a"), 0);
    driver.try_acquire("a").fence();
    let left_ms = driver.left("a");
    assert!((50_000..=60_000).contains(&left_ms), "{left_ms} ms left");
    assert!(driver.release("a"));
    assert_eq!(driver.left("a"), 0);
}

/// Applies if the client can give a lock its own connection. Otherwise the client refuses the
/// session.
pub fn a_session_ends_with_its_process(world: &mut World) {
    let mut driver = world.driver();
    let options = json!({"keys": [KEY], "session": true, "lease_ms": 60_000});
    let made = driver.try_lock("a", options);
    if made.error().is_some() {
        assert_eq!(made.error(), Some("unsupported"));
        return;
    }
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
    driver.acquire("a");
    let info = world.servers.info(KEY).expect("it is held");
    assert_eq!(info.holders[0]["session"], redis::Value::Int(1));
    driver.kill();
    let free = || world.servers.info(KEY).is_none().then_some(());
    assert!(
        within(SOON, free).is_some(),
        "a dead process holds the lock"
    );
}

pub fn a_lease_ends_after_its_process(world: &mut World) {
    let mut driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 3000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    driver.kill();
    let died = Instant::now();
    assert!(world.left_of(KEY, &token) > 0);
    until("the lease is over", || world.servers.info(KEY).is_none());
    let after = died.elapsed();
    assert!(after <= Duration::from_secs(3) + SOON, "{after:?}");
}

pub fn a_closed_driver_keeps_its_lock(world: &mut World) {
    let mut driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 60_000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    let ended = driver.close(SOON);
    assert!(ended.expect("it ends soon").success());
    assert!(world.left_of(KEY, &token) > 0);
}
