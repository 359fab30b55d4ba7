//! All that the module remembers, in one place.
//!
//! [`State`] belongs to the server's main thread. It is borrowed part by part and never across a call
//! of the server, which may call back; the lock table alone is borrowed while keys are read, and a
//! callback that comes meanwhile finds it borrowed and leaves a pending event instead. What other threads
//! touch as well lies beside it, as atomics.

pub mod blocked;
pub mod name_set;
pub mod pending;
pub mod provisional;
pub mod rights;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

use foldhash::HashSet;
use lazy_static::lazy_static;
use redis_lock_core::state::lost_holds::UnlinkedHolds;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::fence::Fences;
use redis_lock_core::values::slot::Sharding;
use redis_module::{raw, Context, RedisGILGuard, RedisString};

use blocked::BlockedClients;
use pending::Pending;
use rights::RightsWatch;

/// Numbers all grants. Values that are loaded raise it.
pub static FENCES: Fences = Fences::new();

/// Values of the type that are alive, in keys or waiting to be freed. They may be freed on any thread.
pub static LOCKS: AtomicU64 = AtomicU64::new(0);

/// Bytes that the module has allocated, on any thread.
pub static BYTES: AtomicU64 = AtomicU64::new(0);

/// Of how many clients it is remembered that they are not those by which scripts are run. Where more give operations,
/// the server is asked again of those who share a place.
pub const CALLERS: usize = 8192;

/// What the keys begin with that clients are blocked on: with the two bytes for the slot, seven, which the server hashes
/// in one go each time.
pub type DecoyName = [u8; 5];

/// A setting that the server has not set yet.
pub const UNSET: i64 = -1;

/// `lock.default-lease`: the lease of a grant that names none, in ms.
pub static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.max-waiters`: how many clients may wait on the whole server; 0: no limit.
pub static MAX_WAITERS: AtomicI64 = AtomicI64::new(UNSET);

/// The server's `maxclients`.
pub static MAX_CLIENTS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.default-keep`: how long a place is kept that says nothing of it, in ms.
pub static DEFAULT_KEEP_MS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.max-tickets`: how many may wait without a connection on the whole server; 0: no limit.
pub static MAX_TICKETS: AtomicI64 = AtomicI64::new(UNSET);

/// A context of the module's own, for what has no context of its own, as callbacks of the type.
pub static OWN_CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

lazy_static! {
    static ref STATE: RedisGILGuard<State> = RedisGILGuard::new(State::new());
}

/// What only the main thread touches.
pub struct State {
    /// Who waits, and which grants are tied to a connection.
    pub table: RefCell<LockTable>,
    /// What happened outside a command.
    pub pending: RefCell<Pending>,
    /// The clients that the server holds blocked for the module.
    pub blocked: RefCell<BlockedClients>,
    /// How many wait: lets the callbacks of busy servers without waiters return at once.
    pub waiting: Cell<usize>,
    /// How many grants are tied to a connection, to the same end.
    pub sessions: Cell<usize>,
    /// The client whose connection the server told the end of last.
    pub last_gone_client: Cell<u64>,
    /// The connected clients that asked for a session, whose sockets are set to notice a vanished machine.
    pub watched: RefCell<HashSet<u64>>,
    /// Set once the log says that such a socket could not be set.
    pub warned_of_keepalive: Cell<bool>,
    /// The number of the last client that was let wait.
    pub last_waiter_id: Cell<u64>,
    /// The module's timer, while it is armed.
    pub timer: Cell<Option<Armed>>,
    /// Whether it has fired since the server last slept.
    pub firing: Cell<Firing>,
    /// When the clocks were compared last, on the clock that is cheap to look at, in ms.
    pub looked_ms: Cell<u64>,
    /// Whether the timer was deferred, so that the server's other clients come first.
    pub yielded: Cell<bool>,
    /// The system's monotonic clock when it was looked at first, and the wall clock then, in microseconds,
    /// since whenever and since the epoch.
    pub start: OnceCell<(u64, u64)>,
    /// What server this is, and its role.
    pub server: Cell<ServerFacts>,
    /// Whether the server is past the point where it begins to send what it has to send, before it
    /// sleeps.
    pub sending: Cell<bool>,
    /// Whether LOCK.APPLY is called to ask whether a write would be taken, not to apply one.
    pub asking: Cell<bool>,
    /// When to look next whose slots are another node's by now, on the steady clock in ms.
    pub slots_due_ms: Cell<u64>,
    /// Whether anybody reads what is replicated.
    pub audience: Cell<Audience>,
    /// Whether there is an append-only file; `None`: to be asked.
    pub has_append_only_file: Cell<Option<bool>>,
    /// Clients that gave an operation by themselves, and not for a script: each at the place that its id
    /// has modulo the number of places.
    pub callers: [Cell<u64>; CALLERS],
    /// The key with the last fence, open for the time of a save in this process.
    pub fence_key: Cell<Option<*mut raw::RedisModuleKey>>,
    /// Whether this module is deleting a key just now: the lock table knows of that.
    pub deleting: Cell<bool>,
    /// Whether effects are being applied: the lock table has decided what became of the holds at their keys.
    pub applying: Cell<bool>,
    /// Holds that ended because their lock left its key.
    pub unlinked: RefCell<UnlinkedHolds>,
    /// The database that the last MOVE came from.
    pub moved_from_db: Cell<i32>,
    /// The server's handle of the native type.
    pub raw_type: Cell<*mut raw::RedisModuleType>,
    /// What the decoys' names begin with.
    pub decoys: Cell<DecoyName>,
    /// The decoy that a client was blocked on last, and its slot.
    pub last_decoy: RefCell<Option<(u16, RedisString)>>,
    /// The name of the user that took or kept a place last.
    pub last_user: RefCell<Option<Arc<[u8]>>>,
    /// The last command that runs a script, as the command filter saw it.
    pub last_script: Cell<ScriptRun>,
    /// The changes of users' rights.
    pub rights: RefCell<RightsWatch>,
    /// Whether the server has RESET under its own name.
    pub has_reset: Cell<bool>,
    /// Those that came while the server paused clients, and may run later than the filter saw them; first come first.
    pub postponed_scripts: RefCell<VecDeque<ScriptRun>>,
    /// The clients whose RESET came meanwhile.
    pub postponed_resets: RefCell<Vec<u64>>,
    /// The state of the postponed scripts and RESETs.
    pub postponed: Cell<Postponed>,
}

/// What server this is. Nothing of it changes while it runs, but for its role and its modules.
#[derive(Clone, Copy, Default)]
pub struct ServerFacts {
    /// Whether it is a Valkey. Only for what that does differently with the same functions.
    pub is_valkey: bool,
    /// Whether it is a node of a cluster.
    pub is_clustered: bool,
    /// Whether it lets a client block that is subscribed to a channel in RESP3.
    pub blocks_subscribers: bool,
    /// Whether it follows a primary, as it last said.
    pub is_replica: bool,
    /// Whether it may have modules that could subscribe to keyspace events, besides this one.
    pub has_other_modules: bool,
}

impl ServerFacts {
    /// How keys are divided among servers.
    pub const fn sharding(self) -> Sharding {
        if self.is_clustered {
            Sharding::BySlot
        } else {
            Sharding::None
        }
    }
}

/// A command that runs a script.
#[derive(Clone, Copy, Default)]
pub struct ScriptRun {
    /// Its client; 0 where the server doesn't tell that (Redis before 7.2).
    pub client_id: u64,
    /// Its name.
    pub command: &'static [u8],
    /// How many bytes its words have.
    pub word_bytes: u64,
    /// The client that was found to run it; `None`: not looked for yet.
    pub caller: Option<u64>,
}

/// The state of commands that may run later than the command filter saw them: those that run scripts, and RESETs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Postponed {
    /// None may.
    #[default]
    None,
    /// Some may.
    Some,
    /// Some may, but the server was seen to pause no clients any more.
    Resumed,
}

/// Whether there are replicas, or a backlog for them, or other nodes of a cluster. An append-only file is asked
/// for separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// Nobody looked yet.
    #[default]
    Unknown,
    /// There are none, and no command was seen since that could have attached one.
    None,
    /// There are, or may be.
    Replicas,
}

/// Whether the timer has fired in this pass of the server's loop, after which none is armed until it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Firing {
    /// It hasn't.
    #[default]
    No,
    /// It has.
    Yes,
    /// It has, and is to be armed for this moment on the steady clock, in ms.
    Postpones(u64),
}

impl Firing {
    /// When it is to fire that is to be armed.
    pub const fn postponed_ms(self) -> Option<u64> {
        match self {
            Self::No | Self::Yes => None,
            Self::Postpones(due_ms) => Some(due_ms),
        }
    }

    /// The same with nothing to be armed.
    pub const fn without_postponed(self) -> Self {
        match self {
            Self::No => Self::No,
            Self::Yes | Self::Postpones(_) => Self::Yes,
        }
    }
}

/// A timer of the server's, armed.
#[derive(Clone, Copy)]
pub struct Armed {
    /// The server's number for it.
    pub timer: raw::RedisModuleTimerID,
    /// When it is to fire, on the steady clock.
    pub due_ms: u64,
    /// How far the wall clock was ahead of that one.
    pub set_by_ms: i64,
}

impl State {
    fn new() -> Self {
        Self {
            table: RefCell::default(),
            pending: RefCell::default(),
            blocked: RefCell::default(),
            waiting: Cell::default(),
            sessions: Cell::default(),
            last_gone_client: Cell::default(),
            watched: RefCell::default(),
            warned_of_keepalive: Cell::default(),
            last_waiter_id: Cell::default(),
            timer: Cell::default(),
            firing: Cell::default(),
            looked_ms: Cell::default(),
            yielded: Cell::default(),
            start: OnceCell::new(),
            server: Cell::default(),
            sending: Cell::default(),
            asking: Cell::default(),
            slots_due_ms: Cell::default(),
            audience: Cell::default(),
            has_append_only_file: Cell::default(),
            callers: [const { Cell::new(0) }; CALLERS],
            fence_key: Cell::default(),
            deleting: Cell::default(),
            applying: Cell::default(),
            unlinked: RefCell::default(),
            moved_from_db: Cell::default(),
            raw_type: Cell::new(ptr::null_mut()),
            decoys: Cell::default(),
            last_decoy: RefCell::default(),
            last_user: RefCell::default(),
            last_script: Cell::default(),
            rights: RefCell::default(),
            has_reset: Cell::default(),
            postponed_scripts: RefCell::default(),
            postponed_resets: RefCell::default(),
            postponed: Cell::default(),
        }
    }
}

impl State {
    /// Looks at the lock table; `None` when it is deciding just now.
    #[inline(always)]
    pub fn look<T>(&self, at: impl FnOnce(&LockTable) -> T) -> Option<T> {
        self.table.try_borrow().ok().map(|table| at(&table))
    }

    /// Changes the lock table; `None` when it is deciding just now.
    #[inline]
    pub fn change<T>(&self, change: impl FnOnce(&mut LockTable) -> T) -> Option<T> {
        let mut table = self.table.try_borrow_mut().ok()?;
        let result = change(&mut table);
        self.waiting.set(table.queues().len());
        self.sessions.set(table.sessions().len());
        Some(result)
    }

    /// Works on the pending events. The work must not call the server.
    #[inline]
    pub fn pending<T>(&self, work: impl FnOnce(&mut Pending) -> T) -> T {
        work(&mut self.pending.borrow_mut())
    }

    /// Works on the counts of holds that ended because their lock left its key. The work must not call the server.
    pub fn unlinked<T>(&self, work: impl FnOnce(&mut UnlinkedHolds) -> T) -> T {
        work(&mut self.unlinked.borrow_mut())
    }

    /// Works on the blocked clients. The work must not call the server.
    #[inline]
    pub fn blocked<T>(&self, work: impl FnOnce(&mut BlockedClients) -> T) -> T {
        work(&mut self.blocked.borrow_mut())
    }
}

/// Works with the state. For the main thread alone: commands and callbacks of the server, all but
/// the type's callback that frees. What runs for every command is given the state instead.
pub fn with<T>(work: impl FnOnce(&State) -> T) -> T {
    work(&STATE.lock(&Context::dummy()))
}

/// As [`State::look`].
pub fn look<T>(at: impl FnOnce(&LockTable) -> T) -> Option<T> {
    with(|state| state.look(at))
}

/// As [`State::change`].
pub fn change<T>(change: impl FnOnce(&mut LockTable) -> T) -> Option<T> {
    with(|state| state.change(change))
}

/// As [`State::pending`].
pub fn pending<T>(work: impl FnOnce(&mut Pending) -> T) -> T {
    with(|state| state.pending(work))
}

/// As [`State::blocked`].
pub fn blocked<T>(work: impl FnOnce(&mut BlockedClients) -> T) -> T {
    with(|state| state.blocked(work))
}

/// Whether anybody waits for anything.
pub fn anybody_waits() -> bool {
    with(|state| state.waiting.get() > 0)
}

/// Whether any grant is tied to a connection.
pub fn any_sessions() -> bool {
    with(|state| state.sessions.get() > 0)
}

/// Whether there is any lock on this server.
pub fn any_locks() -> bool {
    LOCKS.load(Ordering::Relaxed) > 0
}
