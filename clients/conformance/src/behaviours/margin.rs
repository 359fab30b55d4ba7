//! The margin between a loss and the end of the lease at the server.

use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::LATE;
use crate::driver::Driver;
use crate::world::World;

const KEY: &str = "{t}k";

/// The number of keys whose holders write, and how often each of two processes holds each key.
const KEYS: usize = 10;
const TURNS: usize = 5;

/// The time in which a writer gets its turn.
const WAIT_MS: u64 = 5000;

/// Checks that a loss is told before the next client's grant, and that it leaves the margin, in the
/// best of some rounds, to a program that stops.
pub fn a_loss_is_told_before_the_next_grant(world: &mut World) {
    let driver = world.driver();
    let (lease, margin) = (Duration::from_secs(3), Duration::from_secs(1));
    let rounds = ["a", "b", "c"].map(|name| {
        let key = format!("{KEY}{name}");
        let options = json!({"keys": [key], "lease_ms": 3000, "margin_ms": 1000, "renew": false});
        driver.lock(name, options);
        (name, key)
    });
    let began = Instant::now();
    for (name, _) in &rounds {
        driver.try_acquire(name).fence();
    }
    let servers = &world.servers;
    let next = |key: &str| {
        servers.call(&format!("LOCK.WAIT {key} next PX 60000 BLOCK 10000"));
        Instant::now()
    };
    let granted = thread::scope(|scope| {
        let waits = rounds.each_ref().map(|(_, key)| scope.spawn(|| next(key)));
        waits.map(|it| it.join().unwrap_or_else(|payload| resume_unwind(payload)))
    });
    let times = [0, 1, 2].map(|number| {
        let told = driver.loss_within(rounds[number].0, Duration::ZERO);
        let told = told.expect("the loss is told before the next grant");
        assert!(told - began >= lease - margin, "{:?}", told - began);
        assert!(told < granted[number], "told after the next grant");
        (told - began, granted[number] - told)
    });
    let best = times.map(|(told, _)| told).into_iter().min();
    world.assert_in_time(best, lease - margin + LATE);
    let left = times.map(|(_, left)| left).into_iter().max();
    assert!(left >= Some(margin - LATE), "{left:?} left");
}

/// Two processes write to the lists of some keys as long as they hold the keys, and lose them each
/// time. Their margin is longer than a write, so their last writes come before the next holder's
/// first. A busy machine may stop a process for longer.
pub fn a_last_write_comes_before_the_next_first(world: &mut World) {
    let drivers = [world.driver(), world.driver()];
    let write = |driver: &Driver, key: usize| {
        let name = format!("a{key}");
        let options = json!({
            "keys": [format!("{KEY}{key}")], "lease_ms": 400, "margin_ms": 150, "renew": false,
        });
        driver.lock(&name, options);
        let order = json!({
            "do": "write", "lock": name, "wait_ms": WAIT_MS, "list": format!("{{t}}list{key}"),
        });
        for _ in 0..TURNS {
            let lost = driver.call(order.clone());
            assert_eq!(lost.error(), Some("lost"), "{lost}");
        }
    };
    thread::scope(|scope| {
        let each = drivers
            .iter()
            .flat_map(|driver| (0..KEYS).map(move |key| (driver, key)));
        let writers: Vec<_> = each
            .map(|(driver, key)| scope.spawn(move || write(driver, key)))
            .collect();
        for writer in writers {
            writer
                .join()
                .unwrap_or_else(|payload| resume_unwind(payload));
        }
    });
    for key in 0..KEYS {
        let fences = world.servers.call(&format!("LRANGE {{t}}list{key} 0 -1"));
        let fences: Vec<u64> = redis::from_redis_value(fences).expect("fences");
        let mut holders = fences.clone();
        holders.dedup();
        assert!(
            holders.len() > TURNS,
            "key {key} has {} writers",
            holders.len()
        );
        if !fences.is_sorted() {
            world.set_late();
            panic!("key {key}: a write came after those of the next holder: {holders:?}");
        }
    }
}
