//! Work in the background: tasks of the program's runtime, or of the runtime that threads drive.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::thread;

use futures_util::future::FutureExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use crate::error::Error;

/// The runtime of all locks for threads. A thread drives it while it waits for a call.
///
/// perf: A call's commands need no switch of threads: 27 us of processor time for a command, where
/// a thread that drives all needs 50, and the redis crate's blocking connection 23.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
});

/// The users of a `Locks`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    Threads,
    Tasks,
}

/// The works of a `Locks` that go on without a caller.
#[derive(Clone)]
pub(crate) struct Works {
    users: Users,
    count: Arc<watch::Sender<usize>>,
}

impl Works {
    pub(crate) fn new(users: Users) -> Works {
        Works {
            users,
            count: Arc::default(),
        }
    }

    /// Returns when no work goes on.
    pub(crate) async fn ended(self) {
        // It can't fail, because the sender is in `self`.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// A work that counts until this is dropped.
struct Working(Works);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}

/// The runtime of a grant, and of what a call leaves to do.
#[derive(Clone)]
pub(crate) struct Background {
    runtime: Handle,
    works: Works,
}

impl Background {
    /// Returns the runtime of the caller.
    pub(crate) fn new(works: &Works) -> Result<Background, Error> {
        let (argument, reason) = ("runtime", "this must run in a runtime of tokio");
        let none = |_| Error::InvalidArgument { argument, reason };
        Ok(Background {
            runtime: Handle::try_current().map_err(none)?,
            works: works.clone(),
        })
    }

    /// Starts a work. A thread drives the runtime of threads until all works have ended.
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (works, mut is_first) = (self.works.clone(), false);
        works.count.send_modify(|count| {
            is_first = *count == 0;
            *count += 1;
        });
        let working = Working(works.clone());
        self.runtime.spawn(work.map(|()| drop(working)));
        if is_first && works.users == Users::Threads {
            in_thread(move || RUNTIME.block_on(works.ended()));
        }
    }
}

/// Runs a future to its end, in this thread.
pub(crate) fn run<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let drive = || RUNTIME.block_on(work);
    if Handle::try_current().is_err() {
        return drive();
    }
    // A thread of another runtime can't drive this one.
    thread::scope(|scope| {
        scope
            .spawn(drive)
            .join()
            .unwrap_or_else(|it| resume_unwind(it))
    })
}

/// Returns true while this thread ends, and has dropped what tokio keeps for it.
pub(crate) fn is_out_of_reach() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Starts a thread. Returns false if there can't be more threads.
pub(crate) fn in_thread(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = thread::Builder::new().name("redis-lock".into());
    thread.spawn(work).is_ok()
}
