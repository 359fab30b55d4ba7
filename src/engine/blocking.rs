//! Blocked clients: the only place that knows the server's blocking calls.
//!
//! What holds, on every supported server:
//!
//! - A client is blocked *on a key*, without a timeout of the server's: so it gets MOVED when its
//!   slot leaves, UNBLOCKED on a demotion, CLIENT UNBLOCK and CLIENT KILL from the server itself.
//!   The order and the time are the module's.
//! - That key is none of those it waits for but a decoy in the same slot, with a name drawn at load
//!   that nobody ever uses. Were it blocked on a real key, the server would ask each waiter whether
//!   to go on whenever the key is made anew, which costs more than all else; and Redis 7.0 would
//!   take the last one asked for the client of the moment after it is freed.
//! - The ready callback, should it be called all the same, says "keep waiting".
//! - To answer a waiter, its outcome is recorded here and `RM_UnblockClient` called; the server then
//!   calls [`on_timeout`], at once or later in the same pass of its loop, which replies what the
//!   record says. Where there is none it was CLIENT UNBLOCK ... TIMEOUT: nil.
//! - [`on_disconnect`] runs when the client dies, which the server has told right before, and when
//!   the server answered it by itself with an error. It writes nothing: it leaves an event in the
//!   pending events.
//! - A handle is the server's; it is valid until one of the two callbacks has run for it, and
//!   forgotten here as that happens.
//!
//! A hand-over stays provisional until the server next sleeps, that is, until the reply was handed
//! to the socket: should the client's end be noticed before, it is taken back. Not later, and not
//! where the reply was handed to the socket already (a QUIT was sent behind the wait): who has its
//! answer may close its connection and keep the lock.

use std::ffi::{c_int, c_void};
use std::ptr;

use redis_lock_core::branch::unlikely;
use redis_lock_core::decision::{Answer, Completion, Outcome};
use redis_lock_core::operation::{Action, Operation};
use redis_lock_core::state::hand_over::{HandOver, Origin};
use redis_lock_core::state::queue::{Position, Waiter, WaiterId};
use redis_lock_core::values::name::Name;
use redis_lock_core::values::name::Names;
use redis_lock_core::values::slot;
use redis_module::{raw, Context};

use crate::engine::pending;
use crate::server::api::{self, server};
use crate::server::{boundary, clients, clock, filter, random, reply, rights, timer};
use crate::state::blocked::{Blocked, BlockedClients, Handle};
use crate::state::pending::Event;
use crate::state::{self, DecoyName, Postponed, State};

/// How many who aren't granted anything are answered at once: the server needs some 20 us for each, and
/// one LOCK.CANCEL can end thousands of waits.
const MOST_REFUSED_AT_ONCE: usize = 256;

/// Draws the decoys' name.
pub fn draw_decoy(_: &Context) -> Result<(), String> {
    let mut name = DecoyName::default();
    random::fill(&mut name).map_err(|why| why.text().to_owned())?;
    for byte in name.iter_mut().filter(|byte| **byte == b'{') {
        // A brace would decide about the slot.
        *byte = b'(';
    }
    state::with(|state| state.decoys.set(name));
    Ok(())
}

/// A key that nobody ever makes, in the same slot as this one. The last one is kept: who blocks next
/// mostly waits for the same name.
fn decoy(name: &Name) -> *mut raw::RedisModuleString {
    let slot = if api::is_clustered() {
        slot::of_key(name.key())
    } else {
        0
    };
    state::with(|state| {
        let mut last = state.last_decoy.borrow_mut();
        match &*last {
            Some((of, key)) if *of == slot => key.inner,
            _ => {
                let mut key = state.decoys.get().to_vec();
                key.extend(slot::suffix_for(&key, slot));
                last.insert((slot, api::string(&key))).1.inner
            }
        }
    })
}

/// Whether this context's client may be blocked: not in MULTI, in a script, where it said so, or where it
/// is subscribed to a channel and the server blocks no such client. In RESP2 a subscriber may do nothing
/// but subscribe.
fn may_block(ctx: &Context) -> bool {
    let denying = raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    let flags = api::context_flags(ctx);
    let may_subscribe = flags & raw::REDISMODULE_CTX_FLAGS_RESP3 != 0;
    flags & denying == 0
        && (api::blocks_subscribers()
            || !may_subscribe
            || !clients::is_subscriber(api::client_id(ctx)))
}

/// A client that may not block gets the answer of an ACQUIRE, as with BLPOP.
pub fn nonblocking_where_required(
    ctx: &Context,
    Operation { names, action }: Operation,
) -> Operation {
    let action = match action {
        Action::Wait { request, .. } if !may_block(ctx) => Action::Acquire(request),
        action => action,
    };
    Operation { names, action }
}

/// Blocks the context's client as this waiter, who was queued at this position. Tells whether the server did so.
///
/// In a cluster all names are in one slot, so one decoy stands for all of them.
pub fn block(ctx: &Context, waiter_id: WaiterId, position: Position, names: &Names) -> bool {
    let Some(name) = names.iter().next() else {
        return false;
    };
    let mut key = decoy(name);
    let handle = server!(RedisModule_BlockClientOnKeys(
        ctx.ctx,
        Some(on_ready),
        Some(on_timeout),
        api::is_valkey().then_some(on_end),
        0,
        &raw mut key,
        1,
        ptr::without_provenance_mut(waiter_id.0 as usize),
    ));
    let Some(handle) = handle.filter(|handle| !handle.is_null()) else {
        return false;
    };
    server!(RedisModule_SetDisconnectCallback(
        handle,
        Some(on_disconnect)
    ));
    let client = Blocked {
        handle,
        client_id: api::client_id(ctx),
        position,
        rights_version: rights::version(),
    };
    state::blocked(|blocked| {
        blocked.clients.insert(waiter_id, client);
    });
    true
}

/// The waiter that the server calls back for: its number is the blocked client's own data.
fn waiter_of(ctx: &Context) -> WaiterId {
    let number = server!(RedisModule_GetBlockedClientPrivateData(ctx.ctx));
    WaiterId(number.map_or(0, |number| number.addr() as u64))
}

/// Whether nobody may have changed rights since those of a waiter's user were looked at last: it has them.
pub fn has_seen_rights(waiter: &Waiter) -> bool {
    let version = state::blocked(|blocked| {
        let client = blocked.clients.get(&waiter.waiter_id);
        client.map(|client| client.rights_version)
    });
    version.is_some_and(rights::is_current)
}

/// Whether the user of a waiter still has the rights to what it waits for: the server is asked.
pub fn permits(ctx: &Context, waiter: &Waiter) -> bool {
    let version = rights::version_in(ctx);
    let permitted = rights::may_wait(ctx, waiter.client_id, &waiter.names, &waiter.request.token);
    state::blocked(|blocked| {
        if let Some(blocked) = blocked
            .clients
            .get_mut(&waiter.waiter_id)
            .filter(|_| permitted)
        {
            blocked.rights_version = version;
        }
    });
    permitted
}

/// Answers those whose wait is over.
///
/// Redis before 7.2 writes the answer to the client at once, and then CLIENT UNBLOCK ... ERROR in the
/// same pass of the loop writes another. There the server is told as it goes to sleep.
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
    if !api::answers_at_once() {
        unblock_decided();
    }
}

/// The server is about to send what it has to send, and then to wait for events.
pub fn before_sleep() {
    state::with(|state| state.sending.set(true));
    if api::answers_at_once() {
        unblock_decided();
    }
}

/// The server waited for events, so it had sent what it had to send.
pub fn after_sleep() {
    let postponed = state::with(|state| {
        state.sending.set(false);
        state.postponed.get()
    });
    if unlikely(postponed != Postponed::None) {
        filter::forget_those_that_ran();
    }
    state::blocked(BlockedClients::forget_provisional);
}

/// Has the server answer those whose wait is over: those who were granted something, and as many others
/// as may be answered at once. The rest is left to the timer.
pub fn unblock_decided() {
    let mut others_left = MOST_REFUSED_AT_ONCE;
    while let Some(waiter_id) = state::blocked(|blocked| blocked.next_decided(&mut others_left)) {
        let handle = state::blocked(|blocked| {
            blocked
                .clients
                .get(&waiter_id)
                .map(|blocked| blocked.handle)
        });
        // Calls back into `on_timeout` on some servers: nothing is borrowed here.
        if let Some(handle) = handle {
            server!(RedisModule_UnblockClient(handle, ptr::null_mut()));
        }
    }
    if state::blocked(|blocked| !blocked.refused.is_empty()) {
        timer::fire_soon();
    }
}

/// Whether it is by the end of its connection that the server is just now done with a blocked client: it
/// tells that end first. Else it answered the client by itself.
fn is_lost(client_id: u64) -> bool {
    state::with(|state| state.last_gone_client.get()) == client_id
}

/// A connection is gone. What was handed to it since the server last slept goes back, unless it was
/// sent its answer before it was closed.
pub fn record_client_gone(client_id: u64) {
    state::with(|state| state.last_gone_client.set(client_id));
    let any = state::blocked(|blocked| blocked.provisional.has_client(client_id));
    if !any {
        return;
    }
    let ctx = api::own_context();
    // Within a long script the server sends too.
    let may_be_sent = state::with(|state| state.sending.get()) || api::is_script_running(&ctx);
    if !may_be_sent || !clients::was_sent_all_replies(&ctx, client_id) {
        let taken = state::blocked(|blocked| blocked.provisional.take_of_client(client_id));
        taken.into_iter().for_each(record_undelivered);
    }
}

/// A connection is told by this answer that its token holds. What was handed to another one by that token,
/// which may be gone, stays: it would be taken from one who knows of it.
#[inline]
pub fn record_answer(state: &State, operation: &Operation, answer: &Answer) {
    if unlikely(has_unsent(state)) {
        record_known(state, operation, answer);
    }
}

/// Whether there are hand-overs that may still be taken back.
#[inline(always)]
fn has_unsent(state: &State) -> bool {
    state.blocked(|blocked| blocked.has_unsent())
        || state.pending(|pending| !pending.undelivered.is_empty())
}

#[inline(never)]
fn record_known(state: &State, Operation { names, action }: &Operation, answer: &Answer) {
    let tells_of_grant = match action {
        Action::Acquire(_) | Action::Wait { .. } | Action::Queue { .. } => {
            matches!(answer, Answer::Granted(_))
        }
        Action::Extend { .. } => !matches!(answer, Answer::Count(0)),
        Action::Cancel { .. } | Action::Release { .. } => false,
    };
    if !tells_of_grant {
        return;
    }
    let token = action.token();
    state.blocked(|blocked| blocked.record_known(token, names));
    state.pending(|pending| pending.keep_handed_over(token, names));
}

/// A hand-over whose client will not read of it goes back, unless somebody else was told of it. A client
/// that lives on, because the server answered it by itself, has given its place up.
fn record_undelivered(hand_over: HandOver) {
    if state::blocked(|blocked| blocked.is_known(&hand_over)) {
        return;
    }
    let place = hand_over.place.filter(|_| is_lost(hand_over.client_id));
    let undelivered = HandOver { place, ..hand_over };
    pending::record(|pending| pending.undelivered.push(undelivered));
}

extern "C" fn on_ready(
    _: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        let waiter_id = waiter_of(&ctx);
        let Some(client) = state::blocked(|blocked| blocked.forget(waiter_id)) else {
            reply::null_array(&ctx);
            return;
        };
        match client.outcome {
            Some(outcome) => {
                reply::outcome(&ctx, &outcome);
                state::blocked(|blocked| blocked.record_answered(waiter_id, outcome));
            }
            None => {
                let left = Event::Left(waiter_id, client.position);
                pending::record(|pending| pending.events.push(left));
                reply::null_array(&ctx);
            }
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn on_disconnect(ctx: *mut raw::RedisModuleCtx, _: Handle) {
    boundary::guard(|| {
        let waiter_id = waiter_of(&Context::new(ctx));
        let forgotten = state::blocked(|blocked| blocked.forget(waiter_id));
        let Some(client) = forgotten else {
            return;
        };
        match client.outcome {
            Some(Outcome::Granted(hand_over)) if hand_over.origin == Origin::New => {
                record_undelivered(hand_over);
            }
            Some(_) => {}
            None => {
                let event = if is_lost(client.client_id) {
                    Event::Lost(waiter_id, client.position, clock::steady_ms())
                } else {
                    Event::Left(waiter_id, client.position)
                };
                pending::record(|pending| pending.events.push(event));
            }
        }
    });
}

/// A Valkey is done with a blocked client. It keeps the replies of [`on_timeout`] aside until
/// now; where CLIENT UNBLOCK ... ERROR or a demotion came in between, they are thrown away, and the
/// client has read an error.
extern "C" fn on_end(ctx: *mut raw::RedisModuleCtx, waiter_id: *mut c_void) {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        let waiter_id = WaiterId(waiter_id.addr() as u64);
        if api::client_id(&ctx) == 0 {
            let taken = state::blocked(|blocked| blocked.provisional.take_of_waiter(waiter_id));
            taken.into_iter().for_each(record_undelivered);
        }
    });
}
