//! Effects: made in the keyspace, replicated, announced.

use redis_lock_core::branch::{likely, unlikely};
use redis_lock_core::effect::{self, Change, Effect, Word};
use redis_lock_core::values::holder::{Holder, Mode};
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::packed::{Expiry, Packed};
use redis_module::{raw, Context};
use smallvec::SmallVec;

use crate::engine::store::{OpenKey, ServerStore};
use crate::server::api::{self, server};
use crate::server::key::{self, Found, Key, UNNOTICED};
use crate::server::key_string::{CommandStrings, ServerString};
use crate::server::{key_events, propagation};
use crate::state::FENCES;

/// Applies and replicates the effects of an operation, in their order.
#[inline]
pub fn apply_all(store: &mut ServerStore<'_>, effects: &[Effect<'_>]) {
    let state = store.state();
    state.applying.set(true);
    let mut rest = effects;
    while let Some((effect, behind)) = rest.split_first() {
        let (applied, key) = apply_one(store, effect);
        let alike = match (applied, behind) {
            (Applied::Changed, [_, ..]) => count_alike(effect, behind),
            _ => 0,
        };
        if unlikely(alike > 0) {
            let (alike, _) = behind.split_at(alike);
            renew_together(store, effect, &key, alike);
        } else if applied.is_change() {
            replicate(store, effect, &key, &[]);
        }
        rest = behind.get(alike..).unwrap_or_default();
    }
    state.applying.set(false);
}

/// How many of the effects behind one fit into one RENEW with it.
#[inline(never)]
fn count_alike(effect: &Effect<'_>, behind: &[Effect<'_>]) -> usize {
    let alike = |next: &&Effect<'_>| are_renewed_together(effect, next);
    behind.iter().take_while(alike).count()
}

/// Applies the renewals that follow one that was applied, and replicates all of them.
#[inline(never)]
fn renew_together(
    store: &mut ServerStore<'_>,
    first: &Effect<'_>,
    key: &ServerString<'_>,
    others: &[Effect<'_>],
) {
    let (mut renewed_too, mut made) = (Vec::new(), Vec::new());
    for next in others {
        match apply_another(store, next) {
            (Applied::Changed, _) => renewed_too.push(&*next.name),
            (Applied::Made, key) => made.push((next, key)),
            (Applied::Unchanged | Applied::OtherType, _) => {}
        }
    }
    replicate(store, first, key, &renewed_too);
    // A replica was told that this key had expired: RENEW would find nothing there.
    for (made, key) in made {
        replicate(store, made, &key, &[]);
    }
}

/// As [`apply_one`], where many follow one another.
#[inline(never)]
fn apply_another<'a>(
    store: &mut ServerStore<'a>,
    effect: &Effect<'_>,
) -> (Applied, ServerString<'a>) {
    apply_one(store, effect)
}

/// Makes the change of one effect. The key's string comes back.
#[inline(always)]
fn apply_one<'a>(store: &mut ServerStore<'a>, effect: &Effect<'_>) -> (Applied, ServerString<'a>) {
    let Effect { name, change } = effect;
    let OpenKey { key, string, .. } = store.open_to_write(name);
    let applied = apply_to(store.ctx(), key, string.as_ptr(), change);
    store
        .state()
        .pending(|pending| pending.forget_restored(name));
    (applied, string)
}

/// Whether two effects fit into one RENEW. In a cluster none do: an effect has to be found by its
/// slot, and where a slot comes in, a key whose lease ended on its way has to be made anew.
fn are_renewed_together(one: &Effect<'_>, other: &Effect<'_>) -> bool {
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
    OtherType,
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
            (Self::OtherType, _) | (_, Self::OtherType) => Self::OtherType,
            (Self::Unchanged, Self::Unchanged) => Self::Unchanged,
        }
    }
}

/// Makes one change that came from a primary or from a file to a key of the context's database.
pub fn apply(ctx: &Context, key: &[u8], change: &Change) -> Applied {
    let string = api::string(key);
    let applied = apply_to(
        ctx,
        Key::open(ctx, string.inner, key::WRITE),
        string.inner,
        change,
    );
    if let (true, Change::Grant { holder, .. }) = (applied.is_change(), change) {
        FENCES.raise(holder.fence);
    }
    applied
}

/// Makes one change to an open key, closes it, and announces the change.
#[inline(always)]
fn apply_to(
    ctx: &Context,
    mut key: Key,
    string: *mut raw::RedisModuleString,
    change: &Change,
) -> Applied {
    let mut event = Event::of(change);
    let applied = match (key.found(), change) {
        (Found::OtherType, _) => Applied::OtherType,
        (Found::Nothing, _) => match granted(change) {
            Some((mode, holder)) => {
                make(ctx, key, string, mode, holder);
                Applied::Made
            }
            None => Applied::Unchanged,
        },
        (Found::Lock(_), _) if likely(matches!(change, Change::Delete)) => {
            key.delete();
            Applied::Changed
        }
        (Found::Lock(_), _) => {
            if alter(key, change) == Fence::Kept {
                event = Event::Renewed;
            }
            Applied::Changed
        }
    };
    if applied.is_change() {
        server!(RedisModule_SignalModifiedKey(ctx.ctx, string));
        announce(ctx, string, event);
    }
    applied
}

/// What became of the fence of a grant.
#[derive(PartialEq, Eq)]
enum Fence {
    Kept,
    New,
}

/// Changes the lock that a key holds, and closes the key.
#[inline(never)]
fn alter(mut key: Key, change: &Change) -> Fence {
    let Found::Lock(packed) = key.found() else {
        return Fence::New;
    };
    let mut lock = packed.unpack();
    let fence = fence_after(&lock, change);
    effect::apply(&mut lock, change);
    let latest_ms = lock.latest_deadline_ms();
    *packed = Packed::new(lock);
    packed.set_expiry(Expiry::WithLease);
    match latest_ms {
        Some(latest_ms) => key.set_expiry_ms(latest_ms),
        None => key.delete(),
    }
    fence
}

/// The grant that a change makes, where nobody holds.
fn granted(change: &Change) -> Option<(Mode, &Holder)> {
    match change {
        Change::Grant { mode, holder } => Some((*mode, holder)),
        Change::Renew { holder } => Some((Mode::Exclusive, holder)),
        Change::Drop { .. } | Change::Delete => None,
    }
}

/// Kept where a change is to a grant that is in force.
fn fence_after(lock: &Lock, change: &Change) -> Fence {
    match change {
        Change::Grant { holder, .. } | Change::Renew { holder } => {
            match lock.holder(&holder.token) {
                Some(own) if own.fence == holder.fence => Fence::Kept,
                Some(_) | None => Fence::New,
            }
        }
        Change::Drop { .. } | Change::Delete => Fence::New,
    }
}

/// Stores a lock with one holder where there is no key.
#[inline(always)]
fn make(ctx: &Context, key: Key, string: *mut raw::RedisModuleString, mode: Mode, holder: &Holder) {
    let key = key.without_leftover(ctx, string);
    let mut lock = Packed::sole(mode, holder);
    lock.set_expiry(Expiry::WithLease);
    key.store_new(lock, holder.deadline_ms);
}

#[inline(always)]
fn replicate(
    store: &ServerStore<'_>,
    effect: &Effect<'_>,
    key: &ServerString<'_>,
    renewed_too: &[&Name],
) {
    if store.is_unread() {
        propagation::count_change(store.ctx());
    } else {
        replicate_words(store, effect, key, renewed_too);
    }
}

#[inline(never)]
fn replicate_words(
    store: &ServerStore<'_>,
    effect: &Effect<'_>,
    key: &ServerString<'_>,
    renewed_too: &[&Name],
) {
    let ctx = store.ctx();
    let Effect { name, change } = effect;
    let renewal = match change {
        Change::Renew { holder } if !renewed_too.is_empty() => {
            Some(effect::renewal_words(holder.deadline_ms))
        }
        _ => None,
    };
    let words = renewal.or_else(|| effect::words(change));
    let command = words.as_ref().map_or(c"DEL", |_| c"LOCK.APPLY");
    let words = words.unwrap_or_default();
    let others = renewed_too.iter().map(|name| name.key());
    let words = words.iter().map(Word::as_slice).chain(others);
    let words: SmallVec<[ServerString<'_>; 4]> =
        words.map(|word| store.strings().find(word)).collect();
    let pointers = std::iter::once(key).chain(&words).map(ServerString::as_ptr);
    let pointers: SmallVec<[_; 4]> = pointers.collect();
    api::select_db(ctx, name.db);
    propagation::replicate(ctx, command, &pointers);
}

/// Gives another deadline to the only holder of a key of the context's database.
pub fn renew(ctx: &Context, key: &[u8], deadline_ms: u64) -> Applied {
    let string = api::string(key);
    let holder = match Key::open(ctx, string.inner, UNNOTICED).found() {
        Found::Lock(lock) => lock.unpack().holders().only().cloned(),
        Found::Nothing => None,
        Found::OtherType => return Applied::OtherType,
    };
    let Some(holder) = holder else {
        return Applied::Unchanged;
    };
    let holder = Holder {
        deadline_ms,
        ..holder
    };
    apply(ctx, key, &Change::Renew { holder })
}

/// A keyspace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A grant with a fence of its own.
    Granted,
    /// A grant in force was set anew.
    Renewed,
    /// A holder is gone, others stay.
    Dropped,
    /// The key is gone.
    Deleted,
    /// Somebody begins to wait.
    Queued,
}

impl Event {
    /// What a change is, where it doesn't concern a grant in force.
    fn of(change: &Change) -> Self {
        match change {
            Change::Grant { .. } | Change::Renew { .. } => Self::Granted,
            Change::Drop { .. } => Self::Dropped,
            Change::Delete => Self::Deleted,
        }
    }
}

/// Tells of those who begin to wait for these names of the context's database.
#[inline(never)]
pub fn announce_wait(ctx: &Context, names: &Names, strings: CommandStrings<'_>) {
    for name in names {
        announce(ctx, strings.find(name.key()).as_ptr(), Event::Queued);
    }
}

/// The module's events are of class `d`; the end of a key is the server's own, of class `g`.
#[inline(always)]
fn announce(ctx: &Context, string: *mut raw::RedisModuleString, event: Event) {
    let (class, event) = match event {
        Event::Granted => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.grant"),
        Event::Renewed => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.renew"),
        Event::Dropped => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.drop"),
        Event::Queued => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.queue"),
        Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
    };
    key_events::send(ctx, class, event, string);
}
