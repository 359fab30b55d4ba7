//! Grants and refusals without a wait.

use serde_json::json;

use super::LATE;
use crate::driver::shows_token;
use crate::world::World;

const KEY: &str = "{t}k";

pub fn a_free_lock_is_got_at_once(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let fence = driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    let left_ms = world.left_of(KEY, &token);
    assert!((1..=6000).contains(&left_ms), "{left_ms} ms left");
    let state = driver.call(json!({"do": "state", "lock": "a"}));
    assert_eq!(state.number("fence"), fence);
    assert_eq!(state.get("token"), &json!(token));
    assert_eq!(state.get("lost"), &json!(false));
    assert!(driver.release("a"));
    world.assert_free(KEY);
    assert_eq!(driver.losses("a"), 0);
}

/// Measures the best of some rounds, because the machine may be busy in a round.
pub fn a_held_lock_is_refused_at_once(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let times = [(); 3].map(|()| {
        let answer = driver.try_acquire("a");
        assert!(!answer.ok());
        answer.after
    });
    world.assert_in_time(times.into_iter().min(), LATE);
    assert_eq!(world.waiters(KEY), 0);
    world.other_releases(KEY);
    world.assert_free(KEY);
}

pub fn fences_rise(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    driver.lock("b", json!({"keys": ["{t}another"]}));
    let mut last = 0;
    for name in ["a", "b", "a", "b"] {
        let fence = driver.try_acquire(name).fence();
        assert!(fence > last, "{fence} after {last}");
        assert!(driver.release(name));
        last = fence;
    }
}

fn holds(world: &World) -> i64 {
    let info = world.servers.info(KEY).expect("it is held");
    redis::from_redis_value(info.holders[0]["holds"].clone()).expect("a number")
}

/// Holds of the thread that are counted in the process, behind one hold at the server.
pub fn a_thread_acquires_its_lock_again(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "reentrant": true}));
    let first = driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    assert_eq!(driver.acquire("a"), first);
    assert_eq!(driver.try_acquire("a").fence(), first);
    for _ in 0..2 {
        assert!(driver.release("a"));
        assert_eq!(holds(world), 1);
        assert!(world.left_of(KEY, &token) > 0);
    }
    assert!(driver.release("a"));
    world.assert_free(KEY);
    let again = driver.call(json!({"do": "release", "lock": "a"}));
    assert_eq!(again.error(), Some("misuse"));
}

/// The shape of the tokens is the one that the suite looks for in what a driver writes.
pub fn tokens_are_drawn(world: &mut World) {
    let driver = world.driver();
    let tokens = ["{t}a", "{t}b"].map(|key| {
        driver.lock(key, json!({"keys": [key]}));
        driver.try_acquire(key).fence();
        world.holder(key)
    });
    assert_ne!(tokens[0], tokens[1]);
    assert!(tokens.iter().all(|token| shows_token(token)), "{tokens:?}");
}

pub fn each_acquire_draws_a_token(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY]}));
    let tokens = [(); 2].map(|()| {
        let granted = driver.try_acquire("a");
        let token = world.holder(KEY);
        assert_eq!(granted.get("token"), &json!(token));
        assert!(driver.release("a"));
        token
    });
    assert_ne!(tokens[0], tokens[1]);
}

pub fn what_the_server_refuses_is_told(world: &mut World) {
    let driver = world.driver();
    world.servers.call(&format!("SET {KEY} text"));
    driver.lock("a", json!({"keys": [KEY]}));
    assert_eq!(driver.try_acquire("a").error(), Some("other"));
    let waited = driver.begin_acquire("a", Some(5000));
    assert_eq!(driver.answer(&waited).error(), Some("other"));
    world.servers.call(&format!("DEL {KEY}"));
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
}
