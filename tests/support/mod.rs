//! Real servers and plain clients for the integration tests.
//!
//! Which server runs is told by `REDIS_SERVER`, which module it loads by `REDIS_LOCK_MODULE`.
//! Nothing here sleeps and hopes: a test asks for a state and polls until it is there or a
//! deadline has passed.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part of this"
)]

mod client;
mod lock_info;
mod replication;
mod reply;
mod server;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use client::{packed, Client, Command, PATIENCE, STALLS};
pub use lock_info::{Fields, LockInfo};
pub use redis_lock_rig::free_port;
pub use replication::{assert_same_data, words, ReplicationStream};
pub use reply::{Expect, Grant, Reply};
pub use server::{module_path, server_binary, Builder, Flavour, Server};

/// What the server answers for a key that holds another type, word for word.
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Sends a signal to a process of this number, or asks by 0 whether there is one; returns true if there is. A shell has
/// its own `kill`, but a machine may have no such program.
pub fn signal(process_id: &str, signal: libc::c_int) -> bool {
    let process_id = process_id.parse().expect("a process number");
    // SAFETY: takes numbers only; the caller names a process that the test started.
    unsafe { libc::kill(process_id, signal) == 0 }
}

/// A lease that no test outlives.
pub const LONG: &str = "PX 600000";

/// A server where `a` holds `k` for long.
#[track_caller]
pub fn server_with_holder() -> Server {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server
}

/// A node of a cluster that serves all slots.
#[track_caller]
pub fn cluster_node() -> Server {
    let server = Server::builder().config("cluster-enabled yes").start();
    server.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("the node serves its slots", || {
        server.call("SET there 1").is_ok()
    });
    server
}

/// Polls until `probe` has an answer; `what` is named in the failure.
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

/// Polls until `holds` is true.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// The wall clock, in the unit of a fence.
pub fn unix_time_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_micros()).unwrap()
}

/// The wall clock, in the unit of a lease. Leases count whole milliseconds of this clock, so a
/// test that asks whether one has lasted has to count in the same way.
pub fn unix_time_ms() -> i64 {
    unix_time_us() / 1_000
}
