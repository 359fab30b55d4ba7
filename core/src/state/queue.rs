//! Who waits for what, in which order.
//!
//! One queue a name. A waiter for several names stands in the queue of each at the same position, so
//! two waiters are never in different orders in different queues: they can't wait for each other.
//! Positions are numbers that grow at both ends: newcomers go behind the greatest, a waiting
//! upgrade goes before the smallest. Every step here costs O(log n), for each name of the waiter.
//!
//! Of a waiter that was looked at and could not be granted it is recorded which of its names blocked
//! it. Until something happens at that one, nothing that happens at its others can admit it.
//!
//! A waiter for several names leaves at once, or becomes absent at once, as its connection is lost. Its positions
//! stay in the lines of its names until they are worked off in parts. Until then whoever looks for the first in a
//! line passes them over.

use std::collections::hash_map::Entry;
use std::collections::BTreeSet;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use indexmap::IndexMap;

pub use crate::state::positions::{End, Position};

use crate::branch::{likely, unlikely};
use crate::state::lacking::Lacking;
use crate::state::line::{merged, Line};
use crate::state::place::{Presence, Stand};
use crate::state::positions::Positions;
use crate::state::queue_table::QueueTable;
use crate::state::schedule::{Order, Time};
use crate::values::lock::{Lack, Lock};
use crate::values::moment::has_passed;
use crate::values::name::Name;
use crate::values::name::Names;
use crate::values::request::Request;
use crate::values::token::Token;

/// The number of one wait of one connection, given by the module around the core; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The wait's number.
    pub waiter_id: WaiterId,
    /// The client id of the connection that waits; 0 where there is none.
    pub client_id: u64,
    /// With its connection, or without.
    pub stand: Stand,
    /// All that it needs.
    pub names: Names,
    /// What it wants there.
    pub request: Request,
    /// Since when its token waits for these names, on the steady clock in ms.
    pub since_ms: u64,
    /// Deadline of its BLOCK on the steady clock in ms; `None`: it waits for ever.
    pub timeout_ms: Option<u64>,
}

impl Waiter {
    /// Deadline of its wait, of its BLOCK or of its KEEP, on the steady clock in ms.
    pub fn end_ms(&self) -> Option<u64> {
        let kept_until_ms = self.stand.kept_until_ms();
        self.timeout_ms.into_iter().chain(kept_until_ms).min()
    }

    /// The same where nobody stands any more, kept until then on the steady clock in ms.
    pub fn absent_until(&self, until_ms: u64) -> Self {
        Self {
            client_id: 0,
            stand: Stand::Absent { until_ms },
            ..self.clone()
        }
    }

    /// Returns true if its deadline has passed.
    pub fn is_over(&self, steady_ms: u64) -> bool {
        self.end_ms().is_some_and(|ms| has_passed(ms, steady_ms))
    }
}

#[derive(Debug)]
struct Queued {
    waiter: Waiter,
    /// Which of its names blocked it when it was looked at last.
    blocked_by: Option<usize>,
    /// The permits that its token lacked there, which held some already; `None`: that didn't block it.
    lack: Option<Lack>,
}

impl Queued {
    const fn blocked_by(waiter: Waiter, by: Option<usize>) -> Self {
        Self {
            waiter,
            blocked_by: by,
            lack: None,
        }
    }
}

/// By what a waiter is found or counted besides its position.
struct Indexed {
    /// Its connection, if that is blocked.
    client_id: Option<u64>,
    end_ms: Option<u64>,
}

impl Indexed {
    fn of(waiter: &Waiter) -> Self {
        Self {
            client_id: waiter.stand.is_blocked().then_some(waiter.client_id),
            end_ms: waiter.end_ms(),
        }
    }
}

/// The most positions that are taken out of lines at a time, where their waiters have left.
///
/// perf: some 40 to 300 ns each.
const MOST_TAKEN_OUT: usize = 4_096;

/// The queue of one name.
#[derive(Debug, Default)]
struct NameQueue {
    positions: Line<Position>,
    /// Those among whom nobody stands.
    absent: Line<Position>,
    /// The lock as it was settled last; `None`: not known.
    lock: Option<Lock>,
    /// Those among the waiters that this name blocks because their tokens, which hold here already,
    /// lack permits.
    lacking: Lacking,
    /// When a lease ends here, if that is to be announced.
    unannounced: Option<Time>,
}

impl NameQueue {
    fn len(&self) -> usize {
        self.positions.len() + self.absent.len()
    }

    fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.absent.is_empty()
    }

    fn contains(&self, position: Position) -> bool {
        self.positions.contains(position) || self.absent.contains(position)
    }

    /// All positions, in order.
    fn iter(&self) -> impl Iterator<Item = Position> + '_ {
        merged(self.positions.iter(), self.absent.iter())
    }

    /// Adds a position that isn't there.
    fn insert(&mut self, position: Position, presence: Presence) {
        match presence {
            Presence::Present => self.positions.insert(position),
            Presence::Absent => self.absent.insert(position),
        }
    }

    fn remove(&mut self, position: Position) {
        if !self.positions.remove(position) {
            self.absent.remove(position);
        }
    }
}

/// A waiter whose position is still in the lines of those who stand in its queues, although nobody stands
/// there any more.
#[derive(Debug)]
struct Leaving {
    names: Names,
    /// The number of the name whose line is to be looked at next.
    next: usize,
    /// In how many of the lines its position still is.
    lines: usize,
}

/// The queue of one name, found.
#[derive(Clone, Copy, Debug)]
pub struct KnownQueue<'q> {
    number: usize,
    name: &'q Name,
    queue: &'q NameQueue,
}

impl<'q> KnownQueue<'q> {
    /// A number below that of the queues, which no other queue has until a queue comes or goes.
    pub const fn number(self) -> usize {
        self.number
    }

    /// Its name.
    pub const fn name(self) -> &'q Name {
        self.name
    }

    /// Those who stand behind `front`, and behind nobody where it is `None`; no further than `back`.
    pub fn between(
        self,
        front: Option<Position>,
        back: Option<Position>,
    ) -> impl Iterator<Item = Position> + 'q {
        self.queue.positions.between(front, back)
    }

    /// The lock as it was settled last; `None`: not known. It isn't recorded while every position is absent.
    pub fn lock(self) -> Option<&'q Lock> {
        let queue = self.queue;
        queue.lock.as_ref().filter(|_| !queue.positions.is_empty())
    }
}

/// The queue of one name that is being settled.
#[derive(Debug)]
pub struct QueueToSettle<'q> {
    queue: &'q mut NameQueue,
    unannounced: &'q mut Order,
}

impl QueueToSettle<'_> {
    /// Records what its name was settled to, at `now_ms` on the steady clock: its lock, and when the next lease
    /// ends there, which is to be announced once.
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

/// The waits of one token: mostly one.
#[derive(Debug)]
enum Waits {
    One(Position),
    /// Boxed, for there are as many tokens as waits that have one each.
    Several(Box<HashMap<Names, Position>>),
}

impl Waits {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(waits) => waits.len(),
        }
    }

    /// Adds another one. `names_of` tells what the one before it is for.
    fn insert(
        &mut self,
        names: Names,
        position: Position,
        names_of: impl FnOnce(Position) -> Option<Names>,
    ) {
        let mut waits = match self {
            Self::One(only) => {
                let only = *only;
                let first = names_of(only).map(|names| (names, only));
                Box::new(first.into_iter().collect())
            }
            Self::Several(waits) => std::mem::take(waits),
        };
        waits.insert(names, position);
        *self = Self::Several(waits);
    }

    /// Removes the wait for these names. Whether none is left.
    fn remove(&mut self, names: &Names) -> bool {
        match self {
            Self::One(_) => true,
            Self::Several(waits) => {
                waits.remove(names);
                waits.is_empty()
            }
        }
    }
}

/// The queues of all names.
///
/// Invariants: each waiter's position is in the queue of each of its names, among the absent ones if
/// nobody stands there, and nowhere else; a token
/// waits once at most for the same set of names; a queue without positions is gone; the indexes by
/// token, timeout and connection say the same; `unannounced` has each end that a queue has.
/// Except: the positions in `leaving` are still in so many lines of those who stand there as it says. They are
/// those of waiters that are gone, and of absent ones.
#[derive(Debug, Default)]
pub struct Queues {
    waiters: Positions<Queued>,
    queues: QueueTable<NameQueue>,
    /// How many of them wait with their connection.
    blocked: usize,
    /// How often each connection waits: once, but for what is not known yet to be over. It is asked for only where
    /// connections have sessions: so it is counted as that is asked, and from then on until nobody waits.
    clients: Option<HashMap<u64, usize>>,
    tokens: HashMap<Token, Waits>,
    timeouts: BTreeSet<(u64, Position)>,
    /// The ends of leases that somebody waits for and that were not announced yet.
    unannounced: Order,
    leaving: IndexMap<Position, Leaving, RandomState>,
}

impl Queues {
    /// How many wait, each counted once.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether anybody waits for this name.
    pub fn has_queue(&self, name: &Name) -> bool {
        self.queues.contains(name)
    }

    /// Every name that somebody waits for.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Name> {
        self.queues.names()
    }

    /// Returns names that somebody waits for, of those with a number below `below`; and below which number the rest is
    /// to be found, 0 where that was all. Looks at `most` names at most.
    ///
    /// Whatever happens to the queues from one call to the next, each name is found that has had a queue since before
    /// the first of them.
    pub fn names_below(&self, below: usize, most: usize) -> (usize, impl Iterator<Item = &Name>) {
        let below = below.min(self.queues.names().len());
        let from = below.saturating_sub(most);
        (from, self.queues.names_between(from, below))
    }

    /// The first in the queue of a name among those where somebody stands.
    #[inline]
    pub fn head(&self, name: &Name) -> Option<Position> {
        if self.is_empty() {
            return None;
        }
        let queue = self.queues.get(name)?;
        if unlikely(!self.leaving.is_empty()) {
            return self.first_present(queue);
        }
        queue.positions.first()
    }

    #[inline(never)]
    fn first_present(&self, queue: &NameQueue) -> Option<Position> {
        let mut positions = queue.positions.iter();
        positions.find(|position| self.is_present(*position))
    }

    /// Returns true if somebody stands at a position.
    fn is_present(&self, position: Position) -> bool {
        let waiter = self.at(position);
        waiter.is_some_and(|waiter| !waiter.stand.is_absent())
    }

    /// The first in the queue of a name, whether somebody stands there or not.
    pub fn first(&self, name: &Name) -> Option<Position> {
        let mut positions = self.queues.get(name)?.iter();
        positions.find(|position| self.at(*position).is_some())
    }

    /// The waiter at a position.
    pub fn at(&self, position: Position) -> Option<&Waiter> {
        self.waiters.get(position).map(|queued| &queued.waiter)
    }

    /// Which name blocked the waiter at a position when it was looked at last.
    pub fn blocked_by(&self, position: Position) -> Option<&Name> {
        let queued = self.waiters.get(position)?;
        queued.waiter.names.as_slice().get(queued.blocked_by?)
    }

    /// The same name's number among those of the waiter.
    pub fn blocked_by_number(&self, position: Position) -> Option<usize> {
        self.waiters.get(position)?.blocked_by
    }

    /// Records which of its names blocks the waiter at a position; `None`: look at all of them.
    pub fn set_blocked_by(&mut self, position: Position, by: Option<usize>) {
        self.set_lack(position, by, None);
    }

    /// As [`Queues::set_blocked_by`], where the waiter's token holds already and lacks permits.
    pub fn set_lack(&mut self, position: Position, by: Option<usize>, lack: Option<Lack>) {
        let Some(queued) = self.waiters.get_mut(position) else {
            return;
        };
        let (known_by, known) = (queued.blocked_by, queued.lack);
        queued.blocked_by = by;
        queued.lack = lack;
        if unlikely(known.is_some() || lack.is_some()) {
            self.relist_lack(position, (known_by, known), (by, lack));
        }
    }

    /// Lists a waiter by the permits that its token lacks now, and not by those that it lacked before.
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

    /// The name at which the token of the waiter at a position lacks permits, if that is what blocked it.
    pub fn lacks_at(&self, position: Position) -> Option<&Name> {
        let queued = self.waiters.get(position)?;
        queued.lack?;
        queued.waiter.names.as_slice().get(queued.blocked_by?)
    }

    /// The waiters that a name blocks because their tokens, which hold there already, lack permits.
    pub fn lacking(&self, name: &Name) -> Option<&Lacking> {
        let lacking = &self.queues.get(name)?.lacking;
        (!lacking.is_empty()).then_some(lacking)
    }

    /// The queue of a name, first in queue first.
    pub fn queue(&self, name: &Name) -> impl Iterator<Item = (Position, &Waiter)> {
        let queue = self.queues.get(name).into_iter();
        let positions = queue.flat_map(NameQueue::iter);
        positions.filter_map(|position| Some((position, self.at(position)?)))
    }

    /// The queue of a name, to look at as a whole; `None` where nobody waits.
    pub fn known(&self, name: &Name) -> Option<KnownQueue<'_>> {
        let (number, name, queue) = self.queues.get_numbered(name)?;
        Some(KnownQueue {
            number,
            name,
            queue,
        })
    }

    /// All queues, in the order of their numbers.
    pub fn all_known(&self) -> impl ExactSizeIterator<Item = KnownQueue<'_>> {
        let numbered = self.queues.iter().enumerate();
        numbered.map(|(number, (name, queue))| KnownQueue {
            number,
            name,
            queue,
        })
    }

    /// The queue of a name, to record what that is settled to; `None` where nobody waits.
    pub fn to_settle(&mut self, name: &Name) -> Option<QueueToSettle<'_>> {
        let queue = self.queues.get_mut(name)?;
        let unannounced = &mut self.unannounced;
        Some(QueueToSettle { queue, unannounced })
    }

    /// Forgets the lock of a name: something happened there that is not settled yet.
    pub fn forget_lock(&mut self, name: &Name) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.lock = None;
        }
    }

    /// Forgets the locks of all names.
    pub fn forget_all_locks(&mut self) {
        for queue in self.queues.values_mut() {
            queue.lock = None;
        }
    }

    /// Whether somebody stands in the queue of a name that is known to be held by others than this token. Who comes
    /// now is behind them, whatever the lock is like.
    pub fn is_behind(&self, name: &Name, token: &Token) -> bool {
        let queue = self.queues.get(name);
        queue.is_some_and(|queue| {
            let lock = queue.lock.as_ref();
            let is_held = lock.is_some_and(|lock| !lock.is_free() && lock.holder(token).is_none());
            is_held
                && !queue.positions.is_empty()
                && (likely(self.leaving.is_empty()) || self.first_present(queue).is_some())
        })
    }

    /// Returns how many wait for a name.
    pub fn queue_len(&self, name: &Name) -> usize {
        let Some(queue) = self.queues.get(name) else {
            return 0;
        };
        let left = self.leaving.iter().filter(|(position, leaving)| {
            leaving.names.contains(name)
                && self.at(**position).is_none()
                && queue.positions.contains(**position)
        });
        queue.len() - left.count()
    }

    /// Returns how many positions the queue of a name has, of which waiters may have left some.
    pub fn position_count(&self, name: &Name) -> usize {
        self.queues.get(name).map_or(0, NameQueue::len)
    }

    /// Where a position stands in the queue of a name, from 1 on. Counts waiters that have left behind somebody
    /// else and are still to be taken out.
    pub fn rank(&self, name: &Name, position: Position) -> usize {
        let queue = self.queues.get(name);
        queue.map_or(0, |queue| {
            queue.positions.before(position) + queue.absent.before(position) + 1
        })
    }

    /// How many wait with their connection, each counted once.
    pub fn blocked_len(&self) -> usize {
        self.blocked
    }

    /// How many wait without a connection, each counted once.
    pub fn place_count(&self) -> usize {
        self.waiters.len() - self.blocked
    }

    /// Takes out all who wait without a connection. Returns the names that they leave to others.
    pub fn drop_places(&mut self) -> Vec<Name> {
        if self.blocked == 0 {
            // They may be many.
            self.waiters.clear();
            let waiters = std::mem::take(&mut self.waiters);
            *self = Self {
                waiters,
                ..Self::default()
            };
            return Vec::new();
        }
        let all = self.queues.values();
        let places = all.flat_map(NameQueue::iter);
        let places: Vec<Position> = places.filter(|place| self.is_place(*place)).collect();
        self.remove_all(places)
    }

    /// Takes out those who wait for a name without a connection, at most `most` of them. Returns the names
    /// that they leave to others.
    pub fn drop_places_at(&mut self, name: &Name, most: usize) -> Vec<Name> {
        let queue = self.queues.get(name).into_iter();
        let places = queue.flat_map(NameQueue::iter);
        let places = places.filter(|place| self.is_place(*place));
        let places: Vec<Position> = places.take(most).collect();
        self.remove_all(places)
    }

    fn is_place(&self, position: Position) -> bool {
        let waiter = self.at(position);
        waiter.is_some_and(|waiter| !waiter.stand.is_blocked())
    }

    /// Takes out all of these. Returns the names that they leave to others.
    fn remove_all(&mut self, positions: Vec<Position>) -> Vec<Name> {
        let removed = positions
            .into_iter()
            .filter_map(|position| self.remove(position));
        removed
            .flat_map(|waiter| waiter.names.as_slice().to_vec())
            .collect()
    }

    /// The waits of a token in the queue of a name. Looks through that queue or through all waits of the
    /// token, whichever is shorter.
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
            Waits::Several(waits) if queue.len() < waits.len() => {
                queue.iter().filter(is_own).collect()
            }
            Waits::Several(waits) => {
                let here = waits.iter().filter(|(names, _)| names.contains(name));
                let mut here: Vec<Position> = here.map(|(_, position)| *position).collect();
                here.sort_unstable();
                here
            }
        }
    }

    /// Whether a connection waits. To ask that first since nobody waited looks at all who wait.
    pub fn waits(&mut self, client_id: u64) -> bool {
        let waiters = &self.waiters;
        let clients = self.clients.get_or_insert_with(|| count_clients(waiters));
        clients.contains_key(&client_id)
    }

    /// The wait of a token for just these names.
    pub fn wait_for(&self, token: &Token, names: &Names) -> Option<Position> {
        match self.tokens.get(token)? {
            Waits::One(position) => {
                let waiter = self.at(*position)?;
                (waiter.names == *names).then_some(*position)
            }
            Waits::Several(waits) => waits.get(names).copied(),
        }
    }

    /// How many waits a token has.
    pub fn waits_of(&self, token: &Token) -> usize {
        self.tokens.get(token).map_or(0, Waits::len)
    }

    /// Adds a waiter, whose token doesn't wait for the same names yet, and which its name with the
    /// number `by` blocks, if that is known. Returns its position, and those of its names in whose
    /// queues nobody stood before.
    pub fn enqueue(
        &mut self,
        waiter: Waiter,
        end: End,
        by: Option<usize>,
    ) -> (Position, Vec<Name>) {
        let position = self.waiters.add(end, Queued::blocked_by(waiter, by));
        (position, self.list(position))
    }

    /// Adds a waiter again at a position that it had; its token doesn't wait for the same names.
    pub fn enqueue_again(&mut self, position: Position, waiter: Waiter) {
        let queued = Queued::blocked_by(waiter, None);
        let position = self.waiters.add_again(position, queued);
        self.list(position);
    }

    /// Lists a position under all that its waiter is found by. Returns those of its names in whose queues
    /// nobody stood before.
    fn list(&mut self, position: Position) -> Vec<Name> {
        let mut new_queues = Vec::new();
        let Some(Queued { waiter, .. }) = self.waiters.get(position) else {
            return new_queues;
        };
        for name in &waiter.names {
            self.queues.make(name);
            if let Some(queue) = self.queues.get_mut(name) {
                // Nobody may stand there although the queue is not empty.
                if unlikely(queue.positions.is_empty() || !self.leaving.is_empty()) {
                    new_queues.push(name.clone());
                }
                queue.insert(position, waiter.stand.presence());
            }
        }
        match self.tokens.entry(waiter.request.token.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Waits::One(position));
            }
            Entry::Occupied(mut waits) => {
                add_wait(waits.get_mut(), waiter, position, &self.waiters);
            }
        }
        let indexed = Indexed::of(waiter);
        self.index(position, &indexed);
        new_queues
    }

    /// Gives a position to another wait of the same token for the same names. Returns the one that had
    /// it.
    pub fn take_over(&mut self, position: Position, newer: Waiter) -> Option<Waiter> {
        let presence = newer.stand.presence();
        let older = self.replace(position, newer)?;
        if older.stand.presence() != presence {
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

    /// Gives a position to another wait, and leaves it in the lines in which it is.
    fn replace(&mut self, position: Position, newer: Waiter) -> Option<Waiter> {
        self.set_blocked_by(position, None);
        let queued = self.waiters.get_mut(position)?;
        let indexed = Indexed::of(&newer);
        let older = std::mem::replace(&mut queued.waiter, newer);
        self.unindex(position, &older);
        self.index(position, &indexed);
        Some(older)
    }

    /// Leaves a position to nobody, because the connection of its waiter was lost; it is kept until then. Returns
    /// the name to settle now: none if they are several, see [`Queues::work_off`].
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

    /// Removes a waiter. Returns the name to settle now: none if they are several, see [`Queues::work_off`].
    pub fn leave(&mut self, position: Position) -> Option<Name> {
        let (waiter, _) = self.take_waiter(position)?;
        if let Some(name) = waiter.names.only() {
            self.leave_queue(name, position);
            return Some(name.clone());
        }
        self.leave_lines(position, waiter.names);
        None
    }

    /// Has a position taken out of the lines of these names. It is in all of them, or was left before.
    fn leave_lines(&mut self, position: Position, names: Names) {
        let lines = names.count();
        let leaving = Leaving {
            names,
            next: 0,
            lines,
        };
        self.leaving.insert(position, leaving);
    }

    /// Returns true if positions are to be worked off.
    pub fn is_anyone_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes a part of the positions out of lines whose waiters have left. Returns the names where others may be
    /// first now, about `most` of them.
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

    /// Takes the positions out of the line of a name that are before all others where somebody stands.
    /// Returns how many.
    pub fn pass_over_left(&mut self, name: &Name) -> usize {
        let mut passed = 0;
        while let Some(first) = self.queues.get(name).and_then(|it| it.positions.first()) {
            if self.is_present(first) {
                break;
            }
            self.leave_line(name, first);
            passed += 1;
        }
        passed
    }

    /// Takes a position out of the line of those who stand in the queue of a name.
    fn leave_line(&mut self, name: &Name, position: Position) {
        let is_kept = self.at(position).is_some();
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        if !queue.positions.remove(position) {
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

    /// Removes a waiter from all its queues.
    pub fn remove(&mut self, position: Position) -> Option<Waiter> {
        let (waiter, _) = self.take(position)?;
        Some(waiter)
    }

    /// As [`Queues::remove`]; also whether its token has other waits.
    pub fn take(&mut self, position: Position) -> Option<(Waiter, bool)> {
        let (waiter, has_others) = self.take_waiter(position)?;
        for name in &waiter.names {
            self.leave_queue(name, position);
        }
        if unlikely(!self.leaving.is_empty()) {
            self.leaving.swap_remove(&position);
        }
        Some((waiter, has_others))
    }

    /// As [`Queues::take`], but leaves the position in the lines in which it is.
    fn take_waiter(&mut self, position: Position) -> Option<(Waiter, bool)> {
        self.set_blocked_by(position, None);
        let Queued { waiter, .. } = self.waiters.remove(position)?;
        self.unindex(position, &waiter);
        let has_others = self.remove_wait(&waiter);
        Some((waiter, has_others))
    }

    /// Removes a wait from those of its token. Whether others are left.
    fn remove_wait(&mut self, Waiter { request, names, .. }: &Waiter) -> bool {
        // Mostly it is the only one.
        let Some(mut waits) = self.tokens.remove(&request.token) else {
            return false;
        };
        let is_last = waits.remove(names);
        if unlikely(!is_last) {
            self.tokens.insert(request.token.clone(), waits);
        }
        !is_last
    }

    /// The waiter of this number, while it waits at the position that it was given.
    pub fn waiter_at(&self, position: Position, waiter_id: WaiterId) -> Option<&Waiter> {
        let waiter = self.at(position)?;
        (waiter.waiter_id == waiter_id && waiter.stand.is_blocked()).then_some(waiter)
    }

    /// Those whose time is over at `steady_ms`, at most `most` of them.
    pub fn timed_out(&self, steady_ms: u64, most: usize) -> Vec<Position> {
        let due = self.timeouts.iter();
        let due = due.take_while(|(ms, _)| has_passed(*ms, steady_ms));
        due.take(most).map(|(_, position)| *position).collect()
    }

    /// First millisecond of the steady clock in which a wait is over.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        let (deadline_ms, _) = self.timeouts.first()?;
        Some(deadline_ms.saturating_add(1))
    }

    /// The names where a lease ends by `until_ms`, at most `most` of them, each told once for an end.
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

    /// When to look for the next end that was not announced yet, on the steady clock in ms: no later than it is.
    pub fn next_unannounced_ms(&self) -> Option<u64> {
        self.unannounced.next_ms()
    }

    fn index(&mut self, position: Position, indexed: &Indexed) {
        if let Some(client_id) = indexed.client_id {
            self.blocked += 1;
            if unlikely(self.clients.is_some()) {
                self.client_waits_more(client_id);
            }
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
        let Indexed { client_id, end_ms } = Indexed::of(waiter);
        if let Some(client_id) = client_id {
            self.blocked -= 1;
            if unlikely(self.clients.is_some()) {
                self.client_waits_less(client_id);
            }
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

    fn leave_queue(&mut self, name: &Name, position: Position) {
        let Some(queue) = self.queues.get_mut(name) else {
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
        self.queues.remove(name);
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let waiters = || self.waiters.values().map(|queued| &queued.waiter);
        let in_queues: usize = self.queues.values().map(NameQueue::len).sum();
        let absent: usize = self.queues.values().map(|queue| queue.absent.len()).sum();
        let absent_waiters = waiters().filter(|w| w.stand.is_absent());
        let wanted_absent: usize = absent_waiters.map(|w| w.names.count()).sum();
        let wanted: usize = waiters().map(|w| w.names.count()).sum();
        let in_tokens: usize = self.tokens.values().map(Waits::len).sum();
        let in_lacking: usize = self.queues.values().map(|queue| queue.lacking.len()).sum();
        let lacking = self.waiters.values().filter(|queued| queued.lack.is_some());
        let end_of = |name| Some((name, self.queues.get(name)?.unannounced?));
        let to_announce: Vec<(&Name, Time)> = self.queues.names().filter_map(end_of).collect();
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
        let blocked = waiters().filter(|w| w.stand.is_blocked()).count();
        let complaints = [
            (in_queues != wanted + of_gone, "positions in queues by name"),
            (absent + of_absent != wanted_absent, "absent positions"),
            (in_lacking != lacking.count(), "those who lack permits"),
            (
                self.leaving
                    .keys()
                    .any(|position| self.is_present(*position)),
                "somebody stands at a position that was left",
            ),
            (in_tokens != self.waiters.len(), "positions by token"),
            (self.blocked != blocked, "blocked"),
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
}

/// Adds another wait of a token that waits already.
#[inline(never)]
fn add_wait(waits: &mut Waits, waiter: &Waiter, position: Position, all: &Positions<Queued>) {
    let names_of = |position| Some(all.get(position)?.waiter.names.clone());
    waits.insert(waiter.names.clone(), position, names_of);
}

/// How often each connection waits.
fn count_clients(waiters: &Positions<Queued>) -> HashMap<u64, usize> {
    let waiters = waiters.values().map(|queued| &queued.waiter);
    let mut clients = HashMap::default();
    for waiter in waiters.filter(|waiter| waiter.stand.is_blocked()) {
        *clients.entry(waiter.client_id).or_default() += 1;
    }
    clients
}
