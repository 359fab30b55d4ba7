//! A primary that was superseded, and goes on answering.

use std::time::Duration;

use serde_json::json;

use super::cells::CLEAN;
use crate::driver::Driver;
use crate::servers::within;
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
fn leave_idle_connections(world: &World, driver: &Driver) {
    world.other_holds(KEY);
    let names: Vec<String> = (0..IDLE).map(|number| format!("idle-{number}")).collect();
    let mut waits = Vec::new();
    for name in &names {
        driver.lock(name, json!({"keys": [KEY]}));
        waits.push(driver.begin_acquire(name, None));
        world.until_waiting(KEY, waits.len());
    }
    world.other_releases(KEY);
    for (name, asked) in names.iter().zip(&waits) {
        driver.answer(asked).fence();
        assert!(driver.release(name));
    }
}

/// Once the client has been granted a lock by the new primary, every call goes there. What the old
/// one reads of earlier tries when it goes on is gone as soon as its Sentinel makes it a replica.
pub fn superseded(world: &mut World) {
    let driver = driver(world);
    leave_idle_connections(world, &driver);
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
    let token = driver.lock("a", json!({"keys": [KEY], "lease_ms": 6000}));
    driver.try_acquire("a").fence();
    driver.lock("b", json!({"keys": [KEY]}));
    let waits = driver.begin_acquire("b", None);
    world.until_waiting(KEY, 1);
    world.servers.until_replicated(1);
    world.servers.supersede();
    let renewed = || (world.left_of(KEY, &token) > 4500).then_some(());
    assert!(
        within(CLEAN, renewed).is_some(),
        "superseded_with_a_grant | renewal"
    );
    world.servers.bring_back_superseded();
    assert_eq!(driver.loss_within("a", Duration::from_millis(100)), None);
    assert!(driver.release("a"));
    driver.answer(&waits).fence();
    assert!(
        world.servers.info(KEY).is_some(),
        "superseded_with_a_grant | wait for ever"
    );
    assert!(driver.release("b"));
}
