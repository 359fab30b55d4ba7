//! Commands, each sent to the server of its key, and sent again after an outage.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep_until, timeout_at, Instant};

use crate::background::Background;
use crate::connections::{Connections, Link};
use crate::error::{Error, Failure, Kind};
use crate::mutex::Mutex;
use crate::observer::{tell, Observer};
use crate::options::Keys;
use crate::servers::Config;

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

/// Pauses before the next try. Returns false if the time is over first.
pub(crate) async fn paused(pause: &mut Duration, until: Instant) -> bool {
    let next = Instant::now() + *pause;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
    sleep_until(next.min(until)).await;
    next < until
}

/// The commands of one call of the program.
pub(crate) struct Call {
    pub(crate) token: Vec<u8>,
    pub(crate) background: Background,
    /// The number of commands that got no reply, and may still arrive.
    pub(crate) unanswered: usize,
}

impl Call {
    pub(crate) fn new(token: Vec<u8>, background: Background) -> Call {
        Call {
            token,
            background,
            unanswered: 0,
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

/// Sends commands for the locks of one client.
pub(crate) struct Commands {
    pub(crate) connections: Connections,
    pub(crate) timeout: Duration,
    pub(crate) observer: Arc<dyn Observer>,
    /// The key of the outage that the observer knows of, and when it heard of it.
    known_outage: Mutex<Option<(Vec<u8>, Instant)>>,
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
        }
    }

    /// Sends a command once, and returns its reply, which the server may hold back for `blocks`. The
    /// slot has a connection while no command of it waits for a reply.
    pub(crate) async fn ask(
        &self,
        slot: &mut Option<Link>,
        key: &[u8],
        command: &Cmd,
        call: &mut Call,
        blocks: Duration,
        until: Instant,
    ) -> Result<Value, Failure> {
        let (connections, name) = (&self.connections, &self.connections.servers.name);
        let link = slot.get_or_insert_with(|| connections.own(&call.background));
        let (link, asked_at) = (link.clone(), Instant::now());
        let late = || Failure::late(name, until.saturating_duration_since(asked_at));
        let Ok(opened) = timeout_at(until, link.clone()).await else {
            return Err(late());
        };
        *slot = None;
        let mut wire = opened.inspect_err(|_| connections.forget(asked_at))?;
        call.unanswered += 1;
        let failure = match timeout_at(until, wire.send(key, command)).await {
            Ok(Ok(reply)) => {
                call.unanswered -= 1;
                self.replied(key);
                *slot = Some(link);
                return Ok(reply);
            }
            Ok(Err(error)) => {
                call.unanswered -= usize::from(error.code().is_some());
                Failure::of(error, name, &call.token)
            }
            Err(_) => late(),
        };
        match failure.kind {
            // A connection isn't dead because a short limit is over.
            Kind::Late if asked_at.elapsed() < blocks + connections.attempt.mul_f64(0.9) => {}
            Kind::Late | Kind::Broken => connections.forget(asked_at),
            Kind::Refused | Kind::Final => *slot = Some(link),
        }
        Err(failure)
    }

    /// Repeats a command after outages, until it has a reply or the time is over. Returns the reply
    /// and when the command was sent, or `None` if there is no command any more. The connection of a
    /// session isn't replaced if it breaks.
    pub(crate) async fn retry(
        &self,
        session: Option<&Link>,
        key: &[u8],
        command: &(dyn Fn() -> Option<Cmd> + Sync),
        call: &mut Call,
        until: Instant,
        caller: Caller,
    ) -> Result<Option<(Value, Instant)>, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let asked_at = Instant::now();
            let Some(command) = command() else {
                return Ok(None);
            };
            let (link, end) = match session {
                Some(link) => (link.clone(), until),
                None => {
                    let attempt = asked_at + self.connections.attempt;
                    (
                        self.connections.shared(&call.background),
                        until.min(attempt),
                    )
                }
            };
            let slot = &mut Some(link);
            let asked = self.ask(slot, key, &command, call, Duration::ZERO, end);
            let failure = match asked.await {
                Ok(reply) => return Ok(Some((reply, asked_at))),
                Err(failure) => failure,
            };
            let is_session_over = session.is_some() && failure.kind == Kind::Broken;
            if is_session_over || !failure.is_outage() {
                return Err(failure);
            }
            if caller == Caller::HasLeft {
                self.report(key, &failure);
            }
            if !paused(&mut pause, until).await {
                return Err(failure);
            }
        }
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

    /// Tells the observer of an outage, once until the server replies again.
    pub(crate) fn report(&self, key: &[u8], failure: &Failure) {
        let mut known = self.known_outage.lock();
        if known.as_ref().is_none_or(|(_, at)| at.elapsed() >= OUTAGE) {
            *known = Some((key.to_vec(), Instant::now()));
            drop(known);
            self.unavailable(&failure.error);
        }
    }

    pub(crate) fn unavailable(&self, error: &Error) {
        tell(|| self.observer.unavailable(error));
    }

    /// Notes that the server of a key replies. In a cluster another server may still be down.
    fn replied(&self, key: &[u8]) {
        let is_cluster = self.connections.servers.is_cluster;
        let mut known = self.known_outage.lock();
        known.take_if(|(of, _)| !is_cluster || of == key);
    }
}
