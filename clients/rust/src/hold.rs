//! The state of a grant: it is renewed while it is held, until it is released or lost.

use std::fmt;
use std::mem::forget;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout, Instant};

use crate::background::in_thread;
use crate::commands::{later, Call, Caller, Link};
use crate::core::Core;
use crate::error::Error;
use crate::mutex::Mutex;
use crate::observer::{tell, Subject};
use crate::options::{not_too_long, positive, rule, OnLost};

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
    pub(crate) fence: i64,
    /// The token. A command that asked for this grant may still arrive if it has no reply.
    pub(crate) call: Call,
    core: Arc<Core>,
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
    /// The time of the next renewal, or of the loss.
    due: Instant,
    /// The earliest end of the lock at the server, also if it is released before.
    stays_until: Instant,
}

impl Hold {
    pub(crate) fn new(
        core: &Arc<Core>,
        call: Call,
        fence: i64,
        session: Option<Link>,
    ) -> Arc<Hold> {
        let (options, now) = (&call.recipe.options, Instant::now());
        Arc::new(Hold {
            fence,
            core: Arc::clone(core),
            longest: later(now, options.longest_hold()),
            session: Mutex::new(session),
            phase: watch::Sender::new(Phase::Held),
            lease: Mutex::new(Lease {
                length: options.lease,
                deadline: now,
                due: now,
                stays_until: later(now, options.at_least),
            }),
            call,
        })
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.call.recipe.subject(Some(self.fence))
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
            match self.phase() {
                Phase::Left => drop(changes.changed().await),
                _ => drop(timeout(self.left(), changes.changed()).await),
            }
        }
    }

    /// Returns the time until the loss if the lease isn't renewed.
    pub(crate) fn left(&self) -> Duration {
        let deadline = self.lease.lock().deadline;
        let left = deadline.saturating_duration_since(Instant::now());
        match self.phase() {
            Phase::Held => left,
            Phase::Lost | Phase::Left => Duration::ZERO,
        }
    }

    // --- the lease -------------------------------------------------------------------------------

    /// Moves the deadline. The lease counts from the request, because the server counts from then
    /// or later.
    pub(crate) fn prolong(&self, length: Duration, asked_at: Instant) {
        let options = &self.call.recipe.options;
        let mut lease = self.lease.lock();
        // A late command of the acquire sets its own lease, which may be shorter.
        let shortest = match self.call.unanswered > 0 {
            true => length.min(self.call.recipe.first_lease()),
            false => length,
        };
        let deadline = later(asked_at, shortest.saturating_sub(self.call.recipe.margin()));
        lease.deadline = lease.deadline.max(deadline);
        let renew_at = later(asked_at, options.renew_every.min(shortest / 3));
        let renews = options.renews && lease.deadline + LEAST < self.longest;
        let next = if renews { renew_at } else { lease.deadline };
        lease.due = next.min(lease.deadline);
        drop(lease);
        self.phase.send_modify(|_| {});
    }

    /// Returns when the grant needs attention.
    pub(crate) fn due(&self) -> Instant {
        self.lease.lock().due
    }

    /// Begins a renewal, or tells of the loss at the deadline.
    pub(crate) fn look(self: &Arc<Hold>) {
        let mut lease = self.lease.lock();
        let deadline = lease.deadline;
        lease.due = deadline;
        drop(lease);
        match Instant::now() < deadline {
            true => self.call.background.start(Arc::clone(self).renew()),
            false => self.lose(),
        }
    }

    /// Renews the grant, again and again until its deadline if the server refuses that.
    async fn renew(self: Arc<Hold>) {
        let mut is_told = false;
        loop {
            let (length, deadline) = {
                let lease = self.lease.lock();
                (lease.length, lease.deadline)
            };
            let longest = self.longest.saturating_duration_since(Instant::now());
            let length = length.min(longest + self.call.recipe.margin());
            let renewed = self.extend_by(length, deadline, Caller::HasLeft).await;
            let Err(failure) = renewed.as_ref() else {
                return;
            };
            if !failure.is_outage() && !is_told {
                is_told = true;
                self.call.commands.tell(|it| it.unavailable(failure));
            }
            let next = later(Instant::now(), length / 10);
            if next >= deadline {
                return;
            }
            sleep_until(next).await;
        }
    }

    pub(crate) async fn extend(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        positive("lease", lease)?;
        let is_longer = lease > self.call.recipe.margin();
        rule("lease", is_longer, "must be longer than the margin")?;
        match self.left().is_zero() {
            true => Ok(false),
            false => self.set_lease(lease).await,
        }
    }

    /// Sets the lease, also of a grant that another process acquired.
    pub(crate) async fn set_lease(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        let until = self.call.commands.ends();
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
    ) -> Result<bool, Error> {
        let (mut call, session) = (self.call.clone(), self.session.lock().clone());
        // A renewal that is repeated after the release would undo its at_least.
        let is_held = || self.phase() == Phase::Held;
        let command = || is_held().then(|| self.call.recipe.extend(&self.call.token, length));
        let replied = match call.retry(session.as_ref(), command, until, caller).await {
            // A session ends with its connection.
            Err(failure) if session.is_some() && failure.is_broken() => {
                self.lose();
                return Ok(false);
            }
            asked => asked?,
        };
        match replied {
            Some((reply, asked_at)) if self.call.recipe.is_all(&reply) => {
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
        let call = self.call.clone();
        let lefts = call.of_each_key("LOCK.CHECK", &[&self.call.token]).await?;
        Ok(lefts.iter().all(|left| matches!(left, Value::Int(1..))))
    }

    // --- the end ---------------------------------------------------------------------------------

    /// Ends the grant as lost, and tells the program once.
    fn lose(self: &Arc<Hold>) {
        let mut is_granted = false;
        let is_first = self.phase.send_if_modified(|phase| {
            let is_held = *phase == Phase::Held;
            if is_held {
                *phase = Phase::Lost;
                // Before the block hears of the loss and ends, because its end forgets the grant.
                is_granted = self.core.forget(self);
            }
            is_held
        });
        if !is_first {
            return;
        }
        if is_granted {
            self.tell_lost();
        }
        // The close releases the lock, which still has a margin.
        self.untie(self.call.recipe.margin());
    }

    fn tell_lost(self: &Arc<Hold>) {
        if let Some(OnLost(on_lost)) = self.call.recipe.options.on_lost.clone() {
            let (hold, calls) = (Arc::clone(self), Arc::clone(&on_lost));
            // Without more threads, the program must hear of the loss nevertheless.
            if !in_thread(move || tell(|| calls(&hold.subject()))) {
                tell(|| on_lost(&self.subject()));
            }
        }
        self.call.commands.tell(|it| it.lost(&self.subject()));
    }

    /// Closes the connection of a session after a time.
    pub(crate) fn untie(&self, after: Duration) {
        if let Some(link) = self.session.lock().take() {
            self.call.close(link, after);
        }
    }

    /// Ends the grant for the program. Returns the phase before.
    fn end(self: &Arc<Hold>) -> Phase {
        self.core.forget(self);
        self.phase.send_replace(Phase::Left)
    }

    pub(crate) fn detach(self: &Arc<Hold>) -> Result<(), Error> {
        let is_session = self.call.recipe.options.is_session;
        rule("session", !is_session, "it ends with its connection")?;
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
        let leaving = Leaving(self);
        let left = self.leave(self.call.commands.ends(), Caller::Waits).await;
        let failure = match left {
            Ok(is_held) => {
                forget(leaving);
                return Ok(is_held && !was_lost);
            }
            Err(failure) => failure,
        };
        // A session ends with its connection.
        let is_session = self.call.recipe.options.is_session;
        match was_lost || is_session && failure.is_broken() {
            true => Ok(false),
            false => Err(failure),
        }
    }

    /// Releases the lock at the end of a block. Returns `None` if that was done before, or if only
    /// the observer hears that it failed.
    pub(crate) async fn end_block(self: &Arc<Hold>) -> Option<bool> {
        if self.phase() == Phase::Left {
            return None;
        }
        let released = self.release().await;
        let failed = |error: &Error| self.call.commands.tell(|it| it.unavailable(error));
        released.inspect_err(failed).ok()
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

    fn leave_in_background(self: &Arc<Hold>) {
        let hold = Arc::clone(self);
        let deadline = self.lease.lock().deadline.max(Instant::now());
        let until = deadline + self.call.recipe.margin();
        self.call.background.start(async move {
            // The connection of a session may be dead, and is closed then.
            let first = hold.call.commands.ends().min(until);
            if hold.leave(first, Caller::HasLeft).await.is_err() {
                // Without a server, the lock ends with its lease.
                let _ = hold.leave(until, Caller::HasLeft).await;
            }
        });
    }

    /// Sends the release until a server has replied, or the time is over.
    async fn leave(&self, until: Instant, caller: Caller) -> Result<bool, Error> {
        let (mut call, session) = (self.call.clone(), self.session.lock().clone());
        let command = || Some(self.last_command());
        let asked = call.retry(session.as_ref(), command, until, caller).await;
        // The server releases what the connection is still tied to.
        self.untie(Duration::ZERO);
        let is_all = asked?.is_some_and(|(reply, _)| self.call.recipe.is_all(&reply));
        // If a reply was lost, the command before may have released the lock.
        let is_unclear = call.unanswered > self.call.unanswered;
        let may_have = is_unclear && Instant::now() < self.lease.lock().deadline;
        Ok(is_all || may_have)
    }

    fn last_command(&self) -> Cmd {
        let (recipe, token) = (&self.call.recipe, &self.call.token);
        let stays_until = self.lease.lock().stays_until;
        let rest = stays_until.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return recipe.release_after(token, rest);
        }
        // A late command has the lease of the acquire, which an extend may have made shorter.
        let leave = (self.call.unanswered > 0).then(|| recipe.longest_trace());
        recipe.release(token, leave)
    }
}

/// A release that goes on in the background when this is dropped.
struct Leaving<'a>(&'a Arc<Hold>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave_in_background();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token, which gives control of the lock.
        f.debug_struct("Grant")
            .field("keys", &self.call.recipe.keys.to_string())
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
