use std::thread;
use std::time::Duration;

use redis_lock_client::Error;
pub use redis_lock_client::{Cancel as Stop, Grant, Lock, Locks};

use crate::order::Refused;
use crate::storm::{Storm, HOLD, PAUSE};

/// Returns the result of a call, which is there already.
pub fn run<T>(result: T) -> T {
    result
}

pub fn cancel(stop: &Stop) {
    stop.cancel();
}

pub fn acquire(lock: &Lock, wait: Option<Duration>, stop: &Stop) -> Result<Option<Grant>, Error> {
    lock.acquire_unless(wait, stop)
}

/// Runs the guarded block, which begins with `enter`, lasts for a time, and ends with `leave`.
pub fn block<T>(
    lock: &Lock,
    wait: Option<Duration>,
    enter: impl FnOnce(),
    work: Duration,
    leave: impl FnOnce(&Grant) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let grant = lock.acquire(wait)?.ok_or(Error::NotAcquired)?;
    grant.with(|grant| {
        enter();
        thread::sleep(work);
        leave(grant)
    })
}

/// Writes again and again in a guarded block, until the loss ends it.
pub fn write(
    lock: &Lock,
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

/// Runs the tasks of a storm until its end.
pub fn storm(lock: &Lock, storm: &Storm, tasks: u64) {
    let acquire_again_and_again = || {
        while storm.goes_on() {
            let acquiring = storm.acquiring();
            let grant = lock.acquire(acquiring.limit).unwrap_or_default();
            storm.ended(acquiring);
            if let Some(grant) = grant {
                thread::sleep(HOLD);
                let releasing = storm.acquiring();
                let _ = grant.release();
                storm.released(releasing);
            }
        }
    };
    thread::scope(|scope| (0..tasks).for_each(|_| drop(scope.spawn(acquire_again_and_again))));
}
