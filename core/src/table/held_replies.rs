//! REPLICAS: commands whose reply is held back until replicas have what they changed.

use super::grants::count_held;
use super::lock_table::{LockTable, WaitQueues};
use crate::budget::MOST_STEPS;
use crate::decision::{Answer, Caller, Completion, Decision, Deliveries, Outcome};
use crate::hints::unlikely;
use crate::operation::{Action, Operation};
use crate::state::hand_over::{HandOver, TakeBack};
use crate::state::replica_waits::{
    Acknowledgements, HeldReply, Progress, Removed, ReplicaWait, ReplicaWaits, Terms,
};
use crate::state::waiter::WaiterId;
use crate::store::{Environment, KeyState};
use crate::transaction::Transaction;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::Replicas;
use crate::values::token::Token;

impl LockTable {
    /// Ends the replica waits that are decided by the progress of the replicas, the leases and the
    /// clock, at most `most` of them.
    pub fn acknowledge(
        &mut self,
        progress: &Progress,
        most: usize,
        environment: &mut Environment<'_, '_>,
    ) -> Decision {
        for id in self.replica_waits.take_doubtful(MOST_STEPS as usize) {
            let grant = self.replica_waits.grant(id);
            let terms = grant.and_then(|(name, token, fence)| {
                terms_under(&environment.store.read(name), token, fence)
            });
            match terms {
                Some(terms) => self.replica_waits.change(id, terms),
                None => self.replica_waits.end_grant(id),
            }
        }
        let now = (environment.wall_us / 1000, environment.store.steady_ms());
        let mut deliveries = Box::<Deliveries>::default();
        self.replica_waits.end(progress, now, most, &mut |id, end| {
            let completion = Completion::of_replica_wait(id, end);
            deliveries.completions.push(completion);
        });
        Decision {
            answer: Ok(Answer::NotNow),
            deliveries: Some(deliveries).filter(|it| !it.is_empty()),
        }
    }

    /// Records the offset of the stream for the replica waits that have begun since the last call.
    /// All their effects are before that offset.
    pub fn record_offset(&mut self, offset: u64) {
        self.replica_waits.record_offset(offset);
    }

    /// Returns the counts and times of replica waits.
    pub const fn acknowledgements(&mut self) -> &mut Acknowledgements {
        &mut self.replica_waits.acknowledgements
    }

    /// Returns the replica waits.
    pub const fn replica_waits(&self) -> &ReplicaWaits {
        &self.replica_waits
    }

    /// Records that a reply tells a token of its grant of these names. Its hand-overs of them that are
    /// held back are not taken back any more.
    pub fn confirm(&mut self, token: &Token, names: &Names) {
        self.replica_waits.confirm(token, names);
    }

    /// Removes the replica wait of a client that got a reply from the server. Returns `None` if the
    /// client has none.
    pub fn leave_replica_wait(&mut self, id: WaiterId) -> Option<Removed> {
        self.replica_waits.remove(id)
    }

    /// Removes the replica wait of a client whose connection is gone, and returns the hand-over to
    /// take back, if there is one, see [`untie`](LockTable::untie). Returns `None` if the client has no
    /// replica wait.
    pub fn lose_replica_wait(&mut self, id: WaiterId) -> Option<Option<HandOver>> {
        let undelivered = self.replica_waits.remove(id)?.undelivered();
        if let Some(hand_over) = &undelivered {
            self.untie(hand_over);
        }
        Some(undelivered)
    }

    /// Removes the replica wait of a client whose WITHIN an administrator has cut short. Returns
    /// false if the client has none.
    pub fn cut_short(&mut self, id: WaiterId) -> bool {
        self.replica_waits.cut_short(id)
    }

    /// Records that this lock has left its key. If `is_elsewhere`, it has left with its slot, and the
    /// server redirects the clients that wait.
    pub fn lose_grants_at(&mut self, name: &Name, left: &Lock, is_elsewhere: bool) {
        self.replica_waits.lose_all(name, left, is_elsewhere);
    }

    /// Records that a database was emptied; `None`: all of them.
    pub fn doubt_grants_in(&mut self, db: Option<i32>) {
        self.replica_waits.doubt(db);
    }
}

/// Returns the terms of a token's grant of a key under this fence, if it holds the key.
fn terms_under(state: &KeyState, token: &Token, fence: u64) -> Option<Terms> {
    let KeyState::Lock(stored) = state else {
        return None;
    };
    let own = stored.lock.holder(token);
    own.filter(|own| own.fence == fence).map(Terms::of)
}

impl WaitQueues {
    /// Checks that a command with REPLICAS may succeed.
    ///
    /// # Errors
    /// [`Refusal::TooFewReplicas`], then [`Refusal::MaxWaiters`]
    #[inline(always)]
    pub(super) fn check_replicas(
        &self,
        replicas: Option<Replicas>,
        tx: &mut Transaction,
    ) -> Result<(), Refusal> {
        match replicas {
            Some(replicas) => self.check_asked(replicas, tx),
            None => Ok(()),
        }
    }

    #[inline(never)]
    fn check_asked(&self, replicas: Replicas, tx: &mut Transaction) -> Result<(), Refusal> {
        if !tx.environment.store.has_replicas(replicas.count) {
            return Err(Refusal::TooFewReplicas);
        }
        let limits = (tx.environment.limits)();
        let others = self.queues.blocked_len() + tx.replica_waits.len();
        if limits.max_waiters > 0 && others >= limits.max_waiters {
            return Err(limits.max_waiters_refusal);
        }
        Ok(())
    }

    /// Checks that an extension with REPLICAS may succeed. One that changes nothing needs no
    /// replicas.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], and those of [`WaitQueues::check_replicas`]
    #[inline(always)]
    pub(super) fn check_extension(
        &self,
        names: &Names,
        token: &Token,
        replicas: Option<Replicas>,
        tx: &mut Transaction,
    ) -> Result<(), Refusal> {
        if unlikely(replicas.is_some()) && count_held(names, token, tx)? == names.count() {
            return self.check_replicas(replicas, tx);
        }
        Ok(())
    }
}

/// Holds back the answer of an operation that asks for replicas and has succeeded. Also records that
/// the answer confirms earlier hand-overs to its token, including those of this operation.
#[inline(never)]
pub(super) fn hold_back_or_confirm(
    operation: &Operation,
    answer: Answer,
    caller: Caller,
    tx: &mut Transaction,
) -> Answer {
    let Operation {
        names,
        action,
        replicas,
    } = operation;
    let reply = match (action, &answer) {
        (_, Answer::Granted(_)) => HeldReply::Grant,
        (Action::Extend { .. }, Answer::Count(count)) if *count > 0 => HeldReply::Count(*count),
        _ => return answer,
    };
    let token = action.token();
    tx.replica_waits.confirm(token, names);
    confirm_hand_overs(token, names, &mut tx.lists.deliveries.completions);
    match replicas {
        Some(replicas) => {
            begin(caller.waiter_id, (token, names), *replicas, reply, tx);
            Answer::HeldBack
        }
        None => answer,
    }
}

/// Records that the hand-overs of any of these names to a token are not taken back any more.
fn confirm_hand_overs(token: &Token, names: &Names, completions: &mut [Completion]) {
    for completion in completions {
        if let Outcome::Granted(hand_over) = &mut completion.outcome {
            let shares = |name: &Name| names.contains(name);
            if hand_over.grant.token == *token && hand_over.names.iter().any(shares) {
                hand_over.take_back = TakeBack::Never;
            }
        }
    }
}

/// Holds back the reply to a hand-over.
#[inline(never)]
pub(super) fn hold_back_hand_over(
    waiter_id: WaiterId,
    hand_over: HandOver,
    replicas: Replicas,
    tx: &mut Transaction,
) {
    let (token, names) = (hand_over.grant.token.clone(), hand_over.names.clone());
    let reply = HeldReply::HandOver(Box::new(hand_over));
    begin(waiter_id, (&token, &names), replicas, reply, tx);
}

fn begin(
    waiter_id: WaiterId,
    (token, names): (&Token, &Names),
    replicas: Replicas,
    reply: HeldReply,
    tx: &mut Transaction,
) {
    let mut wait = ReplicaWait::new(replicas, reply, token, tx.steady_ms());
    for name in names {
        tx.end_broken_grant(name, token);
        let own = tx.lock_at(name).and_then(|lock| lock.holder(token));
        if let Some(terms) = own.map(Terms::of) {
            wait.follow(tx.replica_waits.grant_to_follow(name, token, terms));
        }
    }
    tx.replica_waits.insert(waiter_id, wait);
}
