//! How a thread takes a lock, by LOCK.WAIT, and gives it back.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};

use crate::commands::{answer, left, Answer, Commands};
use crate::error::{may_pass, Backoff, Error};
use crate::grant::{Grant, Leave};
use crate::lines::{Line, Pool, Source, ANSWER_WITHIN};
use crate::options::{Keys, Options, Renewal};
use crate::renewals::Renewals;

/// How long a wait stays on one connection. Then the same is sent on a new one: so a connection that
/// died without a word is noticed.
const SLICE: Duration = Duration::from_secs(15);

/// By how much the server may be late when a wait's time is over.
const GRACE: Duration = Duration::from_millis(250);

/// How often a wait is told that it is given up: the first time it may not have begun.
const TELL_AGAIN: Duration = Duration::from_millis(20);

/// What all locks of one `Locks` share.
pub(crate) struct Shared {
    pool: Pool,
    renewals: Renewals,
}

/// Who has the token.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    commands: Commands,
    state: Mutex<State>,
    changed: Condvar,
}

/// A grant, and its connection where it is tied to one.
pub(crate) struct Held {
    pub(crate) grant: Grant,
    session: Mutex<Tied>,
}

/// A connection of the lock's own, that its wait stands on, or its grant is tied to.
#[derive(Default)]
struct Tied {
    line: Option<Box<dyn Line>>,
    /// The last two before it, whose answer didn't come, or not whole: a process that is stopped and continued has its
    /// reading cut off. They stay open until the next one was answered: only then has the server moved the place
    /// or the grant there, which would have gone with its connection. Two, because the latest may have
    /// broken before the server read from it.
    unanswered: VecDeque<Box<dyn Line>>,
}

#[derive(Default)]
struct State {
    turn: Turn,
    held: Option<Arc<Held>>,
}

/// What the thread does whose turn it is: one acquires or releases at a time.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Nobodys,
    Asks,
    Waits,
    GivesUp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Try,
    Until(Instant),
    ForEver,
}

/// Ends the turn.
struct MyTurn<'a>(&'a Owner);

impl Drop for MyTurn<'_> {
    fn drop(&mut self) {
        self.0.state().turn = Turn::Nobodys;
        self.0.changed.notify_all();
    }
}

impl Shared {
    pub(crate) fn new(source: Box<dyn Source>) -> Shared {
        Shared {
            pool: Pool::new(source),
            renewals: Renewals::new(),
        }
    }
}

impl Owner {
    pub(crate) fn new(shared: Arc<Shared>, keys: Keys, options: Options) -> Owner {
        Owner {
            shared,
            commands: Commands::new(keys, options),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn token(&self) -> &[u8] {
        &self.commands.token
    }

    pub(crate) fn take(self: &Arc<Self>, patience: Patience) -> Result<Option<Arc<Held>>, Error> {
        let turn = match patience {
            Patience::Try => Turn::Asks,
            Patience::Until(_) | Patience::ForEver => Turn::Waits,
        };
        let Some(_mine) = self.enter(patience, turn) else {
            return Ok(None);
        };
        let taken = self.ask_for_it(patience);
        if !self.is_given_up_at_last() {
            return taken;
        }
        match taken {
            Ok(Some(held)) => drop(self.leave(&held, Instant::now() + ANSWER_WITHIN)),
            Ok(None) | Err(_) => self.give_up(),
        }
        Err(Error::Cancelled)
    }

    fn ask_for_it(self: &Arc<Self>, patience: Patience) -> Result<Option<Arc<Held>>, Error> {
        let held = self
            .state()
            .held
            .clone()
            .filter(|held| held.grant.is_held());
        let holds = held.as_ref().map_or(1, |held| held.grant.holds() + 1);
        let end = match patience {
            Patience::Try => Some(Instant::now() + ANSWER_WITHIN),
            Patience::Until(end) => Some(end),
            Patience::ForEver => None,
        };
        let held_on = held.as_ref().map(|held| mem::take(&mut *held.session()));
        let mut session = held_on.unwrap_or_default();
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            let left = end.map(|end| end.saturating_duration_since(sent));
            let within = left.unwrap_or(SLICE).min(SLICE) + GRACE;
            let command = match patience {
                Patience::Try => self.commands.acquire(holds),
                Patience::Until(_) | Patience::ForEver => self.commands.wait(holds, left),
            };
            let asked = self.ask_on(&mut session, &command, within);
            let over = end.is_some_and(|end| Instant::now() >= end);
            match asked.and_then(|value| answer(&value)) {
                // It may have been granted just now, or long ago to a process that stood still: asked
                // again, it is known from when the lease counts.
                Ok(Answer::Granted(_)) if sent.elapsed() > self.commands.options.lease / 10 => {}
                Ok(Answer::Granted(fence)) => {
                    return Ok(Some(self.granted(held, fence, sent, holds, session)));
                }
                Ok(Answer::NotNow) if over || patience == Patience::Try => return Ok(None),
                Ok(Answer::NotNow) => {}
                Err(error) if !may_pass(&error) => return Err(error.into()),
                Err(error) if over => {
                    self.give_up();
                    return Err(error.into());
                }
                // Whoever is away is passed over, so there is no pause here.
                Err(error) if error.is_timeout() => {}
                Err(_) => self.pause_until(backoff.next(end)),
            }
            if self.state().turn == Turn::GivesUp {
                return Ok(None);
            }
        }
    }

    fn granted(
        self: &Arc<Self>,
        before: Option<Arc<Held>>,
        fence: i64,
        sent: Instant,
        holds: u32,
        session: Tied,
    ) -> Arc<Held> {
        let held = match before {
            Some(held) if held.grant.is_again(fence) => {
                held.grant.renewed(sent, self.commands.options.lease);
                held.grant.set_holds(holds);
                held
            }
            before => {
                before.inspect(|held| held.grant.lose());
                let grant = Grant::new(fence, sent, &self.commands.options);
                let held = Arc::new(Held {
                    grant,
                    session: Mutex::default(),
                });
                self.state().held = Some(Arc::clone(&held));
                self.shared
                    .renewals
                    .add(Arc::clone(self), Arc::clone(&held));
                held
            }
        };
        *held.session() = session;
        held
    }

    /// Ends the wait of the thread whose turn it is.
    pub(crate) fn cancel(&self) -> bool {
        let mut state = self.state();
        if state.turn != Turn::Waits {
            return false;
        }
        state.turn = Turn::GivesUp;
        self.changed.notify_all();
        while state.turn == Turn::GivesUp {
            drop(state);
            let _ = self.ask(&self.commands.cancel(), ANSWER_WITHIN);
            state = self.wait_while(self.state(), TELL_AGAIN, |turn| turn == Turn::GivesUp);
        }
        true
    }

    pub(crate) fn release(&self, held: &Arc<Held>, until: Instant) -> Result<bool, Error> {
        let lease_ends = Patience::Until(held.grant.until());
        let Some(_mine) = self.enter(lease_ends, Turn::Asks) else {
            held.grant.lose();
            return Ok(false);
        };
        self.leave(held, until)
    }

    fn leave(&self, held: &Arc<Held>, until: Instant) -> Result<bool, Error> {
        let Leave::Holds(holds, lease_ends) = held.grant.leave() else {
            held.grant.lose();
            if self.forget(held) {
                // Some of its keys may be held still.
                let _ = self.ask(&self.commands.release(0), ANSWER_WITHIN);
            }
            return Ok(false);
        };
        if holds == 0 {
            self.forget(held);
            self.shared.renewals.remove(held);
        }
        let release = self.commands.release(holds);
        let (answer, sent_again) = self.ask_until(&release, until.min(lease_ends))?;
        // Where an answer was lost, that one may have told of the release.
        let released = self.commands.held_all(&answer) || (sent_again && holds == 0);
        if !released {
            held.grant.lose_at_release();
        } else if holds == 0 {
            held.grant.left();
            // What was tied to it is released, so it is a connection like others.
            let line = held.session().line.take();
            line.into_iter()
                .for_each(|line| self.shared.pool.put_back(line));
        }
        Ok(released)
    }

    /// Tells whether this was the latest grant.
    fn forget(&self, held: &Arc<Held>) -> bool {
        let forgotten = self.state().held.take_if(|it| Arc::ptr_eq(it, held));
        forgotten.is_some()
    }

    pub(crate) fn extend(&self, held: &Arc<Held>, lease: Duration) -> Result<bool, Error> {
        if !held.grant.is_held() {
            return Ok(false);
        }
        let sent = Instant::now();
        let (answer, _) = self.ask_until(&self.commands.extend(lease), held.grant.until())?;
        Ok(self.extended(held, &answer, sent, lease))
    }

    /// Sends what is due for a grant, or notes that it is over.
    pub(crate) fn renew(&self, held: &Arc<Held>) {
        let sent = Instant::now();
        let lease = held.grant.lease();
        let left = held.grant.until().saturating_duration_since(sent);
        if left.is_zero() {
            return held.grant.lose();
        }
        let within = left.min(ANSWER_WITHIN);
        let answer = match self.commands.options.renewal {
            Renewal::Session => {
                let mut session = held.session();
                self.ask_on(&mut session, &self.commands.tie(lease), within)
            }
            Renewal::Client | Renewal::Nobody => self.ask(&self.commands.extend(lease), within),
        };
        match answer {
            Ok(answer) => drop(self.extended(held, &answer, sent, lease)),
            Err(_) => held.grant.not_renewed(),
        }
    }

    fn extended(&self, held: &Arc<Held>, answer: &Value, sent: Instant, lease: Duration) -> bool {
        let extended = self.commands.held_all(answer);
        if extended {
            held.grant.renewed(sent, lease);
            self.shared.renewals.look_again();
        } else {
            held.grant.lose();
        }
        extended
    }

    pub(crate) fn left(&self) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for check in self.commands.checks() {
            let (value, _) = self.ask_until(&check, Instant::now() + ANSWER_WITHIN)?;
            least = least.min(left(&value)?);
        }
        Ok(least)
    }

    /// Leaves nothing behind: in this order, after the first nothing waits that could be granted.
    fn give_up(&self) {
        let _ = self.ask(&self.commands.cancel(), GRACE);
        let _ = self.ask(&self.commands.release(0), GRACE);
    }

    fn ask_until(&self, command: &Cmd, until: Instant) -> RedisResult<(Value, bool)> {
        let mut backoff = Backoff::new();
        let mut sent_again = false;
        loop {
            match self.ask(command, ANSWER_WITHIN) {
                Ok(value) => return Ok((value, sent_again)),
                Err(error) if !may_pass(&error) || Instant::now() >= until => return Err(error),
                Err(_) => self.pause_until(backoff.next(Some(until))),
            }
            sent_again = true;
        }
    }

    fn ask(&self, command: &Cmd, within: Duration) -> RedisResult<Value> {
        self.shared.pool.ask(command, self.commands.route(), within)
    }

    /// Asks on the lock's own connection if it is tied to one.
    fn ask_on(&self, session: &mut Tied, command: &Cmd, within: Duration) -> RedisResult<Value> {
        if self.commands.options.renewal != Renewal::Session {
            return self.ask(command, within);
        }
        let mut line = match session.line.take() {
            Some(line) => line,
            None => self.shared.pool.open()?,
        };
        let answer = line.ask(command, self.commands.route(), within);
        match &answer {
            Err(error) if may_pass(error) => {
                session.unanswered.push_back(line);
                if session.unanswered.len() > 2 {
                    session.unanswered.pop_front();
                }
            }
            Ok(_) | Err(_) => {
                session.line = Some(line);
                session.unanswered.clear();
            }
        }
        answer
    }

    /// Waits for this thread's turn. None: its time is over, or another one waits already.
    fn enter(&self, patience: Patience, turn: Turn) -> Option<MyTurn<'_>> {
        let mut state = self.state();
        while state.turn != Turn::Nobodys {
            let left = match patience {
                Patience::Try if state.turn != Turn::Asks => return None,
                Patience::Until(end) => end.checked_duration_since(Instant::now())?,
                Patience::Try | Patience::ForEver => SLICE,
            };
            state = self.wait_while(state, left, |turn| turn != Turn::Nobodys);
        }
        state.turn = turn;
        Some(MyTurn(self))
    }

    /// From here on the wait can't be given up any more, if it wasn't.
    fn is_given_up_at_last(&self) -> bool {
        let mut state = self.state();
        if state.turn == Turn::Waits {
            state.turn = Turn::Asks;
        }
        state.turn == Turn::GivesUp
    }

    fn pause_until(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        drop(self.wait_while(self.state(), left, |turn| turn != Turn::GivesUp));
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        left: Duration,
        goes_on: impl Fn(Turn) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self
            .changed
            .wait_timeout_while(state, left, |state| goes_on(state.turn));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn session(&self) -> MutexGuard<'_, Tied> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
