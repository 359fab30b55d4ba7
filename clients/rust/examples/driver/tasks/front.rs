//! The library for tasks.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

pub use redis_lock_client::aio::{Grant, Lock, Locks};
use redis_lock_client::Error;
use tokio::runtime::Runtime;
pub use tokio::sync::Notify as Stop;
use tokio::task::JoinSet;
pub use tokio::time::sleep;

use crate::order::Refused;

pub const LOSS_ENDS_BLOCK: bool = true;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

pub fn done<F: Future>(call: F) -> F {
    call
}

/// Runs the calls of an order, whose thread waits for them.
pub fn run<T>(calls: impl Future<Output = T>) -> T {
    RUNTIME.block_on(calls)
}

pub fn cancel(stop: &Stop) {
    stop.notify_one();
}

/// Acquires the lock. A task cancels that by dropping the future.
pub async fn acquire(
    lock: &Lock,
    wait: Option<Duration>,
    stop: &Stop,
) -> Result<Option<Grant>, Error> {
    tokio::select! {
        acquired = lock.acquire(wait) => acquired,
        () = stop.notified() => Err(Error::Cancelled),
    }
}

pub async fn with<T>(
    grant: Grant,
    body: impl AsyncFnOnce(&Grant) -> Result<T, Refused>,
) -> Result<T, Refused> {
    grant.with(body).await
}

/// Runs the work in so many tasks at once.
pub async fn at_once<F, T: Send + 'static>(count: u64, work: impl Fn() -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let tasks = (0..count).map(|_| work()).collect::<JoinSet<T>>();
    tasks.join_all().await
}
