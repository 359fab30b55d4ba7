//! Work in the background: tasks of tokio, or of a thread that drives a runtime of the library.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;
use tokio::time::{sleep_until, Instant};

use crate::mutex::Mutex;

/// The time after which a background thread without work ends.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a waiting thread makes sure that a thread drives the runtime.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The runtime of a call, and of what the call leaves to do.
#[derive(Clone)]
pub(crate) enum Background {
    /// The program's runtime.
    Tasks(Handle),
    /// The runtime of a `Locks` for threads.
    Threads(Arc<Pump>),
}

impl Background {
    pub(crate) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Background::Tasks(handle) => drop(handle.spawn(work)),
            Background::Threads(pump) => {
                let driven = pump.drive();
                drop(pump.handle().spawn(async move {
                    let _driven = driven;
                    work.await;
                }));
            }
        }
    }
}

/// Returns when the next thing is due, after doing what is due now. `None` if nothing will be.
pub(crate) type Look = Box<dyn Fn() -> Option<Instant> + Send + Sync>;

/// A runtime that no thread drives while nothing is due.
///
/// perf: A call drives the runtime itself, so its commands need no switch of threads: 27 us of
/// processor time for a command, where a thread that drives all needs 50, and the redis crate's
/// blocking connection 23.
pub(crate) struct Pump {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    look: Look,
    state: Mutex<State>,
    wakes_thread: Condvar,
    wakes_runtime: Notify,
}

#[derive(Default)]
struct State {
    /// The works that need the background thread.
    works: usize,
    has_thread: bool,
    /// True if the thread must look before it waits again.
    is_woken: bool,
    /// The time at which the thread looks next, if it waits until then.
    looks_at: Option<Instant>,
}

impl Pump {
    pub(crate) fn new(look: Look) -> std::io::Result<Pump> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Pump {
            runtime: Some(runtime),
            look,
            state: Mutex::default(),
            wakes_thread: Condvar::new(),
            wakes_runtime: Notify::new(),
        })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the drop")
    }

    fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    /// Returns true while this thread ends, and has dropped what tokio keeps for it.
    pub(crate) fn is_out_of_reach() -> bool {
        Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
    }

    /// Runs a future to its end in this thread.
    pub(crate) fn run<T>(self: &Arc<Pump>, work: impl Future<Output = T>) -> T {
        if Handle::try_current().is_err() {
            return self.runtime().block_on(work);
        }
        // A thread of another runtime can't drive this one.
        let _driven = self.drive();
        let _context = self.handle().enter();
        let mut work = pin!(work);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match work.as_mut().poll(&mut context) {
                Poll::Ready(done) => return done,
                Poll::Pending => {
                    thread::park_timeout(LOOKS_EVERY);
                    // The thread that drives the runtime may not have started before.
                    self.wake(|_| {});
                }
            }
        }
    }

    /// Lets the background thread drive the runtime until the result is dropped.
    fn drive(self: &Arc<Pump>) -> Driven {
        self.wake(|state| state.works += 1);
        Driven(Arc::clone(self))
    }

    /// Lets the background thread look no later than at a time.
    pub(crate) fn look_at(self: &Arc<Pump>, due: Instant) {
        let mut is_late = false;
        {
            let state = self.state.lock();
            is_late |= state.has_thread && state.looks_at.is_some_and(|at| at <= due);
        }
        if !is_late {
            self.wake(|_| {});
        }
    }

    fn wake(self: &Arc<Pump>, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.is_woken = true;
        if !state.has_thread {
            let pump = Arc::clone(self);
            let thread = thread::Builder::new().name("redis-lock".into());
            state.has_thread = thread.spawn(move || pump.look_after()).is_ok();
        }
        drop(state);
        self.wakes_thread.notify_one();
        self.wakes_runtime.notify_one();
    }

    /// Looks when something is due, and drives the runtime while there is work.
    fn look_after(self: Arc<Pump>) {
        loop {
            {
                let mut state = self.state.lock();
                state.is_woken = false;
                // Until all is seen, a new thing that is due wakes the thread again.
                state.looks_at = None;
            }
            let due = (self.look)();
            let mut state = self.state.lock();
            if state.is_woken {
                continue;
            }
            if state.works > 0 {
                drop(state);
                self.runtime().block_on(self.woken_until(due));
                continue;
            }
            state.looks_at = due;
            let left = due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
            let waited = self.wakes_thread.wait_timeout(state, left);
            let (mut state, _) = waited.unwrap_or_else(|error| error.into_inner());
            if due.is_none() && !state.is_woken {
                state.has_thread = false;
                return;
            }
        }
    }

    async fn woken_until(&self, due: Option<Instant>) {
        let Some(due) = due else {
            return self.wakes_runtime.notified().await;
        };
        tokio::select! {
            () = self.wakes_runtime.notified() => {}
            () = sleep_until(due) => {}
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // Without waiting, which a thread of another runtime must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A work for which the background thread drives the runtime.
struct Driven(Arc<Pump>);

impl Drop for Driven {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.works -= 1;
        drop(state);
        self.0.wakes_runtime.notify_one();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
