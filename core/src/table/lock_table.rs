//! The lock table's state, and the events that change it without an operation.

use crate::decision::{Answer, Decision, Deliveries};
use crate::state::backlog::Backlog;
use crate::state::contention::Contention;
use crate::state::durations::Durations;
use crate::state::hand_over::HandOver;
use crate::state::leave_marks::LeaveMarks;
use crate::state::lost_holds::LostHolds;
use crate::state::queue::{Position, Queues};
use crate::state::replica_waits::ReplicaWaits;
use crate::state::schedule::Schedule;
use crate::state::sessions::Sessions;
use crate::state::waiter::{Waiter, WaiterId, WaiterKind};
use crate::store::Environment;
use crate::transaction::{Transaction, Workspace};
use crate::values::lock::{Lock, Stored};
use crate::values::name::{Name, Relocation};
use crate::values::refusal::Refusal;
use crate::values::session_id::SessionId;

/// Counters since the module was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Grants with a new fence. Repeats do not count.
    pub grants: u64,
    /// Grants to waiters, including those that keep an earlier fence.
    pub hand_overs: u64,
    /// Leases that ran out, as far as the table saw it.
    pub expirations: u64,
    /// Waits that ended with their BLOCK. A wait that KEEP keeps doesn't count.
    pub timeouts: u64,
    /// Places and absent positions that reached the end of their KEEP.
    pub lapses: u64,
    /// Waits that a newer wait of the same token replaced. A LOCK.QUEUE that keeps its place does
    /// not count.
    pub take_overs: u64,
    /// Waits cancelled by LOCK.CANCEL.
    pub cancels: u64,
    /// Grants whose lease an extension set.
    pub extensions: u64,
    /// Grants that a release was applied to.
    pub releases: u64,
    /// Waits refused because they would never end.
    pub deadlocks: u64,
    /// Searches for a deadlock that reached their limit of work.
    pub deadlock_searches_given_up: u64,
    /// Waits refused because of `lock.max-waiters`.
    pub max_waiters_refusals: u64,
    /// Places refused, and positions with KEEP dropped, because of `lock.max-tickets`.
    pub max_tickets_refusals: u64,
    /// Hand-overs taken back because the client was gone.
    pub take_backs: u64,
}

/// Durations since the module was loaded.
#[derive(Debug, Default)]
pub struct Times {
    /// The time from the start of a token's wait to its grant.
    pub waits: Durations,
    /// The time from a grant to the release that ended it.
    pub holds: Durations,
    /// Holds that ended without a release, as far as an operation found them.
    pub lost_holds: LostHolds,
}

/// The queues of waiters, and the schedule of the names and waiters to look at.
#[derive(Debug, Default)]
pub(super) struct WaitQueues {
    pub(super) queues: Queues,
    /// Names to settle at a known time, because a lease ends there that a waiter waits for or that
    /// is one of several.
    pub(super) schedule: Schedule,
    /// Waiters that may be admissible and were not looked at yet, with the time from which they can
    /// be.
    pub(super) backlog: Backlog,
    pub(super) counters: Counters,
    pub(super) times: Times,
    pub(super) contention: Contention,
    pub(super) leave_marks: LeaveMarks,
}

/// The queues and the sessions of all names.
#[derive(Default)]
pub struct LockTable {
    pub(super) wait_queues: WaitQueues,
    pub(super) sessions: Sessions,
    pub(super) replica_waits: ReplicaWaits,
    pub(super) steps: u64,
    workspace: Workspace,
}

impl LockTable {
    /// Returns a table without waiters and sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the queues.
    pub const fn queues(&self) -> &Queues {
        &self.wait_queues.queues
    }

    /// Returns the marks of tokens that have left.
    pub const fn leave_marks(&mut self) -> &mut LeaveMarks {
        &mut self.wait_queues.leave_marks
    }

    /// Returns the sessions.
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &Counters {
        &self.wait_queues.counters
    }

    /// Returns the durations.
    pub const fn times(&mut self) -> &mut Times {
        &mut self.wait_queues.times
    }

    /// Returns the steps that all operations have taken: names looked at, waiters removed or
    /// granted.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Removes a waiter whose connection is gone or got a reply from the server, if the waiter
    /// still has its position. `left_ms` is now on the steady clock.
    ///
    /// Returns the name to settle. Returns `None` for a waiter for several names. That waiter is
    /// gone at once too, but its names fall due in parts.
    pub fn leave(&mut self, waiter_id: WaiterId, position: Position, left_ms: u64) -> Option<Name> {
        let WaitQueues {
            queues, contention, ..
        } = &mut self.wait_queues;
        let waiter = queues.waiter_at(position, waiter_id)?;
        contention.end_wait(&waiter.names, waiter.since_ms, left_ms, queues);
        queues.leave(position)
    }

    /// Like [`LockTable::leave`], for a waiter whose connection was lost at `lost_ms` on the steady
    /// clock. A waiter with KEEP keeps its position, unless `max_tickets` is reached.
    pub fn lose(
        &mut self,
        waiter_id: WaiterId,
        position: Position,
        lost_ms: u64,
        max_tickets: usize,
    ) -> Option<Name> {
        let wait_queues = &mut self.wait_queues;
        let waiter = wait_queues.queues.waiter_at(position, waiter_id)?;
        let WaiterKind::Blocked {
            keep_ms: Some(keep_ms),
        } = &waiter.kind
        else {
            return self.leave(waiter_id, position, lost_ms);
        };
        let until_ms = lost_ms.saturating_add(*keep_ms);
        let names = waiter.names.clone();
        if !wait_queues.has_room_for_absent(&names, max_tickets) {
            return self.leave(waiter_id, position, lost_ms);
        }
        wait_queues.queues.leave_absent(position, until_ms)
    }

    /// Ends the tie of a connection that was lost at `ended_ms` on the wall clock. The grants tied
    /// to the connection end, except those with KEEP.
    pub fn close_client(&mut self, client_id: u64, ended_ms: u64) {
        self.sessions.close_client(client_id, ended_ms);
    }

    /// Ends the sessions that a hand-over began which is to be taken back, because its client's
    /// connection is lost. Its grants last until then: what they replaced is to be restored in the same
    /// step.
    pub fn untie(&mut self, undelivered: &HandOver) {
        self.end_session(SessionId::all_in(&undelivered.sessions));
    }

    /// Ends these sessions, because the values with their grants are gone.
    pub fn end_session(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        sessions
            .into_iter()
            .for_each(|id| self.sessions.end_session(id));
    }

    /// Ends the sessions of a database, because all its keys are gone.
    pub fn end_sessions_in(&mut self, db: i32) {
        self.sessions.end_sessions_in(db);
    }

    /// Records that the server moved the value with these sessions to another name.
    pub fn relocate(&mut self, sessions: &[SessionId], name: &Name) {
        for id in sessions {
            self.sessions.move_to(*id, name);
        }
    }

    /// Records that the server moved locks to other names. Their holders have not gone.
    pub fn follow(&mut self, relocation: &Relocation) {
        match relocation {
            Relocation::Moved(from, _) => self.wait_queues.queues.forget_lock(from),
            Relocation::Swapped(one, other) => self.swap_databases(*one, *other),
        }
        self.replica_waits.relocate(relocation);
    }

    fn swap_databases(&mut self, one: i32, other: i32) {
        self.sessions.swap_databases(one, other);
        self.replica_waits.lose_swapped(one, other);
        self.wait_queues.schedule.swap_databases(one, other);
        for db in [one, other] {
            self.wait_queues.queues.forget_locks_in(db);
        }
    }

    /// Removes the times of the names in a database, or in all (`None`), because all its keys are
    /// gone. Names with a queue keep theirs.
    pub fn forget_times_in(&mut self, db: Option<i32>) {
        let WaitQueues {
            schedule, queues, ..
        } = &mut self.wait_queues;
        schedule.forget(|name| db.is_none_or(|db| name.db == db) && !queues.has_queue(name));
    }

    /// Ends all sessions, because all keys of all databases are gone.
    pub fn end_sessions_everywhere(&mut self) {
        self.sessions.end_sessions_everywhere();
    }

    /// Drops all sessions and all waiters without a connection, because this server is no longer a
    /// primary. The grants keep their leases, untied, and this table does not see their ends.
    ///
    /// Returns the names to settle if the server becomes a primary again. `now_ms` is on the steady
    /// clock.
    pub fn demote(&mut self, now_ms: u64) -> Vec<Name> {
        self.sessions.clear();
        self.wait_queues.queues.forget_all_locks();
        self.wait_queues.end_places(now_ms);
        self.wait_queues.queues.drop_places()
    }

    /// Drops the waiters without a connection at these names, about `most` of them, because the
    /// names belong to another server now. A client that asks for its place again is redirected to
    /// that server. Returns the names to settle. `now_ms` is on the steady clock.
    pub fn drop_places_at(&mut self, names: &[Name], most: usize, now_ms: u64) -> Vec<Name> {
        let mut left = Vec::new();
        let wait_queues = &mut self.wait_queues;
        for name in names {
            if left.len() >= most {
                break;
            }
            let dropped: Vec<Waiter> = wait_queues.queues.drop_places_at(name, most).collect();
            for Waiter {
                names, since_ms, ..
            } in dropped
            {
                let queues = &wait_queues.queues;
                wait_queues
                    .contention
                    .end_wait(&names, since_ms, now_ms, queues);
                left.extend_from_slice(names.as_slice());
            }
            if !wait_queues.queues.has_queue(name) {
                wait_queues.schedule.remove(name);
            }
        }
        left.retain(|name| wait_queues.queues.has_queue(name));
        left
    }

    /// Removes a part of the positions that waiters have left. Returns about `most` names to
    /// settle.
    pub fn work_off_left(&mut self, most: usize) -> Vec<Name> {
        self.wait_queues.queues.work_off(most)
    }

    /// Keeps the memory of deliveries that were carried out.
    pub fn reuse(&mut self, deliveries: Box<Deliveries>) {
        self.workspace.reuse(deliveries);
    }

    /// Runs a transaction on these names. Its changes become effects, and its answer and its
    /// deliveries are returned.
    pub(super) fn transact<'n>(
        &mut self,
        names: &'n [Name],
        environment: &mut Environment<'_, 'n>,
        run: impl FnOnce(&mut WaitQueues, &mut Transaction<'_, '_, 'n>) -> Result<Answer, Refusal>,
    ) -> Decision {
        let ties = (&mut self.sessions, &mut self.replica_waits);
        let mut tx = Transaction::new(names, environment, ties, &mut self.workspace);
        let answer = run(&mut self.wait_queues, &mut tx);
        debug_assert_eq!(
            self.wait_queues.overlooked(&mut tx),
            None,
            "overlooked waiter"
        );
        self.wait_queues.counters.expirations += tx.expirations;
        self.wait_queues.count_lost(&mut tx);
        self.steps += tx.steps;
        let deliveries = tx.commit();
        Decision { answer, deliveries }
    }
}

/// Returns a stored lock as a reader sees it at `now_ms`, on a primary or a replica: without leases
/// that have ended, and with no lease longer than the key's own expiry.
pub fn as_of(stored: Stored, now_ms: u64) -> Lock {
    let mut lock = stored.lock;
    lock.shorten(stored.expiry_ms.unwrap_or(u64::MAX));
    lock.expire(now_ms, |_| None);
    lock
}
