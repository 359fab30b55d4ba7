//! The way out of a deadlock: another wait of a token that is tied in it.
//!
//! A token can hold a name by the session of one connection and wait by another one. A grant to that wait
//! could move the tie to the other connection, or convert the grant. So a deadlock is not final while
//! such a wait stands in a queue outside it.

use foldhash::{HashMap, HashSet};

use super::graph::{Graph, Need};
use super::search::{GivenUp, Work};
use crate::budget::WORK_OF_A_WAITER;
use crate::state::queue::Queues;
use crate::values::name::Name;
use crate::values::token::Token;

impl Graph<'_> {
    /// Returns true if a token that is tied in the deadlock of a stuck newcomer also waits in a queue
    /// outside the deadlock. The waits in the deadlock have only names that it waits for.
    pub(super) fn has_way_out(&self, queues: &Queues, work: &mut Work) -> Result<bool, GivenUp> {
        let circle = self.circle(work)?;
        let nodes = || circle.iter().filter_map(|number| self.nodes.get(*number));
        let waited_for: HashSet<usize> = nodes().flat_map(|it| it.resources.clone()).collect();
        let names = waited_for.iter().filter_map(|it| self.resources.get(*it));
        let names: HashSet<&Name> = names.map(|resource| resource.name).collect();
        let ties = nodes().flat_map(|node| &node.held);
        for tie in ties.filter(|tie| waited_for.contains(&tie.resource)) {
            for position in queues.positions_of(&tie.token) {
                work.add(WORK_OF_A_WAITER)?;
                for name in queues.at(position).into_iter().flat_map(|it| &it.names) {
                    work.add(1)?;
                    if !names.contains(name) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Returns the numbers of the newcomer and of the stuck waiters that it waits for, directly or not.
    /// All of these wait for the newcomer.
    fn circle(&self, work: &mut Work) -> Result<Vec<usize>, GivenUp> {
        let mut walk = Walk::new(self);
        let mut circle = vec![0];
        let mut next = 0;
        while let Some(number) = circle.get(next).copied() {
            next += 1;
            let resources = self.nodes.get(number).into_iter();
            for resource in resources.flat_map(|node| &node.resources) {
                for other in walk.waited_for_by(number, *resource) {
                    work.add(1)?;
                    if let Some(seen @ false) = walk.seen.get_mut(other) {
                        *seen = true;
                        circle.push(other);
                    }
                }
            }
        }
        Ok(circle)
    }
}

/// A walk from the newcomer along what each stuck waiter waits for.
struct Walk<'g, 'a> {
    graph: &'g Graph<'a>,
    /// The stuck waiters with a tie at each resource and the tied tokens, until they are returned.
    holders: HashMap<usize, Vec<(usize, &'g Token)>>,
    /// The number of waiters at the front of a resource's queue that were returned.
    passed: HashMap<usize, usize>,
    /// True for each waiter that was found.
    seen: Vec<bool>,
}

impl<'g, 'a> Walk<'g, 'a> {
    fn new(graph: &'g Graph<'a>) -> Self {
        let mut holders: HashMap<usize, Vec<(usize, &Token)>> = HashMap::default();
        for (number, node) in graph.nodes.iter().enumerate() {
            for tie in &node.held {
                let of_resource = holders.entry(tie.resource).or_default();
                of_resource.push((number, &tie.token));
            }
        }
        let mut seen = vec![false; graph.nodes.len()];
        seen.iter_mut()
            .take(1)
            .for_each(|newcomer| *newcomer = true);
        Self {
            graph,
            holders,
            passed: HashMap::default(),
            seen,
        }
    }

    /// Returns the stuck waiters that a waiter waits for at one of its resources, except those that were
    /// returned before.
    fn waited_for_by(&mut self, number: usize, resource: usize) -> Vec<usize> {
        let (Some(node), Some(known)) = (
            self.graph.nodes.get(number),
            self.graph.resources.get(resource),
        ) else {
            return Vec::new();
        };
        let join_at = |other: usize| self.graph.nodes.get(other).map(|node| node.join_at);
        let before = known
            .queue
            .partition_point(|(other, _)| join_at(*other) < Some(node.join_at));
        match known.queue.get(before) {
            Some((_, Need::Turn)) => {
                let passed = self.passed.entry(resource).or_default();
                let waiters = known.queue.get(*passed..before).unwrap_or_default();
                *passed = before.max(*passed);
                let waiters = waiters.iter().map(|(other, _)| *other);
                let mut others: Vec<usize> = waiters.filter(|it| self.is_stuck(*it)).collect();
                if !known.admits(node.request) {
                    let holders = self.holders.remove(&resource).unwrap_or_default();
                    others.extend(holders.into_iter().map(|(holder, _)| holder));
                }
                others
            }
            Some((_, Need::Alone { .. })) => {
                let holders = self.holders.get(&resource).into_iter().flatten();
                let others = holders.filter(|(_, token)| **token != node.request.token);
                others.map(|(holder, _)| *holder).collect()
            }
            Some((_, Need::Met)) | None => Vec::new(),
        }
    }

    fn is_stuck(&self, number: usize) -> bool {
        let node = self.graph.nodes.get(number);
        node.is_some_and(|node| !node.is_free)
    }
}
