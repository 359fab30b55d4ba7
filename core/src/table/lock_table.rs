//! What the lock table remembers, and what it is told without an operation.

use std::collections::BTreeSet;

use crate::branch::unlikely;
use crate::decision::{Answer, Decision, Deliveries};
use crate::state::durations::Durations;
use crate::state::lost_holds::LostHolds;
use crate::state::place::Stand;
use crate::state::queue::{Position, Queues, WaiterId};
use crate::state::schedule::Schedule;
use crate::state::sessions::Sessions;
use crate::store::Environment;
use crate::transaction::{Lists, Transaction, Workspace};
use crate::values::lock::{Lock, Stored};
use crate::values::name::Name;
use crate::values::refusal::Refusal;
use crate::values::session_id::SessionId;

/// What the table counts, since the module was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Grants with a fence of their own: repeats don't count.
    pub grants: u64,
    /// Those among them that went to one who waited.
    pub hand_overs: u64,
    /// Leases that ended without a RELEASE, as far as the table saw them end.
    pub expirations: u64,
    /// Waits that ended at their BLOCK.
    pub timeouts: u64,
    /// Places that nobody kept.
    pub lapses: u64,
    /// Positions that went to a newer connection of the same token.
    pub take_overs: u64,
    /// Waits given up by LOCK.CANCEL.
    pub cancels: u64,
    /// Grants whose lease was set anew by an extension.
    pub extensions: u64,
    /// Grants that a release took a hold of.
    pub releases: u64,
    /// Waits refused because they would never end.
    pub deadlocks: u64,
    /// Searches for a deadlock that took too long.
    pub deadlock_searches_given_up: u64,
    /// Waits refused because as many clients wait as may.
    pub max_waiters_refusals: u64,
    /// Places refused because there were as many as may be.
    pub max_tickets_refusals: u64,
    /// Hand-overs undone because the client was gone.
    pub take_backs: u64,
}

/// How long it took, since the module was loaded.
#[derive(Debug, Default)]
pub struct Times {
    /// From when a token began to wait until it was granted what it waited for.
    pub waits: Durations,
    /// From a grant until a release ended it.
    pub holds: Durations,
    /// From a grant until something else ended it, as far as an operation found that.
    pub lost_holds: LostHolds,
}

impl Times {
    /// Counts the holds that a transaction found to be lost.
    #[inline(never)]
    fn record_lost(&mut self, lists: &mut Lists) {
        let lost = lists.lost_holds.drain(..);
        lost.for_each(|hold| self.lost_holds.record(hold));
    }
}

/// Who waits, and when what is to be looked at.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) queues: Queues,
    /// Names that are to be settled at some time: a lease ends there that somebody waits for, or
    /// that is one of several.
    pub(super) schedule: Schedule,
    /// Waiters that may be admitted and were not looked at yet, and from when on they can be.
    pub(super) pending: BTreeSet<(u64, Position)>,
    pub(super) counters: Counters,
    pub(super) times: Times,
}

impl Waiting {
    /// Whether one more may wait without its connection, who can't be told that it may not: it is counted
    /// if it may not.
    pub(super) fn has_room_for_absent(&mut self, max_tickets: usize) -> bool {
        let has_room = max_tickets == 0 || self.queues.place_count() < max_tickets;
        self.counters.max_tickets_refusals += u64::from(!has_room);
        has_room
    }
}

/// The queues and the sessions, and the rules by which they move.
#[derive(Default)]
pub struct LockTable {
    pub(super) waiting: Waiting,
    pub(super) sessions: Sessions,
    pub(super) steps: u64,
    workspace: Workspace,
}

impl LockTable {
    /// A table where nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queues, to look at.
    pub const fn queues(&self) -> &Queues {
        &self.waiting.queues
    }

    /// The sessions, to look at.
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The counts, to look at.
    pub const fn counters(&self) -> &Counters {
        &self.waiting.counters
    }

    /// The times, to sum up.
    pub const fn times(&mut self) -> &mut Times {
        &mut self.waiting.times
    }

    /// How many steps all operations took so far: names looked at, waiters taken out or granted.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes a waiter out of the queues, if it waits still where it was queued: its connection is gone or was
    /// answered by the server. Returns the name to settle. Of a waiter for several names none is returned: they fall
    /// due in parts, although the waiter is gone at once as well.
    pub fn leave(&mut self, waiter_id: WaiterId, position: Position) -> Option<Name> {
        let queues = &mut self.waiting.queues;
        queues.waiter_at(position, waiter_id)?;
        queues.leave(position)
    }

    /// As [`LockTable::leave`], of a waiter whose connection was lost at `lost_ms` on the steady clock: its
    /// position stays where that is to be kept, unless as many wait without a connection as may.
    pub fn lose(
        &mut self,
        waiter_id: WaiterId,
        position: Position,
        lost_ms: u64,
        max_tickets: usize,
    ) -> Option<Name> {
        let waiting = &mut self.waiting;
        let waiter = waiting.queues.waiter_at(position, waiter_id)?;
        let Stand::Blocked {
            keep_ms: Some(keep_ms),
        } = &waiter.stand
        else {
            return self.leave(waiter_id, position);
        };
        let until_ms = lost_ms.saturating_add(*keep_ms);
        if !waiting.has_room_for_absent(max_tickets) {
            return self.leave(waiter_id, position);
        }
        waiting.queues.leave_absent(position, until_ms)
    }

    /// A connection is gone since `ended_ms` on the wall clock: what is tied to it has ended, but for what
    /// is to be kept for a while.
    pub fn close_client(&mut self, client_id: u64, ended_ms: u64) {
        self.sessions.close_client(client_id, ended_ms);
    }

    /// The values with these sessions are gone, and with them the grants.
    pub fn end_session(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        sessions
            .into_iter()
            .for_each(|id| self.sessions.end_session(id));
    }

    /// All keys of a database are gone.
    pub fn end_sessions_in(&mut self, db: i32) {
        self.sessions.end_sessions_in(db);
    }

    /// The server moved the value with these sessions to another name.
    pub fn relocate(&mut self, sessions: &[SessionId], name: &Name) {
        for id in sessions {
            self.sessions.move_to(*id, name);
        }
    }

    /// The server had two databases change places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        self.sessions.swap_databases(one, other);
    }

    /// All keys of all databases are gone.
    pub fn end_sessions_everywhere(&mut self) {
        self.sessions.end_sessions_everywhere();
    }

    /// This server is no primary any more: there is no place on it, and nothing is tied to a connection. Leases run
    /// on untied, and what becomes of them is not for this table to see.
    /// Returns the names to settle, should it be one again.
    pub fn demote(&mut self) -> Vec<Name> {
        self.sessions.clear();
        self.waiting.queues.forget_all_locks();
        self.waiting.queues.drop_places()
    }

    /// These names are another server's now: gives up the places there, about `most` of them. Whoever asks for
    /// one again is sent to that server. Returns the names to settle.
    pub fn drop_places_at(&mut self, names: &[Name], most: usize) -> Vec<Name> {
        let mut left = Vec::new();
        for name in names {
            if left.len() >= most {
                break;
            }
            left.extend(self.waiting.queues.drop_places_at(name, most));
            if !self.waiting.queues.has_queue(name) {
                self.waiting.schedule.remove(name);
            }
        }
        left.retain(|name| self.waiting.queues.has_queue(name));
        left
    }

    /// Works off a part of what waiters have left that are gone. Returns about `most` names to settle.
    pub fn work_off_left(&mut self, most: usize) -> Vec<Name> {
        self.waiting.queues.work_off(most)
    }

    /// Takes back deliveries that were carried out, for the room that they have.
    pub fn reuse(&mut self, deliveries: Box<Deliveries>) {
        self.workspace.reuse(deliveries);
    }

    /// Runs a transaction of an operation that is about these names: what it decides is answered, what it
    /// changed leaves as effects.
    pub(super) fn transact<'n>(
        &mut self,
        names: &'n [Name],
        environment: &mut Environment<'_, 'n>,
        run: impl FnOnce(&mut Waiting, &mut Transaction<'_, '_, 'n>) -> Result<Answer, Refusal>,
    ) -> Decision {
        let mut tx = Transaction::new(names, environment, &mut self.sessions, &mut self.workspace);
        let answer = run(&mut self.waiting, &mut tx);
        debug_assert_eq!(self.waiting.overlooked(&mut tx), None, "admissible");
        self.waiting.counters.expirations += tx.expirations;
        if unlikely(!tx.lists.lost_holds.is_empty()) {
            self.waiting.times.record_lost(tx.lists);
        }
        self.steps += tx.steps;
        let deliveries = tx.commit();
        Decision { answer, deliveries }
    }
}

/// A lock as a reader sees it at `now_ms`, on a primary or a replica: without the leases that have
/// ended, none of them longer than the key itself.
pub fn as_of(stored: Stored, now_ms: u64) -> Lock {
    let mut lock = stored.lock;
    lock.shorten(stored.expiry_ms.unwrap_or(u64::MAX));
    lock.expire(now_ms, |_| None);
    lock
}
