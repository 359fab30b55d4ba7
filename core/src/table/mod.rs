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
mod quiescence;
mod settle;
mod waits;

use crate::branch::unlikely;
use crate::decision::{Answer, Caller, Decision};
use crate::operation::{Action, Operation};
use crate::state::hand_over::HandOver;
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
        let Operation { names, action } = operation;
        self.settle_around(names, environment, |waiting, tx| {
            let answer = waiting.decide(names, action, caller, tx);
            if let Err(why) = answer {
                waiting.count_refusal(why);
            }
            answer
        })
    }

    /// Undoes a hand-over whose client was gone before it could know of it.
    pub fn take_back<'n>(
        &mut self,
        undelivered: &'n HandOver,
        environment: &mut Environment<'_, 'n>,
    ) -> Decision {
        self.settle_around(&undelivered.names, environment, |waiting, tx| {
            Ok(waiting.take_back(undelivered, tx))
        })
    }

    /// Decides about these names, settled before where that was still to be done, and again afterwards.
    #[inline(always)]
    fn settle_around<'n>(
        &mut self,
        names: &'n Names,
        environment: &mut Environment<'_, 'n>,
        decide: impl FnOnce(&mut Waiting, &mut Transaction<'_, '_, 'n>) -> Result<Answer, Refusal>,
    ) -> Decision {
        self.transact(names.as_slice(), environment, |waiting, tx| {
            if unlikely(!waiting.is_idle() || !tx.nothing_touched) {
                waiting.settle_unsettled(names, tx);
            }
            let answer = decide(waiting, tx);
            waiting.settle(&[], tx);
            answer
        })
    }
}

impl Waiting {
    #[inline(always)]
    fn decide(
        &mut self,
        names: &Names,
        action: &Action,
        caller: Caller,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Answer, Refusal> {
        match action {
            Action::Acquire(request) => self.acquire(names, request, caller, tx),
            Action::Wait {
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
                    Waited::Queued(arrival, position) => Answer::Queued(arrival, position),
                })
            }
            Action::Queue {
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
            Action::Cancel { token } => self.cancel(names, token, tx),
            Action::Extend {
                token,
                lease_ms,
                life,
            } => {
                let answer = extend(names, token, *lease_ms, *life, caller, tx);
                self.counters.extensions += counted(&answer);
                answer
            }
            Action::Release { token, leave } => {
                let answer = release(names, token, *leave, &mut self.times.holds, tx);
                self.counters.releases += counted(&answer);
                answer
            }
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

    #[cold]
    #[inline(never)]
    fn count_refusal(&mut self, why: Refusal) {
        match why {
            Refusal::Deadlock | Refusal::Circle => self.counters.deadlocks += 1,
            Refusal::MaxWaiters => self.counters.max_waiters_refusals += 1,
            Refusal::MaxTickets => self.counters.max_tickets_refusals += 1,
            _ => {}
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
