//! The lock of the command, which the client library acquires, renews and releases.

use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use redis::ConnectionAddr;
use redis_lock_client::{Cancel, Config, Error, Grant, Lock, Locks, Observer, Options, Subject};

use super::events::Event;
use crate::arguments::{Run, Server};
use crate::nodes;
use crate::output;

/// The longest time that the end of redis-lock waits for a server to forget a cancelled wait or a
/// lost lock. After that, they end with their connection or lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);

pub struct Lease {
    /// The end of the wait, or `None` if it has none.
    deadline: Option<Instant>,
    locks: Locks,
    lock: Lock,
    /// A text that says when the lock ends if the server doesn't reply at the end.
    ends: &'static str,
    grant: Arc<Mutex<Option<Grant>>>,
    cancel: Cancel,
    events: Sender<Event>,
}

impl Lease {
    pub fn new(
        server: &Server,
        options: &Run,
        deadline: Option<Instant>,
        primaries: Vec<ConnectionAddr>,
        events: Sender<Event>,
    ) -> Result<Lease> {
        let keys = [&options.key].into_iter().chain(&options.keys);
        let keys: Vec<Vec<u8>> = keys.map(|key| key.as_bytes().to_vec()).collect();
        let lost = events.clone();
        // The receiver is gone once the command has ended.
        let on_lost = move |_: &Subject<'_>| drop(lost.send(Event::Lost));
        let locks = locks(server, keys[0].clone(), primaries)?;
        let lock = locks.lock_with(keys, client_options(options).on_lost(on_lost))?;
        Ok(Lease {
            deadline,
            locks,
            lock,
            ends: match options.session {
                true => "the lock ends with its connection",
                false => "the lock stays until its lease ends",
            },
            grant: Arc::default(),
            cancel: Cancel::new(),
            events,
        })
    }

    /// Returns the token of the grant, or an empty text without a grant.
    pub fn token(&self) -> String {
        let grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        let token = grant
            .as_ref()
            .map(|grant| String::from_utf8_lossy(grant.token()).into_owned());
        token.unwrap_or_default()
    }

    /// Starts or resumes the wait. Its end is sent as an event.
    pub fn wait(&self) {
        let (lock, deadline, cancel) = (self.lock.clone(), self.deadline, self.cancel.clone());
        let (held, events) = (Arc::clone(&self.grant), self.events.clone());
        thread::spawn(move || {
            let limit = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            let fence = lock.acquire_unless(limit, &cancel).map(|grant| {
                let fence = grant.as_ref().map(Grant::fence);
                // A grant that was lost before the command started is dropped here.
                *held.lock().unwrap_or_else(PoisonError::into_inner) = grant;
                fence
            });
            // The receiver may be gone after a signal.
            let _ = events.send(Event::Waited(fence.map_err(error_of)));
        });
    }

    /// Returns true if the lock is not held, or was lost.
    pub fn is_lost(&self) -> bool {
        let grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        grant.as_ref().is_none_or(Grant::is_lost)
    }

    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until nothing is left of a cancelled wait or a lost lock, if the server replies.
    pub fn settle(&self) {
        let locks = self.locks.clone();
        let (sender, settled) = mpsc::channel();
        thread::spawn(move || {
            let _ = locks.settled();
            sender.send(())
        });
        let _ = settled.recv_timeout(SETTLED_WITHIN);
    }

    /// Releases the lock. Returns false if the lock had been lost.
    pub fn release(&self) -> bool {
        self.end(Grant::release)
    }

    /// Lets the lock expire after `rest`. Returns false if the lock had been lost.
    pub fn release_after(&self, rest: Duration) -> bool {
        self.end(move |grant| grant.release_after(rest))
    }

    fn end(&self, by: impl FnOnce(Grant) -> Result<bool, Error>) -> bool {
        let mut held = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        match held.take() {
            None => true,
            Some(grant) if grant.is_lost() => {
                // The drop doesn't wait for a server. It releases the keys that are not lost in the
                // background.
                drop(grant);
                self.settle();
                false
            }
            Some(grant) => by(grant).unwrap_or_else(|error| {
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
        let text = output::line(&text_of(error));
        // In a thread of its own, because a terminal that is stopped must not stop the renewals.
        let log = move || output::log(format_args!("tries again: {text}"));
        let _ = thread::Builder::new().spawn(log);
    }
}

/// Returns the error with its message once, because an error of the redis crate is also its own
/// cause.
fn error_of(error: Error) -> anyhow::Error {
    anyhow!(text_of(&error))
}

/// Returns the message of the library, with the words of this command for those of the redis crate.
fn text_of(error: &Error) -> String {
    match error {
        Error::Redis(cause) => nodes::message_of(cause),
        Error::NotReplicated(text) => format!("NOREPLICAS {text}"),
        Error::Unavailable {
            text,
            cause: Some(cause),
        } => text.replace(&cause.to_string(), &nodes::message_of(cause)),
        other => other.to_string(),
    }
}

fn locks(server: &Server, key: Vec<u8>, primaries: Vec<ConnectionAddr>) -> Result<Locks> {
    let name = match primaries.as_slice() {
        [] => nodes::connection_info(server)?.addr().to_string(),
        _ => "the cluster".to_owned(),
    };
    let open = nodes::opener(server, key, primaries)?;
    let config = Config::opened_by(name, open);
    let config = config.command_timeout(server.timeout)?;
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
