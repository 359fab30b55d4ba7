use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

pub use redis_lock_client::aio::{Grant, Lock, Locks};
use redis_lock_client::Error;
use tokio::runtime::Runtime;
pub use tokio::sync::Notify as Stop;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::order::Refused;
use crate::storm::{Storm, HOLD, PAUSE};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

pub fn run<T>(call: impl Future<Output = T>) -> T {
    RUNTIME.block_on(call)
}

pub fn cancel(stop: &Stop) {
    stop.notify_one();
}

pub fn acquire(lock: &Lock, wait: Option<Duration>, stop: &Stop) -> Result<Option<Grant>, Error> {
    run(async {
        // A task's acquire is cancelled by dropping its future.
        tokio::select! {
            acquired = lock.acquire(wait) => acquired,
            () = stop.notified() => Err(Error::Cancelled),
        }
    })
}

/// Runs the guarded block, which begins with `enter`, lasts for a time, and ends with `leave`.
pub fn block<T>(
    lock: &Lock,
    wait: Option<Duration>,
    enter: impl FnOnce(),
    work: Duration,
    leave: impl FnOnce(&Grant) -> Result<T, Refused>,
) -> Result<T, Refused> {
    run(async {
        let grant = lock.acquire(wait).await?.ok_or(Error::NotAcquired)?;
        let body = async |grant: &Grant| {
            enter();
            sleep(work).await;
            leave(grant)
        };
        grant.with(body).await
    })
}

/// Writes again and again in a guarded block, until the loss ends it.
pub fn write(
    lock: &Lock,
    wait: Option<Duration>,
    mut write: impl FnMut(i64),
) -> Result<(), Refused> {
    run(async {
        let grant = lock.acquire(wait).await?.ok_or(Error::NotAcquired)?;
        let body = async |grant: &Grant| loop {
            write(grant.fence());
            sleep(PAUSE).await;
        };
        grant.with(body).await
    })
}

/// Runs the tasks of a storm until its end.
pub fn storm(lock: &Lock, storm: &'static Storm, tasks: u64) {
    let acquire_again_and_again = |lock: Lock| async move {
        while storm.goes_on() {
            let acquiring = storm.acquiring();
            let grant = lock.acquire(acquiring.limit).await.unwrap_or_default();
            storm.ended(acquiring);
            if let Some(grant) = grant {
                sleep(HOLD).await;
                let releasing = storm.acquiring();
                let _ = grant.release().await;
                storm.released(releasing);
            }
        }
    };
    run(async {
        let tasks = (0..tasks).map(|_| acquire_again_and_again(lock.clone()));
        tasks.collect::<JoinSet<()>>().join_all().await
    });
}
