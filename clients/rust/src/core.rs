//! The parts that all owners of a `Locks` share.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connections::Connections;
use crate::error::{Error, Outage};
use crate::grant::Grant;
use crate::mutex::Mutex;
use crate::observer::{Callbacks, Log, Observer, Outcome, Subject};
use crate::owner::Owner;
use crate::servers::Config;

/// The way in which an owner waits, unless its lock needs a connection for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// By LOCK.WAIT, each on a connection of its own.
    Blocked,
    /// By LOCK.QUEUE, on the connection that all share.
    Places,
}

pub(crate) struct Core {
    pub(crate) connections: Connections,
    pub(crate) runtime: Handle,
    pub(crate) waits: Waits,
    observer: Option<Arc<dyn Observer>>,
    callbacks: Callbacks,
    jobs: Jobs,
    /// The grants that are held, by their addresses.
    held: Mutex<HashMap<usize, Holding>>,
}

type Holding = (Arc<Owner>, Arc<Grant>);

/// The number of jobs in the background.
#[derive(Default)]
pub(crate) struct Jobs(Arc<watch::Sender<usize>>);

impl Jobs {
    pub(crate) fn begin(&self) -> Job {
        self.0.send_modify(|jobs| *jobs += 1);
        Job(Arc::clone(&self.0))
    }

    /// Returns a future that is ready when no job is left.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut jobs = self.0.subscribe();
        async move {
            // Fails if the sender is gone, and with it all jobs.
            let _ = jobs.wait_for(|jobs| *jobs == 0).await;
        }
    }
}

/// A job in the background, which counts until this is dropped.
pub(crate) struct Job(Arc<watch::Sender<usize>>);

impl Drop for Job {
    fn drop(&mut self) {
        self.0.send_modify(|jobs| *jobs -= 1);
    }
}

impl Core {
    pub(crate) fn new(config: Config, runtime: Handle, waits: Waits) -> Core {
        Core {
            observer: config.observer.clone(),
            connections: Connections::new(config, runtime.clone()),
            runtime,
            waits,
            callbacks: Callbacks::default(),
            jobs: Jobs::default(),
            held: Mutex::default(),
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.connections.command_timeout()
    }

    /// Starts a job that goes on without its caller.
    pub(crate) fn in_background<T: Send + 'static>(
        &self,
        job: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let counts = self.jobs.begin();
        self.runtime.spawn(async move {
            let _counts = counts;
            job.await
        })
    }

    /// Returns a future that is ready when no job is left.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + 'static {
        self.jobs.settled()
    }

    pub(crate) fn hold(&self, owner: &Arc<Owner>, grant: &Arc<Grant>) {
        let held = (Arc::clone(owner), Arc::clone(grant));
        self.held.lock().insert(Arc::as_ptr(grant).addr(), held);
    }

    pub(crate) fn forget(&self, grant: &Arc<Grant>) {
        self.held.lock().remove(&Arc::as_ptr(grant).addr());
    }

    /// Releases all grants. Returns how many were still held.
    pub(crate) async fn release_all(&self) -> Result<usize, Error> {
        let held: Vec<_> = self.held.lock().values().cloned().collect();
        let releases = held.iter().map(|(owner, grant)| owner.release_all(grant));
        let mut count = 0;
        let mut failure = None;
        for released in join_all(releases).await {
            match released {
                Ok(was_held) => count += usize::from(was_held),
                // Its guard has released it meanwhile.
                Err(Error::NotHeld) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(count), Err)
    }

    pub(crate) fn no_answer(&self, within: Duration) -> Outage {
        Outage::no_answer(&self.connections.name(), within)
    }

    /// Returns the error of a call whose job has ended without a result.
    pub(crate) fn ended(&self) -> Error {
        Outage::new("the runtime of the locks has ended".into()).error("")
    }

    pub(crate) fn granted(&self, owner: &Arc<Owner>, token: &[u8]) {
        self.observe(owner, token, |observer, lock| observer.granted(lock));
    }

    pub(crate) fn waited(&self, owner: &Arc<Owner>, waited: Duration, outcome: Outcome) {
        let tell = move |observer: &dyn Observer, lock: &Subject<'_>| {
            observer.waited(lock, waited, outcome);
        };
        self.observe(owner, &owner.token(), tell);
    }

    pub(crate) fn lost(&self, owner: &Arc<Owner>, grant: &Arc<Grant>) {
        self.forget(grant);
        if let Some(on_lost) = owner.commands.options.on_lost.clone() {
            self.callbacks.run(move || on_lost());
        }
        let observer = self.observer.clone();
        let (owner, grant) = (Arc::clone(owner), Arc::clone(grant));
        self.callbacks.run(move || {
            let lock = owner.subject(&grant.token);
            match observer {
                Some(observer) => observer.lost(&lock),
                None => Log.lost(&lock),
            }
        });
    }

    pub(crate) fn unavailable(&self, error: Error) {
        let observer = self.observer.clone();
        self.callbacks.run(move || match observer {
            Some(observer) => observer.unavailable(&error),
            None => Log.unavailable(&error),
        });
    }

    fn observe(
        &self,
        owner: &Arc<Owner>,
        token: &[u8],
        tell: impl FnOnce(&dyn Observer, &Subject<'_>) + Send + 'static,
    ) {
        if let Some(observer) = self.observer.clone() {
            let (owner, token) = (Arc::clone(owner), token.to_owned());
            let tells = move || tell(&*observer, &owner.subject(&token));
            self.callbacks.run(tells);
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("servers", &self.connections.name())
            .field("held", &self.held.lock().len())
            .finish_non_exhaustive()
    }
}
