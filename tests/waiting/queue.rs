//! Every way in which a wait ends, and the order in which the other waiters follow.

use std::env;
use std::time::{Duration, Instant};

use redis::Value;
use support::{
    eventually, packed, server_with_holder, unix_time_ms, until, Client, Expect, Reply, Server,
    LONG, WRONGTYPE,
};

/// The reply of a command that succeeded.
const ONE: Reply = Ok(Value::Int(1));

/// Asserts that the waiter is granted `k` as `token` and holds it.
#[track_caller]
fn assert_granted(server: &Server, waiter: &mut Client, token: &str) {
    assert_eq!(waiter.recv().grant().token, token);
    assert_holds(server, token);
}

/// Asserts that `token` is the only holder of `k`.
#[track_caller]
fn assert_holds(server: &Server, token: &str) {
    let info = server.lock_info("k").expect("a lock that is held");
    assert_eq!(info.holder_tokens(), [token]);
    assert!(server.call(format!("LOCK.CHECK k {token}")).int() > 0);
}

/// Asserts that the waiter stays in the queue of `k`.
#[track_caller]
fn assert_still_waits(server: &Server, waiter: &mut Client) {
    server.settle();
    waiter.expect_silence();
    assert!(server.is_blocked(waiter.id()));
    assert_eq!(server.waiters("k"), 1);
}

// ---- the lock becomes free

#[test]
fn a_release_grants_to_the_next() {
    let server = Server::start();
    let first = server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    waiter.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    let second = waiter.recv().grant();
    assert_eq!(second.token, "b");
    assert!(second.fence > first.fence);
    let info = server.lock_info("k").unwrap();
    assert_eq!(
        (info.holder().int("fence"), info.waiters),
        (second.fence, 0)
    );
}

#[test]
fn a_release_that_leaves_a_hold_grants_to_nobody() {
    let server = server_with_holder();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_still_waits(&server, &mut waiter);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn the_end_of_a_lease_grants_to_the_next_with_nobody_touching_the_key() {
    let server = Server::start();
    let start = unix_time_ms();
    let first = server.call("LOCK.ACQUIRE k a PX 100").grant();
    let mut waiter = server.client();
    // From here on no other command reaches the server.
    waiter.send(format!("LOCK.WAIT k b {LONG}"));
    let second = waiter.recv().grant();
    assert!(unix_time_ms() - start >= 100, "granted within the lease");
    assert!(second.fence > first.fence);
    assert_holds(&server, "b");
}

#[test]
fn leases_end_one_after_the_other() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiters: Vec<Client> = (0..4)
        .map(|n| server.waiter(format!("LOCK.WAIT k w{n} PX 40")))
        .collect();
    assert_eq!(server.call("LOCK.EXTEND k a PX 20").int(), 1);
    // A fence is the time of its grant in us, by the clock that leases use.
    let granted_ms = waiters.iter_mut().enumerate().map(|(n, waiter)| {
        let grant = waiter.recv().grant();
        assert_eq!(grant.token, format!("w{n}"));
        grant.fence / 1_000
    });
    let granted_ms: Vec<i64> = granted_ms.collect();
    for pair in granted_ms.windows(2) {
        assert!(
            pair[1] - pair[0] >= 40,
            "a lease was cut short: {granted_ms:?}"
        );
    }
    until("the last lease ends too", || {
        server.lock_info("k").is_none()
    });
}

#[test]
fn a_shorter_lease_by_extend_grants_to_the_next_sooner() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.call("LOCK.EXTEND k a PX 40").int(), 1);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn an_extended_lease_keeps_the_next_waiting() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let extended = unix_time_ms();
    let replies = server.call_batch(&["LOCK.EXTEND k a PX 20", "LOCK.EXTEND k a PX 200"]);
    assert_eq!(replies, [ONE, ONE]);
    assert_eq!(waiter.recv().grant().token, "b");
    assert!(unix_time_ms() - extended >= 200, "granted within the lease");
}

#[test]
fn deleting_the_key_grants_to_the_next() {
    for delete in ["DEL k", "UNLINK k", "DEL other k"] {
        let server = server_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        assert_eq!(server.call(delete).int(), 1);
        assert_granted(&server, &mut waiter, "b");
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 0, "{delete}");
    }
}

#[test]
fn flushing_grants_to_the_next_of_every_lock() {
    for flush in [
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHDB SYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FLUSHALL SYNC",
    ] {
        let server = server_with_holder();
        server.call(format!("LOCK.ACQUIRE k2 a {LONG}")).grant();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
        let mut other = server.waiter(format!("LOCK.WAIT k2 d {LONG}"));
        server.call(flush).okay();
        assert_granted(&server, &mut waiter, "b");
        assert_eq!(other.recv().grant().token, "d", "{flush}");
        behind.expect_silence();
        assert_eq!(server.waiters("k"), 1, "{flush}");
    }
}

#[test]
fn the_end_of_more_locks_than_the_timer_settles_at_once_grants_to_the_next_of_each() {
    const LOCKS: usize = 600;
    let each =
        |command: &dyn Fn(usize) -> String| -> Vec<String> { (0..LOCKS).map(command).collect() };
    let keys = each(&|n| format!("k{n}")).join(" ");
    let expiries = each(&|n| format!("PEXPIRE k{n} 1"));
    let ends = [
        vec!["FLUSHALL".to_owned()],
        vec![format!("DEL {keys}")],
        vec![format!("LOCK.MEXTEND {LOCKS} {keys} a PX 1")],
        expiries,
        vec!["SWAPDB 0 1".to_owned()],
    ];
    for end in ends {
        let server = Server::start();
        server.call_all(&each(&|n| format!("LOCK.ACQUIRE k{n} a {LONG}")));
        server.call_all(&each(&|n| format!("LOCK.QUEUE k{n} b {LONG} KEEP 600000")));
        assert_eq!(server.info("lock", "lock_places"), LOCKS.to_string());
        server.call_all(&end);
        until(
            &format!("each place is granted, after {:.20}", end[0]),
            || server.info("lock", "lock_hand_overs") == LOCKS.to_string(),
        );
    }
}

/// The server is told of a part of them at once, and of the rest in later passes of its loop.
#[test]
fn many_waits_that_end_at_once_without_a_grant_all_end() {
    const WAITERS: usize = 600;
    for (wait, end) in [
        ("LOCK.MWAIT 2 k own# t", "LOCK.CANCEL k t"),
        ("LOCK.MWAIT 2 k own# t", "LOCK.RELEASE k t LEAVE 1"),
        ("LOCK.WAIT k t#", "SET k text"),
    ] {
        let server = server_with_holder();
        let wait = |number: usize| {
            let mut client = server.client();
            client.send(wait.replace('#', &number.to_string()));
            client
        };
        let mut waiters: Vec<Client> = (0..WAITERS).map(wait).collect();
        server.until_waiters("k", i64::try_from(WAITERS).unwrap());
        let begun = Instant::now();
        server.call(end).value();
        for waiter in &mut waiters {
            waiter.recv().error();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{end}");
    }
}

#[test]
fn flushing_one_database_leaves_the_others() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut other = server.client().into_db(1);
    other.call(format!("LOCK.ACQUIRE k z {LONG}")).grant();
    let mut there = server.client().into_db(1);
    server.block(&mut there, format!("LOCK.WAIT k y {LONG}"));
    other.call("FLUSHDB").okay();
    assert_eq!(there.recv().grant().token, "y");
    assert_still_waits(&server, &mut waiter);
    assert_holds(&server, "a");
    // FLUSHALL from database 1 flushes both databases.
    let mut again = server.client().into_db(1);
    server.block(&mut again, format!("LOCK.WAIT k x {LONG}"));
    other.call("FLUSHALL").okay();
    assert_eq!(again.recv().grant().token, "x");
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn swapdb_grants_to_those_whose_lock_went_to_the_other_database() {
    let server = server_with_holder();
    let mut here = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("SWAPDB 0 1").okay();
    // Clients keep the number of their database, so the lock in database 0 is free now.
    assert_granted(&server, &mut here, "b");
    let mut there = server.client().into_db(1);
    assert!(there.call("LOCK.CHECK k a").int() > 0);
    // The same in the other direction: a waiter in the second database.
    server.block(&mut there, format!("LOCK.WAIT k c {LONG}"));
    server.call("DEL k").int();
    server.call("SWAPDB 0 1").okay();
    assert_eq!(there.recv().grant().token, "c");
    assert_holds(&server, "a");
}

#[test]
fn swapdb_leaves_those_waiting_who_find_the_lock_held_again() {
    let server = server_with_holder();
    let mut other = server.client().into_db(1);
    other.call(format!("LOCK.ACQUIRE k z {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("SWAPDB 0 1").okay();
    assert_still_waits(&server, &mut waiter);
    assert_holds(&server, "z");
    assert_eq!(
        other.call("LOCK.RELEASE k a").int(),
        1,
        "a's lock is in database 1 now"
    );
    waiter.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k z").int(), 1);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn the_end_of_a_lease_that_came_by_swapdb_grants_to_the_next() {
    let server = server_with_holder();
    let mut other = server.client().into_db(1);
    other.call(format!("LOCK.ACQUIRE k z {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    other.call_all(&["LOCK.EXTEND k z PX 30", "SWAPDB 0 1"]);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn renaming_the_key_away_grants_to_the_next() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("RENAME k elsewhere").okay();
    assert_granted(&server, &mut waiter, "b");
    // The grant moved with the value.
    assert!(server.call("LOCK.CHECK elsewhere a").int() > 0);
}

#[test]
fn renaming_another_lock_onto_the_key_keeps_the_waiters_waiting_for_its_holder() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE source z {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("RENAME source k").okay();
    assert_still_waits(&server, &mut waiter);
    assert_holds(&server, "z");
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 0, "overwritten");
    assert_eq!(server.call("LOCK.RELEASE k z").int(), 1);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn the_end_of_a_lease_that_came_by_rename_grants_to_the_next() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE source z {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call_all(&["LOCK.EXTEND source z PX 30", "RENAME source k"]);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn moving_the_key_to_another_database_grants_to_the_next() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.call("MOVE k 1").int(), 1);
    assert_granted(&server, &mut waiter, "b");
    assert!(server.client().into_db(1).call("LOCK.CHECK k a").int() > 0);
}

#[test]
fn eviction_grants_to_the_next() {
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl"] {
        let server = server_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        server
            .call(&["CONFIG", "SET", "maxmemory-policy", policy])
            .okay();
        // One batch, so that the lock of the next grant isn't evicted too.
        server.call_batch(&["CONFIG SET maxmemory 1", "PING", "CONFIG SET maxmemory 0"]);
        assert_eq!(waiter.recv().grant().token, "b", "{policy}");
        assert_eq!(server.info("stats", "evicted_keys"), "1", "{policy}");
        assert_holds(&server, "b");
    }
}

// ---- the key's expiry, by hand

#[test]
fn an_expiry_sooner_than_the_lease_grants_to_the_next_then() {
    let soon_ms = unix_time_ms() + 1_000;
    for shorten in [
        "PEXPIRE k 50".to_owned(),
        "EXPIRE k 1".to_owned(),
        format!("PEXPIREAT k {soon_ms}"),
    ] {
        let server = server_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        assert_eq!(server.call(&shorten).int(), 1);
        assert_granted(&server, &mut waiter, "b");
    }
}

#[test]
fn an_expiry_in_the_past_grants_to_the_next_at_once() {
    for past in [
        "PEXPIREAT k 1",
        "EXPIRE k 0",
        "EXPIREAT k 5",
        "PEXPIRE k -1",
    ] {
        let server = server_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        assert_eq!(server.call(past).int(), 1);
        assert_granted(&server, &mut waiter, "b");
    }
}

#[test]
fn neither_persist_nor_a_later_expiry_keep_the_next_waiting() {
    for lengthen in [
        "PERSIST k",
        "PEXPIRE k 600000",
        "PEXPIREAT k 9007199254740991",
    ] {
        let server = server_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let replies = server.call_batch(&["LOCK.EXTEND k a PX 30", lengthen]);
        assert_eq!(replies, [ONE, ONE], "{lengthen}");
        assert_granted(&server, &mut waiter, "b");
    }
}

// ---- another type over the lock

#[test]
fn another_type_written_over_the_lock_is_an_error_to_all_who_wait() {
    let source = Server::start();
    source.call("SET text value").okay();
    let payload = source.call("DUMP text").bytes();
    for overwrite in ["SET", "RESTORE", "RENAME", "SUNIONSTORE"] {
        let server = server_with_holder();
        server.call("SET text value").okay();
        server.call("SADD set x").int();
        let mut waiters: Vec<Client> = (0..3)
            .map(|n| server.waiter(format!("LOCK.WAIT k w{n}")))
            .collect();
        let reply = match overwrite {
            "SET" => server.call("SET k value"),
            "RENAME" => server.call("RENAME text k"),
            "SUNIONSTORE" => server.call("SUNIONSTORE k set"),
            _ => server.call(&[b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"]),
        };
        reply.value();
        for waiter in &mut waiters {
            assert_eq!(waiter.recv().error(), WRONGTYPE, "{overwrite}");
            assert_eq!(waiter.call("PING").text(), "PONG");
        }
        assert_ne!(server.call("TYPE k").text(), "redislock");
        server.call("DEL k").int();
        assert_eq!(server.lock_info("k"), None, "no waiter is left");
    }
}

#[test]
fn another_type_written_and_deleted_again_at_once_grants_to_the_next() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call_batch(&["MULTI", "SET k value", "DEL k", "EXEC"]);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn another_lock_restored_over_the_lock_keeps_the_waiters_waiting_for_its_holder() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE source z {LONG}")).grant();
    let payload = server.call("DUMP source").bytes();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server
        .call(&[b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"])
        .okay();
    assert_still_waits(&server, &mut waiter);
    assert_holds(&server, "z");
    assert_eq!(server.call("LOCK.RELEASE k z").int(), 1);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn a_lock_whose_lease_has_ended_restored_over_the_lock_grants_to_the_next() {
    let server = server_with_holder();
    let mut replies = server.call_batch(&["LOCK.ACQUIRE source z PX 30", "DUMP source"]);
    let payload = replies.remove(1).bytes();
    until("the lease has ended", || {
        server.call("EXISTS source").int() == 0
    });
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server
        .call(&[b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"])
        .okay();
    assert_granted(&server, &mut waiter, "b");
}

// ---- the waiter gives up, or is made to

#[test]
fn a_wait_ends_with_a_nil_when_its_time_has_passed() {
    let server = server_with_holder();
    let mut waiter = server.client();
    let start = unix_time_ms();
    waiter.send("LOCK.WAIT k b BLOCK 100");
    waiter.recv().nil();
    let waited = unix_time_ms() - start;
    assert!(waited >= 100, "gave up after {waited} ms");
    assert_eq!(server.waiters("k"), 0);
    // The waiter left the queue, so a release frees the lock.
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
    waiter.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn waits_end_in_the_order_of_their_times() {
    let server = server_with_holder();
    let mut slow = server.waiter("LOCK.WAIT k b BLOCK 3000");
    let mut fast = server.client();
    fast.send("LOCK.WAIT k c BLOCK 60");
    let mut endless = server.waiter(format!("LOCK.WAIT k d {LONG} BLOCK 0"));
    fast.recv().nil();
    assert_eq!(server.lock_info("k").unwrap().queue_tokens(), ["b", "d"]);
    slow.recv().nil();
    assert_eq!(server.lock_info("k").unwrap().queue_tokens(), ["d"]);
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut endless, "d");
}

#[test]
fn a_lease_that_ended_before_the_wait_did_is_a_grant_however_late_the_server_looks() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG} BLOCK 2000"));
    // The lease and the wait both end within the sleep.
    server.call_all(&["LOCK.EXTEND k a PX 30", "DEBUG SLEEP 2.1"]);
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn client_unblock_with_timeout_ends_a_wait_with_a_nil() {
    let server = server_with_holder();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    assert_eq!(
        server.call(format!("CLIENT UNBLOCK {}", waiter.id())).int(),
        1
    );
    waiter.recv().nil();
    until("the queue is empty", || server.waiters("k") == 0);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
    waiter.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn client_unblock_with_error_ends_a_wait_with_unblocked() {
    let server = server_with_holder();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    assert_eq!(
        server
            .call(format!("CLIENT UNBLOCK {} ERROR", waiter.id()))
            .int(),
        1
    );
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
    until("the queue is empty", || server.waiters("k") == 0);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
    // The connection stays open and may wait again.
    waiter.call(format!("LOCK.WAIT k b {LONG}")).grant();
}

#[test]
fn client_unblock_in_the_tick_of_the_grant_leaves_no_lock_without_its_holder() {
    for kind in ["TIMEOUT", "ERROR"] {
        for _ in 0..50 {
            let server = &server_with_holder();
            let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
            let unblock = format!("CLIENT UNBLOCK {} {kind}", waiter.id());
            server.call_batch(&["LOCK.RELEASE k a", &unblock]);
            match waiter.recv() {
                // The state of the lock agrees with the client's reply.
                Ok(value) => {
                    assert_eq!(Ok(value).grant().token, "b", "{kind}");
                    assert_holds(server, "b");
                }
                Err(error) => {
                    assert!(
                        kind == "ERROR" && error.starts_with("UNBLOCKED "),
                        "{kind}: {error}"
                    );
                    until("the grant is taken back", || {
                        server.lock_info("k").is_none()
                    });
                }
            }
        }
    }
}

#[test]
fn a_killed_waiter_leaves_the_queue() {
    let server = server_with_holder();
    let mut killed = server.waiter("LOCK.WAIT k b");
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(
        server.call(format!("CLIENT KILL ID {}", killed.id())).int(),
        1
    );
    killed.expect_close();
    until("the killed client has left the queue", || {
        server.lock_info("k").unwrap().queue_tokens() == ["c"]
    });
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut next, "c");
}

#[test]
fn a_dead_waiter_doesnt_hold_up_the_living() {
    for die in [Client::close, Client::reset] {
        let server = server_with_holder();
        let dying = server.waiter("LOCK.WAIT k b");
        let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
        die(dying);
        until("the dead client has left the queue", || {
            server.lock_info("k").unwrap().queue_tokens() == ["c"]
        });
        server.call("LOCK.RELEASE k a").int();
        assert_granted(&server, &mut next, "c");
    }
}

#[test]
fn the_last_waiter_that_dies_leaves_the_lock_to_anybody() {
    for die in [Client::close, Client::reset] {
        let server = server_with_holder();
        die(server.waiter("LOCK.WAIT k b"));
        server.until_waiters("k", 0);
        server.call("LOCK.RELEASE k a").int();
        assert_eq!(server.lock_info("k"), None);
        server.call("LOCK.ACQUIRE k c").grant();
    }
}

// ---- death in the very tick of the grant

/// Returns the number of rounds of a race: more in a soak than in an ordinary run.
fn race_rounds() -> usize {
    env::var("LOCK_RACE_ROUNDS").map_or(1_000, |rounds| rounds.parse().expect("a number"))
}

/// Waits for the right state after a waiter died in the tick of its grant. The lock is held by the
/// next waiter, or free if there is none. Leaves the lock free.
fn assert_passed_on(server: &Server, next: Option<Client>, round: usize) {
    match next {
        Some(mut next) => {
            assert_eq!(next.recv().grant().token, "next", "round {round}");
            assert_eq!(server.call("LOCK.RELEASE k next").int(), 1, "round {round}");
        }
        None => until(
            &format!("round {round}: the dead client's lock is free"),
            || server.lock_info("k").is_none(),
        ),
    }
    assert_eq!(server.lock_info("k"), None, "round {round}");
}

/// Returns a next waiter in every other round.
fn next_in_line(server: &Server, round: usize) -> Option<Client> {
    round
        .is_multiple_of(2)
        .then(|| server.waiter(format!("LOCK.WAIT k next {LONG}")))
}

#[test]
fn a_waiter_killed_in_the_tick_of_its_grant_doesnt_keep_the_lock() {
    let server = Server::start();
    for round in 0..race_rounds() {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut killed = server.waiter(format!("LOCK.WAIT k killed {LONG}"));
        let next = next_in_line(&server, round);
        let kill = format!("CLIENT KILL ID {}", killed.id());
        let mut replies = server.call_batch(&["LOCK.RELEASE k a", &kill]);
        assert_eq!(replies.remove(1).int(), 1, "round {round}");
        assert_eq!(replies.remove(0).int(), 1, "round {round}");
        killed.drain_to_close();
        assert_passed_on(&server, next, round);
    }
}

/// Before or after the connection is killed, the lock goes to another name. Two keys may become one.
#[test]
fn a_waiter_killed_in_the_tick_of_its_grant_doesnt_keep_a_lock_that_moves_in_that_tick() {
    for wait in ["LOCK.WAIT k w", "LOCK.MWAIT 2 k l w"] {
        for way in ["RENAME k j", "RENAME k l", "MOVE k 1", "SWAPDB 0 1"] {
            for is_moved_first in [false, true] {
                for is_transaction in [false, true] {
                    let server = server_with_holder();
                    let waiter = server.waiter(format!("{wait} {LONG}"));
                    let kill = format!("CLIENT KILL ID {}", waiter.id());
                    let mut batch = vec!["LOCK.RELEASE k a", &kill, way];
                    if is_moved_first {
                        batch.swap(1, 2);
                    }
                    if is_transaction {
                        batch.insert(0, "MULTI");
                        batch.push("EXEC");
                    }
                    server.call_all(&batch);
                    until(&format!("{wait}: {batch:?} leaves no key"), || {
                        let keys = |db| server.client().into_db(db).call("DBSIZE").int();
                        keys(0) + keys(1) == 0
                    });
                }
            }
        }
    }
}

#[test]
fn many_who_are_killed_in_the_tick_of_their_grant_keep_nothing() {
    let server = Server::start();
    for round in 0..3 {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let waiters: Vec<Client> = (0..300)
            .map(|n| {
                let mut client = server.client();
                client.send(format!("LOCK.WAIT k w{n} {LONG} SHARED"));
                client
            })
            .collect();
        server.until_waiters("k", 300);
        let replies = server.call_batch(&["LOCK.RELEASE k a", "CLIENT KILL TYPE normal"]);
        assert_eq!(replies[1].clone().int(), 300, "round {round}");
        for mut waiter in waiters {
            waiter.drain_to_close();
        }
        until(&format!("round {round}: no holder is left"), || {
            server.lock_info("k").is_none()
        });
    }
}

#[test]
fn a_waiter_that_hangs_up_in_the_tick_of_its_grant_keeps_the_lock_only_if_it_was_told() {
    let server = Server::start();
    let mut releaser = server.client();
    let mut sleeper = server.client();
    let mut untold = 0;
    for round in 0..(race_rounds() / 20).max(4) {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut dying = server.waiter(format!("LOCK.WAIT k dying {LONG}"));
        let next = next_in_line(&server, round);
        // The release and the hang-up both arrive while the server sleeps. The server mostly reads
        // them in the same pass of its loop.
        sleeper.send("DEBUG SLEEP 0.01");
        releaser.send("LOCK.RELEASE k a");
        dying.hang_up();
        sleeper.recv().okay();
        assert_eq!(releaser.recv().int(), 1, "round {round}");
        match dying.replies_to_close().pop() {
            None => untold += 1,
            Some(grant) => {
                assert_eq!(grant.grant().token, "dying", "round {round}");
                assert_eq!(
                    server.call("LOCK.RELEASE k dying").int(),
                    1,
                    "round {round}"
                );
            }
        }
        assert_passed_on(&server, next, round);
    }
    assert!(untold > 0, "no round had the end in the tick of the grant");
}

#[test]
fn a_waiter_that_hangs_up_once_it_has_its_answer_keeps_the_lock() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let id = waiter.id();
    server.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    waiter.close();
    until("the connection is gone", || !server.is_connected(id));
    server.settle();
    assert_holds(&server, "b");
}

/// Commands that a client sends after its wait and that close its connection, with the number of
/// their replies. `#` stands for the client's id.
const FAREWELLS: [(&str, usize); 3] = [
    ("*1\r\n$4\r\nQUIT\r\n", 1),
    ("*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", 2),
    ("PING\r\nCLIENT KILL ID # SKIPME no\r\n", 2),
];

/// Commands that hand `k` over to the first waiter, each list in one pass of the server's loop.
const HAND_OVERS: [&[&str]; 5] = [
    &["LOCK.RELEASE k a"],
    &["DEL k"],
    &["LOCK.EXTEND k a PX 20"],
    &["FLUSHALL"],
    &["MULTI", "LOCK.RELEASE k a", "EXEC"],
];

#[test]
fn a_waiter_that_reads_its_grant_and_quits_keeps_the_lock() {
    for (farewell, replies) in FAREWELLS {
        for hand_over in HAND_OVERS {
            let server = server_with_holder();
            let mut waiter = server.client();
            let id = waiter.id();
            let mut bytes = packed(format!("LOCK.WAIT k b {LONG}"));
            bytes.extend_from_slice(farewell.replace('#', &id.to_string()).as_bytes());
            waiter.send_bytes(&bytes);
            server.until_waiters("k", 1);
            server.call_all(hand_over);
            assert_eq!(waiter.recv().grant().token, "b");
            assert_eq!(waiter.replies_to_close().len(), replies, "{farewell:?}");
            until("the connection is gone", || !server.is_connected(id));
            server.settle();
            assert_holds(&server, "b");
            assert_eq!(server.info("lock", "lock_take_backs"), "0");
        }
    }
}

#[test]
fn a_session_that_is_granted_to_a_client_that_quits_ends_as_it_does() {
    let server = server_with_holder();
    let mut waiter = server.client();
    waiter.send_batch(&[&format!("LOCK.WAIT k b {LONG} SESSION"), "QUIT"]);
    server.until_waiters("k", 1);
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    waiter.recv().okay();
    assert_eq!(next.recv().grant().token, "c");
}

#[test]
fn a_waiter_whose_connection_was_reset_before_it_could_read_its_grant_doesnt_keep_the_lock() {
    for round in 0..10 {
        let server = server_with_holder();
        let mut releaser = server.client();
        let dying = server.waiter(format!("LOCK.WAIT k dying {LONG}"));
        let mut next = server.waiter(format!("LOCK.WAIT k next {LONG}"));
        // The release and the RST are both in the server's sockets before it reads either.
        server.freeze();
        releaser.send("LOCK.RELEASE k a");
        let ends = dying.ends();
        dying.reset();
        // On a busy machine the RST takes a moment to arrive. The server could still reply before.
        until("the RST has arrived", || {
            ends.of_server().is_none_or(|end| !end.is_established)
        });
        server.thaw();
        assert_eq!(releaser.recv().int(), 1, "round {round}");
        assert_eq!(next.recv().grant().token, "next", "round {round}");
        assert_holds(&server, "next");
    }
}

// ---- the server changes its role, or pauses

#[test]
fn a_demoted_server_sends_its_waiters_away() {
    let server = server_with_holder();
    let mut waiters = [
        server.waiter("LOCK.WAIT k b"),
        server.waiter("LOCK.WAIT k c BLOCK 60000"),
    ];
    server.call("REPLICAOF 127.0.0.1 1").okay();
    for waiter in &mut waiters {
        let error = waiter.recv().error();
        assert!(error.starts_with("UNBLOCKED "), "{error}");
    }
    assert_holds(&server, "a");
    server.call("REPLICAOF NO ONE").okay();
    until("no waiter is left", || server.waiters("k") == 0);
    // The waiters that were sent away aren't granted the lock later.
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(server.lock_info("k"), None);
    server.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn nothing_is_granted_while_writes_are_paused() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call_all(&["LOCK.EXTEND k a PX 30", "CLIENT PAUSE 600000 WRITE"]);
    let paused_ms = unix_time_ms();
    let info = eventually("the lease ended a while ago", || {
        let info = server.lock_info("k")?;
        let long_ago = unix_time_ms() >= paused_ms + 150;
        (info.holders.is_empty() && long_ago).then_some(info)
    });
    waiter.expect_silence();
    assert_eq!(info.mode, "free");
    assert_eq!(
        (info.holders.len(), info.queue_tokens()),
        (0, vec!["b".to_owned()])
    );
    server.call("CLIENT UNPAUSE").okay();
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn nothing_is_granted_while_all_clients_are_paused() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let start = unix_time_ms();
    server.call_all(&["LOCK.EXTEND k a PX 30", "CLIENT PAUSE 500 ALL"]);
    assert_eq!(waiter.recv().grant().token, "b");
    let paused = unix_time_ms() - start;
    assert!(paused >= 500, "granted after {paused} ms, in the pause");
    assert_holds(&server, "b");
}

#[test]
fn a_deletion_is_granted_upon_after_the_pause() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    // The pause begins in the pass of the loop that deletes the key.
    server.call_batch(&["DEL k", "CLIENT PAUSE 600000 WRITE"]);
    server.settle();
    server.call("CLIENT UNPAUSE").okay();
    assert_granted(&server, &mut waiter, "b");
}

// ---- order, positions and leases

#[test]
fn waiters_are_served_in_the_order_in_which_they_came() {
    let server = server_with_holder();
    let mut waiters: Vec<Client> = (0..20)
        .map(|n| server.waiter(format!("LOCK.WAIT k w{n} {LONG}")))
        .collect();
    assert_eq!(server.waiters("k"), 20);
    server.call("LOCK.RELEASE k a").int();
    let mut last_fence = 0;
    for n in 0..waiters.len() {
        let grant = waiters[n].recv().grant();
        assert_eq!(grant.token, format!("w{n}"));
        assert!(
            grant.fence > last_fence,
            "{} after {last_fence}",
            grant.fence
        );
        last_fence = grant.fence;
        assert_eq!(server.waiters("k"), 19 - n as i64);
        if let Some(next) = waiters.get_mut(n + 1) {
            next.expect_silence();
        }
        assert_eq!(server.call(format!("LOCK.RELEASE k w{n}")).int(), 1);
    }
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn every_key_has_a_queue_of_its_own() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE k2 a {LONG}")).grant();
    let mut first = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut second = server.waiter(format!("LOCK.WAIT k2 b {LONG}"));
    server.call("LOCK.RELEASE k2 a").int();
    assert_eq!(second.recv().grant().token, "b");
    assert_still_waits(&server, &mut first);
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut first, "b");
}

#[test]
fn the_same_key_in_another_database_is_another_lock() {
    let server = server_with_holder();
    let mut there = server.client().into_db(1);
    there.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(there.call("LOCK.RELEASE k a").int(), 1);
    assert_still_waits(&server, &mut waiter);
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn the_same_token_from_a_new_connection_takes_over_the_position() {
    let server = server_with_holder();
    let mut old = server.waiter("LOCK.WAIT k b PX 500000");
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    until("some time has been waited", || {
        server.lock_info("k").unwrap().queue[0].int("waiting-ms") >= 30
    });
    let mut new = server.waiter("LOCK.WAIT k b PX 60000 BLOCK 50000");
    let error = old.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
    let info = server.lock_info("k").unwrap();
    assert_eq!(info.queue_tokens(), ["b", "c"]);
    assert_eq!(info.queue[0].int("client-id"), new.id());
    assert!(
        info.queue[0].int("waiting-ms") >= 30,
        "the time goes on counting"
    );
    assert!((1..=50_000).contains(&info.queue[0].int("timeout-ms")));
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut new, "b");
    let lease = server.call("LOCK.CHECK k b").int();
    assert!(lease <= 60_000, "the newer wait's own lease, not {lease}");
    behind.expect_silence();
    // The old connection is free for other work.
    assert_eq!(old.call("PING").text(), "PONG");
    server.call("LOCK.RELEASE k b").int();
    assert_granted(&server, &mut behind, "c");
}

#[test]
fn a_position_taken_over_has_the_new_ones_timeout() {
    let server = server_with_holder();
    let mut old = server.waiter("LOCK.WAIT k b BLOCK 2000");
    let mut new = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert!(old.recv().error().starts_with("UNBLOCKED "));
    // A second waiter's later timeout shows that the old wait's timeout has passed.
    let mut hasty = server.client();
    hasty.call("LOCK.WAIT k c BLOCK 2000").nil();
    assert_still_waits(&server, &mut new);
    let mut newest = server.client();
    newest.send("LOCK.WAIT k b BLOCK 50");
    assert!(new.recv().error().starts_with("UNBLOCKED "));
    newest.recv().nil();
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn the_death_of_the_old_connection_leaves_the_position_to_the_new_one() {
    let server = server_with_holder();
    let old = server.waiter("LOCK.WAIT k b");
    let old_id = old.id();
    let mut new = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    old.reset();
    until("the old connection is gone", || {
        !server.is_connected(old_id)
    });
    assert_still_waits(&server, &mut new);
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut new, "b");
}

#[test]
fn the_holder_that_waits_again_is_granted_at_once_and_nobody_else() {
    let server = Server::start();
    let first = server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(
        server
            .client()
            .call(format!("LOCK.WAIT k a {LONG}"))
            .grant(),
        first
    );
    assert_still_waits(&server, &mut waiter);
}

#[test]
fn a_lease_counts_from_the_grant() {
    let server = server_with_holder();
    let mut waiter = server.waiter("LOCK.WAIT k b PX 5000");
    until("some time has been waited", || {
        server.lock_info("k").unwrap().queue[0].int("waiting-ms") >= 200
    });
    let mut replies = server.call_batch(&["LOCK.RELEASE k a", "LOCK.CHECK k b"]);
    let lease = replies.remove(1).int();
    assert!(
        (4_900..=5_000).contains(&lease),
        "{lease} ms left right after the grant"
    );
    assert_granted(&server, &mut waiter, "b");
}

#[test]
fn a_wait_without_a_lease_gets_the_default_lease() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.default-lease 7000").okay();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut waiter, "b");
    assert!((5_000..=7_000).contains(&server.call("LOCK.CHECK k b").int()));
}

#[test]
fn a_random_token_is_made_for_a_waiter() {
    let server = server_with_holder();
    let mut waiters = [
        server.waiter("LOCK.WAIT k *"),
        server.waiter("LOCK.WAIT k *"),
    ];
    // Two waiters that request a random token don't take over each other's position.
    assert_eq!(server.waiters("k"), 2);
    server.call("LOCK.RELEASE k a").int();
    let first = waiters[0].recv().grant().token;
    assert_eq!(first.len(), 32);
    assert_holds(&server, &first);
    server.call(&["LOCK.RELEASE", "k", &first]).int();
    assert_ne!(waiters[1].recv().grant().token, first);
}

#[test]
fn a_reentrant_wait_that_is_granted_has_one_hold() {
    let server = server_with_holder();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    let mut waiter = server.waiter("LOCK.WAIT k b REENTRANT");
    server.call("LOCK.RELEASE k a ALL").int();
    assert_granted(&server, &mut waiter, "b");
    assert_eq!(server.lock_info("k").unwrap().holder().int("holds"), 1);
}

#[test]
fn no_more_clients_wait_than_max_waiters() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-waiters 2").okay();
    server.call(format!("LOCK.ACQUIRE k2 a {LONG}")).grant();
    let mut first = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let second = server.waiter(format!("LOCK.WAIT k2 c {LONG}"));
    for key in ["k", "k2"] {
        let error = server.call(&["LOCK.WAIT", key, "d"]).error();
        assert!(error.starts_with("MAXWAITERS"), "{error}");
    }
    // A request that needs no new position passes: a grant, a repeat, a take-over.
    server.call("LOCK.WAIT k3 d").grant();
    server.call(format!("LOCK.WAIT k a {LONG}")).grant();
    let mut taker = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert!(first.recv().error().starts_with("UNBLOCKED "));
    // A waiter that leaves makes room.
    second.close();
    server.until_waiters("k2", 0);
    let mut third = server.waiter(format!("LOCK.WAIT k d {LONG}"));
    server.call("CONFIG SET lock.max-waiters 0").okay();
    let _fourth = server.waiter(format!("LOCK.WAIT k e {LONG}"));
    server.call("LOCK.RELEASE k a").int();
    assert_granted(&server, &mut taker, "b");
    server.call("LOCK.RELEASE k b").int();
    assert_granted(&server, &mut third, "d");
}

// ---- from practice

#[test]
fn one_customer_gives_up_and_the_next_gets_the_product() {
    let server = Server::start();
    let key = "product:10100101:shopping";
    let mut holder = server.client();
    let first = holder
        .call(format!("LOCK.ACQUIRE {key} first {LONG}"))
        .grant();
    let mut second = server.client();
    second
        .call(format!("LOCK.WAIT {key} second {LONG} BLOCK 100"))
        .nil();
    assert!(
        holder.call(format!("LOCK.CHECK {key} first")).int() > 0,
        "still the first customer's"
    );
    let mut third = server.waiter(format!("LOCK.WAIT {key} third {LONG} BLOCK 600000"));
    assert_eq!(holder.call(format!("LOCK.RELEASE {key} first")).int(), 1);
    let grant = third.recv().grant();
    assert_eq!(grant.token, "third");
    assert!(grant.fence > first.fence);
    let info = server.lock_info(key).unwrap();
    assert_eq!(
        (info.holder_tokens(), info.waiters),
        (vec!["third".to_owned()], 0)
    );
}
