//! Locks in the server's keyspace: read, stored, replicated, announced.

use std::ffi::{c_int, CStr};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_lock_core::desk::{Server, Slot};
use redis_lock_core::effect::{self, Change, Effect, Stored};
use redis_lock_core::lock::{Holder, Lock};
use redis_lock_core::name::Name;
use redis_lock_core::queue::Waiter;
use redis_lock_core::session::TieId;
use redis_module::{raw, Context, RedisString};

use crate::api::{self, server};
use crate::{blocking, datatype, flow, inbox, permission};

/// The server as the desk asks it.
pub struct Host<'a> {
    /// The context that keys are opened in.
    pub ctx: &'a Context,
}

impl Server for Host<'_> {
    fn read(&mut self, name: &Name) -> Slot {
        read_settled(self.ctx, name)
    }

    /// Settling one name can lead to another that the server wasn't asked about: who waits for both
    /// is granted both. Where that one has no key here, its lock may have migrated away already.
    fn is_here(&mut self, name: &Name) -> bool {
        permission::is_here(name)
    }

    fn is_touched(&mut self, name: &Name) -> bool {
        inbox::with(|inbox| inbox.may_have_touched(name))
    }

    fn is_any_touched(&mut self) -> bool {
        inbox::with(|inbox| !inbox.touched.is_empty() || !inbox.databases.is_empty())
    }

    fn permits(&mut self, waiter: &Waiter) -> bool {
        blocking::permits(self.ctx, waiter)
    }
}

/// What a name holds now. The expiry of a lock that was just restored counts for nothing, until it
/// is put back to its leases.
pub fn read_settled(ctx: &Context, name: &Name) -> Slot {
    match read(ctx, name) {
        Slot::Lock(Stored { lock, .. }) if inbox::with(|inbox| inbox.restored.contains(name)) => {
            Slot::Lock(Stored {
                lock,
                expiry_ms: None,
            })
        }
        slot => slot,
    }
}

/// To look at a key without counting as an access to it.
const UNNOTICED: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH;

/// An open key; closed when the value goes.
struct Key {
    key: *mut raw::RedisModuleKey,
}

impl Drop for Key {
    fn drop(&mut self) {
        if !self.key.is_null() {
            server!(RedisModule_CloseKey(self.key));
        }
    }
}

/// What an open key holds.
enum Found<'a> {
    Nothing,
    Lock(&'a mut Lock),
    Foreign,
}

impl Key {
    /// Opens a key in the context's database. This may run callbacks: a key that has expired is
    /// deleted here, and the deletion replicated.
    fn open(ctx: &Context, string: &RedisString, mode: u32) -> Self {
        let key = server!(RedisModule_OpenKey(ctx.ctx, string.inner, mode as c_int));
        Self {
            key: key.unwrap_or(std::ptr::null_mut()),
        }
    }

    /// Opens the key of a name, in whichever database it is.
    fn of(ctx: &Context, name: &Name, mode: u32) -> Self {
        api::select_db(ctx, name.db);
        Self::open(ctx, &api::string(&name.key), mode)
    }

    fn found(&mut self) -> Found<'_> {
        if self.key.is_null() {
            return Found::Nothing;
        }
        let kind = server!(RedisModule_KeyType(self.key)).unwrap_or(0);
        match kind as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Found::Nothing,
            raw::REDISMODULE_KEYTYPE_MODULE if self.is_lock() => {
                let value = server!(RedisModule_ModuleTypeGetValue(self.key));
                let lock = value.map_or(std::ptr::null_mut(), |value| value.cast::<Lock>());
                // SAFETY: values of our type are made by `store_new` and `datatype::load` alone,
                // each from a `Box<Lock>`; the key is open, on the main thread, and borrowed.
                unsafe { lock.as_mut() }.map_or(Found::Foreign, Found::Lock)
            }
            _ => Found::Foreign,
        }
    }

    fn is_lock(&self) -> bool {
        server!(RedisModule_ModuleTypeGetType(self.key)) == Some(datatype::raw_type())
    }

    fn expiry_ms(&self) -> Option<u64> {
        // A missing key that was opened to be read has no handle, and this call can't do without.
        let key = (!self.key.is_null()).then_some(self.key)?;
        u64::try_from(server!(RedisModule_GetAbsExpire(key))?).ok()
    }

    fn set_expiry_ms(&self, expiry_ms: u64) {
        let expiry_ms = i64::try_from(expiry_ms).unwrap_or(i64::MAX);
        server!(RedisModule_SetAbsExpire(self.key, expiry_ms));
    }

    fn store_new(&self, lock: Lock) {
        let value = datatype::into_value(lock);
        server!(RedisModule_ModuleTypeSetValue(
            self.key,
            datatype::raw_type(),
            value
        ));
    }

    /// Leaves the key as its lock wants it: expiring with the last lease, or gone when free.
    fn expire_or_delete(&self, latest_ms: Option<u64>) {
        match latest_ms {
            Some(latest_ms) => self.set_expiry_ms(latest_ms),
            None => {
                DELETING.store(true, Ordering::Relaxed);
                server!(RedisModule_DeleteKey(self.key));
                DELETING.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// Whether this module is deleting a key just now.
static DELETING: AtomicBool = AtomicBool::new(false);

/// Whether a key goes because this module deletes it: the desk knows of that.
pub fn is_deleting() -> bool {
    DELETING.load(Ordering::Relaxed)
}

/// How long a key outlives its lock in a cluster, while somebody waits for it, in ms.
pub const OUTLIVES_MS: u64 = 500;

/// Lets the key of a lock whose leases are over by `until_ms` outlive them for a moment, on this server
/// alone. In a slot that migrates key by key, a missing key is the other node's business: were the
/// server to expire it in the very millisecond of the lease's end, whoever comes next would be granted
/// the lock there, and those who wait here would wait until the migration is over.
///
/// A key that expires before its lease is left alone: somebody has just cut the lease short, and it is
/// by the key's expiry that the next settling learns of it.
pub fn let_outlive(ctx: &Context, name: &Name, until_ms: u64) {
    let mut key = Key::of(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE);
    let latest_ms = match key.found() {
        Found::Lock(lock) => lock.latest_deadline_ms(),
        Found::Nothing | Found::Foreign => None,
    };
    let Some(latest_ms) = latest_ms.filter(|ms| *ms <= until_ms) else {
        return;
    };
    if key.expiry_ms().is_none_or(|ms| ms >= latest_ms) {
        key.set_expiry_ms(latest_ms.saturating_add(OUTLIVES_MS));
    }
}

/// A key's expiry as it would be if the key didn't outlive its lock.
fn without_outliving(expiry_ms: Option<u64>, lock: &Lock) -> Option<u64> {
    let latest_ms = lock.latest_deadline_ms()?;
    expiry_ms.map(|ms| match ms.checked_sub(latest_ms) {
        Some(OUTLIVES_MS) => latest_ms,
        _ => ms,
    })
}

/// What a name holds now, to the letter.
fn read(ctx: &Context, name: &Name) -> Slot {
    let mut key = Key::of(ctx, name, raw::REDISMODULE_READ);
    let expiry_ms = key.expiry_ms();
    match key.found() {
        Found::Nothing => Slot::Empty,
        Found::Foreign => Slot::Foreign,
        Found::Lock(lock) => Slot::Lock(Stored {
            lock: lock.clone(),
            expiry_ms: without_outliving(expiry_ms, lock),
        }),
    }
}

/// The ties of the lock that a key of the context's database holds.
pub fn ties_at(ctx: &Context, string: &RedisString) -> Vec<TieId> {
    match Key::open(ctx, string, UNNOTICED).found() {
        Found::Lock(lock) => ties_of(lock),
        Found::Nothing | Found::Foreign => Vec::new(),
    }
}

/// The ties of a lock.
pub fn ties_of(lock: &Lock) -> Vec<TieId> {
    let ties = lock.holders().iter().map(|holder| holder.tie);
    ties.filter(|tie| *tie != TieId::NONE).collect()
}

/// Whether a key of the context's database holds a lock, without counting as an access to it.
pub fn is_lock(ctx: &Context, string: &RedisString) -> bool {
    matches!(Key::open(ctx, string, UNNOTICED).found(), Found::Lock(_))
}

/// Whether a name holds a lock, without counting as an access to it.
pub fn has_lock(ctx: &Context, name: &Name) -> bool {
    matches!(Key::of(ctx, name, UNNOTICED).found(), Found::Lock(_))
}

/// Applies and replicates the effects of an order, in their order.
pub fn apply_all(ctx: &Context, effects: &[Effect]) {
    let mut effects = effects.iter().peekable();
    while let Some(effect) = effects.next() {
        let applied = carry_out(ctx, effect);
        let (mut renewed_too, mut made) = (Vec::new(), Vec::new());
        if applied == Applied::Changed {
            while let Some(next) = effects.next_if(|next| are_renewed_together(effect, next)) {
                match carry_out(ctx, next) {
                    Applied::Changed => renewed_too.push(&next.name),
                    Applied::Made => made.push(next),
                    Applied::Unchanged | Applied::Foreign => {}
                }
            }
        }
        if applied.is_change() {
            replicate(ctx, effect, &renewed_too);
        }
        // A replica was told that this key had expired: RENEW would find nothing there.
        made.into_iter().for_each(|made| replicate(ctx, made, &[]));
    }
}

/// Makes the change of one effect.
fn carry_out(ctx: &Context, effect: &Effect) -> Applied {
    let Effect { name, change } = effect;
    api::select_db(ctx, name.db);
    let applied = apply(ctx, &api::string(&name.key), change);
    inbox::with(|inbox| inbox.restored.remove(name));
    applied
}

/// Whether two effects fit into one RENEW. In a cluster none do: an effect has to be found by its
/// slot, and where a slot comes in, a key whose lease ended on its way has to be made anew.
fn are_renewed_together(one: &Effect, other: &Effect) -> bool {
    match (&one.change, &other.change) {
        (Change::Renew { holder: own }, Change::Renew { holder: next }) => {
            !api::is_clustered()
                && one.name.db == other.name.db
                && own.deadline_ms == next.deadline_ms
        }
        _ => false,
    }
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The key is there, or was, and is different now.
    Changed,
    /// There was no key, and there is one now.
    Made,
    /// There was nothing to change: the key had expired, and its deletion was replicated then.
    Unchanged,
    /// The key holds another type and was left alone.
    Foreign,
}

impl Applied {
    /// Whether the keyspace is different now.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Changed | Self::Made)
    }

    /// What became of two changes together.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Changed | Self::Made, _) | (_, Self::Changed | Self::Made) => Self::Changed,
            (Self::Foreign, _) | (_, Self::Foreign) => Self::Foreign,
            (Self::Unchanged, Self::Unchanged) => Self::Unchanged,
        }
    }
}

/// Makes one change to a key of the context's database, and announces it.
pub fn apply(ctx: &Context, string: &RedisString, change: &Change) -> Applied {
    let mut key = Key::open(ctx, string, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE);
    let applied = match (key.found(), change) {
        (Found::Foreign, _) => Applied::Foreign,
        (Found::Nothing, Change::Delete | Change::Drop { .. }) => Applied::Unchanged,
        (Found::Nothing, Change::Grant { .. } | Change::Renew { .. }) => {
            let mut lock = Lock::free();
            effect::apply(&mut lock, change);
            let latest_ms = lock.latest_deadline_ms();
            key.store_new(lock);
            key.expire_or_delete(latest_ms);
            Applied::Made
        }
        (Found::Lock(lock), _) => {
            effect::apply(lock, change);
            let latest_ms = lock.latest_deadline_ms();
            key.expire_or_delete(latest_ms);
            Applied::Changed
        }
    };
    drop(key);
    if let (true, Change::Grant { holder, .. }) = (applied.is_change(), change) {
        flow::FENCES.raise(holder.fence);
    }
    if applied.is_change() {
        server!(RedisModule_SignalModifiedKey(ctx.ctx, string.inner));
        announce(ctx, string, change);
    }
    applied
}

fn replicate(ctx: &Context, effect: &Effect, renewed_too: &[&Name]) {
    let Effect { name, change } = effect;
    let renewal = match change {
        Change::Renew { holder } if !renewed_too.is_empty() => {
            Some(effect::renewal_words(holder.deadline_ms).to_vec())
        }
        _ => None,
    };
    let (command, words): (&CStr, _) = match renewal.or_else(|| effect::words(change)) {
        Some(words) => (c"LOCK.APPLY", words),
        None => (c"DEL", Vec::new()),
    };
    let key = std::iter::once(&name.key[..]);
    let others = renewed_too.iter().map(|name| &name.key[..]);
    let words = key.chain(words.iter().map(Vec::as_slice)).chain(others);
    let strings: Vec<RedisString> = words.map(api::string).collect();
    api::select_db(ctx, name.db);
    api::replicate(ctx, command, &strings);
}

/// Gives another deadline to the only holder of a key of the context's database.
pub fn renew(ctx: &Context, string: &RedisString, deadline_ms: u64) -> Applied {
    let holder = match Key::open(ctx, string, UNNOTICED).found() {
        Found::Lock(lock) => lock.holders().sole().cloned(),
        Found::Nothing => None,
        Found::Foreign => return Applied::Foreign,
    };
    let Some(holder) = holder else {
        return Applied::Unchanged;
    };
    let holder = Holder {
        deadline_ms,
        ..holder
    };
    apply(ctx, string, &Change::Renew { holder })
}

/// The words of a stored lock for an append-only file: each of them one LOCK.APPLY.
pub fn rewritten(key: &[u8], lock: &Lock) -> Vec<Vec<RedisString>> {
    let changes = effect::all_grants(lock);
    let lines = changes.iter().filter_map(effect::words);
    lines
        .map(|words| {
            let words = words.iter().map(|word| api::string(word));
            std::iter::once(api::string(key)).chain(words).collect()
        })
        .collect()
}

/// Keyspace events: `lock.grant` and `lock.drop` of class `d`, `del` of class `g`.
fn announce(ctx: &Context, string: &RedisString, change: &Change) {
    let (class, event) = match change {
        Change::Grant { .. } | Change::Renew { .. } => {
            (raw::REDISMODULE_NOTIFY_MODULE, c"lock.grant")
        }
        Change::Drop { .. } => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.drop"),
        Change::Delete => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
    };
    server!(RedisModule_NotifyKeyspaceEvent(
        ctx.ctx,
        class,
        event.as_ptr(),
        string.inner
    ));
}
