//! How an order flows: settle and decide, apply and replicate, answer.
//!
//! The desk is borrowed only while it decides; it reads keys meanwhile, which can run callbacks,
//! which leave notes in the inbox and touch nothing else.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lazy_static::lazy_static;
use redis_lock_core::desk::{Answer, Caller, Desk, Outcome, World};
use redis_lock_core::fence::Fences;
use redis_lock_core::lock::Lock;
use redis_lock_core::name::Name;
use redis_lock_core::order::Order;
use redis_lock_core::queue::Seat;
use redis_lock_core::refusal::Refusal;
use redis_lock_core::session::TieId;
use redis_module::{Context, RedisGILGuard};

use crate::inbox::{Event, Inbox, ALL_DATABASES};
use crate::keyspace::{self, Host};
use crate::{alarm, api, blocking, clients, clock, config, inbox};

lazy_static! {
    static ref DESK: RedisGILGuard<RefCell<Desk>> = RedisGILGuard::new(RefCell::new(Desk::new()));
}

/// Numbers all grants. A static of its own, because values are loaded outside any order.
pub static FENCES: Fences = Fences::new();

/// How many wait: lets the callbacks of busy servers without waiters return at once.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// How many grants are tied to a connection, to the same end.
static TIED: AtomicUsize = AtomicUsize::new(0);

/// How long what a command has left over waits at least, in ms. A timer of 0 ms would ring in the same
/// pass of the server's loop, before others are served.
const AFTER_A_COMMAND_MS: u64 = 1;

static NEXT_SEAT: AtomicU64 = AtomicU64::new(1);

/// Looks at the desk; `None` when it is deciding just now.
pub fn look<T>(at: impl FnOnce(&Desk) -> T) -> Option<T> {
    let ctx = api::own_context();
    let desk = DESK.lock(&ctx);
    let result = desk.try_borrow().ok().map(|desk| at(&desk));
    result
}

/// Whether somebody may wait for this name.
pub fn may_have_line(name: &Name) -> bool {
    anybody_waits() && look(|desk| desk.queues().has_line(name)).unwrap_or(true)
}

/// Whether anybody waits for anything.
pub fn anybody_waits() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

/// Whether any grant is tied to a connection.
pub fn any_ties() -> bool {
    TIED.load(Ordering::Relaxed) > 0
}

/// Whether something may be tied to this connection.
pub fn may_have_ties(client_id: u64) -> bool {
    any_ties() && look(|desk| desk.ties().has_client(client_id)).unwrap_or(true)
}

/// Somebody looks at a lock. Where it has several holders, the end of each lease is to be seen by those
/// who track the key; of a lock that came with a file or from a primary the desk doesn't know yet.
pub fn look_after(name: &Name, lock: &Lock) {
    let several = lock.holders().len() > 1 && !api::is_replica();
    if several && look(|desk| !desk.is_scheduled(name)) == Some(true) {
        inbox::note(|inbox| {
            inbox.touched.insert(name.clone());
        });
    }
}

/// The values with these ties left their keys. Where the desk has ended those grants itself, there is
/// nothing left to note.
pub fn note_unlinked(mut ties: Vec<TieId>) {
    let known = look(|desk| ties.retain(|tie| desk.ties().contains(*tie)));
    if known.is_none() || !ties.is_empty() {
        inbox::note(|inbox| inbox.events.push(Event::Unlinked(ties)));
    }
}

/// Carries out an order of the client that `ctx` serves. When the answer is [`Answer::Queued`] the
/// client is blocked and must not be replied to.
pub fn carry_out(ctx: &Context, order: Order) -> Result<Answer, Refusal> {
    if api::is_replica() {
        return Err(Refusal::ReadOnly);
    }
    let seat = Seat(NEXT_SEAT.fetch_add(1, Ordering::Relaxed));
    let client_id = clients::caller(ctx, order.life())?;
    let names = order.names().clone();
    let outcome = decide(ctx, |desk, world| {
        desk.carry_out(order, Caller { client_id, seat }, world)
    })?;
    keyspace::apply_all(ctx, &outcome.effects);
    let mut answer = outcome.answer;
    if answer == Ok(Answer::Queued) && !blocking::park(ctx, seat, &names) {
        inbox::note(|inbox| inbox.events.push(Event::Left(seat)));
        answer = Ok(Answer::NotNow);
    }
    blocking::deliver(outcome.wakes);
    alarm::rearm(ctx, AFTER_A_COMMAND_MS);
    answer
}

/// Carries out what nobody asked for just now: a settling, a take-back.
pub fn carry_out_unasked(
    ctx: &Context,
    decision: impl FnOnce(&mut Desk, &mut World<'_>) -> Outcome,
) {
    if let Ok(outcome) = decide(ctx, decision) {
        keyspace::apply_all(ctx, &outcome.effects);
        blocking::deliver(outcome.wakes);
    }
}

/// Tells the desk what happened since it decided last.
pub fn take_in(ctx: &Context) {
    if let Ok(mut desk) = DESK.lock(ctx).try_borrow_mut() {
        take_in_notes(&mut desk);
        count(&desk);
    }
}

/// Puts off what is due at these names, where nothing may be written now.
pub fn put_off(ctx: &Context, names: &[Name], most: usize) {
    if let Ok(mut desk) = DESK.lock(ctx).try_borrow_mut() {
        desk.put_off(names, most, &mut world(&mut Host { ctx }));
        count(&desk);
    }
}

/// The names that are to be settled by now, see [`Desk::due_names`].
pub fn due_names(ctx: &Context, most: usize) -> Vec<Name> {
    let desk = DESK.lock(ctx);
    let due = desk.try_borrow_mut();
    due.map_or_else(
        |_| Vec::new(),
        |mut desk| desk.due_names(clock::steady_ms(), most),
    )
}

/// Somebody set the wall clock.
pub fn clock_was_set(ctx: &Context) {
    if let Ok(mut desk) = DESK.lock(ctx).try_borrow_mut() {
        desk.clock_was_set(clock::steady_ms());
    }
}

/// The names where a lease that somebody waits for ends by `until_ms`, each told once.
pub fn announce_ends(ctx: &Context, until_ms: u64, most: usize) -> Vec<Name> {
    let desk = DESK.lock(ctx);
    let ends = desk.try_borrow_mut();
    ends.map_or_else(
        |_| Vec::new(),
        |mut desk| desk.announce_ends(until_ms, most),
    )
}

/// This server is a replica now: its primary decides, and leases run on untied.
///
/// Its blocked clients were sent away by the server. Only Valkey 9 keeps them during a forced
/// FAILOVER until its target has taken over; should that be aborted, this server is a primary again
/// and they wait on. So what was noted for them is kept as long as anybody waits.
pub fn stand_down(ctx: &Context) {
    if let Ok(mut desk) = DESK.lock(ctx).try_borrow_mut() {
        take_in_notes(&mut desk);
        count(&desk);
    }
    if !anybody_waits() {
        inbox::with(|inbox| *inbox = Inbox::default());
    }
}

/// Lets the desk decide, after it was told what happened meanwhile.
fn decide(
    ctx: &Context,
    decision: impl FnOnce(&mut Desk, &mut World<'_>) -> Outcome,
) -> Result<Outcome, Refusal> {
    let desk = DESK.lock(ctx);
    let mut desk = desk.try_borrow_mut().map_err(|_| Refusal::Reentered)?;
    take_in_notes(&mut desk);
    let outcome = decision(&mut desk, &mut world(&mut Host { ctx }));
    count(&desk);
    Ok(outcome)
}

/// What the desk is told of the world outside.
fn world<'a>(server: &'a mut Host<'_>) -> World<'a> {
    World {
        moment: clock::now(),
        fences: &FENCES,
        max_waiters: config::max_waiters(),
        server,
    }
}

/// Tells the desk what happened since it decided last. What that touches stays noted for the timer;
/// an order that comes first settles its own names.
fn take_in_notes(desk: &mut Desk) {
    let events = inbox::with(|inbox| std::mem::take(&mut inbox.events));
    let mut unlinked = HashSet::new();
    let mut touched = Vec::new();
    for event in events {
        match event {
            Event::Unlinked(ties) => unlinked.extend(ties),
            Event::Arrived(ties, name) => {
                for tie in &ties {
                    unlinked.remove(tie);
                }
                desk.relocate(&ties, &name);
            }
            Event::Swapped(one, other) => desk.swap_databases(one, other),
            Event::Demoted | Event::Flushed(ALL_DATABASES) => desk.untie_all(),
            Event::Flushed(db) => desk.untie_database(db),
            Event::Closed(client_id) => desk.orphan(client_id),
            Event::Left(seat) => touched.extend(desk.leave(seat)),
        }
    }
    desk.untie(unlinked);
    if !touched.is_empty() {
        inbox::with(|inbox| inbox.touched.extend(touched));
    }
}

fn count(desk: &Desk) {
    WAITING.store(desk.queues().len(), Ordering::Relaxed);
    TIED.store(desk.ties().len(), Ordering::Relaxed);
}
