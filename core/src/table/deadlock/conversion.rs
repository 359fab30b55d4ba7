//! Deadlocks of conversions: two shared holders of a lock that both wait to hold it alone.

use crate::state::waiter::Waiter;
use crate::table::lock_table::WaitQueues;
use crate::transaction::Transaction;
use crate::values::holder::Mode;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::request::Request;
use crate::values::token::Token;

impl WaitQueues {
    /// Returns true if a conversion may deadlock, because two holders that wait to convert the same
    /// lock wait for each other.
    ///
    /// A request for several names with a conversion among them is always refused, because it could
    /// deadlock through another name.
    pub(in crate::table) fn is_conversion_deadlock(
        &self,
        names: &Names,
        request: &Request,
        tx: &mut Transaction,
    ) -> bool {
        names.count() > 1
            || names.iter().any(|name| {
                let lock = tx.lock_at(name);
                lock.is_some_and(|lock| self.awaits_upgrade(name, lock, &request.token))
            })
    }

    /// Returns true if a holder other than `token` waits to convert its grant here. Searches the
    /// holders or the queue, whichever is shorter.
    fn awaits_upgrade(&self, name: &Name, lock: &Lock, token: &Token) -> bool {
        let alone = |waiter: &Waiter| {
            waiter.request.mode == Mode::Exclusive
                && waiter.request.token != *token
                && waiter.names.contains(name)
        };
        if self.queues.position_count(name) < lock.holders().len() {
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
}
