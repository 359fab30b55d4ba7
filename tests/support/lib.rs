//! Real servers and plain clients for the integration tests.
//!
//! `REDIS_SERVER` names the server that runs, and `REDIS_LOCK_MODULE` the module that it loads. A
//! test never sleeps for a fixed time and hopes: it polls until a state is reached or a deadline
//! has passed.

mod client;
pub mod crowd;
pub mod files;
pub mod headings;
pub mod links;
pub mod load;
mod lock_info;
pub mod payload;
mod replication;
mod reply;
mod server;
mod sockets;
pub mod tasks;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use client::{packed, Client, Command, PATIENCE, STALLS};
pub use lock_info::{Fields, LockInfo};
pub use redis_lock_promises::history;
pub use redis_lock_rig::{compiled, free_port};
pub use replication::{assert_same_data, words, ReplicationStream};
pub use reply::{Expect, Grant, Reply};
pub use server::{module_path, server_binary, Builder, Flavour, Server};

/// The server's error for a key that holds another type, word for word.
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Sends a signal to the process with this number. Returns true if the process exists. Signal 0
/// only checks that. This doesn't run `kill`, because a machine may have no such program outside
/// its shell.
pub fn signal(process_id: &str, signal: libc::c_int) -> bool {
    let process_id = process_id.parse().expect("a process number");
    // SAFETY: kill takes numbers only. The caller names a process that the test started.
    unsafe { libc::kill(process_id, signal) == 0 }
}

/// A lease that no test outlives.
pub const LONG: &str = "PX 600000";

/// The commands that move the lock k, each with its database and its key then.
pub const MOVES: [(&str, u32, &str); 3] = [
    ("RENAME k j", 0, "j"),
    ("MOVE k 1", 1, "k"),
    ("SWAPDB 0 1", 1, "k"),
];

/// Starts a server where `a` holds `k` with a long lease.
#[track_caller]
pub fn server_with_holder() -> Server {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server
}

/// Starts a node of a cluster that serves all slots.
#[track_caller]
pub fn cluster_node() -> Server {
    let server = Server::builder().config("cluster-enabled yes").start();
    server.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("the node serves its slots", || {
        server.call("SET there 1").is_ok()
    });
    server
}

/// Polls until `probe` returns a value, and returns it. The failure names `what`.
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_micros(500));
    }
}

/// Polls until `holds` returns true.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Returns the wall clock in us, the unit of a fence.
pub fn unix_time_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_micros()).unwrap()
}

/// Returns the wall clock in ms, the unit of a lease. Leases count whole milliseconds of this
/// clock, so a test that measures a lease has to count in the same way.
pub fn unix_time_ms() -> i64 {
    unix_time_us() / 1_000
}
