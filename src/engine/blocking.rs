//! Blocked clients: the only code that uses the server's blocking calls.
//!
//! On every supported server:
//!
//! 1. A client is blocked on a key, without a timeout of the server's. So the server itself replies
//!    MOVED when the key's slot leaves, and UNBLOCKED on a demotion, CLIENT UNBLOCK and CLIENT
//!    KILL. The module decides the order and the time of all other replies.
//! 2. The key is a decoy in the slot of the names, with a prefix drawn at load that no client uses.
//!    On a real key, Redis 7.0 would take the waiter that it asked last for the current client,
//!    even after it is freed.
//! 3. The ready callback, if it is called all the same, keeps the client waiting.
//! 4. To reply to a waiter, its outcome is recorded and `RM_UnblockClient` is called. The server
//!    then calls [`reply_to_unblocked`], at once or later in the same pass of its event loop, which replies
//!    the recorded outcome. Without a record it was CLIENT UNBLOCK ... TIMEOUT, and the reply is
//!    nil.
//! 5. [`on_disconnect`] runs when the client dies, which the server has reported right before. It
//!    also runs when the server replied an error by itself. It writes nothing, and leaves a pending
//!    event.
//! 6. The server owns a handle. It is valid until one of the two callbacks has run for it, and that
//!    callback removes it here.
//!
//! A hand-over is provisional until the server next sleeps, which means until its reply was passed
//! to the socket. If the end of the client is noticed before, the hand-over is taken back.
//!
//! It is not taken back later. Nor is it if the reply is on the socket already, because a QUIT was
//! sent behind the wait. A client may close its connection after the reply and keep the lock.

// perf: on a real key the server would ask each waiter whenever the key is made anew. That costs
// more than all other work.

use std::ffi::{c_int, c_void};
use std::ptr;

use redis_lock_core::budget::MOST_REFUSED_AT_ONCE;
use redis_lock_core::decision::{Answer, Completion, Outcome};
use redis_lock_core::hints::unlikely;
use redis_lock_core::operation::{Action, Operation};
use redis_lock_core::state::hand_over::{self, HandOver, TakeBack};
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::waiter::WaiterId;
use redis_lock_core::values::name::{Name, Names, Relocation};
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::slot;
use redis_lock_core::values::token::Token;
use redis_module::{raw, Context};

use crate::engine::{absorb, recorder};
use crate::server::calls::{self, function};
use crate::server::{api, boundary, clients, clock, filter, random, reply, timer};
use crate::state::blocked::{Blocked, BlockedClients, Granted, Handle};
use crate::state::entered::Entered;
use crate::state::pending_events::Event;
use crate::state::{self, DecoyName, Postponed, State};

/// Draws the prefix of the decoys' names.
pub fn draw_decoy(_: &Context) -> Result<(), String> {
    let mut name = DecoyName::default();
    random::fill(&mut name).map_err(|why| why.text().to_owned())?;
    for byte in name.iter_mut().filter(|byte| **byte == b'{') {
        // A brace would change the slot.
        *byte = b'(';
    }
    state::with(|state| state.decoys.set(name));
    Ok(())
}

/// Turns a wait into an ACQUIRE if the client may not block, like BLPOP.
// perf: changed in place, because moving an operation costs as much as deciding it.
pub fn make_nonblocking_where_required(ctx: &Context, state: &State, operation: &mut Operation) {
    if unlikely(!may_block(ctx, state)) {
        if let Action::Wait { request, .. } = &operation.action {
            operation.action = Action::Acquire(request.clone());
        }
    }
}

/// Refuses an operation with REPLICAS if the client may not block.
///
/// # Errors
/// [`Refusal::ReplicasHere`]
#[inline(always)]
pub fn check_may_wait_for_replicas(
    ctx: &Context,
    state: &State,
    operation: &Operation,
) -> Result<(), Refusal> {
    if unlikely(operation.replicas.is_some()) && !may_block(ctx, state) {
        return Err(Refusal::ReplicasHere);
    }
    Ok(())
}

/// Returns true if this context's client may be blocked. It may not in MULTI, in a script, if it has
/// denied blocking, or if it has no connection, as in another module's call: nobody would know whose
/// rights to check when it is granted. Nor may it if it is subscribed to a channel and the server can't
/// block such a client. In RESP2 a subscriber can send no such command.
fn may_block(ctx: &Context, state: &State) -> bool {
    let denying = raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    let flags = api::context_flags(ctx);
    let may_subscribe = flags & raw::REDISMODULE_CTX_FLAGS_RESP3 != 0;
    flags & denying == 0
        && clients::is_connected(ctx, state, api::client_id(ctx))
        && (state.server.get().blocks_subscribers
            || !may_subscribe
            // SAFETY: the client is connected, so it is not one that runs scripts.
            || !unsafe { clients::is_subscriber(api::client_id(ctx)) })
}

/// Blocks the context's client as this waiter, which was enqueued at this position or waits for
/// replicas only. Returns true if the server did so.
///
/// In a cluster all names are in one slot, so one decoy is enough.
pub fn block(
    ctx: &Context,
    state: &State,
    waiter_id: WaiterId,
    position: Option<Position>,
    names: &Names,
) -> bool {
    let Some(name) = names.iter().next() else {
        return false;
    };
    let facts = state.server.get();
    let mut key = decoy(state, facts.is_clustered, name);
    let on_end: OnEnd = if facts.is_valkey { Some(on_end) } else { None };
    let waiter = ptr::without_provenance_mut(waiter_id.0 as usize);
    // SAFETY: the context is valid by its type. The one key is in `State::last_decoy` until `decoy`
    // runs again, and the server retains it. The callbacks require what the server passes them, and
    // take the private data for a number.
    let handle = unsafe {
        function!(RedisModule_BlockClientOnKeys)(
            ctx.ctx,
            Some(on_ready),
            Some(reply_to_unblocked),
            on_end,
            0,
            &raw mut key,
            1,
            waiter,
        )
    };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the server has just made the handle.
    unsafe { function!(RedisModule_SetDisconnectCallback)(handle, Some(on_disconnect)) };
    let client = Blocked {
        handle,
        client_id: api::client_id(ctx),
        position,
        rights_version: state.rights.borrow().version(),
    };
    state.blocked(|blocked| {
        blocked.clients.insert(waiter_id, client);
    });
    true
}

/// Returns a key in the same slot as this one that no client ever creates.
// perf: the last key is kept, because the next client to block usually waits for the same name.
fn decoy(state: &State, is_clustered: bool, name: &Name) -> *mut raw::RedisModuleString {
    let slot = if is_clustered {
        slot::of_key(name.key())
    } else {
        0
    };
    let mut last = state.last_decoy.borrow_mut();
    match &*last {
        Some((of, key)) if *of == slot => key.inner,
        _ => {
            let mut key = state.decoys.get().to_vec();
            let suffix = slot::suffixes_for(&key)(slot);
            key.extend(suffix);
            last.insert((slot, api::string(&key))).1.inner
        }
    }
}

/// Returns the waiter for which the server calls back. Its number is the blocked client's private
/// data.
fn waiter_of(ctx: &Context) -> WaiterId {
    WaiterId(calls::get_blocked_client_private_data(ctx).addr() as u64)
}

/// Replies to waiters whose wait has ended.
///
/// Redis before 7.2 writes such a reply to the client at once. A CLIENT UNBLOCK ... ERROR in the
/// same pass of the event loop would then write another one. So these servers unblock the waiters
/// just before they sleep.
#[inline]
pub fn deliver(state: &State, completions: &mut Vec<Completion>) {
    if completions.is_empty() {
        return;
    }
    state.blocked(|blocked| {
        for Completion { waiter_id, outcome } in completions.drain(..) {
            blocked.record(waiter_id, outcome);
        }
    });
    if !api::unblock_must_wait_for_sleep(state) {
        unblock_decided(state);
    }
}

/// Records that the server is about to send its replies and then wait for events.
pub fn before_sleep(state: &State) {
    state.sending.set(true);
    if api::unblock_must_wait_for_sleep(state) {
        unblock_decided(state);
    }
}

/// Records that the server has waited for events, so its replies were sent.
pub fn after_sleep(state: &State) {
    state.sending.set(false);
    if unlikely(state.postponed.get() != Postponed::None) {
        filter::forget_run_commands();
    }
    if unlikely(state.pending(|pending| !pending.undelivered.is_empty())) {
        keep_those_told(state);
    }
    state.blocked(BlockedClients::forget_provisional);
}

/// Keeps the grants of hand-overs to take back if a reply that was sent tells their token of them.
fn keep_those_told(state: &State) {
    let replied = state.blocked(|blocked| Granted::by(blocked.provisional.iter_mut()));
    state.pending(|pending| pending.undelivered.retain(|it| !replied.tells_of(it)));
}

/// Unblocks waiters whose wait has ended: all that were granted, and at most
/// [`MOST_REFUSED_AT_ONCE`] others. The timer unblocks the rest.
pub fn unblock_decided(state: &State) {
    let mut others_left = MOST_REFUSED_AT_ONCE;
    while let Some(handle) = state.blocked(|blocked| blocked.next_decided(&mut others_left)) {
        // Some servers call `reply_to_unblocked` from here, so nothing is borrowed.
        // SAFETY: the handle is valid, because no callback of the client has run: each removes the
        // client from `clients`. It is unblocked once, because `next_decided` returns a client once.
        unsafe { function!(RedisModule_UnblockClient)(handle, ptr::null_mut()) };
    }
    if unlikely(state.blocked(|blocked| !blocked.refused.is_empty())) {
        timer::fire_soon();
    }
}

/// Returns true if the server frees this client because its connection closed: the close event then
/// came immediately before. Otherwise the server replied to the client by itself.
fn is_lost(client_id: u64) -> bool {
    state::with(|state| state.last_gone_client.get()) == client_id
}

/// Records that a connection has closed. Its hand-overs since the server last slept are taken back,
/// unless their replies were sent before it was closed.
pub fn record_client_gone(client_id: u64) {
    state::with(|state| state.last_gone_client.set(client_id));
    let any = state::blocked(|blocked| blocked.provisional.has_client(client_id));
    if !any {
        return;
    }
    let ctx = api::own_context();
    // The server also sends during a long script.
    let may_be_sent = state::with(|state| state.sending.get()) || api::is_script_running(&ctx);
    if !may_be_sent || !clients::was_sent_all_replies(&ctx, client_id) {
        let taken = state::blocked(|blocked| blocked.provisional.take_of_client(client_id));
        taken.into_iter().for_each(record_undelivered);
    }
}

/// Records an answer that confirms a grant to a connection. Hand-overs of the same grant to another
/// connection, which may be gone, are then kept, because this client knows of the grant.
#[inline]
pub fn record_answer(state: &State, operation: &Operation, answer: &Answer) {
    if unlikely(has_unsent(state)) {
        record_known(state, operation, answer);
    }
}

/// Returns true if there are hand-overs that may still be taken back.
#[inline(always)]
fn has_unsent(state: &State) -> bool {
    state.blocked(|blocked| blocked.has_unsent())
        || state.pending(|pending| !pending.undelivered.is_empty())
}

#[inline(never)]
fn record_known(state: &State, Operation { names, action, .. }: &Operation, answer: &Answer) {
    let tells_of_grant = match action {
        Action::Acquire(_) | Action::Wait { .. } | Action::Queue { .. } => {
            matches!(answer, Answer::Granted(_) | Answer::HeldBack)
        }
        Action::Extend { .. } => !matches!(answer, Answer::Count(0)),
        Action::Cancel { .. } | Action::Leave { .. } | Action::Release { .. } => false,
    };
    if !tells_of_grant {
        return;
    }
    keep_handed_over(state, action.token(), names);
}

fn keep_handed_over(state: &State, token: &Token, names: &Names) {
    state.blocked(|blocked| blocked.record_known(token, names));
    state.pending(|pending| pending.keep_handed_over(token, names));
}

/// Records that a reply which changes nothing tells a token of its grant of these names.
pub fn record_told(token: &Token, names: &Names) {
    state::with(|state| {
        if unlikely(has_unsent(state)) {
            keep_handed_over(state, token, names);
        }
        if unlikely(state.replica_waits.get() > 0) {
            state.change(|table| {
                absorb::absorb_into(table, state);
                table.confirm(token, names);
            });
        }
    });
}

/// Has all hand-overs that may still be taken back follow locks that the server moved.
pub fn relocate(relocation: &Relocation) {
    state::blocked(|blocked| blocked.relocate(relocation));
    state::pending(|pending| hand_over::relocate(&mut pending.undelivered, relocation));
}

/// Records a hand-over to take back, because its client won't read the reply. Nothing is recorded
/// if another connection got a reply that confirms it. A client that is still connected, because
/// the server replied by itself, loses its position, and keeps a grant that was held back for
/// replicas.
fn record_undelivered(hand_over: HandOver) {
    if !hand_over.is_revocable() || state::blocked(|blocked| blocked.is_known(&hand_over)) {
        return;
    }
    let is_lost = is_lost(hand_over.client_id);
    if hand_over.take_back == TakeBack::IfClosed && !is_lost {
        return;
    }
    let kept = hand_over.kept.filter(|_| is_lost);
    let undelivered = HandOver { kept, ..hand_over };
    recorder::record(|pending| pending.undelivered.push(undelivered));
}

/// The callback for the end of a blocked client's data.
type OnEnd = Option<unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void)>;

extern "C" fn on_ready(
    _: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

/// Replies to a client that was unblocked. The API takes it as the timeout callback, see the head of
/// this file.
unsafe extern "C" fn reply_to_unblocked(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    let replied = boundary::guard(entered, |state| {
        let waiter_id = waiter_of(&ctx);
        let Some(client) = state.blocked(|blocked| blocked.forget(waiter_id)) else {
            reply::null_array(&ctx);
            return;
        };
        match client.outcome {
            Some(outcome) => {
                reply::outcome(&ctx, &outcome);
                state.blocked(|blocked| blocked.record_answered(waiter_id, outcome));
            }
            // An administrator has unblocked the client.
            None if state::change(|table| table.cut_short(waiter_id)) == Some(true) => {
                reply::refusal(&ctx, Refusal::NotAcknowledged);
            }
            None => {
                let left = Event::Left(waiter_id, client.position);
                recorder::record(|pending| pending.events.push(left));
                reply::null_array(&ctx);
            }
        }
    });
    if replied.is_none() {
        // Without a reply, the client would take the next command's reply for this one's.
        reply::refusal(&ctx, Refusal::Panicked);
    }
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_disconnect(ctx: *mut raw::RedisModuleCtx, _: Handle) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |_| {
        let waiter_id = waiter_of(&ctx);
        let forgotten = state::blocked(|blocked| blocked.forget(waiter_id));
        let Some(client) = forgotten else {
            return;
        };
        match client.outcome {
            Some(Outcome::Granted(hand_over)) if hand_over.is_revocable() => {
                record_undelivered(hand_over);
            }
            Some(_) => {}
            None => {
                let event = if is_lost(client.client_id) {
                    Event::Lost(waiter_id, client.position, clock::steady_ms())
                } else {
                    Event::Left(waiter_id, client.position)
                };
                recorder::record(|pending| pending.events.push(event));
            }
        }
    });
}

/// Frees a blocked client's data on Valkey, which keeps the replies of [`reply_to_unblocked`] aside until
/// now. If CLIENT UNBLOCK ... ERROR or a demotion came in between, these replies are dropped and
/// the client has got an error. So its hand-over is taken back.
unsafe extern "C" fn on_end(ctx: *mut raw::RedisModuleCtx, waiter_id: *mut c_void) {
    // SAFETY: the server calls this with its lock held and a context for the call.
    let (entered, ctx) = unsafe { (Entered::new(), api::context(ctx)) };
    boundary::guard(entered, |_| {
        let waiter_id = WaiterId(waiter_id.addr() as u64);
        if api::client_id(&ctx) == 0 {
            let taken = state::blocked(|blocked| blocked.provisional.take_of_waiter(waiter_id));
            taken.into_iter().for_each(record_undelivered);
        }
    });
}
