//! Deadlocks of connections that wait for each other's sessions.
//!
//! A session does not end while its connection is open, and a connection that waits releases
//! nothing. So connections that wait for each other's sessions would wait forever. Every other wait
//! ends by itself, because leases end. A wait that would close such a deadlock is refused when it
//! begins.
//!
//! The algorithm has three steps. The newcomer is the request that is about to wait.
//!
//! 1. Find all waiters that wait for the newcomer, directly or not. Assume that they and the
//!    newcomer are stuck, and that all other waiters will be granted at some time.
//! 2. Free each waiter that would be granted if only stuck waiters kept their ties and their
//!    positions. All other holders, and all other waiters before it, will go. A freed waiter's ties
//!    and positions go too, which may free further waiters.
//! 3. If the newcomer is still stuck at the end, its wait closes a deadlock that no other client
//!    can break.
//!
//! The search keeps these rules:
//!
//! 1. A queue records its lock as it was last settled. The search reads a key only if its lock is
//!    not recorded, because a key outside the running command's slot cannot be read.
//! 2. A lock that is neither recorded nor readable blocks no waiter. So a wait is never refused by
//!    a guess.
//! 3. Each waiter, each tie, and each pair of a waiter and a name is looked at once. [`MOST_WORK`]
//!    bounds this work. A search that needs more is given up, and the wait begins.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use smallvec::SmallVec;

use crate::budget::{
    CLEARED_AT_ONCE, MOST_WORK, WORK_OF_A_GRANT, WORK_OF_A_NAME, WORK_OF_A_STEP, WORK_OF_A_TIE,
    WORK_OF_A_WAITER,
};
use crate::state::queue::{KnownQueue, Position, Queues};
use crate::state::waiter::Waiter;
use crate::table::lock_table::WaitQueues;
use crate::transaction::{EntryId, Transaction};
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::request::Request;
use crate::values::session_id::SessionId;
use crate::values::time::Now;

/// The mark of a queue without a resource. It is never an index, because there are fewer resources
/// than [`MOST_WORK`].
const NO_RESOURCE: u32 = u32::MAX;

/// The error of a search that took more than [`MOST_WORK`].
struct GivenUp;

/// The work that a search has done, in the units of [`MOST_WORK`].
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

/// The point at which a waiter joins the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::table) enum JoinAt {
    /// Before all waiters.
    First,
    /// At this position: that of the token's older wait, or of a waiter in the queues.
    At(Position),
    /// Behind all waiters.
    Last,
}

/// A request that is about to wait.
pub(in crate::table) struct Newcomer<'a> {
    /// The client id of the newcomer's connection.
    pub(in crate::table) client_id: u64,
    pub(in crate::table) names: &'a Names,
    pub(in crate::table) request: &'a Request,
    pub(in crate::table) join_at: JoinAt,
    /// The token's older wait, which ends when the new one begins.
    pub(in crate::table) older: Option<Position>,
}

impl WaitQueues {
    /// Returns true if this wait would close a deadlock of connections that wait for each other's
    /// sessions. Returns false if the search needs more than [`MOST_WORK`].
    pub(in crate::table) fn would_deadlock(
        &mut self,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction,
    ) -> bool {
        let client_id = newcomer.client_id;
        let is_waited_for = tx.sessions.has_client(client_id) || newcomer.join_at != JoinAt::Last;
        if tx.sessions.is_empty() || !is_waited_for {
            return false;
        }
        let mut work = Work::default();
        let found = self.is_deadlock(newcomer, &mut work, tx);
        tx.steps += work.0 / WORK_OF_A_STEP;
        found.unwrap_or_else(|GivenUp| {
            self.counters.deadlock_searches_given_up += 1;
            false
        })
    }

    fn is_deadlock(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
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
        graph.is_newcomer_stuck(work)
    }

    /// Returns true if the newcomer would wait for a waiter before it, or for a holder whose
    /// connection is waiting. The newcomer's own connection counts as waiting.
    fn may_be_stuck(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<bool, GivenUp> {
        for name in newcomer.names {
            work.add(WORK_OF_A_NAME)?;
            if newcomer.join_at != JoinAt::First && self.queues.has_queue(name) {
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

    /// Finds all waiters that wait for the newcomer, directly or not.
    fn dependants<'q>(
        &'q self,
        newcomer: &'q Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<Search<'q>, GivenUp> {
        let mut search = Search::new(&self.queues, newcomer, work)?;
        search.visit_ties_of(0, newcomer.client_id, work, tx)?;
        for resource in 0..newcomer.names.count() {
            match newcomer.join_at {
                JoinAt::First => search.visit(resource, None, work)?,
                JoinAt::At(position) => search.visit(resource, Some(position), work)?,
                JoinAt::Last => {}
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

/// The source from which the search knows the lock of a name.
#[derive(Clone, Copy)]
enum Source<'q> {
    /// The lock as it was last settled. Leases may have ended since.
    Recorded(&'q Lock),
    /// The lock as the operation has read it.
    Read(EntryId),
    /// The lock is neither recorded nor readable.
    Unknown,
}

impl<'q> Source<'q> {
    fn of(
        name: &Name,
        queue: Option<KnownQueue<'q>>,
        newcomer: &Newcomer<'_>,
        tx: &mut Transaction,
    ) -> Self {
        if tx.has_read(name) {
            return Self::Read(tx.entry(name));
        }
        let is_known = tx.nothing_touched || !tx.environment.store.is_touched(name);
        if let Some(lock) = queue.filter(|_| is_known).and_then(KnownQueue::lock) {
            return Self::Recorded(lock);
        }
        // All names of the newcomer are in one slot, so any of them will do.
        let readable = newcomer.names.iter().next();
        if readable.is_some_and(|readable| tx.environment.store.can_read(name, readable)) {
            return Self::Read(tx.entry(name));
        }
        Self::Unknown
    }

    /// Returns the lock; `None` if it is unknown, and for a key of another type.
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

    /// Returns true if a grant is in force now, or if a renewal of its session is due.
    fn is_in_force(self, own: &Holder, now: Now, tx: &Transaction<'_, '_, '_>) -> bool {
        !matches!(self, Self::Recorded(_))
            || own.deadline_ms > now.ms()
            || tx.sessions.renewal(own, now).is_some()
    }
}

/// A name that a found waiter or the newcomer needs, or at which a grant is tied to its connection.
struct FoundName<'q> {
    name: &'q Name,
    queue: Option<KnownQueue<'q>>,
    /// `None`: its queue was not searched. `Some(None)`: all of it was. `Some(Some(position))`: the
    /// waiters behind this position were.
    visited: Option<Option<Position>>,
}

/// A session of a waiter that is assumed to be stuck, at a name with waiters.
struct Tie {
    /// The number of the waiter: 0 for the newcomer, from 1 on for those found.
    whose: usize,
    session: SessionId,
    /// The index of its name's resource.
    resource: usize,
}

/// The search for all waiters that wait for the newcomer.
struct Search<'q> {
    queues: &'q Queues,
    newcomer: &'q Newcomer<'q>,
    found: Vec<(Position, &'q Waiter)>,
    /// The indexes of the names of the waiters found, waiter by waiter.
    names_of_found: Vec<usize>,
    /// True for each waiter that was found, by the number of its position.
    seen: Vec<bool>,
    /// The names, each of which becomes a resource of the graph. The newcomer's names come first.
    resources: Vec<FoundName<'q>>,
    /// The index of each queue's resource, by the number of the queue.
    by_queue: Vec<u32>,
    ties: Vec<Tie>,
    /// True if the newcomer waits for a waiter that was found, or for itself.
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
            names_of_found: Vec::new(),
            seen: Vec::new(),
            resources: Vec::new(),
            by_queue: Vec::new(),
            ties: Vec::new(),
            is_newcomer_hindered: false,
        };
        for name in newcomer.names {
            work.add(1)?;
            match queues.known(name) {
                Some(queue) => {
                    search.resource_of(queue, work)?;
                }
                None => search.resources.push(FoundName {
                    name,
                    queue: None,
                    visited: None,
                }),
            }
        }
        Ok(search)
    }

    /// Returns the index of a queue's resource. Adds the resource if it is new.
    fn resource_of(&mut self, queue: KnownQueue<'q>, work: &mut Work) -> Result<usize, GivenUp> {
        let number = queue.number();
        if let Some(more) = (number + 1).checked_sub(self.by_queue.len()) {
            work.add((more / CLEARED_AT_ONCE) as u64)?;
            self.by_queue.resize(number + 1, NO_RESOURCE);
        }
        let Some(resource) = self.by_queue.get_mut(number) else {
            return Ok(0);
        };
        if *resource == NO_RESOURCE {
            work.add(WORK_OF_A_NAME)?;
            *resource = self.resources.len() as u32;
            self.resources.push(FoundName {
                name: queue.name(),
                queue: Some(queue),
                visited: None,
            });
        }
        Ok(*resource as usize)
    }

    fn is_newcomers(&self, resource: usize) -> bool {
        resource < self.newcomer.names.count()
    }

    /// Finds the waiters behind `front` in a resource's queue; `None`: all of them.
    fn visit(
        &mut self,
        resource: usize,
        front: Option<Position>,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        let Some(found) = self.resources.get_mut(resource) else {
            return Ok(());
        };
        let back = match found.visited {
            Some(visited) if visited <= front => return Ok(()),
            Some(visited) => visited,
            None => None,
        };
        found.visited = Some(front);
        let Some(queue) = found.queue else {
            return Ok(());
        };
        for position in queue.between(front, back) {
            work.add(1)?;
            self.find(position, work)?;
        }
        Ok(())
    }

    fn find(&mut self, position: Position, work: &mut Work) -> Result<(), GivenUp> {
        // The number of a position that was left may be that of another waiter by now.
        let Some(waiter) = self.queues.at(position) else {
            return Ok(());
        };
        let number = position.number();
        if self.seen.len() <= number {
            self.seen.resize(number + 1, false);
        }
        let Some(seen @ false) = self.seen.get_mut(number) else {
            return Ok(());
        };
        *seen = true;
        work.add(WORK_OF_A_WAITER)?;
        // A waiter without a connection ends with its KEEP, so it blocks no waiter forever.
        if waiter.kind.is_blocked() && Some(position) != self.newcomer.older {
            self.found.push((position, waiter));
        }
        Ok(())
    }

    /// Finds the waiters behind a waiter that was found, at each of its names.
    fn visit_names_of(
        &mut self,
        position: Position,
        waiter: &'q Waiter,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        let is_before = JoinAt::At(position) < self.newcomer.join_at;
        for name in &waiter.names {
            work.add(1)?;
            let Some(queue) = self.queues.known(name) else {
                continue;
            };
            let resource = self.resource_of(queue, work)?;
            self.is_newcomer_hindered |= is_before && self.is_newcomers(resource);
            self.names_of_found.push(resource);
            self.visit(resource, Some(position), work)?;
        }
        Ok(())
    }

    /// Finds the waiters for grants that are tied to the connection of the waiter `whose`. Searches the
    /// ties of the connection or all queues, whichever are fewer.
    fn visit_ties_of(
        &mut self,
        whose: usize,
        client_id: u64,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<(), GivenUp> {
        let ties = tx.sessions.count_of(client_id);
        if ties > self.queues.names().len() {
            return self.visit_queues_with(whose, client_id, work, tx);
        }
        for (session, name) in tx.sessions.ties_of(client_id) {
            work.add(WORK_OF_A_TIE)?;
            let resource = match self.queues.known(&name) {
                Some(queue) => self.resource_of(queue, work)?,
                None => match self.newcomer.names.as_slice().binary_search(&name) {
                    Ok(resource) => resource,
                    Err(_) => continue,
                },
            };
            self.tie(whose, session, resource, work)?;
        }
        Ok(())
    }

    /// Like [`Search::visit_ties_of`], but searches all queues.
    fn visit_queues_with(
        &mut self,
        whose: usize,
        client_id: u64,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<(), GivenUp> {
        let (queues, newcomer) = (self.queues, self.newcomer);
        let free = newcomer.names.iter().enumerate();
        let free = free.filter(|(_, name)| !queues.has_queue(name));
        let free = free.map(|(resource, name)| (Some(resource), name, None));
        let queued = queues
            .all_known()
            .map(|queue| (None, queue.name(), Some(queue)));
        for (resource, name, queue) in free.chain(queued) {
            work.add(WORK_OF_A_NAME)?;
            let source = Source::of(name, queue, newcomer, tx);
            let Some(lock) = source.lock(tx) else {
                continue;
            };
            for own in lock.holders().iter() {
                work.add(1)?;
                if tx.sessions.client_of(own.session) == Some(client_id) {
                    let resource = match (resource, queue) {
                        (Some(resource), _) => resource,
                        (None, Some(queue)) => self.resource_of(queue, work)?,
                        (None, None) => continue,
                    };
                    self.tie(whose, own.session, resource, work)?;
                }
            }
        }
        Ok(())
    }

    fn tie(
        &mut self,
        whose: usize,
        session: SessionId,
        resource: usize,
        work: &mut Work,
    ) -> Result<(), GivenUp> {
        self.is_newcomer_hindered |= self.is_newcomers(resource);
        self.ties.push(Tie {
            whose,
            session,
            resource,
        });
        self.visit(resource, None, work)
    }
}

/// The need of a waiter at one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// The waiter needs its turn, and holders that admit it.
    Turn,
    /// The waiter's token holds already and waits for a conversion, so it needs all other holders
    /// to go. `own` is the number of the waiter whose connection that grant is tied to.
    Alone { own: Option<usize> },
    /// The waiter needs nothing more.
    Met,
}

/// A waiter, and the grants that are tied to its connection.
struct Node<'a> {
    client_id: u64,
    join_at: JoinAt,
    request: &'a Request,
    /// The number of needs that are not met.
    lacks: usize,
    is_free: bool,
    /// The indexes of its names in [`Graph::resources`].
    resources: SmallVec<[usize; 1]>,
    held: SmallVec<[Tied; 1]>,
}

/// A grant that is tied to the connection of a waiter.
struct Tied {
    /// The index of its name in [`Graph::resources`].
    resource: usize,
    limit: u32,
    permits: u32,
}

/// A name in the graph: the grants that are tied to stuck waiters, and the stuck waiters in its
/// queue.
struct Resource<'a> {
    name: &'a Name,
    known: Option<KnownQueue<'a>>,
    mode: Option<Mode>,
    /// The number of grants that are tied to stuck waiters.
    holders: usize,
    /// The permits of these grants.
    permits: u64,
    /// The limits of these grants, and the number of grants with each limit.
    limits: BTreeMap<u32, usize>,
    /// The numbers and needs of the waiters, in queue order.
    queue: SmallVec<[(usize, Need); 1]>,
    /// The number of waiters at the front of the queue that are free.
    passed: usize,
    /// The indexes in the queue of the waiters with [`Need::Alone`].
    alone: Vec<usize>,
}

impl<'a> Resource<'a> {
    fn new(found: FoundName<'a>) -> Self {
        Self {
            name: found.name,
            known: found.queue,
            mode: None,
            holders: 0,
            permits: 0,
            limits: BTreeMap::new(),
            queue: SmallVec::new(),
            passed: 0,
            alone: Vec::new(),
        }
    }

    /// Determines the needs of the waiters in the queue. If the lock is unknown, they need nothing.
    fn look(
        &mut self,
        source: Source<'_>,
        by_client: &HashMap<u64, usize>,
        all: &mut [Node<'_>],
        work: &mut Work,
        tx: &Transaction<'_, '_, '_>,
    ) -> Result<(), GivenUp> {
        let lock = source.lock(tx);
        self.mode = lock.map(Lock::mode);
        for (waiter, need) in &mut self.queue {
            work.add(1)?;
            let Some(node) = all.get_mut(*waiter) else {
                continue;
            };
            let request = node.request;
            *need = lock.map_or(Need::Met, |lock| match lock.holder(&request.token) {
                None => Need::Turn,
                Some(own) if lock.mode() == Mode::Shared && request.mode == Mode::Exclusive => {
                    let client_id = tx.sessions.client_of(own.session);
                    let own = client_id.and_then(|id| by_client.get(&id).copied());
                    Need::Alone { own }
                }
                Some(_) => Need::Met,
            });
            node.lacks += usize::from(*need != Need::Met);
        }
        Ok(())
    }

    /// Sorts the queue by the points at which the waiters join it.
    fn line_up(&mut self, joins: &[JoinAt]) {
        self.queue.sort_by_key(|(number, _)| joins.get(*number));
        let queue = self.queue.iter().enumerate();
        let alone = queue.filter(|(_, (_, need))| matches!(need, Need::Alone { .. }));
        self.alone = alone.map(|(at, _)| at).collect();
    }

    /// Adds a grant that is tied to a stuck waiter.
    fn hold(&mut self, node: &mut Node<'_>, number: usize, limit: u32, permits: u32) {
        node.held.push(Tied {
            resource: number,
            limit,
            permits,
        });
        self.holders += 1;
        self.permits += u64::from(permits);
        if limit > 0 {
            *self.limits.entry(limit).or_default() += 1;
        }
    }

    /// Returns true if the grants of stuck waiters admit a request.
    fn admits(&self, request: &Request) -> bool {
        if self.holders == 0 {
            return true;
        }
        let limit = (request.limit > 0).then_some(request.limit);
        // The keys are in order.
        let smallest = self.limits.keys().next().copied().into_iter();
        let smallest = smallest.chain(limit).min();
        self.mode == Some(Mode::Shared)
            && request.mode == Mode::Shared
            && smallest.is_none_or(|most| self.permits + u64::from(request.permits) <= most.into())
    }
}

/// The waiters that may be stuck, and the names that they need. The first waiter is the newcomer.
struct Graph<'a> {
    nodes: Vec<Node<'a>>,
    /// The number of each connection's waiter; the last one if the connection waits twice.
    by_client: HashMap<u64, usize>,
    /// The names, in the order of the search's resources.
    resources: Vec<Resource<'a>>,
    ties: Vec<Tie>,
    /// The waiters that were found to be free and whose grants have not gone yet.
    freed: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(newcomer: &Newcomer<'a>, search: Search<'a>) -> Self {
        let resources = search.resources.into_iter().map(Resource::new);
        let many = 1 + search.found.len();
        let mut graph = Self {
            nodes: Vec::with_capacity(many),
            by_client: HashMap::with_capacity_and_hasher(many, RandomState::default()),
            resources: resources.collect(),
            ties: search.ties,
            freed: Vec::new(),
        };
        let Newcomer {
            client_id,
            names,
            request,
            join_at,
            ..
        } = newcomer;
        let mut names_of_found = search.names_of_found.into_iter();
        let own = (0..names.count()).collect();
        graph.push(*client_id, *join_at, request, own);
        for (position, waiter) in search.found {
            let join_at = JoinAt::At(position);
            let resources = names_of_found.by_ref().take(waiter.names.count());
            let resources = resources.collect();
            graph.push(waiter.client_id, join_at, &waiter.request, resources);
        }
        graph
    }

    /// Adds a waiter to the queues of these names.
    fn push(
        &mut self,
        client_id: u64,
        join_at: JoinAt,
        request: &'a Request,
        resources: SmallVec<[usize; 1]>,
    ) {
        let number = self.nodes.len();
        self.by_client.insert(client_id, number);
        for resource in &resources {
            if let Some(resource) = self.resources.get_mut(*resource) {
                resource.queue.push((number, Need::Turn));
            }
        }
        self.nodes.push(Node {
            client_id,
            join_at,
            request,
            lacks: 0,
            is_free: false,
            resources,
            held: SmallVec::new(),
        });
    }

    /// Determines the holders of the names, and the needs of the waiters.
    fn read(
        &mut self,
        newcomer: &Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<(), GivenUp> {
        let mut sources = Vec::with_capacity(self.resources.len());
        for resource in &self.resources {
            work.add(1)?;
            sources.push(Source::of(resource.name, resource.known, newcomer, tx));
        }
        for (resource, source) in self.resources.iter_mut().zip(&sources) {
            resource.look(*source, &self.by_client, &mut self.nodes, work, tx)?;
        }
        self.hold(&sources, work, tx)?;
        let joins: Vec<JoinAt> = self.nodes.iter().map(|node| node.join_at).collect();
        for resource in &mut self.resources {
            resource.line_up(&joins);
        }
        let lacks = |(number, node): (usize, &Node<'a>)| (node.lacks == 0).then_some(number);
        let free = self.nodes.iter().enumerate().filter_map(lacks);
        self.freed.extend(free);
        Ok(())
    }

    /// Adds the grants that are tied to the waiters.
    fn hold(
        &mut self,
        sources: &[Source<'_>],
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<(), GivenUp> {
        let now = tx.now();
        for tie in &self.ties {
            work.add(WORK_OF_A_GRANT)?;
            let (Some(node), Some(resource), Some(source)) = (
                self.nodes.get_mut(tie.whose),
                self.resources.get_mut(tie.resource),
                sources.get(tie.resource),
            ) else {
                continue;
            };
            // All ties of a connection that waits twice belong to its last wait.
            if self.by_client.get(&node.client_id) != Some(&tie.whose) {
                continue;
            }
            let lock = source.lock(tx);
            let own = lock.and_then(|lock| lock.holders().with_session(tie.session));
            if let Some(own) = own.filter(|own| source.is_in_force(own, now, tx)) {
                resource.hold(node, tie.resource, own.limit, own.permits);
            }
        }
        Ok(())
    }

    /// Frees waiters until none is left to free, or the newcomer is free. Returns true if the newcomer
    /// is stuck.
    fn is_newcomer_stuck(&mut self, work: &mut Work) -> Result<bool, GivenUp> {
        for resource in 0..self.resources.len() {
            self.meet_needs_at(resource, work)?;
        }
        while let Some(number) = self.freed.pop() {
            if number == 0 {
                return Ok(false);
            }
            self.let_go(number, work)?;
        }
        Ok(true)
    }

    /// Meets the need of the waiter whose turn it is at a name, and of the waiters that would be
    /// the only holder.
    fn meet_needs_at(&mut self, number: usize, work: &mut Work) -> Result<(), GivenUp> {
        let Some(resource) = self.resources.get_mut(number) else {
            return Ok(());
        };
        let mut met: Vec<usize> = Vec::new();
        while let Some((waiter, need)) = resource.queue.get_mut(resource.passed) {
            work.add(1)?;
            let waiter = *waiter;
            let Some(node) = self.nodes.get(waiter) else {
                break;
            };
            if node.is_free {
                resource.passed += 1;
                continue;
            }
            let request = node.request;
            if *need != Need::Turn || !resource.admits(request) {
                break;
            }
            if let Some((_, need)) = resource.queue.get_mut(resource.passed) {
                *need = Need::Met;
            }
            met.push(waiter);
            break;
        }
        if resource.holders <= 1 {
            for at in &resource.alone {
                work.add(1)?;
                let Some((waiter, need @ Need::Alone { .. })) = resource.queue.get_mut(*at) else {
                    continue;
                };
                let Need::Alone { own } = *need else { continue };
                let own = own.and_then(|own| self.nodes.get(own));
                let is_held = own.is_some_and(|own| !own.is_free);
                if resource.holders == usize::from(is_held) {
                    *need = Need::Met;
                    met.push(*waiter);
                }
            }
        }
        for waiter in met {
            let Some(node) = self.nodes.get_mut(waiter) else {
                continue;
            };
            node.lacks -= 1;
            if node.lacks == 0 {
                self.freed.push(waiter);
            }
        }
        Ok(())
    }

    /// Removes a free waiter from the queues and its grants from the names. The waiter will be
    /// granted at some time, so both will go.
    fn let_go(&mut self, number: usize, work: &mut Work) -> Result<(), GivenUp> {
        let Some(node) = self.nodes.get_mut(number) else {
            return Ok(());
        };
        node.is_free = true;
        let held = std::mem::take(&mut node.held);
        let mut resources = std::mem::take(&mut node.resources);
        for tied in held {
            let Some(resource) = self.resources.get_mut(tied.resource) else {
                continue;
            };
            resource.holders -= 1;
            resource.permits -= u64::from(tied.permits);
            if let Some(count) = resource.limits.get_mut(&tied.limit) {
                *count -= 1;
                if *count == 0 {
                    resource.limits.remove(&tied.limit);
                }
            }
            resources.push(tied.resource);
        }
        for resource in resources {
            self.meet_needs_at(resource, work)?;
        }
        Ok(())
    }
}
