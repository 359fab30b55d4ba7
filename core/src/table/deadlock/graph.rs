//! The graph of the waiters that may be stuck: which of them would be granted all the same.
//! `way_out.rs` looks at those that would not.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use foldhash::HashMap;
use smallvec::SmallVec;

use super::search::{FoundName, GivenUp, JoinAt, Newcomer, Search, Source, Tie, Work};
use crate::budget::WORK_OF_A_GRANT;
use crate::state::queue::KnownQueue;
use crate::transaction::Transaction;
use crate::values::holder::{Holder, Mode};
use crate::values::lock::Lock;
use crate::values::name::Name;
use crate::values::request::Request;
use crate::values::token::Token;

/// The need of a waiter at one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The waiter needs its turn, and holders that admit it.
    Turn,
    /// The waiter's token holds already and waits for a conversion, so it needs all other holders
    /// to go. `own` is the number of the waiter whose connection that grant is tied to.
    Alone { own: Option<usize> },
    /// The waiter needs nothing more.
    Met,
}

/// A waiter, and the grants that are tied to its connection.
pub(super) struct Node<'a> {
    client_id: u64,
    pub(super) join_at: JoinAt,
    pub(super) request: &'a Request,
    /// The number of needs that are not met.
    lacks: usize,
    pub(super) is_free: bool,
    /// The indexes of its names in [`Graph::resources`].
    pub(super) resources: SmallVec<[usize; 1]>,
    pub(super) held: SmallVec<[Tied; 1]>,
}

/// A grant that is tied to the connection of a waiter.
pub(super) struct Tied {
    pub(super) token: Token,
    /// The index of its name in [`Graph::resources`].
    pub(super) resource: usize,
    limit: u32,
    permits: u32,
}

/// A name in the graph: the grants that are tied to stuck waiters, and the stuck waiters in its
/// queue.
pub(super) struct Resource<'a> {
    pub(super) name: &'a Name,
    known: Option<KnownQueue<'a>>,
    mode: Option<Mode>,
    /// The number of grants that are tied to stuck waiters.
    holders: usize,
    /// The permits of these grants.
    permits: u64,
    /// The limits of these grants, and the number of grants with each limit.
    limits: BTreeMap<u32, usize>,
    /// The numbers and needs of the waiters, in queue order.
    pub(super) queue: SmallVec<[(usize, Need); 1]>,
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
    fn hold(&mut self, node: &mut Node<'_>, number: usize, own: &Holder) {
        let Holder { limit, permits, .. } = *own;
        node.held.push(Tied {
            token: own.token.clone(),
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
    pub(super) fn admits(&self, request: &Request) -> bool {
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
pub(super) struct Graph<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    /// The number of each connection's waiter; the last one if the connection waits twice.
    by_client: HashMap<u64, usize>,
    /// The names, in the order of the search's resources.
    pub(super) resources: Vec<Resource<'a>>,
    ties: Vec<Tie>,
    /// The waiters that were found to be free and whose grants have not gone yet.
    freed: Vec<usize>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(newcomer: &Newcomer<'a>, search: Search<'a>) -> Self {
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
    pub(super) fn read(
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
                resource.hold(node, tie.resource, own);
            }
        }
        Ok(())
    }

    /// Frees waiters until none is left to free, or the newcomer is free. Returns true if the
    /// newcomer is stuck.
    pub(super) fn is_newcomer_stuck(&mut self, work: &mut Work) -> Result<bool, GivenUp> {
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
