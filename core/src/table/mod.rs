//! The one way in: every command, timer and event that concerns a lock is carried out here.
//!
//! To settle a name is to end the leases that have run out and then, while the head of the queue
//! is admitted, to grant to it. Each name is settled as something happens there; of an operation's names
//! those are settled before it is decided where that was still to be done, so that nobody barges in,
//! and those afterwards whose locks it changed, because that may admit the next. When a lease and a
//! BLOCK end in the same moment the grant wins: timeouts are looked at last.
//!
//! Where many are admitted at once, one operation grants to some of them and leaves the others to the
//! next, so that the server serves its clients in between. Nobody overtakes them: they stand in
//! their queues meanwhile.
//!
//! The table reads locks through a [`crate::store::Store`] and writes none: what is to change in the keyspace
//! leaves as [`crate::effect::Effect`]s, whose wait is over as [`crate::decision::Completion`]s. All times are those of the steady clock,
//! but for the deadlines of leases.

mod admission;
mod circles;
mod due;
mod grants;
mod lock_table;
mod settle;
mod waits;

use crate::decision::{Answer, Caller, Decision};
use crate::operation::Operation;
use crate::store::Environment;
use crate::transaction::Transaction;
use crate::values::name::Names;
use crate::values::refusal::Refusal;
use crate::values::request::Request;
use admission::Admission;
use grants::{extend, release, Grantee};
use lock_table::Waiting;
pub use lock_table::{as_of, Counters, LockTable, Times};
use waits::{Waited, Way};

impl LockTable {
    /// Carries out one operation.
    #[inline]
    pub fn execute<'n>(
        &mut self,
        operation: &'n Operation,
        caller: Caller,
        environment: &mut Environment<'_, 'n>,
    ) -> Decision {
        let names = operation.names().as_slice();
        self.transact(names, environment, |waiting, tx| {
            if !waiting.is_idle() || !tx.nothing_touched {
                let unsettled = waiting.unsettled(operation.names(), tx);
                waiting.settle(&unsettled, tx);
            }
            let answer = waiting.decide(operation, caller, tx);
            waiting.count_refusal(&answer);
            waiting.settle(&[], tx);
            answer
        })
    }
}

impl Waiting {
    #[inline(always)]
    fn decide(
        &mut self,
        operation: &Operation,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        match operation {
            Operation::Acquire { names, request } => self.acquire(names, request, caller, tx),
            Operation::Wait {
                names,
                request,
                block_ms,
                keep_ms,
            } => {
                let way = Way::Block {
                    block_ms: *block_ms,
                    keep_ms: *keep_ms,
                };
                Ok(match self.wait(names, request, way, caller, tx)? {
                    Waited::Granted(fence) => Answer::Granted(fence),
                    Waited::Queued(arrival) => Answer::Queued(arrival),
                })
            }
            Operation::Queue {
                names,
                request,
                keep_ms,
                notice,
            } => {
                let way = Way::Place {
                    keep_ms: *keep_ms,
                    notice: notice.as_ref(),
                };
                self.queue(names, request, way, caller, tx)
            }
            Operation::Cancel { names, token } => self.cancel(names, token, tx),
            Operation::Extend {
                names,
                token,
                lease_ms,
                life,
            } => {
                let answer = extend(names, token, *lease_ms, *life, caller, tx);
                self.counters.extensions += counted(&answer);
                answer
            }
            Operation::Release {
                names,
                token,
                leave,
            } => {
                let answer = release(names, token, *leave, &mut self.times.holds, tx);
                self.counters.releases += counted(&answer);
                answer
            }
            Operation::TakeBack(hand_over) => Ok(self.take_back(hand_over, tx)),
        }
    }

    fn acquire(
        &mut self,
        names: &Names,
        request: &Request,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        match self.newcomer_admission(names, request, tx)? {
            Admission::Blocked { .. } => Ok(Answer::NotNow),
            Admission::Granted { kept_fence } => {
                let to = Grantee::Client(caller.client_id);
                let fence = self.grant(names, request, kept_fence, to, tx);
                Ok(Answer::Granted(fence))
            }
        }
    }

    fn count_refusal(&mut self, answer: &Result<Answer, Refusal>) {
        match answer {
            Err(Refusal::Deadlock | Refusal::Circle) => self.counters.deadlocks += 1,
            Err(Refusal::MaxWaiters) => self.counters.max_waiters_refusals += 1,
            Err(Refusal::MaxTickets) => self.counters.max_tickets_refusals += 1,
            Ok(_) | Err(_) => {}
        }
    }
}

/// How many names an operation changed, by its answer.
fn counted(answer: &Result<Answer, Refusal>) -> u64 {
    match answer {
        Ok(Answer::Count(count)) => *count as u64,
        Ok(_) | Err(_) => 0,
    }
}
