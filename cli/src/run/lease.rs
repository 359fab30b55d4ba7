//! The lock that a command runs under: taken, renewed and given back by the client library.

use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use redis::cluster::ClusterClientBuilder;
use redis::{ConnectionAddr, TlsMode};
use redis_lock_client::{Error, Guard, Lock, Locks, Options};

use super::news::News;
use crate::arguments::{Run, Server};
use crate::info;
use crate::nodes::{self, Nodes};
use crate::shown;

/// How long a server that doesn't answer keeps us from ending. What it couldn't be told ends with the
/// lease, or a wait with its connection.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How often a wait is told that it is given up: the first time it may not have begun.
const TELL_AGAIN: Duration = Duration::from_millis(5);

/// How long the lock is waited for.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Until(Instant),
    ForEver,
}

impl Patience {
    fn of(options: &Run) -> Patience {
        match options.wait {
            _ if options.nonblock => Patience::None,
            None => Patience::ForEver,
            Some(Duration::ZERO) => Patience::None,
            Some(wait) => Instant::now()
                .checked_add(wait)
                .map_or(Patience::ForEver, Patience::Until),
        }
    }
}

pub struct Lease {
    patience: Patience,
    lock: Lock,
    /// What ends the lock if the server can't be asked at the end, in words.
    ends: &'static str,
    token: String,
    guard: Arc<Mutex<Option<Guard>>>,
    news: Sender<News>,
    nodes: Nodes,
}

impl Lease {
    pub fn new(server: &Server, options: &Run, news: Sender<News>) -> Result<Lease> {
        // Whoever has no server, no rights or no module is told so before the wait.
        let nodes = Nodes::connect(server)?;
        let keys = [&options.key].into_iter().chain(&options.keys);
        let keys: Vec<Vec<u8>> = keys.map(|key| key.as_bytes().to_vec()).collect();
        let lost = news.clone();
        // Nobody listens any more once the command has ended.
        let on_lost = move || drop(lost.send(News::Lost));
        let locks = locks(server, nodes.is_cluster())?;
        let lock = locks.lock_with(keys, client_options(options).on_lost(on_lost));
        let token = String::from_utf8(lock.token().to_vec()).context("the token")?;
        Ok(Lease {
            patience: Patience::of(options),
            lock,
            ends: match options.session {
                true => "the lock ends with its connection",
                false => "the lock stays until its lease ends",
            },
            token,
            guard: Arc::default(),
            news,
            nodes,
        })
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Who stands before us, in words; none where nobody does.
    pub fn rivals(&mut self, key: &[u8]) -> Result<Option<String>> {
        let lock = self.nodes.lock(key, 0)?;
        Ok(lock.map(|lock| info::told(key, &lock)))
    }

    /// Begins to wait, or goes on with it. The end of it is news.
    pub fn wait(&self) {
        let (lock, held, news) = (
            self.lock.clone(),
            Arc::clone(&self.guard),
            self.news.clone(),
        );
        let patience = self.patience;
        thread::spawn(move || {
            let fence = taken(&lock, patience).map(|guard| {
                let fence = guard.as_ref().map(Guard::fence);
                // One that was lost before the command could start ends here.
                *held.lock().unwrap_or_else(PoisonError::into_inner) = guard;
                fence
            });
            // Nobody listens where a signal came first.
            let _ = news.send(News::Waited(fence));
        });
    }

    /// Whether there is no lock any more.
    pub fn is_lost(&self) -> bool {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().is_none_or(Guard::is_lost)
    }

    /// Has the wait end soon.
    pub fn cancel(&self) {
        let lock = self.lock.clone();
        thread::spawn(move || {
            while !lock.cancel() {
                thread::sleep(TELL_AGAIN);
            }
        });
    }

    /// Gives the lock back; false if it had been lost.
    pub fn release(&self) -> bool {
        self.end(Guard::release)
    }

    /// Leaves the lock to end by itself when so much time has passed; false if it had been lost.
    pub fn release_after(&self, rest: Duration) -> bool {
        self.end(move |guard| guard.release_after(rest))
    }

    fn end(&self, by: impl FnOnce(Guard) -> Result<bool, Error> + Send + 'static) -> bool {
        let guard = self
            .guard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(guard) = guard else {
            return true;
        };
        if guard.is_lost() {
            // There is nothing to give back, and a server that is away isn't to be waited for.
            mem::forget(guard);
            return false;
        }
        let (sender, released) = mpsc::channel();
        thread::spawn(move || sender.send(by(guard)));
        let failure = match released.recv_timeout(ANSWER_WITHIN) {
            Ok(Ok(released)) => return released,
            Ok(Err(error)) => told(error).to_string(),
            Err(_) => "the server doesn't answer".to_owned(),
        };
        shown::tell(format_args!("{}: {}", self.ends, shown::line(&failure)));
        true
    }
}

/// Takes the lock. The server is asked once more whether it is held: an answer that lay there while this
/// process stood still tells of a lock that may be over.
fn taken(lock: &Lock, patience: Patience) -> Result<Option<Guard>> {
    loop {
        let guard = match patience {
            Patience::ForEver => lock.acquire().map(Some),
            Patience::None => lock.try_acquire(),
            Patience::Until(end) => {
                lock.acquire_within(end.saturating_duration_since(Instant::now()))
            }
        };
        match guard.map_err(told)? {
            Some(guard) if guard.left().map_err(told)?.is_zero() => drop(guard),
            guard => return Ok(guard),
        }
    }
}

/// What went wrong, said once: an error of the redis crate has itself for its cause.
fn told(error: Error) -> anyhow::Error {
    match error {
        Error::Redis(error) => anyhow!(nodes::told(&error)),
        other => other.into(),
    }
}

fn locks(server: &Server, is_cluster: bool) -> Result<Locks> {
    if !is_cluster {
        return Ok(Locks::new(nodes::client(
            server,
            nodes::connection_info(server)?,
        )?));
    }
    let first = nodes::connection_info(server)?;
    let mut builder = ClusterClientBuilder::new([first.clone()]);
    if let ConnectionAddr::TcpTls { insecure, .. } = first.addr() {
        // Certificates alone would have those of the nodes verified.
        builder = builder.tls(match insecure {
            true => TlsMode::Insecure,
            false => TlsMode::Secure,
        });
        builder = builder.certs(nodes::certificates(server)?);
    }
    Ok(Locks::cluster(builder)?)
}

/// Returns the options of the lock. No lease is shorter than `--at-least`, so the lock stays that long also if nobody
/// is left to extend it. It is renewed at a third of `--lease` all the same, so a loss is noticed as soon.
fn client_options(run: &Run) -> Options {
    let lease = run.at_least.map_or(run.lease, |least| least.max(run.lease));
    let options = Options::new().lease(lease).renew_every(run.lease / 3);
    let options = match run.permits {
        Some(permits) => options.semaphore(permits.limit, permits.count),
        None if run.shared => options.shared(),
        None => options,
    };
    match run.session {
        true => options.session(),
        false => options,
    }
}
