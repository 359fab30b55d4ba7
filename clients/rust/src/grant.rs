//! One grant and its lease, by the local monotonic clock, until the lock is released or lost.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use redis::Value;
use tokio::sync::{watch, OwnedMutexGuard};
use tokio::time::Instant;

use crate::connections::Connection;
use crate::error::{Backoff, Failure};
use crate::mutex::Mutex;
use crate::options::{Options, Renewal};

/// The most that a lease is shorter than the time left when it was computed.
const SENDING: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    /// The last RELEASE is in flight, or has its reply.
    Released,
    Lost,
}

struct State {
    holds: u32,
    lease: Duration,
    /// The sending time of the newest command that has set the lease.
    sent: Instant,
    until: Instant,
    due: Instant,
    backoff: Backoff,
    /// The turn of the handle, unless the handle is reentrant. The next acquire waits for it.
    turn: Option<OwnedMutexGuard<()>>,
}

pub(crate) struct Grant {
    pub(crate) token: Vec<u8>,
    pub(crate) fence: i64,
    pub(crate) session: Mutex<Session>,
    granted: Instant,
    /// The end of the longest hold.
    hold_ends: Option<Instant>,
    renewal: Renewal,
    renew_every: Duration,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
}

/// The connections of a session's grant.
#[derive(Default)]
pub(crate) struct Session {
    /// The connection for the grant's commands.
    current: Option<Connection>,
    /// The last two earlier connections without a reply. They stay open until a newer one has a
    /// reply, because only then has the server tied the grant to it.
    unanswered: VecDeque<Connection>,
}

impl Session {
    /// Returns a session that is tied to a connection. `None` if the grant isn't a session's.
    pub(crate) fn of(current: Option<Connection>) -> Session {
        Session {
            current,
            unanswered: VecDeque::new(),
        }
    }

    /// Returns the connection for the next command, unless a new one is needed.
    pub(crate) fn current(&self) -> Option<Connection> {
        self.current.clone().filter(|it| !it.is_closed())
    }

    /// Returns the connection for the next command: the opened one, unless another command has
    /// opened one meanwhile.
    pub(crate) fn current_or(&mut self, opened: Connection) -> Connection {
        let current = self.current().unwrap_or(opened);
        self.current.insert(current).clone()
    }

    /// Learns from the reply to a command that ties the grant, or from its failure.
    pub(crate) fn note(&mut self, connection: &Connection, answer: &Result<Value, Failure>) {
        if !self
            .current
            .as_ref()
            .is_some_and(|it| it.is_same(connection))
        {
            return;
        }
        match answer {
            Ok(_) => self.unanswered.clear(),
            Err(Failure::Final(_)) => {}
            Err(Failure::Outage(_) | Failure::Moved(_)) => {
                self.unanswered.extend(self.current.take());
                if self.unanswered.len() > 2 {
                    self.unanswered.pop_front();
                }
            }
        }
    }
}

/// The state of a grant after a release.
pub(crate) enum Left {
    Holds(u32),
    /// The grant was lost before.
    Lost,
    /// The grant was released before.
    Released,
}

impl Grant {
    /// Returns a grant with one hold. Its lease counts from `sent`, when the granted command was
    /// sent, because the server starts the lease no earlier.
    pub(crate) fn new(
        token: Vec<u8>,
        fence: i64,
        sent: Instant,
        options: &Options,
        turn: OwnedMutexGuard<()>,
    ) -> Grant {
        let state = State {
            holds: 1,
            lease: options.lease,
            sent,
            until: sent,
            due: sent,
            backoff: Backoff::new(),
            turn: (!options.is_reentrant).then_some(turn),
        };
        let grant = Grant {
            token,
            fence,
            session: Mutex::default(),
            granted: Instant::now(),
            hold_ends: options.max_hold.map(|hold| later(sent, hold)),
            renewal: options.renewal,
            renew_every: options.renew_every,
            phase: watch::Sender::new(Phase::Held),
            state: Mutex::new(state),
        };
        grant.renewed(sent, first_lease(options));
        grant.state.lock().lease = options.lease;
        grant
    }

    /// Notes that a command sent at `sent` has set the lease. One that was sent before the newest
    /// such command can only shorten it, because replies that arrive together are noted in any order.
    pub(crate) fn renewed(&self, sent: Instant, lease: Duration) {
        let until = later(sent, lease);
        let third = self.renew_every.min(lease / 3);
        let due = match self.renewal {
            Renewal::Nobody => until,
            // The last renewal has set the lease to the end of the hold, less the time to send it.
            _ if self.hold_ends.is_some_and(|ends| until + SENDING >= ends) => until,
            Renewal::Client | Renewal::Session => later(sent, third),
        };
        let mut state = self.state.lock();
        if sent >= state.sent {
            (state.sent, state.until, state.due) = (sent, until, due);
        } else {
            (state.until, state.due) = (until.min(state.until), due.min(state.due));
        }
        state.backoff = Backoff::new();
        drop(state);
        self.phase.send_modify(|_| {});
    }

    /// Notes that the caller has set the lease, which later renewals use too.
    pub(crate) fn extended(&self, sent: Instant, lease: Duration) {
        self.state.lock().lease = lease;
        self.renewed(sent, lease);
    }

    /// Schedules another renewal after one that was sent at `sent` and failed.
    pub(crate) fn not_renewed(&self, sent: Instant) {
        let mut state = self.state.lock();
        state.due = state.backoff.next(sent).min(state.until);
    }

    /// Returns the time of the next renewal, or the end of a lease without renewal. `None` if the
    /// grant has ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        let due = self.state.lock().due;
        (self.phase() == Phase::Held).then_some(due)
    }

    /// Returns the lease of a renewal that is sent now, which ends with the longest hold.
    pub(crate) fn next_lease(&self) -> Duration {
        let lease = self.state.lock().lease;
        let left = self
            .hold_ends
            .map(|ends| ends.saturating_duration_since(Instant::now()));
        left.map_or(lease, |left| lease.min(left).max(Duration::from_millis(1)))
    }

    pub(crate) fn until(&self) -> Instant {
        self.state.lock().until
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.granted.elapsed()
    }

    pub(crate) fn holds(&self) -> u32 {
        self.state.lock().holds
    }

    pub(crate) fn set_holds(&self, holds: u32) {
        self.state.lock().holds = holds;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.phase() == Phase::Held && Instant::now() < self.until()
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self.phase() {
            Phase::Held => Instant::now() >= self.until(),
            Phase::Released => false,
            Phase::Lost => true,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns a receiver of phases and renewals.
    pub(crate) fn changes(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Ends the grant as lost. Returns false if it was lost before, or released by someone who has
    /// not found it lost.
    pub(crate) fn lose(&self, from: Phase) -> bool {
        let is_lost = self.phase.send_if_modified(|phase| {
            let is_lost = *phase == Phase::Held || *phase == from;
            *phase = if is_lost { Phase::Lost } else { *phase };
            is_lost
        });
        if is_lost {
            self.free_turn();
        }
        is_lost
    }

    /// Removes one hold; renewals end with the last one. The turn stays until `free_turn`.
    pub(crate) fn release(&self, most_left: u32) -> Left {
        let mut left = Left::Lost;
        self.phase.send_if_modified(|phase| {
            let mut state = self.state.lock();
            left = match *phase {
                Phase::Released => Left::Released,
                Phase::Held if Instant::now() < state.until => {
                    state.holds = state.holds.saturating_sub(1).min(most_left);
                    Left::Holds(state.holds)
                }
                Phase::Held | Phase::Lost => Left::Lost,
            };
            let is_last = matches!(left, Left::Holds(0));
            *phase = if is_last { Phase::Released } else { *phase };
            is_last
        });
        left
    }

    /// Lets the next acquire of the handle begin.
    pub(crate) fn free_turn(&self) {
        drop(self.take_turn());
    }

    /// Returns the turn, unless the handle is reentrant.
    pub(crate) fn take_turn(&self) -> Option<OwnedMutexGuard<()>> {
        self.state.lock().turn.take()
    }
}

/// Returns the lease that a granted lock is to have, which ends with the longest hold.
pub(crate) fn first_lease(options: &Options) -> Duration {
    options
        .max_hold
        .map_or(options.lease, |hold| hold.min(options.lease))
}

/// Returns `from + by`, or 100 years after `from` if the clock cannot represent that.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    from.checked_add(by.min(YEARS)).unwrap_or(from + YEARS)
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("fence", &self.fence)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn grant() -> Grant {
        let turn = std::sync::Arc::new(tokio::sync::Mutex::new(()));
        let turn = turn.try_lock_owned().expect("a free turn");
        Grant::new(Vec::new(), 1, Instant::now(), &Options::new(), turn)
    }

    #[test]
    fn one_of_two_releases_ends_the_last_hold() {
        for round in 0..20_000 {
            let (grant, begin) = (grant(), Barrier::new(2));
            let ends = || {
                begin.wait();
                matches!(grant.release(u32::MAX), Left::Holds(0))
            };
            let (first, second) = thread::scope(|scope| {
                let first = scope.spawn(ends);
                (ends(), first.join().expect("no panic"))
            });
            assert!(first != second, "round {round}");
        }
    }

    #[test]
    fn a_late_renewal_does_not_lengthen_the_lease() {
        let grant = grant();
        let sent = Instant::now();
        let extended = sent + Duration::from_millis(1);
        grant.extended(extended, Duration::from_secs(5));
        grant.renewed(sent, Duration::from_secs(30));
        assert_eq!(grant.until(), extended + Duration::from_secs(5));
        // The newer command may have run first.
        grant.extended(sent, Duration::from_secs(2));
        assert_eq!(grant.until(), sent + Duration::from_secs(2));
    }
}
