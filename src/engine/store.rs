//! The keyspace as the lock table sees it.

use std::num::NonZeroU16;
use std::ptr;

use redis_lock_core::effect::EffectName;
use redis_lock_core::hints::likely;
use redis_lock_core::state::waiter::{User, Waiter};
use redis_lock_core::store::{KeyState, Store};
use redis_lock_core::values::lock::{Lock, Stored};
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Expiry;
use redis_lock_core::values::slot;
use redis_module::{raw, Context};

use crate::engine::{access, writable};
use crate::server::key::{self, Key};
use crate::server::key_string::{CommandStrings, ServerString};
use crate::server::{api, clock, propagation, replicas, rights};
use crate::state::{self, State};

/// The time in ms by which a key outlives its lock in a cluster while it has waiters.
pub const OUTLIVES_MS: u64 = 500;

/// The keyspace during one operation.
///
/// While a key is open the server is asked for nothing that could delete keys; such a call closes
/// the key first.
// perf: the key that was read last stays open, so that an effect on it needs no second look-up.
pub struct ServerStore<'a> {
    ctx: &'a Context,
    state: &'a State,
    strings: CommandStrings<'a>,
    mode: u32,
    open: Option<OpenKey<'a>>,
}

/// An open key of a name. The string is valid as long as the key is open.
pub struct OpenKey<'a> {
    db: i32,
    /// The name by which the key was opened. Only its address is compared.
    opened_by: *const Name,
    /// The server's open key.
    pub key: Key,
    /// The key's name as a string of the server.
    pub string: ServerString<'a>,
}

impl OpenKey<'_> {
    /// Returns true if this is the key of the name.
    ///
    /// An operation's own name exists from before the key was opened until after this call. So no
    /// other name can have had its address meanwhile.
    #[inline(always)]
    fn is_of(&self, name: &EffectName<'_>) -> bool {
        let is_same = |own: &Name| ptr::eq(self.opened_by, own);
        likely(matches!(name, EffectName::Own(own) if is_same(own))) || self.has_name(name)
    }

    #[inline(never)]
    fn has_name(&self, name: &Name) -> bool {
        self.db == name.db && self.string.as_slice() == name.key()
    }
}

impl<'a> ServerStore<'a> {
    /// Returns the keyspace for an operation that may write: a command with these strings, or the
    /// timer.
    pub const fn to_write(ctx: &'a Context, state: &'a State, strings: CommandStrings<'a>) -> Self {
        Self {
            ctx,
            state,
            strings,
            mode: key::WRITE,
            open: None,
        }
    }

    /// Returns the keyspace for an operation that may not write.
    pub const fn to_read(ctx: &'a Context, state: &'a State) -> Self {
        Self {
            ctx,
            state,
            strings: CommandStrings::NONE,
            mode: raw::REDISMODULE_READ,
            open: None,
        }
    }

    /// Returns the context of the operation.
    pub const fn ctx(&self) -> &'a Context {
        self.ctx
    }

    /// Returns the module's state.
    pub const fn state(&self) -> &'a State {
        self.state
    }

    /// Returns true if the replication stream is known to have no reader. Without a command that is
    /// not known.
    #[inline]
    pub fn is_unread(&self) -> bool {
        self.strings.is_some() && propagation::is_unread(self.ctx, self.state)
    }

    /// Returns the strings of the command.
    pub const fn strings(&self) -> CommandStrings<'a> {
        self.strings
    }

    /// Returns the open key of a name for a write. Opens it unless it is open already.
    #[inline(always)]
    pub fn open_to_write(&mut self, name: &EffectName<'_>) -> OpenKey<'a> {
        match self.open.take() {
            Some(open) if self.mode == key::WRITE && open.is_of(name) => open,
            another => {
                // The other key is closed first, because opening a key may delete keys.
                drop(another);
                self.open_another(name)
            }
        }
    }

    #[inline(never)]
    fn open_another(&mut self, name: &Name) -> OpenKey<'a> {
        self.open(name, key::WRITE)
    }

    #[inline(always)]
    fn open(&mut self, name: &Name, mode: u32) -> OpenKey<'a> {
        // An open key is closed first, because opening a key may delete keys.
        self.open = None;
        api::select_db(self.ctx, name.db);
        let string = self.strings.find(name.key());
        // SAFETY: a method that asks the server for what could delete keys closes `self.open` first.
        // A key that `open_to_write` returns is closed by the effect on it, before the next call.
        let key = unsafe { Key::open(self.ctx, string.as_str(), mode) };
        OpenKey {
            db: name.db,
            opened_by: name,
            key,
            string,
        }
    }
}

impl Store for ServerStore<'_> {
    fn read(&mut self, name: &Name) -> KeyState {
        let open = self.open(name, self.mode);
        state_of(self.state, &mut self.open.insert(open).key, name)
    }

    fn can_read(&mut self, name: &Name, own: &Name) -> bool {
        !api::is_clustered() || slot::of_key(name.key()) == slot::of_key(own.key())
    }

    /// Returns true if a name without a key has none on another server either. Settling one name
    /// can grant a waiter another name that the server wasn't asked about. If that name has no key
    /// here, its lock may have migrated away.
    fn is_here(&mut self, name: &Name) -> bool {
        self.open = None;
        writable::is_here(name)
    }

    fn is_touched(&mut self, name: &Name) -> bool {
        self.state.pending(|pending| pending.may_have_touched(name))
    }

    fn is_any_touched(&mut self) -> bool {
        self.state.pending(|pending| pending.has_touched())
    }

    fn is_settling(&mut self, name: &Name) -> bool {
        self.state
            .pending(|pending| pending.settling.contains(name))
    }

    fn steady_ms(&mut self) -> u64 {
        clock::steady_us_in(self.state) / 1000
    }

    fn user(&mut self) -> User {
        self.open = None;
        User {
            identity: rights::identity(self.ctx),
            rights_version: rights::version_in(self.ctx),
        }
    }

    fn has_replicas(&mut self, count: NonZeroU16) -> bool {
        replicas::are_online(self.ctx, count)
    }

    fn may_be_granted(&mut self, waiter: &Waiter) -> bool {
        access::is_unchanged(self.state, waiter) || {
            // The server runs a command to check the rights, so the open key is closed first.
            self.open = None;
            access::check(self.ctx, waiter)
        }
    }
}

/// Returns what a name holds now.
pub fn read_settled(ctx: &Context, name: &Name) -> KeyState {
    // SAFETY: the key is closed when this returns, and no other is opened before.
    let mut key = unsafe { Key::of(ctx, name, raw::REDISMODULE_READ) };
    state::with(|state| state_of(state, &mut key, name))
}

/// Returns a key's expiry without the time by which the key outlives its lock.
#[inline(never)]
fn without_outliving(expiry_ms: Option<u64>, lock: &Lock) -> Option<u64> {
    let latest_ms = lock.latest_deadline_ms()?;
    expiry_ms.map(|ms| match ms.checked_sub(latest_ms) {
        Some(OUTLIVES_MS) => latest_ms,
        _ => ms,
    })
}

/// Returns the server's expiry of an open key. The expiry of a restored lock is ignored until it
/// was set from the leases again.
#[inline(never)]
fn asked_expiry_ms(key: &Key, name: &Name) -> Option<u64> {
    let is_restored = state::pending(|pending| pending.restored.contains(name));
    (!is_restored).then(|| key.expiry_ms()).flatten()
}

/// Returns what the open key of a name holds.
#[inline(always)]
fn state_of(state: &State, key: &mut Key, name: &Name) -> KeyState {
    match key.found() {
        KeyState::Empty if state.early_expiries.is_any() => expired_early(state, name),
        KeyState::Empty => KeyState::Empty,
        KeyState::OtherType => KeyState::OtherType,
        KeyState::Lock(packed) => {
            let (expiry, lock) = (packed.expiry(), packed.unpack());
            let expiry_ms = match expiry {
                Expiry::WithLease => lock.latest_deadline_ms(),
                Expiry::Unknown => without_outliving(asked_expiry_ms(key, name), &lock),
            };
            KeyState::Lock(Stored { lock, expiry_ms })
        }
    }
}

/// Returns the lock of a name whose key the server expired before the lease had ended.
#[inline(never)]
fn expired_early(state: &State, name: &Name) -> KeyState {
    let lock = state.early_expiries.find(name, clock::now().ms());
    lock.map_or(KeyState::Empty, |lock| {
        let expiry_ms = lock.latest_deadline_ms();
        KeyState::Lock(Stored { lock, expiry_ms })
    })
}
