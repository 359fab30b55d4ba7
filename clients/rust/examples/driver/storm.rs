//! The tasks of one process that acquire a lock with short limits, again and again.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

/// The pause between two writes.
pub const PAUSE: Duration = Duration::from_millis(2);

/// The time for which a task of a storm holds the lock.
pub const HOLD: Duration = Duration::from_millis(1);

pub struct Storm {
    pub until: Instant,
    pub most_wait: Duration,
    pub releases: Mutex<Vec<Duration>>,
    pub most_late: Mutex<Duration>,
}

/// A call that goes on.
pub struct Acquiring {
    pub limit: Duration,
    began: Instant,
}

impl Storm {
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Begins a call with a random limit.
    pub fn acquiring(&self) -> Acquiring {
        Acquiring {
            limit: self.most_wait.mul_f64(rand::random()),
            began: Instant::now(),
        }
    }

    pub fn ended(&self, call: Acquiring) {
        let mut most_late = self.most_late.lock().expect("no panic");
        *most_late = most_late.max(call.began.elapsed().saturating_sub(call.limit));
    }

    pub fn released(&self, call: Acquiring) {
        let mut releases = self.releases.lock().expect("no panic");
        releases.push(call.began.elapsed());
    }

    pub fn reply(&self) -> Value {
        let mut releases = self.releases.lock().expect("no panic");
        releases.sort();
        let p99 = releases.get(releases.len() * 99 / 100).copied();
        json!({
            "ok": true,
            "grants": releases.len(),
            "release_p99_ms": p99.unwrap_or_default().as_secs_f64() * 1000.0,
            "most_late_ms": self.most_late.lock().expect("no panic").as_secs_f64() * 1000.0,
        })
    }
}
