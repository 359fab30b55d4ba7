//! The world as the promises see it. Each decision of the table is judged by the world itself, so
//! every scene and every walk tries all promises.

use std::collections::{BTreeMap, BTreeSet};

use redis_lock_core::decision::{Completion, Decision, Outcome};
use redis_lock_core::effect::Change;
use redis_lock_core::operation::{Action, Operation};
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::waiter::{self, WaiterId, WaiterKind};
use redis_lock_core::store::KeyState;
use redis_lock_core::values::codec;
use redis_lock_core::values::holder;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::{LeaseKind, Request};
use redis_lock_core::values::token::Token;
use redis_lock_promises::state::{Holder, Mode, State, Waiter};
use redis_lock_promises::step::{Cause, Step};
use redis_lock_promises::{nothing_left, rebuilt, Verdict};

use crate::world::{Name, World};

/// The most waiters that are judged, because a judgement costs time for each of them.
const MOST_JUDGED: usize = 30;

/// The client of a tie whose connection has closed.
pub const CLOSED: u64 = 0;

impl World {
    /// Returns the locks, the waiters and the marks now.
    pub fn state(&self) -> State {
        let mut names: Vec<&Name> = self.store.keys.keys().collect();
        names.extend(self.table.queues().by_name().map(|(name, _)| name));
        names.sort_unstable();
        names.dedup();
        let locks = self.locks_of(&names);
        let waiters = self.waiters_of(&names);
        State {
            gone: self.gone_of(&locks, &waiters),
            locks,
            waiters,
            marks: self.lasting_marks(),
            unsettled: names
                .iter()
                .filter(|name| self.is_unsettled(name))
                .map(|name| text(name.key()))
                .collect(),
        }
    }

    /// Returns the state before a decision that is to be judged; `None` in a world that is too
    /// large.
    pub fn before(&self) -> Option<State> {
        let queues = self.table.queues();
        let is_small = queues.blocked_len() + queues.place_count() <= MOST_JUDGED;
        (is_small && self.is_judged && self.store.keys.len() <= MOST_JUDGED).then(|| self.state())
    }

    /// Judges a decision after it was carried out.
    #[track_caller]
    pub fn judge(&mut self, before: Option<State>, cause: &Cause) {
        let Some(before) = before else { return };
        let after = self.state();
        let step = Step {
            before: &before,
            after: &after,
            cause,
            now_ms: self.wall_ms(),
            last_fence: self.last_fence,
        };
        let verdict = step.check().and_then(|()| after.check());
        verdict.unwrap_or_else(|broken| panic!("{broken}"));
        self.note_replaced(&before, &after, cause);
        let fences = before.locks.values().chain(after.locks.values()).flatten();
        self.last_fence = fences.map(|it| it.fence).fold(self.last_fence, u64::max);
    }

    /// Records the grants that hand-overs of this decision replaced, by the fences of the
    /// hand-overs. Leaves out grants that the decision may have ended: those of the decision's own
    /// token, and those that are tied to a connection.
    fn note_replaced(&mut self, before: &State, after: &State, cause: &Cause) {
        for (key, holders) in &after.locks {
            for own in holders {
                let is_own = match cause {
                    Cause::Command { token, .. } | Cause::TakeBack { token, .. } => {
                        *token == own.token
                    }
                    Cause::Timer => false,
                };
                let replaced = before.holder(key, &own.token);
                let replaced = replaced.filter(|it| it.fence < own.fence && it.client.is_none());
                if let Some(replaced) = replaced.filter(|_| !is_own) {
                    let hand_over = (key.clone(), own.fence);
                    self.replaced.insert(hand_over, replaced.deadline_ms);
                }
            }
        }
    }

    /// Returns the cause of a take-back's decision.
    pub fn take_back_of(&self, hand_over: &HandOver) -> Cause {
        let state = self.state();
        let token = token_text(&hand_over.grant.token);
        let now_ms = self.wall_ms();
        let is_restored = |name: &&Name| {
            let key = text(name.key());
            let replaced = self.replaced.get(&(key.clone(), hand_over.grant.fence));
            let own = state.holder(&key, &token);
            let own = own.filter(|own| own.fence == hand_over.grant.fence);
            let is_held = own.is_some_and(|own| {
                let is_gone = own.client.is_some_and(|client| self.gone.contains(&client));
                own.deadline_ms >= now_ms && !is_gone
            });
            let is_in_force = replaced.is_some_and(|deadline_ms| *deadline_ms >= now_ms);
            is_held && is_in_force && !self.has_ended_since(name, hand_over)
        };
        let restored = hand_over.names.iter().filter(is_restored);
        Cause::TakeBack {
            restores: restored.map(|name| text(name.key())).collect(),
            token,
        }
    }

    /// Returns true if the grant that a hand-over replaced is over, or if its token has released holds
    /// since.
    fn has_ended_since(&self, name: &Name, hand_over: &HandOver) -> bool {
        let lock = self.lock(&text(name.key()));
        let holds = lock
            .holder(&hand_over.grant.token)
            .map_or(0, |own| own.holds);
        let mut replaced = hand_over.replaced.iter();
        replaced.any(|it| {
            let is_over = it.holder.deadline_ms < self.wall_ms();
            it.name == *name && (is_over || it.holds_after > holds)
        })
    }

    /// Records the KEEP of the grants of an operation. Leaves out those that another request of the token
    /// has replaced in the same decision, and whose fence is another one.
    pub fn note_keep(&mut self, operation: &Operation, keep_ms: u64, fence: Option<u64>) {
        for name in &operation.names {
            let lock = self.lock(&text(name.key()));
            let own = lock.holder(operation.action.token());
            if let Some(own) = own.filter(|own| fence.is_none_or(|fence| own.fence == fence)) {
                self.keeps.insert(own.session, keep_ms);
            }
        }
    }

    /// Records the ends of the grants that are kept after a client, which is gone now.
    pub fn note_close(&mut self, client_id: u64) {
        let now_ms = self.wall_ms();
        for (tie, _) in self.table.sessions().ties_of(client_id) {
            if let Some(keep_ms) = self.keeps.get(&tie) {
                self.kept.insert(tie, (now_ms, now_ms + keep_ms));
            }
        }
    }

    /// Checks the promises that hold once the timer has done what is due, and that a replica and a
    /// file have the same locks.
    pub fn check_settled(&self) -> Verdict {
        self.check_quiet()?;
        self.check_rebuilt()
    }

    /// Checks the promises that hold once the timer has done what is due.
    pub fn check_quiet(&self) -> Verdict {
        let is_due = self.table.next_due_ms().is_some_and(|ms| ms <= self.now_ms);
        if is_due || !self.store.touched.is_empty() {
            return Ok(());
        }
        self.state().check_settled()
    }

    fn check_rebuilt(&self) -> Verdict {
        for (name, state) in &self.store.keys {
            let KeyState::Lock(stored) = state else {
                continue;
            };
            let replica = self.replica.lock(name);
            rebuilt(&plain(&stored.lock), &plain(&replica))?;
            let read = codec::decode(&codec::encode(&stored.lock)).unwrap_or_default();
            rebuilt(&plain(&stored.lock), &plain(&read))?;
        }
        let mut names = self.replica.locks.keys();
        let are_locks = names.all(|name| self.store.keys.contains_key(name));
        rebuilt(&true, &are_locks)
    }

    /// Checks that nothing is left once the last client has gone and all its times are over.
    pub fn check_nothing_left(&self) -> Verdict {
        let queues = self.table.queues();
        let waits = self.table.replica_waits().is_empty();
        nothing_left([
            ("blocked clients", queues.blocked_len() as u64),
            ("places", queues.place_count() as u64),
            ("queues", u64::from(!queues.is_empty())),
            ("sessions", self.table.sessions().len() as u64),
            ("replica waits", u64::from(!waits)),
        ])
    }

    /// Returns the grants in force. A tied grant is in force until the timer has looked at it, because
    /// a late timer still renews it or keeps it for KEEP.
    fn locks_of(&self, names: &[&Name]) -> BTreeMap<String, Vec<Holder>> {
        let mut locks = BTreeMap::new();
        for name in names {
            let Some(KeyState::Lock(stored)) = self.store.keys.get(*name) else {
                continue;
            };
            let mut lock = stored.lock.clone();
            lock.shorten(stored.expiry_ms.unwrap_or(u64::MAX));
            let holders = lock.holders().iter().map(|own| self.holder_of(&lock, own));
            let in_force = |it: &Holder| it.deadline_ms >= self.wall_ms() || it.client.is_some();
            let holders: Vec<Holder> = holders.filter(in_force).collect();
            if !holders.is_empty() {
                locks.insert(text(name.key()), holders);
            }
        }
        locks
    }

    fn holder_of(&self, lock: &Lock, own: &holder::Holder) -> Holder {
        let sessions = self.table.sessions();
        let tie = sessions.contains(own.session).then_some(own.session);
        let kept = tie.and_then(|tie| self.kept.get(&tie));
        let kept = kept.filter(|(closed_ms, _)| own.deadline_ms >= *closed_ms);
        Holder {
            token: text(own.token.as_bytes()),
            mode: mode(lock.mode()),
            fence: own.fence,
            limit: own.limit,
            permits: own.permits,
            deadline_ms: own.deadline_ms,
            client: tie.map(|tie| sessions.client_of(tie).unwrap_or(CLOSED)),
            kept_until_ms: kept.map(|(_, until_ms)| *until_ms),
        }
    }

    fn waiters_of(&self, names: &[&Name]) -> Vec<Waiter> {
        let queues = names
            .iter()
            .flat_map(|name| self.table.queues().queue(name));
        let mut waiters: Vec<_> = queues.collect();
        waiters.sort_unstable_by_key(|(position, _)| *position);
        waiters.dedup_by_key(|(position, _)| *position);
        let waiters = waiters.into_iter().map(|(_, waiter)| {
            let request = &waiter.request;
            Waiter {
                token: text(request.token.as_bytes()),
                keys: waiter.names.iter().map(|name| text(name.key())).collect(),
                mode: mode(request.mode),
                limit: request.limit,
                permits: request.permits,
                lease_ms: match &waiter.kind {
                    WaiterKind::Place(place) => place.lease_ms(request),
                    _ => request.lease_ms,
                },
                is_absent: waiter.kind.is_absent(),
                is_over: waiter.is_over(self.now_ms)
                    || self.store.barred.contains(&request.token)
                    || self.lacks_replicas(waiter),
                client: waiter.kind.is_blocked().then_some(waiter.client_id),
            }
        });
        waiters.collect()
    }

    /// Returns true if a waiter asks for more replicas than are online. It is refused when its turn
    /// comes.
    fn lacks_replicas(&self, waiter: &waiter::Waiter) -> bool {
        let replicas = waiter.replicas.as_ref();
        replicas.is_some_and(|it| it.count.get() > self.store.replicas)
    }

    fn lasting_marks(&self) -> BTreeSet<(String, String)> {
        let marks = self.marks.keys();
        let marks = marks.filter(|(name, token)| self.marked_until_ms(name, token).is_some());
        marks
            .map(|(name, token)| (text(name.key()), token.clone()))
            .collect()
    }

    /// Returns the clients of these grants and waits that are gone.
    fn gone_of(&self, locks: &BTreeMap<String, Vec<Holder>>, waiters: &[Waiter]) -> BTreeSet<u64> {
        let holders = locks.values().flatten().filter_map(|it| it.client);
        let clients = holders.chain(waiters.iter().filter_map(|it| it.client));
        let gone = clients.filter(|client| self.gone.contains(client));
        gone.chain([CLOSED]).collect()
    }

    /// Returns true if the timer is to look at a name because its lock is or was elsewhere.
    fn is_unsettled(&self, name: &Name) -> bool {
        let is_away = self.store.away.contains(name) || self.table.is_scheduled(name);
        is_away && self.lock(&text(name.key())).is_free()
    }
}

/// Returns true if the reply to an operation is an error. So is that of a wait which its own decision
/// ends, unless another token or another wait of its own token had to be granted or ended first.
pub fn is_refused(
    decision: &Decision,
    operation: &Operation,
    waiter_id: WaiterId,
    effects: &[(Name, Change)],
) -> bool {
    let completions = decision.deliveries.iter().flat_map(|it| &it.completions);
    let is_before_own = |it: &&Completion| it.waiter_id != waiter_id;
    let ends_another = completions
        .clone()
        .take_while(is_before_own)
        .any(|it| it.outcome != Outcome::Refused(Refusal::TakenOver));
    let is_own_error =
        |it: &Completion| it.waiter_id == waiter_id && matches!(it.outcome, Outcome::Refused(_));
    let grants = effects.iter().filter_map(|(name, change)| match change {
        Change::Grant { holder, .. } => Some((name, &holder.token)),
        _ => None,
    });
    let own = operation.action.token();
    let granted: Vec<&Name> = grants
        .clone()
        .filter(|it| it.1 == own)
        .map(|it| it.0)
        .collect();
    let is_granted_whole = operation.names.iter().all(|name| granted.contains(&name));
    let grants_another =
        grants.clone().any(|(_, token)| token != own) || !(granted.is_empty() || is_granted_whole);
    let is_alone = !grants_another && !ends_another;
    decision.answer.is_err() || (is_alone && completions.clone().any(is_own_error))
}

/// Returns the cause of an operation's decision.
pub fn cause_of(operation: &Operation, is_refused: bool) -> Cause {
    let lease_ms = match &operation.action {
        Action::Acquire(Request { lease_ms, .. }) => Some(*lease_ms),
        Action::Wait { request, .. } => Some(request.lease_ms),
        Action::Queue {
            request, keep_ms, ..
        } => Some(request.lease_ms.min(*keep_ms)),
        _ => None,
    };
    Cause::Command {
        token: token_text(operation.action.token()),
        lease_ms,
        is_refused,
    }
}

/// Returns the KEEP of an action with SESSION.
pub fn session_keep(action: &Action) -> Option<u64> {
    let lease_kind = match action {
        Action::Acquire(request) | Action::Wait { request, .. } => request.lease_kind,
        Action::Extend { lease_kind, .. } => *lease_kind,
        _ => LeaseKind::Lease,
    };
    match lease_kind {
        LeaseKind::Session { keep_ms } => keep_ms,
        LeaseKind::Lease | LeaseKind::Untied => None,
    }
}

pub fn token_text(token: &Token) -> String {
    text(token.as_bytes())
}

/// Returns what a replica and a file know of a lock.
fn plain(lock: &Lock) -> Vec<u8> {
    codec::encode(lock)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const fn mode(of: holder::Mode) -> Mode {
    match of {
        holder::Mode::Exclusive => Mode::Exclusive,
        holder::Mode::Shared => Mode::Shared,
    }
}
