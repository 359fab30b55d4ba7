//! One acquire: it asks, it waits, and it leaves if it ends without a grant.
//!
//! The states are those of docs/internals/clients.md.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::commands::{later, Call, Caller, Pauses, FIRST_PAUSE};
use crate::connections::{Lane, Link};
use crate::core::Core;
use crate::crowd::Member;
use crate::error::{Error, Failure};
use crate::hold::Hold;
use crate::observer::{tell, Outcome};
use crate::recipe::Recipe;
use crate::servers::LONGEST_WAIT;

/// The same for a command that doesn't wait for replicas.
const GRACE: Duration = Duration::from_millis(100);

/// The longest time without a sign that the server lives, while a call waits.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The mark of a token that has no command on its way.
const SHORTEST_LEAVE: Duration = Duration::from_millis(1);

/// An acquire of one token. Dropping it gives up.
pub(crate) struct Acquire<'a> {
    core: &'a Arc<Core>,
    recipe: &'a Arc<Recipe>,
    call: Call,
    crowd: Member,
    /// The connection on which it waits.
    link: Option<Link>,
    is_try: bool,
    is_endless: bool,
    /// The time that replicas have. The server replies within the command timeout.
    replicas_within: Duration,
    began: Instant,
    until: Instant,
    /// True if the latest reply was "not now", and nothing failed since.
    is_refused: bool,
    /// True if the server may have a place or a grant of this token.
    is_known: bool,
    /// True if the lock wasn't granted at once.
    has_waited: bool,
    /// True if the caller gets the cause of an outage.
    is_told: bool,
    outcome: Outcome,
}

impl<'a> Acquire<'a> {
    /// Makes an acquire until a limit, or without one. A limit of zero asks without waiting.
    pub(crate) fn new(
        core: &'a Arc<Core>,
        recipe: &'a Arc<Recipe>,
        limit: Option<Duration>,
        call: Call,
    ) -> Acquire<'a> {
        let is_try = limit == Some(Duration::ZERO);
        let (began, time) = (Instant::now(), limit.unwrap_or(Duration::MAX));
        Acquire {
            core,
            recipe,
            call,
            crowd: core.crowds.join(&recipe.keys),
            link: None,
            is_try,
            is_endless: limit.is_none(),
            replicas_within: match recipe.options.replicas {
                Some(_) => core.commands.timeout,
                None => Duration::ZERO,
            },
            began,
            until: later(began, if is_try { core.commands.timeout } else { time }),
            is_refused: false,
            is_known: false,
            has_waited: false,
            is_told: false,
            outcome: Outcome::Cancelled,
        }
    }

    /// Returns the grant, or `None` if the server said "not now" until the limit.
    pub(crate) async fn run(mut self) -> Result<Option<Arc<Hold>>, Error> {
        let acquired = self.acquire().await;
        self.outcome = match &acquired {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::NotAcquired,
            Err(Failure::Final(Error::Cancelled)) => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        self.is_told = acquired.as_ref().is_err_and(Failure::is_outage);
        Ok(acquired?)
    }

    async fn acquire(&mut self) -> Result<Option<Arc<Hold>>, Failure> {
        if !self.is_try && !self.crowd.enter(self.until).await {
            return self.end_outside();
        }
        let Some(hold) = self.ask_until_granted().await? else {
            return Ok(None);
        };
        let end = self.until + self.grace();
        self.call.blocks = Duration::ZERO;
        hold.tie(&mut self.call, end).await?;
        Ok(Some(hold))
    }

    /// Returns the time after the limit in which a reply still counts.
    fn grace(&self) -> Duration {
        GRACE + self.replicas_within
    }

    /// Ends an acquire whose limit was over before it could ask.
    fn end_outside(&mut self) -> Result<Option<Arc<Hold>>, Failure> {
        self.has_waited = true;
        // The acquires that ask hear from the server at each sign of life, and note failures.
        let longest = SIGN_OF_LIFE + self.core.commands.timeout;
        if self
            .crowd
            .has_replied_since(self.began.checked_sub(longest))
        {
            return Ok(None);
        }
        let server = self.core.commands.connections.name();
        let text = format!("no answer from {server} to the acquires before this one");
        Err(Failure::outage(text))
    }

    async fn ask_until_granted(&mut self) -> Result<Option<Arc<Hold>>, Failure> {
        let (mut pauses, mut cause) = (Pauses::new(), None);
        loop {
            let asked_at = Instant::now();
            if self.is_refused && asked_at >= self.until {
                return Ok(None);
            }
            let reply = match self.ask(asked_at).await {
                Ok(reply) => reply,
                Err(failure) if failure.is_outage() => {
                    if self.is_refused && failure.is_late() && self.is_over() {
                        return Ok(None);
                    }
                    let latest = self.failed(asked_at, cause, failure);
                    if !pauses.pause(self.until).await {
                        return Err(latest);
                    }
                    cause = Some(latest);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            (pauses, cause) = (Pauses::new(), None);
            self.crowd.replied();
            match fence_of(&reply) {
                Some(fence) if asked_at.elapsed() <= self.recipe.first_lease() / 3 => {
                    let hold = Hold::new(self.core, self.recipe, &self.call, fence);
                    hold.prolong(self.recipe.first_lease(), asked_at);
                    return Ok(Some(hold));
                }
                // The grant may be over. If it isn't, the server sets its lease anew.
                Some(_) => {}
                None if self.is_try => return Ok(None),
                None => (self.is_refused, self.has_waited) = (true, true),
            }
        }
    }

    /// Notes an outage. Returns the cause that the caller is to hear of.
    fn failed(&mut self, asked_at: Instant, cause: Option<Failure>, failure: Failure) -> Failure {
        (self.is_refused, self.has_waited) = (false, true);
        if !self.is_over() || !failure.is_late() {
            // The end of a limit says nothing about the server.
            self.crowd.failed();
        }
        if self.is_endless {
            self.core.commands.report(self.recipe.key(), &failure);
        }
        // A last try that had little time says nothing about the cause.
        let has_time = self.until.saturating_duration_since(asked_at) > FIRST_PAUSE;
        cause.filter(|_| !has_time).unwrap_or(failure)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Asks once. Notes whether the server may know this token afterwards.
    async fn ask(&mut self, asked_at: Instant) -> Result<Value, Failure> {
        let (was_known, unanswered) = (self.is_known, self.call.unanswered);
        let (command, blocks, keeps_place) = self.request(asked_at);
        let is_brief = self.is_try && self.recipe.options.replicas.is_none();
        let (grace, lane) = match is_brief {
            true => (Duration::ZERO, Lane::Shared),
            false => (self.grace(), Lane::Own(&mut self.link)),
        };
        self.call.blocks = blocks + self.replicas_within;
        let attempt = self.core.commands.attempt() + self.call.blocks;
        let end = (self.until + grace).min(asked_at + attempt);
        self.is_known = true;
        let (commands, key) = (&self.core.commands, self.recipe.key());
        let asked = commands.ask(lane, key, &command, &mut self.call, end).await;
        match &asked {
            Ok(reply) if fence_of(reply).is_some() => {}
            // A command before may be executed after this one.
            Ok(_) => self.is_known = keeps_place || self.call.unanswered > 0,
            Err(failure) if self.call.unanswered == unanswered => {
                self.is_known = was_known || failure.is_not_replicated();
            }
            Err(_) => {}
        }
        asked
    }

    /// Returns the next command, how long the server may take to reply, and whether the server keeps
    /// a place after a nil.
    fn request(&self, asked_at: Instant) -> (Cmd, Duration, bool) {
        let (recipe, commands) = (self.recipe, &self.core.commands);
        if self.is_try || !self.has_waited {
            let command = recipe.acquire(&self.call.token, commands.timeout);
            return (command, Duration::ZERO, false);
        }
        let left = self.until.saturating_duration_since(asked_at);
        let sign_of_life = match commands.connections.servers.is_cluster() {
            // Its client may have a limit of its own for all replies.
            true => LONGEST_WAIT,
            false => SIGN_OF_LIFE,
        };
        let block = sign_of_life.min(recipe.first_lease() / 3).min(left);
        let command = recipe.wait(&self.call.token, block, left, commands.timeout);
        (command, block, block < left)
    }

    /// Ends what the server may have of this token, in the background.
    fn leave(&self) {
        let (recipe, longest) = (Arc::clone(self.recipe), self.recipe.longest_trace());
        let mut call = Call::new(self.call.token.clone(), self.call.background.clone());
        let time = match self.call.unanswered > 0 {
            true => longest,
            false => SHORTEST_LEAVE,
        };
        let caller = if self.is_told {
            Caller::Waits
        } else {
            Caller::HasLeft
        };
        let (core, until) = (Arc::clone(self.core), later(Instant::now(), longest));
        self.core.go_on(&self.call.background, async move {
            let token = call.token.clone();
            let command = || Some(recipe.leave(&token, time));
            let key = recipe.key();
            // Without a server, what it has ends with the lease or with KEEP.
            let _ = core
                .commands
                .retry(None, key, &command, &mut call, until, caller)
                .await;
        });
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            let connections = &self.core.commands.connections;
            connections.put_back(link, &self.call.background);
        }
        if self.outcome != Outcome::Granted && self.is_known {
            self.leave();
        }
        if self.outcome != Outcome::Granted || self.has_waited {
            let subject = self.recipe.subject(None);
            let observer = &self.core.commands.observer;
            tell(|| observer.waited(&subject, self.began.elapsed(), self.outcome));
        }
    }
}

/// Returns the fence in a reply that grants the lock.
fn fence_of(reply: &Value) -> Option<i64> {
    match reply {
        Value::Array(grant) => match grant.as_slice() {
            [_, Value::Int(fence), ..] => Some(*fence),
            _ => None,
        },
        _ => None,
    }
}
