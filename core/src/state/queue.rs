//! The queues: for each name, its waiters in their order.
//!
//! 1. A waiter for several names has the same position in the queue of each. So two waiters are in
//!    the same order in all queues, and their order alone can't make them wait for each other.
//! 2. Positions grow at both ends: newcomers go behind the greatest, a waiting conversion goes
//!    before the smallest.
//! 3. The name that blocked a waiter when it was looked at last is recorded. Until something
//!    happens at that name, nothing at its other names can admit the waiter.
//! 4. A waiter for several names leaves, or becomes absent, as soon as its connection is lost. Its
//!    positions stay in the lists of its names until they are worked off in parts. Until then a
//!    search for the first waiter skips them.

// perf: enqueueing or removing a waiter costs O(log n) for each of its names.

use std::collections::hash_map::Entry;
use std::collections::BTreeSet;
use std::ops::Bound;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use indexmap::IndexMap;

pub use crate::state::slab::{End, Position};

use crate::budget::MOST_TAKEN_OUT;
use crate::hints::{likely, unlikely};
use crate::state::lacking::Lacking;
use crate::state::ranked_list::{merged, RankedList};
use crate::state::schedule::{Order, Time};
use crate::state::slab::Slab;
use crate::state::waiter::{Presence, Waiter, WaiterId};
use crate::values::lock::{Lack, Lock};
use crate::values::name::Name;
use crate::values::name::Names;
use crate::values::time::has_passed;
use crate::values::token::Token;

#[derive(Debug)]
struct Queued {
    waiter: Waiter,
    /// The index of the name that blocked it when it was looked at last.
    blocked_by: Option<usize>,
    /// The permits that its token, a holder of that name, lacked there; `None`: that didn't block
    /// it.
    lack: Option<Lack>,
    /// True if its token has had several waits at once since it waits.
    has_siblings: bool,
}

impl Queued {
    const fn blocked_by(waiter: Waiter, by: Option<usize>) -> Self {
        Self {
            waiter,
            blocked_by: by,
            lack: None,
            has_siblings: false,
        }
    }
}

/// The keys by which a waiter is found or counted besides its position.
struct Indexed {
    /// The client id, if a client is blocked.
    client_id: Option<u64>,
    name_count: usize,
    end_ms: Option<u64>,
}

impl Indexed {
    fn of(waiter: &Waiter) -> Self {
        Self {
            client_id: waiter.kind.is_blocked().then_some(waiter.client_id),
            name_count: waiter.names.count(),
            end_ms: waiter.end_ms(),
        }
    }
}

/// The queue of one name.
#[derive(Debug, Default)]
struct NameQueue {
    /// Positions of present waiters, and some of those in [`Queues::leaving`].
    present: RankedList<Position>,
    /// Positions of absent waiters. KEEP holds these positions, and the search for the head skips
    /// them.
    absent: RankedList<Position>,
    /// The lock as it was when the name was settled last; `None`: not known.
    lock: Option<Lock>,
    /// Waiters that this name blocks because their tokens, which hold it already, lack permits.
    lacking: Lacking,
    /// The end of the next lease, if it is still to be announced.
    unannounced: Option<Time>,
}

impl NameQueue {
    fn len(&self) -> usize {
        self.present.len() + self.absent.len()
    }

    fn is_empty(&self) -> bool {
        self.present.is_empty() && self.absent.is_empty()
    }

    fn contains(&self, position: Position) -> bool {
        self.present.contains(position) || self.absent.contains(position)
    }

    /// Returns all positions, in order.
    fn iter(&self) -> impl Iterator<Item = Position> + '_ {
        merged(self.present.iter(), self.absent.iter())
    }

    /// Adds a position that is not listed yet.
    fn insert(&mut self, position: Position, presence: Presence) {
        match presence {
            Presence::Present => self.present.insert(position),
            Presence::Absent => self.absent.insert(position),
        }
    }

    fn remove(&mut self, position: Position) {
        if !self.present.remove(position) {
            self.absent.remove(position);
        }
    }
}

/// A waiter that has left or become absent, whose position some of its names still list as present.
#[derive(Debug)]
struct Leaving {
    names: Names,
    /// The index of the name whose list is looked at next.
    next: usize,
    /// The number of present lists that still contain the position.
    lines: usize,
}

/// The queue of a name, found once and valid until any queue is removed.
#[derive(Clone, Copy, Debug)]
pub struct QueueId {
    at: usize,
    removals: u64,
}

/// The queue of one name, looked up.
#[derive(Clone, Copy, Debug)]
pub struct KnownQueue<'q> {
    number: usize,
    name: &'q Name,
    queue: &'q NameQueue,
}

impl<'q> KnownQueue<'q> {
    /// Returns a number below the number of queues. No other queue has it until a queue is added or
    /// removed.
    pub const fn number(self) -> usize {
        self.number
    }

    /// Returns the name of the queue.
    pub const fn name(self) -> &'q Name {
        self.name
    }

    /// Returns the positions listed as present behind `front`, up to `back` inclusive. `None` is no
    /// bound.
    pub fn between(
        self,
        front: Option<Position>,
        back: Option<Position>,
    ) -> impl Iterator<Item = Position> + 'q {
        self.queue.present.between(front, back)
    }

    /// Returns the lock as it was when the name was settled last; `None`: not known. It is unknown
    /// if all waiters are absent, because changes are not recorded then.
    pub fn lock(self) -> Option<&'q Lock> {
        let queue = self.queue;
        queue.lock.as_ref().filter(|_| !queue.present.is_empty())
    }
}

/// The queue of a name that is being settled.
#[derive(Debug)]
pub struct QueueToSettle<'q> {
    queue: &'q mut NameQueue,
    unannounced: &'q mut Order,
}

impl QueueToSettle<'_> {
    /// Records how the name was settled at `now_ms` on the steady clock: its lock, and the end of
    /// its next lease. That end is announced once.
    pub fn record(self, name: &Name, lock: Option<&Lock>, end_ms: Option<u64>, now_ms: u64) {
        let Self { queue, unannounced } = self;
        queue.lock = lock.cloned();
        match (&mut queue.unannounced, end_ms) {
            (Some(end), Some(end_ms)) => unannounced.set(name, end, end_ms, now_ms),
            (end @ None, Some(end_ms)) => *end = Some(unannounced.insert(name, end_ms)),
            (end, None) => {
                if let Some(end) = end.take() {
                    unannounced.remove(name, end);
                }
            }
        }
    }
}

/// The waits of one token, usually one.
#[derive(Debug)]
enum Waits {
    One(Position),
    // perf: boxed, because most tokens have one wait.
    Several(Box<Siblings>),
}

/// The waits of a token that has had several at once.
#[derive(Debug, Default)]
struct Siblings {
    by_names: HashMap<Names, Position>,
    /// The waits by the name that blocked them when they were looked at last.
    by_blocker: HashMap<Name, BTreeSet<Position>>,
}

impl Waits {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(waits) => waits.by_names.len(),
        }
    }

    /// Adds a wait. `names_of` returns the names of the wait that is already there. Returns the
    /// position of that wait if it was the only one until now.
    fn insert(
        &mut self,
        names: Names,
        position: Position,
        names_of: impl FnOnce(Position) -> Option<Names>,
    ) -> Option<Position> {
        let mut only = None;
        let mut waits = match self {
            Self::One(first) => {
                only = Some(*first);
                let by_names = names_of(*first).map(|names| (names, *first));
                Box::new(Siblings {
                    by_names: by_names.into_iter().collect(),
                    by_blocker: HashMap::default(),
                })
            }
            Self::Several(waits) => std::mem::take(waits),
        };
        waits.by_names.insert(names, position);
        *self = Self::Several(waits);
        only
    }

    /// Removes the wait for these names. Returns true if none is left.
    fn remove(&mut self, names: &Names) -> bool {
        match self {
            Self::One(_) => true,
            Self::Several(waits) => {
                waits.by_names.remove(names);
                waits.by_names.is_empty()
            }
        }
    }
}

/// The queues of all names.
///
/// Invariants:
/// 1. A waiter's position is in the queue of each of its names and in no other queue. It is in
///    `absent` if the waiter is absent.
/// 2. A token waits at most once for the same set of names.
/// 3. A queue without positions is removed.
/// 4. The indexes by token, timeout and connection agree with the waiters.
/// 5. `unannounced` lists the end that a queue has.
///
/// Exception: `present` of some queues still contain the positions in `leaving`, as many as each
/// entry counts. Their waiters are gone or absent.
#[derive(Debug, Default)]
pub struct Queues {
    waiters: Slab<Queued>,
    queues: IndexMap<Name, NameQueue, RandomState>,
    /// The number of queues that were removed since the module was loaded.
    removals: u64,
    /// The number of blocked clients.
    blocked: usize,
    /// The names of the waiters without a connection, each counted once for each waiter.
    places: usize,
    /// Waits per connection: one, plus any that ended but were not absorbed yet. Counted at the
    /// first look-up, then kept until no client is blocked.
    // perf: asked only if connections have sessions.
    clients: Option<HashMap<u64, usize>>,
    tokens: HashMap<Token, Waits>,
    timeouts: BTreeSet<(u64, Position)>,
    /// Ends of leases that waiters wait for and that were not announced yet.
    unannounced: Order,
    leaving: IndexMap<Position, Leaving, RandomState>,
}

impl Queues {
    /// Returns the number of waiters, each counted once.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Returns true if there is no waiter.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns true if the name has a queue.
    pub fn has_queue(&self, name: &Name) -> bool {
        self.queues.contains_key(name)
    }

    /// Returns the number of queues that were removed since the module was loaded.
    pub const fn removals(&self) -> u64 {
        self.removals
    }

    /// Returns every name that has a queue.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Name> {
        self.queues.keys()
    }

    /// Returns the names that have a queue and a number below `below`. Also returns the number
    /// below which the rest is found, 0 at the end. Looks at `most` names at most.
    ///
    /// A name that has had a queue since before the first call is found, however the queues change
    /// between the calls.
    pub fn names_below(&self, below: usize, most: usize) -> (usize, impl Iterator<Item = &Name>) {
        let below = below.min(self.queues.len());
        let from = below.saturating_sub(most);
        let range = self.queues.get_range(from..below);
        (from, range.into_iter().flat_map(|range| range.keys()))
    }

    /// Returns the queue of a name; `None` if the name has no waiters. An operation asks its
    /// transaction, see `Transaction::queue`.
    #[inline]
    pub fn find(&self, name: &Name) -> Option<QueueId> {
        let at = self.queues.get_index_of(name)?;
        let removals = self.removals;
        Some(QueueId { at, removals })
    }

    /// Returns true if a queue was found since the last removal of a queue.
    #[inline]
    pub const fn is_current(&self, id: QueueId) -> bool {
        id.removals == self.removals
    }

    fn get(&self, id: QueueId) -> Option<&NameQueue> {
        if unlikely(!self.is_current(id)) {
            return None;
        }
        self.queues.get_index(id.at).map(|(_, queue)| queue)
    }

    fn get_mut(&mut self, id: QueueId) -> Option<&mut NameQueue> {
        if unlikely(!self.is_current(id)) {
            return None;
        }
        self.queues.get_index_mut(id.at).map(|(_, queue)| queue)
    }

    /// Returns the position of the first present waiter in the queue of a name.
    pub fn head_at(&self, name: &Name) -> Option<Position> {
        self.head(self.find(name)?)
    }

    /// Returns the position of the first present waiter in a queue.
    #[inline]
    pub fn head(&self, id: QueueId) -> Option<Position> {
        let queue = self.get(id)?;
        if unlikely(!self.leaving.is_empty()) {
            return self.first_present(queue);
        }
        queue.present.first()
    }

    #[inline(never)]
    fn first_present(&self, queue: &NameQueue) -> Option<Position> {
        let mut positions = queue.present.iter();
        positions.find(|position| self.is_present(*position))
    }

    /// Returns true if a queue has a present waiter at another position than this one.
    pub fn has_other(&self, id: QueueId, position: Position) -> bool {
        let positions = self.get(id).into_iter();
        let mut positions = positions.flat_map(|queue| queue.present.iter());
        positions.any(|other| other != position && self.is_present(other))
    }

    /// Returns true if a position has a present waiter.
    fn is_present(&self, position: Position) -> bool {
        let waiter = self.at(position);
        waiter.is_some_and(|waiter| !waiter.kind.is_absent())
    }

    /// Returns the position of the first waiter in a queue, present or absent.
    pub fn first(&self, id: QueueId) -> Option<Position> {
        let mut positions = self.get(id)?.iter();
        positions.find(|position| self.at(*position).is_some())
    }

    /// Returns the waiter at a position.
    pub fn at(&self, position: Position) -> Option<&Waiter> {
        self.waiters.get(position).map(|queued| &queued.waiter)
    }

    /// Returns the name that blocked the waiter at a position when the waiter was looked at last.
    pub fn blocked_by(&self, position: Position) -> Option<&Name> {
        let queued = self.waiters.get(position)?;
        queued.waiter.names.as_slice().get(queued.blocked_by?)
    }

    /// Returns the index of that name among the waiter's names.
    pub fn blocked_by_number(&self, position: Position) -> Option<usize> {
        self.waiters.get(position)?.blocked_by
    }

    /// Records the index of the name that blocks the waiter at a position; `None`: look at all its
    /// names.
    pub fn set_blocked_by(&mut self, position: Position, by: Option<usize>) {
        self.set_lack(position, by, None);
    }

    /// Like [`Queues::set_blocked_by`], for a waiter whose token holds the name already and lacks
    /// permits.
    pub fn set_lack(&mut self, position: Position, by: Option<usize>, lack: Option<Lack>) {
        let Some(queued) = self.waiters.get_mut(position) else {
            return;
        };
        let (known_by, known) = (queued.blocked_by, queued.lack);
        queued.blocked_by = by;
        queued.lack = lack;
        let has_siblings = queued.has_siblings;
        if unlikely(known.is_some() || lack.is_some()) {
            self.relist_lack(position, (known_by, known), (by, lack));
        }
        if unlikely(has_siblings) {
            self.relist_blocker(position, known_by, by);
        }
    }

    /// Lists a wait of a token with several waits by the name that blocks it now, instead of the
    /// one that blocked it before.
    #[inline(never)]
    fn relist_blocker(&mut self, position: Position, before: Option<usize>, now: Option<usize>) {
        let Some(Queued { waiter, .. }) = self.waiters.get(position) else {
            return;
        };
        let waits = self.tokens.get_mut(&waiter.request.token);
        let (false, Some(Waits::Several(waits))) = (before == now, waits) else {
            return;
        };
        let names = waiter.names.as_slice();
        if let Some(name) = before.and_then(|by| names.get(by)) {
            if let Some(blocked) = waits.by_blocker.get_mut(name) {
                blocked.remove(&position);
                if blocked.is_empty() {
                    waits.by_blocker.remove(name);
                }
            }
        }
        if let Some(name) = now.and_then(|by| names.get(by)) {
            let blocked = waits.by_blocker.entry(name.clone()).or_default();
            blocked.insert(position);
        }
    }

    /// Lists a waiter by the permits that its token lacks now, instead of those that it lacked
    /// before.
    #[inline(never)]
    fn relist_lack(
        &mut self,
        position: Position,
        before: (Option<usize>, Option<Lack>),
        now: (Option<usize>, Option<Lack>),
    ) {
        let Some(queued) = self.waiters.get(position) else {
            return;
        };
        let names = queued.waiter.names.as_slice();
        if before == now {
            return;
        }
        for ((by, lack), is_listed) in [(before, true), (now, false)] {
            let name = by.and_then(|by| names.get(by));
            let queue = name.and_then(|name| self.queues.get_mut(name));
            match (queue, lack) {
                (Some(queue), Some(lack)) if is_listed => queue.lacking.remove(lack, position),
                (Some(queue), Some(lack)) => queue.lacking.insert(lack, position),
                _ => {}
            }
        }
    }

    /// Returns the name at which the token of a waiter lacks permits, if that blocked the waiter.
    pub fn lacks_at(&self, position: Position) -> Option<&Name> {
        let queued = self.waiters.get(position)?;
        queued.lack?;
        queued.waiter.names.as_slice().get(queued.blocked_by?)
    }

    /// Returns the waiters that the name of a queue blocks because their tokens, which hold it
    /// already, lack permits.
    pub fn lacking(&self, id: QueueId) -> Option<&Lacking> {
        let lacking = &self.get(id)?.lacking;
        (!lacking.is_empty()).then_some(lacking)
    }

    /// Returns the waiters for a name with their positions, in order.
    pub fn queue(&self, name: &Name) -> impl Iterator<Item = (Position, &Waiter)> {
        let queue = self.queues.get(name).into_iter();
        let positions = queue.flat_map(NameQueue::iter);
        positions.filter_map(|position| Some((position, self.at(position)?)))
    }

    /// Returns the waiters of each name. A name whose waiters have all left may have none.
    pub fn by_name(&self) -> impl Iterator<Item = (&Name, impl Iterator<Item = &Waiter>)> {
        self.queues.iter().map(|(name, queue)| {
            let waiters = queue.iter().filter_map(|position| self.at(position));
            (name, waiters)
        })
    }

    /// Returns the queue of a name to read; `None` if the name has no waiters.
    pub fn known(&self, name: &Name) -> Option<KnownQueue<'_>> {
        let (number, name, queue) = self.queues.get_full(name)?;
        Some(KnownQueue {
            number,
            name,
            queue,
        })
    }

    /// Returns all queues, in the order of their numbers.
    pub fn all_known(&self) -> impl ExactSizeIterator<Item = KnownQueue<'_>> {
        let numbered = self.queues.iter().enumerate();
        numbered.map(|(number, (name, queue))| KnownQueue {
            number,
            name,
            queue,
        })
    }

    /// Returns a queue to record how its name was settled.
    pub fn to_settle(&mut self, id: QueueId) -> Option<QueueToSettle<'_>> {
        if !self.is_current(id) {
            return None;
        }
        let (_, queue) = self.queues.get_index_mut(id.at)?;
        let unannounced = &mut self.unannounced;
        Some(QueueToSettle { queue, unannounced })
    }

    /// Forgets the recorded lock of a name, because something happened there that is not settled
    /// yet.
    pub fn forget_lock(&mut self, name: &Name) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.lock = None;
        }
    }

    /// Returns the recorded lock of a name, as of its last settling, if it is known.
    pub fn recorded_lock(&self, name: &Name) -> Option<&Lock> {
        self.queues.get(name)?.lock.as_ref()
    }

    /// Forgets the recorded locks of the names in a database.
    pub fn forget_locks_in(&mut self, db: i32) {
        let queues = self.queues.iter_mut();
        for (_, queue) in queues.filter(|(name, _)| name.db == db) {
            queue.lock = None;
        }
    }

    /// Forgets the recorded locks of all names.
    pub fn forget_all_locks(&mut self) {
        for queue in self.queues.values_mut() {
            queue.lock = None;
        }
    }

    /// Returns true if a queue has a present waiter, and only other tokens are known to hold its
    /// name. A newcomer with this token is then behind that waiter, whatever the lock's mode and
    /// limits.
    pub fn is_behind(&self, id: QueueId, token: &Token) -> bool {
        let queue = self.get(id);
        queue.is_some_and(|queue| {
            let lock = queue.lock.as_ref();
            let is_held = lock.is_some_and(|lock| !lock.is_free() && lock.holder(token).is_none());
            is_held
                && !queue.present.is_empty()
                && (likely(self.leaving.is_empty()) || self.first_present(queue).is_some())
        })
    }

    /// Returns the number of waiters for a name.
    pub fn queue_len(&self, name: &Name) -> usize {
        let Some(queue) = self.queues.get(name) else {
            return 0;
        };
        let left = self.leaving.iter().filter(|(position, leaving)| {
            leaving.names.contains(name)
                && self.at(**position).is_none()
                && queue.present.contains(**position)
        });
        queue.len() - left.count()
    }

    /// Returns the number of positions in the queue of a name. Includes those that waiters have
    /// left.
    pub fn position_count(&self, name: &Name) -> usize {
        self.queues.get(name).map_or(0, NameQueue::len)
    }

    /// Returns the rank of a position in the queue of a name, from 1 on. Counts the positions
    /// before it that waiters have left and that are still to be taken out.
    pub fn rank(&self, name: &Name, position: Position) -> usize {
        let queue = self.queues.get(name);
        queue.map_or(0, |queue| {
            queue.present.before(position) + queue.absent.before(position) + 1
        })
    }

    /// Returns the number of blocked clients that wait, each counted once.
    pub fn blocked_len(&self) -> usize {
        self.blocked
    }

    /// Returns the number of waiters without a connection, each counted once for each of its names.
    pub const fn place_count(&self) -> usize {
        self.places
    }

    /// Removes all waiters without a connection. Returns the names that they have left, or none if
    /// no waiter remains.
    pub fn drop_places(&mut self) -> Vec<Name> {
        if self.blocked == 0 {
            // perf: dropped all at once, because the places may be many.
            self.waiters.clear();
            let waiters = std::mem::take(&mut self.waiters);
            *self = Self {
                waiters,
                removals: self.removals + 1,
                ..Self::default()
            };
            return Vec::new();
        }
        let all = self.queues.values();
        let places = all.flat_map(NameQueue::iter);
        let places: Vec<Position> = places.filter(|place| self.is_place(*place)).collect();
        let removed = self.remove_all(places);
        removed
            .flat_map(|waiter| waiter.names.as_slice().to_vec())
            .collect()
    }

    /// Removes at most `most` waiters for a name that have no connection. Returns these waiters.
    pub fn drop_places_at(
        &mut self,
        name: &Name,
        most: usize,
    ) -> impl Iterator<Item = Waiter> + use<'_> {
        let queue = self.queues.get(name).into_iter();
        let places = queue.flat_map(NameQueue::iter);
        let places = places.filter(|place| self.is_place(*place));
        let places: Vec<Position> = places.take(most).collect();
        self.remove_all(places)
    }

    fn is_place(&self, position: Position) -> bool {
        let waiter = self.at(position);
        waiter.is_some_and(|waiter| !waiter.kind.is_blocked())
    }

    /// Removes the waiters at these positions, as they are taken from the iterator.
    fn remove_all(&mut self, positions: Vec<Position>) -> impl Iterator<Item = Waiter> + use<'_> {
        positions
            .into_iter()
            .filter_map(|position| self.remove(position))
    }

    /// Returns how long the wait that has waited longest has gone on, in ms; 0 if there is no wait.
    /// Waits that have ended don't count.
    // perf: looks at all waiters, which are next to each other in memory. The deadline of a place is
    // elsewhere, so it is only looked at if the place is older than those before it.
    pub fn oldest_wait_ms(&self, steady_ms: u64) -> u64 {
        let waiters = self.waiters.values().map(|queued| &queued.waiter);
        let oldest_ms = waiters.fold(steady_ms, |oldest_ms, waiter| {
            let is_older = waiter.since_ms < oldest_ms && waiter.as_of(steady_ms).is_some();
            if is_older {
                waiter.since_ms
            } else {
                oldest_ms
            }
        });
        steady_ms - oldest_ms
    }

    /// Returns the waiters without a connection, each once.
    pub fn places(&self) -> impl Iterator<Item = &Waiter> {
        let waiters = self.waiters.values().map(|queued| &queued.waiter);
        waiters.filter(|waiter| !waiter.kind.is_blocked())
    }

    /// Returns the positions of a token's waits in the queue of a name.
    // perf: looks through that queue or through all waits of the token, whichever is shorter.
    pub fn waits_at(&self, token: &Token, name: &Name) -> Vec<Position> {
        let (Some(waits), Some(queue)) = (self.tokens.get(token), self.queues.get(name)) else {
            return Vec::new();
        };
        let is_own = |position: &Position| {
            let waiter = self.at(*position);
            waiter.is_some_and(|waiter| waiter.request.token == *token)
        };
        match waits {
            Waits::One(position) => {
                let is_here = queue.contains(*position);
                is_here.then_some(*position).into_iter().collect()
            }
            Waits::Several(waits) if queue.len() < waits.by_names.len() => {
                queue.iter().filter(is_own).collect()
            }
            Waits::Several(waits) => {
                let here = waits.by_names.iter();
                let here = here.filter(|(names, _)| names.contains(name));
                let mut here: Vec<Position> = here.map(|(_, position)| *position).collect();
                here.sort_unstable();
                here
            }
        }
    }

    /// Returns the first wait of a token behind `after` that a name blocks. `None` is no bound.
    pub fn next_blocked(
        &self,
        token: &Token,
        name: &Name,
        after: Option<Position>,
    ) -> Option<Position> {
        match self.tokens.get(token)? {
            Waits::One(position) => {
                let is_blocked = after.is_none() && self.blocked_by(*position) == Some(name);
                is_blocked.then_some(*position)
            }
            Waits::Several(waits) => {
                let after = after.map_or(Bound::Unbounded, Bound::Excluded);
                let blocked = waits.by_blocker.get(name)?;
                blocked.range((after, Bound::Unbounded)).next().copied()
            }
        }
    }

    /// Returns true if a connection waits.
    // perf: the first call since no client was blocked looks at all waiters.
    pub fn waits(&mut self, client_id: u64) -> bool {
        let waiters = &self.waiters;
        let clients = self.clients.get_or_insert_with(|| count_clients(waiters));
        clients.contains_key(&client_id)
    }

    /// Returns the position of a token's wait for exactly these names.
    pub fn wait_for(&self, token: &Token, names: &Names) -> Option<Position> {
        match self.tokens.get(token)? {
            Waits::One(position) => {
                let waiter = self.at(*position)?;
                (waiter.names == *names).then_some(*position)
            }
            Waits::Several(waits) => waits.by_names.get(names).copied(),
        }
    }

    /// Returns the positions of a token's waits.
    pub fn positions_of(&self, token: &Token) -> impl Iterator<Item = Position> + use<'_> {
        let waits = self.tokens.get(token);
        let (one, several) = match waits {
            Some(Waits::One(position)) => (Some(*position), None),
            Some(Waits::Several(waits)) => (None, Some(waits.by_names.values().copied())),
            None => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Returns the number of waits of a token.
    pub fn waits_of(&self, token: &Token) -> usize {
        self.tokens.get(token).map_or(0, Waits::len)
    }

    /// Adds a waiter whose token doesn't wait for the same names yet. `by` is the index of the name
    /// that blocks it, and `queue` the queue of its only name, if known.
    ///
    /// Returns its position, and those of its names whose queues may have had no present waiter
    /// before.
    pub fn enqueue(
        &mut self,
        waiter: Waiter,
        end: End,
        by: Option<usize>,
        queue: Option<QueueId>,
    ) -> (Position, Vec<Name>) {
        let position = self.waiters.add(end, Queued::blocked_by(waiter, by));
        (position, self.list(position, queue))
    }

    /// Adds a waiter again at a position that it had. Its token must not wait for the same names.
    pub fn enqueue_again(&mut self, position: Position, waiter: Waiter) {
        let queued = Queued::blocked_by(waiter, None);
        let position = self.waiters.add_again(position, queued);
        self.list(position, None);
    }

    /// Adds a position to the queues and the indexes of its waiter. Returns those of its names
    /// whose queues may have had no present waiter before. `known` is the queue of its only name.
    fn list(&mut self, position: Position, known: Option<QueueId>) -> Vec<Name> {
        let mut new_queues = Vec::new();
        let Some(Queued { waiter, .. }) = self.waiters.get(position) else {
            return new_queues;
        };
        for name in &waiter.names {
            let known = known.filter(|id| id.removals == self.removals);
            let at = known.map_or_else(|| index_of(name, &mut self.queues), |id| id.at);
            let Some((_, queue)) = self.queues.get_index_mut(at) else {
                continue;
            };
            // A queue with positions may still have no present waiter.
            if unlikely(queue.present.is_empty() || !self.leaving.is_empty()) {
                new_queues.push(name.clone());
            }
            queue.insert(position, waiter.kind.presence());
        }
        let mut siblings = None;
        match self.tokens.entry(waiter.request.token.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Waits::One(position));
            }
            Entry::Occupied(mut waits) => {
                let first = add_wait(waits.get_mut(), waiter, position, &self.waiters);
                siblings = Some((first, position));
            }
        }
        let indexed = Indexed::of(waiter);
        self.index(position, &indexed);
        if let Some((first, position)) = siblings {
            first
                .into_iter()
                .chain([position])
                .for_each(|it| self.list_sibling(it));
        }
        new_queues
    }

    /// Lists a wait of a token with several waits by the name that blocks it.
    #[inline(never)]
    fn list_sibling(&mut self, position: Position) {
        if let Some(queued) = self.waiters.get_mut(position) {
            queued.has_siblings = true;
            let by = queued.blocked_by;
            self.relist_blocker(position, None, by);
        }
    }

    /// Gives a position to a newer wait of the same token for the same names. Returns the older
    /// wait.
    pub fn take_over(&mut self, position: Position, newer: Waiter) -> Option<Waiter> {
        let presence = newer.kind.presence();
        let older = self.replace(position, newer)?;
        if older.kind.presence() != presence {
            for name in &older.names {
                if let Some(queue) = self.queues.get_mut(name) {
                    queue.remove(position);
                    queue.insert(position, presence);
                }
            }
            self.leaving.swap_remove(&position);
        }
        Some(older)
    }

    /// Gives a position to a newer wait, and leaves the position in the lists that contain it.
    /// Returns the older wait.
    fn replace(&mut self, position: Position, newer: Waiter) -> Option<Waiter> {
        self.set_blocked_by(position, None);
        let queued = self.waiters.get_mut(position)?;
        let indexed = Indexed::of(&newer);
        let older = std::mem::replace(&mut queued.waiter, newer);
        self.unindex(position, &older);
        self.index(position, &indexed);
        Some(older)
    }

    /// Makes a waiter absent until `until_ms`, because its connection was lost. Returns the name to
    /// settle now. `None`: it has several names, see [`Queues::work_off`].
    pub fn leave_absent(&mut self, position: Position, until_ms: u64) -> Option<Name> {
        let absent = self.at(position)?.absent_until(until_ms);
        let names = absent.names.clone();
        if let Some(name) = names.only() {
            self.take_over(position, absent);
            return Some(name.clone());
        }
        self.replace(position, absent);
        self.leave_lines(position, names);
        None
    }

    /// Removes a waiter. Returns the name to settle now. `None`: it had several names, see
    /// [`Queues::work_off`].
    pub fn leave(&mut self, position: Position) -> Option<Name> {
        let (waiter, _) = self.take_waiter(position)?;
        if let Some(name) = waiter.names.only() {
            let id = self.find(name)?;
            self.leave_queue(id, name, position);
            return Some(name.clone());
        }
        self.leave_lines(position, waiter.names);
        None
    }

    /// Has a position worked off from the present lists of the given names. All of the lists
    /// contain it.
    fn leave_lines(&mut self, position: Position, names: Names) {
        let lines = names.count();
        let leaving = Leaving {
            names,
            next: 0,
            lines,
        };
        self.leaving.insert(position, leaving);
    }

    /// Returns true if positions are still to be worked off.
    pub fn is_anyone_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes a part of the positions that waiters have left out of the present lists. Returns the
    /// names where another waiter may be first now, about `most` of them.
    pub fn work_off(&mut self, most: usize) -> Vec<Name> {
        let mut vacated = Vec::new();
        let mut taken_out = 0;
        while taken_out < MOST_TAKEN_OUT && vacated.len() < most {
            let Some((position, leaving)) = self.leaving.last_mut() else {
                break;
            };
            let position = *position;
            let Some(name) = leaving.names.as_slice().get(leaving.next).cloned() else {
                self.leaving.pop();
                continue;
            };
            leaving.next += 1;
            taken_out += 1;
            let passed = self.pass_over_left(&name);
            self.leave_line(&name, position);
            if passed > 0 {
                taken_out += passed;
                vacated.push(name);
            }
        }
        vacated
    }

    /// Takes the positions before the first present waiter out of the present list of a name.
    /// Returns their number.
    pub fn pass_over_left(&mut self, name: &Name) -> usize {
        let mut passed = 0;
        while let Some(first) = self.queues.get(name).and_then(|it| it.present.first()) {
            if self.is_present(first) {
                break;
            }
            self.leave_line(name, first);
            passed += 1;
        }
        passed
    }

    /// Takes a position out of the present list of a name. The position of an absent waiter goes to
    /// the absent list.
    fn leave_line(&mut self, name: &Name, position: Position) {
        let is_kept = self.at(position).is_some();
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        if !queue.present.remove(position) {
            return;
        }
        if is_kept {
            queue.absent.insert(position);
        }
        if queue.is_empty() {
            self.drop_queue(name);
        }
        if let Some(leaving) = self.leaving.get_mut(&position) {
            leaving.lines -= 1;
            if leaving.lines == 0 {
                self.leaving.swap_remove(&position);
            }
        }
    }

    /// Removes a waiter from all its queues. Returns the waiter.
    pub fn remove(&mut self, position: Position) -> Option<Waiter> {
        let (waiter, _) = self.take(position, None)?;
        Some(waiter)
    }

    /// Like [`Queues::remove`]. Also returns true if its token has other waits. `queue` is the queue
    /// of its only name, if known.
    // perf: in line, so that a hand-over moves the waiter less often.
    #[inline(always)]
    pub fn take(&mut self, position: Position, queue: Option<QueueId>) -> Option<(Waiter, bool)> {
        let (waiter, has_others) = self.take_waiter(position)?;
        for name in &waiter.names {
            if let Some(id) = queue.or_else(|| self.find(name)) {
                self.leave_queue(id, name, position);
            }
        }
        if unlikely(!self.leaving.is_empty()) {
            self.leaving.swap_remove(&position);
        }
        Some((waiter, has_others))
    }

    /// Like [`Queues::take`], but leaves the position in the lists that contain it.
    #[inline(always)]
    fn take_waiter(&mut self, position: Position) -> Option<(Waiter, bool)> {
        self.set_blocked_by(position, None);
        let Queued { waiter, .. } = self.waiters.remove(position)?;
        self.unindex(position, &waiter);
        let has_others = self.remove_wait(&waiter);
        Some((waiter, has_others))
    }

    /// Removes a wait from those of its token. Returns true if others are left.
    fn remove_wait(&mut self, Waiter { request, names, .. }: &Waiter) -> bool {
        // perf: a wait is usually the only one of its token.
        let Some(mut waits) = self.tokens.remove(&request.token) else {
            return false;
        };
        let is_last = waits.remove(names);
        if unlikely(!is_last) {
            self.tokens.insert(request.token.clone(), waits);
        }
        !is_last
    }

    /// Returns the blocked client with this number, if it still waits at the position that it was
    /// given.
    pub fn waiter_at(&self, position: Position, waiter_id: WaiterId) -> Option<&Waiter> {
        let waiter = self.at(position)?;
        (waiter.waiter_id == waiter_id && waiter.kind.is_blocked()).then_some(waiter)
    }

    /// Returns the positions of waits whose deadline has passed at `steady_ms`, at most `most`.
    pub fn timed_out(&self, steady_ms: u64, most: usize) -> Vec<Position> {
        let due = self.timeouts.iter();
        let due = due.take_while(|(ms, _)| has_passed(*ms, steady_ms));
        due.take(most).map(|(_, position)| *position).collect()
    }

    /// Returns the first millisecond of the steady clock in which a wait is over.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        let (deadline_ms, _) = self.timeouts.first()?;
        Some(deadline_ms.saturating_add(1))
    }

    /// Returns the names where a lease ends by `until_ms`, each once for an end. Looks at `most`
    /// names at most.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        let mut names = self.unannounced.listed(until_ms, most);
        names.retain(|name| {
            let Some(queue) = self.queues.get_mut(name) else {
                return false;
            };
            let is_due = |end: &mut Time| !self.unannounced.is_put_off(name, end, until_ms);
            let ended = queue.unannounced.take_if(is_due);
            if let Some(end) = ended {
                self.unannounced.remove(name, end);
            }
            ended.is_some()
        });
        names
    }

    /// Returns the next time to look for an end that was not announced, on the steady clock in ms.
    /// No such end is earlier.
    pub fn next_unannounced_ms(&self) -> Option<u64> {
        self.unannounced.next_ms()
    }

    fn index(&mut self, position: Position, indexed: &Indexed) {
        if let Some(client_id) = indexed.client_id {
            self.blocked += 1;
            if unlikely(self.clients.is_some()) {
                self.client_waits_more(client_id);
            }
        } else {
            self.places += indexed.name_count;
        }
        if let Some(ms) = indexed.end_ms {
            self.list_timeout(ms, position);
        }
    }

    #[inline(never)]
    fn list_timeout(&mut self, ms: u64, position: Position) {
        self.timeouts.insert((ms, position));
    }

    #[inline(never)]
    fn unlist_timeout(&mut self, ms: u64, position: Position) {
        self.timeouts.remove(&(ms, position));
    }

    fn unindex(&mut self, position: Position, waiter: &Waiter) {
        let Indexed {
            client_id,
            name_count,
            end_ms,
        } = Indexed::of(waiter);
        if let Some(client_id) = client_id {
            self.blocked -= 1;
            if unlikely(self.clients.is_some()) {
                self.client_waits_less(client_id);
            }
        } else {
            self.places -= name_count;
        }
        if let Some(ms) = end_ms {
            self.unlist_timeout(ms, position);
        }
    }

    #[inline(never)]
    fn client_waits_more(&mut self, client_id: u64) {
        if let Some(clients) = &mut self.clients {
            *clients.entry(client_id).or_default() += 1;
        }
    }

    #[inline(never)]
    fn client_waits_less(&mut self, client_id: u64) {
        if self.blocked == 0 {
            self.clients = None;
        }
        let Some(clients) = &mut self.clients else {
            return;
        };
        if let Some(waits) = clients.get_mut(&client_id) {
            *waits -= 1;
            if *waits == 0 {
                clients.remove(&client_id);
            }
        }
    }

    fn leave_queue(&mut self, id: QueueId, name: &Name, position: Position) {
        let Some(queue) = self.get_mut(id) else {
            return;
        };
        queue.remove(position);
        if unlikely(queue.is_empty()) {
            self.drop_queue(name);
        }
    }

    #[inline(never)]
    fn drop_queue(&mut self, name: &Name) {
        if let Some(end) = self.queues.get(name).and_then(|queue| queue.unannounced) {
            self.unannounced.remove(name, end);
        }
        self.queues.swap_remove(name);
        self.removals += 1;
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let waiters = || self.waiters.values().map(|queued| &queued.waiter);
        let in_queues: usize = self.queues.values().map(NameQueue::len).sum();
        let absent: usize = self.queues.values().map(|queue| queue.absent.len()).sum();
        let absent_waiters = waiters().filter(|w| w.kind.is_absent());
        let wanted_absent: usize = absent_waiters.map(|w| w.names.count()).sum();
        let wanted: usize = waiters().map(|w| w.names.count()).sum();
        let in_tokens: usize = self.tokens.values().map(Waits::len).sum();
        let in_lacking: usize = self.queues.values().map(|queue| queue.lacking.len()).sum();
        let lacking = self.waiters.values().filter(|queued| queued.lack.is_some());
        let end_of = |name| Some((name, self.queues.get(name)?.unannounced?));
        let to_announce: Vec<(&Name, Time)> = self.queues.keys().filter_map(end_of).collect();
        let are_listed = |ends: &[(&Name, Time)]| {
            let mut ends = ends.iter();
            ends.all(|(name, end)| self.unannounced.has(name, *end))
        };
        let lines = |is_left: fn(Option<&Waiter>) -> bool| -> usize {
            let leaving = self.leaving.iter();
            let leaving = leaving.filter(|(position, _)| is_left(self.at(**position)));
            leaving.map(|(_, leaving)| leaving.lines).sum()
        };
        let (of_gone, of_absent) = (lines(|it| it.is_none()), lines(|it| it.is_some()));
        let with_timeout = waiters().filter(|w| w.end_ms().is_some()).count();
        let blocked = waiters().filter(|w| w.kind.is_blocked()).count();
        let places = waiters().filter(|w| !w.kind.is_blocked());
        let places: usize = places.map(|w| w.names.count()).sum();
        let complaints = [
            (in_queues != wanted + of_gone, "positions in queues by name"),
            (absent + of_absent != wanted_absent, "absent positions"),
            (in_lacking != lacking.count(), "waiters that lack permits"),
            (
                self.leaving
                    .keys()
                    .any(|position| self.is_present(*position)),
                "a present waiter at a position that was left",
            ),
            (in_tokens != self.waiters.len(), "positions by token"),
            (self.siblings_unlisted(), "waits of a token by blocker"),
            (self.blocked != blocked, "blocked"),
            (self.places != places, "places"),
            (
                self.clients
                    .as_ref()
                    .is_some_and(|clients| *clients != count_clients(&self.waiters)),
                "waits by connection",
            ),
            (self.timeouts.len() != with_timeout, "timeouts"),
            (
                self.unannounced.count() != to_announce.len() || !are_listed(&to_announce),
                "ends to announce",
            ),
            (
                self.queues.values().any(NameQueue::is_empty),
                "an empty queue",
            ),
        ];
        match complaints.iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(format!("{what}: {self:?}")),
            None => Ok(()),
        }
    }

    /// Returns true if the waits of tokens with several waits aren't listed by the names that block
    /// them, or if others are.
    fn siblings_unlisted(&self) -> bool {
        let several = self.tokens.values().filter_map(|waits| match waits {
            Waits::One(_) => None,
            Waits::Several(waits) => Some(waits),
        });
        let is_unlisted = |waits: &Siblings| {
            let positions = waits.by_names.values();
            let blocked = positions.filter(|position| self.blocked_by(**position).is_some());
            let listed: usize = waits.by_blocker.values().map(BTreeSet::len).sum();
            let mut lists = waits.by_blocker.iter();
            let all_right = lists.all(|(name, positions)| {
                let mut positions = positions.iter();
                positions.all(|position| self.blocked_by(*position) == Some(name))
            });
            !all_right || listed != blocked.count()
        };
        several.map(AsRef::as_ref).any(is_unlisted)
    }
}

/// Returns the index of a name's queue. Makes the queue if the name has none.
fn index_of(name: &Name, queues: &mut IndexMap<Name, NameQueue, RandomState>) -> usize {
    let entry = queues.entry(name.clone());
    let at = entry.index();
    entry.or_default();
    at
}

/// Adds another wait of a token that waits already. Returns the position of its first wait if that
/// was the only one until now.
#[inline(never)]
fn add_wait(
    waits: &mut Waits,
    waiter: &Waiter,
    position: Position,
    all: &Slab<Queued>,
) -> Option<Position> {
    let names_of = |position| Some(all.get(position)?.waiter.names.clone());
    waits.insert(waiter.names.clone(), position, names_of)
}

/// Returns the number of waits of each connection.
fn count_clients(waiters: &Slab<Queued>) -> HashMap<u64, usize> {
    let waiters = waiters.values().map(|queued| &queued.waiter);
    let mut clients = HashMap::default();
    for waiter in waiters.filter(|waiter| waiter.kind.is_blocked()) {
        *clients.entry(waiter.client_id).or_default() += 1;
    }
    clients
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::waiter::{Place, User, WaiterKind};
    use crate::values::holder::Mode;
    use crate::values::request::{LeaseKind, Reentry, Request};

    fn name(key: &str) -> Name {
        Name::new(0, key.as_bytes())
    }

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes()).expect("a token")
    }

    fn waiter(client_id: u64, of: &str, keys: &[&str]) -> Waiter {
        let names = keys.iter().map(|key| name(key)).collect();
        Waiter {
            waiter_id: WaiterId(client_id),
            client_id,
            kind: WaiterKind::Blocked { keep_ms: Some(50) },
            names: Names::set(names).expect("distinct keys"),
            request: Request {
                token: token(of),
                mode: Mode::Exclusive,
                limit: 0,
                permits: 1,
                lease_ms: 10,
                reentry: Reentry::Renews,
                lease_kind: LeaseKind::Lease,
                data: None,
            },
            since_ms: client_id,
            timeout_ms: Some(1_000 + client_id),
            replicas: None,
        }
    }

    fn place(client_id: u64, of: &str, keys: &[&str]) -> Waiter {
        let place = Place {
            keep_ms: 50,
            until_ms: 500,
            user: User::default(),
            notification: None,
        };
        let kind = WaiterKind::Place(Box::new(place));
        Waiter {
            kind,
            client_id: 0,
            timeout_ms: None,
            ..waiter(client_id, of, keys)
        }
    }

    /// Returns queues at x and y, with the positions of a wait of a for both names, of a place of a
    /// at x, and of a wait of b at x.
    fn three() -> (Queues, [Position; 3]) {
        let mut queues = Queues::default();
        let waiters = [
            waiter(1, "a", &["x", "y"]),
            place(2, "a", &["x"]),
            waiter(3, "b", &["x"]),
        ];
        let positions = waiters.map(|it| queues.enqueue(it, End::Back, Some(0), None).0);
        assert_eq!(queues.check(), Ok(()));
        (queues, positions)
    }

    #[test]
    fn waiters_are_counted_by_kind_token_and_connection() {
        let (mut queues, [a, at_x, b]) = three();
        let counts = (queues.len(), queues.blocked_len(), queues.place_count());
        assert_eq!(counts, (3, 2, 1));
        for (of, count) in [("a", 2), ("b", 1), ("c", 0)] {
            assert_eq!(queues.waits_of(&token(of)), count);
        }
        assert!(queues.waits(1) && queues.waits(3) && !queues.waits(2));
        assert_eq!(queues.waits_at(&token("a"), &name("x")), [a, at_x]);
        assert_eq!(queues.waits_at(&token("a"), &name("y")), [a]);
        assert_eq!(queues.waits_at(&token("b"), &name("y")), []);
        assert_eq!(
            (queues.rank(&name("x"), b), queues.rank(&name("y"), a)),
            (3, 1)
        );
        assert_eq!(queues.position_count(&name("x")), 3);
        assert_eq!(queues.position_count(&name("z")), 0);
        queues.remove(a);
        queues.remove(b);
        assert!(!queues.waits(1) && !queues.waits(3));
        assert_eq!(queues.removals(), 1, "the queue of y");
        assert_eq!(queues.check(), Ok(()));
        queues.remove(at_x);
        assert!(queues.is_empty());
        assert_eq!(queues.removals(), 2);
    }

    #[test]
    fn all_places_go_at_once() {
        let (mut queues, [a, at_x, b]) = three();
        assert_eq!(queues.drop_places(), [name("x")]);
        assert!(queues.at(at_x).is_none() && queues.at(a).is_some());
        assert_eq!(queues.check(), Ok(()));
        queues.remove(a);
        queues.remove(b);
        let mut queues = Queues::default();
        let (old, _) = queues.enqueue(place(2, "a", &["x"]), End::Back, None, None);
        let known = queues.find(&name("x")).expect("a queue");
        assert_eq!(queues.drop_places(), []);
        assert!(queues.is_empty() && !queues.is_current(known));
        let (new, _) = queues.enqueue(place(2, "a", &["x"]), End::Back, None, None);
        assert!(old < new, "an order is given once");
    }

    #[test]
    fn a_wait_that_is_left_is_worked_off_list_by_list() {
        let (mut queues, [a, ..]) = three();
        assert!(!queues.is_anyone_leaving());
        assert_eq!(queues.leave(a), None);
        assert!(queues.is_anyone_leaving());
        assert_eq!(queues.queue_len(&name("x")), 2);
        assert_eq!(queues.position_count(&name("x")), 3);
        assert_eq!(queues.queue_len(&name("y")), 0);
        assert_eq!(queues.check(), Ok(()));
        assert_eq!(queues.work_off(1), [name("x")]);
        assert_eq!(queues.work_off(9), [name("y")]);
        assert!(!queues.is_anyone_leaving());
        assert_eq!(queues.check(), Ok(()));
    }

    #[test]
    fn an_absent_waiter_keeps_its_position_and_its_names() {
        let (mut queues, [a, at_x, _]) = three();
        assert_eq!(queues.leave_absent(a, 700), None);
        assert_eq!(queues.queue_len(&name("x")), 3);
        assert_eq!(queues.head_at(&name("x")), Some(at_x));
        assert_eq!(queues.place_count(), 3);
        assert_eq!(queues.check(), Ok(()));
        while queues.is_anyone_leaving() {
            queues.work_off(9);
            assert_eq!(queues.check(), Ok(()));
        }
        let first = queues.find(&name("x")).and_then(|id| queues.first(id));
        assert_eq!(first, Some(a));
        assert_eq!(queues.next_timeout_ms(), Some(501));
        let (mut queues, [a, ..]) = three();
        queues.leave_absent(a, 700);
        assert!(queues.remove(a).is_some() && !queues.is_anyone_leaving());
        assert_eq!(queues.check(), Ok(()));
    }

    #[test]
    fn recorded_locks_are_forgotten_by_database() {
        let (mut queues, _) = three();
        let record = |queues: &mut Queues| {
            let id = queues.find(&name("x")).expect("a queue");
            let queue = queues.to_settle(id).expect("a queue");
            queue.record(&name("x"), Some(&Lock::free()), Some(40), 0);
        };
        let is_known = |queues: &Queues| queues.recorded_lock(&name("x")).is_some();
        record(&mut queues);
        queues.forget_locks_in(1);
        assert!(is_known(&queues));
        queues.forget_locks_in(0);
        assert!(!is_known(&queues));
        record(&mut queues);
        queues.forget_all_locks();
        assert!(!is_known(&queues));
        assert_eq!(queues.check(), Ok(()));
        assert_eq!(queues.next_unannounced_ms(), Some(40));
    }

    #[test]
    fn the_name_that_blocks_a_wait_is_recorded() {
        let (mut queues, [a, at_x, b]) = three();
        let blocked_by =
            |queues: &Queues| (queues.blocked_by(a).cloned(), queues.blocked_by_number(a));
        assert_eq!(blocked_by(&queues), (Some(name("x")), Some(0)));
        let lack = Some(Lack::Permits(2));
        queues.set_lack(a, Some(1), lack);
        assert_eq!(blocked_by(&queues), (Some(name("y")), Some(1)));
        assert_eq!(queues.lacks_at(a), Some(&name("y")));
        assert_eq!(queues.lacks_at(b), None);
        assert_eq!(
            queues.next_blocked(&token("a"), &name("x"), None),
            Some(at_x)
        );
        assert_eq!(queues.next_blocked(&token("a"), &name("y"), None), Some(a));
        assert_eq!(queues.next_blocked(&token("a"), &name("y"), Some(a)), None);
        assert_eq!(queues.next_blocked(&token("b"), &name("x"), None), Some(b));
        assert_eq!(queues.next_blocked(&token("b"), &name("y"), None), None);
        assert_eq!(queues.check(), Ok(()));
        let y = queues.find(&name("y")).expect("a queue");
        assert!(queues.lacking(y).is_some());
        queues.set_blocked_by(a, None);
        assert_eq!(blocked_by(&queues), (None, None));
        assert!(queues.lacking(y).is_none());
        assert_eq!(queues.check(), Ok(()));
    }

    #[test]
    fn a_newcomer_is_behind_a_waiter_for_a_lock_that_others_hold() {
        use crate::values::data::Data;
        use crate::values::holder::Holder;
        use crate::values::session_id::SessionId;
        let own = Holder {
            token: token("h"),
            fence: 1,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 9,
            lease_ms: 9,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        let (mut queues, [_, at_x, b]) = three();
        let id = queues.find(&name("x")).expect("a queue");
        let is_behind = |queues: &Queues| queues.is_behind(id, &token("new"));
        assert!(!is_behind(&queues), "the lock is not known");
        for (lock, expected) in [
            (Lock::free(), false),
            (Lock::sole(Mode::Exclusive, own), true),
        ] {
            let queue = queues.to_settle(id).expect("a queue");
            queue.record(&name("x"), Some(&lock), None, 0);
            assert_eq!(is_behind(&queues), expected);
        }
        assert!(!queues.is_behind(id, &token("h")), "a holder");
        queues.remove(b);
        queues.remove(at_x);
        let (a, _) = queues.queue(&name("x")).next().expect("a waiter");
        assert!(is_behind(&queues));
        queues.leave(a);
        assert!(!is_behind(&queues), "the only waiter is leaving");
    }

    /// Each name of the waiter counts, and each position that is passed over there.
    #[test]
    fn positions_that_were_left_are_worked_off_in_parts() {
        let keys: Vec<String> = (0..MOST_TAKEN_OUT + 9).map(|key| key.to_string()).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        for (number, looked_at, vacated) in [
            (0, MOST_TAKEN_OUT / 2, MOST_TAKEN_OUT / 2),
            (1, MOST_TAKEN_OUT, 0),
        ] {
            let mut queues = Queues::default();
            let waiters = [waiter(1, "a", &keys), waiter(2, "b", &keys)];
            let positions = waiters.map(|it| queues.enqueue(it, End::Back, None, None).0);
            queues.leave(positions[number]);
            assert_eq!(queues.work_off(usize::MAX).len(), vacated, "{number}");
            assert_eq!(queues.leaving[0].next, looked_at, "{number}");
        }
    }

    #[test]
    fn the_check_finds_each_broken_index() {
        type Break = fn(&mut Queues, [Position; 3]);
        let breaks: [(Break, &str); 13] = [
            (
                |it, [a, ..]| it.at_x().present.insert(a_behind(a)),
                "positions in queues",
            ),
            (|it, _| it.blocked += 1, "blocked"),
            (|it, _| it.places += 1, "places"),
            (|it, _| it.timeouts.clear(), "timeouts"),
            (|it, _| it.tokens.clear(), "positions by token"),
            (
                |it, _| it.clients = Some(HashMap::default()),
                "waits by connection",
            ),
            (
                |it, [.., b]| {
                    it.at_x().present.remove(b);
                    it.at_x().absent.insert(b);
                },
                "absent positions",
            ),
            (
                |it, [.., b]| it.at_x().lacking.insert(Lack::Permits(1), b),
                "waiters that lack permits",
            ),
            (
                |it, [a, ..]| it.leave_lines(a, Names::one(name("x"))),
                "absent positions",
            ),
            (
                |it, [a, ..]| {
                    it.leave_lines(a, Names::one(name("x")));
                    it.leaving[0].lines = 0;
                },
                "a present waiter at a position that was left",
            ),
            (
                |it, _| {
                    let time = Order::default().insert(&name("x"), 7);
                    it.at_x().unannounced = Some(time);
                },
                "ends to announce",
            ),
            (
                |it, _| {
                    it.unannounced.insert(&name("x"), 7);
                },
                "ends to announce",
            ),
            (
                |it, _| {
                    it.queues.insert(name("z"), NameQueue::default());
                },
                "an empty queue",
            ),
        ];
        for (number, (break_index, complaint)) in breaks.into_iter().enumerate() {
            let (mut queues, positions) = three();
            break_index(&mut queues, positions);
            let found = queues.check().expect_err("a broken index");
            assert!(found.starts_with(complaint), "break {number}: {found}");
        }
    }

    #[test]
    fn the_check_finds_a_wait_that_is_not_listed_by_its_blocker() {
        type Break = fn(&mut Siblings, [Position; 3]);
        let breaks: [Break; 3] = [
            |it, _| it.by_blocker.clear(),
            |it, _| {
                let blocked = it.by_blocker.remove(&name("x")).expect("waits");
                it.by_blocker.insert(name("y"), blocked);
            },
            |it, [.., b]| {
                it.by_blocker.entry(name("x")).or_default().insert(b);
            },
        ];
        for break_list in breaks {
            let (mut queues, positions) = three();
            let waits = queues.tokens.get_mut(&token("a"));
            let Some(Waits::Several(siblings)) = waits else {
                panic!("a has two waits");
            };
            break_list(siblings, positions);
            let found = queues.check().expect_err("a broken list");
            assert!(found.starts_with("waits of a token by blocker"), "{found}");
        }
    }

    /// The time of the wait that has waited longest. Waits that have ended don't count.
    #[test]
    fn the_oldest_wait_is_the_one_that_began_first() {
        let (mut queues, [a, at_x, _]) = three();
        for (now_ms, oldest_ms) in [(10, 9), (1_001, 1_000), (0, 0)] {
            assert_eq!(queues.oldest_wait_ms(now_ms), oldest_ms, "at {now_ms}");
        }
        queues.remove(a);
        queues.remove(at_x);
        assert_eq!(queues.oldest_wait_ms(10), 7);
        assert_eq!(queues.oldest_wait_ms(1_003), 1_000);
    }

    #[test]
    fn a_name_is_new_if_its_queue_may_have_no_present_waiter() {
        let (mut queues, [a, ..]) = three();
        let new = |queues: &mut Queues, of: &str| {
            let waiter = waiter(9, of, &["x", "z"]);
            queues.enqueue(waiter, End::Back, None, None).1
        };
        assert_eq!(new(&mut queues, "c"), [name("z")]);
        assert_eq!(new(&mut queues, "d"), []);
        queues.leave(a);
        assert_eq!(new(&mut queues, "e"), ["x", "z"].map(name));
        queues.remove(a);
        let other = queues.find(&name("z")).expect("a queue");
        let stale = QueueId {
            removals: 9,
            ..other
        };
        let waiter = waiter(10, "f", &["x"]);
        queues.enqueue(waiter, End::Back, None, Some(stale));
        assert_eq!(queues.waits_at(&token("f"), &name("x")).len(), 1);
    }

    /// Returns a position behind all others.
    fn a_behind(_: Position) -> Position {
        let mut slab = Slab::default();
        (0..9)
            .map(|_| slab.add(End::Back, ()))
            .last()
            .expect("a position")
    }

    impl Queues {
        fn at_x(&mut self) -> &mut NameQueue {
            self.queues.get_mut(&name("x")).expect("a queue")
        }
    }
}
