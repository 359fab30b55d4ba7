//! Other runtimes of the client's language, which run the library unchanged.

use serde_json::json;

use crate::world::World;

const KEY: &str = "{t}k";

pub fn bun_runs_the_library(world: &mut World) {
    play(world, "bun");
}

pub fn deno_runs_the_library(world: &mut World) {
    play(world, "deno");
}

/// Checks that a lock is refused, waited for, handed over, extended and released, and that the loss
/// ends a block.
fn play(world: &mut World, runtime: &str) {
    world.client = format!("{}-{runtime}", world.client);
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    world.other_holds(KEY);
    let refused = driver.answer(&driver.begin_acquire("a", Some(300)));
    assert!(!refused.ok());
    world.until_nobody_waits(KEY);
    let waits = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world.other_releases(KEY);
    driver.answer(&waits).fence();
    assert!(driver.extend("a", 60_000));
    assert!(driver.release("a"));
    world.assert_free(KEY);
    driver.lock("b", json!({"keys": [KEY], "lease_ms": 600, "renew": false}));
    let lost = driver.call(json!({"do": "write", "lock": "b", "wait_ms": 0, "list": "{t}list"}));
    assert_eq!(lost.error(), Some("lost"), "{lost}");
}
