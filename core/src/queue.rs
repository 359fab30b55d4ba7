//! Who waits for what, in which order.
//!
//! One queue a name. A waiter for several names stands in the queue of each at the same place, so
//! two waiters are never in different orders in different queues: they can't wait for each other.
//! Places are numbers without end in both directions: newcomers go behind the greatest, a waiting
//! upgrade goes before the smallest. Every step here costs O(log n).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::name::Name;
use crate::order::{Ask, Names};
use crate::token::Token;

/// A blocked connection, numbered by the shell; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seat(pub u64);

/// A place in the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(i64);

/// Where a waiter queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Behind everybody.
    Back,
    /// Before everybody.
    Front,
}

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The connection that waits.
    pub seat: Seat,
    /// That connection's client id.
    pub client_id: u64,
    /// All that it needs.
    pub names: Names,
    /// What it wants there.
    pub ask: Ask,
    /// Since when this place is taken, in ms since the epoch.
    pub since_ms: u64,
    /// When it gives up, in ms since the epoch; `None`: never.
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Line {
    places: BTreeSet<Place>,
    /// When this name is to be settled without anybody's command.
    alarm_ms: Option<u64>,
}

/// The queues of all names.
///
/// Invariants: each waiter's place is in the line of each of its names, and nowhere else; a line
/// without places is gone; the indexes by seat, token, timeout and alarm say the same.
#[derive(Debug, Default)]
pub struct Queues {
    waiters: BTreeMap<Place, Waiter>,
    lines: HashMap<Name, Line>,
    seats: HashMap<Seat, Place>,
    tokens: HashMap<Token, SmallVec<[Place; 1]>>,
    timeouts: BTreeSet<(u64, Place)>,
    alarms: BTreeSet<(u64, Name)>,
    /// Those of the alarms that nobody was told of in advance.
    unannounced: BTreeSet<(u64, Name)>,
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
    pub fn has_line(&self, name: &Name) -> bool {
        self.lines.contains_key(name)
    }

    /// Every name that somebody waits for.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.lines.keys()
    }

    /// The first in the queue of a name.
    pub fn head(&self, name: &Name) -> Option<Place> {
        self.lines.get(name)?.places.first().copied()
    }

    /// The waiter at a place.
    pub fn at(&self, place: Place) -> Option<&Waiter> {
        self.waiters.get(&place)
    }

    /// The queue of a name, first in line first.
    pub fn line(&self, name: &Name) -> impl Iterator<Item = (Place, &Waiter)> {
        let places = self
            .lines
            .get(name)
            .into_iter()
            .flat_map(|line| &line.places);
        places.filter_map(|place| Some((*place, self.waiters.get(place)?)))
    }

    /// How long the queue of a name is.
    pub fn line_len(&self, name: &Name) -> usize {
        self.lines.get(name).map_or(0, |line| line.places.len())
    }

    /// The places of a token's waiters.
    pub fn places_of<'a>(&'a self, token: &Token) -> impl Iterator<Item = (Place, &'a Waiter)> {
        let places = self.tokens.get(token).into_iter().flatten();
        places.filter_map(|place| Some((*place, self.waiters.get(place)?)))
    }

    /// Takes a waiter in.
    pub fn enqueue(&mut self, waiter: Waiter, end: End) -> Place {
        let place = match end {
            End::Back => Place(
                self.waiters
                    .last_key_value()
                    .map_or(0, |(last, _)| last.0 + 1),
            ),
            End::Front => Place(
                self.waiters
                    .first_key_value()
                    .map_or(0, |(first, _)| first.0 - 1),
            ),
        };
        for name in &waiter.names {
            self.lines
                .entry(name.clone())
                .or_default()
                .places
                .insert(place);
        }
        self.tokens
            .entry(waiter.ask.token.clone())
            .or_default()
            .push(place);
        self.sit(place, &waiter);
        self.waiters.insert(place, waiter);
        place
    }

    /// Gives a place to another connection of the same token: its own lease, limit, timeout and
    /// client, the same names, mode and waiting time. Returns the seat that had it.
    pub fn take_over(&mut self, place: Place, newer: Waiter) -> Option<Seat> {
        let older = self.waiters.remove(&place)?;
        self.stand_up(place, &older);
        self.sit(place, &newer);
        let since_ms = older.since_ms;
        self.waiters.insert(place, Waiter { since_ms, ..newer });
        Some(older.seat)
    }

    /// Takes a waiter out of all its queues.
    pub fn remove(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        self.stand_up(place, &waiter);
        if let Some(places) = self.tokens.get_mut(&waiter.ask.token) {
            places.retain(|p| *p != place);
            if places.is_empty() {
                self.tokens.remove(&waiter.ask.token);
            }
        }
        for name in &waiter.names {
            self.leave_line(name, place);
        }
        Some(waiter)
    }

    /// The place of a seat, while it waits.
    pub fn place_of(&self, seat: Seat) -> Option<Place> {
        self.seats.get(&seat).copied()
    }

    /// Those whose time is over at `now_ms`, at most `most` of them.
    pub fn timed_out(&self, now_ms: u64, most: usize) -> Vec<Place> {
        let due = self.timeouts.iter().take_while(|(ms, _)| *ms <= now_ms);
        due.take(most).map(|(_, place)| *place).collect()
    }

    /// The names to settle at `now_ms`, at most `most` of them.
    pub fn alarmed(&self, now_ms: u64, most: usize) -> Vec<Name> {
        let due = self.alarms.iter().take_while(|(ms, _)| *ms <= now_ms);
        due.take(most).map(|(_, name)| name.clone()).collect()
    }

    /// When a name is to be settled without anybody's order, if somebody waits for it.
    pub fn alarm_ms(&self, name: &Name) -> Option<u64> {
        self.lines.get(name)?.alarm_ms
    }

    /// Sets when a name with a queue is to be settled next; nothing for a name without one.
    pub fn set_alarm(&mut self, name: &Name, alarm_ms: Option<u64>) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        if line.alarm_ms == alarm_ms {
            return;
        }
        if let Some(before_ms) = std::mem::replace(&mut line.alarm_ms, alarm_ms) {
            let before = (before_ms, name.clone());
            self.alarms.remove(&before);
            self.unannounced.remove(&before);
        }
        if let Some(ms) = alarm_ms {
            self.alarms.insert((ms, name.clone()));
            self.unannounced.insert((ms, name.clone()));
        }
    }

    /// The names to settle by `until_ms`, at most `most` of them, each told once for an alarm.
    pub fn announce(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        let mut names = Vec::new();
        while names.len() < most {
            match self.unannounced.pop_first() {
                Some((ms, name)) if ms <= until_ms => names.push(name),
                Some(later) => {
                    self.unannounced.insert(later);
                    break;
                }
                None => break,
            }
        }
        names
    }

    /// When the next alarm is due that nobody was told of in advance, in ms since the epoch.
    pub fn next_unannounced_ms(&self) -> Option<u64> {
        self.unannounced.first().map(|(ms, _)| *ms)
    }

    /// When the first alarm or timeout is due, in ms since the epoch.
    pub fn next_alarm_ms(&self) -> Option<u64> {
        let alarm = self.alarms.first().map(|(ms, _)| *ms);
        let timeout = self.timeouts.first().map(|(ms, _)| *ms);
        alarm.into_iter().chain(timeout).min()
    }

    fn sit(&mut self, place: Place, waiter: &Waiter) {
        self.seats.insert(waiter.seat, place);
        self.timeouts
            .extend(waiter.timeout_ms.map(|ms| (ms, place)));
    }

    fn stand_up(&mut self, place: Place, waiter: &Waiter) {
        self.seats.remove(&waiter.seat);
        if let Some(ms) = waiter.timeout_ms {
            self.timeouts.remove(&(ms, place));
        }
    }

    fn leave_line(&mut self, name: &Name, place: Place) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        line.places.remove(&place);
        if line.places.is_empty() {
            self.set_alarm(name, None);
            self.lines.remove(name);
        }
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let in_lines: usize = self.lines.values().map(|line| line.places.len()).sum();
        let wanted: usize = self.waiters.values().map(|w| w.names.count()).sum();
        let in_tokens: usize = self.tokens.values().map(|places| places.len()).sum();
        let with_timeout = self
            .waiters
            .values()
            .filter(|w| w.timeout_ms.is_some())
            .count();
        let with_alarm = self
            .lines
            .values()
            .filter(|line| line.alarm_ms.is_some())
            .count();
        let complaints = [
            (in_lines != wanted, "places in lines"),
            (in_tokens != self.waiters.len(), "places by token"),
            (self.seats.len() != self.waiters.len(), "seats"),
            (self.timeouts.len() != with_timeout, "timeouts"),
            (self.alarms.len() != with_alarm, "alarms"),
            (
                !self.unannounced.is_subset(&self.alarms),
                "unannounced alarms",
            ),
            (
                self.lines.values().any(|line| line.places.is_empty()),
                "an empty line",
            ),
        ];
        match complaints.iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => Err(format!("{what}: {self:?}")),
            None => Ok(()),
        }
    }
}
