//! The one way in: every command, timer and event that concerns a lock is carried out here.
//!
//! To settle a name is to end the leases that have run out and then, while the head of the queue
//! is admitted, to grant to it. The desk settles the names of an order before it decides, so that
//! nobody barges in, and again afterwards, because what was decided may admit the next. When a
//! lease and a BLOCK end in the same moment the grant wins: timeouts are looked at last.
//!
//! The desk reads locks through a [`Shelf`] and writes none: what is to change in the keyspace
//! leaves as [`Effect`]s, who is to be woken as [`Wake`]s.

use std::collections::{HashSet, VecDeque};

use crate::bench::Bench;
pub use crate::bench::{Shelf, Slot, World};
use crate::effect::{Effect, Stored};
use crate::hand_over::{Grant, HandOver, Origin, Replaced};
use crate::lock::{Holder, Lock, Mode, Standing};
use crate::name::Name;
use crate::order::{Ask, Leave, Life, Names, Order, Repeat};
use crate::queue::{End, Place, Queues, Seat, Waiter};
use crate::refusal::Refusal;
use crate::session::{TieId, Ties};
use crate::token::Token;

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
    tally: Tally,
}

/// How a request stands to all its names and their queues.
enum Stand {
    /// It can be granted, keeping this fence or with a new one.
    Clear { kept_fence: Option<u64> },
    /// It can't be granted now.
    Hold { upgrades: usize },
    /// One of its names holds another type.
    Foreign,
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

    /// When something is due without anybody's order, in ms since the epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        let ties = self.ties.next_due_ms();
        self.queues.next_alarm_ms().into_iter().chain(ties).min()
    }

    /// The counts, to look at.
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Carries out one order.
    pub fn carry_out(&mut self, order: Order, caller: Caller, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world);
        let names = order.names().clone();
        self.settle(names.iter().cloned().collect(), &mut bench);
        let answer = self.decide(order, caller, &mut bench);
        self.settle(names.iter().cloned().collect(), &mut bench);
        self.close(answer, bench)
    }

    /// The names to settle at `now_ms` without anybody's order: those with an alarm, with a tie that
    /// is due, or with a waiter whose time is over; at most `most` of each kind.
    pub fn due_names(&self, now_ms: u64, most: usize) -> Vec<Name> {
        let mut due = self.queues.alarmed(now_ms, most);
        due.extend(
            self.ties
                .due(now_ms, most)
                .into_iter()
                .map(|(_, name)| name),
        );
        let late = self.queues.timed_out(now_ms, most);
        let waiters = late.into_iter().filter_map(|place| self.queues.at(place));
        due.extend(waiters.flat_map(|waiter| waiter.names.iter().cloned()));
        due
    }

    /// Settles these names, and ends the waits whose time is over; at most `most` of those.
    ///
    /// Of the names that are due, the caller leaves out those where nothing may be granted now.
    pub fn settle_due(&mut self, names: Vec<Name>, most: usize, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world);
        let now_ms = bench.now_ms();
        let settled: HashSet<Name> = names.iter().cloned().collect();
        let ties = bench.ties.due(now_ms, most);
        self.settle(names, &mut bench);
        for place in self.queues.timed_out(now_ms, most) {
            let vacated = self.end_wait(place, Verdict::TimedOut, &mut bench);
            let (free, held_back) = vacated.into_iter().partition(|name| settled.contains(name));
            self.settle(free, &mut bench);
            self.come_back_to(held_back, now_ms);
        }
        let outcome = self.close(Ok(Answer::NotNow), bench);
        for (id, name) in ties {
            // Still due after its name was settled: the grant is gone.
            if settled.contains(&name) && self.ties.is_due(id, now_ms) {
                self.ties.untie(id);
            }
        }
        outcome
    }

    /// Ends the waits that are due where nothing may be granted, as during CLIENT PAUSE.
    pub fn time_out_due(&mut self, most: usize, world: &mut World<'_>) -> Outcome {
        let mut bench = self.open_bench(world);
        let now_ms = bench.now_ms();
        for place in self.queues.timed_out(now_ms, most) {
            let vacated = self.end_wait(place, Verdict::TimedOut, &mut bench);
            self.come_back_to(vacated, now_ms);
        }
        self.close(Ok(Answer::NotNow), bench)
    }

    /// The names whose next lease, for the end of which somebody waits, ends by `until_ms`: at most
    /// `most` of them, each told once.
    pub fn announce_ends(&mut self, until_ms: u64, most: usize) -> Vec<Name> {
        self.queues.announce(until_ms, most)
    }

    /// Puts off what is due at these names, where nothing may be written now: queues shortly, ties for
    /// a part of their lease. Ties that are due and whose grant is gone, as after the key's slot moved
    /// to another server, are dropped; at most `most` of them are looked at.
    pub fn put_off(&mut self, names: &[Name], most: usize, world: &mut World<'_>) {
        let now_ms = world.moment.ms();
        for name in names {
            self.queues
                .set_alarm(name, Some(now_ms.saturating_add(RETRY_MS)));
        }
        let names: HashSet<&Name> = names.iter().collect();
        for (id, name) in self.ties.due(now_ms, most) {
            if !names.contains(&name) {
                continue;
            }
            if is_tied(&world.shelf.read(&name), id) {
                self.ties.put_off(id, now_ms);
            } else {
                self.ties.untie(id);
            }
        }
    }

    /// Who stood behind one that left may be admitted now: to be found out as soon as that may be.
    fn come_back_to(&mut self, vacated: Vec<Name>, now_ms: u64) {
        for name in vacated {
            self.queues.set_alarm(&name, Some(now_ms));
        }
    }

    /// Takes a seat out of the queues: its connection is gone or was answered by the server.
    /// Returns the names to settle.
    pub fn leave(&mut self, seat: Seat) -> Vec<Name> {
        let place = self.queues.place_of(seat);
        let waiter = place.and_then(|place| self.queues.remove(place));
        waiter.map_or_else(Vec::new, |waiter| waiter.names.iter().cloned().collect())
    }

    /// A connection is gone: what is tied to it ends as its names, which are returned, are settled.
    pub fn orphan(&mut self, client_id: u64) -> Vec<Name> {
        self.ties.orphan(client_id)
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

    /// The server is no primary any more: the leases run on untied.
    pub fn untie_all(&mut self) {
        self.ties.clear();
    }

    fn open_bench<'w, 'a>(&mut self, world: &'w mut World<'a>) -> Bench<'w, 'a> {
        Bench::new(world, std::mem::take(&mut self.ties))
    }

    fn close(&mut self, answer: Result<Answer, Refusal>, mut bench: Bench<'_, '_>) -> Outcome {
        self.tally.lapses += bench.lapses;
        let effects = bench.effects();
        bench.follow_ties();
        self.ties = bench.ties;
        Outcome {
            answer,
            effects,
            wakes: bench.wakes,
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
        match self.stand(names, ask, None, bench) {
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
        let upgrades = match self.stand(&names, &ask, None, bench) {
            Stand::Foreign => return Err(Refusal::WrongType),
            Stand::Hold { upgrades } => upgrades,
            Stand::Clear { kept_fence } => {
                let grant = self.grant(&names, &ask, kept_fence, caller.client_id, bench);
                return Ok(Answer::Granted(grant));
            }
        };
        if upgrades > 0 && self.would_deadlock(&names, &ask, bench) {
            return Err(Refusal::Deadlock);
        }
        let now_ms = bench.now_ms();
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
            let verdict = Verdict::Refused(Refusal::TakenOver);
            bench.wakes.extend(seat.map(|seat| Wake { seat, verdict }));
            return Ok(Answer::Queued);
        }
        if bench.world.max_waiters > 0 && self.queues.len() >= bench.world.max_waiters {
            return Err(Refusal::MaxWaiters);
        }
        let end = if upgrades > 0 { End::Front } else { End::Back };
        self.queues.enqueue(waiter, end);
        Ok(Answer::Queued)
    }

    /// Two holders that both wait to be alone wait for each other. A request for several names
    /// with an upgrade among them could close such a circle through another name.
    fn would_deadlock(&self, names: &Names, ask: &Ask, bench: &mut Bench<'_, '_>) -> bool {
        names.count() > 1
            || names.iter().any(|name| {
                let holders = bench
                    .open(name)
                    .map_or(&[] as &[Holder], |lock| lock.holders());
                let others = holders.iter().filter(|h| h.token != ask.token);
                others
                    .flat_map(|h| self.queues.places_of(&h.token))
                    .any(|(_, waiter)| {
                        waiter.ask.mode == Mode::Exclusive && waiter.names.iter().any(|n| n == name)
                    })
            })
    }

    fn place_to_take_over(&self, newer: &Waiter) -> Option<Place> {
        let mut own = self.queues.places_of(&newer.ask.token);
        own.find(|(_, older)| older.names == newer.names && older.ask.mode == newer.ask.mode)
            .map(|(place, _)| place)
    }

    fn take_back(&mut self, undelivered: HandOver, bench: &mut Bench<'_, '_>) -> Answer {
        let HandOver {
            grant: Grant { token, fence },
            names,
            replaced,
            ..
        } = undelivered;
        let now_ms = bench.now_ms();
        let mut count = 0;
        for name in &names {
            let Some(lock) = bench.open(name) else {
                continue;
            };
            // A later grant to the same token is another one's business.
            if lock.holder(&token).is_none_or(|own| own.fence != fence) {
                continue;
            }
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

    /// How a request stands: a newcomer without a place, or the waiter at `place`.
    ///
    /// What its token holds already needs no turn, or a holder could wait for those who wait for it.
    fn stand(
        &self,
        names: &Names,
        ask: &Ask,
        place: Option<Place>,
        bench: &mut Bench<'_, '_>,
    ) -> Stand {
        let mut held_fences: Vec<u64> = Vec::new();
        let mut clear = true;
        let mut upgrades = 0;
        for name in names {
            clear &= !bench.is_away(name);
            let Some(lock) = bench.open(name) else {
                return Stand::Foreign;
            };
            match lock.standing(ask) {
                Standing::Repeat { fence } | Standing::Downgrade { fence } => {
                    held_fences.push(fence)
                }
                Standing::Upgrade => upgrades += 1,
                Standing::UpgradeBlocked => {
                    upgrades += 1;
                    clear = false;
                }
                Standing::Admitted => {
                    let head = self.queues.head(name);
                    clear &= head.is_none() || head == place;
                }
                Standing::Blocked => clear = false,
            }
        }
        if !clear {
            return Stand::Hold { upgrades };
        }
        let all_held = held_fences.len() == names.count();
        held_fences.dedup();
        let kept_fence = match held_fences.as_slice() {
            [fence] if all_held => Some(*fence),
            _ => None,
        };
        Stand::Clear { kept_fence }
    }

    /// Makes the grant that [`Desk::stand`] found clear.
    fn grant(
        &mut self,
        names: &Names,
        ask: &Ask,
        kept_fence: Option<u64>,
        client_id: u64,
        bench: &mut Bench<'_, '_>,
    ) -> Grant {
        let now_ms = bench.now_ms();
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
            lock.grant(ask.mode, holder);
            if kept_fence.is_some() {
                bench.affirm(name, &ask.token);
            }
        }
        self.tally.grants += u64::from(kept_fence.is_none());
        Grant {
            token: ask.token.clone(),
            fence,
        }
    }

    fn settle(&mut self, names: Vec<Name>, bench: &mut Bench<'_, '_>) {
        let mut work = VecDeque::from(names);
        while let Some(name) = work.pop_front() {
            self.count_expired(&name, bench);
            while let Some(vacated) = self.step(&name, bench) {
                work.extend(vacated.into_iter().filter(|other| *other != name));
            }
            let alarm_ms = self.next_look_ms(&name, bench);
            self.queues.set_alarm(&name, alarm_ms);
        }
    }

    /// When a name is to be settled again: as its next lease ends, or soon, where a lock is away that
    /// the head of its queue needs.
    fn next_look_ms(&self, name: &Name, bench: &mut Bench<'_, '_>) -> Option<u64> {
        let head = self
            .queues
            .head(name)
            .and_then(|place| self.queues.at(place));
        if head.is_some_and(|head| head.names.iter().any(|needed| bench.is_away(needed))) {
            return Some(bench.now_ms().saturating_add(RETRY_MS));
        }
        bench.open(name)?.earliest_deadline_ms()
    }

    /// A lease may have ended by the key's own expiry before anybody looked.
    fn count_expired(&self, name: &Name, bench: &mut Bench<'_, '_>) {
        let due = self
            .queues
            .alarm_ms(name)
            .is_some_and(|ms| ms <= bench.now_ms());
        if due && bench.came_empty(name) {
            bench.lapses += 1;
        }
    }

    /// Lets the head of a queue go, if its wait is over: the names that it leaves, or `None` when
    /// the queue stands still.
    fn step(&mut self, name: &Name, bench: &mut Bench<'_, '_>) -> Option<Vec<Name>> {
        // Opening the name ends its lapsed leases, whether anybody waits or not.
        let foreign = bench.open(name).is_none();
        let place = self.queues.head(name)?;
        if foreign {
            return Some(self.end_wait(place, Verdict::Refused(Refusal::WrongType), bench));
        }
        let waiter = self.queues.at(place)?;
        match self.stand(&waiter.names, &waiter.ask, Some(place), bench) {
            Stand::Foreign => {
                Some(self.end_wait(place, Verdict::Refused(Refusal::WrongType), bench))
            }
            Stand::Clear { kept_fence } => self.hand_over(place, kept_fence, bench),
            Stand::Hold { .. } if waiter.timeout_ms.is_some_and(|ms| ms <= bench.now_ms()) => {
                Some(self.end_wait(place, Verdict::TimedOut, bench))
            }
            Stand::Hold { .. } => None,
        }
    }

    fn hand_over(
        &mut self,
        place: Place,
        kept_fence: Option<u64>,
        bench: &mut Bench<'_, '_>,
    ) -> Option<Vec<Name>> {
        let Waiter {
            seat,
            client_id,
            names,
            ask,
            ..
        } = self.queues.remove(place)?;
        let replaced = held_by(&ask.token, &names, bench);
        let grant = self.grant(&names, &ask, kept_fence, client_id, bench);
        self.tally.hand_overs += 1;
        let vacated = names.iter().cloned().collect();
        let verdict = Verdict::Granted(HandOver {
            grant,
            names,
            client_id,
            origin: kept_fence.map_or(Origin::New, |_| Origin::Kept),
            replaced,
        });
        bench.wakes.push(Wake { seat, verdict });
        Some(vacated)
    }

    /// Takes a waiter out with an answer; the names that it leaves.
    fn end_wait(&mut self, place: Place, verdict: Verdict, bench: &mut Bench<'_, '_>) -> Vec<Name> {
        let Some(waiter) = self.queues.remove(place) else {
            return Vec::new();
        };
        self.tally.timeouts += u64::from(verdict == Verdict::TimedOut);
        bench.wakes.push(Wake {
            seat: waiter.seat,
            verdict,
        });
        waiter.names.iter().cloned().collect()
    }
}

/// Whether a lock with a holder of this tie is there.
fn is_tied(slot: &Slot, id: TieId) -> bool {
    match slot {
        Slot::Lock(stored) => stored.lock.holders().iter().any(|own| own.tie == id),
        Slot::Empty | Slot::Foreign | Slot::Away => false,
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
    let deadline_ms = bench.now_ms().saturating_add(lease_ms);
    for name in names {
        let tie = bench.bind(name, token, life, lease_ms, caller.client_id);
        if let Some(own) = bench.open(name).and_then(|lock| lock.holder_mut(token)) {
            own.deadline_ms = deadline_ms;
            own.tie = tie;
            if life == Life::Session {
                own.client_id = caller.client_id;
            }
            bench.affirm(name, token);
        }
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
        let Some(lock) = bench.open(name) else {
            continue;
        };
        match lock.holder_mut(token) {
            Some(own) if leave == Leave::One && own.holds > 1 => own.holds -= 1,
            Some(_) => {
                lock.remove(token);
            }
            None => {}
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
    lock.lapse(now_ms);
    lock
}
