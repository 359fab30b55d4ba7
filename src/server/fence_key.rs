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
//! - A replica can't open an expired key to read or delete it. So it deletes the key by DEL. In a
//!   cluster the primary deletes the key once the replica is online.
//!
//! Clients may write a key of this name. A value without the module's own form, text and expiry, is
//! a client's own. The module never deletes it, and doesn't save the last fence while it exists. A
//! value of the module's own form can be a client's forgery. So it raises fences by at most a day
//! over the clock.

use std::ffi::c_int;

use redis_lock_core::effect::{self, Change};
use redis_lock_core::values::data::Data;
use redis_lock_core::values::fence;
use redis_lock_core::values::holder::{Holder, Mode};
use redis_lock_core::values::session_id::SessionId;
use redis_lock_core::values::slot::{self, SLOTS};
use redis_lock_core::values::token::Token;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::calls::{self, function, OpenKey, Passed, Str};
use crate::server::key::{self, WRITE};
use crate::server::{api, clock, propagation, slots};
use crate::state::{self, FENCES};

/// The key's name. In a cluster two bytes for the slot follow. It has no `{`, which would change
/// the slot.
const NAME: &[u8] = b"redis-lock:last-fence:";

/// The content of a key of the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// No key, or an expired one.
    Empty,
    /// A fence, in the module's own form.
    Fence(u64),
    /// A client's own value.
    Foreign,
}

/// Creates the key in the keyspace that is about to be saved.
pub fn put() {
    let Some((name, fence)) = own_key() else {
        return;
    };
    let ctx = api::own_context();
    api::select_db(&ctx, 0);
    if !make_room(&ctx, &name, fence) {
        return;
    }
    // SAFETY: the key stays open until the save ends. A child runs nothing else meanwhile, and a
    // server that saves itself serves no client.
    let Some(key) = (unsafe { key::open(&ctx, Str::from(&name), WRITE) }) else {
        return;
    };
    let text = api::string(fence.to_string().as_bytes());
    calls::set_string(&key, Str::from(&text));
    let expiry_ms = fence::stored_expiry_ms(fence);
    calls::set_abs_expire(&key, i64::try_from(expiry_ms).unwrap_or(i64::MAX));
    // Kept open, because opening it again would expire it and notify replicas and clients of that.
    state::with(|state| state.fence_key.set(Some(key.into_raw())));
}

/// Deletes any key of the name that is the module's own or has expired. Returns true if the fence
/// is to be stored: no key of the name is left.
///
/// A server asserts that nothing is stored over an expired key that wasn't deleted. Such a key can
/// exist on a replica and while writes are paused, as in a shutdown that waits for replicas.
fn make_room(ctx: &Context, name: &RedisString, fence: u64) -> bool {
    match content_at(ctx, name) {
        Content::Foreign => {
            log_foreign(ctx, name);
            false
        }
        Content::Fence(stored) if stored >= fence => false,
        Content::Fence(_) | Content::Empty => delete(ctx, name.as_slice()),
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

/// Reads and deletes the key after a file was loaded, and before a command of the file that flushes a
/// database. A SWAPDB of the file may have moved it.
pub fn take_in() {
    let ctx = api::own_context();
    for db in api::databases(&ctx) {
        take_in_selected(&ctx, db);
    }
}

fn take_in_selected(ctx: &Context, db: i32) {
    let mut foreign = None;
    for name in names() {
        match take(ctx, &name) {
            Content::Foreign => foreign = foreign.or(Some(name)),
            Content::Empty if db == 0 && api::is_replica() && !api::is_clustered() => {
                delete(ctx, name.as_slice());
            }
            Content::Empty | Content::Fence(_) => {}
        }
    }
    if let Some(name) = foreign.filter(|_| db == 0) {
        log_foreign(ctx, &name);
    }
}

/// Reads the key of a name, and deletes it if it has a fence.
fn take(ctx: &Context, name: &RedisString) -> Content {
    let content = clear(ctx, name);
    if let Content::Fence(fence) = content {
        raise(ctx, fence);
    }
    content
}

/// Deletes the key of a name if it has a fence. Returns what it had.
fn clear(ctx: &Context, name: &RedisString) -> Content {
    // SAFETY: the key is closed before the server is asked for anything about other keys.
    let Some(key) = (unsafe { key::open(ctx, Str::from(name), WRITE) }) else {
        return Content::Empty;
    };
    let content = content_of(&key);
    if matches!(content, Content::Fence(_)) {
        calls::delete_key(&key);
    }
    content
}

fn raise(ctx: &Context, fence: u64) {
    if !FENCES.raise_stored(fence, clock::wall_us()) {
        let text = format!(
            "the last fence of the loaded file, {fence}, counts as a day ahead of the clock, \
             because it is further ahead"
        );
        api::log(ctx, c"warning", &text);
    }
}

/// Logs that the last fence isn't saved. A cluster's node that finds several such keys when it
/// loads a file logs the first.
fn log_foreign(ctx: &Context, name: &RedisString) {
    let text = format!(
        "the key {} has a client's own value: the last fence isn't saved while it exists",
        name.as_slice().escape_ascii()
    );
    api::log(ctx, c"warning", &text);
}

/// Replicates a deletion of the key, because a replica that has just loaded a file may have it. The
/// append-only file keeps the key for its next load.
///
/// A value of the module's own form that a client has stored goes too, in any database, because the
/// replica has deleted it. A client's own value stays.
pub fn delete_on_replicas(ctx: &Context) {
    let own = own_key().map(|(name, _)| name);
    for db in api::databases(ctx) {
        for name in names() {
            let may_be_loaded = match clear(ctx, &name) {
                Content::Foreign => false,
                Content::Fence(_) => true,
                Content::Empty => db == 0 && own.as_ref() == Some(&name),
            };
            if may_be_loaded {
                propagation::replicate_to_replicas(ctx, c"DEL", &[Str::from(&name)]);
            }
        }
    }
}

/// Replicates the counter, which no effect carries after a promotion, as a grant under the key's name
/// that ends at once. Otherwise a replica that is promoted next could give the fences that this
/// server has given meanwhile.
pub fn replicate_counter(ctx: &Context) {
    let Some((name, fence)) = own_key() else {
        return;
    };
    api::select_db(ctx, 0);
    if clear(ctx, &name) == Content::Foreign {
        return;
    }
    let grant = ended_grant(fence);
    let words = effect::words(&grant).unwrap_or_default();
    let words: Vec<RedisString> = words
        .iter()
        .map(|word| api::string(word.as_slice()))
        .collect();
    let name = Str::from(&name);
    let grant: Vec<Str<'_>> = std::iter::once(name)
        .chain(words.iter().map(Str::from))
        .collect();
    // The first DEL is for a replica that has just loaded the key.
    propagation::replicate(ctx, c"DEL", &[name]);
    propagation::replicate(ctx, c"LOCK.APPLY", &grant);
    propagation::replicate(ctx, c"DEL", &[name]);
}

fn ended_grant(fence: u64) -> Change {
    let holder = Holder {
        token: Token::from_bits(0),
        fence,
        holds: 1,
        limit: 0,
        permits: 1,
        deadline_ms: 0,
        lease_ms: 1,
        since_ms: 0,
        client_id: 0,
        session: SessionId::NONE,
        data: Data::NONE,
    };
    let mode = Mode::Exclusive;
    Change::Grant { mode, holder }
}

fn content_at(ctx: &Context, name: &RedisString) -> Content {
    // SAFETY: the key is closed before the server is asked for anything about other keys.
    let key = unsafe { key::open(ctx, Str::from(name), WRITE) };
    key.as_ref().map_or(Content::Empty, content_of)
}

/// Returns the content of a key, which must be open to write: a key that is opened to read counts as
/// a miss in the server's statistics if it doesn't exist.
fn content_of(key: &OpenKey) -> Content {
    match calls::key_type(key) as isize {
        raw::REDISMODULE_KEYTYPE_EMPTY => Content::Empty,
        raw::REDISMODULE_KEYTYPE_STRING => {
            stored_fence(key).map_or(Content::Foreign, Content::Fence)
        }
        _ => Content::Foreign,
    }
}

fn stored_fence(key: &OpenKey) -> Option<u64> {
    let expiry_ms = u64::try_from(calls::get_abs_expire(key)).ok()?;
    let mut len = 0;
    let (pointer, access) = (Passed::raw(&key), raw::REDISMODULE_READ as c_int);
    // SAFETY: the key is open, and the server writes the length to `len`, a local variable.
    let text = unsafe { function!(RedisModule_StringDMA)(pointer, &raw mut len, access) };
    if text.is_null() {
        return None;
    }
    // SAFETY: the server returned `len` bytes, which are valid as long as the key is open and not
    // written to. The key is open until this function returns, which doesn't write to it.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    fence::parse_stored(text, Some(expiry_ms))
}

/// Returns the key that this server saves and its fence. `None`: no fence was drawn yet, or this
/// cluster node has no slots.
fn own_key() -> Option<(RedisString, u64)> {
    let fence = FENCES.last();
    if fence == 0 {
        return None;
    }
    let name = if api::is_clustered() {
        names_in_slots()(slots::first_served()?)
    } else {
        api::string(NAME)
    };
    Some((name, fence))
}

/// Returns the names of all keys that this server may have saved. In a cluster it may have had
/// other slots then.
fn names() -> Box<dyn Iterator<Item = RedisString>> {
    if api::is_clustered() {
        Box::new((0..SLOTS).map(names_in_slots()))
    } else {
        Box::new(std::iter::once(api::string(NAME)))
    }
}

/// Returns a function of a slot, which returns the key's name there.
fn names_in_slots() -> impl Fn(u16) -> RedisString {
    let suffix = slot::suffixes_for(NAME);
    move |slot| api::string(&[NAME, &suffix(slot)].concat())
}
