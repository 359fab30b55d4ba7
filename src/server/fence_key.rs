//! The last fence in the server's files. It makes fences rise after a restart. Without it they
//! could fall if the last lock was gone before the save and the clock was set back since.
//!
//! A module's aux data is not used, because servers without the module and older versions of it
//! would refuse to start. The fence is a plain string key that exists in the keyspace only during a
//! save:
//!
//! - When a save begins, the process that saves creates the key, and deletes it when the save ends.
//!   Usually that process is a child of the server, whose changes no client sees.
//! - The key expires when the clock passes the fence. From then on the clock alone makes fences
//!   rise, so a server drops the key when it loads the file. If the clock was set back, the key is
//!   still there and is read and deleted.
//! - In a cluster the key is in a slot of this node. A server that finds a key in another slot
//!   would take over that slot.
//! - A replica can't open an expired key to delete it. So it deletes the key by DEL. In a cluster
//!   the primary deletes the key once the replica is online.

use std::ffi::c_int;

use redis_lock_core::values::decimal;
use redis_lock_core::values::slot::{self, SLOTS};
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::calls::{self, function, OpenKey, Passed, Str};
use crate::server::key::{self, WRITE};
use crate::server::{api, propagation, slots};
use crate::state::{self, FENCES};

/// The key's name. In a cluster two bytes for the slot follow. It has no `{`, which would change
/// the slot.
const NAME: &[u8] = b"redis-lock:last-fence:";

/// The greatest fence that is accepted, of the year 2112. A client that may write the key can raise
/// fences up to it and no further. As many numbers are left after it.
pub const MAX_FENCE: u64 = 1 << 52;

/// The process that saves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Saver {
    /// A child of the server. No client sees its keyspace.
    Child,
    /// The server itself.
    Server,
}

/// Creates the key in the keyspace that is about to be saved.
pub fn put(saver: Saver) {
    let Some((name, fence)) = own_key() else {
        return;
    };
    let ctx = api::own_context();
    api::select_db(&ctx, 0);
    if !make_room(&ctx, &name, saver) {
        return;
    }
    // SAFETY: the key stays open until the save ends. A child runs nothing else meanwhile, and a
    // server that saves itself serves no client.
    let Some(key) = (unsafe { key::open(&ctx, Str::from(&name), WRITE) }) else {
        return;
    };
    if kind_of(&key) != raw::REDISMODULE_KEYTYPE_EMPTY {
        return;
    }
    let text = api::string(fence.to_string().as_bytes());
    calls::set_string(&key, Str::from(&text));
    calls::set_abs_expire(&key, i64::try_from(fence / 1000 + 1).unwrap_or(i64::MAX));
    // Kept open, because opening it again would expire it and notify replicas and clients of that.
    state::with(|state| state.fence_key.set(Some(key.into_raw())));
}

/// Makes sure that no expired key of the name is left. Returns false if that is not certain.
///
/// A server asserts that nothing is stored over an expired key that wasn't deleted. Such a key can
/// exist on a replica and while writes are paused, as in a shutdown that waits for replicas. A child
/// and a paused server delete any key of the name first.
fn make_room(ctx: &Context, name: &RedisString, saver: Saver) -> bool {
    match saver {
        Saver::Server if api::is_replica() => false,
        Saver::Server => !api::is_paused() || delete(ctx, name.as_slice()),
        Saver::Child => delete(ctx, name.as_slice()),
    }
}

/// Deletes a key, even an expired one. Returns false if the server refuses that, as in a slot of
/// another node.
fn delete(ctx: &Context, name: &[u8]) -> bool {
    let options = CallOptionsBuilder::new().errors_as_replies().build();
    let reply: CallResult<'_> = ctx.call_ext("DEL", &options, &[name]);
    reply.is_ok()
}

/// Deletes the key from the keyspace that was saved.
pub fn take_out() {
    let key = state::with(|state| state.fence_key.take());
    // SAFETY: the key is from `put`, and was taken out of the only place that had it.
    if let Some(key) = key.and_then(|key| unsafe { OpenKey::new(key) }) {
        calls::delete_key(&key);
    }
}

/// Reads and deletes the key after a file was loaded.
pub fn take_in() {
    let ctx = api::own_context();
    api::select_db(&ctx, 0);
    let mode = if api::is_replica() {
        raw::REDISMODULE_READ
    } else {
        WRITE
    };
    for name in names() {
        // SAFETY: the key is closed before another one is opened, and `read` asks the server for
        // nothing about other keys.
        if let Some(key) = unsafe { key::open(&ctx, Str::from(&name), mode) } {
            read(&key, mode);
        }
    }
    if api::is_replica() && !api::is_clustered() {
        delete(&ctx, NAME);
    }
}

/// Replicates a deletion of the key, because a replica that has just loaded a file may have it.
pub fn delete_on_replicas(ctx: &Context) {
    if let Some((name, _)) = own_key() {
        api::select_db(ctx, 0);
        propagation::replicate(ctx, c"DEL", &[Str::from(&name)]);
    }
}

fn read(key: &OpenKey, mode: u32) {
    if kind_of(key) != raw::REDISMODULE_KEYTYPE_STRING {
        return;
    }
    let mut len = 0;
    let (pointer, access) = (Passed::raw(&key), raw::REDISMODULE_READ as c_int);
    // SAFETY: the key is open, and the server writes the length to `len`, a local variable.
    let text = unsafe { function!(RedisModule_StringDMA)(pointer, &raw mut len, access) };
    if text.is_null() {
        return;
    }
    // SAFETY: the server returned `len` bytes, which are valid as long as the key is open and not
    // written to. The key is open until this function returns, and is deleted after the last use.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let Some(fence) = decimal::parse(text).filter(|fence| *fence <= MAX_FENCE) else {
        return;
    };
    FENCES.raise(fence);
    if mode == WRITE {
        calls::delete_key(key);
    }
}

fn kind_of(key: &OpenKey) -> isize {
    calls::key_type(key) as isize
}

/// Returns the key that this server saves and its fence. `None`: no fence was drawn yet, or this
/// cluster node has no slots.
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

/// Returns the names of all keys that this server may have saved. In a cluster it may have had
/// other slots then.
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
