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
//! Each waiter, holder and name is looked at once, and none where nobody has a session or where nobody
//! waits for the connection that begins. To read a lock costs more than all the rest. Of a name that
//! somebody waits for it is recorded who holds it; where all who wait there and are looked at want it
//! exclusively, and none of them holds it, all that counts is how many are tied to whom: the sessions tell.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use smallvec::SmallVec;

use super::lock_table::Waiting;
use crate::state::queue::{KnownQueue, Position, Queues, Waiter};
use crate::transaction::Transaction;
use crate::values::holder::{Holder, Mode};
use crate::values::name::{Name, Names};
use crate::values::request::Request;
use crate::values::token::Token;

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
    /// Whether this wait would close a circle of connections that wait for each other's sessions.
    pub(super) fn closes_circle(
        &mut self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> bool {
        let client_id = newcomer.client_id;
        let is_waited_for = tx.sessions.has_client(client_id) || newcomer.rank != Rank::Last;
        if tx.sessions.is_empty() || !is_waited_for || !self.may_be_stuck(newcomer, tx) {
            return false;
        }
        let search = self.dependants(newcomer, tx);
        tx.steps += 1 + search.found.len() as u64;
        let mut graph = Graph::new(newcomer, &search);
        graph.is_first_hindered(tx) && {
            let is_settled = tx.nothing_touched && !self.is_anything_due(tx.steady_ms());
            graph.read(&search, is_settled, tx);
            graph.is_first_stuck()
        }
    }

    /// Whether a lease may have ended that wasn't looked at yet.
    fn is_anything_due(&self, steady_ms: u64) -> bool {
        self.schedule.next_ms().is_some_and(|ms| ms <= steady_ms)
    }

    /// Whether anybody waits whom a newcomer would wait for, as one who holds or as one before it.
    fn may_be_stuck(&mut self, newcomer: &Newcomer<'_>, tx: &mut Transaction<'_, '_, '_>) -> bool {
        newcomer.names.iter().any(|name| {
            let id = tx.entry(name);
            let is_queued_for = newcomer.rank != Rank::First && self.queues.has_queue(name);
            let Some(lock) = tx.lock(id).filter(|_| !is_queued_for) else {
                return is_queued_for;
            };
            let mut holders = lock.holders().iter();
            holders.any(|own| {
                let client_id = tx.sessions.client_of(own.session);
                client_id.is_some_and(|id| id == newcomer.client_id || self.queues.waits(id))
            })
        })
    }

    /// All who wait for a newcomer, directly or not.
    fn dependants<'q>(
        &'q self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Search<'q> {
        let mut search = Search::new(&self.queues, newcomer.older);
        search.visit_ties_of(0, newcomer.client_id, tx);
        for name in newcomer.names {
            match newcomer.rank {
                Rank::First => search.visit_name(name, None),
                Rank::At(position) => search.visit_name(name, Some(position)),
                Rank::Last => {}
            }
        }
        let mut next = 0;
        while let Some((position, waiter)) = search.found.get(next).copied() {
            next += 1;
            search.visit_ties_of(next, waiter.client_id, tx);
            for queue in waiter
                .names
                .iter()
                .filter_map(|name| self.queues.known(name))
            {
                search.stood.push(queue);
                search.visit(queue, Some(position));
            }
        }
        search
    }
}

/// The search for those who wait for somebody.
struct Search<'q> {
    queues: &'q Queues,
    /// Whose wait doesn't count.
    except: Option<Position>,
    found: Vec<(Position, &'q Waiter)>,
    /// The queues in which they stand, those of the first one first: one for each of their names.
    stood: Vec<KnownQueue<'q>>,
    /// Who was found, by the number of its position.
    seen: Vec<bool>,
    /// Behind whom each queue was looked through, by its number; `None`: all of it.
    visited: HashMap<usize, Option<Position>>,
    /// Who has something tied to it where somebody waits: the newcomer, which is 0, or one found, from 1
    /// on; and the number of the queue there. Not of those who have so much tied to them that it wasn't
    /// looked through.
    ties: Vec<(usize, usize)>,
    knows_all_ties: bool,
}

impl<'q> Search<'q> {
    fn new(queues: &'q Queues, except: Option<Position>) -> Self {
        Self {
            queues,
            except,
            found: Vec::new(),
            stood: Vec::new(),
            seen: Vec::new(),
            visited: HashMap::default(),
            ties: Vec::new(),
            knows_all_ties: true,
        }
    }

    fn visit_name(&mut self, name: &Name, front: Option<Position>) {
        if let Some(queue) = self.queues.known(name) {
            self.visit(queue, front);
        }
    }

    /// Finds those in a queue who stand behind `front`; `None`: all.
    fn visit(&mut self, queue: KnownQueue<'q>, front: Option<Position>) {
        let back = match self.visited.get(&queue.number()) {
            Some(visited) if *visited <= front => return,
            Some(visited) => *visited,
            None => None,
        };
        for position in queue.between(front, back) {
            self.find(position);
        }
        self.visited.insert(queue.number(), front);
    }

    fn find(&mut self, position: Position) {
        let number = position.number();
        let Some(waiter) = self.queues.at(position) else {
            return;
        };
        // A place goes if nobody keeps it: it holds nobody up for ever.
        if !waiter.stand.is_blocked() || Some(position) == self.except {
            return;
        }
        if self.seen.len() <= number {
            self.seen.resize(number + 1, false);
        }
        if let Some(seen @ false) = self.seen.get_mut(number) {
            *seen = true;
            self.found.push((position, waiter));
        }
    }

    /// Finds those who wait where something is tied to the connection of `whose`. Looks through its ties or
    /// through the names that somebody waits for, whichever are fewer.
    fn visit_ties_of(&mut self, whose: usize, client_id: u64, tx: &mut Transaction<'_, '_, '_>) {
        let ties = tx.sessions.count_of(client_id);
        if ties == 0 {
            return;
        }
        let queues = self.queues;
        if ties <= queues.names().len() {
            for name in tx.sessions.names_of(client_id) {
                if let Some(queue) = queues.known(&name) {
                    self.ties.push((whose, queue.number()));
                    self.visit(queue, None);
                }
            }
            return;
        }
        self.knows_all_ties = false;
        for name in queues.names() {
            let id = tx.entry(name);
            let is_tied = tx.lock(id).is_some_and(|lock| {
                let mut holders = lock.holders().iter();
                holders.any(|own| tx.sessions.client_of(own.session) == Some(client_id))
            });
            if is_tied {
                self.visit_name(name, None);
            }
        }
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
    rank: Rank,
    names: &'a Names,
    request: &'a Request,
    /// What it lacks: the needs that aren't met.
    lacks: usize,
    is_free: bool,
    /// The numbers of its names' places.
    places: SmallVec<[usize; 1]>,
    held: SmallVec<[Tied; 1]>,
    /// Whether its connection has begun another wait since: what is tied to it is then that one's.
    is_outdated: bool,
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
    /// Who holds it, as far as that is recorded.
    recorded: &'a [Token],
    /// Whether it takes more to know who is in whose way than what is recorded and is tied here.
    needs_look: bool,
    /// How many grants the sessions say are tied to those who are stuck.
    ties: usize,
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

impl Place<'_> {
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
    by_client: HashMap<u64, usize>,
    places: Vec<Place<'a>>,
    /// The places of names that have a queue, by its number.
    by_queue: HashMap<usize, usize>,
    /// The places of all others.
    by_name: HashMap<&'a Name, usize>,
    /// Who was found to be free, and what it holds not yet let go.
    freed: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(newcomer: &Newcomer<'a>, search: &Search<'a>) -> Self {
        let many = 1 + search.found.len();
        let mut graph = Self {
            stuck: Vec::with_capacity(many),
            by_client: HashMap::with_capacity_and_hasher(many, RandomState::default()),
            places: Vec::new(),
            by_queue: HashMap::default(),
            by_name: HashMap::default(),
            freed: Vec::new(),
        };
        let Newcomer {
            client_id,
            names,
            request,
            rank,
            ..
        } = newcomer;
        graph.push(*client_id, *rank, names, request);
        for (position, waiter) in &search.found {
            let rank = Rank::At(*position);
            graph.push(waiter.client_id, rank, &waiter.names, &waiter.request);
        }
        graph
    }

    fn push(&mut self, client_id: u64, rank: Rank, names: &'a Names, request: &'a Request) {
        let outdated = self.by_client.insert(client_id, self.stuck.len());
        if let Some(outdated) = outdated.and_then(|number| self.stuck.get_mut(number)) {
            outdated.is_outdated = true;
        }
        self.stuck.push(Stuck {
            rank,
            names,
            request,
            lacks: 0,
            is_free: false,
            places: SmallVec::new(),
            held: SmallVec::new(),
            is_outdated: false,
        });
    }

    /// Whether the first waits for any of the others, or for itself: most often it doesn't, and then their
    /// names need no look.
    fn is_first_hindered(&self, tx: &mut Transaction<'_, '_, '_>) -> bool {
        let Some((first, others)) = self.stuck.split_first() else {
            return false;
        };
        let (names, rank) = (first.names, first.rank);
        let is_before = |other: &Stuck<'_>| other.rank < rank;
        let mut before = others.iter().filter(|other| is_before(other));
        if before.any(|other| other.names.iter().any(|name| names.contains(name))) {
            return true;
        }
        names.iter().any(|name| {
            let id = tx.entry(name);
            let mut holders = tx
                .lock(id)
                .into_iter()
                .flat_map(|lock| lock.holders().iter());
            holders.any(|own| {
                let client_id = tx.sessions.client_of(own.session);
                client_id.is_some_and(|id| self.by_client.contains_key(&id))
            })
        })
    }

    /// Sets free who can be, and tells whether the first is none of them.
    fn is_first_stuck(&mut self) -> bool {
        for place in 0..self.places.len() {
            self.meet_needs_at(place);
        }
        while let Some(number) = self.freed.pop() {
            if number == 0 {
                return false;
            }
            self.let_go(number);
        }
        true
    }

    /// Finds out who holds the places and who stands there. `is_settled`: what is recorded of the holders
    /// holds.
    fn read(&mut self, search: &Search<'a>, is_settled: bool, tx: &mut Transaction<'_, '_, '_>) {
        let mut stood = search.stood.iter().copied();
        for number in 0..self.stuck.len() {
            let Some(names) = self.stuck.get(number).map(|stuck| stuck.names) else {
                continue;
            };
            let places = names.iter().map(|name| {
                let queue = match number {
                    0 => search.queues.known(name),
                    _ => stood.next(),
                };
                self.stand(number, name, queue, tx)
            });
            let places = places.collect();
            if let Some(stuck) = self.stuck.get_mut(number) {
                stuck.places = places;
            }
        }
        if is_settled && search.knows_all_ties {
            self.tie(search);
        } else {
            let places = self.places.iter_mut();
            places.for_each(|place| place.needs_look = true);
        }
        for number in 0..self.places.len() {
            self.look(number, tx);
        }
        let ranks: Vec<Rank> = self.stuck.iter().map(|stuck| stuck.rank).collect();
        for place in &mut self.places {
            place.queue.sort_by_key(|(number, _)| ranks.get(*number));
            let alone = |(at, (_, need)): (usize, &(usize, Need))| {
                matches!(need, Need::Alone { .. }).then_some(at)
            };
            place.alone = place.queue.iter().enumerate().filter_map(alone).collect();
        }
        let lacks = |(number, stuck): (usize, &Stuck<'a>)| (stuck.lacks == 0).then_some(number);
        let free = self.stuck.iter().enumerate().filter_map(lacks);
        self.freed.extend(free);
    }

    /// Has somebody stand in the queue of a name. The name's place.
    fn stand(
        &mut self,
        number: usize,
        name: &'a Name,
        queue: Option<KnownQueue<'a>>,
        tx: &Transaction<'_, '_, '_>,
    ) -> usize {
        let place_number = self.place(name, queue, tx);
        let stuck = self.stuck.get(number);
        let place = self.places.get_mut(place_number);
        if let (Some(stuck), Some(place)) = (stuck, place) {
            let request = stuck.request;
            place.needs_look |=
                request.mode == Mode::Shared || place.recorded.contains(&request.token);
            place.queue.push((number, Need::Turn));
        }
        place_number
    }

    /// The place of a name.
    fn place(
        &mut self,
        name: &'a Name,
        queue: Option<KnownQueue<'a>>,
        tx: &Transaction<'_, '_, '_>,
    ) -> usize {
        let known = match queue {
            Some(queue) => self.by_queue.entry(queue.number()).or_insert(usize::MAX),
            None => self.by_name.entry(name).or_insert(usize::MAX),
        };
        if *known != usize::MAX {
            return *known;
        }
        *known = self.places.len();
        let recorded = queue.map_or(&[][..], KnownQueue::holders);
        self.places.push(Place {
            name,
            recorded,
            needs_look: recorded.is_empty() || tx.has_read(name),
            ties: 0,
            mode: None,
            holders: 0,
            permits: 0,
            limits: BTreeMap::new(),
            queue: SmallVec::new(),
            passed: 0,
            alone: Vec::new(),
        });
        *known
    }

    /// Has those who are stuck hold what is tied to them, where that is all there is to know.
    fn tie(&mut self, search: &Search<'_>) {
        let ties = search.ties.iter();
        let places = ties.filter_map(|(whose, queue)| Some((*whose, *self.by_queue.get(queue)?)));
        let places: Vec<(usize, usize)> = places.collect();
        for (whose, number) in &places {
            let stuck = self.stuck.get(*whose);
            if let Some(place) = self.places.get_mut(*number) {
                place.ties += usize::from(stuck.is_some_and(|stuck| !stuck.is_outdated));
                place.needs_look |= place.ties > place.recorded.len();
            }
        }
        for (whose, number) in places {
            let (Some(stuck), Some(place)) =
                (self.stuck.get_mut(whose), self.places.get_mut(number))
            else {
                continue;
            };
            if !place.needs_look && !stuck.is_outdated {
                place.hold(stuck, number, 0, 1);
            }
        }
    }

    /// Finds out who holds a place, where that isn't known yet, and what those need who stand there.
    fn look(&mut self, number: usize, tx: &mut Transaction<'_, '_, '_>) {
        let Some(place) = self.places.get_mut(number) else {
            return;
        };
        let id = place.needs_look.then(|| tx.entry(place.name));
        let lock = id.and_then(|id| tx.lock(id));
        let by_client = &self.by_client;
        let tied_to = |own: &Holder| {
            let client_id = tx.sessions.client_of(own.session)?;
            by_client.get(&client_id).copied()
        };
        if let Some(lock) = lock {
            place.mode = Some(lock.mode());
            for own in lock.holders().iter() {
                if let Some(stuck) = tied_to(own).and_then(|holder| self.stuck.get_mut(holder)) {
                    place.hold(stuck, number, own.limit, own.permits);
                }
            }
        }
        for (waiter, need) in &mut place.queue {
            let Some(stuck) = self.stuck.get_mut(*waiter) else {
                continue;
            };
            let own = lock.and_then(|lock| Some((lock.mode(), lock.holder(&stuck.request.token)?)));
            *need = match own {
                None => Need::Turn,
                Some((Mode::Shared, own)) if stuck.request.mode == Mode::Exclusive => {
                    Need::Alone { own: tied_to(own) }
                }
                Some(_) => Need::Met,
            };
            stuck.lacks += usize::from(*need != Need::Met);
        }
    }

    /// Meets the needs of those at a place whose turn it is, or who would be alone.
    fn meet_needs_at(&mut self, number: usize) {
        let Some(place) = self.places.get_mut(number) else {
            return;
        };
        let mut met: Vec<usize> = Vec::new();
        while let Some((waiter, need)) = place.queue.get_mut(place.passed) {
            let waiter = *waiter;
            let Some(stuck) = self.stuck.get(waiter) else {
                return;
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
    }

    /// Somebody will be granted, so that its place in the queues and what is tied to it will go.
    fn let_go(&mut self, number: usize) {
        let Some(stuck) = self.stuck.get_mut(number) else {
            return;
        };
        stuck.is_free = true;
        // Nothing is tied to one that is outdated.
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
            self.meet_needs_at(place);
        }
    }
}
