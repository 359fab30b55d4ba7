//! Deadlocks of connections that wait for each other's sessions.
//!
//! A session does not end while its connection is open, and a connection that waits releases
//! nothing. So connections that wait for each other's sessions would wait forever. Every other wait
//! ends by itself, because leases end. A wait that would close such a deadlock is refused when it
//! begins.
//!
//! The algorithm has three steps. The newcomer is the request that is about to wait.
//!
//! 1. [`Search`]: find all waiters that wait for the newcomer, directly or not. Assume that they
//!    and the newcomer are stuck, and that all other waiters will be granted at some time.
//! 2. [`Graph`]: free each waiter that would be granted if only stuck waiters kept their ties and
//!    their positions. All other holders, and all other waiters before it, will go. A freed
//!    waiter's ties and positions go too, which may free further waiters.
//! 3. If the newcomer is still stuck at the end, its wait closes a deadlock, unless the grant to
//!    another wait of a token that is tied in it could open it (`way_out.rs`).
//!
//! The search keeps these rules:
//!
//! 1. A queue records its lock as it was last settled. The search reads a key only if its lock is
//!    not recorded, because a key outside the running command's slot cannot be read.
//! 2. A lock that is neither recorded nor readable blocks no waiter. So a wait is never refused by
//!    a guess.
//! 3. Each waiter, each tie, and each pair of a waiter and a name is looked at once. [`MOST_WORK`]
//!    bounds this work. A search that needs more is given up, and the wait begins.
//!
//! [`MOST_WORK`]: crate::budget::MOST_WORK

use super::graph::Graph;
use super::search::{GivenUp, JoinAt, Newcomer, Search, Work};
use crate::budget::{WORK_OF_A_NAME, WORK_OF_A_STEP};
use crate::table::lock_table::WaitQueues;
use crate::transaction::Transaction;

impl WaitQueues {
    /// Returns true if this wait would close a deadlock of connections that wait for each other's
    /// sessions. Returns false if the search needs more than `MOST_WORK`.
    pub(in crate::table) fn would_deadlock(
        &mut self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction,
    ) -> bool {
        let client_id = newcomer.client_id;
        let is_waited_for = tx.sessions.has_client(client_id) || newcomer.join_at != JoinAt::Last;
        if tx.sessions.is_empty() || !is_waited_for {
            return false;
        }
        let mut work = Work::default();
        let found = self.is_deadlock(newcomer, &mut work, tx);
        tx.steps += work.0 / WORK_OF_A_STEP;
        found.unwrap_or_else(|GivenUp| {
            self.counters.deadlock_searches_given_up += 1;
            false
        })
    }

    fn is_deadlock(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<bool, GivenUp> {
        if !self.may_be_stuck(newcomer, work, tx)? {
            return Ok(false);
        }
        let search = Search::dependants(&self.queues, newcomer, work, tx)?;
        // Most often the newcomer waits for none of those found.
        if !search.is_newcomer_hindered {
            return Ok(false);
        }
        let mut graph = Graph::new(newcomer, search);
        graph.read(newcomer, work, tx)?;
        Ok(graph.is_newcomer_stuck(work)? && !graph.has_way_out(&self.queues, work)?)
    }

    /// Returns true if the newcomer would wait for a waiter before it, or for a holder whose
    /// connection is waiting. The newcomer's own connection counts as waiting.
    fn may_be_stuck(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<bool, GivenUp> {
        for name in newcomer.names {
            work.add(WORK_OF_A_NAME)?;
            if newcomer.join_at != JoinAt::First && self.queues.has_queue(name) {
                return Ok(true);
            }
            let id = tx.entry(name);
            let Some(lock) = tx.lock(id) else { continue };
            for own in lock.holders().iter() {
                work.add(1)?;
                let client_id = tx.sessions.client_of(own.session);
                let is_waiting = |id| id == newcomer.client_id || self.queues.waits(id);
                if client_id.is_some_and(is_waiting) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
