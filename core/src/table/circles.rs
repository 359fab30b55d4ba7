//! Circles of connections that wait for each other's sessions.
//!
//! A session doesn't end while its connection lives, and a connection that waits gives nothing up. So
//! connections that wait for each other would do so for ever, where everything else that is waited for
//! ends by itself, as leases do. A wait that would close such a circle is found as it begins.
//!
//! Who waits for whom is known from the queues and the holders. Of those who wait, directly or not, for
//! the connection that begins to wait, all are taken for stuck at first, and it with them; all others
//! will be granted at some time. Then those are set free who would be granted if all went that isn't tied
//! to somebody who is stuck: a lock's other holders, and who stands before them in a queue. What they
//! hold will go, which may set others free. If the connection that begins is stuck in the end, there is
//! a circle, and nobody outside it can open it.
//!
//! 1. A queue records the lock as it was settled last. The search reads a key only if its lock isn't
//!    recorded, because a key of another slot than the running command's can't be read.
//! 2. A lock that is neither recorded nor readable holds nobody up: the search never refuses a wait by a guess.
//! 3. Each waiter, tie and pair of a waiter and a name is looked at once. All of that is work, which
//!    [`MOST_WORK`] bounds: a search that needs more is given up, and the wait begins.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use smallvec::SmallVec;

use super::lock_table::Waiting;
use crate::state::queue::{KnownQueue, Position, Queues, Waiter};
use crate::transaction::{EntryId, Transaction};
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::moment::Moment;
use crate::values::name::{Name, Names};
use crate::values::request::Request;
use crate::values::session_id::SessionId;

/// The most work of one search.
///
/// perf: a unit takes 30 to 50 ns of one core, so a search takes at most 15 ms. A circle of 10,000 connections
/// that hold one key each takes 280,000 units.
const MOST_WORK: u64 = 300_000;

/// The work that counts as one step of the operation.
const WORK_OF_A_STEP: u64 = 16;

/// The work to look a session up and its name, which are found in tables of their own.
const WORK_OF_A_TIE: u64 = 8;

/// The work to look at a name for the first time, and at its lock.
const WORK_OF_A_NAME: u64 = 8;

/// The work to look at a waiter for the first time.
const WORK_OF_A_WAITER: u64 = 4;

/// The work to have a grant hold a name.
const WORK_OF_A_GRANT: u64 = 3;

/// How many entries of a list are cleared with one unit of work.
const CLEARED_AT_ONCE: usize = 32;

/// That a queue has no spot yet. There are fewer spots than [`MOST_WORK`].
const NO_SPOT: u32 = u32::MAX;

/// A search took more work than it may.
struct GivenUp;

/// The work that a search has done.
#[derive(Default)]
struct Work(u64);

impl Work {
    fn add(&mut self, work: u64) -> Result<(), GivenUp> {
        self.0 += work;
        if self.0 > MOST_WORK {
            Err(GivenUp)
        } else {
            Ok(())
        }
    }
}

/// Where somebody stands in the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Before everybody.
    First,
    /// At a position that is taken.
    At(Position),
    /// Behind everybody.
    Last,
}

/// Somebody who is to begin to wait.
pub(super) struct Newcomer<'a> {
    /// Its connection.
    pub(super) client_id: u64,
    pub(super) names: &'a Names,
    pub(super) request: &'a Request,
    pub(super) rank: Rank,
    /// Its token's older wait, which ends as it begins.
    pub(super) older: Option<Position>,
}

impl Waiting {
    /// Whether this wait would close a circle of connections that wait for each other's sessions, as far
    /// as [`MOST_WORK`] tells.
    pub(super) fn closes_circle(
        &mut self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> bool {
        let client_id = newcomer.client_id;
        let is_waited_for = tx.sessions.has_client(client_id) || newcomer.rank != Rank::Last;
        if tx.sessions.is_empty() || !is_waited_for {
            return false;
        }
        let mut work = Work::default();
        let found = self.is_in_circle(newcomer, &mut work, tx);
        tx.steps += work.0 / WORK_OF_A_STEP;
        found.unwrap_or_else(|GivenUp| {
            self.counters.deadlock_searches_given_up += 1;
            false
        })
    }

    fn is_in_circle(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<bool, GivenUp> {
        if !self.may_be_stuck(newcomer, work, tx)? {
            return Ok(false);
        }
        let search = self.dependants(newcomer, work, tx)?;
        // Most often the newcomer waits for none of those found.
        if !search.is_newcomer_hindered {
            return Ok(false);
        }
        let mut graph = Graph::new(newcomer, search);
        graph.read(newcomer, work, tx)?;
        graph.is_first_stuck(work)
    }

    /// Whether anybody waits whom a newcomer would wait for, as one who holds or as one before it.
    fn may_be_stuck(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<bool, GivenUp> {
        for name in newcomer.names {
            work.add(WORK_OF_A_NAME)?;
            if newcomer.rank != Rank::First && self.queues.has_queue(name) {
                return Ok(true);
            }
            let id = tx.entry(name);
            let Some(lock) = tx.lock(id) else { continue };
            for own in lock.holders().iter() {
                work.add(1)?;
                let client_id = tx.sessions.client_of(own.session);
                let is_waiting = |id| id == newcomer.client_id || self.queues.waits(id);
                if client_id.is_some_and(is_waiting) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// All who wait for a newcomer, directly or not.
    fn dependants<'q>(
        &'q self,
        newcomer: &'q Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Search<'q>, GivenUp> {
        let mut search = Search::new(&self.queues, newcomer, work)?;
        search.visit_ties_of(0, newcomer.client_id, work, tx)?;
        for spot in 0..newcomer.names.count() {
            match newcomer.rank {
                Rank::First => search.visit(spot, None, work)?,
                Rank::At(position) => search.visit(spot, Some(position), work)?,
                Rank::Last => {}
            }
        }
        let mut next = 0;
        while let Some((position, waiter)) = search.found.get(next).copied() {
            next += 1;
            search.visit_ties_of(next, waiter.client_id, work, tx)?;
            search.visit_names_of(position, waiter, work)?;
        }
        Ok(search)
    }
}

/// The lock of a name, where the search knows it from.
#[derive(Clone, Copy)]
enum Source<'q> {
    /// The lock as it was settled last. Leases may have ended since.
    Recorded(&'q Lock),
    /// The operation has read it.
    Read(EntryId),
    Unknown,
}

impl<'q> Source<'q> {
    fn of(
        name: &Name,
        queue: Option<KnownQueue<'q>>,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Self {
        if tx.has_read(name) {
            return Self::Read(tx.entry(name));
        }
        let is_known = tx.nothing_touched || !tx.environment.store.is_touched(name);
        if let Some(lock) = queue.filter(|_| is_known).and_then(KnownQueue::lock) {
            return Self::Recorded(lock);
        }
        // All names of the newcomer are in one slot.
        let own = newcomer.names.iter().next();
        if own.is_some_and(|own| tx.environment.store.can_read(name, own)) {
            return Self::Read(tx.entry(name));
        }
        Self::Unknown
    }

    /// The lock; `None` if it isn't known, and for another type's key.
    fn lock<'a>(self, tx: &'a Transaction<'_, '_, '_>) -> Option<&'a Lock>
    where
        'q: 'a,
    {
        match self {
            Self::Recorded(lock) => Some(lock),
            Self::Read(id) => tx.lock(id),
            Self::Unknown => None,
        }
    }

    /// Whether a grant is in force at the moment, or is renewed as soon as somebody looks at it.
    fn is_in_force(self, own: &Holder, moment: Moment, tx: &Transaction<'_, '_, '_>) -> bool {
        !matches!(self, Self::Recorded(_))
            || own.deadline_ms > moment.ms()
            || tx.sessions.renewal(own, moment).is_some()
    }
}

/// A name that somebody needs who was found, or where something is tied to one.
struct Spot<'q> {
    name: &'q Name,
    queue: Option<KnownQueue<'q>>,
    /// Behind whom its queue was looked through, if it was; `None`: all of it.
    visited: Option<Option<Position>>,
}

/// A session of one who is stuck, where somebody waits.
struct Tie {
    /// The newcomer, which is 0, or one found, from 1 on.
    whose: usize,
    session: SessionId,
    /// The number of its name's spot.
    spot: usize,
}

/// The search for those who wait for somebody.
struct Search<'q> {
    queues: &'q Queues,
    newcomer: &'q Newcomer<'q>,
    found: Vec<(Position, &'q Waiter)>,
    /// The spots where they stand: one for each of their names, in this order.
    stood: Vec<usize>,
    /// Who was found, by the number of its position.
    seen: Vec<bool>,
    /// The newcomer's names first.
    spots: Vec<Spot<'q>>,
    /// The spots of names that have a queue, by its number.
    by_queue: Vec<u32>,
    ties: Vec<Tie>,
    /// Whether the newcomer waits for any of those found, or for itself.
    is_newcomer_hindered: bool,
}

impl<'q> Search<'q> {
    fn new(
        queues: &'q Queues,
        newcomer: &'q Newcomer<'_>,
        work: &mut Work,
    ) -> Result<Self, GivenUp> {
        let mut search = Self {
            queues,
            newcomer,
            found: Vec::new(),
            stood: Vec::new(),
            seen: Vec::new(),
            spots: Vec::new(),
            by_queue: Vec::new(),
            ties: Vec::new(),
            is_newcomer_hindered: false,
        };
        for name in newcomer.names {
            work.add(1)?;
            match queues.known(name) {
                Some(queue) => {
                    search.spot_of(queue, work)?;
                }
                None => search.spots.push(Spot {
                    name,
                    queue: None,
                    visited: None,
                }),
            }
        }
        Ok(search)
    }

    /// The spot of a name that has a queue.
    fn spot_of(&mut self, queue: KnownQueue<'q>, work: &mut Work) -> Result<usize, GivenUp> {
        let number = queue.number();
        if let Some(more) = (number + 1).checked_sub(self.by_queue.len()) {
            work.add((more / CLEARED_AT_ONCE) as u64)?;
            self.by_queue.resize(number + 1, NO_SPOT);
        }
        let Some(spot) = self.by_queue.get_mut(number) else {
            return Ok(0);
        };
        if *spot == NO_SPOT {
            work.add(WORK_OF_A_NAME)?;
            *spot = self.spots.len() as u32;
            self.spots.push(Spot {
                name: queue.name(),
                queue: Some(queue),
                visited: None,
            });
        }
        Ok(*spot as usize)
    }

    fn is_newcomers(&self, spot: usize) -> bool {
        spot < self.newcomer.names.count()
    }

    /// Finds those in a spot's queue who stand behind `front`; `None`: all.
    fn visit(
        &mut self,
        spot: usize,
        front: Option<Position>,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        let Some(spot) = self.spots.get_mut(spot) else {
            return Ok(());
        };
        let back = match spot.visited {
            Some(visited) if visited <= front => return Ok(()),
            Some(visited) => visited,
            None => None,
        };
        spot.visited = Some(front);
        let Some(queue) = spot.queue else {
            return Ok(());
        };
        for position in queue.between(front, back) {
            work.add(1)?;
            self.find(position, work)?;
        }
        Ok(())
    }

    fn find(&mut self, position: Position, work: &mut Work) -> Result<(), GivenUp> {
        let number = position.number();
        if self.seen.len() <= number {
            self.seen.resize(number + 1, false);
        }
        let Some(seen @ false) = self.seen.get_mut(number) else {
            return Ok(());
        };
        *seen = true;
        work.add(WORK_OF_A_WAITER)?;
        let waiter = self.queues.at(position);
        // A place goes if nobody keeps it: it holds nobody up for ever.
        let waiter = waiter.filter(|waiter| waiter.stand.is_blocked());
        if let Some(waiter) = waiter.filter(|_| Some(position) != self.newcomer.older) {
            self.found.push((position, waiter));
        }
        Ok(())
    }

    /// Finds those who stand behind one found, at any of its names.
    fn visit_names_of(
        &mut self,
        position: Position,
        waiter: &'q Waiter,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        let is_before = Rank::At(position) < self.newcomer.rank;
        for name in &waiter.names {
            work.add(1)?;
            let Some(queue) = self.queues.known(name) else {
                continue;
            };
            let spot = self.spot_of(queue, work)?;
            self.is_newcomer_hindered |= is_before && self.is_newcomers(spot);
            self.stood.push(spot);
            self.visit(spot, Some(position), work)?;
        }
        Ok(())
    }

    /// Finds those who wait where something is tied to the connection of `whose`. Looks through its ties or
    /// through the queues, whichever are fewer.
    fn visit_ties_of(
        &mut self,
        whose: usize,
        client_id: u64,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let ties = tx.sessions.count_of(client_id);
        if ties > self.queues.names().len() {
            return self.visit_queues_with(whose, client_id, work, tx);
        }
        for (session, name) in tx.sessions.ties_of(client_id) {
            work.add(WORK_OF_A_TIE)?;
            let spot = match self.queues.known(&name) {
                Some(queue) => self.spot_of(queue, work)?,
                None => match self.newcomer.names.as_slice().binary_search(&name) {
                    Ok(spot) => spot,
                    Err(_) => continue,
                },
            };
            self.tie(whose, session, spot, work)?;
        }
        Ok(())
    }

    /// As [`Search::visit_ties_of`], through the queues.
    fn visit_queues_with(
        &mut self,
        whose: usize,
        client_id: u64,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let (queues, newcomer) = (self.queues, self.newcomer);
        let own = newcomer.names.iter().enumerate();
        let own = own.filter(|(_, name)| !queues.has_queue(name));
        let own = own.map(|(spot, name)| (Some(spot), name, None));
        let queued = queues
            .all_known()
            .map(|queue| (None, queue.name(), Some(queue)));
        for (spot, name, queue) in own.chain(queued) {
            work.add(WORK_OF_A_NAME)?;
            let source = Source::of(name, queue, newcomer, tx);
            let Some(lock) = source.lock(tx) else {
                continue;
            };
            for own in lock.holders().iter() {
                work.add(1)?;
                if tx.sessions.client_of(own.session) == Some(client_id) {
                    let spot = match (spot, queue) {
                        (Some(spot), _) => spot,
                        (None, Some(queue)) => self.spot_of(queue, work)?,
                        (None, None) => continue,
                    };
                    self.tie(whose, own.session, spot, work)?;
                }
            }
        }
        Ok(())
    }

    fn tie(
        &mut self,
        whose: usize,
        session: SessionId,
        spot: usize,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        self.is_newcomer_hindered |= self.is_newcomers(spot);
        self.ties.push(Tie {
            whose,
            session,
            spot,
        });
        self.visit(spot, None, work)
    }
}

/// What one who waits needs of one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Its turn, and that the holders admit it.
    Turn,
    /// That no other holder is left: its token holds already. The number is that of the waiter to whom
    /// that grant is tied.
    Alone { own: Option<usize> },
    /// Nothing more.
    Met,
}

/// One who waits, and what is tied to its connection.
struct Stuck<'a> {
    client_id: u64,
    rank: Rank,
    request: &'a Request,
    /// What it lacks: the needs that aren't met.
    lacks: usize,
    is_free: bool,
    /// The numbers of its names' places.
    places: SmallVec<[usize; 1]>,
    held: SmallVec<[Tied; 1]>,
}

/// A grant that is tied to the connection of one who waits.
struct Tied {
    /// The number of its name's place.
    place: usize,
    limit: u32,
    permits: u32,
}

/// A name that somebody needs who is stuck.
struct Place<'a> {
    name: &'a Name,
    known: Option<KnownQueue<'a>>,
    mode: Option<Mode>,
    /// How many grants are tied to those who are stuck.
    holders: usize,
    /// How many permits these are.
    permits: u64,
    /// Their limits, and how many have each.
    limits: BTreeMap<u32, usize>,
    /// Who waits here, in the order of the queue.
    queue: SmallVec<[(usize, Need); 1]>,
    /// How many of those are free, or will be.
    passed: usize,
    /// Those of the queue whose token holds here.
    alone: Vec<usize>,
}

impl<'a> Place<'a> {
    fn new(spot: Spot<'a>) -> Self {
        Self {
            name: spot.name,
            known: spot.queue,
            mode: None,
            holders: 0,
            permits: 0,
            limits: BTreeMap::new(),
            queue: SmallVec::new(),
            passed: 0,
            alone: Vec::new(),
        }
    }

    /// Finds out what those need who stand here. Where nothing is known of the lock they need nothing.
    fn look(
        &mut self,
        source: Source<'_>,
        by_client: &HashMap<u64, usize>,
        all: &mut [Stuck<'_>],
        work: &mut Work,
        tx: &Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let lock = source.lock(tx);
        self.mode = lock.map(Lock::mode);
        for (waiter, need) in &mut self.queue {
            work.add(1)?;
            let Some(stuck) = all.get_mut(*waiter) else {
                continue;
            };
            let request = stuck.request;
            *need = lock.map_or(Need::Met, |lock| match lock.holder(&request.token) {
                None => Need::Turn,
                Some(own) if lock.mode() == Mode::Shared && request.mode == Mode::Exclusive => {
                    let client_id = tx.sessions.client_of(own.session);
                    let own = client_id.and_then(|id| by_client.get(&id).copied());
                    Need::Alone { own }
                }
                Some(_) => Need::Met,
            });
            stuck.lacks += usize::from(*need != Need::Met);
        }
        Ok(())
    }

    /// Has those who stand here do so in the order of their ranks.
    fn line_up(&mut self, ranks: &[Rank]) {
        self.queue.sort_by_key(|(number, _)| ranks.get(*number));
        let queue = self.queue.iter().enumerate();
        let alone = queue.filter(|(_, (_, need))| matches!(need, Need::Alone { .. }));
        self.alone = alone.map(|(at, _)| at).collect();
    }

    /// Has somebody who is stuck hold here.
    fn hold(&mut self, stuck: &mut Stuck<'_>, number: usize, limit: u32, permits: u32) {
        stuck.held.push(Tied {
            place: number,
            limit,
            permits,
        });
        self.holders += 1;
        self.permits += u64::from(permits);
        if limit > 0 {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Whether those who stay admit a request.
    fn admits(&self, request: &Request) -> bool {
        if self.holders == 0 {
            return true;
        }
        let own = (request.limit > 0).then_some(request.limit);
        let smallest = self.limits.keys().copied().chain(own).min();
        self.mode == Some(Mode::Shared)
            && request.mode == Mode::Shared
            && smallest.is_none_or(|most| self.permits + u64::from(request.permits) <= most.into())
    }
}

/// Those who may be stuck, and the names that they need. The first is the newcomer.
struct Graph<'a> {
    stuck: Vec<Stuck<'a>>,
    /// By its connection; the last one, should it be there twice.
    by_client: HashMap<u64, usize>,
    /// In the order of the search's spots.
    places: Vec<Place<'a>>,
    ties: Vec<Tie>,
    /// Who was found to be free, and what it holds not yet let go.
    freed: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(newcomer: &Newcomer<'a>, search: Search<'a>) -> Self {
        let places = search.spots.into_iter().map(Place::new);
        let many = 1 + search.found.len();
        let mut graph = Self {
            stuck: Vec::with_capacity(many),
            by_client: HashMap::with_capacity_and_hasher(many, RandomState::default()),
            places: places.collect(),
            ties: search.ties,
            freed: Vec::new(),
        };
        let Newcomer {
            client_id,
            names,
            request,
            rank,
            ..
        } = newcomer;
        let mut stood = search.stood.into_iter();
        let own = (0..names.count()).collect();
        graph.push(*client_id, *rank, request, own);
        for (position, waiter) in search.found {
            let rank = Rank::At(position);
            let places = stood.by_ref().take(waiter.names.count()).collect();
            graph.push(waiter.client_id, rank, &waiter.request, places);
        }
        graph
    }

    /// Adds one who stands at these places.
    fn push(
        &mut self,
        client_id: u64,
        rank: Rank,
        request: &'a Request,
        places: SmallVec<[usize; 1]>,
    ) {
        let number = self.stuck.len();
        self.by_client.insert(client_id, number);
        for place in &places {
            if let Some(place) = self.places.get_mut(*place) {
                place.queue.push((number, Need::Turn));
            }
        }
        self.stuck.push(Stuck {
            client_id,
            rank,
            request,
            lacks: 0,
            is_free: false,
            places,
            held: SmallVec::new(),
        });
    }

    /// Sets free who can be, and tells whether the first is none of them.
    fn is_first_stuck(&mut self, work: &mut Work) -> Result<bool, GivenUp> {
        for place in 0..self.places.len() {
            self.meet_needs_at(place, work)?;
        }
        while let Some(number) = self.freed.pop() {
            if number == 0 {
                return Ok(false);
            }
            self.let_go(number, work)?;
        }
        Ok(true)
    }

    /// Finds out who holds the places, and what those need who stand there.
    fn read(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let mut sources = Vec::with_capacity(self.places.len());
        for place in &self.places {
            work.add(1)?;
            sources.push(Source::of(place.name, place.known, newcomer, tx));
        }
        for (place, source) in self.places.iter_mut().zip(&sources) {
            place.look(*source, &self.by_client, &mut self.stuck, work, tx)?;
        }
        self.hold(&sources, work, tx)?;
        let ranks: Vec<Rank> = self.stuck.iter().map(|stuck| stuck.rank).collect();
        for place in &mut self.places {
            place.line_up(&ranks);
        }
        let lacks = |(number, stuck): (usize, &Stuck<'a>)| (stuck.lacks == 0).then_some(number);
        let free = self.stuck.iter().enumerate().filter_map(lacks);
        self.freed.extend(free);
        Ok(())
    }

    /// Has those who are stuck hold what is tied to them.
    fn hold(
        &mut self,
        sources: &[Source<'_>],
        work: &mut Work,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let moment = tx.moment();
        for tie in &self.ties {
            work.add(WORK_OF_A_GRANT)?;
            let (Some(stuck), Some(place), Some(source)) = (
                self.stuck.get_mut(tie.whose),
                self.places.get_mut(tie.spot),
                sources.get(tie.spot),
            ) else {
                continue;
            };
            // All ties of a client that waits twice belong to its last wait.
            if self.by_client.get(&stuck.client_id) != Some(&tie.whose) {
                continue;
            }
            let lock = source.lock(tx);
            let own = lock.and_then(|lock| lock.holders().with_session(tie.session));
            if let Some(own) = own.filter(|own| source.is_in_force(own, moment, tx)) {
                place.hold(stuck, tie.spot, own.limit, own.permits);
            }
        }
        Ok(())
    }

    /// Meets the needs of those at a place whose turn it is, or who would be alone.
    fn meet_needs_at(&mut self, number: usize, work: &mut Work) -> Result<(), GivenUp> {
        let Some(place) = self.places.get_mut(number) else {
            return Ok(());
        };
        let mut met: Vec<usize> = Vec::new();
        while let Some((waiter, need)) = place.queue.get_mut(place.passed) {
            work.add(1)?;
            let waiter = *waiter;
            let Some(stuck) = self.stuck.get(waiter) else {
                break;
            };
            if stuck.is_free {
                place.passed += 1;
                continue;
            }
            let request = stuck.request;
            if *need != Need::Turn || !place.admits(request) {
                break;
            }
            if let Some((_, need)) = place.queue.get_mut(place.passed) {
                *need = Need::Met;
            }
            met.push(waiter);
            break;
        }
        if place.holders <= 1 {
            for at in &place.alone {
                work.add(1)?;
                let Some((waiter, need @ Need::Alone { .. })) = place.queue.get_mut(*at) else {
                    continue;
                };
                let Need::Alone { own } = *need else { continue };
                let own = own.and_then(|own| self.stuck.get(own));
                let is_held = own.is_some_and(|own| !own.is_free);
                if place.holders == usize::from(is_held) {
                    *need = Need::Met;
                    met.push(*waiter);
                }
            }
        }
        for waiter in met {
            let Some(stuck) = self.stuck.get_mut(waiter) else {
                continue;
            };
            stuck.lacks -= 1;
            if stuck.lacks == 0 {
                self.freed.push(waiter);
            }
        }
        Ok(())
    }

    /// Somebody will be granted, so that its place in the queues and what is tied to it will go.
    fn let_go(&mut self, number: usize, work: &mut Work) -> Result<(), GivenUp> {
        let Some(stuck) = self.stuck.get_mut(number) else {
            return Ok(());
        };
        stuck.is_free = true;
        let held = std::mem::take(&mut stuck.held);
        let mut places = std::mem::take(&mut stuck.places);
        for tied in held {
            let Some(place) = self.places.get_mut(tied.place) else {
                continue;
            };
            place.holders -= 1;
            place.permits -= u64::from(tied.permits);
            if let Some(count) = place.limits.get_mut(&tied.limit) {
                *count -= 1;
                if *count == 0 {
                    place.limits.remove(&tied.limit);
                }
            }
            places.push(tied.place);
        }
        for place in places {
            self.meet_needs_at(place, work)?;
        }
        Ok(())
    }
}
