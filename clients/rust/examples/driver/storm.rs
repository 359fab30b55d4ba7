//! The tasks of one process that acquire a lock with short limits, again and again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

pub struct Storm {
    until: Instant,
    most_wait: Duration,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    releases: Vec<Duration>,
    most_late: Duration,
}

impl Storm {
    pub fn new(seconds: u64, most_wait: Duration) -> Storm {
        Storm {
            until: Instant::now() + Duration::from_secs(seconds),
            most_wait,
            counts: Mutex::default(),
        }
    }

    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Returns a random limit.
    pub fn wait(&self) -> Duration {
        self.most_wait.mul_f64(rand::random())
    }

    pub fn ended(&self, limit: Duration, began: Instant) {
        let late = began.elapsed().saturating_sub(limit);
        self.counted(|counts| counts.most_late = counts.most_late.max(late));
    }

    pub fn released(&self, began: Instant) {
        self.counted(|counts| counts.releases.push(began.elapsed()));
    }

    pub fn reply(&self) -> Value {
        self.counted(|counts| {
            counts.releases.sort();
            let index = counts.releases.len() * 99 / 100;
            let p99 = counts.releases.get(index).copied().unwrap_or_default();
            json!({
                "ok": true,
                "grants": counts.releases.len(),
                "release_p99_ms": p99.as_secs_f64() * 1000.0,
                "most_late_ms": counts.most_late.as_secs_f64() * 1000.0,
            })
        })
    }

    fn counted<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
