//! The one way in: every command, timer and event that concerns a lock is carried out here.
//!
//! To settle a name is to end the leases that have run out and then, while the head of the queue
//! is admitted, to grant to it. Each name is settled as something happens there; of an order's names
//! those are settled before it is decided where that was still to be done, so that nobody barges in,
//! and those afterwards whose locks it changed, because that may admit the next. When a lease and a
//! BLOCK end in the same moment the grant wins: timeouts are looked at last.
//!
//! Where many are admitted at once, one order grants to some of them and leaves the others to the
//! next, so that the server serves its clients in between. Nobody overtakes them: they stand in
//! their queues meanwhile.
//!
//! The desk reads locks through a [`Server`] and writes none: what is to change in the keyspace
//! leaves as [`Effect`]s, who is to be woken as [`Wake`]s. All times are those of the steady clock,
//! but for the deadlines of leases.

use std::collections::{BTreeSet, HashSet};

use crate::bench::{Bench, Finished};
pub use crate::bench::{Server, Slot, World};
use crate::effect::{Effect, Stored};
use crate::hand_over::{Grant, HandOver, Origin, Replaced};
use crate::lock::{Holder, Lock, Mode, Standing};
use crate::name::Name;
use crate::order::{Ask, Leave, Life, Names, Order, Repeat};
use crate::queue::{End, Place, Queues, Seat, Waiter};
use crate::refusal::Refusal;
use crate::schedule::Schedule;
use crate::session::{TieId, Ties};
use crate::token::Token;

/// After how many steps an order grants to no further waiter.
const MOST_STEPS: u64 = 2048;

/// How many steps it counts to answer a waiter, which takes the server longer than all the rest.
const WAKE_STEPS: u64 = 16;

/// When to look again at a queue where nothing may be granted now, in ms. What stands in the way, as
/// the migration of a slot, takes longer than that.
const RETRY_MS: u64 = 20;

/// Who gives an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection's client id; 0 when there is none.
    pub client_id: u64,
    /// The seat it takes if it has to wait.
    pub seat: Seat,
}

impl Caller {
    /// The server itself. It never waits, so the seat is nobody's.
    pub const NOBODY: Self = Self {
        client_id: 0,
        seat: Seat(0),
    };
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds.
    Granted(Grant),
    /// It doesn't, and it isn't waiting.
    NotNow,
    /// The caller waits at its seat.
    Queued,
    /// How many names it changed.
    Count(usize),
}

/// Why a waiter's wait is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds now.
    Granted(HandOver),
    /// Its BLOCK is over.
    TimedOut,
    /// An error ends its wait.
    Refused(Refusal),
}

/// A waiter to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Whom.
    pub seat: Seat,
    /// With what.
    pub verdict: Verdict,
}

/// All that follows from an order: to be done in this order, effects, then the caller, then wakes.
#[derive(Debug)]
pub struct Outcome {
    /// For the caller.
    pub answer: Result<Answer, Refusal>,
    /// For the keyspace, the replicas and the append-only file.
    pub effects: Vec<Effect>,
    /// For those who waited.
    pub wakes: Vec<Wake>,
}

/// What the desk counts, since the module was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Grants with a fence of their own: repeats don't count.
    pub grants: u64,
    /// Those among them that went to one who waited.
    pub hand_overs: u64,
    /// Leases that ended without a RELEASE, as far as the desk saw them end.
    pub lapses: u64,
    /// Waits that ended at their BLOCK.
    pub timeouts: u64,
    /// Places that went to a newer connection of the same token.
    pub take_overs: u64,
    /// Hand-overs undone because the client was gone.
    pub take_backs: u64,
}

/// The queues and the ties, and the rules by which they move.
#[derive(Debug, Default)]
pub struct Desk {
    queues: Queues,
    ties: Ties,
    /// Names that are to be settled at some time: a lease ends there that somebody waits for, or
    /// that is one of several.
    schedule: Schedule,
    /// Waiters that may be admitted and were not looked at yet, and from when on they can be.
    pending: BTreeSet<(u64, Place)>,
    tally: Tally,
    steps: u64,
}

/// How a newcomer stands to all its names and their queues.
enum Stand {
    /// It can be granted, keeping this fence or with a new one.
    Clear { kept_fence: Option<u64> },
    /// It can't be granted now: its name with this number is the first that is in the way.
    Hold { upgrades: usize, by: usize },
    /// One of its names holds another type.
    Foreign,
}

/// How a waiter stands to all its names and their queues.
enum Turn {
    /// It can be granted, keeping this fence or with a new one.
    Come { kept_fence: Option<u64> },
    /// Its name with this number is held, or queued for by somebody before it.
    HeldUp { by: usize },
    /// One of its names holds another type.
    Foreign,
}

/// How a request stands to one of its names and to the queue there.
enum At {
    /// Nothing is in its way.
    Open,
    /// Its token holds there already, under this fence, in a mode that stays or is given freely.
    Held { fence: u64 },
    /// Its token holds there, alone, in another mode.
    Upgrade,
    /// Its token holds there beside others, in another mode.
    UpgradeBarred,
    /// Somebody else holds, or comes before it.
    Barred,
    /// Another type's key.
    Foreign,
}

/// The fences of what a token holds already, as long as they are one and the same.
#[derive(Default)]
struct Kept {
    held: usize,
    fence: Option<u64>,
    mixed: bool,
}

impl Kept {
    fn add(&mut self, fence: u64) {
        self.held += 1;
        self.mixed |= self
            .fence
            .replace(fence)
            .is_some_and(|other| other != fence);
    }

    /// The fence that a grant of so many names keeps: all of them are held under it.
    fn of(self, names: usize) -> Option<u64> {
        self.fence.filter(|_| self.held == names && !self.mixed)
    }
}

/// What an order still has to look at: the first in line first, whoever brought it up.
#[derive(Default)]
struct Agenda {
    places: BTreeSet<Place>,
    /// Names at which something may be due at another time than before.
    names: Vec<Name>,
}

impl Desk {
    /// A desk where nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queues, to look at.
    pub const fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The ties, to look at.
    pub const fn ties(&self) -> &Ties {
        &self.ties
    }

    /// When something is due without anybody's order, on the steady clock in ms.
    pub fn next_due_ms(&self) -> Option<u64> {
        let times = [
            self.schedule.next_ms(),
            self.queues.next_timeout_ms(),
            self.ties.next_due_ms(),
            self.pending.first().map(|(ms, _)| *ms),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether a name is to be settled at some time without anybody's order.
    pub fn is_scheduled(&self, name: &Name) -> bool {
        self.schedule.time_of(name).is_some()
    }

    /// The counts, to look at.
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How many steps all orders took so far: names looked at, waiters taken out or granted.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Carries out one order.
    pub fn carry_out(&mut self, order: Order, caller: Caller, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world, order.names().count());
        let unsettled = self.unsettled(order.names(), &mut bench);
        self.settle(&unsettled, &mut bench);
        let answer = self.decide(order, caller, &mut bench);
        self.settle(&[], &mut bench);
        self.close(answer, bench)
    }

    /// Of these names, those where somebody waits and where something has happened, or was to happen
    /// by now: all others were settled as that happened.
    fn unsettled(&self, names: &Names, bench: &mut Bench<'_, '_>) -> Vec<Name> {
        let steady_ms = bench.moment().steady_ms;
        let is_over = |ms: Option<u64>| ms.is_some_and(|ms| ms <= steady_ms);
        let any_due = is_over(self.schedule.next_ms()) || is_over(self.queues.next_timeout_ms());
        if !any_due && bench.nothing_touched {
            return Vec::new();
        }
        let unsettled = names.iter().filter(|name| {
            let head = self
                .queues
                .head(name)
                .and_then(|place| self.queues.at(place));
            head.is_some_and(|head| {
                is_over(head.timeout_ms)
                    || is_over(self.schedule.time_of(name))
                    || bench.world.server.is_touched(name)
            })
        });
        unsettled.cloned().collect()
    }

    /// The names to settle at `steady_ms` without anybody's order: those that are scheduled, with a
    /// tie that is due, with a waiter whose time is over or who may be admitted; at most `most` of
    /// each kind.
    pub fn due_names(&mut self, steady_ms: u64, most: usize) -> Vec<Name> {
        self.ties.mark_orphans(most);
        let mut due = self.schedule.due(steady_ms, most);
        let ties = self.ties.due(steady_ms, most);
        due.extend(ties.into_iter().map(|(_, name)| name));
        let pending = self.pending_until(steady_ms, most).into_iter();
        let waiters = pending
            .map(|(_, place)| place)
            .chain(self.queues.timed_out(steady_ms, most));
        due.extend(waiters.filter_map(|place| self.name_for(place)));
        due
    }

    fn pending_until(&self, steady_ms: u64, most: usize) -> Vec<(u64, Place)> {
        let due = self.pending.iter().take_while(|(ms, _)| *ms <= steady_ms);
        due.take(most).copied().collect()
    }

    /// The name by which it is decided whether a waiter may be granted now: all of its names are in
    /// one slot, if there are slots.
    fn name_for(&self, place: Place) -> Option<Name> {
        let waiter = self.queues.at(place)?;
        let held_up_by = self.queues.held_up_by(place);
        held_up_by.or(waiter.names.iter().next()).cloned()
    }

    /// Settles these names, and ends the waits whose time is over; at most `most` of those.
    ///
    /// Of the names that are due, the caller leaves out those where nothing may be granted now.
    pub fn settle_due(&mut self, names: &[Name], most: usize, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world, names.len());
        let steady_ms = bench.moment().steady_ms;
        let settled: HashSet<&Name> = names.iter().collect();
        let mut ties = bench.ties.due(steady_ms, most);
        ties.retain(|(_, name)| settled.contains(name));
        for (id, name) in &ties {
            bench.renew(name, *id);
        }
        let mut agenda = Agenda {
            places: self.take_pending(steady_ms, most, &settled),
            names: Vec::new(),
        };
        for name in names {
            self.look_at(name, &mut agenda, &mut bench);
        }
        self.work_off(agenda, &mut bench);
        self.time_out(most, &settled, &mut bench);
        let outcome = self.close(Ok(Answer::NotNow), bench);
        for (id, _) in ties {
            // Still due after its name was settled: the grant is gone.
            if self.ties.is_due(id, steady_ms) {
                self.ties.untie(id);
            }
        }
        outcome
    }

    /// Takes out those who are pending at these names, and those who left meanwhile.
    fn take_pending(
        &mut self,
        steady_ms: u64,
        most: usize,
        names: &HashSet<&Name>,
    ) -> BTreeSet<Place> {
        let mut taken = BTreeSet::new();
        for pending in self.pending_until(steady_ms, most) {
            let name = self.name_for(pending.1);
            if name.is_none_or(|name| names.contains(&name)) {
                self.pending.remove(&pending);
                taken.insert(pending.1);
            }
        }
        taken
    }

    /// Ends the waits that are due where nothing may be granted, as during CLIENT PAUSE.
    pub fn time_out_due(&mut self, most: usize, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world, 0);
        self.time_out(most, &HashSet::new(), &mut bench);
        self.close(Ok(Answer::NotNow), bench)
    }

    /// Ends the waits whose time is over, at most `most`. The names that they leave are settled, or,
    /// where that may not be done now, are due at once.
    fn time_out(&mut self, most: usize, settled: &HashSet<&Name>, bench: &mut Bench<'_, '_>) {
        let steady_ms = bench.moment().steady_ms;
        for place in self.queues.timed_out(steady_ms, most) {
            if bench.steps >= MOST_STEPS {
                return;
            }
            let mut agenda = Agenda::default();
            if self
                .name_for(place)
                .is_some_and(|name| settled.contains(&name))
            {
                agenda.places.insert(place);
            } else {
                for name in self.end_wait(place, Verdict::TimedOut, bench) {
                    self.schedule.set(&name, Some(steady_ms));
                }
            }
            self.work_off(agenda, bench);
        }
    }

    /// The names whose next lease, for the end of which somebody waits, ends by `until_ms`: at most
    /// `most` of them, each told once.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        self.queues.announce_ends(until_ms, most)
    }

    /// The wall clock was set: when leases end is to be found out anew.
    pub fn clock_was_set(&mut self, steady_ms: u64) {
        self.schedule.set_all(steady_ms);
    }

    /// Puts off what is due at these names, where nothing may be written now: queues shortly, ties for
    /// a part of their lease. Ties that are due and whose grant is gone, as after the key's slot moved
    /// to another server, are dropped; at most `most` of them are looked at.
    pub fn put_off(&mut self, names: &[Name], most: usize, world: &mut World<'_>) {
        let steady_ms = world.moment.steady_ms;
        let later_ms = steady_ms.saturating_add(RETRY_MS);
        for name in names {
            self.queues.forget_holders(name);
            let scheduled = self.schedule.time_of(name).is_some();
            if scheduled || self.queues.has_line(name) {
                self.schedule.set(name, Some(later_ms));
            }
        }
        let names: HashSet<&Name> = names.iter().collect();
        let pending = self.take_pending(steady_ms, most, &names);
        self.pending
            .extend(pending.into_iter().map(|place| (later_ms, place)));
        for (id, name) in self.ties.due(steady_ms, most) {
            if !names.contains(&name) {
                continue;
            }
            if is_tied(&world.server.read(&name), id) {
                self.ties.put_off(id, steady_ms);
            } else {
                self.ties.untie(id);
            }
        }
    }

    /// Takes a seat out of the queues: its connection is gone or was answered by the server.
    /// Returns the names to settle.
    pub fn leave(&mut self, seat: Seat) -> Vec<Name> {
        let place = self.queues.place_of(seat);
        let waiter = place.and_then(|place| self.queues.remove(place));
        waiter.map_or_else(Vec::new, |waiter| waiter.names.iter().cloned().collect())
    }

    /// A connection is gone: what is tied to it has ended.
    pub fn orphan(&mut self, client_id: u64) {
        self.ties.orphan(client_id);
    }

    /// The values with these ties are gone, and with them the grants.
    pub fn untie(&mut self, ties: impl IntoIterator<Item = TieId>) {
        ties.into_iter().for_each(|id| self.ties.untie(id));
    }

    /// All keys of a database are gone.
    pub fn untie_database(&mut self, db: i32) {
        self.ties.untie_database(db);
    }

    /// The server moved the value with these ties to another name.
    pub fn relocate(&mut self, ties: &[TieId], name: &Name) {
        for id in ties {
            self.ties.move_to(*id, name);
        }
    }

    /// The server had two databases change places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        self.ties.swap_databases(one, other);
    }

    /// All keys of all databases are gone, or the server is no primary any more: its leases run on
    /// untied, and what becomes of its locks is not for this desk to see.
    pub fn untie_all(&mut self) {
        self.ties.clear();
        self.queues.forget_all_holders();
    }

    fn open_bench<'w, 'a>(&mut self, world: &'w mut World<'a>, names: usize) -> Bench<'w, 'a> {
        Bench::new(world, std::mem::take(&mut self.ties), names)
    }

    fn close(&mut self, answer: Result<Answer, Refusal>, bench: Bench<'_, '_>) -> Outcome {
        self.tally.lapses += bench.lapses;
        self.steps += bench.steps;
        let Finished {
            effects,
            ties,
            wakes,
        } = bench.finish();
        self.ties = ties;
        Outcome {
            answer,
            effects,
            wakes,
        }
    }

    fn decide(
        &mut self,
        order: Order,
        caller: Caller,
        bench: &mut Bench<'_, '_>,
    ) -> Result<Answer, Refusal> {
        match order {
            Order::Acquire { names, ask } => self.acquire(&names, &ask, caller, bench),
            Order::Wait {
                names,
                ask,
                block_ms,
            } => self.wait(names, ask, block_ms, caller, bench),
            Order::Extend {
                names,
                token,
                lease_ms,
                life,
            } => extend(&names, &token, lease_ms, life, caller, bench),
            Order::Release {
                names,
                token,
                leave,
            } => release(&names, &token, leave, bench),
            Order::TakeBack(hand_over) => Ok(self.take_back(hand_over, bench)),
        }
    }

    fn acquire(
        &mut self,
        names: &Names,
        ask: &Ask,
        caller: Caller,
        bench: &mut Bench<'_, '_>,
    ) -> Result<Answer, Refusal> {
        match self.stand(names, ask, bench) {
            Stand::Foreign => Err(Refusal::WrongType),
            Stand::Hold { .. } => Ok(Answer::NotNow),
            Stand::Clear { kept_fence } => Ok(Answer::Granted(self.grant(
                names,
                ask,
                kept_fence,
                caller.client_id,
                bench,
            ))),
        }
    }

    fn wait(
        &mut self,
        names: Names,
        ask: Ask,
        block_ms: u64,
        caller: Caller,
        bench: &mut Bench<'_, '_>,
    ) -> Result<Answer, Refusal> {
        let (upgrades, by) = match self.stand(&names, &ask, bench) {
            Stand::Foreign => return Err(Refusal::WrongType),
            Stand::Hold { upgrades, by } => (upgrades, by),
            Stand::Clear { kept_fence } => {
                let grant = self.grant(&names, &ask, kept_fence, caller.client_id, bench);
                return Ok(Answer::Granted(grant));
            }
        };
        if upgrades > 0 && self.would_deadlock(&names, &ask, bench) {
            return Err(Refusal::Deadlock);
        }
        let now_ms = bench.moment().steady_ms;
        let waiter = Waiter {
            seat: caller.seat,
            client_id: caller.client_id,
            names,
            ask,
            since_ms: now_ms,
            timeout_ms: (block_ms > 0).then(|| now_ms.saturating_add(block_ms)),
        };
        if let Some(place) = self.place_to_take_over(&waiter) {
            self.tally.take_overs += 1;
            let seat = self.queues.take_over(place, waiter);
            // With another limit it may be admitted where it stands.
            bench.again.push(place);
            let verdict = Verdict::Refused(Refusal::TakenOver);
            bench.wakes.extend(seat.map(|seat| Wake { seat, verdict }));
            return Ok(Answer::Queued);
        }
        if bench.world.max_waiters > 0 && self.queues.len() >= bench.world.max_waiters {
            return Err(Refusal::MaxWaiters);
        }
        let end = if upgrades > 0 { End::Front } else { End::Back };
        let (place, new_lines) = self.queues.enqueue(waiter, end);
        self.queues.hold_up(place, Some(by));
        for name in new_lines {
            self.reschedule(&name, bench);
        }
        Ok(Answer::Queued)
    }

    /// Two holders that both wait to be alone wait for each other. A request for several names
    /// with an upgrade among them could close such a circle through another name.
    fn would_deadlock(&self, names: &Names, ask: &Ask, bench: &mut Bench<'_, '_>) -> bool {
        names.count() > 1
            || names.iter().any(|name| {
                let lock = bench.open(name);
                lock.is_some_and(|lock| self.awaits_upgrade(name, lock, &ask.token))
            })
    }

    /// Whether another holder than `token` waits to be alone here. Looks through the holders or the
    /// queue, whichever is shorter.
    fn awaits_upgrade(&self, name: &Name, lock: &Lock, token: &Token) -> bool {
        let alone = |waiter: &Waiter| {
            waiter.ask.mode == Mode::Exclusive
                && waiter.ask.token != *token
                && waiter.names.contains(name)
        };
        if self.queues.line_len(name) < lock.holders().len() {
            let mut line = self.queues.line(name);
            return line
                .any(|(_, waiter)| alone(waiter) && lock.holder(&waiter.ask.token).is_some());
        }
        let mut holders = lock.holders().iter();
        holders.any(|own| {
            let waits = self.queues.waits_at(&own.token, name).into_iter();
            let mut waiters = waits.filter_map(|place| self.queues.at(place));
            waiters.any(alone)
        })
    }

    fn place_to_take_over(&self, newer: &Waiter) -> Option<Place> {
        let name = newer.names.iter().next()?;
        let mut own = self.queues.waits_at(&newer.ask.token, name).into_iter();
        own.find(|place| {
            let older = self.queues.at(*place);
            older
                .is_some_and(|older| older.names == newer.names && older.ask.mode == newer.ask.mode)
        })
    }

    fn take_back(&mut self, undelivered: HandOver, bench: &mut Bench<'_, '_>) -> Answer {
        let HandOver {
            grant: Grant { token, fence },
            names,
            replaced,
            ..
        } = undelivered;
        let now_ms = bench.moment().ms();
        let mut count = 0;
        for name in &names {
            let lock = bench.open(name);
            let own = lock.and_then(|lock| lock.holder(&token));
            // A later grant to the same token is another one's business.
            if own.is_none_or(|own| own.fence != fence) {
                continue;
            }
            let Some(lock) = bench.edit(name) else {
                continue;
            };
            lock.remove(&token);
            count += 1;
            let before = replaced.iter().find(|before| before.name == *name);
            if let Some(before) = before.filter(|before| before.holder.deadline_ms > now_ms) {
                lock.grant(before.mode, before.holder.clone());
            }
        }
        self.tally.take_backs += u64::from(count > 0);
        Answer::Count(count)
    }

    /// How a newcomer stands. All its names are looked at, for another type's key.
    fn stand(&self, names: &Names, ask: &Ask, bench: &mut Bench<'_, '_>) -> Stand {
        let mut kept = Kept::default();
        let mut barred = None;
        let mut upgrades = 0;
        for (by, name) in names.iter().enumerate() {
            match self.at(name, ask, None, bench) {
                At::Open => {}
                At::Held { fence } => kept.add(fence),
                At::Upgrade => upgrades += 1,
                At::UpgradeBarred => {
                    upgrades += 1;
                    barred = barred.or(Some(by));
                }
                At::Barred => barred = barred.or(Some(by)),
                At::Foreign => return Stand::Foreign,
            }
        }
        match barred {
            Some(by) => Stand::Hold { upgrades, by },
            None => Stand::Clear {
                kept_fence: kept.of(names.count()),
            },
        }
    }

    /// Whether it is a waiter's turn. The name that held it up before is looked at first: while that
    /// one does so still, the others need no look.
    fn turn(&self, place: Place, waiter: &Waiter, bench: &mut Bench<'_, '_>) -> Turn {
        let names = waiter.names.as_slice();
        let known = self.queues.held_up_by(place);
        let known = known.and_then(|name| Some((name, names.binary_search(name).ok()?)));
        if let Some((name, by)) = known {
            match self.at(name, &waiter.ask, Some(place), bench) {
                At::UpgradeBarred | At::Barred => return Turn::HeldUp { by },
                At::Foreign => return Turn::Foreign,
                At::Open | At::Held { .. } | At::Upgrade => {}
            }
        }
        let mut kept = Kept::default();
        for (by, name) in names.iter().enumerate() {
            match self.at(name, &waiter.ask, Some(place), bench) {
                At::UpgradeBarred | At::Barred => return Turn::HeldUp { by },
                At::Open if bench.is_away(name) => return Turn::HeldUp { by },
                At::Open | At::Upgrade => {}
                At::Held { fence } => kept.add(fence),
                At::Foreign => return Turn::Foreign,
            }
        }
        Turn::Come {
            kept_fence: kept.of(names.len()),
        }
    }

    /// How a request stands at one of its names: a newcomer without a place, or the waiter at `place`.
    ///
    /// What its token holds already needs no turn, or a holder could wait for those who wait for it.
    fn at(&self, name: &Name, ask: &Ask, place: Option<Place>, bench: &mut Bench<'_, '_>) -> At {
        bench.steps += 1;
        // To read a lock costs more than all the rest. What is known of its holders holds as long as
        // nothing has happened to any key that the desk was not told of.
        let is_newcomer = place.is_none() && bench.nothing_touched;
        if is_newcomer && self.queues.is_behind(name, &ask.token) {
            return At::Barred;
        }
        let Some(lock) = bench.open(name) else {
            return At::Foreign;
        };
        match lock.standing(ask) {
            Standing::Repeat { fence } | Standing::Downgrade { fence } => At::Held { fence },
            Standing::Upgrade => At::Upgrade,
            Standing::UpgradeBlocked => At::UpgradeBarred,
            Standing::Blocked => At::Barred,
            Standing::Admitted => match self.queues.head(name) {
                Some(head) if Some(head) != place => At::Barred,
                _ => At::Open,
            },
        }
    }

    /// Makes the grant that [`Desk::stand`] found clear, or [`Desk::turn`].
    fn grant(
        &mut self,
        names: &Names,
        ask: &Ask,
        kept_fence: Option<u64>,
        client_id: u64,
        bench: &mut Bench<'_, '_>,
    ) -> Grant {
        let now_ms = bench.moment().ms();
        let fence = kept_fence.unwrap_or_else(|| bench.world.fences.next(bench.world.moment));
        for name in names {
            let tie = bench.bind(name, &ask.token, ask.life, ask.lease_ms, client_id);
            let Some(lock) = bench.open(name) else {
                continue;
            };
            let own = lock.holder(&ask.token);
            let holds = own.map_or(1, |own| match ask.repeat {
                Repeat::Renews => own.holds,
                Repeat::Counts => own.holds.saturating_add(1),
            });
            let since_ms = own
                .filter(|own| own.fence == fence)
                .map_or(now_ms, |own| own.since_ms);
            let holder = Holder {
                token: ask.token.clone(),
                fence,
                holds,
                limit: ask.limit,
                deadline_ms: now_ms.saturating_add(ask.lease_ms),
                since_ms,
                client_id,
                tie,
            };
            if let Some(lock) = bench.edit(name) {
                lock.grant(ask.mode, holder);
            }
            if kept_fence.is_some() {
                bench.affirm(name, &ask.token);
            }
        }
        self.tally.grants += u64::from(kept_fence.is_none());
        bench.granted.push((ask.token.clone(), names.clone()));
        Grant {
            token: ask.token.clone(),
            fence,
        }
    }

    /// Settles these names, and those whose locks were changed meanwhile.
    fn settle(&mut self, names: &[Name], bench: &mut Bench<'_, '_>) {
        let mut agenda = Agenda::default();
        for name in names {
            self.look_at(name, &mut agenda, bench);
        }
        self.work_off(agenda, bench);
    }

    /// Puts on the agenda what an order has brought up.
    fn look_at_changes(&mut self, agenda: &mut Agenda, bench: &mut Bench<'_, '_>) {
        self.look_at_granted(agenda, bench);
        while let Some(name) = bench.changed.pop() {
            self.look_at(&name, agenda, bench);
        }
        agenda.places.extend(bench.again.drain(..));
    }

    /// Puts on the agenda who may be admitted after something happened at this name: the first in its
    /// queue, and who waits to be alone there where it is alone now.
    fn look_at(&mut self, name: &Name, agenda: &mut Agenda, bench: &mut Bench<'_, '_>) {
        bench.steps += 1;
        self.count_expired(name, bench);
        let Some(head) = self.queues.head(name) else {
            // Opening the name ends its lapsed leases, whether anybody waits or not.
            if bench.holders_at(name) > 1 || self.schedule.time_of(name).is_some() {
                agenda.names.push(name.clone());
            }
            return;
        };
        agenda.names.push(name.clone());
        agenda.places.insert(head);
        let Some(lock) = bench.open(name) else {
            // Whatever else holds it up: it is to be told of this first.
            let names = self.queues.at(head).map(|waiter| waiter.names.as_slice());
            let by = names.and_then(|names| names.binary_search(name).ok());
            self.queues.hold_up(head, by);
            return;
        };
        if lock.mode() == Mode::Shared {
            if let Some(sole) = lock.holders().sole().map(|own| own.token.clone()) {
                self.look_at_waits_of(&sole, name, agenda, &mut bench.steps);
            }
        }
    }

    /// Puts on the agenda the waits of a token that were held up by this name.
    fn look_at_waits_of(&self, token: &Token, name: &Name, agenda: &mut Agenda, steps: &mut u64) {
        let shorter = self.queues.line_len(name).min(self.queues.waits_of(token));
        *steps += shorter as u64;
        let waits = self.queues.waits_at(token, name).into_iter();
        let here = waits.filter(|place| self.queues.held_up_by(*place) == Some(name));
        agenda.places.extend(here);
    }

    /// Looks at those on the agenda, the first in line first, and at whom that brings up, until
    /// nobody is left or the order has taken enough steps.
    fn work_off(&mut self, mut agenda: Agenda, bench: &mut Bench<'_, '_>) {
        self.look_at_changes(&mut agenda, bench);
        while bench.steps < MOST_STEPS {
            let Some(place) = agenda.places.pop_first() else {
                break;
            };
            for name in self.examine(place, &mut agenda, bench) {
                self.look_at(&name, &mut agenda, bench);
            }
            self.look_at_changes(&mut agenda, bench);
        }
        let steady_ms = bench.moment().steady_ms;
        let left = agenda.places.into_iter().map(|place| (steady_ms, place));
        self.pending.extend(left);
        for name in agenda.names {
            self.reschedule(&name, bench);
        }
        debug_assert!(bench.changed.is_empty(), "a change that nobody looked at");
    }

    /// A grant to a token can be all that another wait of it was held up for: what a token holds
    /// needs no turn.
    fn look_at_granted(&self, agenda: &mut Agenda, bench: &mut Bench<'_, '_>) {
        for (token, names) in std::mem::take(&mut bench.granted) {
            if self.queues.waits_of(&token) == 0 {
                continue;
            }
            for name in &names {
                self.look_at_waits_of(&token, name, agenda, &mut bench.steps);
            }
        }
    }

    /// When a name is to be settled again: as its next lease ends, if somebody waits for that or other
    /// leases go on; or soon, where a lock is away that somebody needs.
    fn reschedule(&mut self, name: &Name, bench: &mut Bench<'_, '_>) {
        let moment = bench.moment();
        let has_line = self.queues.has_line(name);
        let ends = bench.open(name).and_then(|lock| {
            let matters = has_line || lock.holders().len() > 1;
            lock.earliest_deadline_ms().filter(|_| matters)
        });
        let end_ms = ends.map(|ms| moment.steady_at(ms));
        let retry_ms = (has_line && bench.was_away(name)).then(|| moment.steady_ms + RETRY_MS);
        self.schedule.set(name, end_ms.or(retry_ms));
        self.queues.expect_end(name, end_ms);
        match bench.open(name) {
            Some(lock) => self.queues.note_holders(name, lock.holders()),
            None => self.queues.forget_holders(name),
        }
    }

    /// A lease may have ended by the key's own expiry before anybody looked.
    fn count_expired(&self, name: &Name, bench: &mut Bench<'_, '_>) {
        let steady_ms = bench.moment().steady_ms;
        let due = self
            .schedule
            .time_of(name)
            .is_some_and(|ms| ms <= steady_ms);
        if due && !bench.has_opened(name) && bench.came_empty(name) {
            bench.lapses += 1;
        }
    }

    /// Lets a waiter go, if its wait is over: the names that it leaves.
    fn examine(
        &mut self,
        place: Place,
        agenda: &mut Agenda,
        bench: &mut Bench<'_, '_>,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.at(place) else {
            return Vec::new();
        };
        match self.turn(place, waiter, bench) {
            Turn::Foreign => self.end_wait(place, Verdict::Refused(Refusal::WrongType), bench),
            Turn::Come { .. } if !bench.world.server.permits(waiter) => {
                self.end_wait(place, Verdict::Refused(Refusal::NoPermission), bench)
            }
            Turn::Come { kept_fence } => self.hand_over(place, kept_fence, bench),
            Turn::HeldUp { .. }
                if waiter
                    .timeout_ms
                    .is_some_and(|ms| ms <= bench.moment().steady_ms) =>
            {
                self.end_wait(place, Verdict::TimedOut, bench)
            }
            Turn::HeldUp { by } => {
                agenda
                    .names
                    .extend(waiter.names.as_slice().get(by).cloned());
                self.queues.hold_up(place, Some(by));
                Vec::new()
            }
        }
    }

    fn hand_over(
        &mut self,
        place: Place,
        kept_fence: Option<u64>,
        bench: &mut Bench<'_, '_>,
    ) -> Vec<Name> {
        let Some(waiter) = self.queues.remove(place) else {
            return Vec::new();
        };
        let Waiter {
            seat,
            client_id,
            names,
            ask,
            ..
        } = waiter;
        let replaced = held_by(&ask.token, &names, bench);
        let grant = self.grant(&names, &ask, kept_fence, client_id, bench);
        self.tally.hand_overs += 1;
        let vacated = names.as_slice().to_vec();
        let verdict = Verdict::Granted(HandOver {
            grant,
            names,
            client_id,
            origin: kept_fence.map_or(Origin::New, |_| Origin::Kept),
            replaced,
        });
        wake(seat, verdict, vacated.len(), bench);
        vacated
    }

    /// Takes a waiter out with an answer; the names that it leaves.
    fn end_wait(&mut self, place: Place, verdict: Verdict, bench: &mut Bench<'_, '_>) -> Vec<Name> {
        let Some(waiter) = self.queues.remove(place) else {
            return Vec::new();
        };
        self.tally.timeouts += u64::from(verdict == Verdict::TimedOut);
        let vacated = waiter.names.as_slice().to_vec();
        wake(waiter.seat, verdict, vacated.len(), bench);
        vacated
    }
}

fn wake(seat: Seat, verdict: Verdict, names: usize, bench: &mut Bench<'_, '_>) {
    bench.steps += WAKE_STEPS + names as u64;
    bench.wakes.push(Wake { seat, verdict });
}

/// Whether a lock with a holder of this tie is there.
fn is_tied(slot: &Slot, id: TieId) -> bool {
    match slot {
        Slot::Lock(stored) => stored.lock.holders().tied(id).is_some(),
        Slot::Empty | Slot::Foreign => false,
    }
}

/// Sets the lease anew; a session also moves the tie to the caller, whom INFO shows from then on.
fn extend(
    names: &Names,
    token: &Token,
    lease_ms: u64,
    life: Life,
    caller: Caller,
    bench: &mut Bench<'_, '_>,
) -> Result<Answer, Refusal> {
    let held = count_held(names, token, bench)?;
    if held < names.count() {
        return Ok(Answer::Count(0));
    }
    let deadline_ms = bench.moment().ms().saturating_add(lease_ms);
    for name in names {
        let tie = bench.bind(name, token, life, lease_ms, caller.client_id);
        let Some(lock) = bench.edit(name) else {
            continue;
        };
        lock.update(token, |own| {
            own.deadline_ms = deadline_ms;
            own.tie = tie;
            if life == Life::Session {
                own.client_id = caller.client_id;
            }
        });
        bench.affirm(name, token);
    }
    Ok(Answer::Count(held))
}

fn release(
    names: &Names,
    token: &Token,
    leave: Leave,
    bench: &mut Bench<'_, '_>,
) -> Result<Answer, Refusal> {
    let held = count_held(names, token, bench)?;
    for name in names {
        let lock = bench.open(name);
        let Some(holds) = lock.and_then(|lock| Some(lock.holder(token)?.holds)) else {
            continue;
        };
        let Some(lock) = bench.edit(name) else {
            continue;
        };
        if leave == Leave::One && holds > 1 {
            lock.update(token, |own| own.holds -= 1);
        } else {
            lock.remove(token);
        }
    }
    Ok(Answer::Count(held))
}

/// The grants in force of this token at these names.
fn held_by(token: &Token, names: &Names, bench: &mut Bench<'_, '_>) -> Vec<Replaced> {
    let mut held = Vec::new();
    for name in names {
        let Some(lock) = bench.open(name) else {
            continue;
        };
        held.extend(lock.holder(token).map(|own| Replaced {
            name: name.clone(),
            mode: lock.mode(),
            holder: own.clone(),
        }));
    }
    held
}

/// How many of the names this token holds.
fn count_held(names: &Names, token: &Token, bench: &mut Bench<'_, '_>) -> Result<usize, Refusal> {
    let mut held = 0;
    for name in names {
        let lock = bench.open(name).ok_or(Refusal::WrongType)?;
        held += usize::from(lock.holder(token).is_some());
    }
    Ok(held)
}

/// A lock as a reader sees it at `now_ms`, on a primary or a replica: without the leases that have
/// ended, none of them longer than the key itself.
pub fn seen(stored: Stored, now_ms: u64) -> Lock {
    let mut lock = stored.lock;
    lock.shorten(stored.expiry_ms.unwrap_or(u64::MAX));
    lock.lapse(now_ms, |_| None);
    lock
}
