//! Execution of an operation: settle and decide, apply and replicate, reply.
//!
//! The lock table is borrowed only while it decides. It reads keys meanwhile, which can run
//! callbacks. They leave pending events and change nothing else.

use redis_lock_core::budget::MOST_A_FIRING;
use redis_lock_core::decision::{Answer, Caller, Decision, Deliveries, Enqueued};
use redis_lock_core::effect::Effects;
use redis_lock_core::hints::unlikely;
use redis_lock_core::operation::Operation;
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::replica_waits::{DueReply, Progress, Removed};
use redis_lock_core::state::waiter::WaiterId;
use redis_lock_core::store::Environment;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::refusal::Refusal;
use redis_module::Context;

use crate::engine::absorb::{absorb, absorb_into};
use crate::engine::rearm::rearm_for;
use crate::engine::store::ServerStore;
use crate::engine::{blocking, effects, publications, recorder};
use crate::server::key_string::CommandStrings;
use crate::server::replicas::{self, LOOK_AGAIN_MS};
use crate::server::{api, clients, clock, config, timer};
use crate::state::pending_events::{Event, Pending};
use crate::state::{self, State, FENCES};

/// The least delay in ms of work that a command has left over. A timer of 0 ms would fire in the
/// same pass of the server's event loop, before other clients are served.
const AFTER_A_COMMAND_MS: u64 = 1;

/// Executes an operation of the client that `ctx` serves. If the answer is [`Answer::Queued`], the
/// client is blocked and must not get a reply.
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
    let client_id = clients::caller(ctx, state, operation.action.lease_kind())?;
    let caller = Caller {
        client_id,
        waiter_id,
    };
    let mut store = ServerStore::to_write(ctx, state, strings);
    let mut effects = Effects::new();
    let (decision, due_ms) = with_table(&mut store, &mut effects, |table, environment| {
        let decision = table.decide(operation, caller, environment);
        (decision, table.next_due_ms())
    })?;
    effects::apply_all(&mut store, &effects);
    // All keys are closed before clients are blocked and get replies.
    drop(store);
    return_to_db_of(ctx, &operation.names);
    let mut answer = decision.answer;
    match answer {
        Ok(Answer::Queued(enqueued, position)) => {
            if !block(ctx, state, waiter_id, Some(position), &operation.names) {
                answer = Ok(Answer::NotNow);
            } else if enqueued == Enqueued::New {
                effects::announce_wait(ctx, state, &operation.names, strings);
            }
        }
        Ok(Answer::HeldBack) => {
            if !block(ctx, state, waiter_id, None, &operation.names) {
                answer = Ok(unheld_answer(state, waiter_id));
            }
        }
        Ok(Answer::Place(_, Enqueued::New)) => {
            effects::announce_wait(ctx, state, &operation.names, strings);
        }
        Ok(_) | Err(_) => {}
    }
    if let Ok(answer) = &answer {
        blocking::record_answer(state, operation, answer);
    }
    deliver(ctx, state, decision.deliveries);
    if unlikely(state.replica_waits.get() > 0) {
        expect_acknowledgements(state);
    }
    if let Some(due_ms) = due_ms {
        rearm_for(state, due_ms, AFTER_A_COMMAND_MS);
    }
    answer
}

/// Selects the database of the command again. A search for a deadlock may have read a lock of another
/// one, and the client would stay there.
fn return_to_db_of(ctx: &Context, names: &Names) {
    if let Some(name) = names.as_slice().first() {
        api::select_db(ctx, name.db);
    }
}

/// Blocks the client of a command that was queued. Returns true if the server did so.
#[inline(never)]
fn block(
    ctx: &Context,
    state: &State,
    waiter_id: WaiterId,
    position: Option<Position>,
    names: &Names,
) -> bool {
    let is_blocked = blocking::block(ctx, state, waiter_id, position, names);
    if !is_blocked {
        recorder::record(|pending| pending.events.push(Event::Left(waiter_id, position)));
    }
    is_blocked
}

/// Arms the timer for a look at the replicas if clients have begun to wait for them, in case no
/// replica acknowledges. Requests one at once for waits whose ends the operation has left to it.
#[inline(never)]
fn expect_acknowledgements(state: &State) {
    if state.look(|table| table.replica_waits().has_unsent()) == Some(true) {
        timer::fire_in(LOOK_AGAIN_MS);
    }
    if has_more_ends(state) {
        replicas::request_check_in_next_pass();
    }
}

fn has_more_ends(state: &State) -> bool {
    state.look(|table| table.replica_waits().has_more()) == Some(true)
}

/// Returns the answer that was to be held back, because the server has not blocked the client.
#[inline(never)]
fn unheld_answer(state: &State, waiter_id: WaiterId) -> Answer {
    let wait = state.change(|table| table.leave_replica_wait(waiter_id));
    match wait.flatten().map(Removed::due) {
        Some(DueReply::Grant(own)) => Answer::Granted(own.fence),
        Some(DueReply::HandOver(hand_over)) => Answer::Granted(hand_over.grant.fence),
        Some(DueReply::Count(count)) => Answer::Count(count),
        None => Answer::NotNow,
    }
}

fn next_waiter_id(state: &State) -> WaiterId {
    let id = state.last_waiter_id.get() + 1;
    state.last_waiter_id.set(id);
    WaiterId(id)
}

/// Delivers the replies and messages to other clients that follow from an operation.
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

/// Executes an operation that no client asked for: a settling or a take-back.
pub fn execute_background<'n>(
    ctx: &Context,
    decision: impl FnOnce(&mut LockTable, &mut Environment<'_, 'n>) -> Decision,
) {
    state::with(|state| {
        let mut store = ServerStore::to_write(ctx, state, CommandStrings::NONE);
        let mut effects = Effects::new();
        if let Ok(decision) = with_table(&mut store, &mut effects, decision) {
            effects::apply_all(&mut store, &effects);
            drop(store);
            deliver(ctx, state, decision.deliveries);
        }
        if unlikely(state.replica_waits.get() > 0) {
            expect_acknowledgements(state);
        }
    });
}

/// Ends the replica waits that are decided by now, see [`LockTable::acknowledge`]. Returns true if
/// there may be more of them.
pub fn acknowledge(ctx: &Context, progress: &Progress, most: usize) -> bool {
    state::with(|state| {
        let mut store = ServerStore::to_read(ctx, state);
        let mut none = Effects::new();
        if let Ok(decision) = with_table(&mut store, &mut none, |table, environment| {
            table.acknowledge(progress, most, environment)
        }) {
            drop(store);
            deliver(ctx, state, decision.deliveries);
        }
        has_more_ends(state)
    })
}

/// Ends the waits whose time is over while nothing may be written, see [`LockTable::time_out_due`].
pub fn time_out(ctx: &Context, most: usize) {
    state::with(|state| {
        let mut store = ServerStore::to_read(ctx, state);
        let mut none = Effects::new();
        if let Ok(decision) = with_table(&mut store, &mut none, |table, environment| {
            table.time_out_due(most, environment)
        }) {
            drop(store);
            deliver(ctx, state, decision.deliveries);
        }
    });
}

/// Defers what is due at these names, because nothing may be written there now.
pub fn defer(ctx: &Context, names: &[Name], most: usize) {
    state::with(|state| {
        let (mut store, mut none) = (ServerStore::to_read(ctx, state), Effects::new());
        state.change(|table| table.defer(names, most, &mut environment(&mut store, &mut none)))
    });
}

/// Makes the lock table that of a replica: its primary decides, and leases run on untied.
///
/// The server has already unblocked its clients. Only Valkey 9 keeps them during a forced FAILOVER
/// until the target has taken over. If the failover is aborted, this server is a primary again and
/// they still wait. So their pending events are kept while there is any waiter.
pub fn demote() {
    absorb();
    work_off_left();
    if !state::has_waiters() {
        state::pending(|pending| *pending = Pending::default());
    }
}

/// Works off a part of the positions that waiters have left. The timer does the rest.
fn work_off_left() {
    let left = state::change(|table| table.work_off_left(MOST_A_FIRING));
    state::pending(|pending| pending.touched.extend(left.unwrap_or_default()));
    if state::look(|table| table.queues().is_anyone_leaving()) == Some(true) {
        timer::fire_soon();
    }
}

/// Has the table absorb the pending events and then make a decision.
///
/// # Errors
/// [`Refusal::Reentered`] if the table is already deciding.
fn with_table<'n, T>(
    store: &mut ServerStore<'_>,
    effects: &mut Effects<'n>,
    decision: impl FnOnce(&mut LockTable, &mut Environment<'_, 'n>) -> T,
) -> Result<T, Refusal> {
    let state = store.state();
    let decided = state.change(|table| {
        absorb_into(table, state);
        decision(table, &mut environment(store, effects))
    });
    decided.ok_or(Refusal::Reentered)
}

/// Returns the table's environment: clocks, fences, limits and the keyspace.
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
