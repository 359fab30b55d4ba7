//! How a task takes a lock, by LOCK.QUEUE, and gives it back.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch, Mutex as Turns, Notify};
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::bells::Ear;
use super::lines::{too_late, Line};
use super::Guard;
use crate::commands::{answer, left, Answer, Commands};
use crate::error::{may_pass, Backoff, Error};
use crate::grant::{later, Grant, Leave};
use crate::lines::ANSWER_WITHIN;
use crate::options::Renewal;

/// How long each of the two commands may take that leave nothing behind.
const GIVEN_UP_WITHIN: Duration = Duration::from_millis(150);

/// By how much a wait may be late while those are under way. After this they go on without it.
const GRACE: Duration = Duration::from_millis(350);

/// How long a command may take whose connection has no time limit of its own.
const AT_MOST: Duration = Duration::from_secs(2);

/// Where there is no end to a wait.
const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What all locks of one `Locks` share.
pub(crate) struct Shared {
    line: Box<dyn Line>,
    ear: Box<dyn Ear>,
    runtime: Handle,
    /// How many tasks are left that nobody waits for.
    left_alone: Arc<watch::Sender<usize>>,
}

/// What goes on in a task of its own.
struct Work {
    left_alone: Arc<watch::Sender<usize>>,
    is_alone: AtomicBool,
}

impl Work {
    fn leave_alone(&self) {
        if !self.is_alone.swap(true, Ordering::Relaxed) {
            self.left_alone.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if *self.is_alone.get_mut() {
            self.left_alone.send_modify(|count| *count -= 1);
        }
    }
}

/// Waits for a task. When this is dropped the task goes on alone.
struct Awaits(Arc<Work>);

impl Drop for Awaits {
    fn drop(&mut self) {
        self.0.leave_alone();
    }
}

/// Who has the token.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    commands: Commands,
    /// One acquires or releases at a time.
    turn: Arc<Turns<()>>,
    held: Mutex<Option<Arc<Held>>>,
}

pub(crate) struct Held {
    pub(crate) grant: Grant,
    pub(crate) lost: watch::Sender<bool>,
    /// Something else is due, or nothing any more.
    changed: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Try,
    Until(Instant),
    ForEver,
}

impl Patience {
    fn end(self) -> Instant {
        match self {
            Patience::Try => Instant::now() + ANSWER_WITHIN,
            Patience::Until(end) => end,
            Patience::ForEver => later(Instant::now(), LONG),
        }
    }
}

type Taken = Result<Option<Guard>, Error>;

impl Shared {
    pub(crate) fn new(line: Box<dyn Line>, ear: Box<dyn Ear>) -> Shared {
        Shared {
            line,
            ear,
            runtime: Handle::current(),
            left_alone: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(crate) async fn settled(&self) {
        let mut left_alone = self.left_alone.subscribe();
        // It can't fail, as the sender is here.
        let _ = left_alone.wait_for(|count| *count == 0).await;
    }

    /// Runs this in a task of its own, so that whoever waits for it can leave at any time.
    fn spawn<T: Send + 'static>(
        &self,
        runs: impl Future<Output = T> + Send + 'static,
    ) -> (Awaits, JoinHandle<T>) {
        let work = Arc::new(Work {
            left_alone: Arc::clone(&self.left_alone),
            is_alone: AtomicBool::new(false),
        });
        let awaits = Awaits(Arc::clone(&work));
        let task = self.runtime.spawn(async move {
            let done = runs.await;
            drop(work);
            done
        });
        (awaits, task)
    }
}

impl Owner {
    pub(crate) fn new(shared: Arc<Shared>, commands: Commands) -> Owner {
        Owner {
            shared,
            commands,
            turn: Arc::default(),
            held: Mutex::default(),
        }
    }

    pub(crate) fn token(&self) -> &[u8] {
        &self.commands.token
    }

    pub(crate) async fn take(self: &Arc<Self>, patience: Patience) -> Taken {
        let (mut tell, told) = oneshot::channel();
        let owner = Arc::clone(self);
        let end = patience.end();
        let (_awaits, _) = self.shared.spawn(async move {
            let taken = owner.take_for(&mut tell, patience, end).await;
            // If nobody is there any more, the guard in it releases the lock.
            let _ = tell.send(taken);
        });
        match timeout_at((end + GRACE).into(), told).await {
            Ok(told) => told.unwrap_or(Err(Error::Cancelled)),
            Err(_late) => Ok(None),
        }
    }

    async fn take_for(
        self: &Arc<Self>,
        waits: &mut oneshot::Sender<Taken>,
        patience: Patience,
        end: Instant,
    ) -> Taken {
        let _turn = tokio::select! {
            turn = Arc::clone(&self.turn).lock_owned() => turn,
            () = sleep_until(end.into()) => return Ok(None),
            () = waits.closed() => return Ok(None),
        };
        let before = self.held().clone().filter(|held| held.grant.is_held());
        let holds = before.as_ref().map_or(1, |held| held.grant.holds() + 1);
        let bell = self.shared.ear.bell();
        let channel = match patience {
            Patience::Try => String::new(),
            _ => self.shared.ear.channel(self.commands.route(), end).await,
        };
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            // An answer is always waited for: what is sent behind a command must not overtake it.
            let asked = match patience {
                Patience::Try => self.ask(&self.commands.acquire(holds)).await,
                _ => {
                    self.ask(&self.commands.queue(holds, &channel, bell.number))
                        .await
                }
            };
            let (again, failed) = match asked.and_then(|value| answer(&value)) {
                Ok(Answer::Granted(fence)) => {
                    return Ok(Some(self.granted(before, fence, sent, holds)));
                }
                Ok(Answer::NotNow) if patience == Patience::Try => return Ok(None),
                Ok(Answer::NotNow) => {
                    backoff = Backoff::new();
                    (sent + self.commands.options.keep / 3, None)
                }
                Err(error) if !may_pass(&error) => return Err(error.into()),
                Err(error) => (backoff.next(Some(end)), Some(error.into())),
            };
            let gone = tokio::select! {
                () = bell.rung() => false,
                () = sleep_until(again.min(end).into()) => false,
                () = waits.closed() => true,
            };
            if gone || Instant::now() >= end {
                self.give_up().await;
                return failed.map_or(Ok(None), Err);
            }
        }
    }

    fn granted(
        self: &Arc<Self>,
        before: Option<Arc<Held>>,
        fence: i64,
        sent: Instant,
        holds: u32,
    ) -> Guard {
        let held = match before {
            Some(held) if held.grant.is_again(fence) => {
                held.grant.renewed(sent, self.commands.options.lease);
                held.grant.set_holds(holds);
                held.changed.notify_one();
                held
            }
            before => {
                before.inspect(|held| held.lose());
                let held = Arc::new(Held {
                    grant: Grant::new(fence, sent, &self.commands.options),
                    lost: watch::Sender::new(false),
                    changed: Notify::new(),
                });
                *self.held() = Some(Arc::clone(&held));
                self.shared
                    .runtime
                    .spawn(Arc::clone(self).keep(Arc::clone(&held)));
                held
            }
        };
        Guard {
            owner: Arc::clone(self),
            held,
            released: false,
        }
    }

    /// Renews a grant as long as it is held, and tells of its loss.
    async fn keep(self: Arc<Self>, held: Arc<Held>) {
        while let Some(due) = held.grant.due() {
            tokio::select! {
                () = sleep_until(due.into()) => self.renew(&held).await,
                () = held.changed.notified() => {}
            }
        }
    }

    async fn renew(&self, held: &Held) {
        let sent = Instant::now();
        let lease = held.grant.lease();
        let until = held.grant.until();
        if sent >= until || self.commands.options.renewal == Renewal::Nobody {
            return held.lose();
        }
        let extend = self.commands.extend(lease);
        match timeout_at(until.into(), self.ask(&extend)).await {
            Ok(Ok(answer)) => drop(self.extended(held, &answer, sent, lease)),
            Ok(Err(_)) | Err(_) => held.grant.not_renewed(),
        }
    }

    fn extended(&self, held: &Held, answer: &Value, sent: Instant, lease: Duration) -> bool {
        let extended = self.commands.held_all(answer);
        if extended {
            held.grant.renewed(sent, lease);
            held.changed.notify_one();
        } else {
            held.lose();
        }
        extended
    }

    pub(crate) async fn extend(
        self: &Arc<Self>,
        held: Arc<Held>,
        lease: Duration,
    ) -> Result<bool, Error> {
        let owner = Arc::clone(self);
        let (_awaits, extends) = self.shared.spawn(async move {
            if !held.grant.is_held() {
                return Ok(false);
            }
            let sent = Instant::now();
            let extend = owner.commands.extend(lease);
            let (answer, _) = owner.ask_until(&extend, held.grant.until()).await?;
            Ok(owner.extended(&held, &answer, sent, lease))
        });
        extends.await.unwrap_or(Err(Error::Cancelled))
    }

    pub(crate) async fn release(
        self: &Arc<Self>,
        held: Arc<Held>,
        until: Instant,
    ) -> Result<bool, Error> {
        let (_awaits, releases) = self.spawn_release(held, until);
        releases.await.unwrap_or(Err(Error::Cancelled))
    }

    /// Releases it, and nobody waits for that.
    pub(crate) fn release_alone(self: &Arc<Self>, held: Arc<Held>, until: Instant) {
        drop(self.spawn_release(held, until));
    }

    fn spawn_release(
        self: &Arc<Self>,
        held: Arc<Held>,
        until: Instant,
    ) -> (Awaits, JoinHandle<Result<bool, Error>>) {
        let owner = Arc::clone(self);
        self.shared.spawn(async move {
            let lease_ends = held.grant.until();
            let Ok(_turn) = timeout_at(lease_ends.into(), owner.turn.lock()).await else {
                held.lose();
                return Ok(false);
            };
            owner.leave(&held, until).await
        })
    }

    async fn leave(&self, held: &Arc<Held>, until: Instant) -> Result<bool, Error> {
        let Leave::Holds(holds, lease_ends) = held.grant.leave() else {
            held.lose();
            if self.forget(held) {
                // Some of its keys may be held still.
                let _ = self.ask(&self.commands.release(0)).await;
            }
            return Ok(false);
        };
        if holds == 0 {
            self.forget(held);
            held.changed.notify_one();
        }
        let release = self.commands.release(holds);
        let (answer, sent_again) = self.ask_until(&release, until.min(lease_ends)).await?;
        // Where an answer was lost, that one may have told of the release.
        let released = self.commands.held_all(&answer) || (sent_again && holds == 0);
        if !released {
            held.lose_at_release();
        } else if holds == 0 {
            held.grant.left();
        }
        Ok(released)
    }

    /// Tells whether this was the latest grant.
    fn forget(&self, held: &Arc<Held>) -> bool {
        self.held().take_if(|it| Arc::ptr_eq(it, held)).is_some()
    }

    pub(crate) async fn left(&self) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for check in self.commands.checks() {
            let (value, _) = self
                .ask_until(&check, Instant::now() + ANSWER_WITHIN)
                .await?;
            least = least.min(left(&value)?);
        }
        Ok(least)
    }

    /// Leaves nothing behind: in this order, after the first nothing waits that could be granted.
    async fn give_up(&self) {
        for command in [self.commands.cancel(), self.commands.release(0)] {
            let _ = timeout(GIVEN_UP_WITHIN, self.ask(&command)).await;
        }
    }

    async fn ask_until(&self, command: &Cmd, until: Instant) -> RedisResult<(Value, bool)> {
        let mut backoff = Backoff::new();
        let mut sent_again = false;
        loop {
            match self.ask(command).await {
                Ok(value) => return Ok((value, sent_again)),
                Err(error) if !may_pass(&error) || Instant::now() >= until => return Err(error),
                Err(_) => sleep_until(backoff.next(Some(until)).into()).await,
            }
            sent_again = true;
        }
    }

    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = self.shared.line.ask(command, self.commands.route());
        timeout(AT_MOST, answer)
            .await
            .unwrap_or_else(|_| Err(too_late()))
    }

    fn held(&self) -> MutexGuard<'_, Option<Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn lose(&self) {
        self.grant.lose();
        self.lost.send_replace(self.grant.is_lost());
    }

    fn lose_at_release(&self) {
        self.grant.lose_at_release();
        self.lost.send_replace(self.grant.is_lost());
    }
}
