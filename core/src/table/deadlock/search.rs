//! The search for all waiters that wait for a newcomer, directly or not.

use crate::budget::{CLEARED_AT_ONCE, MOST_WORK, WORK_OF_A_NAME, WORK_OF_A_TIE, WORK_OF_A_WAITER};
use crate::state::queue::{KnownQueue, Position, Queues};
use crate::state::waiter::Waiter;
use crate::transaction::{EntryId, Transaction};
use crate::values::holder::Holder;
use crate::values::lock::Lock;
use crate::values::name::{Name, Names};
use crate::values::request::Request;
use crate::values::session_id::SessionId;
use crate::values::time::{has_passed, Now};

/// The mark of a queue without a resource. It is never an index, because there are fewer resources
/// than [`MOST_WORK`].
const NO_RESOURCE: u32 = u32::MAX;

/// The error of a search that took more than [`MOST_WORK`].
pub(super) struct GivenUp;

/// The work that a search has done, in the units of [`MOST_WORK`].
#[derive(Default)]
pub(super) struct Work(pub(super) u64);

impl Work {
    pub(super) fn add(&mut self, work: u64) -> Result<(), GivenUp> {
        self.0 += work;
        if self.0 > MOST_WORK {
            Err(GivenUp)
        } else {
            Ok(())
        }
    }
}

/// The point at which a waiter joins the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

/// The source from which the search knows the lock of a name.
#[derive(Clone, Copy)]
pub(super) enum Source<'q> {
    /// The lock as it was last settled. Leases may have ended since.
    Recorded(&'q Lock),
    /// The lock as the operation has read it.
    Read(EntryId),
    /// The lock is neither recorded nor readable.
    Unknown,
}

impl<'q> Source<'q> {
    pub(super) fn of(
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
    pub(super) fn lock<'a>(self, tx: &'a Transaction<'_, '_, '_>) -> Option<&'a Lock>
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
    pub(super) fn is_in_force(self, own: &Holder, now: Now, tx: &Transaction<'_, '_, '_>) -> bool {
        !matches!(self, Self::Recorded(_))
            || !has_passed(own.deadline_ms, now.ms())
            || tx.sessions.renewal(own, now).is_some()
    }
}

/// A name that a found waiter or the newcomer needs, or at which a grant is tied to its connection.
pub(super) struct FoundName<'q> {
    pub(super) name: &'q Name,
    pub(super) queue: Option<KnownQueue<'q>>,
    /// `None`: its queue was not searched. `Some(None)`: all of it was. `Some(Some(position))`: the
    /// waiters behind this position were.
    visited: Option<Option<Position>>,
}

/// A session of a waiter that is assumed to be stuck, at a name with waiters.
pub(super) struct Tie {
    /// The number of the waiter: 0 for the newcomer, from 1 on for those found.
    pub(super) whose: usize,
    pub(super) session: SessionId,
    /// The index of its name's resource.
    pub(super) resource: usize,
}

/// The search for all waiters that wait for the newcomer.
pub(super) struct Search<'q> {
    queues: &'q Queues,
    newcomer: &'q Newcomer<'q>,
    pub(super) found: Vec<(Position, &'q Waiter)>,
    /// The indexes of the names of the waiters found, waiter by waiter.
    pub(super) names_of_found: Vec<usize>,
    /// True for each waiter that was found, by the number of its position.
    seen: Vec<bool>,
    /// The names, each of which becomes a resource of the graph. The newcomer's names come first.
    pub(super) resources: Vec<FoundName<'q>>,
    /// The index of each queue's resource, by the number of the queue.
    by_queue: Vec<u32>,
    pub(super) ties: Vec<Tie>,
    /// True if the newcomer waits for a waiter that was found, or for itself.
    pub(super) is_newcomer_hindered: bool,
}

impl<'q> Search<'q> {
    /// Finds all waiters that wait for the newcomer, directly or not.
    pub(super) fn dependants(
        queues: &'q Queues,
        newcomer: &'q Newcomer<'_>,
        work: &mut Work,
        tx: &mut Transaction,
    ) -> Result<Self, GivenUp> {
        let mut search = Self::new(queues, newcomer, work)?;
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
        if let Some(more) = number.checked_sub(self.by_queue.len()) {
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

    /// Finds the waiters for grants that are tied to the connection of the waiter `whose`. Searches
    /// the ties of the connection or all queues, whichever are fewer.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_with_more_than_the_most_work_is_given_up() {
        for (work, is_done) in [(MOST_WORK, true), (MOST_WORK + 1, false), (u64::MAX, false)] {
            assert_eq!(Work::default().add(work).is_ok(), is_done, "{work}");
        }
    }
}
