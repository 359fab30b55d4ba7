//! Several keys under one token: the server grants all of them or none.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use support::history::{no_writer_overlaps, Hold, Mode};
use support::load::{soak_time, Dice};
use support::{unix_time_ms, until, Client, Expect, Grant, Server, LONG, PATIENCE, WRONGTYPE};

/// Acquires one key.
#[track_caller]
fn take(server: &Server, key: &str, token: &str) -> Grant {
    server
        .call(format!("LOCK.ACQUIRE {key} {token} {LONG}"))
        .grant()
}

#[track_caller]
fn release(server: &Server, key: &str, token: &str) {
    assert_eq!(server.call(format!("LOCK.RELEASE {key} {token}")).int(), 1);
}

/// Starts a client that waits for all of `keys`.
fn waiter(server: &Server, keys: &[&str], token: &str) -> Client {
    let (count, keys) = (keys.len(), keys.join(" "));
    server.waiter(format!("LOCK.MWAIT {count} {keys} {token} {LONG}"))
}

/// Asserts that the grant's token holds `key` alone, with the grant's fence.
#[track_caller]
fn assert_held(server: &Server, key: &str, grant: &Grant) {
    let info = server.known_lock(key);
    assert_eq!(info.holder_tokens(), [grant.token.as_str()], "{key}");
    assert_eq!(info.holder().int("fence"), grant.fence, "{key}");
}

#[track_caller]
fn assert_free(server: &Server, keys: &[&str]) {
    for key in keys {
        assert_eq!(server.lock_info(key), None, "{key}");
        assert_eq!(server.call(&["EXISTS", key]).int(), 0, "{key}");
    }
}

#[track_caller]
fn assert_queue(server: &Server, key: &str, queue: &[&str]) {
    assert_eq!(server.known_lock(key).queue_tokens(), queue, "{key}");
}

// ---- a token that becomes the holder of one of its keys without a command of the module

/// Ways to make `t` the holder of `k1` while another token holds it and a third token waits for it.
/// MOVE is not among them, because it needs a target database without the key.
const WAYS_TO_HOLD: [&str; 4] = ["RENAME", "SWAPDB", "RESTORE", "RESTORE, then RELOAD"];

#[track_caller]
fn come_to_hold(server: &Server, way: &str) {
    match way {
        "RENAME" => {
            take(server, "from", "t");
            server.call("RENAME from k1").okay();
        }
        "SWAPDB" => {
            let mut other = server.client();
            other.call("SELECT 1").okay();
            other.call(format!("LOCK.ACQUIRE k1 t {LONG}")).grant();
            other.call("SWAPDB 0 1").okay();
        }
        _ => {
            take(server, "from", "t");
            let dump = server.call("DUMP from").bytes();
            let restore = [b"RESTORE".as_slice(), b"k1", b"0", &dump, b"REPLACE"];
            server.call(&restore).okay();
            if way == "RESTORE, then RELOAD" {
                server.call("DEBUG RELOAD").okay();
            }
        }
    }
}

#[test]
fn a_token_that_comes_to_hold_a_key_needs_no_turn_there_whichever_way_it_came() {
    for way in WAYS_TO_HOLD {
        let server = Server::start();
        take(&server, "k1", "x");
        let _first = server.waiter(format!("LOCK.WAIT k1 t5 {LONG}"));
        let mut both = waiter(&server, &["k1", "k2"], "t");
        come_to_hold(&server, way);
        assert_eq!(both.recv().grant().token, "t", "{way}");
        server.call(format!("LOCK.ACQUIRE k2 zz {LONG}")).nil();
    }
}

// ---- all or none

#[test]
fn macquire_gives_all_keys_or_none() {
    let server = Server::start();
    take(&server, "k2", "a");
    server.call("LOCK.MACQUIRE 3 k1 k2 k3 t").nil();
    assert_free(&server, &["k1", "k3"]);
    release(&server, "k2", "a");
    let grant = server
        .call(format!("LOCK.MACQUIRE 3 k3 k1 k2 t {LONG}"))
        .grant();
    assert_eq!(grant.token, "t");
    for key in ["k1", "k2", "k3"] {
        assert_held(&server, key, &grant);
        assert!(server.call(format!("LOCK.CHECK {key} t")).int() > 500_000);
        server.call(format!("LOCK.ACQUIRE {key} b")).nil();
    }
    assert_free(&server, &["k4"]);
}

#[test]
fn macquire_gives_no_key_that_others_wait_for() {
    let server = Server::start();
    take(&server, "k1", "a");
    let _waiter = waiter(&server, &["k1", "k2"], "b");
    // k2 is free, but b is first in its queue.
    server.call("LOCK.MACQUIRE 2 k2 k3 t").nil();
    server.call("LOCK.ACQUIRE k2 t").nil();
    assert_free(&server, &["k3"]);
}

#[test]
fn one_fence_for_all_keys_is_kept_when_all_are_held_under_one_already() {
    let server = Server::start();
    let first = server
        .call(format!("LOCK.MACQUIRE 2 k1 k2 t {LONG}"))
        .grant();
    for repeat in [
        "LOCK.MACQUIRE 2 k1 k2 t",
        "LOCK.MACQUIRE 2 k2 k1 t",
        "LOCK.MWAIT 2 k2 k1 t",
        "LOCK.MACQUIRE 1 k2 t",
        "LOCK.ACQUIRE k1 t",
        "LOCK.WAIT k2 t",
    ] {
        let again = server.call(format!("{repeat} {LONG}")).grant();
        assert_eq!(again, first, "{repeat}");
    }
    // With one more key, all keys get a new fence.
    let more = server
        .call(format!("LOCK.MACQUIRE 3 k1 k2 k3 t {LONG}"))
        .grant();
    assert!(more.fence > first.fence);
    for key in ["k1", "k2", "k3"] {
        assert_held(&server, key, &more);
        assert!(server.known_lock(key).holder().int("held-ms") < 10_000);
    }
    // The token holds both keys, but under two fences.
    let apart = take(&server, "k4", "t");
    let joined = server
        .call(format!("LOCK.MACQUIRE 2 k4 k1 t {LONG}"))
        .grant();
    assert!(joined.fence > apart.fence);
    assert_held(&server, "k4", &joined);
    assert_held(&server, "k1", &joined);
    assert_held(&server, "k2", &more);
}

#[test]
fn a_star_draws_one_token_for_all_keys() {
    let server = Server::start();
    let grant = server
        .call(format!("LOCK.MACQUIRE 2 k1 k2 * {LONG}"))
        .grant();
    assert_eq!(grant.token.len(), 32);
    assert_held(&server, "k1", &grant);
    assert_held(&server, "k2", &grant);
    assert_eq!(
        server
            .call(&["LOCK.MRELEASE", "2", "k1", "k2", &grant.token])
            .int(),
        2
    );
    for command in ["LOCK.MEXTEND", "LOCK.MRELEASE"] {
        let error = server.call(format!("{command} 2 k1 k2 *")).error();
        assert!(error.starts_with("ERR '*' "), "{error}");
    }
}

#[test]
fn several_keys_are_shared_or_counted_like_one() {
    let server = Server::start();
    let acquire =
        |keys: &str, token: &str, mode: &str| server.call(format!("LOCK.{keys} {token} {mode}"));
    acquire("MACQUIRE 2 k1 k2", "a", "SHARED LIMIT 2").grant();
    acquire("MACQUIRE 2 k2 k3", "b", "SHARED LIMIT 2").grant();
    acquire("MACQUIRE 2 k1 k2", "c", "SHARED LIMIT 2").nil();
    acquire("MACQUIRE 2 k1 k3", "c", "SHARED LIMIT 2").grant();
    acquire("MACQUIRE 2 k1 k3", "c", "").nil();
    for (key, holders) in [("k1", ["a", "c"]), ("k2", ["a", "b"]), ("k3", ["b", "c"])] {
        let info = server.known_lock(key);
        assert_eq!((info.mode.as_str(), info.holders.len()), ("shared", 2));
        let mut tokens = info.holder_tokens();
        tokens.sort_unstable();
        assert_eq!(tokens, holders, "{key}");
    }
    // A conversion of several keys at once.
    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 b").int(), 2);
    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 a").int(), 2);
    let up = acquire("MACQUIRE 2 k1 k3", "c", "").grant();
    assert_held(&server, "k1", &up);
    assert_eq!(server.known_lock("k3").mode, "exclusive");
    let down = acquire("MACQUIRE 2 k1 k3", "c", "SHARED").grant();
    assert_eq!(
        (down, server.known_lock("k1").mode.as_str()),
        (up, "shared")
    );
}

#[test]
fn a_key_named_twice_is_an_error_and_changes_nothing() {
    let server = Server::start();
    take(&server, "k1", "t");
    for command in [
        "LOCK.MACQUIRE 2 k2 k2 t",
        "LOCK.MWAIT 3 k2 k3 k2 t BLOCK 10",
        "LOCK.MEXTEND 2 k1 k1 t PX 5",
        "LOCK.MRELEASE 3 k1 k3 k1 t",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("ERR duplicate key"), "{command}: {error}");
    }
    assert_free(&server, &["k2", "k3"]);
    assert!(server.call("LOCK.CHECK k1 t").int() > 500_000);
}

#[test]
fn a_key_of_another_type_refuses_all_of_them() {
    let server = Server::start();
    server.call("SET text value").okay();
    take(&server, "k1", "t");
    for command in [
        "LOCK.MACQUIRE 2 k2 text t",
        "LOCK.MWAIT 2 text k2 t BLOCK 10",
        "LOCK.MEXTEND 2 k1 text t PX 5",
        "LOCK.MRELEASE 2 k1 text t",
    ] {
        assert_eq!(server.call(command).error(), WRONGTYPE, "{command}");
    }
    assert_free(&server, &["k2"]);
    assert!(server.call("LOCK.CHECK k1 t").int() > 500_000);
    assert_eq!(server.call("GET text").text(), "value");
}

// ---- extending and releasing

#[test]
fn mextend_sets_the_lease_of_all_keys_or_of_none() {
    let server = Server::start();
    server.call("LOCK.MACQUIRE 2 k1 k2 t PX 100000").grant();
    take(&server, "k3", "other");
    let left_ms = |key: &str| server.call(format!("LOCK.CHECK {key} t")).int();
    assert_eq!(server.call("LOCK.MEXTEND 3 k1 k2 k3 t PX 900000").int(), 0);
    assert_eq!(server.call("LOCK.MEXTEND 3 k1 k2 k4 t PX 900000").int(), 0);
    assert!(left_ms("k1") <= 100_000 && left_ms("k2") <= 100_000);
    assert_eq!(server.call("LOCK.MEXTEND 2 k2 k1 t PX 900000").int(), 2);
    assert!(left_ms("k1") > 800_000 && left_ms("k2") > 800_000);
    assert_eq!(server.call("LOCK.MEXTEND 1 k1 t PX 50000").int(), 1);
    assert!(left_ms("k1") <= 50_000 && left_ms("k2") > 800_000);
    // k1's lease has expired, so MEXTEND extends neither key.
    server.call("LOCK.MEXTEND 1 k1 t PX 1").int();
    until("k1's lease has ended", || left_ms("k1") == 0);
    assert_eq!(server.call("LOCK.MEXTEND 2 k1 k2 t PX 5000").int(), 0);
    assert!(left_ms("k2") > 800_000);
    assert_free(&server, &["k4"]);
}

#[test]
fn mrelease_gives_up_those_that_the_token_holds() {
    let server = Server::start();
    server.call("LOCK.MACQUIRE 2 k1 k2 t PX 600000").grant();
    let other = take(&server, "k3", "other");
    assert_eq!(server.call("LOCK.MRELEASE 3 k2 k3 k4 t").int(), 1);
    assert_free(&server, &["k2", "k4"]);
    assert_held(&server, "k3", &other);
    assert!(server.call("LOCK.CHECK k1 t").int() > 0);
    assert_eq!(server.call("LOCK.MRELEASE 2 k2 k3 t").int(), 0);
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 t").int(), 1);
    assert_free(&server, &["k1"]);
}

#[test]
fn mrelease_counts_the_keys_that_lost_a_hold() {
    let server = Server::start();
    for keys in ["3 k1 k2 k3", "2 k1 k2", "1 k1"] {
        server
            .call(format!("LOCK.MACQUIRE {keys} t {LONG} REENTRANT"))
            .grant();
    }
    let holds = || -> Vec<i64> {
        let locks = ["k1", "k2", "k3"].map(|key| server.lock_info(key));
        let holds = locks.iter().flatten().map(|it| it.holder().int("holds"));
        holds.collect()
    };
    assert_eq!(holds(), [3, 2, 1]);
    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 t").int(), 3);
    assert_eq!(holds(), [2, 1]);
    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 t").int(), 2);
    assert_eq!(holds(), [1]);
    server.call("LOCK.MACQUIRE 2 k1 k2 t REENTRANT").grant();
    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 t ALL").int(), 2);
    assert_free(&server, &["k1", "k2", "k3"]);
}

#[test]
fn mrelease_grants_to_the_next_of_each_key() {
    let server = Server::start();
    server.call("LOCK.MACQUIRE 3 k1 k2 k3 t PX 600000").grant();
    let mut single = waiter(&server, &["k1"], "a");
    let mut several = waiter(&server, &["k2", "k3"], "b");
    let mut behind = waiter(&server, &["k1", "k3"], "c");
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 t").int(), 2);
    assert_held(&server, "k1", &single.recv().grant());
    several.expect_silence();
    release(&server, "k3", "t");
    let grant = several.recv().grant();
    assert_held(&server, "k2", &grant);
    assert_held(&server, "k3", &grant);
    release(&server, "k1", "a");
    behind.expect_silence();
    assert_eq!(server.call("LOCK.MRELEASE 2 k2 k3 b").int(), 2);
    assert_held(&server, "k3", &behind.recv().grant());
}

// ---- waiting

#[test]
fn mwait_stands_in_every_queue_and_is_granted_when_first_in_all() {
    let server = Server::start();
    take(&server, "k1", "a");
    take(&server, "k2", "b");
    let mut ahead = waiter(&server, &["k2"], "c");
    let mut both = waiter(&server, &["k1", "k2"], "t");
    assert_queue(&server, "k1", &["t"]);
    assert_queue(&server, "k2", &["c", "t"]);
    release(&server, "k1", "a");
    // k1 is free now, and no other token overtakes t in its queue.
    let free = server.known_lock("k1");
    assert_eq!((free.mode.as_str(), free.waiters), ("free", 1));
    server.call("LOCK.ACQUIRE k1 z").nil();
    let mut behind = waiter(&server, &["k1"], "d");
    release(&server, "k2", "b");
    ahead.recv().grant();
    both.expect_silence();
    assert_queue(&server, "k1", &["t", "d"]);
    release(&server, "k2", "c");
    let grant = both.recv().grant();
    assert_held(&server, "k1", &grant);
    assert_held(&server, "k2", &grant);
    behind.expect_silence();
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 t").int(), 2);
    assert_held(&server, "k1", &behind.recv().grant());
    assert_free(&server, &["k2"]);
}

#[test]
fn mwait_is_granted_by_the_end_of_a_lease_on_any_of_its_keys() {
    let server = Server::start();
    for last in ["k1", "k2", "k3"] {
        let start = unix_time_ms();
        for key in ["k1", "k2", "k3"] {
            let lease_ms = if key == last { 80 } else { 30 };
            let acquire = format!("LOCK.ACQUIRE {key} a PX {lease_ms}");
            server.call(acquire).grant();
        }
        let grant = server
            .client()
            .call(format!("LOCK.MWAIT 3 k3 k2 k1 t {LONG}"))
            .grant();
        let waited = unix_time_ms() - start;
        assert!(waited >= 80, "granted after {waited} ms, within a lease");
        for key in ["k1", "k2", "k3"] {
            assert_held(&server, key, &grant);
        }
        server.call("LOCK.MRELEASE 3 k1 k2 k3 t").int();
    }
}

#[test]
fn mwait_is_granted_when_its_keys_are_deleted() {
    let server = Server::start();
    take(&server, "k1", "a");
    take(&server, "k2", "b");
    let mut both = waiter(&server, &["k1", "k2"], "t");
    server.call("DEL k1").int();
    server.settle();
    both.expect_silence();
    server.call("RENAME k2 elsewhere").okay();
    let grant = both.recv().grant();
    assert_held(&server, "k1", &grant);
    assert_held(&server, "k2", &grant);
    let mut next = waiter(&server, &["k2", "k1"], "u");
    server.call("FLUSHALL").okay();
    assert_held(&server, "k1", &next.recv().grant());
}

#[test]
fn no_order_of_keys_makes_two_waits_wait_for_each_other() {
    for keys in [
        [["k1", "k2"], ["k2", "k1"], ["k1", "k2"]],
        [["k1", "k2"], ["k2", "k3"], ["k3", "k1"]],
        [["k3", "k1"], ["k1", "k2"], ["k2", "k3"]],
    ] {
        let server = Server::start();
        server.call("LOCK.MACQUIRE 3 k1 k2 k3 z PX 600000").grant();
        let tokens = ["a", "b", "c"];
        let mut waiters: Vec<Client> = tokens
            .iter()
            .zip(&keys)
            .map(|(token, keys)| waiter(&server, keys, token))
            .collect();
        // The keys are released one by one, so a wrong wait could take them piece by piece.
        for key in ["k2", "k1", "k3"] {
            release(&server, key, "z");
        }
        for ((waiter, keys), token) in waiters.iter_mut().zip(&keys).zip(tokens) {
            let grant = waiter.recv().grant();
            assert_eq!(grant.token, token);
            let [one, other] = keys;
            assert_held(&server, one, &grant);
            assert_held(&server, other, &grant);
            let mrelease = format!("LOCK.MRELEASE 2 {one} {other} {token}");
            assert_eq!(server.call(mrelease).int(), 2);
        }
        assert_free(&server, &["k1", "k2", "k3"]);
    }
}

#[test]
fn a_wait_that_ends_leaves_all_queues_and_the_next_ones_move() {
    type Leave = fn(&Server, &str, Client);
    let ways: [(&str, &str, Leave); 6] = [
        ("FIN", "", |_, _, client| client.close()),
        ("RST", "", |_, _, client| client.reset()),
        ("CLIENT KILL", "", |server, _, mut client| {
            let kill = format!("CLIENT KILL ID {}", client.id());
            assert_eq!(server.call(kill).int(), 1);
            client.expect_close();
        }),
        ("CLIENT UNBLOCK", "", |server, _, mut client| {
            server.call(format!("CLIENT UNBLOCK {}", client.id())).int();
            client.recv().nil();
        }),
        ("its BLOCK ends", "BLOCK 1000", |_, _, mut client| {
            client.recv().nil();
        }),
        ("another type", "", |server, key, mut client| {
            // This overwrites a lock without other waiters.
            server.call(&["SET", key, "value"]).okay();
            assert_eq!(client.recv().error(), WRONGTYPE);
        }),
    ];
    for (way, block, leave) in ways {
        let server = Server::start();
        take(&server, "k1", "a");
        take(&server, "own", "z");
        let mut leaving = server.waiter(format!("LOCK.MWAIT 4 k1 k2 k3 own t {LONG} {block}"));
        let mut second = waiter(&server, &["k2"], "b");
        let mut third = waiter(&server, &["k3", "k4"], "c");
        let mut fourth = waiter(&server, &["k1"], "d");
        for client in [&mut leaving, &mut second, &mut third, &mut fourth] {
            client.expect_silence();
        }
        leave(&server, "own", leaving);
        // Both are granted at once, because no waiter is ahead of them now. k1 stays held.
        let grant = second.recv().grant();
        assert_held(&server, "k2", &grant);
        let grant = third.recv().grant();
        assert_held(&server, "k3", &grant);
        assert_held(&server, "k4", &grant);
        assert_queue(&server, "k1", &["d"]);
        fourth.expect_silence();
        release(&server, "k1", "a");
        assert_held(&server, "k1", &fourth.recv().grant());
        assert_eq!(server.info("lock", "lock_waiters"), "0", "{way}");
    }
}

#[test]
fn a_wait_for_several_keys_that_dies_in_the_tick_of_its_grant_leaves_them_all() {
    let server = Server::start();
    for round in 0..200 {
        server.call("LOCK.MACQUIRE 2 k1 k2 a PX 600000").grant();
        let mut killed = waiter(&server, &["k1", "k2"], "killed");
        let mut next = waiter(&server, &["k2"], "next");
        let kill = format!("CLIENT KILL ID {}", killed.id());
        server.call_batch(&["LOCK.MRELEASE 2 k1 k2 a", &kill]);
        killed.replies_to_close();
        assert_held(&server, "k2", &next.recv().grant());
        until("the killed client's other key is free", || {
            server.lock_info("k1").is_none()
        });
        assert_eq!(server.call("LOCK.RELEASE k2 next").int(), 1, "{round}");
    }
}

#[test]
fn a_wait_that_dies_in_the_tick_of_its_grant_leaves_what_its_token_held_before() {
    let server = Server::start();
    for round in 0..50 {
        let own = take(&server, "k1", "t");
        take(&server, "k2", "a");
        let mut killed = waiter(&server, &["k1", "k2"], "t");
        let kill = format!("CLIENT KILL ID {}", killed.id());
        server.call_batch(&["LOCK.RELEASE k2 a", &kill]);
        killed.replies_to_close();
        until("the other key is free", || server.lock_info("k2").is_none());
        assert_held(&server, "k1", &own);
        assert_eq!(server.call("LOCK.RELEASE k1 t").int(), 1, "round {round}");
    }
}

#[test]
fn a_holder_of_some_of_the_keys_waits_for_the_others() {
    let server = Server::start();
    let own = take(&server, "k1", "t");
    take(&server, "k2", "a");
    let mut other = waiter(&server, &["k1"], "b");
    let mut both = waiter(&server, &["k1", "k2"], "t");
    assert_held(&server, "k1", &own);
    // A token needs no turn at a key that it holds. Otherwise t would wait for b, and b for t.
    release(&server, "k2", "a");
    let grant = both.recv().grant();
    assert!(grant.fence > own.fence);
    assert_held(&server, "k1", &grant);
    assert_held(&server, "k2", &grant);
    other.expect_silence();
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 t").int(), 2);
    assert_held(&server, "k1", &other.recv().grant());
}

#[test]
fn shared_waits_for_several_keys_are_granted_together() {
    let server = Server::start();
    server.call("LOCK.MACQUIRE 2 k1 k2 x PX 600000").grant();
    let shared = |keys: &str, token: &str| {
        server.waiter(format!("LOCK.MWAIT {keys} {token} {LONG} SHARED LIMIT 2"))
    };
    let mut readers = [shared("2 k1 k2", "a"), shared("2 k2 k3", "b")];
    let mut third = shared("2 k1 k2", "c");
    let mut writer = waiter(&server, &["k1", "k3"], "w");
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 x").int(), 2);
    for (reader, token) in readers.iter_mut().zip(["a", "b"]) {
        assert_eq!(reader.recv().grant().token, token);
    }
    third.expect_silence();
    assert_queue(&server, "k1", &["c", "w"]);
    assert_eq!(server.call("LOCK.MRELEASE 2 k2 k3 b").int(), 2);
    assert_eq!(third.recv().grant().token, "c");
    writer.expect_silence();
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 a").int(), 2);
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 c").int(), 2);
    assert_held(&server, "k1", &writer.recv().grant());
}

#[test]
fn mwait_acts_as_macquire_where_it_may_not_block() {
    let server = Server::start();
    take(&server, "k1", "a");
    let script = "return redis.call('LOCK.MWAIT', 2, KEYS[1], KEYS[2], 't', 'PX', '600000')";
    server.call(&["EVAL", script, "2", "k1", "k2"]).nil();
    assert_free(&server, &["k2"]);
    let replies = server.call_batch(&[
        "MULTI",
        "LOCK.MWAIT 2 k1 k2 t",
        "LOCK.MWAIT 2 k2 k3 t PX 600000",
        "EXEC",
    ]);
    let mut replies = replies.into_iter().next_back().unwrap().list();
    let grant = Ok(replies.remove(1)).grant();
    assert_eq!(replies, [Value::Nil]);
    assert_held(&server, "k2", &grant);
    assert_held(&server, "k3", &grant);
    assert_eq!(server.waiters("k1"), 0);
    assert_eq!(
        server.call(&["EVAL", script, "2", "k2", "k3"]).grant(),
        grant
    );
}

#[test]
fn one_mwait_counts_once_among_the_waiters() {
    let server = Server::start();
    server.call("CONFIG SET lock.max-waiters 2").okay();
    take(&server, "k1", "a");
    let _first = waiter(&server, &["k1", "k2", "k3"], "b");
    let _second = waiter(&server, &["k1", "k2"], "c");
    assert_eq!(server.info("lock", "lock_waiters"), "2");
    let error = server.call("LOCK.MWAIT 2 k1 k4 d").error();
    assert!(error.starts_with("MAXWAITERS "), "{error}");
    assert_free(&server, &["k4"]);
}

// ---- grants don't depend on later commands

#[test]
fn a_wait_that_is_granted_lets_its_tokens_other_wait_through_at_once() {
    let server = Server::start();
    take(&server, "k2", "h");
    let mut shared = server.waiter(format!("LOCK.WAIT k2 t SHARED {LONG}"));
    let mut exclusive = server.waiter(format!("LOCK.WAIT k2 w {LONG}"));
    let mut both = server.waiter(format!("LOCK.MWAIT 2 k3 k2 t SHARED {LONG}"));
    release(&server, "k2", "h");
    assert_eq!(shared.recv().grant().token, "t");
    // No command follows at either key: the token holds one key now, and the other is free.
    assert_eq!(both.recv().grant().token, "t");
    exclusive.expect_silence();
    assert_eq!(server.known_lock("k3").holder_tokens(), ["t"]);
    assert_eq!(server.known_lock("k2").holder_tokens(), ["t"]);
    assert_eq!(server.call("LOCK.MRELEASE 2 k2 k3 t").int(), 2);
    assert_eq!(exclusive.recv().grant().token, "w");
    assert_free(&server, &["k3"]);
}

/// Commands by which `h` loses `k2`, each list in one pass of the server's loop.
const LEAVES: [&[&str]; 6] = [
    &["LOCK.RELEASE k2 h"],
    &["LOCK.EXTEND k2 h PX 20"],
    &["DEL k2"],
    &["FLUSHALL"],
    &["PEXPIRE k2 20"],
    &["MULTI", "LOCK.RELEASE k2 h", "EXEC"],
];

#[test]
fn all_waits_of_a_token_are_granted_however_the_holder_leaves() {
    for leaves in LEAVES {
        let server = Server::start();
        take(&server, "k2", "h");
        let mut shared = server.waiter(format!("LOCK.WAIT k2 t SHARED {LONG}"));
        let _exclusive = server.waiter(format!("LOCK.WAIT k2 w {LONG}"));
        let mut more: Vec<Client> = [
            "LOCK.MWAIT 2 k3 k2 t SHARED",
            "LOCK.MWAIT 3 k4 k2 k5 t SHARED",
            "LOCK.MWAIT 2 k2 k6 t SHARED",
        ]
        .map(|command| server.waiter(format!("{command} {LONG}")))
        .into();
        server.call_all(leaves);
        for waiter in std::iter::once(&mut shared).chain(&mut more) {
            assert_eq!(waiter.recv().grant().token, "t", "{leaves:?}");
        }
    }
}

// ---- the same wait again

#[test]
fn a_wait_for_one_key_is_the_same_by_both_commands() {
    let server = Server::start();
    take(&server, "k", "a");
    let mut single = server.waiter(format!("LOCK.WAIT k t {LONG}"));
    let mut multi = server.waiter(format!("LOCK.MWAIT 1 k t {LONG}"));
    assert!(single.recv().error().starts_with("UNBLOCKED "));
    let mut again = server.waiter(format!("LOCK.WAIT k t {LONG}"));
    assert!(multi.recv().error().starts_with("UNBLOCKED "));
    assert_queue(&server, "k", &["t"]);
    release(&server, "k", "a");
    assert_held(&server, "k", &again.recv().grant());
}

#[test]
fn the_same_keys_in_another_order_are_the_same_wait() {
    let server = Server::start();
    take(&server, "k1", "a");
    let mut old = waiter(&server, &["k1", "k2", "k3"], "t");
    let _behind = waiter(&server, &["k2"], "b");
    let mut new = waiter(&server, &["k3", "k1", "k2"], "t");
    assert!(old.recv().error().starts_with("UNBLOCKED "));
    assert_queue(&server, "k2", &["t", "b"]);
    release(&server, "k1", "a");
    let grant = new.recv().grant();
    for key in ["k1", "k2", "k3"] {
        assert_held(&server, key, &grant);
    }
}

#[test]
fn other_keys_are_another_wait() {
    let server = Server::start();
    take(&server, "k1", "a");
    let mut three = waiter(&server, &["k1", "k2", "k3"], "t");
    let mut two = waiter(&server, &["k1", "k2"], "t");
    let mut one = waiter(&server, &["k1"], "t");
    for client in [&mut three, &mut two, &mut one] {
        client.expect_silence();
    }
    assert_queue(&server, "k1", &["t", "t", "t"]);
    release(&server, "k1", "a");
    let grant = three.recv().grant();
    // The other waits are repeats by the holder now.
    assert_eq!(two.recv().grant(), grant);
    assert_eq!(one.recv().grant(), grant);
    assert_held(&server, "k3", &grant);
}

// ---- many clients at once

/// The end of a client's wait in the test of random pairs.
enum Turn {
    Granted(Grant),
    GaveUp,
    Died,
}

/// Waits for a pair, mostly without a timeout.
fn ask(client: &mut Client, dice: &mut Dice, pair: &str, token: &str) -> Turn {
    match dice.below(10) {
        0 => {
            let wait = format!("LOCK.MWAIT 2 {pair} {token} {LONG} BLOCK 1");
            match client.call(wait) {
                Ok(Value::Nil) => Turn::GaveUp,
                granted => Turn::Granted(granted.grant()),
            }
        }
        1 => {
            client.send(format!("LOCK.MWAIT 2 {pair} {token} {LONG} SESSION"));
            Turn::Died
        }
        _ => Turn::Granted(
            client
                .call(format!("LOCK.MWAIT 2 {pair} {token} {LONG}"))
                .grant(),
        ),
    }
}

/// The number of holds that each client must exceed.
const LEAST: usize = 20;

/// Acquires pairs of six keys, one after the other. Returns the holds and the longest wait.
fn take_pairs(server: &Server, number: u64, end: Instant) -> (Vec<Hold>, Duration) {
    let mut client = server.client();
    let mut dice = Dice::new(number);
    let mut holds = Vec::new();
    let mut longest = Duration::ZERO;
    let keys = ["k0", "k1", "k2", "k3", "k4", "k5"];
    let mut turn = 0;
    // A client of a busy machine may need longer for its part.
    while Instant::now() < end || (holds.len() <= LEAST && Instant::now() < end + PATIENCE) {
        turn += 1;
        let token = format!("t{number}.{turn}");
        let first = *dice.pick(&keys);
        let others: Vec<&str> = keys.into_iter().filter(|key| *key != first).collect();
        let pair = [first, *dice.pick(&others)];
        let asked = Instant::now();
        match ask(&mut client, &mut dice, &pair.join(" "), &token) {
            Turn::Granted(grant) => {
                let from = Instant::now();
                longest = longest.max(from - asked);
                let moment = Duration::from_micros(dice.below(300));
                while from.elapsed() < moment {
                    thread::yield_now();
                }
                let to = Instant::now();
                holds.extend(pair.map(|key| Hold {
                    key: key.to_owned(),
                    token: grant.token.clone(),
                    mode: Mode::Exclusive,
                    fence: grant.fence,
                    from,
                    to,
                }));
                let release = format!("LOCK.MRELEASE 2 {} {} {token}", pair[1], pair[0]);
                assert_eq!(client.call(release).int(), 2);
            }
            Turn::GaveUp => {}
            Turn::Died => {
                client.reset();
                client = server.client();
            }
        }
    }
    (holds, longest)
}

#[test]
fn clients_that_wait_for_random_pairs_never_deadlock_and_never_share_a_key() {
    let server = Server::start();
    let end = Instant::now() + soak_time(Duration::from_secs(3));
    let parts: Vec<(Vec<Hold>, Duration)> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let server = &server;
                scope.spawn(move || take_pairs(server, number, end))
            })
            .collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended
            .map(|part| part.expect("a client without a complaint"))
            .collect()
    });
    for (number, (holds, longest)) in parts.iter().enumerate() {
        assert!(
            holds.len() > LEAST,
            "client {number}: {} holds",
            holds.len()
        );
        assert!(
            *longest < PATIENCE / 3,
            "client {number} waited {longest:?}"
        );
    }
    let holds: Vec<Hold> = parts.into_iter().flat_map(|(holds, _)| holds).collect();
    no_writer_overlaps(&holds).unwrap();
    until("the dead clients' locks are free", || {
        server.call("DBSIZE").int() == 0
    });
    assert_eq!(server.info("lock", "lock_waiters"), "0");
}

// ---- in a cluster

/// Starts a cluster of one node that has all slots.
fn cluster_of_one() -> Server {
    let server = Server::builder()
        .config("cluster-enabled yes")
        .config("cluster-require-full-coverage no")
        .start();
    server.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("the cluster is up", || {
        let state = server.call("CLUSTER INFO").text();
        state.contains("cluster_state:ok")
    });
    server
}

#[test]
fn in_a_cluster_keys_of_different_slots_are_refused() {
    let server = cluster_of_one();
    for command in [
        "LOCK.MACQUIRE 2 k1 k2 t",
        "LOCK.MWAIT 3 {a}1 {a}2 {b}1 t BLOCK 10",
        "LOCK.MEXTEND 2 k1 k2 t",
        "LOCK.MRELEASE 2 k1 k2 t",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("CROSSSLOT "), "{command}: {error}");
    }
    assert_eq!(server.call("DBSIZE").int(), 0);
    // A token that looks like a key of another slot is not a key.
    server.call("LOCK.MACQUIRE 1 {a}1 {b}1").grant();
}

#[test]
fn in_a_cluster_keys_of_a_slot_that_nobody_serves_are_refused() {
    let server = cluster_of_one();
    let slot = server.call("CLUSTER KEYSLOT {gone}1").int();
    server.call(format!("CLUSTER DELSLOTS {slot}")).okay();
    for command in [
        "LOCK.MACQUIRE 2 {gone}1 {gone}2 t",
        "LOCK.MWAIT 1 {gone}1 t BLOCK 10",
        "LOCK.MEXTEND 2 {gone}1 {gone}2 t",
        "LOCK.MRELEASE 1 {gone}1 t",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("CLUSTERDOWN "), "{command}: {error}");
    }
    server.call("LOCK.MACQUIRE 2 {here}1 {here}2 t").grant();
}

#[test]
fn in_a_cluster_keys_of_one_hash_tag_are_one_matter() {
    let server = cluster_of_one();
    let keys = ["{order}1", "{order}2", "{order}3"];
    let grant = server
        .call(format!("LOCK.MACQUIRE 3 {} t {LONG}", keys.join(" ")))
        .grant();
    for key in keys {
        assert_held(&server, key, &grant);
    }
    let mut both = waiter(&server, &keys[..2], "a");
    let mut all = waiter(&server, &keys, "b");
    assert_eq!(
        server
            .call(format!("LOCK.MEXTEND 3 {} t {LONG}", keys.join(" ")))
            .int(),
        3
    );
    assert_eq!(
        server
            .call(format!("LOCK.MRELEASE 3 {} t", keys.join(" ")))
            .int(),
        3
    );
    let grant = both.recv().grant();
    assert_held(&server, keys[1], &grant);
    all.expect_silence();
    // A lease that expires grants them too, without a command.
    let mextend = format!("LOCK.MEXTEND 2 {} a PX 50", keys[..2].join(" "));
    assert_eq!(server.call(mextend).int(), 2);
    let grant = all.recv().grant();
    for key in keys {
        assert_held(&server, key, &grant);
    }
}
