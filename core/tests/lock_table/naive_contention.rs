//! A naive model of contention. It compares the queues and the locks before and after each step,
//! and knows nothing of how a step is carried out.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use redis_lock_core::store::KeyState;
use redis_lock_core::values::holder::Holder;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::token::Token;

use crate::world::{self, World};

const MINUTE_MS: u64 = 60_000;

/// A wait: its token, its names and its beginning.
type Wait = (Token, Vec<Name>, u64);

/// The waits and the locks at one time.
pub struct Seen {
    waits: BTreeSet<Wait>,
    locks: BTreeMap<Name, Lock>,
}

impl Seen {
    pub fn of(world: &World, keys: &[&str]) -> Self {
        let names = keys.iter().map(|key| world::name(key));
        let mut waits = BTreeSet::new();
        let mut locks = BTreeMap::new();
        for name in names {
            let queue = world.table.queues().queue(&name);
            waits.extend(queue.map(|(_, waiter)| {
                let names = waiter.names.as_slice().to_vec();
                (waiter.request.token.clone(), names, waiter.since_ms)
            }));
            if let Some(KeyState::Lock(stored)) = world.store.keys.get(&name) {
                locks.insert(name, stored.lock.clone());
            }
        }
        Self { waits, locks }
    }

    fn lock(&self, name: &Name) -> Lock {
        self.locks.get(name).cloned().unwrap_or_default()
    }

    fn waits_for<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Wait> {
        let mut waits = self.waits.iter();
        std::iter::from_fn(move || waits.find(|(_, names, _)| names.contains(name)))
    }
}

/// An event at a name.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    WaitBegan,
    /// After this time. The state after the step shows no grant.
    WaitEnded(Wait, u64),
    /// By a grant, after this time.
    Granted(Wait, u64),
    Refused,
    HoldEnded(u64),
    /// The states before and after don't show which holds ended.
    Unclear,
}

/// The part of a step that the states before and after it don't show.
#[derive(Default)]
pub struct Done {
    /// The names of an ACQUIRE that got nil.
    pub refused: Vec<Name>,
    /// The names that a lock has left and reached by RENAME.
    pub moved: Option<(Name, Name)>,
    /// True if the step is a take-back.
    pub takes_back: bool,
}

/// The events of all names with their minutes.
#[derive(Default)]
pub struct NaiveContention {
    events: Vec<(u64, Name, Event)>,
}

impl NaiveContention {
    fn add(&mut self, world: &World, name: &Name, event: Event) {
        let minute = world.now_ms / MINUTE_MS;
        self.events.push((minute, name.clone(), event));
    }

    /// Adds what a step has changed.
    pub fn take(&mut self, world: &World, keys: &[&str], before: &Seen, step: &Done) {
        for name in &step.refused {
            self.add(world, name, Event::Refused);
        }
        let after = Seen::of(world, keys);
        let mut resumed = None;
        for wait in after.waits.difference(&before.waits) {
            let (token, names, since_ms) = wait;
            if !step.takes_back {
                assert_eq!(*since_ms, world.now_ms, "a wait that began earlier");
                for name in names {
                    self.add(world, name, Event::WaitBegan);
                }
            } else {
                resumed = Some(token.clone());
                names.iter().for_each(|name| self.resume(wait, name));
            }
        }
        for wait in before.waits.difference(&after.waits) {
            let (token, names, since_ms) = wait;
            let waited_ms = world.now_ms - since_ms;
            let fence =
                |seen: &Seen, name: &Name| seen.lock(name).holder(token).map(|own| own.fence);
            let is_granted = |name: &Name| {
                let new = fence(&after, name);
                new.is_some() && new != fence(before, name)
            };
            let end = match names.iter().all(is_granted) {
                true => Event::Granted(wait.clone(), waited_ms),
                false => Event::WaitEnded(wait.clone(), waited_ms),
            };
            for name in names {
                self.add(world, name, end.clone());
            }
        }
        for key in keys {
            let name = world::name(key);
            let (from, to) = step.moved.clone().unzip();
            if from.as_ref() == Some(&name) {
                continue;
            }
            self.take_holders(world, &name, before, &after, resumed.as_ref());
            // The lease may have ended before the lock was moved.
            if let Some(from) = from.filter(|_| to.as_ref() == Some(&name)) {
                let (moved, now) = (before.lock(&from), after.lock(&name));
                let stayed = |own: &Holder| {
                    let same = now.holder(&own.token);
                    same.is_some_and(|same| same.fence == own.fence)
                };
                if !moved.holders().iter().all(stayed) {
                    self.add(world, &name, Event::Unclear);
                }
            }
        }
    }

    /// Removes the end of a wait that goes on: its last grant, or the last end that may have been one.
    fn resume(&mut self, wait: &Wait, name: &Name) {
        let is_grant = |event: &Event| matches!(event, Event::Granted(ended, _) if ended == wait);
        let is_end = |event: &Event| matches!(event, Event::WaitEnded(ended, _) if ended == wait);
        let last = |is: &dyn Fn(&Event) -> bool| {
            let mut events = self.events.iter();
            events.rposition(|(_, at, event)| at == name && is(event))
        };
        if let Some(end) = last(&is_grant).or_else(|| last(&is_end)) {
            self.events.remove(end);
        }
    }

    fn take_holders(
        &mut self,
        world: &World,
        name: &Name,
        before: &Seen,
        after: &Seen,
        resumed: Option<&Token>,
    ) {
        // A waiter that comes back may meet a lease that ended unseen.
        let is_resumed = |wait: &Wait| resumed == Some(&wait.0);
        let has_resumed = after.waits_for(name).any(is_resumed);
        if before.waits_for(name).next().is_none() && !has_resumed {
            return;
        }
        let (held, holds) = (before.lock(name), after.lock(name));
        // The waiter that was there all the time, or until it was granted.
        let has_witness = before.waits_for(name).any(|wait| {
            after.waits.contains(wait)
                || (holds.holder(&wait.0).is_some() && held.holder(&wait.0).is_none())
        });
        for own in held.holders().iter() {
            match holds.holder(&own.token) {
                Some(same) if same.fence == own.fence => {}
                None if resumed == Some(&own.token) => {}
                None if has_witness => {
                    let held_ms = own.deadline_ms.min(world.wall_ms()) - own.since_ms;
                    self.add(world, name, Event::HoldEnded(held_ms));
                }
                Some(_) | None => self.add(world, name, Event::Unclear),
            }
        }
    }

    /// Checks that LOCK.HOT shows the same.
    pub fn check(&self, world: &World, keys: &[&str]) -> Result<(), TestCaseError> {
        let now = Seen::of(world, keys);
        let hottest = world.table.hottest(usize::MAX, world.now_ms, |_| true);
        for key in keys {
            let name = world::name(key);
            let events = self
                .events
                .iter()
                .filter(|(minute, at, _)| *at == name && minute + 1 >= world.now_ms / MINUTE_MS);
            let events: Vec<&Event> = events.map(|(_, _, event)| event).collect();
            let count = |wanted: &Event| events.iter().filter(|it| **it == wanted).count() as u64;
            let on: Vec<u64> = now
                .waits_for(&name)
                .map(|(_, _, since_ms)| world.now_ms - since_ms)
                .collect();
            let ended = events.iter().filter_map(|event| match event {
                Event::WaitEnded(_, waited_ms) | Event::Granted(_, waited_ms) => Some(*waited_ms),
                _ => None,
            });
            let waited: Vec<u64> = ended.chain(on.iter().copied()).collect();
            let held = events.iter().filter_map(|event| match event {
                Event::HoldEnded(held_ms) => Some(*held_ms),
                _ => None,
            });
            let held: Vec<u64> = held.collect();
            let shown = hottest.iter().find(|it| it.name == name);
            let (counts, waiters) =
                shown.map_or_else(Default::default, |it| (it.counts, it.waiters));
            prop_assert_eq!(waiters, on.len(), "waiters of {}", key);
            prop_assert_eq!(counts.waits, count(&Event::WaitBegan), "waits of {}", key);
            prop_assert_eq!(counts.refused, count(&Event::Refused), "refused at {}", key);
            prop_assert_eq!(
                counts.waited_ms,
                waited.iter().sum::<u64>(),
                "waited {}",
                key
            );
            let longest = waited.iter().max().copied().unwrap_or(0);
            prop_assert_eq!(counts.longest_wait_ms, longest, "longest of {}", key);
            if count(&Event::Unclear) == 0 {
                prop_assert_eq!(counts.grants, held.len() as u64, "grants of {}", key);
                prop_assert_eq!(counts.held_ms, held.iter().sum::<u64>(), "held {}", key);
            }
        }
        Ok(())
    }
}
