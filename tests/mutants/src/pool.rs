//! Some threads that work through a list.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

/// Calls a function for each index below `len`, in `jobs` threads. Returns the results in order.
pub fn map<T: Send>(jobs: usize, len: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(len));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= len {
                    return;
                }
                let result = call(index);
                let mut results = results.lock().unwrap_or_else(|broken| broken.into_inner());
                results.push((index, result));
            });
        }
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
