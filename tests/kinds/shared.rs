//! Shared and exclusive holders in one queue, conversions between them, and semaphores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use support::history::{most_at_once, no_writer_overlaps, within_limit, Hold, Mode};
use support::load::{soak_time, Dice, Over};
use support::{unix_time_ms, until, Client, Expect, Grant, LockInfo, Server, LONG};

/// Acquires `k` shared for each of these tokens.
fn share(server: &Server, tokens: &[&str]) -> Vec<Grant> {
    let acquire = |token: &&str| server.call(format!("LOCK.ACQUIRE k {token} {LONG} SHARED"));
    tokens.iter().map(|token| acquire(token).grant()).collect()
}

/// Starts a client that waits for `k` as a reader.
fn reader(server: &Server, token: &str) -> Client {
    server.waiter(format!("LOCK.WAIT k {token} {LONG} SHARED"))
}

/// Starts a client that waits for `k` as a writer, or for its upgrade.
fn writer(server: &Server, token: &str) -> Client {
    server.waiter(format!("LOCK.WAIT k {token} {LONG}"))
}

#[track_caller]
fn info(server: &Server) -> LockInfo {
    server.lock_info("k").expect("a lock that is known")
}

#[track_caller]
fn release(server: &Server, token: &str) {
    assert_eq!(server.call(format!("LOCK.RELEASE k {token}")).int(), 1);
}

/// Asserts the mode of `k`, its holders and its queue, in their order.
#[track_caller]
fn assert_state(server: &Server, mode: &str, holders: &[&str], queue: &[&str]) {
    let info = info(server);
    assert_eq!(info.mode, mode);
    assert_eq!(info.holder_tokens(), holders);
    assert_eq!(info.queue_tokens(), queue);
    assert_eq!(info.waiters, queue.len() as i64);
}

// ---- shared and exclusive in one queue

#[test]
fn shared_holders_admit_each_other_and_no_exclusive_one() {
    let server = Server::start();
    let grants = share(&server, &["a", "b", "c"]);
    assert!(grants.windows(2).all(|pair| pair[0].fence < pair[1].fence));
    assert_state(&server, "shared", &["a", "b", "c"], &[]);
    server.call("LOCK.ACQUIRE k x").nil();
    for token in ["a", "b", "c"] {
        assert!(server.call(format!("LOCK.CHECK k {token}")).int() > 0);
    }
    release(&server, "b");
    assert_eq!(server.call("LOCK.CHECK k b").int(), 0);
    server.call("LOCK.ACQUIRE k x").nil();
    assert_state(&server, "shared", &["a", "c"], &[]);
    release(&server, "a");
    release(&server, "c");
    assert_eq!(server.lock_info("k"), None);
    assert_eq!(server.call("EXISTS k").int(), 0);
}

#[test]
fn an_exclusive_holder_admits_no_shared_one() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k x {LONG}")).grant();
    server.call("LOCK.ACQUIRE k a SHARED").nil();
    server.call("LOCK.ACQUIRE k a SHARED LIMIT 9").nil();
    assert_state(&server, "exclusive", &["x"], &[]);
}

#[test]
fn the_shared_waiters_at_the_head_are_granted_together() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k x {LONG}")).grant();
    let mut batch = [
        reader(&server, "a"),
        reader(&server, "b"),
        reader(&server, "c"),
    ];
    let mut second_writer = writer(&server, "y");
    let mut behind = [reader(&server, "d"), reader(&server, "e")];
    release(&server, "x");
    let fences = batch.each_mut().map(|client| client.recv().grant().fence);
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]));
    assert_state(&server, "shared", &["a", "b", "c"], &["y", "d", "e"]);
    for token in ["b", "a", "c"] {
        second_writer.expect_silence();
        release(&server, token);
    }
    assert_eq!(second_writer.recv().grant().token, "y");
    assert_state(&server, "exclusive", &["y"], &["d", "e"]);
    for client in &mut behind {
        client.expect_silence();
    }
    release(&server, "y");
    for (client, token) in behind.iter_mut().zip(["d", "e"]) {
        assert_eq!(client.recv().grant().token, token);
    }
    assert_state(&server, "shared", &["d", "e"], &[]);
}

#[test]
fn a_shared_request_behind_a_waiting_exclusive_one_waits() {
    let server = Server::start();
    share(&server, &["a"]);
    let mut waiting_writer = writer(&server, "x");
    server.call("LOCK.ACQUIRE k b SHARED").nil();
    server.call("LOCK.ACQUIRE k b SHARED LIMIT 5").nil();
    let mut behind = reader(&server, "b");
    assert_state(&server, "shared", &["a"], &["x", "b"]);
    // A holder may repeat its request.
    let again = server.call(format!("LOCK.ACQUIRE k a {LONG} SHARED"));
    assert_eq!(again.grant().fence, info(&server).holder().int("fence"));
    release(&server, "a");
    assert_eq!(waiting_writer.recv().grant().token, "x");
    behind.expect_silence();
    release(&server, "x");
    assert_eq!(behind.recv().grant().token, "b");
}

#[test]
fn a_shared_waiter_is_granted_as_soon_as_no_exclusive_one_waits_before_it() {
    type Leave = fn(&Server, Client);
    let ways: [(&str, Leave); 4] = [
        ("its BLOCK ends", |_, mut client| client.recv().nil()),
        ("FIN", |_, client| client.close()),
        ("RST", |_, client| client.reset()),
        ("CLIENT UNBLOCK", |server, client| {
            let unblock = format!("CLIENT UNBLOCK {} ERROR", client.id());
            assert_eq!(server.call(unblock).int(), 1);
        }),
    ];
    for (way, leave) in ways {
        let server = Server::start();
        share(&server, &["a"]);
        let block = if way == "its BLOCK ends" {
            "BLOCK 1000"
        } else {
            ""
        };
        let leaving = server.waiter(format!("LOCK.WAIT k x {LONG} {block}"));
        let mut behind = [reader(&server, "b"), reader(&server, "c")];
        leave(&server, leaving);
        for (client, token) in behind.iter_mut().zip(["b", "c"]) {
            assert_eq!(client.recv().grant().token, token, "{way}");
        }
        assert_state(&server, "shared", &["a", "b", "c"], &[]);
    }
}

#[test]
fn each_shared_lease_ends_by_itself() {
    let server = Server::start();
    share(&server, &["a", "b", "c"]);
    let mut waiting_writer = writer(&server, "x");
    assert_eq!(server.call("LOCK.EXTEND k b PX 30").int(), 1);
    until("b's lease has ended", || {
        info(&server).holder_tokens() == ["a", "c"]
    });
    assert_eq!(server.call("LOCK.EXTEND k b PX 5000").int(), 0);
    assert_eq!(server.call("LOCK.EXTEND k c PX 30").int(), 1);
    until("c's lease has ended", || {
        info(&server).holder_tokens() == ["a"]
    });
    waiting_writer.expect_silence();
    assert_eq!(server.call("LOCK.EXTEND k a PX 50").int(), 1);
    assert_eq!(waiting_writer.recv().grant().token, "x");
}

#[test]
fn the_key_lives_as_long_as_the_longest_lease() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 50000 SHARED").grant();
    server.call("LOCK.ACQUIRE k b PX 600000 SHARED").grant();
    let left_ms = |server: &Server| server.call("PTTL k").int();
    assert!((500_000..=600_000).contains(&left_ms(&server)));
    release(&server, "b");
    assert!((40_000..=50_000).contains(&left_ms(&server)));
    assert_eq!(server.call("LOCK.EXTEND k a PX 90000").int(), 1);
    assert!((80_000..=90_000).contains(&left_ms(&server)));
}

#[test]
fn shared_holds_are_counted_for_each_holder() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let again = server.call(format!("LOCK.ACQUIRE k a {LONG} SHARED REENTRANT"));
    assert_eq!(
        again.grant().fence,
        info(&server).holders[0].int("fence"),
        "the fence stays"
    );
    let holds = |server: &Server| -> Vec<(String, i64)> {
        let holders = info(server).holders;
        let of = holders.iter().map(|it| (it.text("token"), it.int("holds")));
        of.collect()
    };
    assert_eq!(holds(&server), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    release(&server, "a");
    assert_eq!(holds(&server), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    release(&server, "a");
    assert_eq!(holds(&server), [("b".to_owned(), 1)]);
    server.call("LOCK.ACQUIRE k b SHARED REENTRANT").grant();
    assert_eq!(server.call("LOCK.RELEASE k b ALL").int(), 1);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_newer_wait_in_another_mode_or_with_another_limit_queues_anew() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut exclusive = writer(&server, "b");
    let mut behind = writer(&server, "c");
    let mut shared = reader(&server, "b");
    let told = exclusive.recv().error();
    assert!(told.starts_with("UNBLOCKED "), "{told}");
    assert_state(&server, "exclusive", &["a"], &["c", "b"]);
    let mut further_behind = writer(&server, "d");
    let mut limited = server.waiter(format!("LOCK.WAIT k b {LONG} SHARED LIMIT 3"));
    assert!(shared.recv().error().starts_with("UNBLOCKED "));
    assert_state(&server, "exclusive", &["a"], &["c", "d", "b"]);
    release(&server, "a");
    assert_eq!(behind.recv().grant().token, "c");
    release(&server, "c");
    assert_eq!(further_behind.recv().grant().token, "d");
    release(&server, "d");
    assert_eq!(limited.recv().grant().token, "b");
    assert_state(&server, "shared", &["b"], &[]);
    // The client whose wait was ended can do other work.
    assert_eq!(exclusive.call("PING").text(), "PONG");
}

#[test]
fn who_is_told_that_it_holds_exclusively_does() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut exclusive = writer(&server, "t");
    let mut shared = reader(&server, "t");
    release(&server, "a");
    assert!(exclusive.recv().error().starts_with("UNBLOCKED "));
    assert_eq!(shared.recv().grant().token, "t");
    assert_state(&server, "shared", &["t"], &[]);
}

#[test]
fn a_wait_that_is_granted_at_once_ends_the_older_one_and_an_acquire_does_not() {
    let server = Server::start();
    server.call_all(&[
        format!("LOCK.ACQUIRE k t {LONG} SHARED"),
        format!("LOCK.ACQUIRE k u {LONG} SHARED"),
    ]);
    let mut upgrade = writer(&server, "t");
    let mut behind = reader(&server, "v");
    server
        .call(format!("LOCK.ACQUIRE k t {LONG} SHARED"))
        .grant();
    upgrade.expect_silence();
    behind.expect_silence();
    server.call(format!("LOCK.WAIT k t {LONG} SHARED")).grant();
    assert!(upgrade.recv().error().starts_with("UNBLOCKED "));
    assert_eq!(behind.recv().grant().token, "v");
    assert_state(&server, "shared", &["t", "u", "v"], &[]);
}

#[test]
fn an_expiry_by_hand_shortens_every_longer_lease() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000 SHARED").grant();
    server.call("LOCK.ACQUIRE k b PX 600000 SHARED").grant();
    assert_eq!(server.call("PEXPIRE k 100000").int(), 1);
    server.settle();
    let left_ms = |token: &str| server.call(format!("LOCK.CHECK k {token}")).int();
    assert!((50_000..=60_000).contains(&left_ms("a")));
    assert!((90_000..=100_000).contains(&left_ms("b")));
    let mut waiting_writer = writer(&server, "x");
    assert_eq!(server.call("PEXPIRE k 80").int(), 1);
    assert_eq!(waiting_writer.recv().grant().token, "x");
    // An expiry that would lengthen the leases is put back.
    for command in ["PERSIST k", "PEXPIRE k 900000"] {
        release(&server, "x");
        server.call("LOCK.ACQUIRE k a PX 60000 SHARED").grant();
        server.call("LOCK.ACQUIRE k x PX 70000 SHARED").grant();
        assert_eq!(server.call(command).int(), 1);
        until("the expiry is put back", || {
            (1..=70_000).contains(&server.call("PTTL k").int())
        });
        assert!(left_ms("a") <= 60_000 && left_ms("x") <= 70_000);
        release(&server, "a");
    }
}

// ---- downgrade

#[test]
fn a_downgrade_is_at_once_and_then_the_queue_moves() {
    let server = Server::start();
    let exclusive = server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut readers = [reader(&server, "b"), reader(&server, "c")];
    let mut waiting_writer = writer(&server, "x");
    let mut last = reader(&server, "d");
    until("some time has been held", || {
        info(&server).holder().int("held-ms") >= 20
    });
    let shared = server.call("LOCK.ACQUIRE k a PX 500000 SHARED").grant();
    assert_eq!(shared, exclusive, "the fence stays");
    for (client, token) in readers.iter_mut().zip(["b", "c"]) {
        assert_eq!(client.recv().grant().token, token);
    }
    assert_state(&server, "shared", &["a", "b", "c"], &["x", "d"]);
    let own = info(&server).holders.remove(0);
    assert!(own.int("held-ms") >= 20, "held since the first grant");
    assert!(
        (400_000..=500_000).contains(&own.int("lease-ms")),
        "a new lease"
    );
    waiting_writer.expect_silence();
    last.expect_silence();
}

#[test]
fn a_downgrade_by_a_wait_is_at_once_too() {
    let server = Server::start();
    let exclusive = server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let _waiting_writer = writer(&server, "x");
    let mut client = server.client();
    let shared = client.call(format!("LOCK.WAIT k a {LONG} SHARED")).grant();
    assert_eq!(shared, exclusive);
    assert_state(&server, "shared", &["a"], &["x"]);
}

#[test]
fn a_downgrade_to_a_limit_admits_as_many_as_it_says() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut readers = [reader(&server, "b"), reader(&server, "c")];
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 2"))
        .grant();
    assert_eq!(readers[0].recv().grant().token, "b");
    readers[1].expect_silence();
    assert_state(&server, "shared", &["a", "b"], &["c"]);
}

#[test]
fn a_conversion_keeps_the_holds_and_with_reentrant_adds_one() {
    let server = Server::start();
    let holds = |server: &Server| info(server).holder().int("holds");
    let convert = |options: &str| server.call(format!("LOCK.ACQUIRE k a {LONG} {options}"));
    convert("REENTRANT").grant();
    convert("REENTRANT").grant();
    assert_eq!(holds(&server), 2);
    let down = convert("SHARED").grant();
    assert_eq!(holds(&server), 2);
    let up = convert("").grant();
    assert_eq!(holds(&server), 2);
    assert!(up.fence > down.fence);
    convert("SHARED REENTRANT").grant();
    assert_eq!(holds(&server), 3);
    convert("REENTRANT").grant();
    assert_eq!(holds(&server), 4);
    for _ in 0..4 {
        assert_eq!(info(&server).mode, "exclusive");
        release(&server, "a");
    }
    assert_eq!(server.lock_info("k"), None);
}

// ---- upgrade

#[test]
fn an_upgrade_when_alone_is_at_once_with_a_new_fence() {
    let server = Server::start();
    for command in ["LOCK.ACQUIRE", "LOCK.WAIT"] {
        let shared = server
            .call(format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 3"))
            .grant();
        until("some time has been held", || {
            info(&server).holder().int("held-ms") >= 20
        });
        let upgraded_ms = unix_time_ms();
        let exclusive = server.call(format!("{command} k a PX 500000")).grant();
        assert!(exclusive.fence > shared.fence);
        assert_state(&server, "exclusive", &["a"], &[]);
        let own = info(&server).holder().clone();
        assert_eq!((own.int("limit"), own.int("fence")), (0, exclusive.fence));
        // The time held counts from the grant of the new fence.
        let passed_ms = unix_time_ms() - upgraded_ms;
        assert!(own.int("held-ms") <= passed_ms + 1, "{own:?}");
        assert!(own.int("lease-ms") <= 500_000);
        server.call("LOCK.ACQUIRE k b SHARED").nil();
        release(&server, "a");
    }
}

#[test]
fn an_upgrade_when_alone_passes_those_who_wait() {
    let server = Server::start();
    share(&server, &["a"]);
    let mut waiting_writer = writer(&server, "x");
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_state(&server, "exclusive", &["a"], &["x"]);
    waiting_writer.expect_silence();
    release(&server, "a");
    assert_eq!(waiting_writer.recv().grant().token, "x");
}

#[test]
fn a_waiting_upgrade_stands_first() {
    let server = Server::start();
    let fence = share(&server, &["a", "b"])[0].fence;
    let mut waiting_writer = writer(&server, "x");
    let mut waiting_reader = reader(&server, "c");
    server.call("LOCK.ACQUIRE k a").nil();
    let mut upgrade = writer(&server, "a");
    assert_state(&server, "shared", &["a", "b"], &["a", "x", "c"]);
    release(&server, "b");
    let grant = upgrade.recv().grant();
    assert!(grant.token == "a" && grant.fence > fence);
    assert_state(&server, "exclusive", &["a"], &["x", "c"]);
    release(&server, "a");
    assert_eq!(waiting_writer.recv().grant().token, "x");
    waiting_reader.expect_silence();
}

#[test]
fn no_newcomer_shares_while_an_upgrade_waits() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut upgrade = writer(&server, "a");
    server.call("LOCK.ACQUIRE k c SHARED").nil();
    let mut behind = reader(&server, "c");
    release(&server, "b");
    upgrade.recv().grant();
    behind.expect_silence();
    release(&server, "a");
    assert_eq!(behind.recv().grant().token, "c");
}

#[test]
fn a_waiting_upgrade_keeps_its_shared_hold_until_it_is_granted() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut upgrade = writer(&server, "a");
    assert!(server.call("LOCK.CHECK k a").int() > 0);
    assert_eq!(server.call("LOCK.EXTEND k a PX 500000").int(), 1);
    // If the waiter gives up, only its wait ends.
    server
        .call(format!("CLIENT UNBLOCK {}", upgrade.id()))
        .int();
    upgrade.recv().nil();
    until("the queue is empty", || info(&server).waiters == 0);
    assert_state(&server, "shared", &["a", "b"], &[]);
    share(&server, &["c"]);
}

#[test]
fn a_second_upgrade_is_a_deadlock() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut upgrade = writer(&server, "a");
    let mut second = server.client();
    let error = second.call(format!("LOCK.WAIT k b {LONG}")).error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    let error = second.call("LOCK.WAIT k b BLOCK 10").error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    second.call("LOCK.ACQUIRE k b").nil();
    // A refused command changes nothing.
    assert_state(&server, "shared", &["a", "b"], &["a"]);
    upgrade.expect_silence();
    // The second holder can end the deadlock only by its release.
    assert_eq!(second.call("LOCK.RELEASE k b").int(), 1);
    assert_eq!(upgrade.recv().grant().token, "a");
}

#[test]
fn an_upgrade_may_wait_when_the_one_before_it_gave_up() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut first = server.client();
    first.call(format!("LOCK.WAIT k a {LONG} BLOCK 100")).nil();
    let mut second = writer(&server, "b");
    let error = first.call("LOCK.WAIT k a").error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    release(&server, "a");
    assert_eq!(second.recv().grant().token, "b");
}

#[test]
fn the_same_upgrade_from_a_new_connection_takes_over() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let _waiting_writer = writer(&server, "x");
    let mut old = writer(&server, "a");
    let mut new = writer(&server, "a");
    assert!(old.recv().error().starts_with("UNBLOCKED "));
    assert_state(&server, "shared", &["a", "b"], &["a", "x"]);
    release(&server, "b");
    assert_eq!(new.recv().grant().token, "a");
}

#[test]
fn a_holder_may_repeat_while_another_ones_upgrade_waits() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut upgrade = writer(&server, "a");
    // A repeat in the holder's own mode needs no turn.
    let again = server.call(format!("LOCK.WAIT k b {LONG} SHARED")).grant();
    assert_eq!(again.token, "b");
    upgrade.expect_silence();
    release(&server, "b");
    upgrade.recv().grant();
}

#[test]
fn an_upgrade_whose_shared_hold_ends_waits_at_the_front_like_anybody() {
    type End = fn(&Server);
    let ways: [(&str, End); 2] = [
        ("its lease ends", |server| {
            assert_eq!(server.call("LOCK.EXTEND k a PX 30").int(), 1);
        }),
        ("it is released", |server| release(server, "a")),
    ];
    for (way, end) in ways {
        let server = Server::start();
        share(&server, &["a", "b", "c"]);
        let mut waiting_writer = writer(&server, "x");
        let mut waiter = writer(&server, "a");
        assert_state(&server, "shared", &["a", "b", "c"], &["a", "x"]);
        end(&server);
        until(way, || info(&server).holder_tokens() == ["b", "c"]);
        assert_eq!(info(&server).queue_tokens(), ["a", "x"], "{way}");
        waiter.expect_silence();
        // No holder waits to upgrade any more, so another holder may.
        let mut upgrade = writer(&server, "b");
        assert_eq!(info(&server).queue_tokens(), ["b", "a", "x"], "{way}");
        release(&server, "c");
        assert_eq!(upgrade.recv().grant().token, "b", "{way}");
        waiter.expect_silence();
        release(&server, "b");
        assert_eq!(waiter.recv().grant().token, "a", "{way}");
        waiting_writer.expect_silence();
        release(&server, "a");
        assert_eq!(waiting_writer.recv().grant().token, "x", "{way}");
    }
}

#[test]
fn an_upgrade_whose_client_dies_in_the_tick_of_its_grant_is_a_shared_hold_again() {
    let server = Server::start();
    for round in 0..50 {
        let [own, _] = share(&server, &["a", "b"]).try_into().expect("two grants");
        let mut killed = writer(&server, "a");
        let kill = format!("CLIENT KILL ID {}", killed.id());
        server.call_batch(&["LOCK.RELEASE k b", &kill]);
        killed.replies_to_close();
        until("the grant is taken back", || info(&server).mode == "shared");
        let kept = info(&server).holder().clone();
        assert_eq!(kept.text("token"), "a", "round {round}");
        assert_eq!(kept.int("fence"), own.fence, "round {round}");
        share(&server, &["c"]);
        release(&server, "a");
        release(&server, "c");
    }
}

#[test]
fn a_waiter_that_comes_to_hold_by_another_way_counts_as_an_upgrade() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k z {LONG}")).grant();
    let mut waiter = writer(&server, "a");
    for token in ["a", "b"] {
        server
            .call(format!("LOCK.ACQUIRE other {token} {LONG} SHARED"))
            .grant();
    }
    server.call("RENAME other k").okay();
    server.settle();
    assert_state(&server, "shared", &["a", "b"], &["a"]);
    let error = server.client().call("LOCK.WAIT k b").error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    release(&server, "b");
    assert_eq!(waiter.recv().grant().token, "a");
    assert_eq!(info(&server).mode, "exclusive");
}

#[test]
fn a_waiter_that_comes_to_hold_what_it_waits_for_is_granted() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k z {LONG}")).grant();
    let mut waiter = writer(&server, "a");
    let grant = server.call(format!("LOCK.ACQUIRE other a {LONG}")).grant();
    server.call("RENAME other k").okay();
    assert_eq!(waiter.recv().grant(), grant, "a repeat by the holder");
}

#[test]
fn a_wait_for_several_keys_never_waits_for_an_upgrade() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut client = server.client();
    let error = client.call(format!("LOCK.MWAIT 2 k free a {LONG}")).error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    client.call("LOCK.MACQUIRE 2 k free a").nil();
    assert_state(&server, "shared", &["a", "b"], &[]);
    assert_eq!(server.lock_info("free"), None);
    // The same is true if the upgrade is possible but another key is held.
    release(&server, "b");
    server.call(format!("LOCK.ACQUIRE held z {LONG}")).grant();
    let error = client.call(format!("LOCK.MWAIT 2 held k a {LONG}")).error();
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert_state(&server, "shared", &["a"], &[]);
    // An upgrade that needs no wait is granted.
    let grant = client.call(format!("LOCK.MWAIT 2 k free a {LONG}")).grant();
    assert_state(&server, "exclusive", &["a"], &[]);
    let free = server.lock_info("free").unwrap();
    assert_eq!(
        (free.holder().int("fence"), info(&server).mode.as_str()),
        (grant.fence, "exclusive")
    );
}

#[test]
fn a_multi_wait_for_one_key_may_wait_for_its_upgrade() {
    let server = Server::start();
    share(&server, &["a", "b"]);
    let mut upgrade = server.waiter(format!("LOCK.MWAIT 1 k a {LONG}"));
    release(&server, "b");
    assert_eq!(upgrade.recv().grant().token, "a");
}

// ---- limits

#[test]
fn permits_have_their_own_token_lease_and_fence() {
    let server = Server::start();
    for (token, lease_ms) in [("a", 100_000), ("b", 200_000), ("c", 300_000)] {
        server
            .call(format!(
                "LOCK.ACQUIRE k {token} PX {lease_ms} SHARED LIMIT 3"
            ))
            .grant();
    }
    server.call("LOCK.ACQUIRE k d SHARED LIMIT 3").nil();
    let holders = info(&server).holders;
    assert!(holders
        .windows(2)
        .all(|pair| pair[0].int("fence") < pair[1].int("fence")));
    for (holder, lease_ms) in holders.iter().zip([100_000, 200_000, 300_000]) {
        let left_ms = holder.int("lease-ms");
        assert!((lease_ms - 20_000..=lease_ms).contains(&left_ms));
        assert_eq!(holder.int("limit"), 3);
        let token = holder.text("token");
        let checked_ms = server.call(format!("LOCK.CHECK k {token}")).int();
        assert!((lease_ms - 20_000..=left_ms).contains(&checked_ms));
    }
    assert_eq!(server.call("LOCK.EXTEND k b PX 50000").int(), 1);
    assert!(server.call("LOCK.CHECK k c").int() > 200_000);
    release(&server, "b");
    server.call("LOCK.ACQUIRE k d SHARED LIMIT 3").grant();
    server.call("LOCK.ACQUIRE k e SHARED LIMIT 3").nil();
}

#[test]
fn the_end_of_one_permits_lease_admits_exactly_one_waiter() {
    let server = Server::start();
    let permit = format!("{LONG} SHARED LIMIT 3");
    for token in ["a", "b", "c"] {
        server
            .call(format!("LOCK.ACQUIRE k {token} {permit}"))
            .grant();
    }
    let mut first = server.waiter(format!("LOCK.WAIT k d {permit}"));
    let mut second = server.waiter(format!("LOCK.WAIT k e {permit}"));
    let start_ms = unix_time_ms();
    assert_eq!(server.call("LOCK.EXTEND k a PX 30").int(), 1);
    assert_eq!(first.recv().grant().token, "d");
    let waited_ms = unix_time_ms() - start_ms;
    assert!(
        waited_ms >= 30,
        "granted after {waited_ms} ms, within the lease"
    );
    second.expect_silence();
    assert_state(&server, "shared", &["b", "c", "d"], &["e"]);
}

#[test]
fn several_permits_are_one_grant_that_a_repeat_can_lower() {
    let server = Server::start();
    let take = |token: &str, permits: u32| {
        let permits = format!("SHARED LIMIT 5 PERMITS {permits}");
        server.call(format!("LOCK.ACQUIRE k {token} {LONG} {permits}"))
    };
    let large = take("large", 4).grant();
    take("b", 2).nil();
    take("b", 1).grant();
    let permits = || -> Vec<i64> {
        let holders = info(&server).holders;
        holders.iter().map(|own| own.int("permits")).collect()
    };
    assert_eq!(permits(), [4, 1]);
    let mut waiter = server.waiter(format!("LOCK.WAIT k c {LONG} SHARED LIMIT 5 PERMITS 2"));
    let mut behind = server.waiter(format!("LOCK.MWAIT 1 k d {LONG} SHARED"));
    assert_eq!(info(&server).queue[0].int("permits"), 2);
    assert_eq!(info(&server).queue[1].int("permits"), 1);
    for raise in [
        "LOCK.ACQUIRE k b SHARED LIMIT 5 PERMITS 2",
        "LOCK.WAIT k b SHARED LIMIT 5 PERMITS 5",
        "LOCK.MACQUIRE 2 free k b SHARED LIMIT 5 PERMITS 2",
        "LOCK.MWAIT 2 free k b SHARED LIMIT 5 PERMITS 2",
    ] {
        let error = server.call(raise).error();
        assert_eq!(error, "ERR permits can't be raised", "{raise}");
    }
    assert_eq!(server.call("EXISTS free").int(), 0);
    assert_eq!(take("large", 3).grant(), large);
    server.settle();
    assert_eq!(info(&server).queue_tokens(), ["c", "d"]);
    assert_eq!(take("large", 2).grant(), large);
    assert_eq!(waiter.recv().grant().token, "c");
    server.settle();
    assert_eq!(info(&server).queue_tokens(), ["d"]);
    assert_eq!(server.call("LOCK.RELEASE k c").int(), 1);
    assert_eq!(behind.recv().grant().token, "d");
    assert_eq!(permits(), [2, 1, 1]);
}

#[test]
fn an_exclusive_holder_shows_one_permit_and_brings_more_as_it_converts() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(info(&server).holder().int("permits"), 1);
    let convert = format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 4294967295 PERMITS 4294967295");
    server.call(convert).grant();
    assert_eq!(info(&server).holder().int("permits"), 4_294_967_295);
    server.call("LOCK.ACQUIRE k b SHARED").nil();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(info(&server).holder().int("permits"), 1);
}

#[test]
fn many_holders_permits_are_counted_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let take =
        |number: usize| format!("LOCK.ACQUIRE k t{number} {LONG} SHARED LIMIT 30000 PERMITS 3");
    let takes: Vec<String> = (0..10_000).map(take).collect();
    client.call_all(&takes);
    server.call("LOCK.ACQUIRE k more SHARED").nil();
    let mut waiter = server.waiter("LOCK.WAIT k more SHARED LIMIT 30000 PERMITS 5");
    assert_eq!(server.call("LOCK.RELEASE k t7").int(), 1);
    server.settle();
    assert_eq!(server.waiters("k"), 1);
    server
        .call(format!("LOCK.ACQUIRE k t8 {LONG} SHARED LIMIT 30000"))
        .grant();
    assert_eq!(waiter.recv().grant().token, "more");
    server.call("LOCK.ACQUIRE k another SHARED").nil();
    server.call("DEBUG RELOAD").okay();
    server.call("LOCK.ACQUIRE k another SHARED").nil();
    assert_eq!(server.call("LOCK.RELEASE k t9").int(), 1);
    server
        .call("LOCK.ACQUIRE k another SHARED LIMIT 30000 PERMITS 3")
        .grant();
}

#[test]
fn where_limits_differ_the_smallest_binds() {
    // The holders' limits in their order, the request's limit, and true if the request fits.
    let table: [(&[u32], u32, bool, &str); 9] = [
        (&[2, 2], 2, false, "both permits are taken"),
        (&[3, 3], 3, true, "one permit is left"),
        (&[5, 2], 9, false, "a holder's limit"),
        (&[5, 2], 0, false, "a holder's limit, none in the request"),
        (&[9, 9], 2, false, "the request's own limit"),
        (&[9, 9], 3, true, "the request's own limit leaves room"),
        (&[0, 0], 2, false, "its own limit, holders without limits"),
        (&[0, 0], 0, true, "no limit"),
        (&[0, 4], 0, true, "room within the only limit"),
    ];
    let server = Server::start();
    let words = |limit: u32| match limit {
        0 => "SHARED".to_owned(),
        n => format!("SHARED LIMIT {n}"),
    };
    for (row, (holders, asked, fits, why)) in table.into_iter().enumerate() {
        for (place, limit) in holders.iter().enumerate() {
            server
                .call(format!("LOCK.ACQUIRE k{row} h{place} {}", words(*limit)))
                .grant();
        }
        let reply = server.call(format!("LOCK.ACQUIRE k{row} new {}", words(asked)));
        if fits {
            assert_eq!(reply.grant().token, "new", "{why}");
        } else {
            assert_eq!(reply, Ok(redis::Value::Nil), "{why}");
        }
    }
}

#[test]
fn a_waiter_with_a_smaller_limit_holds_up_those_behind_it() {
    let server = Server::start();
    let acquire = |token: &str| server.call(format!("LOCK.ACQUIRE k {token} {LONG} SHARED"));
    acquire("a").grant();
    acquire("b").grant();
    let mut narrow = server.waiter(format!("LOCK.WAIT k c {LONG} SHARED LIMIT 2"));
    let mut wide = reader(&server, "d");
    acquire("e").nil();
    release(&server, "a");
    assert_eq!(narrow.recv().grant().token, "c");
    wide.expect_silence();
    assert_state(&server, "shared", &["b", "c"], &["d"]);
    release(&server, "c");
    assert_eq!(wide.recv().grant().token, "d");
}

#[test]
fn a_repeat_sets_the_limit_anew_and_without_one_takes_it_away() {
    let server = Server::start();
    let fence = server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 1"))
        .grant()
        .fence;
    let mut waiters = ["b", "c", "d"].map(|token| reader(&server, token));
    assert_eq!(server.call(format!("LOCK.EXTEND k a {LONG}")).int(), 1);
    waiters[0].expect_silence();
    let repeat = |limit: &str| {
        let again = server.call(format!("LOCK.ACQUIRE k a {LONG} SHARED {limit}"));
        assert_eq!(again.grant().fence, fence);
    };
    repeat("LIMIT 2");
    assert_eq!(waiters[0].recv().grant().token, "b");
    assert_state(&server, "shared", &["a", "b"], &["c", "d"]);
    repeat("");
    assert_eq!(waiters[1].recv().grant().token, "c");
    assert_eq!(waiters[2].recv().grant().token, "d");
    let limits: Vec<i64> = info(&server)
        .holders
        .iter()
        .map(|it| it.int("limit"))
        .collect();
    assert_eq!(limits, [0, 0, 0, 0]);
    // A repeat is never refused, even if its limit is below the number of holders.
    repeat("LIMIT 1");
    server.call("LOCK.ACQUIRE k e SHARED").nil();
}

// ---- many clients at once

/// The holds that the threads of a test recorded.
#[derive(Default)]
struct Records(Mutex<Vec<Hold>>);

impl Records {
    fn add(&self, holds: Vec<Hold>) {
        self.0.lock().unwrap().extend(holds);
    }

    fn all(self) -> Vec<Hold> {
        self.0.into_inner().unwrap()
    }
}

/// A client of the test of readers and writers.
struct Contender {
    client: Client,
    token: String,
    dice: Dice,
    holds: Vec<Hold>,
}

impl Contender {
    fn new(server: &Server, number: u64) -> Contender {
        Contender {
            client: server.client(),
            token: format!("t{number}"),
            dice: Dice::new(number),
            holds: Vec::new(),
        }
    }

    fn ask(&mut self, command: &str, options: &str) -> support::Reply {
        let token = &self.token;
        self.client
            .call(format!("{command} k {token} {LONG} {options}"))
    }

    /// Holds the lock for a moment, and records the hold from now until just before the next
    /// command.
    fn hold(&mut self, mode: Mode, fence: i64) {
        let from = Instant::now();
        let moment = Duration::from_micros(self.dice.below(300));
        while from.elapsed() < moment {
            thread::yield_now();
        }
        self.holds.push(Hold {
            key: "k".to_owned(),
            token: self.token.clone(),
            mode,
            fence,
            from,
            to: Instant::now(),
        });
    }

    /// Plays one turn: as a writer that may turn reader, or as a reader that may turn writer.
    fn turn(&mut self, mode: Mode) {
        let options = match mode {
            Mode::Exclusive => "",
            Mode::Shared => "SHARED",
        };
        let fence = self.ask("LOCK.WAIT", options).grant().fence;
        self.hold(mode, fence);
        match (mode, self.dice.below(3)) {
            (Mode::Exclusive, 0) => {
                let fence = self.ask("LOCK.ACQUIRE", "SHARED").grant().fence;
                self.hold(Mode::Shared, fence);
            }
            (Mode::Shared, 0) => self.upgrade("LOCK.ACQUIRE"),
            (Mode::Shared, 1) => self.upgrade("LOCK.WAIT"),
            _ => {}
        }
        let release = format!("LOCK.RELEASE k {}", self.token);
        assert_eq!(self.client.call(release).int(), 1);
    }

    fn upgrade(&mut self, command: &str) {
        match self.ask(command, "") {
            Ok(redis::Value::Nil) => {}
            Err(error) => assert!(error.starts_with("DEADLOCK "), "{error}"),
            granted => {
                let fence = granted.grant().fence;
                self.hold(Mode::Exclusive, fence);
            }
        }
    }
}

#[test]
fn no_writer_overlaps_anyone_among_readers_and_writers() {
    let server = Server::start();
    let records = Records::default();
    let end = Instant::now() + soak_time(Duration::from_millis(1_500));
    thread::scope(|scope| {
        for number in 0..16 {
            let (server, records) = (&server, &records);
            scope.spawn(move || {
                let mut contender = Contender::new(server, number);
                let mode = if number % 4 == 0 {
                    Mode::Exclusive
                } else {
                    Mode::Shared
                };
                // A client of a busy machine may need longer for its part.
                while Instant::now() < end || contender.holds.len() <= 3 {
                    contender.turn(mode);
                }
                records.add(contender.holds);
            });
        }
    });
    let holds = records.all();
    no_writer_overlaps(&holds).unwrap();
    assert!(most_at_once(&holds) > 1, "readers were together");
    let upgraded = holds.iter().filter(|hold| {
        let number: u64 = hold.token[1..].parse().unwrap();
        hold.mode == Mode::Exclusive && !number.is_multiple_of(4)
    });
    assert!(upgraded.count() > 0, "some readers became writers");
    for number in 0..16 {
        let token = format!("t{number}");
        let turns = holds.iter().filter(|hold| hold.token == token).count();
        assert!(turns > 3, "{token} had {turns} turns");
    }
    assert_eq!(server.lock_info("k"), None);
}

/// The end of a client of the semaphore's test.
#[derive(Clone, Copy)]
enum Fate {
    /// The client stays, and releases its grants.
    Lives,
    /// The client hangs up right after its request, without having read a reply.
    AsksAndDies,
    /// The client resets its connection with a permit that is tied to it.
    DiesHolding,
    /// The client hangs up with a permit that has only a lease.
    Forgets,
    /// The server kills the client while it waits or holds.
    IsKilled,
}

const FATES: [Fate; 8] = [
    Fate::Lives,
    Fate::AsksAndDies,
    Fate::Lives,
    Fate::DiesHolding,
    Fate::Lives,
    Fate::Forgets,
    Fate::IsKilled,
    Fate::Lives,
];

const PERMITS: usize = 5;

/// Plays one client's part, and returns its holds.
fn live(server: &Server, number: u64) -> Vec<Hold> {
    let mut client = server.client();
    let mut dice = Dice::new(number);
    let token = format!("t{number}");
    let wait = |lease: &str| format!("LOCK.WAIT k {token} {lease} SHARED LIMIT {PERMITS}");
    let tied = wait("PX 600000 SESSION");
    let hold = |grant: Grant, pause_us: u64| {
        let from = Instant::now();
        thread::sleep(Duration::from_micros(pause_us));
        Hold {
            key: "k".to_owned(),
            token: grant.token,
            mode: Mode::Shared,
            fence: grant.fence,
            from,
            to: Instant::now(),
        }
    };
    match FATES[usize::try_from(number).unwrap() % FATES.len()] {
        Fate::Lives => {
            let rounds = (0..3).map(|_| {
                let held = hold(client.call(wait(LONG)).grant(), dice.below(3_000));
                assert_eq!(client.call(format!("LOCK.RELEASE k {token}")).int(), 1);
                held
            });
            rounds.collect()
        }
        Fate::AsksAndDies => {
            client.send(tied);
            if dice.below(2) == 0 {
                client.reset();
            } else {
                client.close();
            }
            Vec::new()
        }
        Fate::DiesHolding => {
            let held = hold(client.call(tied).grant(), dice.below(3_000));
            client.reset();
            vec![held]
        }
        Fate::Forgets => {
            client.call(wait("PX 30")).grant();
            client.close();
            // The lease may be over before this thread runs again, so there is nothing to record.
            Vec::new()
        }
        Fate::IsKilled => {
            client.send(tied);
            thread::sleep(Duration::from_micros(dice.below(5_000)));
            let kill = format!("CLIENT KILL ID {}", client.id());
            assert_eq!(server.call(kill).int(), 1);
            client.replies_to_close();
            Vec::new()
        }
    }
}

#[test]
fn a_semaphore_never_gives_more_than_its_permits_and_has_them_all_in_the_end() {
    let server = Server::start();
    let records = Records::default();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = &server;
        let end = Over(&over);
        let observer = scope.spawn(|| {
            let mut client = server.client();
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                let seen = client.call("LOCK.INFO k WAITERS 0").value();
                most = most.max(LockInfo::of(seen).map_or(0, |info| info.holders.len()));
            }
            most
        });
        let clients: Vec<_> = (0..200)
            .map(|number| scope.spawn(move || live(server, number)))
            .collect();
        for client in clients {
            records.add(client.join().expect("a client without a complaint"));
        }
        drop(end);
        let most = observer.join().expect("an observer");
        assert_eq!(most, PERMITS, "holders at once, by LOCK.INFO");
    });
    let holds = records.all();
    assert!(holds.len() >= 300, "{} holds", holds.len());
    within_limit(&holds, PERMITS).unwrap();
    assert!(most_at_once(&holds) > 1, "holders were together");
    until("all permits are back", || server.lock_info("k").is_none());
    for number in 0..=PERMITS {
        let reply = server.call(format!("LOCK.ACQUIRE k new{number} SHARED LIMIT {PERMITS}"));
        if number < PERMITS {
            reply.grant();
        } else {
            reply.nil();
        }
    }
}

#[test]
fn a_writer_among_readers_that_never_pause_gets_in_within_one_pass_of_the_queue() {
    let server = Server::start();
    let over = AtomicBool::new(false);
    let read = |number: usize| {
        let mut client = server.client();
        let mut fences = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let wait = format!("LOCK.WAIT k r{number} {LONG} SHARED");
            fences.push(client.call(wait).grant().fence);
            let release = format!("LOCK.RELEASE k r{number}");
            assert_eq!(client.call(release).int(), 1);
        }
        fences
    };
    // The last fence before the writer queued, the number of waiters then, the fence of its grant.
    let write = || {
        let mut client = server.client();
        let rounds = (0..30).map(|round| {
            let wait = format!("LOCK.WAIT k w{round} {LONG}");
            let mut replies = client
                .call_batch(&["INFO lock", "LOCK.INFO k WAITERS 0", &wait])
                .into_iter();
            let counts = replies.next().unwrap().text();
            let before: i64 = counts
                .lines()
                .find_map(|line| line.strip_prefix("lock_last_fence:"))
                .and_then(|fence| fence.parse().ok())
                .expect("the last fence");
            let seen = LockInfo::of(replies.next().unwrap().value());
            let ahead = seen.map_or(0, |info| info.waiters);
            let own = replies.next().unwrap().grant().fence;
            let release = format!("LOCK.RELEASE k w{round}");
            assert_eq!(client.call(release).int(), 1);
            (before, ahead, own)
        });
        rounds.collect::<Vec<_>>()
    };
    let (readers, rounds) = thread::scope(|scope| {
        let end = Over(&over);
        let readers: Vec<_> = (0..50)
            .map(|number| scope.spawn(move || read(number)))
            .collect();
        until("the readers hold the lock", || {
            server
                .lock_info("k")
                .is_some_and(|info| info.holders.len() > 1)
        });
        let rounds = write();
        drop(end);
        let readers: Vec<i64> = readers
            .into_iter()
            .flat_map(|reader| reader.join().expect("a reader without a complaint"))
            .collect();
        (readers, rounds)
    });
    assert!(
        readers.len() > 200,
        "only {} grants to readers",
        readers.len()
    );
    for (before, ahead, own) in rounds {
        let between = readers
            .iter()
            .filter(|&&fence| before < fence && fence < own);
        let passed = i64::try_from(between.count()).unwrap();
        assert!(
            passed <= ahead,
            "{passed} readers were served before a writer with {ahead} waiters ahead of it"
        );
    }
}
