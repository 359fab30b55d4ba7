//! The state of a grant: it is renewed while it is held, until it is released or lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::sync::watch;
use tokio::time::{sleep_until, Instant};

use crate::background::Background;
use crate::commands::{later, Call, Caller, Commands};
use crate::connections::{close, Link};
use crate::core::Core;
use crate::error::{Error, Failure, Kind};
use crate::mutex::Mutex;
use crate::observer::{tell, Subject};
use crate::options::{not_too_long, positive, OnLost};
use crate::recipe::Recipe;

/// The least time by which a renewal must move the deadline.
const LEAST: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    Lost,
    /// Released, or left to another process.
    Left,
}

pub(crate) struct Hold {
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) token: Vec<u8>,
    pub(crate) fence: i64,
    pub(crate) background: Background,
    core: Arc<Core>,
    /// True if a command that asked for this grant may still arrive.
    is_unclear: bool,
    /// The end of the longest hold.
    longest: Instant,
    /// The connection that the grant of a session is tied to.
    session: Mutex<Option<Link>>,
    phase: watch::Sender<Phase>,
    lease: Mutex<Lease>,
}

/// The times of a grant, by the local monotonic clock.
struct Lease {
    length: Duration,
    /// The time of the loss. It is in the past before the first grant.
    deadline: Instant,
    /// The time at which the grant needs attention. `None` while it has it.
    due: Option<Instant>,
    /// The earliest end of the lock at the server, also if it is released before.
    stays_until: Instant,
}

impl Hold {
    pub(crate) fn new(
        core: &Arc<Core>,
        recipe: &Arc<Recipe>,
        call: &Call,
        fence: i64,
        session: Option<Link>,
    ) -> Arc<Hold> {
        let (options, now) = (&recipe.options, Instant::now());
        Arc::new(Hold {
            recipe: Arc::clone(recipe),
            token: call.token.clone(),
            fence,
            background: call.background.clone(),
            core: Arc::clone(core),
            is_unclear: call.unanswered > 0,
            longest: later(now, options.max_hold.unwrap_or(Duration::MAX)),
            session: Mutex::new(session),
            phase: watch::Sender::new(Phase::Held),
            lease: Mutex::new(Lease {
                length: options.lease,
                deadline: now,
                due: None,
                stays_until: later(now, options.at_least),
            }),
        })
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.recipe.subject(Some(self.fence))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self.phase() {
            Phase::Held => self.left().is_zero(),
            Phase::Lost => true,
            Phase::Left => false,
        }
    }

    /// Returns when the grant is lost, and never if it is released.
    pub(crate) async fn lost(&self) {
        let mut changes = self.phase.subscribe();
        while !self.is_lost() {
            let deadline = self.lease.lock().deadline;
            tokio::select! {
                () = sleep_until(deadline), if self.phase() == Phase::Held => {}
                // It can't fail, because the sender is in `self`.
                _ = changes.changed() => {}
            }
        }
    }

    /// Returns the time until the loss if the lease isn't renewed.
    pub(crate) fn left(&self) -> Duration {
        match self.phase() {
            Phase::Held => {
                let deadline = self.lease.lock().deadline;
                deadline.saturating_duration_since(Instant::now())
            }
            Phase::Lost | Phase::Left => Duration::ZERO,
        }
    }

    // --- the lease --------------------------------------------------------------------------------

    /// Moves the deadline. The lease counts from the request, because the server counts from then or
    /// later.
    pub(crate) fn prolong(&self, length: Duration, asked_at: Instant) {
        let options = &self.recipe.options;
        let mut lease = self.lease.lock();
        let deadline = later(asked_at, length.saturating_sub(self.recipe.margin()));
        lease.deadline = lease.deadline.max(deadline);
        // A late command of the acquire sets its own lease, which may be shorter.
        let shortest = match self.is_unclear {
            true => length.min(self.recipe.first_lease()),
            false => length,
        };
        let renew_at = later(asked_at, options.renew_every.min(shortest / 3));
        let renews = options.renews && lease.deadline + LEAST < self.longest;
        let next = if renews { renew_at } else { lease.deadline };
        lease.due = Some(next.min(lease.deadline));
        drop(lease);
        self.phase.send_modify(|_| {});
    }

    /// Returns when the grant needs attention. `None` if it has it, or has ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = self.lease.lock().due;
        due.filter(|_| self.phase() == Phase::Held)
    }

    /// Returns true, once, if the grant needs attention now.
    pub(crate) fn is_due(&self) -> bool {
        let due = &mut self.lease.lock().due;
        due.take_if(|due| *due <= Instant::now()).is_some()
    }

    /// Renews the grant until it ends.
    pub(crate) async fn look_after(self: Arc<Hold>) {
        let mut changes = self.phase.subscribe();
        while let Some(due) = self.due() {
            tokio::select! {
                () = sleep_until(due) => {}
                _ = changes.changed() => {}
            }
            if self.is_due() {
                Arc::clone(&self).look().await;
            }
        }
    }

    /// Renews the grant, again and again if the server refuses that, or tells of its loss.
    pub(crate) async fn look(self: Arc<Hold>) {
        let mut is_told = false;
        while self.phase() == Phase::Held {
            let (length, deadline) = {
                let lease = self.lease.lock();
                (lease.length, lease.deadline)
            };
            let now = Instant::now();
            if now >= deadline {
                self.lose();
                return;
            }
            let longest = self.longest.saturating_duration_since(now) + self.recipe.margin();
            let renewed = self.extend_by(length.min(longest), deadline, Caller::HasLeft);
            let Err(failure) = renewed.await else {
                return;
            };
            if failure.kind == Kind::Final && !is_told {
                is_told = true;
                self.core.commands.unavailable(&failure.error);
            }
            sleep_until(later(Instant::now(), length / 10).min(deadline)).await;
        }
    }

    pub(crate) async fn extend(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        positive("lease", lease)?;
        if lease <= self.recipe.margin() {
            return Err(Error::argument("lease", "must be longer than the margin"));
        }
        match self.left().is_zero() {
            true => Ok(false),
            false => self.set_lease(lease).await,
        }
    }

    /// Sets the lease, also of a grant that another process acquired.
    pub(crate) async fn set_lease(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        let until = Instant::now() + self.core.commands.timeout;
        let is_held = self.extend_by(lease, until, Caller::Waits).await?;
        if is_held {
            self.lease.lock().length = lease;
        }
        Ok(is_held)
    }

    /// Extends the lease at the server. Returns false if the lock was lost, or released meanwhile.
    async fn extend_by(
        self: &Arc<Hold>,
        length: Duration,
        until: Instant,
        caller: Caller,
    ) -> Result<bool, Failure> {
        let (commands, key, session) = self.of_commands();
        // A renewal that is repeated after the release would undo its at_least.
        let is_held = || self.phase() == Phase::Held;
        let command = || is_held().then(|| self.recipe.extend(&self.token, length));
        let mut call = self.call();
        let asked = commands.retry(session.as_ref(), key, &command, &mut call, until, caller);
        let replied = match asked.await {
            // A session ends with its connection.
            Err(failure) if session.is_some() && failure.kind == Kind::Broken => {
                self.lose();
                return Ok(false);
            }
            asked => asked?,
        };
        match replied {
            Some((reply, asked_at)) if self.recipe.is_all(&reply) => {
                self.prolong(length, asked_at);
                self.core.hurry(self);
            }
            // The keys that aren't lost stay until the release, because the block may still run.
            Some(_) => self.lose(),
            None => {}
        }
        Ok(is_held())
    }

    /// Asks the server whether this grant holds all its keys.
    pub(crate) async fn is_owned(&self) -> Result<bool, Error> {
        let check = |key: &[u8]| {
            let mut command = cmd("LOCK.CHECK");
            command.arg(key).arg(&self.token);
            command
        };
        let (commands, mut call) = (&self.core.commands, self.call());
        let lefts = commands.of_each_key(&self.recipe.keys, check, &mut call);
        Ok(lefts
            .await?
            .iter()
            .all(|left| matches!(left, Value::Int(1..))))
    }

    // --- the end ----------------------------------------------------------------------------------

    /// Ends the grant as lost, and tells the program once.
    fn lose(self: &Arc<Hold>) {
        let is_first = self.phase.send_if_modified(|phase| {
            let is_held = *phase == Phase::Held;
            if is_held {
                *phase = Phase::Lost;
            }
            is_held
        });
        if !is_first {
            return;
        }
        self.core.forget(self);
        if let Some(OnLost(on_lost)) = self.recipe.options.on_lost.clone() {
            let hold = Arc::clone(self);
            let thread = move || tell(|| on_lost(&hold.subject()));
            self.background.handle().spawn_blocking(thread);
        }
        tell(|| self.core.commands.observer.lost(&self.subject()));
        if let Some(link) = self.session.lock().take() {
            // Its close releases the lock, which still has a margin.
            close(link, self.recipe.margin(), &self.background);
        }
    }

    /// Ends the grant for the program. Returns the phase before.
    fn end(self: &Arc<Hold>) -> Phase {
        self.core.forget(self);
        self.phase.send_replace(Phase::Left)
    }

    pub(crate) fn detach(self: &Arc<Hold>) -> Result<(), Error> {
        if self.recipe.options.is_session {
            let rule = "a session ends with its connection, so it can't be detached";
            return Err(Error::argument("session", rule));
        }
        match self.end() {
            Phase::Held => Ok(()),
            Phase::Lost | Phase::Left => Err(Error::NotHeld),
        }
    }

    /// Releases the lock within the command timeout. Later the release goes on without a caller.
    /// Returns true if the grant still held.
    pub(crate) async fn release(self: &Arc<Hold>) -> Result<bool, Error> {
        let was_lost = self.is_lost();
        if self.end() == Phase::Left {
            return Err(Error::NotHeld);
        }
        let mut leaving = Leaving {
            hold: self,
            is_over: false,
        };
        let until = Instant::now() + self.core.commands.timeout;
        let left = self.leave(until, Caller::Waits).await;
        leaving.is_over = left.is_ok();
        match left {
            Ok(is_held) => Ok(is_held && !was_lost),
            Err(_) if was_lost => Ok(false),
            // A session ends with its connection.
            Err(failure) if self.recipe.options.is_session && failure.kind == Kind::Broken => {
                Ok(false)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Lets the lock stay for a time after its release.
    pub(crate) fn stay(&self, rest: Duration) -> Result<(), Error> {
        not_too_long("rest", rest)?;
        self.lease.lock().stays_until = later(Instant::now(), rest);
        Ok(())
    }

    /// Releases the lock without a caller, unless it was released before.
    pub(crate) fn release_in_background(self: &Arc<Hold>) {
        if self.end() != Phase::Left {
            self.leave_in_background();
        }
    }

    /// Tells the observer of a release that no caller hears of.
    pub(crate) fn not_released(&self, error: &Error) {
        self.core.commands.unavailable(error);
    }

    fn leave_in_background(self: &Arc<Hold>) {
        let hold = Arc::clone(self);
        self.background.start(async move {
            let deadline = hold.lease.lock().deadline.max(Instant::now());
            // Without a server, the lock ends with its lease.
            let _ = hold
                .leave(deadline + hold.recipe.margin(), Caller::HasLeft)
                .await;
        });
    }

    /// Sends the release until a server has replied, or the time is over.
    async fn leave(&self, until: Instant, caller: Caller) -> Result<bool, Failure> {
        let (commands, key, session) = self.of_commands();
        let (command, mut call) = (|| Some(self.last_command()), self.call());
        let asked = commands.retry(session.as_ref(), key, &command, &mut call, until, caller);
        let asked = asked.await;
        if let Some(link) = self.session.lock().take() {
            // The server releases what the connection is still tied to.
            close(link, Duration::ZERO, &self.background);
        }
        let is_all = asked?.is_some_and(|(reply, _)| self.recipe.is_all(&reply));
        // If a reply was lost, the command before may have released the lock.
        let may_have = call.unanswered > 0 && Instant::now() < self.lease.lock().deadline;
        Ok(is_all || may_have)
    }

    fn last_command(&self) -> Cmd {
        let stays_until = self.lease.lock().stays_until;
        let rest = stays_until.saturating_duration_since(Instant::now());
        match self.is_unclear {
            _ if !rest.is_zero() => self.recipe.release_after(&self.token, rest),
            // A late command has the lease of the acquire, which an extend may have made shorter.
            true => self.recipe.leave(&self.token, self.recipe.longest_trace()),
            false => self.recipe.release(&self.token),
        }
    }

    /// Returns what sends the commands of this grant: the key that they are sent to, and the
    /// connection of a session.
    fn of_commands(&self) -> (&Commands, &[u8], Option<Link>) {
        let session = self.session.lock().clone();
        (&self.core.commands, self.recipe.key(), session)
    }

    fn call(&self) -> Call {
        Call::new(self.token.clone(), self.background.clone())
    }
}

/// A release that goes on in the background if its caller leaves.
struct Leaving<'a> {
    hold: &'a Arc<Hold>,
    is_over: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.hold.leave_in_background();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token, which gives control of the lock.
        f.debug_struct("Grant")
            .field("keys", &self.recipe.keys.to_string())
            .field("fence", &self.fence)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}
