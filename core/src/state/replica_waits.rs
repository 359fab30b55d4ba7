//! Replica waits: clients whose reply is held back until enough replicas have acknowledged what
//! their command changed (REPLICAS).
//!
//! 1. The token of such a client is a holder like any other, and the client is no waiter: it is in
//!    no queue.
//! 2. The server's stream of effects has offsets. A replica wait has the offset of the stream
//!    behind its own effects, once that is known.
//! 3. A replica wait follows its grants: their deadlines and fences, and their end. If a grant ends,
//!    even if its token is granted the lock anew in the same operation, the wait is lost.

use std::cell::Cell;
use std::collections::BTreeSet;

use foldhash::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::state::durations::Durations;
use crate::state::hand_over::{GrantReply, HandOver, TakeBack};
use crate::state::waiter::WaiterId;
use crate::values::holder::Holder;
use crate::values::holders::Difference;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::request::Replicas;
use crate::values::session_id::SessionId;
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

/// The grant of one name that a replica wait follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Followed {
    deadline_ms: u64,
    fence: u64,
    session: SessionId,
}

impl Followed {
    const fn of(own: &Holder) -> Self {
        Self {
            deadline_ms: own.deadline_ms,
            fence: own.fence,
            session: own.session,
        }
    }
}

/// A client whose reply is held back.
#[derive(Debug)]
pub struct ReplicaWait {
    token: Token,
    names: Names,
    /// The grants, one for each name, in the order of the names.
    grants: SmallVec<[Followed; 1]>,
    /// The first deadline of its leases, in ms since the epoch, as of the end of the last operation.
    // perf: a wait can have a million names, all of which one operation may extend.
    lease_end_ms: u64,
    replicas: u16,
    reply: HeldReply,
    /// The start of the wait, on the steady clock in ms.
    since_ms: u64,
    /// Deadline of WITHIN, on the steady clock in ms.
    until_ms: u64,
    /// The offset of the stream behind the command's effects; `None`: not known yet.
    offset: Option<u64>,
    /// True if a later command of the token was granted one of the names or extended it.
    is_confirmed: bool,
}

impl ReplicaWait {
    /// Returns the wait for a reply that tells of grants in force. `grants` are those of the names,
    /// in their order.
    pub fn new<'h>(
        replicas: Replicas,
        reply: HeldReply,
        (token, names): (&Token, &Names),
        grants: impl Iterator<Item = &'h Holder>,
        now_ms: u64,
    ) -> Self {
        let grants: SmallVec<[Followed; 1]> = grants.map(Followed::of).collect();
        Self {
            token: token.clone(),
            names: names.clone(),
            lease_end_ms: first_deadline_ms(&grants),
            grants,
            replicas: replicas.count.get(),
            reply,
            since_ms: now_ms,
            until_ms: now_ms.saturating_add(replicas.within_ms),
            offset: None,
            is_confirmed: false,
        }
    }

    /// Returns the hand-over to take back, because its connection was lost before the reply.
    pub fn undelivered(self) -> Option<HandOver> {
        match self.reply {
            HeldReply::HandOver(hand_over) => {
                Some(*hand_over).filter(|it| !self.is_confirmed && it.is_revocable())
            }
            HeldReply::Grant | HeldReply::Count(_) => None,
        }
    }

    /// Returns the sessions of the grants.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.grants.iter().map(|own| own.session)
    }

    /// Returns the reply as it is to be sent now.
    pub fn due(self) -> DueReply {
        let fences = self.grants.iter().map(|own| own.fence);
        let fence = fences.max().unwrap_or(0);
        let (token, reply) = (self.token, self.reply);
        match reply {
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

    fn grant_at(&mut self, name: &Name) -> Option<&mut Followed> {
        let at = self.names.as_slice().binary_search(name).ok()?;
        self.grants.get_mut(at)
    }
}

/// Returns the first deadline of these grants, in ms since the epoch.
fn first_deadline_ms(grants: &[Followed]) -> u64 {
    let deadlines = grants.iter().map(|own| own.deadline_ms);
    deadlines.min().unwrap_or(u64::MAX)
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
/// 1. `at` lists each wait at each of its names, under its token.
/// 2. Each wait is in `timeouts` and in `lease_ends`, and by its offset in `offsets` or else in
///    `unsent`.
#[derive(Debug, Default)]
pub struct ReplicaWaits {
    waits: HashMap<WaiterId, ReplicaWait>,
    /// The waits that follow a grant, in the order of their numbers.
    at: HashMap<Name, HashMap<Token, SmallVec<[WaiterId; 1]>>>,
    /// Waits whose offset is not known yet.
    unsent: BTreeSet<WaiterId>,
    /// Waits by their number of replicas and their offset.
    offsets: BTreeSet<(u16, u64, WaiterId)>,
    timeouts: BTreeSet<(u64, WaiterId)>,
    /// Waits by the first deadline of their leases.
    lease_ends: BTreeSet<(u64, WaiterId)>,
    /// Waits that began in the running operation.
    begun: Vec<WaiterId>,
    /// Waits whose grants the running operation has changed.
    changed: HashSet<WaiterId>,
    /// Waits whose grant has ended, not replied to yet.
    lost: Vec<WaiterId>,
    /// Databases that were emptied, perhaps to be loaded again at once.
    emptied: Vec<Option<i32>>,
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

    /// Returns true if this client's reply is held back.
    pub fn contains(&self, id: WaiterId) -> bool {
        self.waits.contains_key(&id)
    }

    /// Adds a wait.
    pub fn insert(&mut self, id: WaiterId, wait: ReplicaWait) {
        self.look_at(wait.grants.len());
        for name in &wait.names {
            let tokens = self.at.entry(name.clone()).or_default();
            let ids = tokens.entry(wait.token.clone()).or_default();
            ids.insert(ids.partition_point(|own| *own < id), id);
        }
        self.timeouts.insert((wait.until_ms, id));
        self.lease_ends.insert((wait.lease_end_ms, id));
        self.unsent.insert(id);
        self.begun.push(id);
        self.waits.insert(id, wait);
    }

    /// Removes and returns a wait.
    pub fn remove(&mut self, id: WaiterId) -> Option<ReplicaWait> {
        let wait = self.waits.remove(&id)?;
        self.look_at(wait.grants.len());
        for name in &wait.names {
            self.remove_at(name, &wait.token, id);
        }
        self.timeouts.remove(&(wait.until_ms, id));
        self.lease_ends.remove(&(wait.lease_end_ms, id));
        match wait.offset {
            Some(offset) => drop(self.offsets.remove(&(wait.replicas, offset, id))),
            None => drop(self.unsent.remove(&id)),
        }
        Some(wait)
    }

    fn remove_at(&mut self, name: &Name, token: &Token, id: WaiterId) {
        let Some(tokens) = self.at.get_mut(name) else {
            return;
        };
        if let Some(ids) = tokens.get_mut(token) {
            // perf: a command can end thousands of waits that follow the same thousands of grants.
            if let Ok(at) = ids.binary_search(&id) {
                ids.remove(at);
            }
            if ids.is_empty() {
                tokens.remove(token);
            }
        }
        if tokens.is_empty() {
            self.at.remove(name);
        }
    }

    /// Returns the waits that follow a token's grant at a name.
    fn of(&self, name: &Name, token: &Token) -> SmallVec<[WaiterId; 1]> {
        let ids = self.at.get(name).and_then(|tokens| tokens.get(token));
        self.look_at(ids.map_or(0, SmallVec::len));
        ids.cloned().unwrap_or_default()
    }

    /// Returns true if any wait follows a grant at this name.
    pub fn concerns(&self, name: &Name) -> bool {
        self.at.contains_key(name)
    }

    /// Records that a command of this token was granted these names, or extended them. Hand-overs
    /// that it made are not taken back any more.
    pub fn confirm(&mut self, token: &Token, names: &Names) {
        for name in names {
            for id in self.of(name, token) {
                if let Some(wait) = self.waits.get_mut(&id) {
                    wait.is_confirmed = true;
                }
            }
        }
    }

    /// Follows the change of a token's grant at a name.
    pub fn follow(&mut self, name: &Name, Difference { before, after }: Difference<'_>) {
        let Some(after) = after else {
            if let Some(gone) = before {
                self.lose(name, &gone.token);
            }
            return;
        };
        for id in self.of(name, &after.token) {
            if before.is_none() && !self.begun.contains(&id) {
                // The grant that it followed ended without an operation.
                self.lost.push(id);
                continue;
            }
            let wait = self.waits.get_mut(&id);
            if let Some(followed) = wait.and_then(|wait| wait.grant_at(name)) {
                *followed = Followed::of(after);
                self.changed.insert(id);
            }
        }
    }

    /// Lists the waits whose grants have changed by the first deadline that they have now.
    pub fn list_changed(&mut self) {
        for id in self.changed.drain() {
            if let Some(wait) = self.waits.get_mut(&id) {
                self.lease_ends.remove(&(wait.lease_end_ms, id));
                wait.lease_end_ms = first_deadline_ms(&wait.grants);
                self.looks.set(self.looks.get() + wait.grants.len() as u64);
                self.lease_ends.insert((wait.lease_end_ms, id));
            }
        }
    }

    /// Returns the names and tokens of the waits that have begun in the running operation.
    pub fn begun(&self) -> Vec<(Name, Token)> {
        let waits = self.begun.iter().filter_map(|id| self.waits.get(id));
        let grants = waits.flat_map(|wait| {
            self.look_at(wait.grants.len());
            wait.names
                .iter()
                .map(|name| (name.clone(), wait.token.clone()))
        });
        grants.collect()
    }

    /// Records that a token's grant at a name has ended.
    pub fn lose(&mut self, name: &Name, token: &Token) {
        self.lost.extend(self.of(name, token));
    }

    /// Records that this lock has left its key. Grants that were made there since go on.
    pub fn lose_all(&mut self, name: &Name, left: &Lock) {
        let Some(tokens) = self.at.get(name) else {
            return;
        };
        for (token, ids) in tokens {
            let Some(gone) = left.holder(token) else {
                continue;
            };
            for id in ids {
                let wait = self.waits.get_mut(id);
                let followed = wait.and_then(|wait| wait.grant_at(name));
                if followed.is_some_and(|own| own.fence == gone.fence) {
                    self.lost.push(*id);
                }
            }
        }
    }

    /// Records that all keys of two databases have changed places.
    pub fn lose_swapped(&mut self, one: i32, other: i32) {
        if one != other {
            let names = self.at.iter();
            let swapped = names.filter(|(name, _)| name.db == one || name.db == other);
            let ids = swapped.flat_map(|(_, tokens)| tokens.values().flatten());
            self.lost.extend(ids);
        }
    }

    /// Records that a database was emptied; `None`: all of them. Its keys may be loaded again at
    /// once, so the locks are looked at later, see [`ReplicaWaits::take_doubtful`].
    pub fn doubt(&mut self, db: Option<i32>) {
        if !self.waits.is_empty() {
            self.emptied.push(db);
        }
    }

    /// Returns the grants in the databases that were emptied: their names, tokens and fences.
    pub fn take_doubtful(&mut self) -> Vec<(Name, Token, u64)> {
        let emptied = std::mem::take(&mut self.emptied);
        if emptied.is_empty() {
            return Vec::new();
        }
        let is_in = |name: &Name| emptied.iter().any(|db| db.is_none_or(|db| db == name.db));
        let grants = self.waits.values().flat_map(|wait| {
            let grants = wait.names.iter().zip(&wait.grants);
            grants.map(|(name, own)| (name.clone(), wait.token.clone(), own.fence))
        });
        grants.filter(|(name, ..)| is_in(name)).collect()
    }

    /// Records the offset of waits whose effects were replicated since the last call. The caller
    /// has made sure that all effects so far are before the offset.
    pub fn record_offset(&mut self, offset: u64) {
        for id in std::mem::take(&mut self.unsent) {
            if let Some(wait) = self.waits.get_mut(&id) {
                wait.offset = Some(offset);
                self.offsets.insert((wait.replicas, offset, id));
            }
        }
    }

    /// Removes the waits that have ended. Passes their ends to `end`:
    ///
    /// 1. those whose grant has ended;
    /// 2. those that enough replicas have acknowledged, at most `most` of them;
    /// 3. those whose WITHIN has ended, unless such acknowledged ones are left.
    pub fn end(
        &mut self,
        progress: &Progress,
        (now_ms, steady_ms): (u64, u64),
        most: usize,
        end: &mut dyn FnMut(WaiterId, End),
    ) {
        while let Some((_, id)) = first_over(&self.lease_ends, now_ms) {
            self.refuse(id, End::GrantLost, end);
        }
        self.end_lost(end);
        let acknowledged = self.acknowledged(progress, most);
        for id in &acknowledged {
            if let Some(wait) = self.remove(*id) {
                self.acknowledgements.acknowledged += 1;
                let waited_ms = steady_ms.saturating_sub(wait.since_ms);
                self.acknowledgements.times.record(waited_ms);
                end(*id, End::Acknowledged(wait.due()));
            }
        }
        if acknowledged.len() < most {
            while let Some((_, id)) = first_over(&self.timeouts, steady_ms) {
                self.refuse(id, End::TimedOut, end);
            }
        }
    }

    /// Removes the waits whose grant has ended, at the end of an operation. Passes their ends to
    /// `end`.
    pub fn end_lost(&mut self, end: &mut dyn FnMut(WaiterId, End)) {
        self.begun.clear();
        for id in std::mem::take(&mut self.lost) {
            self.refuse(id, End::GrantLost, end);
        }
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

    fn refuse(&mut self, id: WaiterId, why: End, end: &mut dyn FnMut(WaiterId, End)) {
        if self.remove(id).is_some() {
            self.acknowledgements.not_acknowledged += 1;
            end(id, why);
        }
    }

    /// Returns the grants that are followed, without those that are known to have ended or that are
    /// to be looked at: their names, tokens and fences.
    pub fn followed(&self) -> impl Iterator<Item = (&Name, &Token, u64)> {
        let waits = self.waits.iter();
        let in_force = waits.filter(|(id, _)| self.emptied.is_empty() && !self.lost.contains(id));
        in_force.flat_map(|(_, wait)| {
            let grants = wait.names.iter().zip(&wait.grants);
            grants.map(|(name, own)| (name, &wait.token, own.fence))
        })
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let listed: usize = self
            .at
            .values()
            .flat_map(HashMap::values)
            .map(|ids| ids.len())
            .sum();
        let names: usize = self.waits.values().map(|wait| wait.names.count()).sum();
        let by_offset = self.offsets.len() + self.unsent.len();
        let counts = [
            ("names", listed, names),
            ("timeouts", self.timeouts.len(), self.waits.len()),
            ("ends of leases", self.lease_ends.len(), self.waits.len()),
            ("offsets", by_offset, self.waits.len()),
        ];
        for (index, found, expected) in counts {
            if found != expected {
                return Err(format!("{index}: {found} instead of {expected}"));
            }
        }
        let is_listed = |(id, wait): (&WaiterId, &ReplicaWait)| {
            self.timeouts.contains(&(wait.until_ms, *id))
                && self.lease_ends.contains(&(wait.lease_end_ms, *id))
                && wait.lease_end_ms == first_deadline_ms(&wait.grants)
                && wait.grants.len() == wait.names.count()
                && wait
                    .names
                    .iter()
                    .all(|name| self.of(name, &wait.token).contains(id))
        };
        match self.waits.iter().find(|own| !is_listed(*own)) {
            Some((_, wait)) => Err(format!("not listed: {wait:?}")),
            None => Ok(()),
        }
    }

    /// Removes a wait as if its WITHIN had ended. Returns false if there is none.
    pub fn cut_short(&mut self, id: WaiterId) -> bool {
        let mut is_cut = false;
        self.refuse(id, End::TimedOut, &mut |_, _| is_cut = true);
        is_cut
    }

    /// Returns the greatest offset that is waited for; `None` if none is known.
    pub fn last_offset(&self) -> Option<u64> {
        let mut last = None;
        let mut counts = self.offsets.iter().next_back();
        while let Some((count, offset, _)) = counts {
            last = last.max(Some(*offset));
            counts = self.offsets.range(..(*count, 0, WaiterId(0))).next_back();
        }
        last
    }

    /// Returns when the first WITHIN ends, on the steady clock in ms.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        self.timeouts.first().map(|(ms, _)| *ms)
    }
}

/// Returns the first entry if its deadline has passed.
fn first_over(ends: &BTreeSet<(u64, WaiterId)>, now_ms: u64) -> Option<(u64, WaiterId)> {
    let first = ends.first().copied();
    first.filter(|(deadline_ms, _)| has_passed(*deadline_ms, now_ms))
}
