//! The lock table: the only entry point for commands, timers and events that concern a lock.
//!
//! To settle a name is to expire its leases and to grant it to every waiter that has become
//! admissible. A name is settled when something happens to it.
//!
//! 1. An operation first settles those of its names that are not settled yet. So a newcomer never
//!    overtakes an admissible waiter.
//! 2. The operation then decides, and settles the names whose locks it changed. The changes may
//!    have made waiters admissible.
//! 3. If a lease and a BLOCK end in the same millisecond, the waiter is granted. Timeouts are
//!    checked last.
//! 4. One operation grants to a limited number of waiters and leaves the others to the timer, so
//!    the server serves clients in between. The others keep their positions, so no newcomer
//!    overtakes them.
//! 5. The table reads locks through [`crate::store::Store`] and writes none. Changes to the
//!    keyspace come out as [`crate::effect::Effect`]s, and the ends of waits as
//!    [`crate::decision::Completion`]s.
//! 6. All times are on the steady clock, except the deadlines of leases.

mod admission;
mod contended;
mod deadlock;
mod due;
mod grants;
mod held_replies;
mod hot;
mod leave;
mod lock_table;
mod place;
mod quiescence;
mod settle;
mod wait_request;
mod waits;
mod worklist;

use crate::decision::{Answer, Caller, Decision, Enqueued};
use crate::hints::unlikely;
use crate::operation::{Action, Operation};
use crate::state::hand_over::HandOver;
use crate::store::Environment;
use crate::transaction::Transaction;
use crate::values::name::Names;
use crate::values::refusal::Refusal;
use crate::values::request::{Replicas, Request};
use admission::Admission;
use grants::{extend, Extension, Grantee};
use held_replies::hold_back_or_confirm;
pub use hot::HotName;
use lock_table::WaitQueues;
pub use lock_table::{as_of, Counters, LockTable, Times};
use wait_request::{WaitKind, WaitRequest, WaitStart};

impl LockTable {
    /// Decides one operation: settles its unsettled names, dispatches it, and settles the names that
    /// it changed.
    #[inline]
    pub fn decide<'n>(
        &mut self,
        operation: &'n Operation,
        caller: Caller,
        environment: &mut Environment<'_, 'n>,
    ) -> Decision {
        let Operation {
            names,
            action,
            replicas,
        } = operation;
        let leave_marks = &self.wait_queues.leave_marks;
        if unlikely(!leave_marks.is_empty()) && self.wait_queues.has_left(operation, environment) {
            return Decision::refused(Refusal::Left);
        }
        self.transact(names.as_slice(), environment, |wait_queues, tx| {
            wait_queues.settle_unsettled(names, tx);
            let answer = wait_queues.dispatch((names, action, *replicas), caller, tx);
            if !matches!(answer, Ok(Answer::Granted(_) | Answer::Count(_))) {
                wait_queues.count_unanswered(names, &answer, tx);
            }
            // The settling before may have begun replica waits and made hand-overs.
            let concerns_others = replicas.is_some()
                || !tx.replica_waits.is_empty()
                || !tx.lists.deliveries.completions.is_empty();
            let answer = match answer {
                Ok(answer) if unlikely(concerns_others) => {
                    Ok(hold_back_or_confirm(operation, answer, caller, tx))
                }
                answer => answer,
            };
            wait_queues.settle(&[], tx);
            answer
        })
    }

    /// Takes back a hand-over whose client was gone before the reply could reach it.
    pub fn take_back<'n>(
        &mut self,
        undelivered: &'n HandOver,
        environment: &mut Environment<'_, 'n>,
    ) -> Decision {
        let names = &undelivered.names;
        self.transact(names.as_slice(), environment, |wait_queues, tx| {
            wait_queues.settle_unsettled(names, tx);
            let answer = wait_queues.take_back(undelivered, tx);
            wait_queues.settle(&[], tx);
            Ok(answer)
        })
    }
}

impl WaitQueues {
    /// Dispatches an operation to the method for its action.
    #[inline(always)]
    fn dispatch(
        &mut self,
        (names, action, replicas): (&Names, &Action, Option<Replicas>),
        caller: Caller,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        match action {
            Action::Acquire(request) => self.acquire(names, request, replicas, caller, tx),
            Action::Wait {
                request,
                block_ms,
                keep_ms,
            } => {
                let kind = WaitKind::Block {
                    block_ms: *block_ms,
                    keep_ms: (*keep_ms > 0).then_some(*keep_ms),
                };
                let wait = WaitRequest {
                    names,
                    request,
                    kind,
                    replicas,
                    caller,
                };
                Ok(match self.wait(wait, tx)? {
                    WaitStart::Granted(fence) => Answer::Granted(fence),
                    WaitStart::Queued(enqueued, position) => Answer::Queued(enqueued, position),
                })
            }
            Action::Queue {
                request,
                keep_ms,
                notification,
            } => {
                let kind = WaitKind::Place {
                    keep_ms: *keep_ms,
                    notification: notification.as_ref(),
                };
                let wait = WaitRequest {
                    names,
                    request,
                    kind,
                    replicas: None,
                    caller,
                };
                self.queue(wait, tx)
            }
            Action::Cancel { token } => self.cancel(names, token, tx),
            Action::Extend {
                token,
                lease_ms,
                lease_rule,
                lease_kind,
                data,
                fence,
            } => {
                self.check_extension(names, token, replicas, tx)?;
                let extension = Extension {
                    lease_ms: *lease_ms,
                    lease_rule: *lease_rule,
                    lease_kind: *lease_kind,
                    data: data.as_ref(),
                    fence: *fence,
                };
                let answer = extend(names, token, extension, caller, tx);
                self.counters.extensions += counted(&answer);
                answer
            }
            Action::Leave { token, leave_ms } => {
                let answer = self.leave(names, token, *leave_ms, tx);
                self.counters.releases += counted(&answer);
                answer
            }
            Action::Release {
                token,
                release_count,
            } => {
                let answer = self.release(names, token, *release_count, tx);
                self.counters.releases += counted(&answer);
                answer
            }
        }
    }

    fn acquire(
        &mut self,
        names: &Names,
        request: &Request,
        replicas: Option<Replicas>,
        caller: Caller,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        match self.newcomer_admission(names, request, tx)? {
            Admission::Blocked { .. } => Ok(Answer::NotNow),
            Admission::Granted { kept_fence } => {
                self.check_replicas(replicas, tx)?;
                let to = Grantee::Client(caller.client_id);
                let fence = self.grant(names, request, kept_fence, to, tx);
                Ok(Answer::Granted(fence))
            }
        }
    }

    /// Counts an operation that neither granted nor changed a lock.
    #[cold]
    #[inline(never)]
    fn count_unanswered(
        &mut self,
        names: &Names,
        answer: &Result<Answer, Refusal>,
        tx: &mut Transaction,
    ) {
        match answer {
            Ok(Answer::Queued(Enqueued::New, _) | Answer::Place(_, Enqueued::New)) => {
                self.contention
                    .begin_wait(names, tx.steady_ms(), &self.queues);
            }
            Ok(Answer::NotNow) => {
                self.contention.refuse(names, tx.steady_ms(), &self.queues);
            }
            Ok(_) => {}
            Err(why) => self.count_refusal(*why),
        }
    }

    fn count_refusal(&mut self, why: Refusal) {
        match why {
            Refusal::Deadlock | Refusal::SessionDeadlock => self.counters.deadlocks += 1,
            Refusal::MaxWaiters | Refusal::MaxClients => self.counters.max_waiters_refusals += 1,
            Refusal::MaxTickets => self.counters.max_tickets_refusals += 1,
            _ => {}
        }
    }
}

/// Returns the number of names that an operation changed, from its answer.
fn counted(answer: &Result<Answer, Refusal>) -> u64 {
    match answer {
        Ok(Answer::Count(count)) => *count as u64,
        Ok(_) | Err(_) => 0,
    }
}
