//! Work in the background: tasks of the program's runtime, or of the runtime that threads drive.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::thread;

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

/// The number of works in progress.
pub(crate) type Works = Arc<watch::Sender<usize>>;

/// The runtime of a grant, and of what a call leaves to do.
#[derive(Clone)]
pub(crate) enum Background {
    Tasks(Handle, Works),
    Threads(Works),
}

impl Background {
    /// Returns the runtime of the task that calls this.
    pub(crate) fn of_task(works: &Works) -> Result<Background, Error> {
        let none = |_| Error::argument("runtime", "this must run in a runtime of tokio");
        let handle = Handle::try_current().map_err(none)?;
        Ok(Background::Tasks(handle, Arc::clone(works)))
    }

    /// Returns the runtime of threads.
    pub(crate) fn of_thread(works: &Works) -> Result<Background, Error> {
        Ok(Background::Threads(Arc::clone(works)))
    }

    pub(crate) fn handle(&self) -> &Handle {
        match self {
            Background::Tasks(handle, _) => handle,
            Background::Threads(_) => RUNTIME.handle(),
        }
    }

    /// Starts a work. A thread drives the runtime of threads until all works have ended.
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (Background::Tasks(_, works) | Background::Threads(works)) = self;
        let (working, is_first) = Working::new(works);
        self.handle().spawn(async move {
            let _working = working;
            work.await;
        });
        if is_first && matches!(self, Background::Threads(_)) {
            let works = Arc::clone(works);
            in_thread(move || RUNTIME.block_on(ended(&works)));
        }
    }
}

/// Returns when no work goes on.
pub(crate) async fn ended(works: &Works) {
    // It can't fail, because there is a sender.
    let _ = works.subscribe().wait_for(|count| *count == 0).await;
}

/// A work that counts until this is dropped.
struct Working(Works);

impl Working {
    /// Counts a work. Also returns true if no other goes on.
    fn new(works: &Works) -> (Working, bool) {
        let mut is_first = false;
        works.send_modify(|count| {
            is_first = *count == 0;
            *count += 1;
        });
        (Working(Arc::clone(works)), is_first)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
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
