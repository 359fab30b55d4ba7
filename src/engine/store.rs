//! The keyspace as the lock table asks for it.

use std::ptr;

use redis_lock_core::branch::likely;
use redis_lock_core::effect::EffectName;
use redis_lock_core::state::place::{Stand, User};
use redis_lock_core::state::queue::Waiter;
use redis_lock_core::store::{KeyState, Store};
use redis_lock_core::values::lock::{Lock, Stored};
use redis_lock_core::values::name::Name;
use redis_lock_core::values::packed::Expiry;
use redis_lock_core::values::slot;
use redis_module::{raw, Context};

use crate::engine::{blocking, writable};
use crate::server::key::{self, Found, Key};
use crate::server::key_string::{CommandStrings, ServerString};
use crate::server::{api, clock, propagation, rights};
use crate::state::{self, State};

/// How long a key outlives its lock in a cluster, while somebody waits for it, in ms.
pub const OUTLIVES_MS: u64 = 500;

/// The keyspace, for the time of one operation.
///
/// The key that was read last stays open, so that an effect for it need not find it again. Nothing is
/// asked of the server meanwhile that could delete keys: that closes it first.
pub struct ServerStore<'a> {
    ctx: &'a Context,
    state: &'a State,
    strings: CommandStrings<'a>,
    mode: u32,
    open: Option<OpenKey<'a>>,
}

/// A key of a name, open. The string lives as long as the key is open.
pub struct OpenKey<'a> {
    db: i32,
    /// The name that it was opened by: to be told by its address, as long as that name is there.
    opened_by: *const Name,
    /// What the server has open.
    pub key: Key,
    /// The key's name for the server.
    pub string: ServerString<'a>,
}

impl OpenKey<'_> {
    /// An operation's own name was there before the key was opened, and still is: so no other name has had its
    /// address meanwhile.
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
    /// Where effects may be applied: for a command, which came with these strings, or for the timer.
    pub const fn to_write(ctx: &'a Context, state: &'a State, strings: CommandStrings<'a>) -> Self {
        Self {
            ctx,
            state,
            strings,
            mode: key::WRITE,
            open: None,
        }
    }

    /// Where nothing may be written.
    pub const fn to_read(ctx: &'a Context, state: &'a State) -> Self {
        Self {
            ctx,
            state,
            strings: CommandStrings::NONE,
            mode: raw::REDISMODULE_READ,
            open: None,
        }
    }

    /// The context of the operation.
    pub const fn ctx(&self) -> &'a Context {
        self.ctx
    }

    /// All that the module remembers.
    pub const fn state(&self) -> &'a State {
        self.state
    }

    /// Whether nobody reads what is replicated. Where no command runs that is not known.
    #[inline]
    pub fn is_unread(&self) -> bool {
        self.strings.is_some() && propagation::is_unread(self.ctx, self.state)
    }

    /// The strings that came with the command.
    pub const fn strings(&self) -> CommandStrings<'a> {
        self.strings
    }

    /// Opens the key of a name to be written, unless it is open already.
    #[inline(always)]
    pub fn open_to_write(&mut self, name: &EffectName<'_>) -> OpenKey<'a> {
        match self.open.take() {
            Some(open) if self.mode == key::WRITE && open.is_of(name) => open,
            another => {
                // Closed before this one is opened, which may delete keys.
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
        // Another one is closed before this one is opened, which may delete keys.
        self.open = None;
        api::select_db(self.ctx, name.db);
        let string = self.strings.find(name.key());
        OpenKey {
            db: name.db,
            opened_by: name,
            key: Key::open(self.ctx, string.as_ptr(), mode),
            string,
        }
    }
}

impl Store for ServerStore<'_> {
    fn read(&mut self, name: &Name) -> KeyState {
        let open = self.open(name, self.mode);
        state_of(&mut self.open.insert(open).key, name)
    }

    fn can_read(&mut self, name: &Name, own: &Name) -> bool {
        !api::is_clustered() || slot::of_key(name.key()) == slot::of_key(own.key())
    }

    /// Settling one name can lead to another that the server wasn't asked about: who waits for both
    /// is granted both. Where that one has no key here, its lock may have migrated away already.
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
        clock::steady_ms()
    }

    fn user(&mut self) -> User {
        self.open = None;
        User {
            identity: rights::identity(self.ctx),
            rights_version: rights::version_in(self.ctx),
        }
    }

    /// A place has no client to ask: its user is known by name.
    fn permits(&mut self, waiter: &Waiter) -> bool {
        match &waiter.stand {
            Stand::Blocked { .. } => {
                blocking::has_seen_rights(waiter) || {
                    self.open = None;
                    blocking::permits(self.ctx, waiter)
                }
            }
            Stand::Place(place) => {
                rights::is_current(place.user.rights_version) || {
                    self.open = None;
                    rights::may_queue(&place.user, &waiter.names, &waiter.request.token)
                }
            }
            // Nobody stands there, and nothing is granted.
            Stand::Absent { .. } => false,
        }
    }
}

/// What a name holds now.
pub fn read_settled(ctx: &Context, name: &Name) -> KeyState {
    state_of(&mut Key::of(ctx, name, raw::REDISMODULE_READ), name)
}

/// A key's expiry as it would be if the key didn't outlive its lock.
#[inline(never)]
fn without_outliving(expiry_ms: Option<u64>, lock: &Lock) -> Option<u64> {
    let latest_ms = lock.latest_deadline_ms()?;
    expiry_ms.map(|ms| match ms.checked_sub(latest_ms) {
        Some(OUTLIVES_MS) => latest_ms,
        _ => ms,
    })
}

/// When the open key of a name expires, as the server says. The expiry of a lock that was just restored
/// counts for nothing, until it is put back to its leases.
#[inline(never)]
fn asked_expiry_ms(key: &Key, name: &Name) -> Option<u64> {
    let is_restored = state::pending(|pending| pending.restored.contains(name));
    (!is_restored).then(|| key.expiry_ms()).flatten()
}

/// What the open key of a name holds.
#[inline(always)]
fn state_of(key: &mut Key, name: &Name) -> KeyState {
    match key.found() {
        Found::Nothing => KeyState::Empty,
        Found::OtherType => KeyState::OtherType,
        Found::Lock(packed) => {
            let (expiry, lock) = (packed.expiry(), packed.unpack());
            let expiry_ms = match expiry {
                Expiry::WithLease => lock.latest_deadline_ms(),
                Expiry::Unknown => without_outliving(asked_expiry_ms(key, name), &lock),
            };
            KeyState::Lock(Stored { lock, expiry_ms })
        }
    }
}
