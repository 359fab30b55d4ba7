//! Commands, each sent to the server of its key, and sent again after an outage.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use redis::{cmd, Cmd, Value};
use tokio::time::{sleep, sleep_until, timeout_at, Instant};

use crate::background::Background;
use crate::error::Error;
use crate::mutex::Mutex;
use crate::observer::{tell, Observer};
use crate::recipe::Recipe;
use crate::servers::{Config, Wire};

/// The pause after the first failure, and the longest one.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest time of one attempt, unless the command timeout is shorter.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The longest time for which an outage that ended unseen hides the next one.
const OUTAGE: Duration = Duration::from_secs(60);

/// The most unused connections that stay open.
const MOST_IDLE: usize = 16;

/// The time in which a runtime closes a connection that was dropped.
const TIME_TO_CLOSE: Duration = Duration::from_millis(10);

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

/// The caller of a command that is repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Waits,
    /// Nobody hears of an outage but the observer.
    HasLeft,
}

/// A connection that is open, or opens. Clones are the same connection.
pub(crate) type Link = Shared<BoxFuture<'static, Result<Wire, Error>>>;

/// The connections of a `Locks`, and what its commands have in common.
pub(crate) struct Commands {
    pub(crate) config: Config,
    /// The longest time of one command.
    pub(crate) attempt: Duration,
    /// The connection that calls share, and when it began to open.
    shared: Mutex<Option<(Instant, Link)>>,
    idle: Mutex<Vec<Link>>,
    /// The key of the outage that the observer knows of, and when it heard of it.
    known_outage: Mutex<Option<(Vec<u8>, Instant)>>,
}

impl Commands {
    pub(crate) fn new(config: Config) -> Commands {
        let timeout = config.command_timeout;
        Commands {
            // There is time for another server.
            attempt: (timeout / 3).max(timeout.min(SHORTEST_ATTEMPT)),
            config,
            shared: Mutex::default(),
            idle: Mutex::default(),
            known_outage: Mutex::default(),
        }
    }

    /// Returns the connection for all commands that don't block, so a release never waits behind a
    /// wait.
    pub(crate) fn shared(&self, background: &Background) -> Link {
        let mut shared = self.shared.lock();
        let (_, link) = shared.get_or_insert_with(|| (Instant::now(), self.open(background)));
        link.clone()
    }

    /// Returns a connection that no other caller has.
    pub(crate) fn own(&self, background: &Background) -> Link {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| self.open(background))
    }

    /// Opens a connection, also if its caller leaves meanwhile.
    fn open(&self, background: &Background) -> Link {
        let link = self.config.clone().open(self.attempt).boxed().shared();
        background.start(link.clone().map(drop));
        link
    }

    /// Keeps a connection for another caller, unless there are many.
    pub(crate) fn put_back(&self, link: Link) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push(link);
        }
    }

    /// Drops the connections that were there when a command was sent that failed. Their server may
    /// have died silently.
    fn forget(&self, sent_at: Instant) {
        self.idle.lock().clear();
        let mut shared = self.shared.lock();
        shared.take_if(|(opened_at, _)| *opened_at <= sent_at);
    }

    /// Tells the observer of an outage, once until the server replies again.
    pub(crate) fn report(&self, key: &[u8], outage: &Error) {
        let mut known = self.known_outage.lock();
        if known.as_ref().is_none_or(|(_, at)| at.elapsed() >= OUTAGE) {
            *known = Some((key.to_vec(), Instant::now()));
            drop(known);
            self.tell(|it| it.unavailable(outage));
        }
    }

    /// Returns the end of a call that begins now.
    pub(crate) fn ends(&self) -> Instant {
        Instant::now() + self.config.command_timeout
    }

    /// Returns the outage of a command that got no reply in time.
    pub(crate) fn late(&self, within: Duration) -> Error {
        Error::late(&self.config.name, within)
    }

    /// Tells the observer of an event.
    pub(crate) fn tell(&self, event: impl FnOnce(&dyn Observer)) {
        tell(|| event(&*self.config.observer));
    }

    /// Notes that the server of a key replies. In a cluster another server may still be down.
    fn replied(&self, key: &[u8]) {
        let is_cluster = self.config.is_cluster;
        let mut known = self.known_outage.lock();
        known.take_if(|(of, _)| !is_cluster || of == key);
    }
}

/// The commands of one token.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) commands: Arc<Commands>,
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) token: Vec<u8>,
    pub(crate) background: Background,
    /// The number of commands that got no reply, and may still arrive.
    pub(crate) unanswered: usize,
}

impl Call {
    /// Closes a connection after a time.
    pub(crate) fn close(&self, link: Link, after: Duration) {
        self.background.start(async move {
            sleep(after).await;
            drop(link);
            sleep(TIME_TO_CLOSE).await;
        });
    }

    /// Sends a command once, and returns its reply, which the server may hold back for `blocks`.
    /// The slot has a connection while no command of it waits for a reply.
    pub(crate) async fn ask(
        &mut self,
        slot: &mut Option<Link>,
        command: &Cmd,
        blocks: Duration,
        until: Instant,
    ) -> Result<Value, Error> {
        let (commands, key) = (&self.commands, self.recipe.key());
        let link = slot.get_or_insert_with(|| commands.own(&self.background));
        let (link, asked_at) = (link.clone(), Instant::now());
        let late = || commands.late(until.saturating_duration_since(asked_at));
        let Ok(opened) = timeout_at(until, link.clone()).await else {
            return Err(late());
        };
        *slot = None;
        let mut wire = opened.inspect_err(|_| commands.forget(asked_at))?;
        let sent_at = Instant::now();
        self.unanswered += 1;
        let failure = match timeout_at(until, wire.send(key, command)).await {
            Ok(Ok(reply)) => {
                self.unanswered -= 1;
                commands.replied(key);
                *slot = Some(link);
                return Ok(reply);
            }
            Ok(Err(error)) => {
                self.unanswered -= usize::from(error.code().is_some());
                Error::of(error, &commands.config.name, &self.token)
            }
            Err(_) => late(),
        };
        // A connection isn't dead because a short limit is over, or because it opened slowly.
        let is_silent = sent_at.elapsed() >= blocks + commands.attempt.mul_f64(0.9);
        if failure.is_broken() || failure.is_late() && is_silent {
            commands.forget(asked_at);
        } else if !failure.is_late() {
            *slot = Some(link);
        }
        Err(failure)
    }

    /// Repeats a command after outages, until it has a reply or the time is over. Returns the reply
    /// and when the command was sent, or `None` if there is no command any more. The connection of
    /// a session isn't replaced if it breaks.
    pub(crate) async fn retry(
        &mut self,
        session: Option<&Link>,
        command: impl Fn() -> Option<Cmd>,
        until: Instant,
        caller: Caller,
    ) -> Result<Option<(Value, Instant)>, Error> {
        let (commands, mut pause) = (Arc::clone(&self.commands), FIRST_PAUSE);
        loop {
            let asked_at = Instant::now();
            let Some(command) = command() else {
                return Ok(None);
            };
            let attempt = until.min(asked_at + commands.attempt);
            let (link, end) = match session {
                Some(link) => (link.clone(), until),
                None => (commands.shared(&self.background), attempt),
            };
            let mut slot = Some(link);
            let failure = match self.ask(&mut slot, &command, Duration::ZERO, end).await {
                Ok(reply) => return Ok(Some((reply, asked_at))),
                Err(failure) => failure,
            };
            let is_session_over = session.is_some() && failure.is_broken();
            if is_session_over || !failure.is_outage() {
                return Err(failure);
            }
            if caller == Caller::HasLeft {
                commands.report(self.recipe.key(), &failure);
            }
            if !paused(&mut pause, until).await {
                return Err(failure);
            }
        }
    }

    /// Returns the replies to a command about each key, within the command timeout.
    pub(crate) async fn of_each_key(
        mut self,
        verb: &str,
        words: &[&[u8]],
    ) -> Result<Vec<Value>, Error> {
        let (recipe, until) = (Arc::clone(&self.recipe), self.commands.ends());
        let mut replies = Vec::new();
        for key in recipe.keys.iter() {
            let mut command = cmd(verb);
            command.arg(key).arg(words);
            let asked = self.retry(None, || Some(command.clone()), until, Caller::Waits);
            replies.extend(asked.await?.map(|(reply, _)| reply));
        }
        Ok(replies)
    }
}
