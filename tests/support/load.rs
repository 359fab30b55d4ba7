//! How long a test of many clients runs, and the chances its clients take.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// How long clients go on against each other: `LOCK_SOAK_SECONDS`, or as long as told.
pub fn soak_time(otherwise: Duration) -> Duration {
    env::var("LOCK_SOAK_SECONDS").map_or(otherwise, |seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
    })
}

/// Sets a flag as it goes out of scope, also where a test fails: threads that go on until then end.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers that look random and are the same in every run.
pub struct Dice(StdRng);

impl Dice {
    /// Dice of their own for each seed.
    pub fn new(seed: u64) -> Dice {
        Dice(StdRng::seed_from_u64(seed))
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0.random_range(0..sides)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        from.choose(&mut self.0).expect("something to pick from")
    }
}
