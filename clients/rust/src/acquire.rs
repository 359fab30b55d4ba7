//! One acquire: it asks, it waits, and it leaves if it ends without a grant.
//!
//! The states are those of docs/internals/clients.md.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{timeout_at, Instant};

use crate::commands::{later, paused, Call, Caller, Link, FIRST_PAUSE};
use crate::core::{draw_token, Core};
use crate::crowd::{Crowd, Member};
use crate::error::Error;
use crate::hold::Hold;
use crate::observer::Outcome;
use crate::recipe::Wait;
use crate::servers::LONGEST_WAIT;

/// The time after the limit in which a reply still counts.
const GRACE: Duration = Duration::from_millis(100);

/// The longest time without a sign that the server lives, while a call waits.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// An acquire of one token. Dropping it gives up.
pub(crate) struct Acquire<'a> {
    core: &'a Arc<Core>,
    call: Call,
    /// The connection on which it waits.
    link: Option<Link>,
    /// `None` if there is no limit. A limit of zero asks without waiting.
    limit: Option<Duration>,
    began: Instant,
    until: Instant,
    /// True if the latest reply left a place or a grant at the server.
    has_trace: bool,
    /// True if the lock wasn't granted at once.
    has_waited: bool,
    outcome: Outcome,
    /// The caller, who hears of an outage that ended the acquire, and not of any other.
    caller: Caller,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, call: Call, limit: Option<Duration>) -> Acquire<'a> {
        let began = Instant::now();
        let time = match limit {
            Some(Duration::ZERO) => core.commands.config.command_timeout,
            limit => limit.unwrap_or(Duration::MAX),
        };
        Acquire {
            core,
            call,
            link: None,
            limit,
            began,
            until: later(began, time),
            has_trace: false,
            has_waited: false,
            outcome: Outcome::Cancelled,
            caller: Caller::HasLeft,
        }
    }

    /// Returns the grant, or `None` if the server said "not now" until the limit.
    pub(crate) async fn run(mut self) -> Result<Option<Arc<Hold>>, Error> {
        let acquired = self.acquire().await;
        self.outcome = match &acquired {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::NotAcquired,
            Err(Error::Cancelled) => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        if acquired.as_ref().is_err_and(Error::is_outage) {
            self.caller = Caller::Waits;
        }
        acquired
    }

    async fn acquire(&mut self) -> Result<Option<Arc<Hold>>, Error> {
        let (core, recipe) = (self.core, Arc::clone(&self.call.recipe));
        let member = Member::new(&core.crowds, &recipe.keys);
        let crowd = &member.crowd;
        if self.is_try() {
            return self.ask_until_granted(crowd).await;
        }
        if let Ok(_turn) = timeout_at(self.until, crowd.asking.acquire()).await {
            return self.ask_until_granted(crowd).await;
        }
        self.has_waited = true;
        // The acquires that ask hear from the server at each sign of life, and note failures.
        let longest = SIGN_OF_LIFE + core.commands.config.command_timeout;
        let replied_at = *crowd.replied_at.lock();
        match replied_at.is_some_and(|at| at.elapsed() <= longest) {
            true => Ok(None),
            false => Err(core.commands.late(self.began.elapsed())),
        }
    }

    fn is_try(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    async fn ask_until_granted(&mut self, crowd: &Crowd) -> Result<Option<Arc<Hold>>, Error> {
        let (mut pause, mut is_refused) = (FIRST_PAUSE, false);
        loop {
            let asked_at = Instant::now();
            let asked = self.ask(asked_at).await;
            if asked.is_ok() {
                *crowd.replied_at.lock() = Some(Instant::now());
            }
            let is_over = Instant::now() >= self.until;
            let lease = self.call.recipe.first_lease();
            match asked {
                Ok(Some(fence)) if asked_at.elapsed() <= lease / 3 => {
                    return Ok(Some(self.granted(fence, asked_at)));
                }
                Ok(None) if self.is_try() || is_over => return Ok(None),
                // A late grant may be over. If it isn't, the server sets its lease anew.
                Ok(fence) => {
                    (pause, is_refused) = (FIRST_PAUSE, fence.is_none());
                    self.has_waited = true;
                }
                // The end of a limit says nothing about the server.
                Err(failure) if is_refused && is_over && failure.is_late() => {
                    return Ok(None);
                }
                Err(failure) if !failure.is_outage() => return Err(failure),
                Err(failure) => {
                    (is_refused, self.has_waited) = (false, true);
                    if !is_over || !failure.is_late() {
                        *crowd.replied_at.lock() = None;
                    }
                    if self.limit.is_none() {
                        self.core.commands.report(self.call.recipe.key(), &failure);
                    }
                    if !paused(&mut pause, self.until).await {
                        return Err(failure);
                    }
                }
            }
        }
    }

    /// Asks once, and returns the fence of a grant.
    async fn ask(&mut self, asked_at: Instant) -> Result<Option<i64>, Error> {
        let (commands, recipe) = (&self.core.commands, Arc::clone(&self.call.recipe));
        let wait = (self.has_waited && !self.is_try()).then(|| self.wait(asked_at));
        // The server replies to a command with replicas within the command timeout.
        let replicas = recipe.options.replicas;
        let replicated = replicas.map_or(Duration::ZERO, |_| commands.config.command_timeout);
        let blocks = wait.map_or(Duration::ZERO, |wait| wait.block) + replicated;
        let attempt = asked_at + commands.attempt + blocks;
        let end = attempt.min(self.until + GRACE + replicated);
        let command = recipe.ask(&self.call.token, wait, replicated);
        let mut shared = None;
        let slot = match blocks.is_zero() {
            true => shared.insert(Some(commands.shared(&self.call.background))),
            false => &mut self.link,
        };
        let asked = self.call.ask(slot, &command, blocks, end).await;
        let reply = asked.inspect_err(|failure| {
            self.has_trace |= matches!(failure, Error::NotReplicated(_));
        });
        let fence = fence_of(&reply?);
        self.has_trace = fence.is_some() || wait.is_some_and(|wait| wait.keep.is_some());
        if fence.is_none() || !recipe.options.is_session {
            return Ok(fence);
        }
        // No other call uses the connection from now on.
        let tie = recipe.extend(&self.call.token, recipe.first_lease());
        let unanswered = self.call.unanswered;
        let tied = self
            .call
            .ask(&mut self.link, &tie, Duration::ZERO, end)
            .await;
        if self.call.unanswered > unanswered {
            self.begin_anew();
        }
        let is_tied = recipe.is_all(&tied?);
        Ok(fence.filter(|_| is_tied))
    }

    /// Leaves the token of a tie without a reply: a late one would end the grant with a connection
    /// that is closed.
    fn begin_anew(&mut self) {
        self.leave();
        (self.call.token, self.call.unanswered) = (draw_token(), 0);
        self.has_trace = false;
        if self.is_try() {
            // A second try might meet what the first one leaves.
            self.until = Instant::now();
        }
    }

    /// Returns the wait of a part of the time that is left. The last one leaves no place.
    fn wait(&self, asked_at: Instant) -> Wait {
        let (recipe, left) = (&self.call.recipe, self.until - asked_at);
        let sign_of_life = match self.core.commands.config.is_cluster {
            // Its client may have a limit of its own for all replies.
            true => LONGEST_WAIT,
            false => SIGN_OF_LIFE,
        };
        let block = sign_of_life.min(recipe.first_lease() / 3).min(left);
        let rest = left.saturating_add(Duration::from_secs(1));
        let keep = (block < left).then(|| recipe.options.keep.min(rest));
        Wait { block, keep }
    }

    fn granted(&mut self, fence: i64, asked_at: Instant) -> Arc<Hold> {
        let recipe = &self.call.recipe;
        let session = self.link.take_if(|_| recipe.options.is_session);
        let hold = Hold::new(self.core, self.call.clone(), fence, session);
        hold.prolong(recipe.first_lease(), asked_at);
        hold
    }

    /// Ends what the server may have of this token, in the background.
    fn leave(&self) {
        let (mut call, caller) = (self.call.clone(), self.caller);
        let longest = call.recipe.longest_trace();
        // The shortest time suffices if no command is on its way.
        let time = if call.unanswered > 0 {
            longest
        } else {
            Duration::ZERO
        };
        let leave = call.recipe.release(&call.token, Some(time));
        self.call.background.start(async move {
            let (command, until) = (|| Some(leave.clone()), later(Instant::now(), longest));
            // Without a server, what it has ends with the lease or with KEEP.
            let _ = call.retry(None, command, until, caller).await;
        });
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let commands = &self.core.commands;
        // A session that was granted too late may be tied to its link, so that is closed.
        let is_session = self.call.recipe.options.is_session;
        if let Some(link) = self.link.take_if(|_| !is_session) {
            commands.put_back(link);
        }
        let is_granted = self.outcome == Outcome::Granted;
        if !is_granted && (self.has_trace || self.call.unanswered > 0) {
            self.leave();
        }
        if !is_granted || self.has_waited {
            let (subject, time) = (self.call.recipe.subject(None), self.began.elapsed());
            commands.tell(|it| it.waited(&subject, time, self.outcome));
        }
    }
}

/// Returns the fence in a reply that grants the lock.
fn fence_of(reply: &Value) -> Option<i64> {
    let Value::Array(grant) = reply else {
        return None;
    };
    match grant.as_slice() {
        [_, Value::Int(fence), ..] => Some(*fence),
        _ => None,
    }
}
