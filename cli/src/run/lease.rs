//! The lock of the command, which the client library acquires, renews and releases.

use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use redis::Client;
use redis_lock_client::{Config, Error, Guard, Lock, Locks, Observer, Options, Subject};

use super::events::Event;
use crate::arguments::{Run, Server};
use crate::nodes;
use crate::output;
use crate::streams;

/// The longest time that the end of redis-lock waits for a server to forget a cancelled wait or a
/// lost lock. After that, they end with their connection or lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);

/// The interval of attempts to cancel a wait. The first attempt may come before the wait has begun.
const CANCEL_AGAIN: Duration = Duration::from_millis(5);

pub struct Lease {
    /// The end of the wait, or `None` if it has none.
    deadline: Option<Instant>,
    locks: Locks,
    lock: Lock,
    /// A text that says when the lock ends if the server doesn't reply at the end.
    ends: &'static str,
    guard: Arc<Mutex<Option<Guard>>>,
    events: Sender<Event>,
}

impl Lease {
    pub fn new(
        server: &Server,
        options: &Run,
        deadline: Option<Instant>,
        is_cluster: bool,
        events: Sender<Event>,
    ) -> Result<Lease> {
        let keys = [&options.key].into_iter().chain(&options.keys);
        let keys: Vec<Vec<u8>> = keys.map(|key| key.as_bytes().to_vec()).collect();
        let lost = events.clone();
        // The receiver is gone once the command has ended.
        let on_lost = move || drop(lost.send(Event::Lost));
        let locks = locks(server, is_cluster)?;
        let lock = locks.handle_with(keys, client_options(options).on_lost(on_lost))?;
        Ok(Lease {
            deadline,
            locks,
            lock,
            ends: match options.session {
                true => "the lock ends with its connection",
                false => "the lock stays until its lease ends",
            },
            guard: Arc::default(),
            events,
        })
    }

    pub fn token(&self) -> String {
        String::from_utf8_lossy(&self.lock.token()).into_owned()
    }

    /// Starts or resumes the wait. Its end is sent as an event.
    pub fn wait(&self) {
        let (lock, deadline) = (self.lock.clone(), self.deadline);
        let (held, events) = (Arc::clone(&self.guard), self.events.clone());
        thread::spawn(move || {
            let fence = acquire(&lock, deadline).map(|guard| {
                let fence = guard.as_ref().map(Guard::fence);
                // The guard of a grant that was lost before the command started is dropped here.
                *held.lock().unwrap_or_else(PoisonError::into_inner) = guard;
                fence
            });
            // The receiver may be gone after a signal.
            let _ = events.send(Event::Waited(fence));
        });
    }

    /// Returns true if the lock is not held, or was lost.
    pub fn is_lost(&self) -> bool {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().is_none_or(Guard::is_lost)
    }

    /// Cancels the wait, on another thread.
    pub fn cancel(&self) {
        let lock = self.lock.clone();
        thread::spawn(move || {
            while !lock.cancel() {
                thread::sleep(CANCEL_AGAIN);
            }
        });
    }

    /// Waits until nothing is left of a cancelled wait or a lost lock, if the server replies.
    pub fn settle(&self) {
        let locks = self.locks.clone();
        let (sender, settled) = mpsc::channel();
        thread::spawn(move || {
            locks.settled();
            sender.send(())
        });
        let _ = settled.recv_timeout(SETTLED_WITHIN);
    }

    /// Releases the lock. Returns false if the lock had been lost.
    pub fn release(&self) -> bool {
        self.end(Guard::release)
    }

    /// Lets the lock expire after `rest`. Returns false if the lock had been lost.
    pub fn release_after(&self, rest: Duration) -> bool {
        self.end(move |guard| guard.release_after(rest))
    }

    fn end(&self, by: impl FnOnce(Guard) -> Result<bool, Error>) -> bool {
        let guard = self
            .guard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match guard {
            None => true,
            Some(guard) if guard.is_lost() => {
                // The drop doesn't wait for a server. It releases the keys that are not lost in the
                // background.
                drop(guard);
                self.settle();
                false
            }
            Some(guard) => by(guard).unwrap_or_else(|error| {
                let failure = error_of(error).to_string();
                output::log(format_args!("{}: {}", self.ends, output::line(&failure)));
                true
            }),
        }
    }
}

/// Logs that a server is away while `run` goes on.
struct Log;

impl Observer for Log {
    fn lost(&self, _lock: &Subject<'_>) {}

    fn unavailable(&self, error: &Error) {
        output::log(format_args!(
            "tries again: {}",
            output::line(&error.to_string())
        ));
    }
}

fn acquire(lock: &Lock, deadline: Option<Instant>) -> Result<Option<Guard>> {
    let guard = match deadline {
        None => lock.acquire().map(Some),
        Some(end) => lock.acquire_within(end.saturating_duration_since(Instant::now())),
    };
    guard.map_err(error_of)
}

/// Returns the error with its message once, because an error of the redis crate is also its own
/// cause.
fn error_of(error: Error) -> anyhow::Error {
    match error {
        Error::Redis(error) => anyhow!(nodes::message_of(&error)),
        Error::NotReplicated(text) => anyhow!("NOREPLICAS {text}"),
        other => anyhow!(other.to_string()),
    }
}

fn locks(server: &Server, is_cluster: bool) -> Result<Locks> {
    let info = nodes::connection_info(server)?;
    let connector = streams::connector(info.addr(), &server.tls)?;
    let client = Client::open(info)?;
    let config = match is_cluster {
        true => Config::cluster([client]),
        false => client.into(),
    };
    let config = config.command_timeout(server.timeout)?.connector(connector);
    Ok(Locks::new(config.observer(Log)))
}

/// Returns the options of the lock. No lease is shorter than `--at-least`, so the lock stays that
/// long even if redis-lock is killed. It is still renewed at a third of `--lease`, so a loss is
/// noticed as early as without `--at-least`. It is renewed as long as the command runs.
fn client_options(run: &Run) -> Options {
    let lease = run.at_least.map_or(run.lease, |least| least.max(run.lease));
    let options = Options::new().lease(lease).renew_every(run.lease / 3);
    let options = options.without_max_hold();
    let options = match run.permits {
        Some(permits) => options.limit(permits.limit).permits(permits.count),
        None if run.shared => options.shared(),
        None => options,
    };
    let options = match run.session {
        true => options.session(),
        false => options,
    };
    let options = match &run.data {
        Some(data) => options.data(data.as_bytes()),
        None => options,
    };
    match run.replicas {
        Some(replicas) => options.replicas(replicas),
        None => options,
    }
}
