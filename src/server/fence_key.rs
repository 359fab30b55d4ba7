//! The last fence in the server's files, so that fences rise after a restart too: where the last lock had gone
//! before the save, and the clock was set back since.
//!
//! A module's aux data would keep servers without it, and older versions of the module, from starting. So the fence
//! is a plain string key, which is in the keyspace for the time of a save alone:
//!
//! - As a save begins, the process that saves puts the key there, and takes it out as the save ends. Mostly that is a
//!   child of the server, whose changes nobody else sees.
//! - The key expires when the clock passes the fence. Then the clock alone makes fences rise, so a server drops the
//!   key as it loads the file. Where the clock was set back the key is there; it is read and deleted.
//! - In a cluster the key is in a slot of this node's, because the server takes a slot over in which it finds a key.
//! - On a replica what has expired can't be opened to be deleted, so it is deleted by DEL, or, in a cluster, by the
//!   primary once the replica is online.

use std::ffi::c_int;

use redis_lock_core::values::decimal;
use redis_lock_core::values::slot::{self, SLOTS};
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::key::WRITE;
use crate::server::{propagation, slots};
use crate::state::{self, FENCES};

/// The key; in a cluster two bytes for the slot follow. It has no `{`, which would decide about the slot.
const NAME: &[u8] = b"redis-lock:last-fence:";

/// The greatest fence that is believed: of the year 2112. Whoever may write the key can lead the fences that far,
/// and no further: as many numbers are left then.
const MAX_FENCE: u64 = 1 << 52;

/// The process that saves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Saver {
    /// A child of the server, which nobody else sees.
    Child,
    /// The server itself.
    Server,
}

/// Puts the key into the keyspace that is about to be saved.
pub fn put(saver: Saver) {
    let Some((name, fence)) = own_key() else {
        return;
    };
    let ctx = api::own_context();
    api::select_db(&ctx, 0);
    if !make_room(&ctx, &name, saver) {
        return;
    }
    let Some(key) = open(&ctx, &name, WRITE) else {
        return;
    };
    if kind_of(key) != raw::REDISMODULE_KEYTYPE_EMPTY {
        server!(RedisModule_CloseKey(key));
        return;
    }
    let text = api::string(fence.to_string().as_bytes());
    server!(RedisModule_StringSet(key, text.inner));
    let expiry_ms = i64::try_from(fence / 1000 + 1).unwrap_or(i64::MAX);
    server!(RedisModule_SetAbsExpire(key, expiry_ms));
    // Kept open: to open it again would expire it, and tell replicas and clients of that.
    state::with(|state| state.fence_key.set(Some(key)));
}

/// Makes sure that no key of the name is there. Returns false if that can't be known.
///
/// A server asserts that nothing is stored where a key has expired and wasn't deleted, as on a replica and while
/// writes are paused. A child deletes whatever it finds there.
fn make_room(ctx: &Context, name: &RedisString, saver: Saver) -> bool {
    match saver {
        Saver::Server => !api::is_replica() && !api::is_paused(),
        Saver::Child => delete(ctx, name.as_slice()),
    }
}

/// Deletes a key, also one that has expired. Returns false if the server refuses that, as in a slot of another node.
fn delete(ctx: &Context, name: &[u8]) -> bool {
    let options = CallOptionsBuilder::new().errors_as_replies().build();
    let reply: CallResult<'_> = ctx.call_ext("DEL", &options, &[name]);
    reply.is_ok()
}

/// Takes the key out of the keyspace that was saved.
pub fn take_out() {
    if let Some(key) = state::with(|state| state.fence_key.take()) {
        server!(RedisModule_DeleteKey(key));
        server!(RedisModule_CloseKey(key));
    }
}

/// Reads the key after a file was loaded, and deletes it.
pub fn take_in() {
    let ctx = api::own_context();
    api::select_db(&ctx, 0);
    let mode = if api::is_replica() {
        raw::REDISMODULE_READ
    } else {
        WRITE
    };
    for name in names() {
        if let Some(key) = open(&ctx, &name, mode) {
            read(key, mode);
            server!(RedisModule_CloseKey(key));
        }
    }
    if api::is_replica() && !api::is_clustered() {
        delete(&ctx, NAME);
    }
}

/// Has the replicas delete the key: one that has just loaded a file may have it.
pub fn delete_on_replicas(ctx: &Context) {
    if let Some((name, _)) = own_key() {
        api::select_db(ctx, 0);
        propagation::replicate(ctx, c"DEL", &[name.inner]);
    }
}

fn read(key: *mut raw::RedisModuleKey, mode: u32) {
    if kind_of(key) != raw::REDISMODULE_KEYTYPE_STRING {
        return;
    }
    let mut len = 0;
    let mode_of_access = raw::REDISMODULE_READ as c_int;
    let text = server!(RedisModule_StringDMA(key, &raw mut len, mode_of_access));
    let Some(text) = text.filter(|text| !text.is_null()) else {
        return;
    };
    // SAFETY: the server returned `len` bytes, which stay as long as the key is open and not written to.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let Some(fence) = decimal::parse(text).filter(|fence| *fence <= MAX_FENCE) else {
        return;
    };
    FENCES.raise(fence);
    if mode == WRITE {
        server!(RedisModule_DeleteKey(key));
    }
}

fn open(ctx: &Context, name: &RedisString, mode: u32) -> Option<*mut raw::RedisModuleKey> {
    let key = server!(RedisModule_OpenKey(ctx.ctx, name.inner, mode as c_int));
    key.filter(|key| !key.is_null())
}

fn kind_of(key: *mut raw::RedisModuleKey) -> isize {
    server!(RedisModule_KeyType(key)).unwrap_or(0) as isize
}

/// The key that this server saves, and its fence; none where no fence was given yet, and in a cluster without slots.
fn own_key() -> Option<(RedisString, u64)> {
    let fence = FENCES.last();
    if fence == 0 {
        return None;
    }
    let name = if api::is_clustered() {
        name_in(slots::first_served()?)
    } else {
        api::string(NAME)
    };
    Some((name, fence))
}

/// All keys that this server may have saved: its slots may have been others then.
fn names() -> Box<dyn Iterator<Item = RedisString>> {
    if api::is_clustered() {
        Box::new((0..SLOTS).map(name_in))
    } else {
        Box::new(std::iter::once(api::string(NAME)))
    }
}

fn name_in(slot: u16) -> RedisString {
    let mut name = NAME.to_vec();
    name.extend(slot::suffix_for(NAME, slot));
    api::string(&name)
}
