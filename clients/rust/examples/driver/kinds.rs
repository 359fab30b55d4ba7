//! The two sides of the library. Each order has a thread of its own, so both block it.

use std::fmt::Debug;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{aio, Cancel, Config, Error, Options};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::order::Refused;
use crate::storm::Storm;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

pub trait Kind: Sized + 'static {
    type Locks: Clone + Debug + Send + Sync;
    type Lock: Clone + Debug + Send + Sync;
    type Grant: Debug + Send + Sync;
    /// A switch that cancels an acquire.
    type Stop: Default + Send + Sync;

    fn locks(config: Config) -> Self::Locks;
    fn lock(locks: &Self::Locks, keys: Vec<String>, options: Options) -> Result<Self::Lock, Error>;
    fn id(lock: &Self::Lock) -> u64;
    fn cancel(stop: &Self::Stop);
    fn fence(grant: &Self::Grant) -> i64;
    fn token(grant: &Self::Grant) -> String;
    fn is_lost(grant: &Self::Grant) -> bool;
    fn left(grant: &Self::Grant) -> Duration;
    fn acquire(
        lock: &Self::Lock,
        wait: Option<Duration>,
        stop: &Self::Stop,
    ) -> Result<Option<Self::Grant>, Error>;
    fn release(grant: Self::Grant) -> Result<bool, Error>;
    fn extend(grant: &Self::Grant, lease: Duration) -> Result<bool, Error>;
    fn owned(grant: &Self::Grant) -> Result<bool, Error>;
    fn release_all(locks: &Self::Locks) -> Result<usize, Error>;

    /// Runs the guarded block, which begins with `enter`, lasts for a time, and ends with `leave`.
    fn block<T: Send + 'static>(
        lock: &Self::Lock,
        wait: Option<Duration>,
        enter: impl FnOnce(&Self::Grant),
        work: Duration,
        leave: impl FnOnce(&Self::Grant) -> Result<T, Refused>,
    ) -> Result<T, Refused>;

    /// Writes again and again in a guarded block, until the loss ends it.
    fn write(
        lock: &Self::Lock,
        wait: Option<Duration>,
        write: impl FnMut(i64),
    ) -> Result<(), Refused>;

    /// Runs the tasks of a storm until its end.
    fn storm(lock: &Self::Lock, storm: &'static Storm, tasks: u64);
}

/// The pause between two writes.
const PAUSE: Duration = Duration::from_millis(2);

/// The time for which a task of a storm holds the lock.
const HOLD: Duration = Duration::from_millis(1);

pub struct Threads;

impl Kind for Threads {
    type Locks = redis_lock_client::Locks;
    type Lock = redis_lock_client::Lock;
    type Grant = redis_lock_client::Grant;
    type Stop = Cancel;

    fn locks(config: Config) -> Self::Locks {
        Self::Locks::new(config)
    }

    fn lock(locks: &Self::Locks, keys: Vec<String>, options: Options) -> Result<Self::Lock, Error> {
        locks.lock_with(keys, options)
    }

    fn id(lock: &Self::Lock) -> u64 {
        lock.id()
    }

    fn cancel(stop: &Cancel) {
        stop.cancel();
    }

    fn fence(grant: &Self::Grant) -> i64 {
        grant.fence()
    }

    fn token(grant: &Self::Grant) -> String {
        String::from_utf8_lossy(grant.token()).into_owned()
    }

    fn is_lost(grant: &Self::Grant) -> bool {
        grant.is_lost()
    }

    fn left(grant: &Self::Grant) -> Duration {
        grant.left()
    }

    fn acquire(
        lock: &Self::Lock,
        wait: Option<Duration>,
        stop: &Cancel,
    ) -> Result<Option<Self::Grant>, Error> {
        lock.acquire_unless(wait, stop)
    }

    fn release(grant: Self::Grant) -> Result<bool, Error> {
        grant.release()
    }

    fn extend(grant: &Self::Grant, lease: Duration) -> Result<bool, Error> {
        grant.extend(lease)
    }

    fn owned(grant: &Self::Grant) -> Result<bool, Error> {
        grant.owned()
    }

    fn release_all(locks: &Self::Locks) -> Result<usize, Error> {
        locks.release_all()
    }

    fn block<T: Send + 'static>(
        lock: &Self::Lock,
        wait: Option<Duration>,
        enter: impl FnOnce(&Self::Grant),
        work: Duration,
        leave: impl FnOnce(&Self::Grant) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let body = |grant: &Self::Grant| {
            enter(grant);
            thread::sleep(work);
            leave(grant)
        };
        match wait {
            None => lock.with(body),
            Some(wait) => lock.acquire(wait)?.ok_or(Error::NotAcquired)?.with(body),
        }
    }

    fn write(
        lock: &Self::Lock,
        wait: Option<Duration>,
        mut write: impl FnMut(i64),
    ) -> Result<(), Refused> {
        let grant = lock.acquire(wait)?.ok_or(Error::NotAcquired)?;
        grant.with(|grant| {
            while !grant.is_lost() {
                write(grant.fence());
                thread::sleep(PAUSE);
            }
            Ok(())
        })
    }

    fn storm(lock: &Self::Lock, storm: &'static Storm, tasks: u64) {
        let tasks = (0..tasks).map(|_| {
            let lock = lock.clone();
            thread::spawn(move || {
                while storm.goes_on() {
                    let (wait, began) = (storm.wait(), Instant::now());
                    let grant = lock.acquire(wait).unwrap_or_default();
                    storm.ended(wait, began);
                    if let Some(grant) = grant {
                        thread::sleep(HOLD);
                        let began = Instant::now();
                        let _ = grant.release();
                        storm.released(began);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            let _ = task.join();
        }
    }
}

pub struct Tasks;

impl Kind for Tasks {
    type Locks = aio::Locks;
    type Lock = aio::Lock;
    type Grant = aio::Grant;
    type Stop = Notify;

    fn locks(config: Config) -> aio::Locks {
        aio::Locks::new(config)
    }

    fn lock(locks: &aio::Locks, keys: Vec<String>, options: Options) -> Result<aio::Lock, Error> {
        locks.lock_with(keys, options)
    }

    fn id(lock: &aio::Lock) -> u64 {
        lock.id()
    }

    fn cancel(stop: &Notify) {
        stop.notify_one();
    }

    fn fence(grant: &aio::Grant) -> i64 {
        grant.fence()
    }

    fn token(grant: &aio::Grant) -> String {
        String::from_utf8_lossy(grant.token()).into_owned()
    }

    fn is_lost(grant: &aio::Grant) -> bool {
        grant.is_lost()
    }

    fn left(grant: &aio::Grant) -> Duration {
        grant.left()
    }

    fn acquire(
        lock: &aio::Lock,
        wait: Option<Duration>,
        stop: &Notify,
    ) -> Result<Option<aio::Grant>, Error> {
        RUNTIME.block_on(async {
            // A task's acquire is cancelled by dropping its future.
            tokio::select! {
                acquired = lock.acquire(wait) => acquired,
                () = stop.notified() => Err(Error::Cancelled),
            }
        })
    }

    fn release(grant: aio::Grant) -> Result<bool, Error> {
        RUNTIME.block_on(grant.release())
    }

    fn extend(grant: &aio::Grant, lease: Duration) -> Result<bool, Error> {
        RUNTIME.block_on(grant.extend(lease))
    }

    fn owned(grant: &aio::Grant) -> Result<bool, Error> {
        RUNTIME.block_on(grant.owned())
    }

    fn release_all(locks: &aio::Locks) -> Result<usize, Error> {
        RUNTIME.block_on(locks.release_all())
    }

    fn block<T: Send + 'static>(
        lock: &aio::Lock,
        wait: Option<Duration>,
        enter: impl FnOnce(&aio::Grant),
        work: Duration,
        leave: impl FnOnce(&aio::Grant) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let body = async |grant: &aio::Grant| {
            enter(grant);
            tokio::time::sleep(work).await;
            leave(grant)
        };
        RUNTIME.block_on(async {
            match wait {
                None => lock.with(body).await,
                Some(wait) => {
                    let grant = lock.acquire(wait).await?;
                    grant.ok_or(Error::NotAcquired)?.with(body).await
                }
            }
        })
    }

    fn write(
        lock: &aio::Lock,
        wait: Option<Duration>,
        mut write: impl FnMut(i64),
    ) -> Result<(), Refused> {
        RUNTIME.block_on(async {
            let grant = lock.acquire(wait).await?.ok_or(Error::NotAcquired)?;
            let body = async |grant: &aio::Grant| loop {
                write(grant.fence());
                tokio::time::sleep(PAUSE).await;
            };
            grant.with(body).await
        })
    }

    fn storm(lock: &aio::Lock, storm: &'static Storm, tasks: u64) {
        let tasks = (0..tasks).map(|_| {
            let lock = lock.clone();
            RUNTIME.spawn(async move {
                while storm.goes_on() {
                    let (wait, began) = (storm.wait(), Instant::now());
                    let grant = lock.acquire(wait).await.unwrap_or_default();
                    storm.ended(wait, began);
                    if let Some(grant) = grant {
                        tokio::time::sleep(HOLD).await;
                        let began = Instant::now();
                        let _ = grant.release().await;
                        storm.released(began);
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            let _ = RUNTIME.block_on(task);
        }
    }
}
