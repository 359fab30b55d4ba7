//! One owner: it acquires, renews and releases its lock, and cleans up behind the calls that end
//! without an answer.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, pending, OptionFuture};
use redis::cluster_routing::Slot;
use redis::{Cmd, Value};
use tokio::sync::{oneshot, watch, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until, timeout, timeout_at, Instant};

use crate::commands::{answer, left, Answer, Commands, Request};
use crate::connections::{Connection, Route, Waiter};
use crate::core::{Core, Jobs, Waits};
use crate::error::{shown, Backoff, Error, Failure, Outage};
use crate::grant::{first_lease, later, Grant, Left, Phase, Session};
use crate::mutex::Mutex;
use crate::observer::{Outcome, Subject};
use crate::options::{self, Keys, Options};

/// The longest delay of the server's reply when a wait ends.
const GRACE: Duration = Duration::from_millis(150);

/// The longest time of a wait on one connection. The wait then continues on a new connection, so
/// that one that died silently is noticed.
const SLICE: Duration = Duration::from_secs(15);

/// The longest time without a reply of the server to a waiter.
const PROOF_OF_LIFE: Duration = Duration::from_secs(2);

/// The longest time by which the server rounds an end up.
const TICK: Duration = Duration::from_millis(2);

/// The longest acquire that isn't reported as a wait if it succeeds. A blocked wait looks like a
/// slow reply, so only its length tells them apart.
const AT_ONCE: Duration = Duration::from_millis(20);

type Locked = OwnedMutexGuard<()>;

/// An owner's token, with its grant. Only one acquire at a time has the turn.
pub(crate) struct Owner {
    core: Arc<Core>,
    pub(crate) commands: Commands,
    /// The token of the latest acquire.
    token: Mutex<Vec<u8>>,
    /// True if a command of the token went without a reply. It may still arrive, and end or change
    /// the next grant of the token.
    is_unsure: AtomicBool,
    slot: Slot,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Held by each acquire, and by each release of a reentrant handle. So the server sets the
    /// holds in the order in which they were counted.
    order: Arc<tokio::sync::Mutex<()>>,
    /// The latest grant, which may have ended.
    latest: Mutex<Option<Arc<Grant>>>,
    /// The outage that the acquire with the turn has met.
    outage: Mutex<Option<Outage>>,
    /// Ends all acquires that are in progress.
    cancels: watch::Sender<()>,
    /// The jobs that clean up behind a call.
    unfinished: Jobs,
}

impl Owner {
    pub(crate) fn new(core: Arc<Core>, keys: Keys, options: Options) -> Result<Owner, Error> {
        keys.check()?;
        options.check()?;
        let commands = Commands::new(keys, options, core.command_timeout());
        Ok(Owner {
            slot: Slot::for_key(commands.first_key()),
            token: Mutex::new(commands.token()),
            is_unsure: AtomicBool::default(),
            core,
            commands,
            turn: Arc::default(),
            order: Arc::default(),
            latest: Mutex::default(),
            outage: Mutex::default(),
            cancels: watch::Sender::default(),
            unfinished: Jobs::default(),
        })
    }

    pub(crate) fn fence(&self) -> Option<i64> {
        self.latest.lock().as_ref().map(|grant| grant.fence)
    }

    pub(crate) fn token(&self) -> Vec<u8> {
        self.token.lock().clone()
    }

    pub(crate) fn subject<'a>(&'a self, token: &'a [u8]) -> Subject<'a> {
        Subject {
            keys: &self.commands.keys,
            token,
        }
    }

    /// Ends the acquires in progress. Returns false if there are none.
    pub(crate) fn cancel(&self) -> bool {
        self.cancels.send(()).is_ok()
    }

    /// Acquires the lock. Waits for the time of the option `wait`.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<Arc<Grant>, Error> {
        let wait = self.commands.options.wait;
        // Without a limit, an acquire ends with the lock or an error.
        let not_acquired = Error::NotAcquired(wait.unwrap_or_default());
        self.acquire_within(wait).await?.ok_or(not_acquired)
    }

    /// Acquires the lock, or adds a hold to a reentrant one. `None`: no limit. Zero: one try.
    ///
    /// If the future is dropped, neither a place in the queue nor a grant stays.
    pub(crate) async fn acquire_within(
        self: &Arc<Self>,
        limit: Option<Duration>,
    ) -> Result<Option<Arc<Grant>>, Error> {
        limit.map_or(Ok(()), |limit| options::not_too_long("wait", limit))?;
        let mut report = Report {
            owner: self,
            began: Instant::now(),
            is_wait: limit != Some(Duration::ZERO),
            outcome: Outcome::Cancelled,
        };
        let mut cancelled = self.cancels.subscribe();
        let taken = tokio::select! {
            biased;
            taken = self.take(limit) => taken,
            _ = cancelled.changed() => Err(Error::Cancelled),
        };
        if matches!(taken, Err(Error::Cancelled)) {
            // The program may end right after this.
            let _ = timeout(GRACE, self.core.settled()).await;
        }
        report.outcome = match &taken {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::NotAcquired,
            Err(Error::Cancelled) => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        taken
    }

    async fn take(self: &Arc<Self>, limit: Option<Duration>) -> Result<Option<Arc<Grant>>, Error> {
        let is_try = limit == Some(Duration::ZERO);
        let limit = if is_try {
            Some(self.core.command_timeout())
        } else {
            limit
        };
        let end = limit.map(|limit| later(Instant::now(), limit));
        let Some((turn, _order)) = self.turn(is_try, end).await else {
            let outage = self.outage_without_turn(is_try).await;
            return outage.map_or(Ok(None), |outage| Err(outage.error("")));
        };
        *self.outage.lock() = None;
        let before = self.latest.lock().clone().filter(|grant| grant.is_held());
        if before.is_none() {
            self.begin(end).await?;
        }
        let mut attempt = Attempt::new(self, is_try, end, before);
        let mut confirms = false;
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            let again = match attempt.ask(sent).await {
                // The grant may be old if the reply took long, because this process may have been
                // stopped. Asking again sets the lease at a known time. The second reply only has
                // to come within the lease.
                Ok(Answer::Granted(_)) if !confirms && sent.elapsed() > attempt.lease / 10 => {
                    confirms = true;
                    continue;
                }
                Ok(Answer::Granted(_)) if sent.elapsed() > attempt.lease => {
                    confirms = false;
                    *self.outage.lock() = Some(self.core.no_answer(attempt.lease));
                    sent
                }
                Ok(Answer::Granted(fence)) if attempt.replaces(fence) => {
                    // Asking again sets the lease and the session of a first hold.
                    let before = attempt.before.take();
                    before.inspect(|grant| self.lose(grant, Phase::Held));
                    continue;
                }
                Ok(Answer::Granted(fence)) => {
                    *self.outage.lock() = None;
                    return Ok(Some(self.granted(attempt, fence, sent, turn)));
                }
                Ok(Answer::NotGranted) if is_try || attempt.is_over() => {
                    attempt.leave().await;
                    return Ok(None);
                }
                Ok(answer) => {
                    *self.outage.lock() = None;
                    backoff = Backoff::new();
                    match answer {
                        Answer::Place => sent + self.ask_again_after(),
                        _ => sent,
                    }
                }
                Err(Failure::Moved(_)) => sent,
                Err(Failure::Final(error)) => {
                    attempt.fail(&error).await;
                    return Err(error);
                }
                Err(Failure::Outage(outage)) => {
                    let is_new = self.outage.lock().replace(outage.clone()).is_none();
                    if is_new && limit.is_none() {
                        self.core.unavailable(outage.error(""));
                    }
                    backoff.next(sent)
                }
            };
            attempt.pause_until(again).await;
            if attempt.is_over() {
                let cleans_up = attempt.end();
                if let Some(outage) = self.outage.lock().take() {
                    return Err(outage.error(""));
                }
                return match timeout(GRACE, OptionFuture::from(cleans_up)).await {
                    Ok(_) => Ok(None),
                    Err(_) => Err(self.core.no_answer(GRACE).error("")),
                };
            }
        }
    }

    /// Returns the turn of an acquire, and its place in the order of commands.
    async fn turn(&self, is_try: bool, end: Option<Instant>) -> Option<(Locked, Locked)> {
        let turn = match is_try {
            true => Arc::clone(&self.turn).try_lock_owned().ok(),
            false => locked(&self.turn, end).await,
        };
        Some((turn?, locked(&self.order, end).await?))
    }

    /// Returns the outage that keeps the turn from an acquire. `None` if the owner itself has the
    /// lock, or waits for it.
    async fn outage_without_turn(&self, is_try: bool) -> Option<Outage> {
        let outage = self.outage.lock().clone();
        let is_held = self.latest.lock().as_ref().is_some_and(|it| it.is_held());
        // A reentrant handle has a free turn while it is held.
        let is_taken = is_held && !self.commands.options.is_reentrant;
        if outage.is_some() || is_try || is_taken {
            return outage;
        }
        // The call with the turn may still wait for its first reply.
        let (ping, end) = (redis::cmd("PING"), Instant::now() + GRACE);
        match self.ask_shared(&[], &ping, end).await {
            Err(Failure::Outage(outage)) => Some(outage),
            _ => None,
        }
    }

    /// Makes sure that no command of an earlier call ends the next grant. Waits for the jobs behind
    /// earlier calls. If they take long, or a command may still arrive after them, a new token is
    /// drawn. A chosen token waits on.
    async fn begin(self: &Arc<Self>, end: Option<Instant>) -> Result<(), Error> {
        let is_drawn = self.commands.options.token.is_none();
        let mut settled = pin!(self.unfinished.settled());
        let began = Instant::now();
        let patience = match is_drawn {
            true => GRACE,
            false => self.core.command_timeout(),
        };
        let soon = end.map_or(began + patience, |end| end.min(began + patience));
        let is_settled = timeout_at(soon, &mut settled).await.is_ok();
        if is_drawn {
            if self.is_unsure.swap(false, Ordering::Relaxed) || !is_settled {
                let old = std::mem::replace(&mut *self.token.lock(), self.commands.token());
                if self.commands.keys.0.len() > 1 {
                    // A lost grant may still hold some of the keys.
                    let release = self.commands.release(&old, 0);
                    self.clean_up(&old, vec![release], VecDeque::new());
                }
            }
        } else if !is_settled {
            let outage = self.core.no_answer(soon.saturating_duration_since(began));
            *self.outage.lock() = Some(outage.clone());
            if end.is_none() {
                self.core.unavailable(outage.error(""));
            }
            let end = end.unwrap_or_else(|| later(soon, Duration::MAX));
            let settled = timeout_at(end, settled).await;
            settled.map_err(|_| outage.error(""))?;
            *self.outage.lock() = None;
        }
        Ok(())
    }

    fn be_unsure(&self) {
        self.is_unsure.store(true, Ordering::Relaxed);
    }

    /// Notes that a command has no reply.
    fn note(&self, answer: &Result<Value, Failure>) {
        if let Err(Failure::Outage(_)) = answer {
            self.be_unsure();
        }
    }

    /// Returns the time after which a place is asked for again: a third of KEEP or of the lease,
    /// whichever is shorter, and at most [`PROOF_OF_LIFE`].
    fn ask_again_after(&self) -> Duration {
        let options = &self.commands.options;
        (options.keep.min(options.lease) / 3).min(PROOF_OF_LIFE)
    }

    fn granted(
        self: &Arc<Self>,
        mut attempt: Attempt<'_>,
        fence: i64,
        sent: Instant,
        turn: Locked,
    ) -> Arc<Grant> {
        let (before, lease) = (attempt.before.take(), attempt.lease);
        let session = attempt.finish();
        let token = self.token();
        self.core.granted(self, &token);
        if let Some(grant) = before {
            if grant.fence == fence && grant.is_held() {
                grant.set_holds(grant.holds() + 1);
                grant.renewed(sent, lease);
                return grant;
            }
            self.lose(&grant, Phase::Held);
        }
        // A reentrant grant frees the turn, but not before it is the latest one.
        let mut latest = self.latest.lock();
        let options = &self.commands.options;
        let grant = Arc::new(Grant::new(token, fence, sent, options, turn));
        grant.renewed(sent, lease);
        *grant.session.lock() = Session::of(session);
        *latest = Some(Arc::clone(&grant));
        drop(latest);
        self.core.hold(self, &grant);
        let (owner, renewed) = (Arc::clone(self), Arc::clone(&grant));
        self.core
            .runtime
            .spawn(async move { owner.renew_until_it_ends(&renewed).await });
        grant
    }

    /// Renews a grant while it is held, and reports its loss.
    async fn renew_until_it_ends(self: &Arc<Self>, grant: &Arc<Grant>) {
        let mut changes = grant.changes();
        let mut is_reported = false;
        while let Some(due) = grant.due() {
            tokio::select! {
                () = sleep_until(due) => {}
                _ = changes.changed() => continue,
            }
            let sent = Instant::now();
            if sent >= grant.until() {
                return self.lose(grant, Phase::Held);
            }
            let lease = grant.next_lease();
            let renew = self.commands.renew(&grant.token, lease);
            let end = grant.until();
            let answer = tokio::select! {
                answer = self.ask(grant, &renew, end) => answer,
                // A release is sent on the same connection, behind this renewal, unless the
                // connection is replaced.
                _ = changes.wait_for(|phase| *phase != Phase::Held) => {
                    self.be_unsure();
                    return;
                }
            };
            match answer {
                Ok(answer) if self.commands.held_all(&answer) => {
                    grant.renewed(sent, lease);
                    is_reported = false;
                }
                Ok(_) => return self.lose(grant, Phase::Held),
                Err(failure) => {
                    grant.not_renewed(sent);
                    let error = match failure {
                        Failure::Outage(outage) => outage.error("; the lock wasn't renewed"),
                        Failure::Final(error) => error,
                        Failure::Moved(_) => continue,
                    };
                    if !is_reported {
                        self.core.unavailable(error);
                    }
                    is_reported = true;
                }
            }
        }
    }

    /// Ends a grant as lost, and reports the loss once.
    fn lose(self: &Arc<Self>, grant: &Arc<Grant>, from: Phase) {
        if grant.lose(from) {
            *grant.session.lock() = Session::default();
            self.core.lost(self, grant);
        }
    }

    /// Removes one hold. After the last one, the lock stays for the rest of `at_least`.
    ///
    /// The release goes on in the background, whatever happens to the returned future.
    pub(crate) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
    ) -> impl Future<Output = Result<bool, Error>> {
        self.end_holds(grant, self.rest_of_at_least(grant), u32::MAX)
    }

    /// Releases a grant for which no caller hears of an error.
    pub(crate) fn abandon(self: &Arc<Self>, grant: &Arc<Grant>) -> JoinHandle<()> {
        let (owner, released) = (Arc::clone(self), self.release(grant));
        self.core.in_background(async move {
            match released.await {
                // An outage was reported when the release went on without its caller.
                Ok(_) | Err(Error::Unavailable { .. } | Error::NotHeld) => {}
                Err(error) => owner.core.unavailable(error),
            }
        })
    }

    /// Removes one hold. After the last one, the lock stays for `rest`.
    pub(crate) fn release_after(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        rest: Duration,
    ) -> Result<impl Future<Output = Result<bool, Error>>, Error> {
        options::not_too_long("rest", rest)?;
        Ok(self.end_holds(grant, rest, u32::MAX))
    }

    /// Removes all holds.
    pub(crate) fn release_all(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
    ) -> impl Future<Output = Result<bool, Error>> {
        self.end_holds(grant, self.rest_of_at_least(grant), 0)
    }

    fn rest_of_at_least(&self, grant: &Grant) -> Duration {
        let at_least = self.commands.options.at_least;
        at_least.saturating_sub(grant.held_for())
    }

    /// Removes one hold. If more than `most_left` remain, removes those beyond it too.
    fn end_holds(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        rest: Duration,
        most_left: u32,
    ) -> impl Future<Output = Result<bool, Error>> {
        let (reply, replied) = oneshot::channel();
        let release = Release {
            rest,
            most_left,
            end: Instant::now() + self.core.command_timeout(),
            order: None,
            reply: Some(reply),
        };
        if self.commands.options.is_reentrant {
            let (owner, grant) = (Arc::clone(self), Arc::clone(grant));
            let ends = async move { owner.end_holds_in_order(&grant, release).await };
            drop(self.core.in_background(ends));
        } else {
            self.end_holds_now(grant, release);
        }
        let ended = self.core.ended();
        async move { replied.await.unwrap_or(Err(ended)) }
    }

    /// Removes holds after the acquires and releases of a reentrant handle that are in flight. Until
    /// then the grant stays as it is, because a command that overtakes an acquire would end its hold.
    async fn end_holds_in_order(self: &Arc<Self>, grant: &Arc<Grant>, mut release: Release) {
        if grant.is_held() {
            let mut in_order = pin!(self.order_while_held(grant));
            release.order = match timeout_at(release.end, &mut in_order).await {
                Ok(order) => order,
                Err(_) => {
                    let timeout = self.core.command_timeout();
                    let outage = self.core.no_answer(timeout);
                    self.go_on_without_caller(&mut release, outage.error("; the release goes on"));
                    let order = in_order.await;
                    release.end = later(Instant::now(), timeout);
                    order
                }
            };
        }
        self.end_holds_now(grant, release);
    }

    /// Replies to the caller of a release, unless that is done, and reports the outage.
    fn go_on_without_caller(&self, release: &mut Release, error: Error) {
        if release.reply.is_some() {
            self.core.unavailable(error.clone());
            release.answer(Err(error));
        }
    }

    /// Returns the place in the order of commands, or `None` if the grant ends before.
    async fn order_while_held(self: &Arc<Self>, grant: &Arc<Grant>) -> Option<Locked> {
        let mut changes = grant.changes();
        // An acquire that has the turn for long may wait because the grant was lost.
        let renews = async {
            sleep(self.core.command_timeout() / 2).await;
            drop(self.extend(grant, grant.next_lease()).await);
            pending().await
        };
        tokio::select! {
            _ = changes.wait_for(|phase| *phase != Phase::Held) => None,
            order = locked(&self.order, None) => order,
            never = renews => never,
        }
    }

    fn end_holds_now(self: &Arc<Self>, grant: &Arc<Grant>, mut release: Release) {
        match grant.release(release.most_left) {
            Left::Released => release.answer(Err(Error::NotHeld)),
            Left::Lost => {
                self.lose(grant, Phase::Held);
                let cleans_up = OptionFuture::from(self.release_the_rest(grant));
                drop(self.core.in_background(async move {
                    let _ = timeout(GRACE, cleans_up).await;
                    release.answer(Ok(false));
                }));
            }
            Left::Holds(holds) => {
                let rest = release.rest;
                let command = match holds {
                    0 if !rest.is_zero() => self.commands.release_after(&grant.token, rest),
                    holds => self.commands.release(&grant.token, holds),
                };
                let ending = Ending {
                    command,
                    holds,
                    stays: rest.min(self.rest_of_at_least(grant)),
                };
                let (owner, grant) = (Arc::clone(self), Arc::clone(grant));
                let ends = async move { owner.end_hold(&grant, ending, release).await };
                drop(self.core.in_background(ends));
            }
        }
    }

    async fn end_hold(self: &Arc<Self>, grant: &Arc<Grant>, ending: Ending, mut release: Release) {
        let holds = ending.holds;
        let answer = self.send_ending(grant, &ending, release.end).await;
        if holds == 0 {
            self.core.forget(grant);
        }
        let outage = match answer {
            Ok((answer, ran_before)) => {
                // If a reply was lost, the command before may have released the lock.
                let is_released = self.commands.held_all(&answer) || (ran_before && holds == 0);
                if !is_released {
                    self.lose(grant, Phase::Released);
                }
                self.after_release(grant, &ending);
                release.answer(Ok(is_released));
                return;
            }
            Err(Failure::Final(error)) => {
                self.after_release(grant, &ending);
                release.answer(Err(error));
                return;
            }
            Err(Failure::Outage(outage)) => outage,
            Err(Failure::Moved(_)) => Outage::new("the cluster redirects in circles".into()),
        };
        let until = grant.until();
        let left = shown(until.saturating_duration_since(Instant::now()));
        let error = outage.error(&format!("; the lock ends with its lease, in {left}"));
        let _unfinished = self.unfinished.begin();
        drop(release.order.take());
        self.after_release(grant, &ending);
        self.go_on_without_caller(&mut release, error);
        let _ = self.send_ending(grant, &ending, until).await;
    }

    /// Sends the end of a hold until it has a reply. While holds are left, a session's connections
    /// stay as they are, because a RELEASE doesn't tie the grant to its connection.
    async fn send_ending(
        &self,
        grant: &Grant,
        ending: &Ending,
        end: Instant,
    ) -> Result<(Value, bool), Failure> {
        match ending.holds {
            0 => self.ask_until(grant, &ending.command, end).await,
            _ => {
                self.ask_shared_until(&grant.token, &ending.command, end)
                    .await
            }
        }
    }

    /// Closes a session, and lets the next acquire begin.
    fn after_release(&self, grant: &Grant, ending: &Ending) {
        if ending.holds > 0 {
            return;
        }
        *grant.session.lock() = Session::default();
        let turn = grant.take_turn();
        let is_drawn = self.commands.options.token.is_none();
        if is_drawn && !ending.stays.is_zero() {
            // The lock stays for this handle too. The server began to count before its reply.
            let turn = turn.or_else(|| Arc::clone(&self.turn).try_lock_owned().ok());
            let stays_until = later(Instant::now(), ending.stays + TICK);
            self.core.runtime.spawn(async move {
                sleep_until(stays_until).await;
                drop(turn);
            });
        }
    }

    /// Releases the keys of a lost grant that it may still hold. An acquire in progress covers them,
    /// and a RELEASE would end its grant.
    fn release_the_rest(self: &Arc<Self>, grant: &Arc<Grant>) -> Option<JoinHandle<()>> {
        let _turn = Arc::clone(&self.turn).try_lock_owned().ok()?;
        let is_latest = self
            .latest
            .lock()
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, grant));
        (is_latest && self.commands.keys.0.len() > 1).then(|| {
            let release = self.commands.release(&grant.token, 0);
            self.clean_up(&grant.token, vec![release], VecDeque::new())
        })
    }

    /// Sends commands until all have a reply, and on the last of the connections that were asked,
    /// behind what was sent there. Ends with the lease or the place that they are to end.
    ///
    /// Commands on another connection may overtake a wait, so they are sent again until those behind
    /// the wait have a reply.
    fn clean_up(
        self: &Arc<Self>,
        token: &[u8],
        commands: Vec<Cmd>,
        asked: VecDeque<Connection>,
    ) -> JoinHandle<()> {
        let (owner, token) = (Arc::clone(self), token.to_owned());
        let unfinished = self.unfinished.begin();
        let lasts = self.commands.options.lease.max(self.commands.options.keep);
        let end = later(Instant::now(), lasts);
        self.core.in_background(async move {
            let _unfinished = unfinished;
            let anew = async || {
                for command in &commands {
                    let _ = owner.ask_shared_until(&token, command, end).await;
                }
            };
            let began = Instant::now();
            let by = began + owner.core.connections.attempt_timeout();
            let last = asked.back().into_iter();
            let behind = last.flat_map(|it| commands.iter().map(|c| it.ask(c, by, &token)));
            let mut behind = pin!(join_all(behind));
            let mut pause = GRACE / 2;
            while tokio::join!(anew(), timeout(pause, &mut behind)).1.is_err() {
                pause *= 2;
            }
            if began.elapsed() > GRACE / 2 {
                owner.be_unsure();
            }
        })
    }

    /// Sets the lease. Goes on if the returned future is dropped.
    pub(crate) async fn extend(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        lease: Duration,
    ) -> Result<bool, Error> {
        options::positive("lease", lease)?;
        let (owner, grant) = (Arc::clone(self), Arc::clone(grant));
        let unfinished = self.unfinished.begin();
        let extends = async move {
            let _unfinished = unfinished;
            let sent = Instant::now();
            let end = sent + owner.core.command_timeout();
            let extend = owner.commands.renew(&grant.token, lease);
            let asks = async || match grant.is_held() {
                true => owner.ask(&grant, &extend, end).await,
                // Sent again, the command could change the next grant of the token.
                false => Err(Failure::Final(Error::NotHeld)),
            };
            let answer = match until(end, asks).await.map_err(error_of) {
                Ok((answer, _)) => answer,
                Err(Error::NotHeld) => return Ok(false),
                Err(error) => return Err(error),
            };
            let is_extended = owner.commands.held_all(&answer);
            if is_extended {
                grant.extended(sent, lease);
            } else {
                owner.lose(&grant, Phase::Held);
            }
            Ok(is_extended)
        };
        let extended = self.core.in_background(extends).await;
        extended.unwrap_or_else(|_| Err(self.core.ended()))
    }

    /// Returns the remaining lease on the server, the shortest of all keys.
    pub(crate) async fn left(&self, token: &[u8]) -> Result<Duration, Error> {
        let end = Instant::now() + self.core.command_timeout();
        let mut least = Duration::MAX;
        for check in self.commands.checks(token) {
            let answer = self.ask_shared_until(token, &check, end).await;
            let (answer, _) = answer.map_err(error_of)?;
            least = least.min(left(&answer).map_err(Error::Redis)?);
        }
        Ok(least)
    }

    /// Sends a command until it has a reply. Returns the reply, and true if the command may have run
    /// before.
    async fn ask_until(
        &self,
        grant: &Grant,
        command: &Cmd,
        end: Instant,
    ) -> Result<(Value, bool), Failure> {
        until(end, || self.ask(grant, command, end)).await
    }

    async fn ask_shared_until(
        &self,
        token: &[u8],
        command: &Cmd,
        end: Instant,
    ) -> Result<(Value, bool), Failure> {
        until(end, || self.ask_shared(token, command, end)).await
    }

    async fn ask_shared(
        &self,
        token: &[u8],
        command: &Cmd,
        end: Instant,
    ) -> Result<Value, Failure> {
        let connections = &self.core.connections;
        let end = end.min(Instant::now() + connections.attempt_timeout());
        connections.ask(self.slot, command, end, token).await
    }

    /// Sends a renewal, or the end of the last hold. A session has its own connection for these. If
    /// that connection is lost, a renewal ties the session to a new one.
    async fn ask(&self, grant: &Grant, command: &Cmd, end: Instant) -> Result<Value, Failure> {
        if !self.commands.is_session() {
            let answer = self.ask_shared(&grant.token, command, end).await;
            self.note(&answer);
            return answer;
        }
        let connections = &self.core.connections;
        let end = end.min(Instant::now() + connections.attempt_timeout());
        let mut route = Route::new(self.slot);
        // Shared with a renewal in progress, so that a release can't overtake it.
        let known = grant.session.lock().current();
        let connection = match known {
            Some(connection) => connection,
            None => {
                let opened = connections.own(&route, end).await?;
                grant.session.lock().current_or(opened)
            }
        };
        let answer = connection.ask(command, end, &grant.token).await;
        let noted = connections.note(&mut route, &connection, &answer);
        let answer = noted.and(answer);
        self.note(&answer);
        let mut session = grant.session.lock();
        match grant.phase() {
            Phase::Held => session.note(&connection, &answer),
            Phase::Released | Phase::Lost => *session = Session::default(),
        }
        answer
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latest = self.latest.lock().clone();
        // Without the token, which gives control of the lock.
        f.debug_struct("Lock")
            .field("keys", &format_args!("{}", self.commands.keys))
            .field("held", &latest.is_some_and(|grant| grant.is_held()))
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Repeats a request until it has a reply or a final error, or until `end`. Returns the reply, and
/// true if an earlier request may have run.
async fn until<F: Future<Output = Result<Value, Failure>>>(
    end: Instant,
    ask: impl Fn() -> F,
) -> Result<(Value, bool), Failure> {
    let mut backoff = Backoff::new();
    let mut ran_before = false;
    loop {
        let sent = Instant::now();
        let again = match ask().await {
            Ok(answer) => return Ok((answer, ran_before)),
            Err(Failure::Moved(_)) => Instant::now(),
            Err(Failure::Outage(outage)) => {
                ran_before |= outage.may_have_run;
                let again = backoff.next(sent);
                if again >= end {
                    sleep_until(end).await;
                    return Err(Failure::Outage(outage));
                }
                again
            }
            Err(error) => return Err(error),
        };
        sleep_until(again).await;
    }
}

/// Locks a mutex, or returns `None` at `end`.
async fn locked(mutex: &Arc<tokio::sync::Mutex<()>>, end: Option<Instant>) -> Option<Locked> {
    let locks = Arc::clone(mutex).lock_owned();
    match end {
        Some(end) => timeout_at(end, locks).await.ok(),
        None => Some(locks.await),
    }
}

fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Final(error) => error,
        Failure::Outage(outage) => outage.error(""),
        Failure::Moved(_) => Outage::new("the cluster redirects in circles".into()).error(""),
    }
}

/// A call that removes holds.
struct Release {
    /// The time for which the lock stays after the last hold.
    rest: Duration,
    /// The most holds that are left.
    most_left: u32,
    /// The end of the call. After that, the release goes on in the background.
    end: Instant,
    /// `None` unless the handle is reentrant.
    order: Option<Locked>,
    /// `None` after the reply.
    reply: Option<oneshot::Sender<Result<bool, Error>>>,
}

impl Release {
    /// Replies to the caller, unless that is done.
    fn answer(&mut self, result: Result<bool, Error>) {
        if let Some(reply) = self.reply.take() {
            drop(reply.send(result));
        }
    }
}

/// The end of a hold.
struct Ending {
    command: Cmd,
    /// The holds that are left.
    holds: u32,
    /// The time for which the lock stays by `at_least` after the last one.
    stays: Duration,
}

/// The requests of one acquire. An attempt that is dropped before its end gives up its place or
/// grant.
struct Attempt<'a> {
    owner: &'a Arc<Owner>,
    token: Vec<u8>,
    is_try: bool,
    end: Option<Instant>,
    /// The grant to which a hold is added.
    before: Option<Arc<Grant>>,
    /// The holds and the lease that the latest request asks for.
    holds: u32,
    lease: Duration,
    route: Route,
    /// The acquire's own connection, once the server has replied on it.
    own: Option<Connection>,
    /// The last connections without a reply. They stay open until a newer one has a reply, because
    /// only then has the server moved the place or the grant of a session to it. Two, because the
    /// latest one may have broken before the server read from it.
    asked: VecDeque<Connection>,
    waiter: Option<Waiter>,
    /// True if the server may know of this acquire: it has a place, or a request has no reply.
    is_known: bool,
    is_ended: bool,
}

impl<'a> Attempt<'a> {
    fn new(
        owner: &'a Arc<Owner>,
        is_try: bool,
        end: Option<Instant>,
        before: Option<Arc<Grant>>,
    ) -> Attempt<'a> {
        Attempt {
            owner,
            token: owner.token(),
            is_try,
            end,
            before,
            holds: 0,
            lease: Duration::ZERO,
            route: Route::new(owner.slot),
            own: None,
            asked: VecDeque::new(),
            waiter: None,
            is_known: false,
            is_ended: false,
        }
    }

    /// Returns the grant from before this acquire, if it is still held.
    fn held(&self) -> Option<&Arc<Grant>> {
        self.before.as_ref().filter(|grant| grant.is_held())
    }

    /// Returns the holds from before this acquire.
    fn holds_before(&self) -> u32 {
        self.held().map_or(0, |grant| grant.holds())
    }

    /// Returns true if a request that was to add a hold got another grant.
    fn replaces(&self, fence: i64) -> bool {
        self.holds > 1 && self.held().is_none_or(|grant| grant.fence != fence)
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    async fn ask(&mut self, sent: Instant) -> Result<Answer, Failure> {
        let owner = self.owner;
        let core = &owner.core;
        let mut by = sent + core.connections.attempt_timeout();
        if self.is_known {
            by = by.min(sent + PROOF_OF_LIFE);
        }
        // A grant that is confirmed may come at the very end.
        let by = self.end.map_or(by, |end| by.min(end.max(sent + GRACE)));
        let connection = self.connection(by).await?;
        let request = self.request(&connection, sent, by).await?;
        let options = &owner.commands.options;
        self.holds = self.holds_before() + 1;
        let held = self.held();
        self.lease = held.map_or_else(|| first_lease(options), |grant| grant.next_lease());
        let command = owner
            .commands
            .take(&self.token, &request, self.holds, self.lease);
        let is_kept = matches!(request, Request::Wait(_)) && !owner.commands.is_session();
        self.asked.push_back(connection.clone());
        if self.asked.len() > 2 {
            self.asked.pop_front();
        }
        // The server also holds the reply to a try back, until replicas have the grant.
        let answer = if matches!(request, Request::Wait(_)) || options.replicas.is_some() {
            match self.wait(&connection, &command, sent).await {
                Some(answer) => answer,
                None => {
                    owner.be_unsure();
                    self.is_known = true;
                    return Ok(Answer::NotGranted);
                }
            }
        } else {
            connection.ask(&command, by, &self.token).await
        };
        owner.note(&answer);
        self.is_known |= matches!(answer, Ok(Value::Int(_)) | Err(Failure::Outage(_)));
        // KEEP keeps the place beyond the wait.
        self.is_known |= is_kept && matches!(answer, Ok(Value::Nil));
        core.connections
            .note(&mut self.route, &connection, &answer)?;
        let answer = answer?;
        self.asked.clear();
        self.asked.push_back(connection.clone());
        self.own = self.has_own().then_some(connection);
        answer_of(&answer)
    }

    /// Returns true if the acquire needs a connection for itself.
    fn has_own(&self) -> bool {
        let commands = &self.owner.commands;
        let is_blocked = !self.is_try && self.owner.core.waits == Waits::Blocked;
        commands.is_session() || commands.options.replicas.is_some() || is_blocked
    }

    async fn connection(&mut self, by: Instant) -> Result<Connection, Failure> {
        let connections = &self.owner.core.connections;
        match self.own.take() {
            Some(connection) => Ok(connection),
            None if self.has_own() => connections.own(&self.route, by).await,
            None => connections.shared(&self.route, by).await,
        }
    }

    async fn request(
        &mut self,
        connection: &Connection,
        sent: Instant,
        by: Instant,
    ) -> Result<Request, Failure> {
        if self.is_try {
            return Ok(Request::Try);
        }
        if self.has_own() {
            let left = self.end.map(|end| end.saturating_duration_since(sent));
            return Ok(Request::Wait(left));
        }
        let connections = &self.owner.core.connections;
        let key = self.owner.commands.first_key();
        let subscribed = connections.channel(connection, &self.route, key, by).await;
        if let Err(failure) = subscribed {
            connections.note(&mut self.route, connection, &Err(failure.clone()))?;
            return Err(failure);
        }
        let waiter = self.waiter.take_if(|it| it.is_on(connection));
        let waiter = self
            .waiter
            .insert(waiter.unwrap_or_else(|| connection.waiter()));
        Ok(Request::Place {
            channel: subscribed?,
            message: waiter.number,
        })
    }

    /// Waits on a connection, while another one proves that the server lives. Returns `None` if the
    /// wait is to continue on a new connection.
    async fn wait(
        &self,
        connection: &Connection,
        command: &Cmd,
        sent: Instant,
    ) -> Option<Result<Value, Failure>> {
        let end = self.end.unwrap_or_else(|| later(sent, Duration::MAX)) + GRACE;
        let dies = async {
            loop {
                sleep(PROOF_OF_LIFE).await;
                let soon = end.min(Instant::now() + PROOF_OF_LIFE);
                let ping = redis::cmd("PING");
                let ping = self.owner.ask_shared(&self.token, &ping, soon).await;
                if let Err(Failure::Outage(outage)) = ping {
                    return Failure::Outage(outage);
                }
            }
        };
        tokio::select! {
            biased;
            answer = connection.ask(command, end, &self.token) => Some(answer),
            failure = dies => Some(Err(failure)),
            () = sleep_until(sent + SLICE + self.owner.commands.held_back()) => None,
        }
    }

    async fn pause_until(&self, again: Instant) {
        let again = self.end.map_or(again, |end| again.min(end));
        let notified = async {
            match &self.waiter {
                Some(waiter) => waiter.notified().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = notified => {}
            () = sleep_until(again) => {}
        }
    }

    /// Ends the requests, so that a drop does nothing. Returns the connection of a session.
    fn finish(mut self) -> Option<Connection> {
        self.is_ended = true;
        let own = self.own.take();
        if self.owner.commands.is_session() {
            return own;
        }
        own.into_iter()
            .for_each(|it| self.owner.core.connections.give_back(it));
        None
    }

    /// Ends the requests after an error of the server.
    async fn fail(mut self, error: &Error) {
        // The token may hold the lock, without enough replicas that know of it.
        self.is_known |= matches!(error, Error::NotReplicated(_));
        self.leave().await;
    }

    /// Ends the requests without a grant.
    async fn leave(mut self) {
        self.is_known |= self.has_lost();
        if self.is_known {
            let _ = timeout(GRACE, self.give_up()).await;
        } else {
            drop(self.finish());
        }
    }

    /// Ends the requests at the acquire's end. Returns the cleanup, if the server may know of them.
    fn end(&mut self) -> Option<JoinHandle<()>> {
        self.is_ended = true;
        let is_known = self.is_known || !self.asked.is_empty() || self.has_lost();
        is_known.then(|| self.give_up())
    }

    /// Returns true if the grant before was lost meanwhile. It may still hold some of the keys.
    fn has_lost(&self) -> bool {
        self.before.is_some() && self.held().is_none()
    }

    /// Cancels the wait, and releases everything except the holds from before it. CANCEL comes
    /// first, so that no grant can follow the RELEASE.
    fn give_up(&mut self) -> JoinHandle<()> {
        self.is_ended = true;
        let commands = &self.owner.commands;
        let token = &self.token;
        let ends = vec![
            commands.cancel(token),
            commands.release(token, self.holds_before()),
        ];
        let asked = std::mem::take(&mut self.asked);
        self.owner.clean_up(token, ends, asked)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_ended && self.end().is_some() {
            self.owner.be_unsure();
        }
    }
}

fn answer_of(value: &Value) -> Result<Answer, Failure> {
    answer(value).map_err(|error| Failure::Final(Error::Redis(error)))
}

/// The report of an acquire's end, which the observer gets when it is dropped.
struct Report<'a> {
    owner: &'a Arc<Owner>,
    began: Instant,
    is_wait: bool,
    outcome: Outcome,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        let is_at_once = self.outcome == Outcome::Granted && waited < AT_ONCE;
        if self.is_wait && !is_at_once {
            self.owner.core.waited(self.owner, waited, self.outcome);
        }
    }
}
