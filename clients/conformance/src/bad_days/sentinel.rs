//! A primary that was superseded, and goes on answering.

use std::time::{Duration, Instant};

use serde_json::json;

use super::cells::CLEAN;
use crate::driver::Driver;
use crate::servers::{until, within};
use crate::table::Ability;
use crate::world::World;

const KEY: &str = "{t}k";

/// The number of connections that a library with a pool has to the old primary.
const IDLE: usize = 3;

fn driver(world: &World) -> Driver {
    world.driver_with(json!({"command_timeout_ms": 3000}))
}

pub fn found_by_its_sentinel(world: &mut World) {
    let driver = driver(world);
    driver.lock("a", json!({"keys": [KEY]}));
    world.other_holds(KEY);
    let waits = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world.other_releases(KEY);
    driver.answer(&waits).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// Makes a library with a pool open some connections, which are idle afterwards.
pub fn leave_idle_connections(world: &World, driver: &Driver, count: usize) {
    let keys: Vec<String> = (0..count)
        .map(|number| format!("{{t}}idle-{number}"))
        .collect();
    let mut waits = Vec::new();
    for key in &keys {
        world.other_holds(key);
        driver.lock(key, json!({"keys": [key]}));
        waits.push(driver.begin_acquire(key, None));
        world.until_waiting(key, 1);
    }
    for (key, asked) in keys.iter().zip(&waits) {
        world.other_releases(key);
        driver.answer(asked).fence();
        assert!(driver.release(key));
    }
}

/// Once the client has been granted a lock by the new primary, every call goes there. What the old
/// one reads of earlier tries when it goes on is gone as soon as its Sentinel makes it a replica.
pub fn superseded(world: &mut World) {
    let driver = driver(world);
    leave_idle_connections(world, &driver, IDLE);
    world.servers.supersede();
    let names = ["a", "b", "c", "d"];
    for name in names {
        driver.lock(name, json!({"keys": [KEY], "lease_ms": 60_000}));
    }
    let granted = || driver.try_acquire("a").error().is_none().then_some(());
    assert!(
        within(CLEAN, granted).is_some(),
        "superseded | try: the new primary isn't found"
    );
    assert!(
        world.servers.info(KEY).is_some(),
        "superseded | try: not at the new primary"
    );
    world.servers.bring_back_superseded();
    let tried =
        names.map(|name| driver.begin_acquire(name, Some(if name == "d" { 500 } else { 0 })));
    for (name, asked) in names.iter().zip(&tried).skip(1) {
        let answer = driver.answer(asked);
        assert!(
            !answer.ok(),
            "superseded | {name}: got the lock of another: {answer}"
        );
    }
    let fresh = "{t}fresh";
    driver.lock("fresh", json!({"keys": [fresh]}));
    driver.try_acquire("fresh").fence();
    assert!(
        !world.servers.superseded_has(fresh),
        "superseded | try: sent to the old primary"
    );
    assert!(driver.release("fresh"));
    assert!(driver.extend("a", 50_000));
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// A grant that was replicated is renewed at the new primary, and a wait is served there.
pub fn superseded_with_a_grant(world: &mut World) {
    let driver = driver(world);
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 10_000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    driver.lock("b", json!({"keys": [KEY]}));
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    world.servers.until_replicated(1);
    world.servers.supersede();
    let renewed = || (world.left_of(KEY, &token) > 8500).then_some(());
    assert!(
        within(CLEAN, renewed).is_some(),
        "superseded_with_a_grant | renewal"
    );
    world.servers.bring_back_superseded();
    assert_eq!(driver.loss_within("a", Duration::from_millis(100)), None);
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    // The old primary may serve a wait on a connection that is open: the page's differences.
    let is_at_new = world.servers.info(KEY).is_some();
    assert!(
        is_at_new || world.servers.superseded_has(KEY),
        "superseded_with_a_grant | wait for ever"
    );
    // Then the release may find that the new primary doesn't know the grant.
    assert!(driver.release("b") || !is_at_new);
}

/// Locks that are tried at once, so that each connection of a pool is used.
const TRIES: [&str; IDLE] = ["a", "b", "c"];

/// The time within which a library uses the new primary after a planned failover.
const SWITCHED: Duration = Duration::from_secs(10);

/// Two drivers with connections that were used at the old primary, which is a replica now. Each
/// acquires at the new one, and never both hold.
pub fn planned_failover(world: &mut World) {
    let drivers = [driver(world), driver(world)];
    for driver in &drivers {
        leave_idle_connections(world, driver, IDLE);
        for name in TRIES {
            driver.lock(name, json!({"keys": [KEY], "lease_ms": 60_000}));
        }
    }
    let before = "{t}before";
    drivers[0].lock("before", json!({"keys": [before], "lease_ms": 4000}));
    drivers[0].try_acquire("before").fence();
    let token = world.holder(before);
    world.servers.fail_over();
    let switched = Instant::now();
    for (driver, key) in drivers.iter().zip(["{t}first", "{t}second"]) {
        driver.lock("own", json!({"keys": [key]}));
        let got = || driver.try_acquire("own").error().is_none().then_some(());
        assert!(within(SWITCHED, got).is_some(), "{key} isn't acquired");
        assert!(switched.elapsed() < SWITCHED, "{key}");
        assert!(
            world.servers.info(key).is_some(),
            "{key} isn't at the new primary"
        );
        assert!(driver.release("own"));
    }
    for [holder, other] in [[0, 1], [1, 0]] {
        drivers[holder].try_acquire("a").fence();
        let tries = TRIES.map(|name| drivers[other].begin_acquire(name, Some(0)));
        for tried in &tries {
            assert!(!drivers[other].answer(tried).ok(), "both hold");
        }
        assert!(drivers[holder].release("a"));
    }
    if !world.has(Ability::Background) {
        return;
    }
    until("the lease from before is over", || {
        switched.elapsed() > Duration::from_secs(4)
    });
    let is_lost = drivers[0].losses("before") == 1;
    assert!(
        is_lost || world.left_of(before, &token) > 0,
        "neither renewed nor told lost"
    );
}
