//! Who waits for what, in which order.
//!
//! One queue a name. A waiter for several names stands in the queue of each at the same place, so
//! two waiters are never in different orders in different queues: they can't wait for each other.
//! Places are numbers without end in both directions: newcomers go behind the greatest, a waiting
//! upgrade goes before the smallest. Every step here costs O(log n), for each name of the waiter.
//!
//! Of a waiter that was looked at and could not be granted it is noted which of its names held it up.
//! Until something happens at that one, nothing that happens at its others is of any use to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::holders::Holders;
use crate::name::Name;
use crate::order::{Ask, Names};
use crate::schedule::Schedule;
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
    /// Since when this place is taken, on the steady clock in ms.
    pub since_ms: u64,
    /// When it gives up, on the steady clock in ms; `None`: never.
    pub timeout_ms: Option<u64>,
}

#[derive(Debug)]
struct Queued {
    waiter: Waiter,
    /// Which of its names held it up when it was looked at last.
    held_up_by: Option<usize>,
}

/// Of how many holders it is noted who they are.
const MOST_NOTED: usize = 4;

/// The queue of one name.
#[derive(Debug, Default)]
struct Line {
    places: BTreeSet<Place>,
    /// Who held the lock when it was settled last, as far as that is known; nobody: not known.
    holders: SmallVec<[Token; 1]>,
}

/// The queues of all names.
///
/// Invariants: each waiter's place is in the line of each of its names, and nowhere else; a line
/// without places is gone; the indexes by seat, token and timeout say the same; only names with a
/// line are in `unannounced`.
#[derive(Debug, Default)]
pub struct Queues {
    waiters: BTreeMap<Place, Queued>,
    lines: HashMap<Name, Line>,
    seats: HashMap<Seat, Place>,
    tokens: HashMap<Token, BTreeSet<Place>>,
    timeouts: BTreeSet<(u64, Place)>,
    /// The ends of leases that somebody waits for and nobody was told of in advance.
    unannounced: Schedule,
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
        self.waiters.get(&place).map(|queued| &queued.waiter)
    }

    /// Which name held up the waiter at a place when it was looked at last.
    pub fn held_up_by(&self, place: Place) -> Option<&Name> {
        let Queued { waiter, held_up_by } = self.waiters.get(&place)?;
        waiter.names.as_slice().get((*held_up_by)?)
    }

    /// Notes which of its names holds up the waiter at a place; `None`: it is to be looked at anew.
    pub fn hold_up(&mut self, place: Place, by: Option<usize>) {
        if let Some(queued) = self.waiters.get_mut(&place) {
            queued.held_up_by = by;
        }
    }

    /// The queue of a name, first in line first.
    pub fn line(&self, name: &Name) -> impl Iterator<Item = (Place, &Waiter)> {
        let line = self.lines.get(name).into_iter();
        let places = line.flat_map(|line| &line.places);
        places.filter_map(|place| Some((*place, self.at(*place)?)))
    }

    /// Notes who holds a name that somebody waits for. Of a lock with many holders nothing is noted.
    pub fn note_holders(&mut self, name: &Name, holders: &Holders) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        line.holders.clear();
        if holders.len() <= MOST_NOTED {
            line.holders
                .extend(holders.iter().map(|own| own.token.clone()));
        }
    }

    /// Forgets who holds a name: something happened there that is not settled yet.
    pub fn forget_holders(&mut self, name: &Name) {
        if let Some(line) = self.lines.get_mut(name) {
            line.holders.clear();
        }
    }

    /// Forgets who holds any name.
    pub fn forget_all_holders(&mut self) {
        for line in self.lines.values_mut() {
            line.holders.clear();
        }
    }

    /// Whether somebody waits for a name that is known to be held by others than this token. Who comes
    /// now is behind them, whatever the lock is like.
    pub fn is_behind(&self, name: &Name, token: &Token) -> bool {
        let line = self.lines.get(name);
        line.is_some_and(|line| !line.holders.is_empty() && !line.holders.contains(token))
    }

    /// How long the queue of a name is.
    pub fn line_len(&self, name: &Name) -> usize {
        self.lines.get(name).map_or(0, |line| line.places.len())
    }

    /// The waits of a token in the queue of a name. Looks through that queue or through all waits of the
    /// token, whichever is shorter.
    pub fn waits_at(&self, token: &Token, name: &Name) -> Vec<Place> {
        let Some(waits) = self.tokens.get(token) else {
            return Vec::new();
        };
        let is_at = |place: &Place| {
            let waiter = self.at(*place);
            waiter.is_some_and(|waiter| waiter.ask.token == *token && waiter.names.contains(name))
        };
        match self.lines.get(name) {
            Some(line) if line.places.len() < waits.len() => {
                line.places.iter().copied().filter(is_at).collect()
            }
            Some(_) => waits.iter().copied().filter(is_at).collect(),
            None => Vec::new(),
        }
    }

    /// How many waits a token has.
    pub fn waits_of(&self, token: &Token) -> usize {
        self.tokens.get(token).map_or(0, BTreeSet::len)
    }

    /// Takes a waiter in. Returns its place, and those of its names that nobody waited for before.
    pub fn enqueue(&mut self, waiter: Waiter, end: End) -> (Place, Vec<Name>) {
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
        let mut new_lines = Vec::new();
        for name in &waiter.names {
            let line = self.lines.entry(name.clone()).or_default();
            if line.places.is_empty() {
                new_lines.push(name.clone());
            }
            line.places.insert(place);
        }
        self.tokens
            .entry(waiter.ask.token.clone())
            .or_default()
            .insert(place);
        self.sit(place, waiter);
        (place, new_lines)
    }

    /// Gives a place to another connection of the same token: its own lease, limit, timeout and
    /// client, the same names, mode and waiting time. Returns the seat that had it.
    pub fn take_over(&mut self, place: Place, newer: Waiter) -> Option<Seat> {
        let older = self.stand_up(place)?;
        let since_ms = older.since_ms;
        self.sit(place, Waiter { since_ms, ..newer });
        Some(older.seat)
    }

    /// Takes a waiter out of all its queues.
    pub fn remove(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.stand_up(place)?;
        if let Some(places) = self.tokens.get_mut(&waiter.ask.token) {
            places.remove(&place);
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

    /// Those whose time is over at `steady_ms`, at most `most` of them.
    pub fn timed_out(&self, steady_ms: u64, most: usize) -> Vec<Place> {
        let due = self.timeouts.iter().take_while(|(ms, _)| *ms <= steady_ms);
        due.take(most).map(|(_, place)| *place).collect()
    }

    /// When the first wait is over, on the steady clock in ms.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        self.timeouts.first().map(|(ms, _)| *ms)
    }

    /// The next lease at a name with a queue ends at `end_ms`: that is to be announced once.
    pub fn expect_end(&mut self, name: &Name, end_ms: Option<u64>) {
        let end_ms = end_ms.filter(|_| self.has_line(name));
        self.unannounced.set(name, end_ms);
    }

    /// The names where a lease ends by `until_ms`, at most `most` of them, each told once for an end.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        let names = self.unannounced.due(until_ms, most);
        for name in &names {
            self.unannounced.set(name, None);
        }
        names
    }

    /// When the next end is that was not announced yet, on the steady clock in ms.
    pub fn next_unannounced_ms(&self) -> Option<u64> {
        self.unannounced.next_ms()
    }

    fn sit(&mut self, place: Place, waiter: Waiter) {
        self.seats.insert(waiter.seat, place);
        self.timeouts
            .extend(waiter.timeout_ms.map(|ms| (ms, place)));
        let queued = Queued {
            waiter,
            held_up_by: None,
        };
        self.waiters.insert(place, queued);
    }

    fn stand_up(&mut self, place: Place) -> Option<Waiter> {
        let Queued { waiter, .. } = self.waiters.remove(&place)?;
        self.seats.remove(&waiter.seat);
        if let Some(ms) = waiter.timeout_ms {
            self.timeouts.remove(&(ms, place));
        }
        Some(waiter)
    }

    fn leave_line(&mut self, name: &Name, place: Place) {
        let Some(line) = self.lines.get_mut(name) else {
            return;
        };
        line.places.remove(&place);
        if line.places.is_empty() {
            self.lines.remove(name);
            self.unannounced.set(name, None);
        }
    }

    /// Checks the invariants of the type, for tests.
    ///
    /// # Errors
    /// The first invariant that doesn't hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let waiters = || self.waiters.values().map(|queued| &queued.waiter);
        let in_lines: usize = self.lines.values().map(|line| line.places.len()).sum();
        let wanted: usize = waiters().map(|w| w.names.count()).sum();
        let in_tokens: usize = self.tokens.values().map(BTreeSet::len).sum();
        let with_timeout = waiters().filter(|w| w.timeout_ms.is_some()).count();
        let complaints = [
            (in_lines != wanted, "places in lines"),
            (in_tokens != self.waiters.len(), "places by token"),
            (self.seats.len() != self.waiters.len(), "seats"),
            (self.timeouts.len() != with_timeout, "timeouts"),
            (!self.unannounced.is_sound(), "ends to announce"),
            (
                self.unannounced.len() > self.lines.len(),
                "ends to announce without a line",
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
