//! The events of locks that a program hears of, besides the results of its calls.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{self, Sender};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::options::Keys;

/// The end of an acquire that didn't get the lock at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lock was acquired.
    Granted,
    /// The limit ended first.
    NotAcquired,
    /// The wait was cancelled, or its future was dropped.
    Cancelled,
    /// The acquire failed.
    Failed,
}

/// The lock that an observer hears of.
pub struct Subject<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) token: &'a [u8],
}

impl Subject<'_> {
    /// Returns the keys of the lock.
    pub fn keys(&self) -> &Keys {
        self.keys
    }

    /// Returns the owner's token, which gives control of the lock: keep it out of logs.
    pub fn token(&self) -> &[u8] {
        self.token
    }
}

/// An observer of all locks of a `Locks`. Its methods run one after the other, in a thread for
/// callbacks.
pub trait Observer: Send + Sync {
    /// An acquire that didn't get the lock at once has ended.
    fn waited(&self, lock: &Subject<'_>, waited: Duration, outcome: Outcome) {
        let _ = (lock, waited, outcome);
    }

    /// A lock was granted.
    fn granted(&self, lock: &Subject<'_>) {
        let _ = lock;
    }

    /// A lock was lost while it was held. Logs a warning by default.
    fn lost(&self, lock: &Subject<'_>) {
        log::warn!("the lock {} was lost", lock.keys);
    }

    /// No server answers a call that waits for ever, or goes on without its caller. Called once for
    /// each outage of such a call. Logs a warning by default.
    fn unavailable(&self, error: &Error) {
        log::warn!("{error}");
    }
}

/// The observer of a program that sets none.
pub(crate) struct Log;

impl Observer for Log {}

type Job = Box<dyn FnOnce() + Send>;

/// A thread for callbacks, which starts with the first one. So a slow callback delays no renewal.
#[derive(Default)]
pub(crate) struct Callbacks(OnceLock<Sender<Job>>);

impl Callbacks {
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let sender = self.0.get_or_init(|| {
            let (sender, jobs) = mpsc::channel::<Job>();
            let run = move || {
                for job in jobs {
                    // A callback that panics must not end the others.
                    let _ = catch_unwind(AssertUnwindSafe(job));
                }
            };
            // Without a thread, nobody hears of anything.
            let _ = thread::Builder::new().name("redis-lock".into()).spawn(run);
            sender
        });
        let _ = sender.send(Box::new(job));
    }
}
