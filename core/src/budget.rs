//! The limits of the work that one operation, one firing of the timer or one command may do, so that
//! the server serves its other clients in between.
//!
//! The rest of the work is left to a later firing, refused, or given up, as each limit says.

// ---- an operation

/// The number of steps after which an operation grants to no further waiter.
pub const MOST_STEPS: u64 = 2048;

/// The steps that a reply to a waiter counts as.
// perf: the server takes longer for the reply than for the rest of a hand-over.
pub const COMPLETION_STEPS: u64 = 16;

/// The steps that a grant to a place counts as.
// perf: a grant takes 30 us with its effect. 2,048 steps of such grants took 13 to 22 ms when each
// grant counted as one step.
pub const PLACE_STEPS: u64 = 8;

/// The most positions taken out of lists at a time after their waiters have left.
// perf: some 40 to 300 ns each.
pub const MOST_TAKEN_OUT: usize = 4_096;

// ---- marks of tokens that have left

/// The most marks that one part of a sweep looks at.
// perf: some 20 to 100 ns each.
pub const MOST_SWEPT: usize = 4_096;

/// The waits and grants that are looked at in one go, of clients that wait for replicas.
// perf: some 10 to 40 ns each.
pub const MOST_LOOKS: u64 = 65_536;

// ---- a search for a deadlock of sessions

/// The most work of one search, in units.
// perf: a unit takes 30 to 50 ns of one core, so a search takes at most 15 ms. A deadlock of 10,000
// connections that hold one key each takes 280,000 units.
pub const MOST_WORK: u64 = 300_000;

/// The units of work that count as one step of the operation.
pub const WORK_OF_A_STEP: u64 = 16;

/// The work to look up a session and its name, which are in separate tables.
pub const WORK_OF_A_TIE: u64 = 8;

/// The work to look at a name for the first time, and at its lock.
pub const WORK_OF_A_NAME: u64 = 8;

/// The work to look at a waiter for the first time.
pub const WORK_OF_A_WAITER: u64 = 4;

/// The work to add a grant to a name.
pub const WORK_OF_A_GRANT: u64 = 3;

/// The entries of a list that one unit of work clears.
pub const CLEARED_AT_ONCE: usize = 32;

// ---- a firing of the timer

/// The most names, and the most timeouts, that one firing of the timer settles. The server serves
/// other clients in between.
pub const MOST_A_FIRING: usize = 256;

/// The number of names after which a firing takes back no further hand-over.
pub const MOST_TAKEN_BACK: usize = 2_048;

/// The most places that are dropped at once.
pub const MOST_GIVEN_UP: usize = 2_048;

/// The most waiters without a grant that are unblocked at once.
// perf: the server needs some 20 us for each, and one LOCK.CANCEL can end thousands of waits.
pub const MOST_REFUSED_AT_ONCE: usize = 256;

// ---- LOCK.HOT

/// The most waiters of a name whose waits rank it among the names that are all waited for.
// perf: 256 names are ranked once a millisecond at most, in some 30 us.
pub const MOST_WAITERS_RANKED: usize = 16;

/// The most names whose right to be read one command checks.
// perf: 0.2 us each, and more for a user with many patterns.
pub const MOST_NAMES_CHECKED: usize = 8_192;

// ---- LOCK.INFO

/// The most waiters that one command replies.
// perf: 3 to 6 us each with their connections, 1 to 2 us without.
pub const MOST_WAITERS_SHOWN: usize = 3_000;

/// The most keys of the replied waiters together, unless the first waiter alone has more.
// perf: 0.14 us each.
pub const MOST_KEYS_SHOWN: usize = 30_000;
