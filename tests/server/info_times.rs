//! The histograms of `INFO lock`, and its counts of holds that ended without a release.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use support::{until, Expect, Server, LONG};

/// Returns the parts of a histogram field: `le_1=5,le_2=7,...,sum=...,count=...`.
#[track_caller]
fn histogram(server: &Server, field: &str) -> Vec<(String, u64)> {
    let text = server.info("lock", &format!("lock_{field}"));
    let parts = text.split(',').map(|part| {
        let (name, value) = part.split_once('=').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    });
    parts.collect()
}

#[track_caller]
fn part(server: &Server, field: &str, part: &str) -> u64 {
    let parts: BTreeMap<String, u64> = histogram(server, field).into_iter().collect();
    parts[part]
}

/// Returns the counts of lost holds: expired, deleted, disconnected.
#[track_caller]
fn lost(server: &Server) -> [u64; 3] {
    ["expired", "deleted", "disconnected"].map(|cause| {
        let value = server.info("lock", &format!("lock_lost_{cause}"));
        value.parse().expect("a number")
    })
}

/// Waits until the counts have risen by exactly `expected`. Asserts that the histogram has all lost
/// holds.
#[track_caller]
fn assert_lost(server: &Server, before: [u64; 3], expected: [u64; 3], what: &str) {
    let moved = || {
        let now = lost(server);
        [0, 1, 2].map(|at| now[at] - before[at])
    };
    let deadline = Instant::now() + support::PATIENCE;
    while moved() != expected && Instant::now() < deadline {}
    assert_eq!(moved(), expected, "{what}");
    let all = lost(server).iter().sum::<u64>();
    assert_eq!(part(server, "lost_hold_ms", "count"), all, "{what}");
}

#[test]
fn the_oldest_wait_is_the_one_that_has_gone_on_longest() {
    let server = Server::start();
    let oldest = || -> i64 {
        let value = server.info("lock", "lock_oldest_wait_ms");
        value.parse().expect("a number")
    };
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(oldest(), 0);
    let mut first = server.waiter("LOCK.WAIT k b");
    until("it has waited", || oldest() >= 50);
    server.call("LOCK.QUEUE k c KEEP 60000").int();
    // It goes to the back, and its wait goes on.
    let _again = server.waiter("LOCK.WAIT k b SHARED");
    first.recv().error();
    assert!(oldest() >= 50);
    let waits_for_ms = |place: usize| {
        let queue = server.lock_info("k").expect("a lock").queue;
        queue[place].int("waiting-ms")
    };
    for (place, what) in [(1, "the repeated wait"), (0, "the place")] {
        let (before, now, after) = (waits_for_ms(place), oldest(), waits_for_ms(place));
        assert!((before..=after).contains(&now), "{what}: {now}");
        server.call("LOCK.CANCEL k b").int();
    }
    assert_eq!(server.call("LOCK.CANCEL k c").int(), 1);
    assert_eq!(oldest(), 0);
}

#[test]
fn a_histogram_has_a_number_for_each_bound_and_all_of_them_rise() {
    let server = Server::start();
    for field in ["wait_ms", "hold_ms", "lost_hold_ms"] {
        let parts = histogram(&server, field);
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names.join(" "),
            "le_1 le_2 le_5 le_10 le_20 le_50 le_100 le_200 le_500 le_1000 le_2000 le_5000 le_10000 le_30000 \
             le_60000 le_300000 le_inf sum count"
        );
        assert!(parts.iter().all(|(_, value)| *value == 0), "{parts:?}");
    }
}

#[test]
fn waits_and_holds_are_counted_by_their_length() {
    let server = Server::start();
    // More holds than the module buffers before it counts them.
    for _ in 0..100 {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        server.call("LOCK.RELEASE k a").int();
    }
    assert_eq!(part(&server, "hold_ms", "le_inf"), 100);
    assert_eq!(part(&server, "wait_ms", "le_inf"), 0);
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let begun = Instant::now();
    until("the lock was held for a while", || {
        begun.elapsed() > Duration::from_millis(1_200)
    });
    server.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    for field in ["wait_ms", "hold_ms"] {
        let parts = histogram(&server, field);
        let counts: Vec<u64> = parts[..17].iter().map(|(_, count)| *count).collect();
        assert!(counts.is_sorted(), "{parts:?}");
        assert_eq!(counts[16], parts[18].1, "{parts:?}");
        // The long time isn't in the bucket of 1 s, and is in the bucket of 30 s.
        assert_eq!(counts[16] - part(&server, field, "le_1000"), 1, "{parts:?}");
        assert_eq!(part(&server, field, "le_30000"), counts[16], "{parts:?}");
        assert!((1_198..30_000).contains(&parts[17].1), "{parts:?}");
    }
    assert_eq!(part(&server, "hold_ms", "count"), 101);
    assert_eq!(part(&server, "wait_ms", "count"), 1);
    assert_eq!(lost(&server), [0; 3]);
}

#[test]
fn holds_that_end_without_a_release_are_counted_by_their_cause() {
    let server = Server::start();
    let mut before = [0; 3];
    let mut expect = |expected: [u64; 3], what: &str| {
        assert_lost(&server, before, expected, what);
        before = lost(&server);
    };
    let acquire = |key: &str| {
        let command = format!("LOCK.ACQUIRE {key} a {LONG}");
        server.call(command).grant();
    };
    for (command, what) in [
        ("DEL k", "DEL"),
        ("UNLINK k", "UNLINK"),
        ("SET k value", "SET over it"),
    ] {
        acquire("k");
        server.call(command).expect("an answer");
        server.call("DEL k").expect("an answer");
        expect([0, 1, 0], what);
    }
    acquire("k");
    acquire("other");
    server.call("RENAME other k").okay();
    expect([0, 1, 0], "RENAME over it");
    let payload = server.call("DUMP k").bytes();
    server
        .call(&[b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"])
        .okay();
    expect([0, 1, 0], "RESTORE over it");
    server.call("DEL k").int();
    expect([0, 1, 0], "DEL of what was restored");

    server.call("LOCK.ACQUIRE k a PX 20").grant();
    expect([1, 0, 0], "a lease without a waiter");
    for token in ["a", "b", "c"] {
        server
            .call(format!("LOCK.ACQUIRE k {token} {LONG} SHARED"))
            .grant();
    }
    server.call("LOCK.EXTEND k b PX 20").int();
    expect([1, 0, 0], "one lease of several");
    server.call("DEL k").int();
    expect([0, 2, 0], "DEL of several");

    acquire("k");
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("LOCK.EXTEND k a PX 20").int();
    waiter.recv().grant();
    expect([1, 0, 0], "a lease with a waiter");
    let mut waiter = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    server.call("DEL k").int();
    waiter.recv().grant();
    expect([0, 1, 0], "DEL with a waiter");
    server.call("LOCK.RELEASE k c").int();

    let mut session = server.client();
    session
        .call(format!("LOCK.ACQUIRE k a {LONG} SESSION"))
        .grant();
    session
        .call(format!("LOCK.ACQUIRE k2 a {LONG} SESSION"))
        .grant();
    session.close();
    expect([0, 0, 2], "a connection that closes");
    let mut session = server.client();
    session
        .call(format!("LOCK.ACQUIRE k a {LONG} SESSION KEEP 30"))
        .grant();
    session.close();
    expect([1, 0, 0], "a hold that was kept for a while");
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.QUEUE k b {LONG} KEEP 30")).int();
    server.call("LOCK.RELEASE k a").int();
    // Either the place lapses, or its unclaimed grant ends with its lease.
    until("the lock is free", || server.lock_info("k").is_none());
    let lapsed = server.info("lock", "lock_lapsed_places");
    let unclaimed = 1 - lapsed.parse::<u64>().expect("a number");
    expect([unclaimed, 0, 0], "a grant to a place");
}

#[test]
fn a_lock_that_the_server_evicts_counts_as_deleted() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call_all(&[
        "CONFIG SET maxmemory-policy allkeys-random",
        "CONFIG SET maxmemory 1",
    ]);
    until("it is evicted", || server.call("EXISTS k").int() == 0);
    assert_lost(&server, [0; 3], [0, 1, 0], "an eviction");
    assert_eq!(server.info("stats", "evicted_keys"), "1");
}

#[test]
fn a_hold_lasts_until_its_lease_ended_however_late_the_server_deletes_the_key() {
    let server = Server::start();
    server.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    server.call("LOCK.ACQUIRE k a PX 20").grant();
    let begun = Instant::now();
    until("the lease ended long ago", || {
        begun.elapsed() > Duration::from_millis(400)
    });
    server.call("EXISTS k").int();
    assert_lost(&server, [0; 3], [1, 0, 0], "a lease");
    assert_eq!(part(&server, "lost_hold_ms", "sum"), 20);
    assert_eq!(part(&server, "lost_hold_ms", "le_20"), 1);
    assert_eq!(part(&server, "lost_hold_ms", "le_10"), 0);
}

#[test]
fn locks_that_go_elsewhere_lose_no_hold() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut session = server.client();
    session
        .call(format!("LOCK.ACQUIRE s a {LONG} SESSION"))
        .grant();
    server.call(format!("LOCK.ACQUIRE w a {LONG}")).grant();
    let mut waiters = Vec::new();
    for round in ["no client waits", "a client waits elsewhere"] {
        server.call_all(&["RENAME k k2", "RENAMENX k2 k3", "RENAME k3 k"]);
        assert_eq!(server.call("MOVE k 1").int(), 1, "{round}");
        server.call("SWAPDB 0 1").okay();
        server.call("SWAPDB 0 1").okay();
        let mut there = server.client().into_db(1);
        assert_eq!(there.call("MOVE k 0").int(), 1, "{round}");
        server.call("DEBUG RELOAD").okay();
        server.call("RENAME s s2").okay();
        server.call("RENAME s2 s").okay();
        assert!(server.call("LOCK.CHECK k a").int() > 0, "{round}");
        assert_lost(&server, [0; 3], [0; 3], round);
        waiters.push(server.waiter(format!("LOCK.WAIT w b {LONG}")));
    }
    // A hold that really ends counts, and counts once.
    server.call("DEL k").int();
    assert_lost(&server, [0; 3], [0, 1, 0], "DEL");
    server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    server.call("LOCK.RELEASE k a ALL").int();
    assert_lost(&server, [0; 3], [0, 1, 0], "a release");
}

#[test]
fn only_the_primary_counts_lost_holds() {
    let primary = Server::builder().config("appendonly yes").start();
    let replica = Server::start();
    replica.replica_of(&primary);
    for key in ["k1", "k2", "k3"] {
        primary.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    primary.call("LOCK.RELEASE k1 a").int();
    primary.call("DEL k2").int();
    primary.call("LOCK.EXTEND k3 a PX 20").int();
    assert_lost(&primary, [0; 3], [1, 1, 0], "on the primary");
    replica.until_in_step(&primary);
    assert_eq!(replica.call("EXISTS k1 k2 k3").int(), 0);
    assert_lost(&replica, [0; 3], [0; 3], "on the replica");
    // The holds in an append-only file were counted when they ended.
    primary.call("DEBUG LOADAOF").okay();
    assert_lost(&primary, [0; 3], [1, 1, 0], "a file loaded anew");
}

#[test]
fn config_resetstat_resets_no_count_of_the_module() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.RELEASE k a").int();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("DEL k").int();
    server.call("CONFIG RESETSTAT").okay();
    assert_eq!(server.info("stats", "expired_keys"), "0");
    assert_eq!(part(&server, "hold_ms", "count"), 1);
    assert_eq!(lost(&server), [0, 1, 0]);
    assert_eq!(server.info("lock", "lock_grants"), "2");
}

#[test]
fn leases_that_end_at_once_are_counted_once_each() {
    const ROUNDS: usize = 40;
    const KEYS: usize = 100;
    let server = Server::start();
    for round in 1..=ROUNDS {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("k{round}:{key}")).collect();
        let all = format!("{KEYS} {}", keys.join(" "));
        server.call(format!("LOCK.MACQUIRE {all} a {LONG}")).grant();
        let queue = |key: &String| format!("LOCK.QUEUE {key} t-{key} {LONG} KEEP 600000");
        server.call_all(&keys.iter().map(queue).collect::<Vec<_>>());
        // The timer grants all keys in one run. Meanwhile Redis 7.0 expires more keys, even keys
        // that the lock table has just read.
        let extended = server.call(format!("LOCK.MEXTEND {all} a PX 10")).int();
        assert_eq!(extended, KEYS as i64);
        let granted = (round * KEYS).to_string();
        until("the next ones are granted", || {
            server.info("lock", "lock_hand_overs") == granted
        });
        assert_eq!(server.info("lock", "lock_expirations"), granted);
        assert_lost(&server, [0; 3], [(round * KEYS) as u64, 0, 0], "leases");
    }
}
