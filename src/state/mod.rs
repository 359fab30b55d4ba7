//! The module's state, in one place.
//!
//! [`State`] is used only in calls of the server, see [`entered`]. Its parts are borrowed one by
//! one, and never across a call of the server, which may call back. The lock table is the exception:
//! it is borrowed while keys are read. A callback that comes meanwhile finds it borrowed and leaves a
//! pending event instead.
//!
//! State that other threads use too is in atomics outside [`State`].

pub mod blocked;
pub mod early_expiries;
pub mod entered;
pub mod name_set;
pub mod pending_events;
pub mod provisional;
pub mod rights_watch;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use foldhash::HashSet;
use redis_lock_core::state::lost_holds::UnlinkedHolds;
use redis_lock_core::table::LockTable;
use redis_lock_core::values::fence::Fences;
use redis_lock_core::values::slot::Sharding;
use redis_module::{raw, RedisString};

use blocked::BlockedClients;
use early_expiries::EarlyExpiries;
use entered::Entered;
use pending_events::Pending;
use rights_watch::RightsWatch;

/// The source of all fences. Values that are loaded raise it.
pub static FENCES: Fences = Fences::new();

/// The number of values of the type, in keys or still to be freed. Any thread may free them.
pub static LOCKS: AtomicU64 = AtomicU64::new(0);

/// The bytes that the module has allocated, on any thread.
pub static BYTES: AtomicU64 = AtomicU64::new(0);

/// The size of the direct-mapped cache of client ids that are known not to belong to a script. If
/// two clients share an entry, the server is asked again.
pub const CALLERS: usize = 8192;

/// The prefix of the names of decoy keys, on which clients are blocked.
// perf: with the two bytes for the slot a name has seven bytes, which the server hashes in one
// step.
pub type DecoyName = [u8; 5];

/// The value of a setting that the server has not set yet.
pub const UNSET: i64 = -1;

/// `lock.default-lease`: the lease in ms of a grant without PX.
pub static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.max-waiters`: the most blocked clients that may wait on this server; 0: no limit.
pub static MAX_WAITERS: AtomicI64 = AtomicI64::new(UNSET);

/// The server's `maxclients`.
pub static MAX_CLIENTS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.default-keep`: the time in ms for which a place without KEEP is kept.
pub static DEFAULT_KEEP_MS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.replicas-timeout`: the time in ms for which a command with REPLICAS and without WITHIN
/// waits for replicas.
pub static REPLICAS_TIMEOUT_MS: AtomicI64 = AtomicI64::new(UNSET);

/// `lock.max-tickets`: the most waiters without a connection on this server; 0: no limit.
pub static MAX_TICKETS: AtomicI64 = AtomicI64::new(UNSET);

/// The module's own context, for code that gets none from the server, like callbacks of the type.
pub static OWN_CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// The state, which only [`of`] and [`with`] reach.
static STATE: LazyLock<Locked> = LazyLock::new(|| Locked(State::new()));

/// The state behind the server's lock.
struct Locked(State);

// SAFETY: another thread reaches the state only in a call of the server, by `of` or after
// `entered::check`. The server holds its lock then, so no two threads use the state at a time.
unsafe impl Send for Locked {}

// SAFETY: as above.
unsafe impl Sync for Locked {}

/// The state that is used only in calls of the server.
pub struct State {
    /// The lock table: the queues and the sessions.
    pub table: RefCell<LockTable>,
    /// Events outside commands that the lock table has not absorbed yet.
    pub pending: RefCell<Pending>,
    /// The clients that the server holds blocked for the module.
    pub blocked: RefCell<BlockedClients>,
    /// The number of waiters. Callbacks return at once if it is 0.
    pub waiting: Cell<usize>,
    /// The number of sessions. Callbacks return at once if it is 0.
    pub sessions: Cell<usize>,
    /// The number of clients whose reply is held back until replicas have acknowledged.
    pub replica_waits: Cell<usize>,
    /// True if the replicas are to be looked at before the server sleeps next.
    pub is_look_wanted: Cell<bool>,
    /// The last look at the replicas while clients waited for them, on the steady clock in
    /// microseconds.
    pub looked_at_replicas_us: Cell<u64>,
    /// True if the replicas are to be asked for acknowledgements before the server sleeps next.
    pub is_ask_wanted: Cell<bool>,
    /// The number of replicas that were online at the last look, unless one has come or gone since.
    pub online_replicas: Cell<Option<usize>>,
    /// The last client for which the server reported the end of its connection.
    pub last_gone_client: Cell<u64>,
    /// The connected clients that asked for a session. Their sockets were set to detect a vanished
    /// machine.
    pub watched: RefCell<HashSet<u64>>,
    /// True once the log says that such a socket could not be set.
    pub warned_of_keepalive: Cell<bool>,
    /// The number that the last operation got in case it has to wait.
    pub last_waiter_id: Cell<u64>,
    /// The module's timer, while it is armed.
    pub timer: Cell<Option<Armed>>,
    /// The state of the timer since the server last slept.
    pub firing: Cell<Firing>,
    /// The last time at which the clocks were compared, in ms of
    /// [`clock::noted_ms`](crate::server::clock::noted_ms).
    pub compared_ms: Cell<u64>,
    /// The time in ms by which the wall clock was ahead of the steady clock when it was last found set.
    pub set_by_ms: Cell<i64>,
    /// True if the timer's work was postponed by one firing, so that the server serves its other
    /// clients first.
    pub yielded: Cell<bool>,
    /// The first reading of the system's monotonic clock, and the wall clock at that time, both in
    /// microseconds. The wall clock counts from the epoch.
    pub start: OnceCell<(u64, u64)>,
    /// The server's kind and role.
    pub server: Cell<ServerFacts>,
    /// True between the server's event before it sleeps and the event after it. Replies are sent in
    /// this span.
    pub sending: Cell<bool>,
    /// True while LOCK.APPLY is called only to ask if the server would take a write.
    pub probing: Cell<bool>,
    /// The next time to look for slots that other nodes have taken over, on the steady clock in ms.
    pub slots_due_ms: Cell<u64>,
    /// The readers of the replication stream.
    pub replicas: Cell<Replicas>,
    /// True if there is an append-only file; `None`: to be asked.
    pub has_append_only_file: Cell<Option<bool>>,
    /// Ids of connected clients that sent an operation themselves. Each is at the index of its id
    /// modulo the array's length.
    pub callers: [Cell<u64>; CALLERS],
    /// The key with the last fence, open while this process saves.
    pub fence_key: Cell<Option<*mut raw::RedisModuleKey>>,
    /// True while the module itself deletes a key. The type's unlink callback has nothing to record
    /// then.
    pub deleting: Cell<bool>,
    /// True while effects are applied: the lock table has decided about the holds of their keys.
    pub applying: Cell<bool>,
    /// Locks whose keys the server expired before the leases had ended.
    pub early_expiries: EarlyExpiries,
    /// Holds that ended because their lock left its key.
    pub unlinked: RefCell<UnlinkedHolds>,
    /// The database that the last MOVE came from.
    pub moved_from_db: Cell<i32>,
    /// The prefix of the decoys' names.
    pub decoys: Cell<DecoyName>,
    /// The decoy on which a client was last blocked, and its slot.
    pub last_decoy: RefCell<Option<(u16, RedisString)>>,
    /// The name of the user that last took or kept a place.
    pub last_user: RefCell<Option<Arc<[u8]>>>,
    /// The last command that runs a script, as the command filter saw it.
    pub last_script: Cell<ScriptRun>,
    /// The changes of users' rights.
    pub rights: RefCell<RightsWatch>,
    /// True if the server has RESET under its own name.
    pub has_reset: Cell<bool>,
    /// Commands that run scripts, seen while the server paused clients, oldest first. They may run
    /// later than the filter saw them.
    pub postponed_scripts: RefCell<VecDeque<ScriptRun>>,
    /// The clients whose RESET the filter saw while the server paused clients.
    pub postponed_resets: RefCell<Vec<u64>>,
    /// The state of the postponed scripts and RESETs.
    pub postponed: Cell<Postponed>,
}

/// Valkey's `ValkeyModule_ACLCheckPermissions`, new in 9.1: a user, the words of a command and their
/// number, the database in which it would run, and a place for the reason of a refusal. Returns 0 if
/// the user may run the command there.
pub type CheckPermissions = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// The server's kind and role. Only its role and its modules change while it runs.
#[derive(Clone, Copy, Default)]
pub struct ServerFacts {
    /// True if it is a Valkey. Used only for calls that behave differently there.
    pub is_valkey: bool,
    /// True if it is a node of a cluster.
    pub is_clustered: bool,
    /// True if it can block a client that is subscribed to a channel in RESP3.
    pub blocks_subscribers: bool,
    /// Its check of rights that may be limited to databases, if it has such rights.
    pub check_permissions: Option<CheckPermissions>,
    /// True if it is a replica, as of the last change of its role.
    pub is_replica: bool,
    /// True if it may have other modules that subscribe to keyspace events.
    pub has_other_modules: bool,
}

impl ServerFacts {
    /// Returns how keys are divided among servers.
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
    /// Its client; 0 if the server doesn't report it (Redis before 7.2).
    pub client_id: u64,
    /// Its name.
    pub command: &'static [u8],
    /// The total length of its words, in bytes.
    pub word_bytes: u64,
    /// The client that was found to run it; `None`: not looked up yet.
    pub caller: Option<u64>,
}

/// The state of commands that may run after the command filter saw them: those that run scripts,
/// and RESETs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Postponed {
    /// No command is postponed.
    #[default]
    None,
    /// Commands may be postponed.
    Some,
    /// Commands may be postponed, but the server was last seen without a pause of clients.
    Resumed,
}

/// The readers of the replication stream: replicas, a backlog for them, or other nodes of a
/// cluster. The append-only file is tracked separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// Not asked yet.
    #[default]
    Unknown,
    /// No reader. No command that can attach one was seen since.
    None,
    /// Readers, or possible readers.
    Possible,
}

/// The state of the timer in this pass of the server's event loop. Once it has fired, it is not
/// armed until the server sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Firing {
    /// Not fired.
    #[default]
    No,
    /// Fired.
    Yes,
    /// Fired, and to be armed for this time on the steady clock, in ms.
    Postpones(u64),
}

impl Firing {
    /// Returns the time for which the timer is still to be armed.
    pub const fn postponed_ms(self) -> Option<u64> {
        match self {
            Self::No | Self::Yes => None,
            Self::Postpones(due_ms) => Some(due_ms),
        }
    }

    /// Returns the same state without a time for which the timer is to be armed.
    pub const fn without_postponed(self) -> Self {
        match self {
            Self::No => Self::No,
            Self::Yes | Self::Postpones(_) => Self::Yes,
        }
    }
}

/// An armed timer of the server.
#[derive(Clone, Copy)]
pub struct Armed {
    /// The server's id of the timer.
    pub timer: raw::RedisModuleTimerID,
    /// The time at which it is to fire, on the steady clock in ms.
    pub due_ms: u64,
}

impl State {
    fn new() -> Self {
        Self {
            table: RefCell::default(),
            pending: RefCell::default(),
            blocked: RefCell::default(),
            waiting: Cell::default(),
            sessions: Cell::default(),
            replica_waits: Cell::default(),
            is_look_wanted: Cell::default(),
            looked_at_replicas_us: Cell::default(),
            is_ask_wanted: Cell::default(),
            online_replicas: Cell::default(),
            last_gone_client: Cell::default(),
            watched: RefCell::default(),
            warned_of_keepalive: Cell::default(),
            last_waiter_id: Cell::default(),
            timer: Cell::default(),
            firing: Cell::default(),
            compared_ms: Cell::default(),
            set_by_ms: Cell::default(),
            yielded: Cell::default(),
            start: OnceCell::new(),
            server: Cell::default(),
            sending: Cell::default(),
            probing: Cell::default(),
            slots_due_ms: Cell::default(),
            replicas: Cell::default(),
            has_append_only_file: Cell::default(),
            callers: [const { Cell::new(0) }; CALLERS],
            fence_key: Cell::default(),
            deleting: Cell::default(),
            applying: Cell::default(),
            early_expiries: EarlyExpiries::default(),
            unlinked: RefCell::default(),
            moved_from_db: Cell::default(),
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
    /// Reads the lock table. Returns `None` while the table decides.
    #[inline(always)]
    pub fn look<T>(&self, at: impl FnOnce(&LockTable) -> T) -> Option<T> {
        self.table.try_borrow().ok().map(|table| at(&table))
    }

    /// Changes the lock table. Returns `None` while the table decides.
    #[inline]
    pub fn change<T>(&self, change: impl FnOnce(&mut LockTable) -> T) -> Option<T> {
        let mut table = self.table.try_borrow_mut().ok()?;
        let result = change(&mut table);
        self.waiting.set(table.queues().len());
        self.sessions.set(table.sessions().len());
        self.replica_waits.set(table.replica_waits().len());
        Some(result)
    }

    /// Works on the pending events. The work must not call the server.
    #[inline]
    pub fn pending<T>(&self, work: impl FnOnce(&mut Pending) -> T) -> T {
        work(&mut self.pending.borrow_mut())
    }

    /// Works on the counts of holds that ended because their lock left its key. The work must not
    /// call the server.
    pub fn unlinked<T>(&self, work: impl FnOnce(&mut UnlinkedHolds) -> T) -> T {
        work(&mut self.unlinked.borrow_mut())
    }

    /// Works on the blocked clients. The work must not call the server.
    #[inline]
    pub fn blocked<T>(&self, work: impl FnOnce(&mut BlockedClients) -> T) -> T {
        work(&mut self.blocked.borrow_mut())
    }
}

/// Returns the state, in a call of the server.
#[inline(always)]
pub fn of(_: &Entered) -> &State {
    &STATE.0
}

/// Works with the state. Panics on a thread that runs no call of the server. Code that runs for every
/// command gets the state as an argument instead.
#[inline]
pub fn with<T>(work: impl FnOnce(&State) -> T) -> T {
    entered::check();
    work(&STATE.0)
}

/// Like [`State::look`].
pub fn look<T>(at: impl FnOnce(&LockTable) -> T) -> Option<T> {
    with(|state| state.look(at))
}

/// Like [`State::change`].
pub fn change<T>(change: impl FnOnce(&mut LockTable) -> T) -> Option<T> {
    with(|state| state.change(change))
}

/// Like [`State::pending`].
pub fn pending<T>(work: impl FnOnce(&mut Pending) -> T) -> T {
    with(|state| state.pending(work))
}

/// Like [`State::blocked`].
pub fn blocked<T>(work: impl FnOnce(&mut BlockedClients) -> T) -> T {
    with(|state| state.blocked(work))
}

/// Returns true if there is any waiter.
pub fn has_waiters() -> bool {
    with(|state| state.waiting.get() > 0)
}

/// Returns true if any grant is tied to a connection.
pub fn any_sessions() -> bool {
    with(|state| state.sessions.get() > 0)
}

/// Returns true if any client waits for replicas.
pub fn any_replica_waits() -> bool {
    with(|state| state.replica_waits.get() > 0)
}

/// Returns true if this server has any lock.
pub fn any_locks() -> bool {
    LOCKS.load(Ordering::Relaxed) > 0
}
