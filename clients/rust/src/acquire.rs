//! One acquire: it asks, it waits, and it leaves if it ends without a grant.
//!
//! The states are those of docs/internals/clients.md.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{timeout_at, Instant};

use crate::commands::{later, paused, Call, Caller, FIRST_PAUSE};
use crate::connections::Link;
use crate::core::Core;
use crate::crowd::{Crowd, Member};
use crate::error::{Error, Failure, Kind};
use crate::hold::Hold;
use crate::observer::{tell, Outcome};
use crate::recipe::Recipe;
use crate::servers::LONGEST_WAIT;

/// The time after the limit in which a reply still counts.
const GRACE: Duration = Duration::from_millis(100);

/// The longest time without a sign that the server lives, while a call waits.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// The time of LEAVE for a token that has no command on its way.
const SHORTEST_LEAVE: Duration = Duration::from_millis(1);

/// An acquire of one token. Dropping it gives up.
pub(crate) struct Acquire<'a> {
    core: &'a Arc<Core>,
    recipe: &'a Arc<Recipe>,
    call: Call,
    /// The connection on which it waits.
    link: Option<Link>,
    /// `None` if there is no limit. A limit of zero asks without waiting.
    limit: Option<Duration>,
    began: Instant,
    until: Instant,
    /// True if the latest reply was "not now", and nothing failed since.
    is_refused: bool,
    /// True if the latest reply left a place or a grant at the server.
    has_trace: bool,
    /// True if the lock wasn't granted at once.
    has_waited: bool,
    outcome: Outcome,
    /// The caller, who hears of an outage that ended the acquire, and not of any other.
    caller: Caller,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(
        core: &'a Arc<Core>,
        recipe: &'a Arc<Recipe>,
        limit: Option<Duration>,
        call: Call,
    ) -> Acquire<'a> {
        let began = Instant::now();
        let time = match limit {
            Some(Duration::ZERO) => core.commands.timeout,
            limit => limit.unwrap_or(Duration::MAX),
        };
        Acquire {
            core,
            recipe,
            call,
            link: None,
            limit,
            began,
            until: later(began, time),
            is_refused: false,
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
            Err(Failure {
                error: Error::Cancelled,
                ..
            }) => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        if acquired.as_ref().is_err_and(Failure::is_outage) {
            self.caller = Caller::Waits;
        }
        Ok(acquired?)
    }

    async fn acquire(&mut self) -> Result<Option<Arc<Hold>>, Failure> {
        let core = self.core;
        let member = Member::new(&core.crowds, &self.recipe.keys);
        let crowd = &member.crowd;
        if self.is_try() {
            return self.ask_until_granted(crowd).await;
        }
        let Ok(_turn) = timeout_at(self.until, crowd.asking.acquire()).await else {
            return self.end_outside(crowd);
        };
        self.ask_until_granted(crowd).await
    }

    fn is_try(&self) -> bool {
        self.limit == Some(Duration::ZERO)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Ends an acquire whose limit was over before it could ask.
    fn end_outside(&mut self, crowd: &Crowd) -> Result<Option<Arc<Hold>>, Failure> {
        self.has_waited = true;
        // The acquires that ask hear from the server at each sign of life, and note failures.
        let longest = SIGN_OF_LIFE + self.core.commands.timeout;
        let replied_at = *crowd.replied_at.lock();
        match replied_at.is_some_and(|at| at.elapsed() <= longest) {
            true => Ok(None),
            false => Err(Failure::late(
                &self.core.commands.connections.servers.name,
                self.began.elapsed(),
            )),
        }
    }

    async fn ask_until_granted(&mut self, crowd: &Crowd) -> Result<Option<Arc<Hold>>, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let asked_at = Instant::now();
            let failure = match self.ask(asked_at).await {
                Ok(fence) => {
                    *crowd.replied_at.lock() = Some(Instant::now());
                    let is_early = asked_at.elapsed() <= self.recipe.first_lease() / 3;
                    // A late grant may be over. If it isn't, the server sets its lease anew.
                    if let Some(fence) = fence.filter(|_| is_early) {
                        let link = self.link.take_if(|_| self.recipe.options.is_session);
                        let hold = Hold::new(self.core, self.recipe, &self.call, fence, link);
                        hold.prolong(self.recipe.first_lease(), asked_at);
                        return Ok(Some(hold));
                    }
                    self.is_refused = fence.is_none();
                    if self.is_refused && (self.is_try() || self.is_over()) {
                        return Ok(None);
                    }
                    self.has_waited = true;
                    pause = FIRST_PAUSE;
                    continue;
                }
                Err(failure) if failure.is_outage() => failure,
                Err(failure) => return Err(failure),
            };
            self.has_waited = true;
            // The end of a limit says nothing about the server.
            let is_end = failure.kind == Kind::Late && self.is_over();
            if is_end && self.is_refused {
                return Ok(None);
            }
            self.is_refused = false;
            crowd.replied_at.lock().take_if(|_| !is_end);
            if self.limit.is_none() {
                self.core.commands.report(self.recipe.key(), &failure);
            }
            if !paused(&mut pause, self.until).await {
                return Err(failure);
            }
        }
    }

    /// Asks once, and returns the fence of a grant.
    async fn ask(&mut self, asked_at: Instant) -> Result<Option<i64>, Failure> {
        let (commands, key) = (&self.core.commands, self.recipe.key());
        let (command, blocks, keeps_place) = self.request(asked_at);
        // The server replies to a command with replicas within the command timeout.
        let replicated = self
            .recipe
            .options
            .replicas
            .map_or(Duration::ZERO, |_| commands.timeout);
        let blocks = blocks + replicated;
        let attempt = asked_at + commands.connections.attempt + blocks;
        let end = attempt.min(self.until + GRACE + replicated);
        let mut shared = None;
        let slot = match blocks.is_zero() {
            true => shared.insert(Some(commands.connections.shared(&self.call.background))),
            false => &mut self.link,
        };
        let asked = commands
            .ask(slot, key, &command, &mut self.call, blocks, end)
            .await;
        let fence = match asked {
            Ok(reply) => fence_of(&reply),
            Err(failure) => {
                self.has_trace |= matches!(failure.error, Error::NotReplicated(_));
                return Err(failure);
            }
        };
        self.has_trace = fence.is_some() || keeps_place;
        match fence {
            Some(_) if self.recipe.options.is_session && !self.tie(end).await? => Ok(None),
            _ => Ok(fence),
        }
    }

    /// Returns the next command, how long the server may take to reply, and whether the server keeps
    /// a place after a nil.
    fn request(&self, asked_at: Instant) -> (Cmd, Duration, bool) {
        let (recipe, commands) = (self.recipe, &self.core.commands);
        if self.is_try() || !self.has_waited {
            let command = recipe.acquire(&self.call.token, commands.timeout);
            return (command, Duration::ZERO, false);
        }
        let left = self.until.saturating_duration_since(asked_at);
        let sign_of_life = match commands.connections.servers.is_cluster {
            // Its client may have a limit of its own for all replies.
            true => LONGEST_WAIT,
            false => SIGN_OF_LIFE,
        };
        let block = sign_of_life.min(recipe.first_lease() / 3).min(left);
        let command = recipe.wait(&self.call.token, block, left, commands.timeout);
        (command, block, block < left)
    }

    /// Ties the grant of a session to a connection, which no other call uses from now on. Returns
    /// false if the grant is over.
    async fn tie(&mut self, until: Instant) -> Result<bool, Failure> {
        let command = self
            .recipe
            .extend(&self.call.token, self.recipe.first_lease());
        let (slot, call) = (&mut self.link, &mut self.call);
        let tied = self.core.commands.ask(
            slot,
            self.recipe.key(),
            &command,
            call,
            Duration::ZERO,
            until,
        );
        Ok(self.recipe.is_all(&tied.await?))
    }

    /// Ends what the server may have of this token, in the background.
    fn leave(&self) {
        let (core, recipe) = (Arc::clone(self.core), Arc::clone(self.recipe));
        let mut call = Call::new(self.call.token.clone(), self.call.background.clone());
        let (longest, caller) = (recipe.longest_trace(), self.caller);
        let time = match self.call.unanswered {
            0 => SHORTEST_LEAVE,
            _ => longest,
        };
        self.call.background.start(async move {
            let leave = recipe.leave(&call.token, time);
            let (command, until) = (|| Some(leave.clone()), later(Instant::now(), longest));
            let left = core
                .commands
                .retry(None, recipe.key(), &command, &mut call, until, caller);
            // Without a server, what it has ends with the lease or with KEEP.
            let _ = left.await;
        });
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.core.commands.connections.put_back(link);
        }
        let is_granted = self.outcome == Outcome::Granted;
        if !is_granted && (self.has_trace || self.call.unanswered > 0) {
            self.leave();
        }
        if !is_granted || self.has_waited {
            let (subject, time) = (self.recipe.subject(None), self.began.elapsed());
            tell(|| {
                self.core
                    .commands
                    .observer
                    .waited(&subject, time, self.outcome)
            });
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
