//! The server's replicas: how far they have come, and the request for their acknowledgements.

use std::ffi::{c_void, CString};
use std::num::NonZeroU16;
use std::ptr;

use redis_lock_core::state::replica_waits::Progress;
use redis_module::Context;

use crate::server::api::ServerInfo;
use crate::server::calls::function;
use crate::state;

/// The time after which replicas that have not acknowledged are looked at again, in ms.
pub const LOOK_AGAIN_MS: u64 = 10;

/// Asks for a look at the replicas before the server sleeps next.
pub fn request_check() {
    state::with(|state| state.is_look_wanted.set(true));
}

/// Asks for a look at the replicas in the next pass of the server's event loop, which then comes at
/// once.
// perf: a timer would not do. Redis 7.0 decides how long it sleeps before it tells the module that
// it will, so a timer that is armed then may be 10 ms late.
pub fn request_check_in_next_pass() {
    request_check();
    // SAFETY: the callback requires nothing, and ignores its data.
    unsafe { function!(RedisModule_EventLoopAddOneShot)(Some(do_nothing), ptr::null_mut()) };
}

extern "C" fn do_nothing(_data: *mut c_void) {}

/// Records that a replica has come or gone: how many are online is unknown, and they are asked again
/// for what clients wait for.
pub fn note_change() {
    state::with(|state| state.online_replicas.set(None));
    want_acknowledgements();
}

/// Records that the replicas are to be asked for acknowledgements.
pub fn want_acknowledgements() {
    state::with(|state| state.is_ask_wanted.set(true));
}

/// Returns true if at least this many replicas are online.
///
/// The server reports when a replica comes or goes. So the number that was seen last is looked up
/// again only if it is too small.
pub fn are_online(ctx: &Context, count: NonZeroU16) -> bool {
    let count = usize::from(count.get());
    let known = state::with(|state| state.online_replicas.get());
    known.is_some_and(|known| known >= count) || progress(ctx).acknowledged.len() >= count
}

/// Returns the offset of the replication stream: everything that was replicated so far is before it.
pub fn stream_offset(ctx: &Context) -> u64 {
    ServerInfo::of(ctx, c"replication").map_or(0, |info| info.number(c"master_repl_offset"))
}

/// Returns the progress of the replicas that are online.
pub fn progress(ctx: &Context) -> Progress {
    let Some(info) = ServerInfo::of(ctx, c"replication") else {
        return Progress::default();
    };
    let slaves = info.number(c"connected_slaves");
    let mut acknowledged: Vec<u64> = (0..slaves)
        .filter_map(|at| {
            let field = CString::new(format!("slave{at}")).ok()?;
            acknowledged_offset(&info.field(&field)?)
        })
        .collect();
    acknowledged.sort_unstable_by(|one, other| other.cmp(one));
    let online = acknowledged.len();
    state::with(|state| state.online_replicas.set(Some(online)));
    Progress { acknowledged }
}

/// Returns the offset that a replica has acknowledged, if it is online, from its line in INFO:
/// `ip=...,port=...,state=online,offset=...,lag=...`.
fn acknowledged_offset(line: &str) -> Option<u64> {
    let mut fields = line.split(',').filter_map(|field| field.split_once('='));
    let is_online = fields.any(|field| field == ("state", "online"));
    let offset = fields.find(|(name, _)| *name == "offset");
    offset.filter(|_| is_online)?.1.parse().ok()
}

/// Asks the replicas for acknowledgements. Nothing of it reaches the append-only file. Only allowed
/// if the module [may write](crate::server::api::may_write_unasked).
///
/// Nothing else may be replicated in this context: a replica answers a request inside a MULTI with
/// the offset before that MULTI.
pub fn ask(ctx: &Context) {
    let (command, format) = (c"REPLCONF".as_ptr(), c"Acc".as_ptr());
    let (getack, any) = (c"GETACK".as_ptr(), c"*".as_ptr());
    // SAFETY: the context is valid by its type. After the letter for no append-only file, the format
    // takes two C strings.
    unsafe { function!(RedisModule_Replicate)(ctx.ctx, command, format, getack, any) };
}
