//! Blocked clients: the only place that knows the server's blocking calls.
//!
//! What holds, on every supported server:
//!
//! - A client is blocked *on its keys*, without a timeout of the server's: so it gets MOVED when its
//!   slot leaves, UNBLOCKED on a demotion, CLIENT UNBLOCK and CLIENT KILL from the server itself.
//!   The order and the time are the module's.
//! - The ready callback always says "keep waiting". Who is next is the desk's to decide.
//! - To answer a waiter, its verdict is noted here and `RM_UnblockClient` called; the server then
//!   calls [`on_timeout`], at once or later in the same pass of its loop, which replies what the
//!   note says. Where there is no note it was CLIENT UNBLOCK ... TIMEOUT: nil.
//! - [`on_disconnect`] runs when the client dies, and when the server answered it by itself with
//!   an error. It writes nothing: it leaves a note in the inbox.
//! - A handle is the server's; it is valid until one of the two callbacks has run for it, and
//!   forgotten here as that happens.
//!
//! A hand-over stays provisional until the server next sleeps, that is, until the reply was handed
//! to the socket: should the client's end be noticed before, it is taken back. Not later: who has
//! its answer may close its connection and keep the lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;

use lazy_static::lazy_static;
use redis_lock_core::desk::{Verdict, Wake};
use redis_lock_core::hand_over::{HandOver, Origin};
use redis_lock_core::order::{Names, Order};
use redis_lock_core::queue::Seat;
use redis_module::{raw, Context, RedisGILGuard, RedisString};

use crate::api::{self, server};
use crate::{boundary, inbox, reply};

type Handle = *mut raw::RedisModuleBlockedClient;

struct Parked {
    handle: Handle,
    verdict: Option<Verdict>,
}

/// Clients that the server holds blocked for the module, by seat and by handle.
#[derive(Default)]
struct Room {
    parked: HashMap<Seat, Parked>,
    seats: HashMap<Handle, Seat>,
    /// Those with a verdict whom the server is not told of yet.
    decided: Vec<Seat>,
    /// Hand-overs since the server last slept.
    provisional: Vec<(Seat, HandOver)>,
}

lazy_static! {
    static ref ROOM: RedisGILGuard<RefCell<Room>> = RedisGILGuard::default();
}

/// Works on the room. The work must not call the server.
fn with<T: Default>(work: impl FnOnce(&mut Room) -> T) -> T {
    let ctx = api::own_context();
    let room = ROOM.lock(&ctx);
    let Ok(mut room) = room.try_borrow_mut() else {
        ctx.log_warning("lock: the room of blocked clients was entered twice");
        return T::default();
    };
    work(&mut room)
}

/// Whether this context's client may be blocked: not in MULTI, in a script or where it said so.
fn may_block(ctx: &Context) -> bool {
    let denying = raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
    api::context_flags(ctx) & denying == 0
}

/// A client that may not block gets the answer of an ACQUIRE, as with BLPOP.
pub fn patient_where_it_may(ctx: &Context, order: Order) -> Order {
    match order {
        Order::Wait { names, ask, .. } if !may_block(ctx) => Order::Acquire { names, ask },
        order => order,
    }
}

/// Blocks the context's client at this seat. Tells whether the server did so.
pub fn park(ctx: &Context, seat: Seat, names: &Names) -> bool {
    let keys: Vec<RedisString> = names.iter().map(|name| api::string(&name.key)).collect();
    let mut pointers = api::pointers(&keys);
    let handle = server!(RedisModule_BlockClientOnKeys(
        ctx.ctx,
        Some(on_ready),
        Some(on_timeout),
        Some(on_end),
        0,
        pointers.as_mut_ptr(),
        pointers.len() as c_int,
        ptr::without_provenance_mut(seat.0 as usize),
    ));
    let Some(handle) = handle.filter(|handle| !handle.is_null()) else {
        return false;
    };
    server!(RedisModule_SetDisconnectCallback(
        handle,
        Some(on_disconnect)
    ));
    with(|room| {
        room.parked.insert(
            seat,
            Parked {
                handle,
                verdict: None,
            },
        );
        room.seats.insert(handle, seat);
    });
    true
}

/// Answers those whose wait is over.
///
/// Redis before 7.2 writes the answer to the client at once, and then CLIENT UNBLOCK ... ERROR in the
/// same pass of the loop writes another. There the server is told as it goes to sleep.
pub fn deliver(wakes: Vec<Wake>) {
    with(|room| {
        for Wake { seat, verdict } in wakes {
            room.note(seat, verdict);
        }
    });
    if !api::answers_at_once() {
        unblock_decided();
    }
}

/// The server is about to wait for events.
pub fn before_sleep() {
    if api::answers_at_once() {
        unblock_decided();
    }
}

/// The server waited for events, so it had sent what it had to send.
pub fn after_sleep() {
    with(|room| room.provisional.clear());
}

fn unblock_decided() {
    for seat in with(|room| std::mem::take(&mut room.decided)) {
        let handle = with(|room| room.parked.get(&seat).map(|parked| parked.handle));
        // Calls back into `on_timeout` on some servers: nothing is borrowed here.
        if let Some(handle) = handle {
            server!(RedisModule_UnblockClient(handle, ptr::null_mut()));
        }
    }
}

/// A connection is gone. What was handed to it since the server last slept goes back.
pub fn note_client_gone(client_id: u64) {
    note_undelivered(|_, hand_over| hand_over.client_id == client_id);
}

/// Hand-overs whose client will not read of them go back.
fn note_undelivered(which: impl Fn(Seat, &HandOver) -> bool) {
    let undelivered = with(|room| room.take_provisional(which));
    if !undelivered.is_empty() {
        inbox::note(|inbox| inbox.undelivered.extend(undelivered));
    }
}

impl Room {
    fn note(&mut self, seat: Seat, verdict: Verdict) {
        let Some(parked) = self.parked.get_mut(&seat) else {
            return;
        };
        if let Verdict::Granted(hand_over) = &verdict {
            if hand_over.origin == Origin::New {
                self.provisional.push((seat, hand_over.clone()));
            }
        }
        parked.verdict = Some(verdict);
        self.decided.push(seat);
    }

    fn forget(&mut self, handle: Handle) -> Option<(Seat, Option<Verdict>)> {
        let seat = self.seats.remove(&handle)?;
        let parked = self.parked.remove(&seat)?;
        Some((seat, parked.verdict))
    }

    fn take_provisional(&mut self, which: impl Fn(Seat, &HandOver) -> bool) -> Vec<HandOver> {
        let (gone, kept) = std::mem::take(&mut self.provisional)
            .into_iter()
            .partition(|(seat, hand_over)| which(*seat, hand_over));
        self.provisional = kept;
        gone.into_iter().map(|(_, hand_over)| hand_over).collect()
    }
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
        let handle = server!(RedisModule_GetBlockedClientHandle(ctx.ctx));
        let parked = with(|room| room.forget(handle?));
        match parked {
            Some((_, Some(verdict))) => reply::verdict(&ctx, &verdict),
            Some((seat, None)) => {
                inbox::note(|inbox| inbox.left.push(seat));
                reply::nil(&ctx);
            }
            None => reply::nil(&ctx),
        }
    });
    raw::REDISMODULE_OK as c_int
}

extern "C" fn on_disconnect(_: *mut raw::RedisModuleCtx, handle: Handle) {
    boundary::guard(|| match with(|room| room.forget(handle)) {
        Some((_, Some(Verdict::Granted(hand_over)))) if hand_over.origin == Origin::New => {
            inbox::note(|inbox| inbox.undelivered.push(hand_over));
        }
        Some((_, Some(_))) | None => {}
        Some((seat, None)) => inbox::note(|inbox| inbox.left.push(seat)),
    });
}

/// The server is done with a blocked client. Valkey keeps the replies of [`on_timeout`] aside until
/// now; where CLIENT UNBLOCK ... ERROR or a demotion came in between, they are thrown away, and the
/// client has read an error.
extern "C" fn on_end(ctx: *mut raw::RedisModuleCtx, seat: *mut c_void) {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        let seat = Seat(seat.addr() as u64);
        if api::is_valkey() && api::client_id(&ctx) == 0 {
            note_undelivered(|other, _| other == seat);
        }
    });
}
