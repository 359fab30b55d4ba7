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
//! - To answer a waiter, its verdict is noted here and `RM_UnblockClient` called; the server then
//!   calls [`on_timeout`], at once or later in the same pass of its loop, which replies what the
//!   note says. Where there is no note it was CLIENT UNBLOCK ... TIMEOUT: nil.
//! - [`on_disconnect`] runs when the client dies, and when the server answered it by itself with
//!   an error. It writes nothing: it leaves a note in the inbox.
//! - A handle is the server's; it is valid until one of the two callbacks has run for it, and
//!   forgotten here as that happens.
//!
//! A hand-over stays provisional until the server next sleeps, that is, until the reply was handed
//! to the socket: should the client's end be noticed before, it is taken back. Not later, and not
//! where the reply was handed to the socket already (a QUIT was sent behind the wait): who has its
//! answer may close its connection and keep the lock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use lazy_static::lazy_static;
use redis_lock_core::desk::{Verdict, Wake};
use redis_lock_core::hand_over::{HandOver, Origin};
use redis_lock_core::name::Name;
use redis_lock_core::order::{Names, Order};
use redis_lock_core::queue::{Seat, Waiter};
use redis_lock_core::slot;
use redis_module::{raw, Context, RedisGILGuard, RedisString};

use crate::api::{self, server};
use crate::inbox::Event;
use crate::{boundary, clients, filter, inbox, reply, rights, tokens};

type Handle = *mut raw::RedisModuleBlockedClient;

struct Parked {
    handle: Handle,
    verdict: Option<Verdict>,
    /// As of when its user's rights were looked at, see [`filter::rights_version`].
    rights_version: u64,
}

/// What the decoys' names begin with.
static DECOY: OnceLock<[u8; 16]> = OnceLock::new();

/// Draws the decoys' name.
pub fn draw_decoy(_: &Context) -> Result<(), String> {
    let mut name = [0; 16];
    tokens::fill(&mut name).map_err(|why| why.text().to_owned())?;
    // Letters: a brace would decide about the slot.
    name.iter_mut()
        .for_each(|byte| *byte = b'a' + (*byte & 0xf));
    // Where loading failed before, it is drawn already.
    DECOY.get_or_init(|| name);
    Ok(())
}

/// A key that nobody ever makes, in the same slot as this one.
fn decoy(name: &Name) -> RedisString {
    let mut key = DECOY.get().map_or_else(Vec::new, |drawn| drawn.to_vec());
    key.extend(slot::suffix_for(&key, slot::of_key(&name.key)));
    api::string(&key)
}

/// Clients that the server holds blocked for the module, by seat and by handle.
#[derive(Default)]
struct Room {
    parked: HashMap<Seat, Parked>,
    seats: HashMap<Handle, Seat>,
    /// Those with a verdict whom the server is not told of yet.
    decided: Vec<Seat>,
    /// Hand-overs since the server last slept, and whose they are.
    provisional: HashMap<Seat, HandOver>,
    provisional_of: HashMap<u64, Vec<Seat>>,
}

/// Whether the server is past the point where it begins to send what it has to send, before it sleeps.
static SENDING: AtomicBool = AtomicBool::new(false);

lazy_static! {
    static ref ROOM: RedisGILGuard<RefCell<Room>> = RedisGILGuard::default();
}

/// Works on the room. The work must not call the server.
fn with<T: Default>(work: impl FnOnce(&mut Room) -> T) -> T {
    let ctx = api::own_context();
    let room = ROOM.lock(&ctx);
    let Ok(mut room) = room.try_borrow_mut() else {
        api::log(
            &ctx,
            c"warning",
            "the room of blocked clients was entered twice",
        );
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
///
/// In a cluster all names are in one slot, so one decoy stands for all of them.
pub fn park(ctx: &Context, seat: Seat, names: &Names) -> bool {
    let Some(name) = names.iter().next() else {
        return false;
    };
    let decoy = decoy(name);
    let mut key = decoy.inner;
    let handle = server!(RedisModule_BlockClientOnKeys(
        ctx.ctx,
        Some(on_ready),
        Some(on_timeout),
        Some(on_end),
        0,
        &raw mut key,
        1,
        ptr::without_provenance_mut(seat.0 as usize),
    ));
    let Some(handle) = handle.filter(|handle| !handle.is_null()) else {
        return false;
    };
    server!(RedisModule_SetDisconnectCallback(
        handle,
        Some(on_disconnect)
    ));
    let parked = Parked {
        handle,
        verdict: None,
        rights_version: filter::rights_version(),
    };
    with(|room| {
        room.parked.insert(seat, parked);
        room.seats.insert(handle, seat);
    });
    true
}

/// Whether the user of a waiter still has the rights to what it waits for. They are looked at only
/// where somebody may have changed rights since they were looked at last.
pub fn permits(ctx: &Context, waiter: &Waiter) -> bool {
    let version = filter::rights_version();
    let seen = with(|room| {
        room.parked
            .get(&waiter.seat)
            .map(|parked| parked.rights_version)
    });
    if seen == Some(version) {
        return true;
    }
    let permitted = rights::may_wait(ctx, waiter.client_id, &waiter.names, &waiter.ask.token);
    with(|room| {
        if let Some(parked) = room.parked.get_mut(&waiter.seat).filter(|_| permitted) {
            parked.rights_version = version;
        }
    });
    permitted
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

/// The server is about to send what it has to send, and then to wait for events.
pub fn before_sleep() {
    SENDING.store(true, Ordering::Relaxed);
    if api::answers_at_once() {
        unblock_decided();
    }
}

/// The server waited for events, so it had sent what it had to send.
pub fn after_sleep() {
    SENDING.store(false, Ordering::Relaxed);
    with(|room| {
        room.provisional.clear();
        room.provisional_of.clear();
    });
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

/// A connection is gone. What was handed to it since the server last slept goes back, unless it was
/// sent its answer before it was closed.
pub fn note_client_gone(client_id: u64) {
    let any = with(|room| room.provisional_of.contains_key(&client_id));
    if !any {
        return;
    }
    let ctx = api::own_context();
    // Within a long script the server sends too.
    let may_be_sent = SENDING.load(Ordering::Relaxed) || api::is_script_running(&ctx);
    if !may_be_sent || !clients::was_sent_all_replies(&ctx, client_id) {
        let seats = with(|room| room.provisional_of.remove(&client_id).unwrap_or_default());
        seats.into_iter().for_each(note_undelivered);
    }
}

/// A hand-over whose client will not read of it goes back.
fn note_undelivered(seat: Seat) {
    if let Some(hand_over) = with(|room| room.provisional.remove(&seat)) {
        inbox::note(|inbox| inbox.undelivered.push(hand_over));
    }
}

impl Room {
    fn note(&mut self, seat: Seat, verdict: Verdict) {
        let Some(parked) = self.parked.get_mut(&seat) else {
            return;
        };
        if let Verdict::Granted(hand_over) = &verdict {
            if hand_over.origin == Origin::New {
                self.provisional.insert(seat, hand_over.clone());
                let seats = self.provisional_of.entry(hand_over.client_id).or_default();
                seats.push(seat);
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
                inbox::note(|inbox| inbox.events.push(Event::Left(seat)));
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
        Some((seat, None)) => inbox::note(|inbox| inbox.events.push(Event::Left(seat))),
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
            note_undelivered(seat);
        }
    });
}
