//! Commands, each sent to the server of its key, and sent again after an outage.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout_at, Instant};

use crate::background::Background;
use crate::connections::{Connections, Lane, Link};
use crate::error::{Error, Failure};
use crate::mutex::Mutex;
use crate::observer::{tell, Observer};
use crate::options::Keys;
use crate::servers::Config;
use crate::tie::Tie;

/// The pause after the first failure, and the longest one.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest time of one attempt, unless the command timeout is shorter.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The longest time for which an outage that ended unseen hides the next one.
const OUTAGE: Duration = Duration::from_secs(60);

/// A time that is as good as none.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Returns `from + by`, or a time in 100 years if that is earlier, because the clock may not have
/// later ones.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(NEVER)
}

/// The commands of one call of the program.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) token: Vec<u8>,
    pub(crate) background: Background,
    /// The number of commands that got no reply, and may still arrive.
    pub(crate) unanswered: usize,
    /// The longest BLOCK of the next command.
    pub(crate) blocks: Duration,
}

impl Call {
    pub(crate) fn new(token: Vec<u8>, background: Background) -> Call {
        Call {
            token,
            background,
            unanswered: 0,
            blocks: Duration::ZERO,
        }
    }
}

/// The caller of a command that is repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Waits,
    /// Nobody hears of an outage but the observer.
    HasLeft,
}

/// The pauses before each next try.
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Pauses {
        Pauses(FIRST_PAUSE)
    }

    /// Pauses before the next try. Returns false if there is no time for one.
    pub(crate) async fn pause(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let before_last = left.saturating_sub(FIRST_PAUSE);
        let rest = match before_last.is_zero() {
            true => left,
            false => before_last,
        };
        sleep(self.0.min(rest)).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Sends commands for the locks of one client.
pub(crate) struct Commands {
    pub(crate) connections: Arc<Connections>,
    pub(crate) timeout: Duration,
    pub(crate) observer: Arc<dyn Observer>,
    /// The key of the outage that the observer knows of, and when it heard of it.
    known_outage: Mutex<Option<(Vec<u8>, Instant)>>,
    has_outage: AtomicBool,
}

impl Commands {
    pub(crate) fn new(config: Config) -> Commands {
        let timeout = config.command_timeout;
        // There is time for another server.
        let attempt = (timeout / 3).max(timeout.min(SHORTEST_ATTEMPT));
        Commands {
            connections: Connections::new(config.servers, attempt),
            timeout,
            observer: config.observer,
            known_outage: Mutex::default(),
            has_outage: AtomicBool::new(false),
        }
    }

    pub(crate) fn attempt(&self) -> Duration {
        self.connections.attempt
    }

    /// Sends a command once, and returns its reply.
    pub(crate) async fn ask(
        &self,
        mut lane: Lane<'_>,
        key: &[u8],
        command: &Cmd,
        call: &mut Call,
        until: Instant,
    ) -> Result<Value, Failure> {
        let (connections, began) = (&self.connections, Instant::now());
        let within = until.saturating_duration_since(began);
        if within.is_zero() {
            return Err(Failure::late(connections.name(), within));
        }
        let taken = connections.take(&mut lane, &call.background, until).await;
        let mut link = taken?;
        if let Lane::Tied(tie) = lane {
            tie.sends(&link);
        }
        let sent_at = Instant::now();
        call.unanswered += 1;
        let sent = timeout_at(until, link.send(key, command)).await;
        let error = match sent {
            Ok(Ok(reply)) => {
                call.unanswered -= 1;
                self.replied(key);
                keep(&mut lane, link);
                return Ok(reply);
            }
            Ok(Err(error)) => error,
            Err(_) => {
                // A connection isn't dead because a short limit is over.
                if began.elapsed() >= call.blocks + connections.attempt.mul_f64(0.9) {
                    connections.forget(sent_at);
                }
                return Err(Failure::late(connections.name(), within));
            }
        };
        match error.code() {
            // The connection leads to a server that has lost the key.
            Some("MOVED") | None => connections.forget(sent_at),
            Some(_) => keep(&mut lane, link),
        }
        call.unanswered -= usize::from(error.code().is_some());
        Err(Failure::of(error, connections.name(), &call.token))
    }

    /// Returns the replies to a command about each key, within the command timeout.
    pub(crate) async fn of_each_key(
        &self,
        keys: &Keys,
        command: impl Fn(&[u8]) -> Cmd + Sync,
        call: &mut Call,
    ) -> Result<Vec<Value>, Failure> {
        let until = Instant::now() + self.timeout;
        let mut replies = Vec::new();
        for key in keys.iter() {
            let command = || Some(command(key));
            let asked = self.retry(None, key, &command, call, until, Caller::Waits);
            replies.extend(asked.await?.map(|(reply, _)| reply));
        }
        Ok(replies)
    }

    /// Repeats a command after outages, until it has a reply or the time is over. Returns the reply
    /// and when the command was sent, or `None` if there is no command any more.
    pub(crate) async fn retry(
        &self,
        tie: Option<&Tie>,
        key: &[u8],
        command: &(dyn Fn() -> Option<Cmd> + Sync),
        call: &mut Call,
        until: Instant,
        caller: Caller,
    ) -> Result<Option<(Value, Instant)>, Failure> {
        let (mut pauses, mut cause) = (Pauses::new(), None);
        loop {
            let asked_at = Instant::now();
            let Some(command) = command() else {
                return Ok(None);
            };
            let lane = tie.map_or(Lane::Shared, Lane::Tied);
            let end = until.min(asked_at + self.attempt());
            let failure = match self.ask(lane, key, &command, call, end).await {
                Ok(reply) => return Ok(Some((reply, asked_at))),
                Err(failure) if failure.is_outage() => failure,
                Err(failure) => return Err(failure),
            };
            // A last try that had little time says nothing about the cause.
            let has_time = until.saturating_duration_since(asked_at) > FIRST_PAUSE;
            let latest = match cause {
                Some(earlier) if !has_time => earlier,
                _ => failure,
            };
            if caller == Caller::HasLeft {
                self.report(key, &latest);
            }
            if !pauses.pause(until).await {
                return Err(latest);
            }
            cause = Some(latest);
        }
    }

    /// Tells the observer of an outage, once until the server replies again.
    pub(crate) fn report(&self, key: &[u8], failure: &Failure) {
        let mut known = self.known_outage.lock();
        if known.as_ref().is_some_and(|(_, at)| at.elapsed() < OUTAGE) {
            return;
        }
        *known = Some((key.to_vec(), Instant::now()));
        self.has_outage.store(true, Ordering::Release);
        drop(known);
        self.unavailable(&Error::from(failure.clone()));
    }

    pub(crate) fn unavailable(&self, error: &Error) {
        tell(|| self.observer.unavailable(error));
    }

    /// Notes that the server of a key replies. In a cluster another server may still be down.
    fn replied(&self, key: &[u8]) {
        if !self.has_outage.load(Ordering::Acquire) {
            return;
        }
        let is_cluster = self.connections.servers.is_cluster();
        let mut known = self.known_outage.lock();
        known.take_if(|(of, _)| !is_cluster || of == key);
        self.has_outage.store(known.is_some(), Ordering::Release);
    }
}

/// Keeps the connection of a command that got its reply.
fn keep(lane: &mut Lane<'_>, link: Link) {
    match lane {
        Lane::Shared => {}
        Lane::Own(slot) => **slot = Some(link),
        Lane::Tied(tie) => tie.replied(&link),
    }
}
