//! Replica waits: clients whose reply is held back until enough replicas have acknowledged what
//! their command changed (REPLICAS).
//!
//! 1. The token of such a client is a holder like any other, and the client is no waiter: it is in
//!    no queue.
//! 2. The server's stream of effects has offsets. A replica wait has the offset of the stream
//!    behind its own effects, once that is known.
//! 3. A replica wait follows its grants: their deadlines and fences, and their end. If a grant ends,
//!    even if its token is granted the lock anew in the same operation, the wait is lost.
//! 4. All waits that follow a grant share one record of it. So a change of a grant costs the same,
//!    however many follow it.
//! 5. Waits end in parts. Nobody is acknowledged while there are waits that are known to be lost, or
//!    grants that are still to be looked at.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use foldhash::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::budget::{MOST_A_FIRING, MOST_LOOKS};
use crate::state::durations::Durations;
use crate::state::hand_over::{GrantReply, HandOver, TakeBack};
use crate::state::slab::{End as Side, Position, Slab};
use crate::state::waiter::WaiterId;
use crate::values::holder::Holder;
use crate::values::holders::Difference;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names, Relocation};
use crate::values::request::Replicas;
use crate::values::time::has_passed;
use crate::values::token::Token;

/// The reply that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldReply {
    /// The grant of a command that succeeded at once.
    Grant,
    /// The number of names that a command extended.
    Count(usize),
    /// A hand-over, which is taken back if the connection is lost before the reply.
    HandOver(Box<HandOver>),
}

/// The part of a grant that a replica wait needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    deadline_ms: u64,
    fence: u64,
}

impl Terms {
    /// Returns the terms of a holder's grant.
    pub const fn of(own: &Holder) -> Self {
        Self {
            deadline_ms: own.deadline_ms,
            fence: own.fence,
        }
    }
}

/// A grant that replica waits follow, for as long as the token holds the name without a break.
#[derive(Debug)]
struct Grant {
    name: Name,
    token: Token,
    terms: Terms,
    /// The waits that follow it, the first one first, with some that have ended.
    waits: SmallVec<[WaiterId; 1]>,
    /// The number of waits that follow it.
    followers: usize,
    /// The number of its last confirmation, see [`ReplicaWaits::confirm`].
    confirmation: u64,
    /// True if its first wait began in the running operation.
    is_new: bool,
}

/// The id of a grant that replica waits follow. It is never used again.
pub type GrantId = Position;

/// The place of a command's effects in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not known yet.
    Unsent,
    /// Before this offset.
    Sent(u64),
    /// The lock has left with its slot. The server redirects the client.
    Elsewhere,
}

/// A client whose reply is held back.
#[derive(Debug)]
pub struct ReplicaWait {
    token: Token,
    /// The grants of its names.
    grants: SmallVec<[GrantId; 1]>,
    replicas: u16,
    reply: HeldReply,
    /// The start of the wait, on the steady clock in ms.
    since_ms: u64,
    /// Deadline of WITHIN, on the steady clock in ms.
    until_ms: u64,
    stage: Stage,
    /// The number of the last confirmation of any grant before the wait began.
    confirmation: u64,
    /// True if it is in [`ReplicaWaits::lost_at`], or has no hand-over.
    is_listed: bool,
}

impl ReplicaWait {
    /// Returns the wait for a reply about a token, which follows no grants yet.
    pub fn new(replicas: Replicas, reply: HeldReply, token: &Token, now_ms: u64) -> Self {
        Self {
            token: token.clone(),
            grants: SmallVec::new(),
            replicas: replicas.count.get(),
            reply,
            since_ms: now_ms,
            until_ms: now_ms.saturating_add(replicas.within_ms),
            stage: Stage::Unsent,
            confirmation: 0,
            is_listed: false,
        }
    }

    /// Has the wait follow a grant of its token.
    pub fn follow(&mut self, grant: GrantId) {
        self.grants.push(grant);
    }

    fn hand_over(&mut self) -> Option<&mut HandOver> {
        match &mut self.reply {
            HeldReply::HandOver(hand_over) => Some(hand_over),
            HeldReply::Grant | HeldReply::Count(_) => None,
        }
    }
}

/// A replica wait that was removed, as of its end.
#[derive(Debug)]
pub struct Removed {
    token: Token,
    reply: HeldReply,
    since_ms: u64,
    /// The greatest fence of its grants.
    fence: u64,
    /// True if a later command of the token was granted one of the names or extended it.
    is_confirmed: bool,
}

impl Removed {
    /// Returns the hand-over to take back, because its connection was lost before the reply.
    pub fn undelivered(self) -> Option<HandOver> {
        match self.reply {
            HeldReply::HandOver(hand_over) => {
                Some(*hand_over).filter(|it| !self.is_confirmed && it.is_revocable())
            }
            HeldReply::Grant | HeldReply::Count(_) => None,
        }
    }

    /// Returns the reply as it is to be sent now.
    pub fn due(self) -> DueReply {
        let (token, fence) = (self.token, self.fence);
        match self.reply {
            HeldReply::HandOver(hand_over) if !self.is_confirmed => {
                let mut hand_over = *hand_over;
                hand_over.grant.fence = fence;
                hand_over.take_back = TakeBack::IfClosed;
                DueReply::HandOver(hand_over)
            }
            HeldReply::HandOver(_) | HeldReply::Grant => {
                DueReply::Grant(GrantReply { token, fence })
            }
            HeldReply::Count(count) => DueReply::Count(count),
        }
    }
}

/// A reply that is held back no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueReply {
    /// A grant, with the greatest fence that it has now at its names.
    Grant(GrantReply),
    /// The number of names that were extended.
    Count(usize),
    /// A hand-over, which can still be taken back.
    HandOver(HandOver),
}

/// The end of a replica wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Enough replicas have acknowledged.
    Acknowledged(DueReply),
    /// A grant has ended before.
    GrantLost,
    /// WITHIN has ended before.
    TimedOut,
}

/// The progress of the replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The offsets that the replicas which are online have acknowledged, the greatest first.
    pub acknowledged: Vec<u64>,
}

impl Progress {
    /// Returns the offset that at least this many replicas have acknowledged.
    fn of_replicas(&self, count: u16) -> Option<u64> {
        let at = usize::from(count).checked_sub(1)?;
        self.acknowledged.get(at).copied()
    }
}

/// Counts and times of replica waits since the module was loaded.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    /// Replies that were sent because enough replicas had acknowledged.
    pub acknowledged: u64,
    /// Errors NOREPLICAS after a wait.
    pub not_acknowledged: u64,
    /// The times of the acknowledged waits.
    pub times: Durations,
}

/// All replica waits.
///
/// Invariants:
/// 1. `at` lists each grant, and `lease_ends` by its deadline. Each grant has a follower.
/// 2. Each wait is in `timeouts`, and by its stage in `unsent`, in `offsets` or in neither.
/// 3. A wait with a grant that has ended is in `lost` or elsewhere.
#[derive(Debug, Default)]
pub struct ReplicaWaits {
    waits: HashMap<WaiterId, ReplicaWait>,
    grants: Slab<Grant>,
    at: HashMap<Name, HashMap<Token, GrantId>>,
    /// Waits whose offset is not known yet.
    unsent: BTreeSet<WaiterId>,
    /// Waits by their number of replicas and their offset.
    offsets: BTreeSet<(u16, u64, WaiterId)>,
    timeouts: BTreeSet<(u64, WaiterId)>,
    /// Grants by the deadline of their lease.
    lease_ends: BTreeSet<(u64, GrantId)>,
    /// Grants whose first wait began in the running operation.
    begun: Vec<GrantId>,
    /// The waits of grants that have ended, not replied to yet, with some that have ended before.
    lost: VecDeque<smallvec::IntoIter<[WaiterId; 1]>>,
    /// The numbers of the last confirmations of those grants, unless they had none.
    confirmed: HashMap<GrantId, u64>,
    /// The lost waits with a hand-over, by the names of its locks now and by its token, with some that
    /// have ended before. Filled when a lock moves.
    lost_at: HashMap<Name, HashMap<Token, Vec<WaiterId>>>,
    /// The number of grants at the end of `lost` whose waits are not in `lost_at` yet.
    unlisted: usize,
    /// Databases that were emptied, perhaps to be loaded again at once.
    emptied: Vec<Option<i32>>,
    /// Grants in such databases that are still to be looked at.
    doubtful: BTreeSet<GrantId>,
    /// The number of confirmations so far.
    confirmations: u64,
    /// True if the last look left ends to the next one.
    has_more: bool,
    /// Counts and times.
    pub acknowledgements: Acknowledgements,
    /// The waits and grants that were looked at so far: what replica waits cost.
    looks: Cell<u64>,
}

impl ReplicaWaits {
    /// Returns the number of waits.
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Returns the number of waits and grants that were looked at so far. An operation's steps don't
    /// have them.
    pub const fn looks(&self) -> u64 {
        self.looks.get()
    }

    fn look_at(&self, count: usize) {
        self.looks.set(self.looks.get() + count as u64);
    }

    /// Returns true if there is no wait.
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Returns true if there are waits whose offset is not known yet.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns true if a look at the replicas may end more waits at once: it was cut short, or an
    /// operation has left lost ones to it.
    pub fn has_more(&self) -> bool {
        self.has_more || !self.lost.is_empty()
    }

    /// Returns true if this client's reply is held back.
    pub fn contains(&self, id: WaiterId) -> bool {
        self.waits.contains_key(&id)
    }

    /// Returns the grant of a token at a name if any wait follows it.
    pub fn grant_at(&self, name: &Name, token: &Token) -> Option<GrantId> {
        self.at.get(name)?.get(token).copied()
    }

    /// Returns the name, the token and the fence of a grant that has not ended.
    pub fn grant(&self, id: GrantId) -> Option<(&Name, &Token, u64)> {
        let grant = self.grants.get(id)?;
        Some((&grant.name, &grant.token, grant.terms.fence))
    }

    /// Returns the grant of a token at a name, so that a wait can follow it.
    pub fn grant_to_follow(&mut self, name: &Name, token: &Token, terms: Terms) -> GrantId {
        self.look_at(1);
        if let Some(id) = self.grant_at(name, token) {
            return id;
        }
        let grant = Grant {
            name: name.clone(),
            token: token.clone(),
            terms,
            waits: SmallVec::new(),
            followers: 0,
            confirmation: 0,
            is_new: true,
        };
        let id = self.grants.add(Side::Back, grant);
        let tokens = self.at.entry(name.clone()).or_default();
        tokens.insert(token.clone(), id);
        self.lease_ends.insert((terms.deadline_ms, id));
        self.begun.push(id);
        id
    }

    /// Adds a wait.
    pub fn insert(&mut self, id: WaiterId, mut wait: ReplicaWait) {
        for grant in &wait.grants {
            if let Some(grant) = self.grants.get_mut(*grant) {
                grant.waits.push(id);
                grant.followers += 1;
            }
        }
        wait.confirmation = self.confirmations;
        self.timeouts.insert((wait.until_ms, id));
        self.unsent.insert(id);
        self.waits.insert(id, wait);
    }

    /// Removes and returns a wait.
    pub fn remove(&mut self, id: WaiterId) -> Option<Removed> {
        let wait = self.waits.remove(&id)?;
        self.unlist(id, &wait);
        self.timeouts.remove(&(wait.until_ms, id));
        let mut removed = Removed {
            token: wait.token,
            reply: wait.reply,
            since_ms: wait.since_ms,
            fence: 0,
            is_confirmed: false,
        };
        self.look_at(wait.grants.len());
        for id in wait.grants {
            let Some(grant) = self.grants.get_mut(id) else {
                let confirmation = self.confirmed.get(&id);
                removed.is_confirmed |= confirmation > Some(&wait.confirmation);
                continue;
            };
            removed.fence = removed.fence.max(grant.terms.fence);
            removed.is_confirmed |= grant.confirmation > wait.confirmation;
            grant.followers -= 1;
            if grant.followers == 0 {
                self.forget(id);
            } else if grant.waits.len() > 2 * grant.followers {
                grant.waits.retain(|id| self.waits.contains_key(id));
            }
        }
        if self.waits.is_empty() {
            (self.lost, self.doubtful) = Default::default();
            self.forget_lost();
        }
        Some(removed)
    }

    /// Removes a wait from the lists of those to acknowledge.
    fn unlist(&mut self, id: WaiterId, wait: &ReplicaWait) {
        match wait.stage {
            Stage::Unsent => drop(self.unsent.remove(&id)),
            Stage::Sent(offset) => drop(self.offsets.remove(&(wait.replicas, offset, id))),
            Stage::Elsewhere => {}
        }
    }

    /// Removes and returns a grant. Its waits follow it no longer.
    fn forget(&mut self, id: GrantId) -> Option<Grant> {
        self.look_at(1);
        let grant = self.grants.remove(id)?;
        self.lease_ends.remove(&(grant.terms.deadline_ms, id));
        if let Some(tokens) = self.at.get_mut(&grant.name) {
            tokens.remove(&grant.token);
            if tokens.is_empty() {
                self.at.remove(&grant.name);
            }
        }
        Some(grant)
    }

    /// Returns true if any wait follows a grant at this name.
    pub fn concerns(&self, name: &Name) -> bool {
        self.at.contains_key(name)
    }

    /// Records that a command of this token was granted these names, or extended them. Hand-overs
    /// that it made are not taken back any more.
    pub fn confirm(&mut self, token: &Token, names: &Names) {
        self.confirmations += 1;
        self.look_at(names.count());
        for name in names {
            let grant = self.grant_at(name, token);
            if let Some(grant) = grant.and_then(|id| self.grants.get_mut(id)) {
                grant.confirmation = self.confirmations;
            }
        }
        self.confirm_lost(token, names);
    }

    fn confirm_lost(&mut self, token: &Token, names: &Names) {
        let at_name = names.iter().filter_map(|name| self.lost_at.get(name));
        for id in at_name.filter_map(|tokens| tokens.get(token)).flatten() {
            if let Some(hand_over) = self.waits.get_mut(id).and_then(ReplicaWait::hand_over) {
                hand_over.take_back = TakeBack::Never;
            }
        }
    }

    /// Ends a grant unless the token holds the name and held it before the operation: under the
    /// fence `before`, if it did.
    pub fn end_unless_held(&mut self, id: GrantId, before: Option<u64>, is_held: bool) {
        let goes_on = self
            .grants
            .get(id)
            .is_some_and(|grant| is_held && (grant.is_new || before == Some(grant.terms.fence)));
        if !goes_on {
            self.end_grant(id);
        }
    }

    /// Follows the change of a token's grant at a name by the running operation.
    pub fn follow(&mut self, name: &Name, Difference { before, after }: Difference<'_>) {
        let token = before.or(after).map(|own| &own.token);
        let Some(id) = token.and_then(|token| self.grant_at(name, token)) else {
            return;
        };
        self.end_unless_held(id, before.map(|own| own.fence), after.is_some());
        if let Some(after) = after {
            self.change(id, Terms::of(after));
        }
    }

    /// Records the terms that a grant has now.
    pub fn change(&mut self, id: GrantId, terms: Terms) {
        self.look_at(1);
        if let Some(grant) = self.grants.get_mut(id) {
            let old = std::mem::replace(&mut grant.terms, terms);
            if old.deadline_ms != terms.deadline_ms {
                self.lease_ends.remove(&(old.deadline_ms, id));
                self.lease_ends.insert((terms.deadline_ms, id));
            }
        }
    }

    /// Returns the grants whose first wait began in the running operation, and forgets that they are
    /// new.
    pub fn take_begun(&mut self) -> Vec<GrantId> {
        let begun = std::mem::take(&mut self.begun);
        for id in &begun {
            if let Some(grant) = self.grants.get_mut(*id) {
                grant.is_new = false;
            }
        }
        begun
    }

    /// Records that a grant has ended. Its waits are lost.
    pub fn end_grant(&mut self, id: GrantId) {
        if let Some(grant) = self.forget(id) {
            self.lost.push_back(grant.waits.into_iter());
            self.unlisted += 1;
            if grant.confirmation > 0 {
                self.confirmed.insert(id, grant.confirmation);
            }
        }
    }

    /// Records that a token's grant at a name has ended.
    pub fn lose(&mut self, name: &Name, token: &Token) {
        if let Some(id) = self.grant_at(name, token) {
            self.end_grant(id);
        }
    }

    /// Records that this lock has left its key. Grants that were made there since go on. If
    /// `is_elsewhere`, the lock has left with its slot, and the server redirects the clients.
    pub fn lose_all(&mut self, name: &Name, left: &Lock, is_elsewhere: bool) {
        let tokens = self.at.get(name).into_iter().flatten();
        let gone = tokens.filter(|(token, id)| {
            let own = self.grants.get(**id).zip(left.holder(token));
            own.is_some_and(|(grant, gone)| grant.terms.fence == gone.fence)
        });
        for id in gone.map(|(_, id)| *id).collect::<Vec<_>>() {
            if is_elsewhere {
                self.send_on(id);
            } else {
                self.end_grant(id);
            }
        }
    }

    /// Leaves the waits of a grant to the server. They end without its reply if their WITHIN does.
    fn send_on(&mut self, id: GrantId) {
        for id in self.forget(id).into_iter().flat_map(|grant| grant.waits) {
            if let Some(mut wait) = self.waits.remove(&id) {
                self.unlist(id, &wait);
                wait.stage = Stage::Elsewhere;
                self.waits.insert(id, wait);
            }
        }
    }

    /// Records that all keys of two databases have changed places.
    pub fn lose_swapped(&mut self, one: i32, other: i32) {
        if one != other {
            let swapped = self.grants_in(|db| db == one || db == other);
            swapped.into_iter().for_each(|id| self.end_grant(id));
        }
    }

    /// Has the hand-overs that are held back follow locks that the server moved. The waits of moved
    /// locks are lost by now, so the others need not be looked at.
    pub fn relocate(&mut self, relocation: &Relocation) {
        self.list_lost();
        let names: Vec<Name> = match relocation {
            Relocation::Moved(from, to) => vec![from.clone(), to.clone()],
            Relocation::Swapped(..) => {
                let names = self.lost_at.keys().filter(|it| relocation.concerns(it));
                names.cloned().collect()
            }
        };
        let entries = names.iter().filter_map(|it| self.lost_at.remove_entry(it));
        let entries: Vec<_> = entries.collect();
        let of_tokens = entries.iter().flat_map(|(_, tokens)| tokens.values());
        let ids: HashSet<WaiterId> = of_tokens.flatten().copied().collect();
        self.look_at(ids.len());
        for id in ids {
            if let Some(hand_over) = self.waits.get_mut(&id).and_then(ReplicaWait::hand_over) {
                hand_over.relocate(relocation);
            }
        }
        let moved = |(name, tokens)| Some((relocation.follow(&name)?, tokens));
        self.lost_at.extend(entries.into_iter().filter_map(moved));
    }

    fn list_lost(&mut self) {
        let first = self
            .lost
            .len()
            .saturating_sub(std::mem::take(&mut self.unlisted));
        let ids = self
            .lost
            .range(first..)
            .flat_map(smallvec::IntoIter::as_slice);
        let ids: Vec<WaiterId> = ids.copied().collect();
        self.look_at(ids.len());
        for id in ids {
            let Some(wait) = self.waits.get_mut(&id) else {
                continue;
            };
            if std::mem::replace(&mut wait.is_listed, true) {
                continue;
            }
            let token = wait.token.clone();
            let names = wait.hand_over().map(|it| it.names.clone());
            for name in names.iter().flatten() {
                let tokens = self.lost_at.entry(name.clone()).or_default();
                tokens.entry(token.clone()).or_default().push(id);
            }
        }
    }

    fn grants_in(&self, has: impl Fn(i32) -> bool) -> Vec<GrantId> {
        let names = self.at.iter().filter(|(name, _)| has(name.db));
        names
            .flat_map(|(_, tokens)| tokens.values())
            .copied()
            .collect()
    }

    /// Records that a database was emptied; `None`: all of them. Its keys may be loaded again at
    /// once, so the locks are looked at later, see [`ReplicaWaits::take_doubtful`].
    pub fn doubt(&mut self, db: Option<i32>) {
        if !self.waits.is_empty() {
            self.emptied.push(db);
        }
    }

    /// Returns grants in the databases that were emptied, at most `most`. The caller looks at them.
    pub fn take_doubtful(&mut self, most: usize) -> Vec<GrantId> {
        let emptied = std::mem::take(&mut self.emptied);
        if !emptied.is_empty() {
            let is_in = |db| emptied.iter().any(|own| own.is_none_or(|own| own == db));
            let grants = self.grants_in(is_in);
            self.doubtful.extend(grants);
        }
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(id) = self.doubtful.pop_first() else {
                break;
            };
            taken.push(id);
        }
        taken
    }

    /// Records the offset of waits whose effects were replicated since the last call. The caller
    /// has made sure that all effects so far are before the offset.
    pub fn record_offset(&mut self, offset: u64) {
        for id in std::mem::take(&mut self.unsent) {
            if let Some(wait) = self.waits.get_mut(&id) {
                wait.stage = Stage::Sent(offset);
                self.offsets.insert((wait.replicas, offset, id));
            }
        }
    }

    /// Removes waits that have ended, at most `most`. Passes their ends to `end`:
    ///
    /// 1. those whose grant has ended;
    /// 2. those that enough replicas have acknowledged;
    /// 3. those whose WITHIN has ended.
    ///
    /// The later ones wait until the earlier ones have ended.
    pub fn end(
        &mut self,
        progress: &Progress,
        (now_ms, steady_ms): (u64, u64),
        most: usize,
        end: &mut dyn FnMut(WaiterId, End),
    ) {
        let last_look = self.looks.get() + MOST_LOOKS;
        self.has_more = true;
        if !self.doubtful.is_empty() {
            return;
        }
        while let Some(id) = first_over(&self.lease_ends, now_ms) {
            if self.looks.get() >= last_look {
                return;
            }
            self.end_grant(id);
        }
        let mut left = most;
        if !self.end_lost_within(&mut left, last_look, end) {
            return;
        }
        for id in self.acknowledged(progress, left) {
            if self.looks.get() >= last_look {
                return;
            }
            if let Some(removed) = self.remove(id) {
                left -= 1;
                self.acknowledgements.acknowledged += 1;
                let waited_ms = steady_ms.saturating_sub(removed.since_ms);
                self.acknowledgements.times.record(waited_ms);
                end(id, End::Acknowledged(removed.due()));
            }
        }
        while let Some(id) = first_over(&self.timeouts, steady_ms) {
            if left == 0 || self.looks.get() >= last_look {
                return;
            }
            left -= 1;
            self.refuse(id, End::TimedOut, end);
        }
        self.has_more = left == 0;
    }

    /// Removes waits whose grant has ended, at the end of an operation. Passes their ends to `end`.
    /// The others are left to the next look.
    pub fn end_lost(&mut self, end: &mut dyn FnMut(WaiterId, End)) {
        let last_look = self.looks.get() + MOST_LOOKS;
        self.end_lost_within(&mut { MOST_A_FIRING }, last_look, end);
    }

    /// Removes waits whose grant has ended, at most `left`. Returns true if none is left.
    fn end_lost_within(
        &mut self,
        left: &mut usize,
        last_look: u64,
        end: &mut dyn FnMut(WaiterId, End),
    ) -> bool {
        while *left > 0 && self.looks.get() < last_look {
            let Some(id) = self.next_lost() else {
                return true;
            };
            if self.refuse(id, End::GrantLost, end) {
                *left -= 1;
            }
        }
        self.lost.is_empty()
    }

    fn next_lost(&mut self) -> Option<WaiterId> {
        while let Some(ids) = self.lost.front_mut() {
            if let Some(id) = ids.next() {
                self.look_at(1);
                return Some(id);
            }
            self.lost.pop_front();
        }
        self.forget_lost();
        None
    }

    /// Forgets what is recorded of lost waits, because none is left.
    fn forget_lost(&mut self) {
        self.confirmed.clear();
        self.lost_at.clear();
        self.unlisted = 0;
    }

    /// Returns the first waits that enough replicas have acknowledged, at most `most`.
    fn acknowledged(&self, progress: &Progress, most: usize) -> Vec<WaiterId> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some((count, ..)) = self.offsets.range((from, 0, WaiterId(0))..).next() {
            from = count + 1;
            // Nor have more replicas acknowledged anything.
            let Some(offset) = progress.of_replicas(*count) else {
                break;
            };
            let least = (*count, 0, WaiterId(0));
            let covered = self
                .offsets
                .range(least..=(*count, offset, WaiterId(u64::MAX)))
                .inspect(|_| self.look_at(1));
            let room = most.saturating_sub(found.len());
            found.extend(covered.take(room).map(|(_, _, id)| *id));
        }
        found
    }

    /// Removes a wait. Returns false if there is none.
    fn refuse(&mut self, id: WaiterId, why: End, end: &mut dyn FnMut(WaiterId, End)) -> bool {
        let is_removed = self.remove(id).is_some();
        if is_removed {
            self.acknowledgements.not_acknowledged += 1;
            end(id, why);
        }
        is_removed
    }

    /// Returns the grants that are followed, without those that are to be looked at: their names,
    /// tokens and fences.
    pub fn followed(&self) -> impl Iterator<Item = (&Name, &Token, u64)> {
        let in_doubt = !self.emptied.is_empty() || !self.doubtful.is_empty();
        let grants = self.grants.values().filter(move |_| !in_doubt);
        grants.map(|grant| (&grant.name, &grant.token, grant.terms.fence))
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let listed: usize = self.at.values().map(HashMap::len).sum();
        let stages = |is: fn(&Stage) -> bool| {
            let stages = self.waits.values().map(|wait| wait.stage);
            stages.filter(is).count()
        };
        let (unsent, sent) = (
            stages(|stage| matches!(stage, Stage::Unsent)),
            stages(|stage| matches!(stage, Stage::Sent(_))),
        );
        let counts = [
            ("grants", listed, self.grants.len()),
            ("ends of leases", self.lease_ends.len(), self.grants.len()),
            ("timeouts", self.timeouts.len(), self.waits.len()),
            ("unsent", self.unsent.len(), unsent),
            ("offsets", self.offsets.len(), sent),
        ];
        for (index, found, expected) in counts {
            if found != expected {
                return Err(format!("{index}: {found} instead of {expected}"));
            }
        }
        if let Some((id, wait)) = self.waits.iter().find(|own| !self.is_listed(*own)) {
            return Err(format!("not listed: {id:?} {wait:?}"));
        }
        let grants = self.at.values().flat_map(HashMap::values);
        match grants.copied().find(|id| !self.is_followed(*id)) {
            Some(id) => Err(format!("not followed: {:?}", self.grants.get(id))),
            None => Ok(()),
        }
    }

    fn is_listed(&self, (id, wait): (&WaiterId, &ReplicaWait)) -> bool {
        let is_there = match wait.stage {
            Stage::Unsent => self.unsent.contains(id),
            Stage::Sent(offset) => self.offsets.contains(&(wait.replicas, offset, *id)),
            Stage::Elsewhere => true,
        };
        let is_elsewhere = wait.stage == Stage::Elsewhere;
        is_there
            && self.timeouts.contains(&(wait.until_ms, *id))
            && wait.grants.iter().all(|own| match self.grants.get(*own) {
                Some(grant) => grant.waits.contains(id),
                None => is_elsewhere || !self.lost.is_empty(),
            })
    }

    fn is_followed(&self, id: GrantId) -> bool {
        let followers = self.waits.values().filter(|wait| wait.grants.contains(&id));
        self.grants.get(id).is_some_and(|grant| {
            !grant.is_new
                && grant.followers > 0
                && grant.waits.len() <= 2 * grant.followers
                && grant.followers == followers.count()
                && self.grant_at(&grant.name, &grant.token) == Some(id)
                && self.lease_ends.contains(&(grant.terms.deadline_ms, id))
        })
    }

    /// Removes a wait as if its WITHIN had ended. Returns false if there is none.
    pub fn cut_short(&mut self, id: WaiterId) -> bool {
        self.refuse(id, End::TimedOut, &mut |_, _| {})
    }

    /// Returns when the first WITHIN ends, on the steady clock in ms.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        self.timeouts.first().map(|(ms, _)| *ms)
    }
}

/// Returns the first entry if its deadline has passed.
fn first_over<T: Copy + Ord>(ends: &BTreeSet<(u64, T)>, now_ms: u64) -> Option<T> {
    let (deadline_ms, first) = *ends.first()?;
    has_passed(deadline_ms, now_ms).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::state::hand_over::FenceOrigin;
    use crate::values::data::Data;
    use crate::values::holder::Mode;
    use crate::values::session_id::SessionId;

    const ID: WaiterId = WaiterId(7);

    fn name() -> Name {
        Name::new(0, b"k")
    }

    fn token() -> Token {
        Token::new(b"a").expect("a token")
    }

    /// Returns one wait for two replicas, which follows one grant.
    fn one(reply: HeldReply) -> (ReplicaWaits, GrantId) {
        let mut waits = ReplicaWaits::default();
        let terms = Terms {
            deadline_ms: 1_000,
            fence: 5,
        };
        let grant = waits.grant_to_follow(&name(), &token(), terms);
        let count = NonZeroU16::new(2).expect("a number");
        let replicas = Replicas {
            count,
            within_ms: 50,
        };
        let mut wait = ReplicaWait::new(replicas, reply, &token(), 100);
        wait.follow(grant);
        waits.insert(ID, wait);
        waits.take_begun();
        assert_eq!(waits.check(), Ok(()));
        (waits, grant)
    }

    #[test]
    fn a_wait_is_known_until_it_is_removed() {
        let (mut waits, grant) = one(HeldReply::Grant);
        assert!(waits.contains(ID) && !waits.contains(WaiterId(8)));
        assert!(waits.concerns(&name()) && !waits.concerns(&Name::new(1, b"k")));
        assert!(waits.has_unsent() && !waits.has_more());
        assert_eq!(waits.next_timeout_ms(), Some(150));
        assert_eq!(waits.grant_at(&name(), &token()), Some(grant));
        waits.record_offset(9);
        assert!(!waits.has_unsent());
        assert_eq!(waits.check(), Ok(()));
        waits.lose(&name(), &token());
        assert!(waits.has_more());
        let mut ends = Vec::new();
        waits.end_lost(&mut |id, end| ends.push((id, end)));
        assert_eq!(ends, [(ID, End::GrantLost)]);
        assert!(waits.is_empty() && !waits.contains(ID) && !waits.concerns(&name()));
        assert_eq!(waits.next_timeout_ms(), None);
    }

    /// The cost of a wait: one look to begin and to change it, one for each grant at its end.
    #[test]
    fn each_look_is_counted() {
        let (mut waits, grant) = one(HeldReply::Grant);
        assert_eq!(waits.looks(), 1);
        let terms = waits.grants.get(grant).expect("a grant").terms;
        waits.change(grant, Terms { fence: 6, ..terms });
        assert_eq!(waits.looks(), 2);
        waits.confirm(&token(), &Names::one(name()));
        assert_eq!(waits.looks(), 3);
        waits.remove(ID);
        assert_eq!(waits.looks(), 5);
    }

    #[test]
    fn a_later_deadline_moves_the_end_of_the_lease() {
        let (mut waits, grant) = one(HeldReply::Grant);
        let terms = waits.grants.get(grant).expect("a grant").terms;
        for deadline_ms in [2_000, 2_000] {
            waits.change(
                grant,
                Terms {
                    deadline_ms,
                    ..terms
                },
            );
            assert_eq!(waits.check(), Ok(()));
            assert_eq!(waits.lease_ends.first().map(|(ms, _)| *ms), Some(2_000));
        }
    }

    /// Enough replicas acknowledge in time, or WITHIN ends, or the lease does.
    #[test]
    fn a_wait_ends_by_what_comes_first() {
        let granted = || {
            let (token, fence) = (token(), 5);
            End::Acknowledged(DueReply::Grant(GrantReply { token, fence }))
        };
        for (acknowledged, now_ms, steady_ms, expected) in [
            (vec![9, 9], 900, 120, Some(granted())),
            (vec![9], 900, 150, None),
            (vec![9, 8], 900, 151, Some(End::TimedOut)),
            (vec![], 1_000, 150, None),
            (vec![9, 9], 1_001, 120, Some(End::GrantLost)),
        ] {
            let (mut waits, _) = one(HeldReply::Grant);
            waits.record_offset(9);
            let progress = Progress { acknowledged };
            let mut ends = Vec::new();
            let mut end = |id, end| ends.push((id, end));
            waits.end(&progress, (now_ms, steady_ms), 9, &mut end);
            let expected: Vec<_> = expected.into_iter().map(|end| (ID, end)).collect();
            assert_eq!(ends, expected, "{progress:?} at {now_ms} and {steady_ms}");
            assert_eq!(waits.is_empty(), !expected.is_empty());
            assert!(!waits.has_more());
            assert_eq!(waits.check(), Ok(()));
        }
    }

    /// Grants in an emptied database are looked at, and nothing ends until then.
    #[test]
    fn grants_in_an_emptied_database_are_doubtful() {
        for (emptied, is_in) in [(Some(0), true), (None, true), (Some(1), false)] {
            let (mut waits, grant) = one(HeldReply::Grant);
            assert_eq!(waits.followed().count(), 1);
            waits.doubt(emptied);
            assert_eq!(waits.followed().count(), 0);
            assert_eq!(waits.take_doubtful(0), []);
            assert_eq!(waits.followed().count(), usize::from(!is_in));
            let taken = waits.take_doubtful(1);
            assert_eq!(
                taken,
                if is_in { vec![grant] } else { vec![] },
                "{emptied:?}"
            );
            assert_eq!(waits.followed().count(), 1);
        }
    }

    #[test]
    fn the_check_finds_each_broken_list() {
        type Break = fn(&mut ReplicaWaits, GrantId);
        let breaks: [(Break, &str); 15] = [
            (
                |it, _| {
                    it.at.clear();
                },
                "grants",
            ),
            (|it, _| it.lease_ends.clear(), "ends of leases"),
            (|it, _| it.timeouts.clear(), "timeouts"),
            (|it, _| it.unsent.clear(), "unsent"),
            (
                |it, _| {
                    it.offsets.insert((2, 9, ID));
                },
                "offsets",
            ),
            (
                |it, _| {
                    it.timeouts.clear();
                    it.timeouts.insert((1, ID));
                },
                "not listed",
            ),
            (
                |it, _| {
                    it.unsent.clear();
                    it.unsent.insert(WaiterId(8));
                },
                "not listed",
            ),
            (|it, id| it.grant_of(id).waits.clear(), "not listed"),
            (
                |it, id| {
                    it.lease_ends.clear();
                    it.lease_ends.insert((1, id));
                },
                "not followed",
            ),
            (|it, id| it.grant_of(id).is_new = true, "not followed"),
            (|it, id| it.grant_of(id).followers = 2, "not followed"),
            (|it, id| it.grant_of(id).followers = 0, "not followed"),
            (
                |it, id| {
                    it.waits.clear();
                    it.timeouts.clear();
                    it.unsent.clear();
                    it.grant_of(id).waits.clear();
                    it.grant_of(id).followers = 0;
                },
                "not followed",
            ),
            (
                |it, id| it.grant_of(id).waits.extend([ID, ID]),
                "not followed",
            ),
            (
                |it, id| it.grant_of(id).name = Name::new(0, b"other"),
                "not followed",
            ),
        ];
        for (number, (break_list, complaint)) in breaks.into_iter().enumerate() {
            let (mut waits, grant) = one(HeldReply::Grant);
            break_list(&mut waits, grant);
            let found = waits.check().expect_err("a broken list");
            assert!(found.starts_with(complaint), "break {number}: {found}");
        }
    }

    /// Adds waits for the same grant until there are so many, with ids from 8 on.
    fn add_followers(waits: &mut ReplicaWaits, grant: GrantId, count: u64) {
        for id in 8..7 + count {
            let replicas = Replicas {
                count: NonZeroU16::new(2).expect("a number"),
                within_ms: 50,
            };
            let mut wait = ReplicaWait::new(replicas, HeldReply::Count(1), &token(), 100);
            wait.follow(grant);
            waits.insert(WaiterId(id), wait);
        }
        assert_eq!(waits.check(), Ok(()));
    }

    /// A grant forgets the waits that have ended when they are more than those that follow it.
    #[test]
    fn waits_that_have_ended_are_forgotten_together() {
        let (mut waits, grant) = one(HeldReply::Grant);
        add_followers(&mut waits, grant, 6);
        for (id, listed) in [(8, 6), (9, 6), (10, 6), (11, 2), (12, 2)] {
            waits.remove(WaiterId(id));
            assert_eq!(waits.grant_of(grant).waits.len(), listed, "without {id}");
            assert_eq!(waits.check(), Ok(()));
        }
        waits.remove(ID);
        assert_eq!(waits.grants.len(), 0);
    }

    /// A look ends only so many waits, and says that there are more.
    #[test]
    fn waits_end_in_parts() {
        let lost = |waits: &mut ReplicaWaits| waits.lose(&name(), &token());
        let acknowledged = |waits: &mut ReplicaWaits| waits.record_offset(9);
        let timed_out = |_: &mut ReplicaWaits| ();
        type Prepare = fn(&mut ReplicaWaits);
        let all: [(Prepare, u64); 3] = [(lost, 120), (acknowledged, 120), (timed_out, 151)];
        for (number, (prepare, steady_ms)) in all.into_iter().enumerate() {
            let (mut waits, grant) = one(HeldReply::Grant);
            add_followers(&mut waits, grant, 5);
            prepare(&mut waits);
            let acknowledged = vec![9, 9];
            let progress = Progress { acknowledged };
            for (most, left, has_more) in [(0, 5, true), (2, 3, true), (2, 1, true), (2, 0, false)]
            {
                let mut ended = 0;
                let mut end = |_, _| ended += 1;
                waits.end(&progress, (900, steady_ms), most, &mut end);
                assert_eq!(waits.len(), left, "ends of kind {number}, {most}");
                assert!(ended <= most);
                assert_eq!(waits.has_more(), has_more, "{left} left of kind {number}");
                assert_eq!(waits.check(), Ok(()));
            }
        }
    }

    /// A lost wait takes a look, and one for each of its grants.
    #[test]
    fn a_part_ends_with_the_look_that_reaches_its_bound() {
        type Part = fn(&mut ReplicaWaits, &mut dyn FnMut(WaiterId, End));
        let look: Part = |it, end| it.end(&Progress::default(), (900, 120), usize::MAX, end);
        let operation: Part = |it, end| it.end_lost(end);
        for (part, grants, expected) in [(look, 255, 256), (operation, 511, 128)] {
            assert_eq!((1 + grants) * expected, MOST_LOOKS);
            let mut waits = ReplicaWaits::default();
            let terms = Terms {
                deadline_ms: 1_000,
                fence: 5,
            };
            let names: Vec<Name> = (0..grants).map(|db| Name::new(db as i32, b"k")).collect();
            for id in 0..300 {
                let replicas = Replicas {
                    count: NonZeroU16::new(2).expect("a number"),
                    within_ms: 50,
                };
                let mut wait = ReplicaWait::new(replicas, HeldReply::Grant, &token(), 100);
                for name in &names {
                    wait.follow(waits.grant_to_follow(name, &token(), terms));
                }
                waits.insert(WaiterId(id), wait);
            }
            waits.lose(&name(), &token());
            let mut ended = 0;
            part(&mut waits, &mut |_, _| ended += 1);
            assert_eq!(ended, expected);
            assert!(waits.has_more());
        }
    }

    #[test]
    fn a_wait_whose_lock_has_left_with_its_slot_ends_by_its_time() {
        let (mut waits, _) = one(HeldReply::Grant);
        let own = Holder {
            token: token(),
            fence: 5,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 1_000,
            lease_ms: 9,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        waits.lose_all(&name(), &Lock::sole(Mode::Exclusive, own), true);
        assert!(waits.contains(ID) && !waits.has_more() && !waits.has_unsent());
        assert_eq!(waits.check(), Ok(()));
        assert!(waits.cut_short(ID) && !waits.cut_short(ID));
        assert_eq!(waits.check(), Ok(()));
    }

    /// A hand-over that a later command has confirmed is not taken back any more.
    #[test]
    fn a_confirmed_hand_over_is_a_grant() {
        for is_confirmed in [false, true] {
            let hand_over = HandOver {
                grant: GrantReply {
                    token: token(),
                    fence: 4,
                },
                names: Names::one(name()),
                client_id: 7,
                granted_ms: 100,
                fence_origin: FenceOrigin::New,
                take_back: TakeBack::IfUndelivered,
                replaced: Vec::new(),
                sessions: SessionId::numbered(1)..SessionId::numbered(1),
                kept: None,
            };
            let (mut waits, _) = one(HeldReply::HandOver(Box::new(hand_over.clone())));
            if is_confirmed {
                waits.confirm(&token(), &Names::one(name()));
            }
            let removed = waits.remove(ID).expect("a wait");
            let grant = GrantReply {
                token: token(),
                fence: 5,
            };
            let expected = match is_confirmed {
                true => DueReply::Grant(grant),
                false => DueReply::HandOver(HandOver {
                    grant,
                    take_back: TakeBack::IfClosed,
                    ..hand_over
                }),
            };
            assert_eq!(removed.due(), expected, "{is_confirmed}");
        }
    }

    impl ReplicaWaits {
        fn grant_of(&mut self, id: GrantId) -> &mut Grant {
            self.grants.get_mut(id).expect("a grant")
        }
    }
}
