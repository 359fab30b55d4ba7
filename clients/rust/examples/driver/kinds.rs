//! The two sides of the library, whose calls differ by `.await` alone.

use std::fmt::Debug;
use std::time::Duration;

use redis_lock_client::{aio, Config, Error, Options};
use tokio::sync::Notify;

#[allow(async_fn_in_trait, reason = "this driver runs all futures itself")]
pub trait Kind: 'static {
    type Locks: Clone + Debug + Send;
    type Lock: Clone + Debug + Send;
    type Guard: Debug + Send + Sync;

    fn locks(config: Config) -> Self::Locks;
    fn lock(locks: &Self::Locks, keys: Vec<String>, options: Options) -> Result<Self::Lock, Error>;
    fn cancel(lock: &Self::Lock, notify: &Notify);
    fn token(lock: &Self::Lock) -> Vec<u8>;
    fn fence(guard: &Self::Guard) -> i64;
    fn last_fence(lock: &Self::Lock) -> Option<i64>;
    fn is_lost(guard: &Self::Guard) -> bool;
    async fn acquire(
        lock: &Self::Lock,
        wait: Option<Duration>,
    ) -> Result<Option<Self::Guard>, Error>;
    async fn release(guard: Self::Guard) -> Result<bool, Error>;
    async fn extend(guard: &Self::Guard, lease: Duration) -> Result<bool, Error>;
    async fn left(lock: &Self::Lock) -> Result<Duration, Error>;
    async fn owned(lock: &Self::Lock) -> Result<bool, Error>;
    async fn release_all(locks: &Self::Locks) -> Result<usize, Error>;
}

pub struct Threads;
pub struct Tasks;

macro_rules! kind {
    ($kind:ident, $module:path, $cancel:expr, [$($await:tt)*]) => {
        const _: () = {
            use $module as side;

            impl Kind for $kind {
                type Locks = side::Locks;
                type Lock = side::Lock;
                type Guard = side::Guard;

                fn locks(config: Config) -> side::Locks {
                    side::Locks::new(config)
                }

                fn lock(
                    locks: &side::Locks,
                    keys: Vec<String>,
                    options: Options,
                ) -> Result<side::Lock, Error> {
                    locks.handle_with(keys, options)
                }

                fn cancel(lock: &side::Lock, notify: &Notify) {
                    $cancel(lock, notify);
                }

                fn token(lock: &side::Lock) -> Vec<u8> {
                    lock.token()
                }

                fn fence(guard: &side::Guard) -> i64 {
                    guard.fence()
                }

                fn last_fence(lock: &side::Lock) -> Option<i64> {
                    lock.fence()
                }

                fn is_lost(guard: &side::Guard) -> bool {
                    guard.is_lost()
                }

                async fn acquire(
                    lock: &side::Lock,
                    wait: Option<Duration>,
                ) -> Result<Option<side::Guard>, Error> {
                    match wait {
                        None => match lock.acquire()$($await)* {
                            Err(Error::NotAcquired(_)) => Ok(None),
                            acquired => acquired.map(Some),
                        },
                        Some(Duration::ZERO) => lock.try_acquire()$($await)*,
                        Some(wait) => lock.acquire_within(wait)$($await)*,
                    }
                }

                async fn release(guard: side::Guard) -> Result<bool, Error> {
                    guard.release()$($await)*
                }

                async fn extend(guard: &side::Guard, lease: Duration) -> Result<bool, Error> {
                    guard.extend(lease)$($await)*
                }

                async fn left(lock: &side::Lock) -> Result<Duration, Error> {
                    lock.left()$($await)*
                }

                async fn owned(lock: &side::Lock) -> Result<bool, Error> {
                    lock.owned()$($await)*
                }

                async fn release_all(locks: &side::Locks) -> Result<usize, Error> {
                    locks.release_all()$($await)*
                }
            }
        };
    };
}

// A thread's acquire is cancelled by its handle, and a task's by dropping its future.
kind!(
    Threads,
    redis_lock_client,
    |lock: &redis_lock_client::Lock, _| lock.cancel(),
    []
);
kind!(Tasks, aio, |_, notify: &Notify| notify.notify_one(), [.await]);
