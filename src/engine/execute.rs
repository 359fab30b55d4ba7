//! How an operation is carried out: settle and decide, apply and replicate, answer.
//!
//! The lock table is borrowed only while it decides; it reads keys meanwhile, which can run callbacks,
//! which leave pending events and touch nothing else.

use foldhash::HashSet;
use redis_lock_core::branch::unlikely;
use redis_lock_core::decision::{Answer, Arrival, Caller, Decision, Deliveries};
use redis_lock_core::effect::Effects;
use redis_lock_core::operation::Operation;
use redis_lock_core::state::queue::{Position, WaiterId};
use redis_lock_core::store::Environment;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::refusal::Refusal;
use redis_module::Context;

use crate::engine::rearm::{rearm_for, MOST_A_FIRING};
use crate::engine::store::ServerStore;
use crate::engine::{apply, blocking, pending, publications};
use crate::server::key_string::CommandStrings;
use crate::server::{clients, clock, config, timer};
use crate::state::pending::{Event, Pending, ALL_DATABASES};
use crate::state::{self, State, FENCES};

/// How long what a command has left over waits at least, in ms. A timer of 0 ms would fire in the same
/// pass of the server's loop, before others are served.
const AFTER_A_COMMAND_MS: u64 = 1;

/// Carries out an operation of the client that `ctx` serves. When the answer is [`Answer::Queued`] the
/// client is blocked and must not be replied to.
pub fn execute(
    ctx: &Context,
    state: &State,
    operation: &Operation,
    strings: CommandStrings<'_>,
) -> Result<Answer, Refusal> {
    if unlikely(state.server.get().is_replica) {
        return Err(Refusal::ReadOnly);
    }
    let waiter_id = next_waiter_id(state);
    let client_id = clients::caller(ctx, state, operation.action.life())?;
    let caller = Caller {
        client_id,
        waiter_id,
    };
    let mut store = ServerStore::to_write(ctx, state, strings);
    let mut effects = Effects::new();
    let (decision, due_ms) = decide(&mut store, &mut effects, |table, environment| {
        let decision = table.execute(operation, caller, environment);
        (decision, table.next_due_ms())
    })?;
    apply::apply_all(&mut store, &effects);
    // No key is open any more when clients are blocked and answered.
    drop(store);
    let mut answer = decision.answer;
    match answer {
        Ok(Answer::Queued(arrival, position)) => {
            if !block(ctx, waiter_id, position, &operation.names) {
                answer = Ok(Answer::NotNow);
            } else if arrival == Arrival::New {
                apply::announce_wait(ctx, &operation.names, strings);
            }
        }
        Ok(Answer::Place(_, Arrival::New)) => {
            apply::announce_wait(ctx, &operation.names, strings);
        }
        Ok(_) | Err(_) => {}
    }
    if let Ok(answer) = &answer {
        blocking::record_answer(state, operation, answer);
    }
    deliver(ctx, state, decision.deliveries);
    if let Some(due_ms) = due_ms {
        rearm_for(due_ms, AFTER_A_COMMAND_MS);
    }
    answer
}

/// Blocks the client of a command that was queued. Tells whether the server did so.
#[inline(never)]
fn block(ctx: &Context, waiter_id: WaiterId, position: Position, names: &Names) -> bool {
    let is_blocked = blocking::block(ctx, waiter_id, position, names);
    if !is_blocked {
        pending::record(|pending| pending.events.push(Event::Left(waiter_id, position)));
    }
    is_blocked
}

fn next_waiter_id(state: &State) -> WaiterId {
    let id = state.last_waiter_id.get() + 1;
    state.last_waiter_id.set(id);
    WaiterId(id)
}

/// Tells others what an operation came to for them.
#[inline(always)]
fn deliver(ctx: &Context, state: &State, deliveries: Option<Box<Deliveries>>) {
    if unlikely(deliveries.is_some()) {
        deliver_all(ctx, state, deliveries);
    }
}

#[inline(never)]
fn deliver_all(ctx: &Context, state: &State, deliveries: Option<Box<Deliveries>>) {
    let Some(mut deliveries) = deliveries else {
        return;
    };
    blocking::deliver(state, &mut deliveries.completions);
    publications::publish_all(ctx, &mut deliveries.publications);
    state.change(|table| table.reuse(deliveries));
}

/// Carries out what nobody asked for just now: a settling, a take-back.
pub fn execute_unasked<'n>(
    ctx: &Context,
    decision: impl FnOnce(&mut LockTable, &mut Environment<'_, 'n>) -> Decision,
) {
    state::with(|state| {
        let mut store = ServerStore::to_write(ctx, state, CommandStrings::NONE);
        let mut effects = Effects::new();
        if let Ok(decision) = decide(&mut store, &mut effects, decision) {
            apply::apply_all(&mut store, &effects);
            drop(store);
            deliver(ctx, state, decision.deliveries);
        }
    });
}

/// Ends the waits whose time is over where nothing may be written, see [`LockTable::time_out_due`].
pub fn time_out(ctx: &Context, most: usize) {
    state::with(|state| {
        let mut store = ServerStore::to_read(ctx, state);
        let mut none = Effects::new();
        if let Ok(decision) = decide(&mut store, &mut none, |table, environment| {
            table.time_out_due(most, environment)
        }) {
            deliver(ctx, state, decision.deliveries);
        }
    });
}

/// Tells the table what happened since it decided last.
pub fn absorb() {
    state::with(|state| state.change(|table| absorb_events(state, table)));
}

/// Defers what is due at these names, where nothing may be written now.
pub fn defer(ctx: &Context, names: &[Name], most: usize) {
    state::with(|state| {
        let (mut store, mut none) = (ServerStore::to_read(ctx, state), Effects::new());
        state.change(|table| table.defer(names, most, &mut environment(&mut store, &mut none)))
    });
}

/// This server is a replica now: its primary decides, and leases run on untied.
///
/// Its blocked clients were sent away by the server. Only Valkey 9 keeps them during a forced
/// FAILOVER until its target has taken over; should that be aborted, this server is a primary again
/// and they wait on. So what was recorded for them is kept as long as anybody waits.
pub fn demote() {
    absorb();
    work_off_left();
    if !state::anybody_waits() {
        state::pending(|pending| *pending = Pending::default());
    }
}

/// Works off a part of what waiters have left that are gone; the timer does the rest.
fn work_off_left() {
    let left = state::change(|table| table.work_off_left(MOST_A_FIRING));
    state::pending(|pending| pending.touched.extend(left.unwrap_or_default()));
    if state::look(|table| table.queues().is_anyone_leaving()) == Some(true) {
        timer::fire_soon();
    }
}

/// Lets the table decide, after it was told what happened meanwhile.
fn decide<'n, T>(
    store: &mut ServerStore<'_>,
    effects: &mut Effects<'n>,
    decision: impl FnOnce(&mut LockTable, &mut Environment<'_, 'n>) -> T,
) -> Result<T, Refusal> {
    let state = store.state();
    let decided = state.change(|table| {
        absorb_events(state, table);
        decision(table, &mut environment(store, effects))
    });
    decided.ok_or(Refusal::Reentered)
}

/// What the table is told of the world outside.
fn environment<'a, 'n>(
    store: &'a mut ServerStore<'_>,
    effects: &'a mut Effects<'n>,
) -> Environment<'a, 'n> {
    Environment {
        wall_us: clock::wall_us(),
        fences: &FENCES,
        limits: &config::limits,
        store,
        effects,
    }
}

/// Tells the table what happened since it decided last. What that touches stays pending for the timer;
/// an operation that comes first settles its own names.
#[inline(always)]
fn absorb_events(state: &State, table: &mut LockTable) {
    if unlikely(!state.pending(|pending| pending.events.is_empty())) {
        absorb_all(state, table);
    }
}

#[inline(never)]
fn absorb_all(state: &State, table: &mut LockTable) {
    let events = state.pending(|pending| std::mem::take(&mut pending.events));
    let mut unlinked = HashSet::default();
    let mut touched = Vec::new();
    for event in events {
        match event {
            Event::Unlinked(sessions) => unlinked.extend(sessions),
            Event::Arrived(sessions, name) => {
                for session in &sessions {
                    unlinked.remove(session);
                }
                table.relocate(&sessions, &name);
            }
            Event::Swapped(one, other) => table.swap_databases(one, other),
            Event::Demoted => touched.extend(table.demote()),
            Event::Flushed(ALL_DATABASES) => table.end_sessions_everywhere(),
            Event::Flushed(db) => table.end_sessions_in(db),
            Event::Closed(client_id, ended_ms) => table.close_client(client_id, ended_ms),
            Event::Left(waiter_id, position) => touched.extend(table.leave(waiter_id, position)),
            Event::Lost(waiter_id, position, lost_ms) => {
                let most = config::max_tickets();
                touched.extend(table.lose(waiter_id, position, lost_ms, most));
            }
        }
    }
    table.end_session(unlinked);
    if !touched.is_empty() {
        state.pending(|pending| pending.touched.extend(touched));
    }
}
