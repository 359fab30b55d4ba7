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
//! waits for the connection that begins.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::lock_table::Waiting;
use crate::state::queue::{Position, Queues, Waiter};
use crate::transaction::Transaction;
use crate::values::holder::Mode;
use crate::values::name::{Name, Names};
use crate::values::request::Request;

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
        &self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction<'_, '_>,
    ) -> bool {
        let client_id = newcomer.client_id;
        let is_waited_for = tx.sessions.has_client(client_id) || newcomer.rank != Rank::Last;
        if tx.sessions.is_empty() || !is_waited_for || !self.may_be_stuck(newcomer, tx) {
            return false;
        }
        let mut graph = Graph::new(newcomer);
        for position in self.dependants(newcomer, tx) {
            if let Some(waiter) = self.queues.at(position) {
                graph.add(position, waiter);
            }
        }
        tx.steps += graph.stuck.len() as u64;
        graph.is_first_hindered(tx) && graph.is_first_stuck(tx)
    }

    /// Whether anybody waits whom a newcomer would wait for, as one who holds or as one before it.
    fn may_be_stuck(&self, newcomer: &Newcomer<'_>, tx: &mut Transaction<'_, '_>) -> bool {
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
    fn dependants(&self, newcomer: &Newcomer<'_>, tx: &mut Transaction<'_, '_>) -> Vec<Position> {
        let mut search = Search::new(&self.queues, newcomer.older);
        search.visit_ties_of(newcomer.client_id, tx);
        for name in newcomer.names {
            match newcomer.rank {
                Rank::First => search.visit(name, None),
                Rank::At(position) => search.visit(name, Some(position)),
                Rank::Last => {}
            }
        }
        let mut next = 0;
        while let Some(position) = search.found.get(next).copied() {
            next += 1;
            let Some(waiter) = self.queues.at(position) else {
                continue;
            };
            search.visit_ties_of(waiter.client_id, tx);
            for name in &waiter.names {
                search.visit(name, Some(position));
            }
        }
        search.found
    }
}

/// The search for those who wait for somebody.
struct Search<'q> {
    queues: &'q Queues,
    /// Whose wait doesn't count.
    except: Option<Position>,
    found: Vec<Position>,
    seen: HashSet<Position>,
    /// Behind whom each queue was looked through; `None`: all of it.
    visited: HashMap<Name, Option<Position>>,
}

impl<'q> Search<'q> {
    fn new(queues: &'q Queues, except: Option<Position>) -> Self {
        Self {
            queues,
            except,
            found: Vec::new(),
            seen: HashSet::new(),
            visited: HashMap::new(),
        }
    }

    /// Finds those in the queue of a name who stand behind `front`; `None`: all.
    fn visit(&mut self, name: &Name, front: Option<Position>) {
        let back = match self.visited.get(name) {
            Some(visited) if *visited <= front => return,
            Some(visited) => *visited,
            None => None,
        };
        for (position, waiter) in self.queues.queue_between(name, front, back) {
            // A place goes if nobody keeps it: it holds nobody up for ever.
            let is_blocked = waiter.stand.is_blocked();
            if is_blocked && Some(position) != self.except && self.seen.insert(position) {
                self.found.push(position);
            }
        }
        self.visited.insert(name.clone(), front);
    }

    /// Finds those who wait where something is tied to a connection. Looks through its ties or through
    /// the names that somebody waits for, whichever are fewer.
    fn visit_ties_of(&mut self, client_id: u64, tx: &mut Transaction<'_, '_>) {
        let ties = tx.sessions.count_of(client_id);
        if ties == 0 {
            return;
        }
        let queues = self.queues;
        if ties <= queues.names().len() {
            for name in tx.sessions.names_of(client_id) {
                if queues.has_queue(name) {
                    self.visit(name, None);
                }
            }
            return;
        }
        for name in queues.names() {
            let id = tx.entry(name);
            let is_tied = tx.lock(id).is_some_and(|lock| {
                let mut holders = lock.holders().iter();
                holders.any(|own| tx.sessions.client_of(own.session) == Some(client_id))
            });
            if is_tied {
                self.visit(name, None);
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
    client_id: u64,
    /// What it lacks: the needs that aren't met.
    lacks: usize,
    is_free: bool,
    held: Vec<Tied>,
}

/// A grant that is tied to the connection of one who waits.
struct Tied {
    /// The number of its name's place.
    place: usize,
    limit: u32,
    permits: u32,
}

/// A name that somebody needs who is stuck.
#[derive(Default)]
struct Place {
    mode: Option<Mode>,
    /// How many grants are tied to those who are stuck.
    holders: usize,
    /// How many permits these are.
    permits: u64,
    /// Their limits, and how many have each.
    limits: BTreeMap<u32, usize>,
    /// Who waits here, in the order of the queue.
    queue: Vec<(usize, Need)>,
    /// How many of those are free, or will be.
    passed: usize,
    /// Those of the queue whose token holds here.
    alone: Vec<usize>,
}

impl Place {
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
    places: Vec<Place>,
    by_name: HashMap<&'a Name, usize>,
    /// Who was found to be free, and what it holds not yet let go.
    freed: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(newcomer: &Newcomer<'a>) -> Self {
        let mut graph = Self {
            stuck: Vec::new(),
            by_client: HashMap::new(),
            places: Vec::new(),
            by_name: HashMap::new(),
            freed: Vec::new(),
        };
        graph.push(
            newcomer.client_id,
            newcomer.rank,
            newcomer.names,
            newcomer.request,
        );
        graph
    }

    fn add(&mut self, position: Position, waiter: &'a Waiter) {
        let rank = Rank::At(position);
        self.push(waiter.client_id, rank, &waiter.names, &waiter.request);
    }

    fn push(&mut self, client_id: u64, rank: Rank, names: &'a Names, request: &'a Request) {
        self.by_client.insert(client_id, self.stuck.len());
        self.stuck.push(Stuck {
            rank,
            names,
            request,
            client_id,
            lacks: 0,
            is_free: false,
            held: Vec::new(),
        });
    }

    /// Whether the first waits for any of the others, or for itself: most often it doesn't, and then their
    /// names need no look.
    fn is_first_hindered(&mut self, tx: &mut Transaction<'_, '_>) -> bool {
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
            let place = self.place(name, tx);
            self.places
                .get(place)
                .is_some_and(|place| place.holders > 0)
        })
    }

    /// Sets free who can be, and tells whether the first is none of them.
    fn is_first_stuck(&mut self, tx: &mut Transaction<'_, '_>) -> bool {
        self.read_places(tx);
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

    fn read_places(&mut self, tx: &mut Transaction<'_, '_>) {
        for number in 0..self.stuck.len() {
            let Some(names) = self.stuck.get(number).map(|stuck| stuck.names) else {
                continue;
            };
            for name in names {
                let place = self.place(name, tx);
                self.stand(number, name, place, tx);
            }
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

    /// The place of a name, with its holders who are stuck.
    fn place(&mut self, name: &'a Name, tx: &mut Transaction<'_, '_>) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let number = self.places.len();
        self.by_name.insert(name, number);
        let mut place = Place::default();
        let id = tx.entry(name);
        if let Some(lock) = tx.lock(id) {
            place.mode = Some(lock.mode());
            for own in lock.holders().iter() {
                let client_id = tx.sessions.client_of(own.session);
                let holder = client_id.and_then(|id| self.by_client.get(&id));
                let Some(stuck) = holder.and_then(|holder| self.stuck.get_mut(*holder)) else {
                    continue;
                };
                stuck.held.push(Tied {
                    place: number,
                    limit: own.limit,
                    permits: own.permits,
                });
                place.holders += 1;
                place.permits += u64::from(own.permits);
                if own.limit > 0 {
                    *place.limits.entry(own.limit).or_default() += 1;
                }
            }
        }
        self.places.push(place);
        number
    }

    /// Has somebody stand in the queue of a place.
    fn stand(&mut self, number: usize, name: &Name, place: usize, tx: &mut Transaction<'_, '_>) {
        let Some(stuck) = self.stuck.get_mut(number) else {
            return;
        };
        let id = tx.entry(name);
        let lock = tx.lock(id);
        let own = lock.and_then(|lock| Some((lock.mode(), lock.holder(&stuck.request.token)?)));
        let need = match own {
            None => Need::Turn,
            Some((Mode::Shared, own)) if stuck.request.mode == Mode::Exclusive => {
                let client_id = tx.sessions.client_of(own.session);
                let own = client_id.and_then(|id| self.by_client.get(&id).copied());
                Need::Alone { own }
            }
            Some(_) => Need::Met,
        };
        stuck.lacks += usize::from(need != Need::Met);
        if let Some(place) = self.places.get_mut(place) {
            place.queue.push((number, need));
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
        // A connection may have begun another wait since; what is tied to it is then that one's.
        let held = match self.by_client.get(&stuck.client_id) {
            Some(latest) if *latest == number => std::mem::take(&mut stuck.held),
            _ => Vec::new(),
        };
        let names = stuck.names;
        let mut places: Vec<usize> = names
            .iter()
            .filter_map(|name| self.by_name.get(name).copied())
            .collect();
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
