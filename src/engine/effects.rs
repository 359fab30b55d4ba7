//! Effects: applying, replicating and announcing them.

use redis_lock_core::effect::{self, Change, Effect, Word};
use redis_lock_core::hints::{likely, unlikely};
use redis_lock_core::raised::Raised;
use redis_lock_core::store::KeyState;
use redis_lock_core::values::holder::{Holder, Mode};
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::packed::{Expiry, Packed};
use redis_module::{raw, Context};
use smallvec::SmallVec;

use crate::engine::store::{OpenKey, ServerStore};
use crate::server::calls::{self, Str};
use crate::server::key::{self, Key, UNNOTICED};
use crate::server::key_string::{CommandStrings, ServerString};
use crate::server::{api, key_events, propagation};
use crate::state::{self, State, FENCES};

/// Applies and replicates the effects of an operation, in their order.
#[inline]
pub fn apply_all(store: &mut ServerStore<'_>, effects: &[Effect<'_>]) {
    let _applying = Raised::new(&store.state().applying);
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
}

/// Returns how many of the following effects can share this one's RENEW.
#[inline(never)]
fn count_alike(effect: &Effect<'_>, behind: &[Effect<'_>]) -> usize {
    let alike = |next: &&Effect<'_>| are_renewed_together(effect, next);
    behind.iter().take_while(alike).count()
}

/// Applies the renewals that follow an applied one, and replicates all of them.
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
    // The key's expiry was replicated already, so RENEW would find no key on a replica.
    for (made, key) in made {
        replicate(store, made, &key, &[]);
    }
}

/// Like [`apply_one`], for each of several effects.
#[inline(never)]
fn apply_another<'a>(
    store: &mut ServerStore<'a>,
    effect: &Effect<'_>,
) -> (Applied, ServerString<'a>) {
    apply_one(store, effect)
}

/// Applies one effect. Returns the key's string too.
#[inline(always)]
fn apply_one<'a>(store: &mut ServerStore<'a>, effect: &Effect<'_>) -> (Applied, ServerString<'a>) {
    let Effect { name, change } = effect;
    let OpenKey { key, string, .. } = store.open_to_write(name);
    let state = store.state();
    let applied = apply_to(store.ctx(), state, key, string.as_str(), change);
    state.pending(|pending| pending.forget_restored(name));
    if state.early_expiries.is_any() && state.early_expiries.forget(name) && !applied.is_change() {
        calls::signal_modified_key(store.ctx(), string.as_str());
    }
    (applied, string)
}

/// Returns true if two effects fit into one RENEW. In a cluster none do. An effect must be found by
/// its slot, and a key whose lease ended during a migration must be made anew.
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

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The key existed, and was changed or deleted.
    Changed,
    /// The key was created.
    Made,
    /// No key to change: it had expired, and its deletion was replicated then.
    Unchanged,
    /// The key holds another type and was left alone.
    OtherType,
}

impl Applied {
    /// Returns true if the keyspace was changed.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Changed | Self::Made)
    }

    /// Returns the result of two changes together.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Changed | Self::Made, _) | (_, Self::Changed | Self::Made) => Self::Changed,
            (Self::OtherType, _) | (_, Self::OtherType) => Self::OtherType,
            (Self::Unchanged, Self::Unchanged) => Self::Unchanged,
        }
    }
}

/// Applies a change from a primary or a file to a key of the context's database.
pub fn apply(ctx: &Context, key: &[u8], change: Change) -> Applied {
    let string = api::string(key);
    // SAFETY: `apply_to` closes the key, before which the server is asked for nothing else.
    let mut key = unsafe { Key::open(ctx, Str::from(&string), key::WRITE) };
    let change = match key.found() {
        KeyState::Lock(packed) => effect::as_decided(change, &packed.unpack()),
        KeyState::Empty | KeyState::OtherType => change,
    };
    let applied = state::with(|state| apply_to(ctx, state, key, Str::from(&string), &change));
    if let (true, Change::Grant { holder, .. } | Change::Raise { holder, .. }) =
        (applied.is_change(), change)
    {
        FENCES.raise(holder.fence);
    }
    applied
}

/// Applies a change to an open key, closes the key, and announces the change.
#[inline(always)]
fn apply_to(
    ctx: &Context,
    state: &State,
    mut key: Key,
    string: Str<'_>,
    change: &Change,
) -> Applied {
    let mut event = Event::of(change);
    let applied = match (key.found(), change) {
        (KeyState::OtherType, _) => Applied::OtherType,
        (KeyState::Empty, _) => match granted(change) {
            Some((mode, holder)) => {
                make(ctx, key, string, mode, holder);
                Applied::Made
            }
            None => Applied::Unchanged,
        },
        (KeyState::Lock(_), _) if likely(matches!(change, Change::Delete)) => {
            key.delete();
            Applied::Changed
        }
        (KeyState::Lock(_), _) => {
            if alter(key, change) == Fence::Kept {
                event = Event::Renewed;
            }
            Applied::Changed
        }
    };
    if applied.is_change() {
        calls::signal_modified_key(ctx, string);
        announce(ctx, state, string, event);
    }
    applied
}

/// The fence after a grant.
#[derive(PartialEq, Eq)]
enum Fence {
    /// The fence of the grant in force, or that fence raised by FENCE.
    Kept,
    New,
}

/// Changes the lock of a key, and closes the key.
#[inline(never)]
fn alter(mut key: Key, change: &Change) -> Fence {
    let KeyState::Lock(packed) = key.found() else {
        return Fence::New;
    };
    let mut lock = packed.unpack();
    let fence = fence_after(&lock, change);
    let latest_ms = match change {
        Change::Grant { mode, holder } if likely(lock.is_replaced_by(*mode)) => {
            *packed = Packed::sole(*mode, holder);
            Some(holder.deadline_ms)
        }
        _ => {
            effect::apply(&mut lock, change);
            let latest_ms = lock.latest_deadline_ms();
            *packed = Packed::new(lock);
            latest_ms
        }
    };
    packed.set_expiry(Expiry::WithLease);
    match latest_ms {
        Some(latest_ms) => key.set_expiry_ms(latest_ms),
        None => key.delete(),
    }
    fence
}

/// Returns the grant that a change makes at a free lock.
fn granted(change: &Change) -> Option<(Mode, &Holder)> {
    match change {
        Change::Grant { mode, holder } | Change::Raise { mode, holder } => Some((*mode, holder)),
        Change::Renew { holder } => Some((Mode::Exclusive, holder)),
        Change::Drop { .. } | Change::Delete => None,
    }
}

/// Returns [`Fence::Kept`] if the change is to a grant in force.
fn fence_after(lock: &Lock, change: &Change) -> Fence {
    match change {
        Change::Grant { holder, .. } | Change::Renew { holder } => {
            match lock.holder(&holder.token) {
                Some(own) if own.fence == holder.fence => Fence::Kept,
                Some(_) | None => Fence::New,
            }
        }
        Change::Raise { .. } => Fence::Kept,
        Change::Drop { .. } | Change::Delete => Fence::New,
    }
}

/// Stores a lock with one holder under a missing key.
#[inline(always)]
fn make(ctx: &Context, key: Key, string: Str<'_>, mode: Mode, holder: &Holder) {
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
    let strings = std::iter::once(key).chain(&words).map(ServerString::as_str);
    let strings: SmallVec<[_; 4]> = strings.collect();
    api::select_db(ctx, name.db);
    propagation::replicate(ctx, command, &strings);
}

/// Sets the deadline of the only holder of a key of the context's database.
pub fn renew(ctx: &Context, key: &[u8], deadline_ms: u64) -> Applied {
    let string = api::string(key);
    // SAFETY: the key is closed before the next call of the server.
    let holder = match unsafe { Key::open(ctx, Str::from(&string), UNNOTICED) }.found() {
        KeyState::Lock(lock) => lock.unpack().holders().only().cloned(),
        KeyState::Empty => None,
        KeyState::OtherType => return Applied::OtherType,
    };
    let Some(holder) = holder else {
        return Applied::Unchanged;
    };
    let holder = Holder {
        deadline_ms,
        ..holder
    };
    apply(ctx, key, Change::Renew { holder })
}

/// A keyspace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A grant with a new fence.
    Granted,
    /// A grant in force was renewed or changed.
    Renewed,
    /// A holder was removed, and others stay.
    Dropped,
    /// The key was deleted.
    Deleted,
    /// A waiter was enqueued.
    Queued,
}

impl Event {
    /// Returns the event of a change that doesn't concern a grant in force.
    fn of(change: &Change) -> Self {
        match change {
            Change::Grant { .. } | Change::Raise { .. } | Change::Renew { .. } => Self::Granted,
            Change::Drop { .. } => Self::Dropped,
            Change::Delete => Self::Deleted,
        }
    }
}

/// Announces a new waiter for these names of the context's database.
#[inline(never)]
pub fn announce_wait(ctx: &Context, state: &State, names: &Names, strings: CommandStrings<'_>) {
    if unlikely(key_events::may_be_heard(
        state,
        raw::REDISMODULE_NOTIFY_MODULE,
    )) {
        for name in names {
            announce(ctx, state, strings.find(name.key()).as_str(), Event::Queued);
        }
    }
}

/// Sends a keyspace event. The module's events are of class `d`. The deletion of a key is the
/// server's event, of class `g`.
#[inline(always)]
fn announce(ctx: &Context, state: &State, string: Str<'_>, event: Event) {
    let (class, event) = match event {
        Event::Granted => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.grant"),
        Event::Renewed => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.renew"),
        Event::Dropped => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.drop"),
        Event::Queued => (raw::REDISMODULE_NOTIFY_MODULE, c"lock.queue"),
        Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
    };
    key_events::send(ctx, state, class, event, string);
}
