//! The library for threads. Each of its calls blocks, so its futures are ready at once.

use std::future::{ready, Future, Ready};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use redis_lock_client::Error;
pub use redis_lock_client::{Cancel as Stop, Grant, Lock, Locks};

use crate::order::Refused;

/// A program looks at the grant.
pub const LOSS_ENDS_BLOCK: bool = false;

pub fn done<T>(result: T) -> Ready<T> {
    ready(result)
}

pub fn run<T>(calls: impl Future<Output = T>) -> T {
    calls.now_or_never().expect("each call blocks")
}

pub async fn sleep(time: Duration) {
    thread::sleep(time);
}

pub fn cancel(stop: &Stop) {
    stop.cancel();
}

pub async fn acquire(
    lock: &Lock,
    wait: Option<Duration>,
    stop: &Stop,
) -> Result<Option<Grant>, Error> {
    lock.acquire_unless(wait, stop)
}

pub async fn with<T>(
    grant: Grant,
    body: impl AsyncFnOnce(&Grant) -> Result<T, Refused>,
) -> Result<T, Refused> {
    grant.with(|grant| run(body(grant)))
}

/// Runs the work in so many threads at once.
pub async fn at_once<F, T: Send>(count: u64, work: impl Fn() -> F + Sync) -> Vec<T>
where
    F: Future<Output = T>,
{
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| run(work()))).collect();
        let results = threads.into_iter().map(|it| it.join().expect("no panic"));
        results.collect()
    })
}
