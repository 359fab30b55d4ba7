//! The duration of a test of many clients, and the random choices of its clients.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Returns the time for which clients compete: `LOCK_SOAK_SECONDS`, or `otherwise`.
pub fn soak_time(otherwise: Duration) -> Duration {
    env::var("LOCK_SOAK_SECONDS").map_or(otherwise, |seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
    })
}

/// Sets a flag when it goes out of scope, also if a test fails, so that the test's threads end.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers that look random and are the same in every run.
pub struct Dice(StdRng);

impl Dice {
    /// Returns dice with a sequence of their own for each seed.
    pub fn new(seed: u64) -> Dice {
        Dice(StdRng::seed_from_u64(seed))
    }

    /// Returns a number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0.random_range(0..sides)
    }

    /// Returns one element of `from`.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        from.choose(&mut self.0).expect("something to pick from")
    }
}
