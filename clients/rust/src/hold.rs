//! The state of a grant: it is renewed while it is held, until it is released or lost.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis::{cmd, Cmd, Value};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, Instant};

use crate::background::Background;
use crate::commands::{later, Call, Caller};
use crate::core::Core;
use crate::error::{Error, Failure};
use crate::mutex::Mutex;
use crate::observer::{tell, Subject};
use crate::options::{not_too_long, positive, OnLost};
use crate::recipe::Recipe;
use crate::tie::Tie;

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
    /// A number that no other grant of its `Locks` has.
    pub(crate) id: u64,
    pub(crate) recipe: Arc<Recipe>,
    pub(crate) token: Vec<u8>,
    pub(crate) fence: i64,
    pub(crate) background: Background,
    core: Arc<Core>,
    /// True if a command that asked for this grant may still arrive.
    is_unclear: bool,
    tie: Option<Tie>,
    phase: watch::Sender<Phase>,
    lease: Mutex<Lease>,
}

/// The times of a grant, by the local monotonic clock.
struct Lease {
    length: Duration,
    /// The time when the command was sent that was granted.
    asked_at: Option<Instant>,
    /// The time of the loss. It is in the past before the first grant.
    deadline: Instant,
    renew_at: Option<Instant>,
    /// The earliest end of the lock at the server, also if it is released before.
    stays_until: Instant,
    /// True while a renewal runs. There is one at a time, because each may move the tie.
    is_renewing: bool,
    /// True if the observer knows that a renewal was refused.
    is_refused: bool,
}

impl Hold {
    pub(crate) fn new(
        core: &Arc<Core>,
        recipe: &Arc<Recipe>,
        call: &Call,
        fence: i64,
    ) -> Arc<Hold> {
        let is_session = recipe.options.is_session;
        Arc::new(Hold {
            id: core.next_id(),
            recipe: Arc::clone(recipe),
            token: call.token.clone(),
            fence,
            background: call.background.clone(),
            core: Arc::clone(core),
            is_unclear: call.unanswered > 0,
            tie: is_session.then(|| Tie::new(recipe.options.lease)),
            phase: watch::Sender::new(Phase::Held),
            lease: Mutex::new(Lease {
                length: recipe.options.lease,
                asked_at: None,
                deadline: Instant::now(),
                renew_at: None,
                stays_until: later(Instant::now(), recipe.options.at_least),
                is_renewing: false,
                is_refused: false,
            }),
        })
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        self.recipe.subject(Some(self.fence))
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns a receiver of the phases and the renewals.
    pub(crate) fn changes(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self.phase() {
            Phase::Held => Instant::now() >= self.deadline(),
            Phase::Lost => true,
            Phase::Left => false,
        }
    }

    /// Returns when the grant is lost, and never if it is released.
    pub(crate) async fn lost(&self) {
        let mut changes = self.changes();
        while !self.is_lost() {
            tokio::select! {
                () = sleep_until(self.deadline()), if self.phase() == Phase::Held => {}
                // It can't fail, because the sender is in `self`.
                _ = changes.changed() => {}
            }
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.lease.lock().deadline
    }

    /// Returns the time until the loss if the lease isn't renewed.
    pub(crate) fn left(&self) -> Duration {
        let left = self.deadline().saturating_duration_since(Instant::now());
        match self.phase() {
            Phase::Held => left,
            Phase::Lost | Phase::Left => Duration::ZERO,
        }
    }

    /// Returns when the grant needs attention. `None` if it has ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        let lease = self.lease.lock();
        let due = lease
            .renew_at
            .map_or(lease.deadline, |at| at.min(lease.deadline));
        (self.phase() == Phase::Held).then_some(due)
    }

    // --- the lease --------------------------------------------------------------------------------

    /// Moves the deadline. The lease counts from the request, because the server counts from then or
    /// later.
    pub(crate) fn prolong(&self, length: Duration, asked_at: Instant) {
        let mut lease = self.lease.lock();
        let first = *lease.asked_at.get_or_insert(asked_at);
        let deadline = later(asked_at, length.saturating_sub(self.recipe.margin()));
        lease.deadline = lease.deadline.max(deadline);
        let longest = self.recipe.options.max_hold.map(|it| later(first, it));
        let is_last = longest.is_some_and(|longest| lease.deadline + LEAST >= longest);
        let renews = self.recipe.options.renews && !is_last;
        let every = self.recipe.options.renew_every.min(length / 3);
        // A late command of the acquire sets its own lease, which may be shorter.
        let every = match self.is_unclear {
            true => every.min(self.recipe.first_lease() / 3),
            false => every,
        };
        lease.renew_at = renews.then(|| later(asked_at, every));
        drop(lease);
        self.phase.send_modify(|_| {});
    }

    /// Renews the grant, or tells of its loss, if that is due. Returns when to look again, or `None`
    /// if the grant has ended.
    pub(crate) fn look_after(self: &Arc<Hold>) -> Option<Instant> {
        let due = self.due()?;
        let now = Instant::now();
        if now < due {
            return Some(due);
        }
        if now >= self.deadline() {
            self.lose();
            return None;
        }
        let mut lease = self.lease.lock();
        lease.renew_at = None;
        if !lease.is_renewing {
            lease.is_renewing = true;
            drop(lease);
            self.background.start(Arc::clone(self).renew());
        }
        self.due()
    }

    async fn renew(self: Arc<Hold>) {
        let (length, until) = {
            let lease = self.lease.lock();
            let longest = lease.asked_at.zip(self.recipe.options.max_hold);
            let longest = longest.map(|(from, hold)| {
                let rest = later(from, hold).saturating_duration_since(Instant::now());
                rest + self.recipe.margin()
            });
            let length = longest.map_or(lease.length, |it| it.min(lease.length));
            (length, lease.deadline)
        };
        let mut call = self.call();
        let tie = self.tie.as_ref();
        let renewed = self.extend_at_server(tie, length, &mut call, until, Caller::HasLeft);
        let renewed = renewed.await;
        if let Err(Failure::Final(error)) = &renewed {
            self.refused(error);
        }
        {
            let mut lease = self.lease.lock();
            lease.is_renewing = false;
            lease.is_refused &= renewed.is_err();
            if renewed.is_err() {
                // It may succeed before the deadline.
                lease.renew_at = Some(later(Instant::now(), lease.length / 10));
            }
        }
        self.phase.send_modify(|_| {});
        self.core.keep(&self);
    }

    /// Tells the observer of a renewal that was refused, once until one succeeds.
    fn refused(&self, error: &Error) {
        let is_new = !std::mem::replace(&mut self.lease.lock().is_refused, true);
        if is_new && !self.is_lost() {
            self.core.commands.unavailable(error);
        }
    }

    /// Ties the grant to a connection, which no other call uses from now on.
    pub(crate) async fn tie(
        self: &Arc<Hold>,
        call: &mut Call,
        until: Instant,
    ) -> Result<(), Failure> {
        let Some(tie) = &self.tie else {
            return Ok(());
        };
        let until = until.min(Instant::now() + self.core.commands.timeout);
        let length = self.recipe.first_lease();
        let tied = self.extend_at_server(Some(tie), length, call, until, Caller::Waits);
        match tied.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Final(Error::LockLost)),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) async fn extend(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        positive("lease", lease)?;
        if lease <= self.recipe.margin() {
            return Err(Error::argument("lease", "must be longer than the margin"));
        }
        if self.phase() != Phase::Held || self.is_lost() {
            return Ok(false);
        }
        self.take_over(lease).await
    }

    /// Sets the lease, also of a grant that another process acquired.
    pub(crate) async fn take_over(self: &Arc<Hold>, lease: Duration) -> Result<bool, Error> {
        let until = Instant::now() + self.core.commands.timeout;
        let mut call = self.call();
        let extended = self.extend_at_server(None, lease, &mut call, until, Caller::Waits);
        let is_held = extended.await?;
        if is_held {
            self.lease.lock().length = lease;
            self.core.keep(self);
        }
        Ok(is_held)
    }

    /// Extends the lease at the server. Returns false if the lock was lost, or released meanwhile.
    async fn extend_at_server(
        self: &Arc<Hold>,
        tie: Option<&Tie>,
        length: Duration,
        call: &mut Call,
        until: Instant,
        caller: Caller,
    ) -> Result<bool, Failure> {
        let command = || {
            // A renewal that is repeated after the release would undo its at_least.
            (self.phase() == Phase::Held).then(|| match tie {
                Some(_) => self.recipe.extend_and_tie(&self.token, length),
                None => self.recipe.extend(&self.token, length),
            })
        };
        let commands = &self.core.commands;
        let asked = commands.retry(tie, self.recipe.key(), &command, call, until, caller);
        let Some((reply, asked_at)) = asked.await? else {
            return Ok(false);
        };
        if !self.recipe.is_all(number(&reply)) {
            // The keys that aren't lost stay until the release, because the block may still run.
            self.lose();
            return Ok(false);
        }
        self.prolong(length, asked_at);
        tie.inspect(|tie| tie.moved(asked_at));
        Ok(self.phase() == Phase::Held)
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
        Ok(lefts.await?.iter().all(|left| number(left) > 0))
    }

    // --- the end ----------------------------------------------------------------------------------

    /// Returns false if the grant ended before.
    fn end(&self, phase: Phase) -> bool {
        let is_first = self.phase.send_if_modified(|it| {
            let is_held = *it == Phase::Held;
            *it = if is_held { phase } else { *it };
            is_held
        });
        if is_first {
            self.core.forget(self);
        }
        is_first
    }

    /// Ends the grant as lost, and tells the program once.
    fn lose(self: &Arc<Hold>) -> bool {
        if !self.end(Phase::Lost) {
            return false;
        }
        self.tell_program();
        tell(|| self.core.commands.observer.lost(&self.subject()));
        if self.tie.is_some() {
            let hold = Arc::clone(self);
            self.core.go_on(&self.background, async move {
                // The close of a connection releases the lock, which still has a margin.
                sleep(hold.recipe.margin()).await;
                hold.tie.as_ref().map(Tie::give_up);
            });
        }
        true
    }

    fn tell_program(self: &Arc<Hold>) {
        let Some(OnLost(on_lost)) = self.recipe.options.on_lost.clone() else {
            return;
        };
        let (hold, calls) = (Arc::clone(self), Arc::clone(&on_lost));
        let thread = thread::Builder::new().name("redis-lock".into());
        let started = thread.spawn(move || tell(|| calls(&hold.subject())));
        if started.is_err() {
            // No more threads, but the program must hear of the loss.
            tell(|| on_lost(&self.subject()));
        }
    }

    pub(crate) fn detach(&self) -> Result<(), Error> {
        if self.tie.is_some() {
            let rule = "a session ends with its connection, so it can't be detached";
            return Err(Error::argument("session", rule));
        }
        match self.end(Phase::Left) {
            true => Ok(()),
            false => Err(Error::NotHeld),
        }
    }

    /// Releases the lock by a time. Later the release goes on without a caller. Returns true if the
    /// grant still held.
    pub(crate) async fn release(self: &Arc<Hold>, until: Instant) -> Result<bool, Error> {
        let mut was_lost = self.is_lost();
        if !self.end(Phase::Left) {
            if self.phase.send_replace(Phase::Left) == Phase::Left {
                return Err(Error::NotHeld);
            }
            was_lost = true;
        }
        let mut leaving = Leaving {
            hold: self,
            call: self.call(),
            is_over: false,
        };
        let left = self.leave(&mut leaving.call, until, Caller::Waits).await;
        leaving.is_over = left.is_ok();
        match left {
            Ok(is_held) => Ok(is_held && !was_lost),
            Err(_) if was_lost => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Lets the lock stay for a time after its release.
    pub(crate) fn stay(&self, rest: Duration) -> Result<(), Error> {
        not_too_long("rest", rest)?;
        self.lease.lock().stays_until = later(Instant::now(), rest);
        Ok(())
    }

    /// Returns the latest time at which a release that begins now returns.
    pub(crate) fn release_ends(&self) -> Instant {
        Instant::now() + self.core.commands.timeout
    }

    /// Releases the lock without a caller, unless it was released before.
    pub(crate) fn release_in_background(self: &Arc<Hold>) {
        if self.end(Phase::Left) || self.phase.send_replace(Phase::Left) == Phase::Lost {
            self.leave_in_background(self.call());
        }
    }

    /// Tells the observer of a release that no caller hears of.
    pub(crate) fn not_released(&self, error: &Error) {
        self.core.commands.unavailable(error);
    }

    fn leave_in_background(self: &Arc<Hold>, mut call: Call) {
        let hold = Arc::clone(self);
        let until = self.deadline().max(Instant::now()) + self.recipe.margin();
        self.core.go_on(&self.background, async move {
            // Without a server, the lock ends with its lease.
            let _ = hold.leave(&mut call, until, Caller::HasLeft).await;
        });
    }

    /// Sends the release until a server has replied, or the time is over.
    async fn leave(
        &self,
        call: &mut Call,
        until: Instant,
        caller: Caller,
    ) -> Result<bool, Failure> {
        let command = || Some(self.last_command());
        let (commands, key) = (&self.core.commands, self.recipe.key());
        // The server reads it before the end of a session's connection.
        let tie = self.tie.as_ref();
        let asked = commands.retry(tie, key, &command, call, until, caller);
        let asked = asked.await;
        if asked.is_ok() || caller == Caller::HasLeft {
            for link in self.tie.iter().flat_map(Tie::give_up) {
                // A connection that the lock is still tied to closes, so that the server releases it.
                if asked.is_ok() {
                    commands.connections.put_back(link, &self.background);
                }
            }
        }
        let count = asked?.map_or(0, |(reply, _)| number(&reply));
        // If a reply was lost, the command before may have released the lock.
        let may_have = call.unanswered > 0 && Instant::now() < self.deadline();
        Ok(self.recipe.is_all(count) || may_have)
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

    fn call(&self) -> Call {
        Call::new(self.token.clone(), self.background.clone())
    }
}

/// A release that goes on in the background if its caller leaves.
struct Leaving<'a> {
    hold: &'a Arc<Hold>,
    call: Call,
    is_over: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.hold.leave_in_background(self.call.clone());
        }
    }
}

/// Returns a reply that is a number. Any other is as good as none.
fn number(reply: &Value) -> i64 {
    match reply {
        Value::Int(number) => *number,
        _ => 0,
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
