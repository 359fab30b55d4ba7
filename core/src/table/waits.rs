//! How a request that can't be granted now begins to wait.

use super::admission::Admission;
use super::lock_table::Waiting;
use crate::decision::{Answer, Caller, Completion, Outcome};
use crate::state::queue::{End, Position, Waiter};
use crate::transaction::Transaction;
use crate::values::holder::Mode;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::Request;
use crate::values::token::Token;

impl Waiting {
    pub(super) fn wait(
        &mut self,
        names: &Names,
        request: &Request,
        block_ms: u64,
        caller: Caller,
        tx: &mut Transaction<'_, '_>,
    ) -> Result<Answer, Refusal> {
        let (upgrades, by) = match self.newcomer_admission(names, request, tx)? {
            Admission::Blocked { upgrades, by, .. } => (upgrades, by),
            Admission::Granted { kept_fence } => {
                let grant = self.grant(names, request, kept_fence, caller.client_id, tx);
                return Ok(Answer::Granted(grant));
            }
        };
        if upgrades > 0 && self.would_deadlock(names, request, tx) {
            return Err(Refusal::Deadlock);
        }
        let now_ms = tx.steady_ms();
        let waiter = Waiter {
            waiter_id: caller.waiter_id,
            client_id: caller.client_id,
            names: names.clone(),
            request: request.clone(),
            since_ms: now_ms,
            timeout_ms: (block_ms > 0).then(|| now_ms.saturating_add(block_ms)),
        };
        if let Some(position) = self.position_to_take_over(&waiter) {
            self.counters.take_overs += 1;
            let waiter_id = self.queues.take_over(position, waiter);
            // With another limit it may be admitted where it stands.
            tx.again.push(position);
            let outcome = Outcome::Refused(Refusal::TakenOver);
            tx.completions
                .extend(waiter_id.map(|waiter_id| Completion { waiter_id, outcome }));
            return Ok(Answer::Queued);
        }
        if tx.environment.max_waiters > 0 && self.queues.len() >= tx.environment.max_waiters {
            return Err(Refusal::MaxWaiters);
        }
        let end = if upgrades > 0 { End::Front } else { End::Back };
        let (position, new_queues) = self.queues.enqueue(waiter, end);
        self.queues.set_blocked_by(position, Some(by));
        for name in new_queues {
            self.reschedule(&name, tx);
        }
        Ok(Answer::Queued)
    }

    /// Two holders that both wait to be alone wait for each other. A request for several names
    /// with an upgrade among them could close such a circle through another name.
    fn would_deadlock(
        &self,
        names: &Names,
        request: &Request,
        tx: &mut Transaction<'_, '_>,
    ) -> bool {
        names.count() > 1
            || names.iter().any(|name| {
                let lock = tx.lock_at(name);
                lock.is_some_and(|lock| self.awaits_upgrade(name, lock, &request.token))
            })
    }

    /// Whether another holder than `token` waits to be alone here. Looks through the holders or the
    /// queue, whichever is shorter.
    fn awaits_upgrade(&self, name: &Name, lock: &Lock, token: &Token) -> bool {
        let alone = |waiter: &Waiter| {
            waiter.request.mode == Mode::Exclusive
                && waiter.request.token != *token
                && waiter.names.contains(name)
        };
        if self.queues.queue_len(name) < lock.holders().len() {
            let mut queue = self.queues.queue(name);
            return queue
                .any(|(_, waiter)| alone(waiter) && lock.holder(&waiter.request.token).is_some());
        }
        let mut holders = lock.holders().iter();
        holders.any(|own| {
            let waits = self.queues.waits_at(&own.token, name).into_iter();
            let mut waiters = waits.filter_map(|position| self.queues.at(position));
            waiters.any(alone)
        })
    }

    fn position_to_take_over(&self, newer: &Waiter) -> Option<Position> {
        let name = newer.names.iter().next()?;
        let mut own = self.queues.waits_at(&newer.request.token, name).into_iter();
        own.find(|position| {
            let older = self.queues.at(*position);
            older.is_some_and(|older| {
                older.names == newer.names && older.request.mode == newer.request.mode
            })
        })
    }
}
