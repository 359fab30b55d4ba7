//! LOCK.QUEUE and LOCK.MQUEUE: places in the queue without a connection.

use support::{
    assert_same_data, cluster_node, eventually, server_with_holder, until, Client, Expect, Fields,
    Server, LONG,
};

/// Returns the queue of a key that LOCK.INFO shows.
fn queue(server: &Server, key: &str) -> Vec<Fields> {
    server
        .lock_info(key)
        .map_or_else(Vec::new, |lock| lock.queue)
}

#[track_caller]
fn until_holds(server: &Server, key: &str, token: &str) {
    eventually(&format!("{token} holds {key}"), || {
        let lock = server.lock_info(key)?;
        (lock.holder_tokens() == [token]).then_some(())
    });
}

#[track_caller]
fn assert_taken_over(client: &mut Client) {
    let error = client.recv().error();
    assert!(error.starts_with("UNBLOCKED a newer"), "{error}");
}

/// Starts a server where `b` was granted `k` and has not claimed it.
#[track_caller]
fn server_with_unclaimed_grant(setting: &str) -> Server {
    let server = Server::builder().config(setting).start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(
        server
            .call(format!("LOCK.QUEUE k b {LONG} KEEP 600000"))
            .int(),
        1
    );
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    until_holds(&server, "k", "b");
    server
}

/// Asserts that `b`'s grant of `k` is unclaimed: the REENTRANT call that claims it adds no hold,
/// and the next call adds a hold.
#[track_caller]
fn assert_unclaimed(server: &Server, what: &str) {
    let lock = server.known_lock("k");
    assert!(
        (0..60_000).contains(&lock.holder().int("held-ms")),
        "{what}"
    );
    for holds in [1, 2] {
        server
            .call(format!("LOCK.ACQUIRE k b {LONG} REENTRANT"))
            .grant();
        assert_eq!(
            server.known_lock("k").holder().int("holds"),
            holds,
            "{what}"
        );
    }
}

#[test]
fn an_unclaimed_grant_is_known_as_such_after_a_reload_a_restart_a_restore_and_a_promotion() {
    for setting in ["appendonly no", "appendonly yes", "aof-use-rdb-preamble no"] {
        let server = server_with_unclaimed_grant(setting);
        server.call("DEBUG RELOAD").okay();
        assert_unclaimed(&server, setting);
    }
    for how in ["SAVE", "aof", "rewritten"] {
        let appendonly = if how == "SAVE" {
            "appendonly no"
        } else {
            "appendonly yes"
        };
        let mut server = server_with_unclaimed_grant(appendonly);
        server.call("CONFIG SET aof-use-rdb-preamble no").okay();
        if how == "rewritten" {
            assert!(server.call("BGREWRITEAOF").is_ok());
            server.until_rewritten();
        }
        server.shutdown(if how == "SAVE" { "SAVE" } else { "NOSAVE" });
        server.restart();
        assert_unclaimed(&server, how);
    }
    let server = server_with_unclaimed_grant("appendonly no");
    let dump = server.call("DUMP k").bytes();
    server
        .call(&[b"RESTORE".as_slice(), b"k", b"0", &dump, b"REPLACE"])
        .okay();
    assert_unclaimed(&server, "RESTORE");
}

#[test]
fn an_unclaimed_grant_is_known_as_such_on_a_promoted_replica() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let queue = format!("LOCK.QUEUE k b {LONG} KEEP 600000");
    assert_eq!(primary.call(queue).int(), 1);
    assert_eq!(primary.call("LOCK.RELEASE k a").int(), 1);
    until_holds(&primary, "k", "b");
    replica.until_in_step(&primary);
    assert_same_data(&primary, &[&replica]);
    replica.call("REPLICAOF NO ONE").okay();
    assert_unclaimed(&replica, "promoted");
}

#[test]
fn a_place_is_taken_kept_and_claimed_from_any_connection() {
    let server = server_with_holder();
    let queue = format!("LOCK.QUEUE k b {LONG} KEEP 600000");
    for _ in 0..2 {
        assert_eq!(server.client().call(&queue).int(), 1);
    }
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(server.call(format!("LOCK.QUEUE k d {LONG}")).int(), 3);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    let fence = server.known_lock("k").holder().int("fence");
    let granted = server.client().call(&queue).grant();
    assert_eq!((granted.token.as_str(), granted.fence), ("b", fence));
    behind.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    assert_eq!(behind.recv().grant().token, "c");
    assert_eq!(server.call("LOCK.CANCEL k d").int(), 1);
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn a_grant_to_a_place_lasts_as_long_as_the_place_is_kept() {
    let server = server_with_holder();
    server.call("LOCK.QUEUE k b PX 500000 KEEP 100000").int();
    server.call("LOCK.RELEASE k a").int();
    let lease_ms = server.known_lock("k").holder().int("lease-ms");
    assert!((1..=100_000).contains(&lease_ms), "{lease_ms}");
    server.call("LOCK.QUEUE k b PX 500000 KEEP 100000").grant();
    let lease_ms = server.known_lock("k").holder().int("lease-ms");
    assert!(lease_ms > 100_000, "{lease_ms}");
}

#[test]
fn nobody_needs_to_ask_for_a_place_or_an_unclaimed_grant_to_lapse() {
    let server = server_with_holder();
    server.call("LOCK.QUEUE k b KEEP 40").int();
    server.call("LOCK.QUEUE k c KEEP 600000 PX 40").int();
    let mut waiter = server.waiter(format!("LOCK.WAIT k d {LONG}"));
    until("the first place has lapsed", || {
        server.info("lock", "lock_lapsed_places") == "1"
    });
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(waiter.recv().grant().token, "d");
    assert_eq!(server.info("lock", "lock_hand_overs"), "2");
    assert_eq!(server.info("lock", "lock_places"), "0");
}

#[test]
fn info_shows_places_among_the_blocked() {
    let server = server_with_holder();
    server.call("LOCK.MQUEUE 2 j k b KEEP 600000").int();
    let _waiter = server.waiter("LOCK.WAIT k c BLOCK 600000");
    let queue = queue(&server, "k");
    let kinds: Vec<String> = queue.iter().map(|one| one.text("kind")).collect();
    assert_eq!(kinds, ["place", "blocked"]);
    assert_eq!(server.waiters("k"), 2);
    let [place, blocked] = queue.as_slice() else {
        panic!("{queue:?}")
    };
    assert!((1..=600_000).contains(&place.int("keep-ms")));
    assert_eq!((place.int("timeout-ms"), blocked.int("keep-ms")), (0, 0));
    assert!((1..=600_000).contains(&blocked.int("timeout-ms")));
    assert!(!place.has("client-id") && blocked.has("client-id"));
    assert_eq!(
        Ok(place.get("keys")).list().len(),
        2,
        "the keys that it needs"
    );
    assert_eq!(server.info("lock", "lock_waiters"), "1");
    let places = server.info("lock", "lock_places");
    assert_eq!(places, "2", "one for each of its keys");
}

#[test]
fn a_transaction_and_a_script_do_what_is_done_outside() {
    let server = server_with_holder();
    let batch = ["MULTI", "LOCK.QUEUE k b", "LOCK.QUEUE k c", "EXEC"];
    let replies = server.call_batch(&batch);
    assert_eq!(format!("{:?}", replies[3]), "Ok(array([int(1), int(2)]))");
    let script = "return redis.call('LOCK.QUEUE', KEYS[1], ARGV[1])";
    let eval = ["EVAL", script, "1", "k", "d"];
    assert_eq!(server.call(&eval).int(), 3);
    assert_eq!(server.call(&eval).int(), 3);
    let batch = ["MULTI", "LOCK.RELEASE k a", "LOCK.QUEUE k b", "EXEC"];
    let replies = server.call_batch(&batch);
    let text = format!("{:?}", replies[3]);
    assert!(text.contains("bulk-string('\"b\"')"), "{text}");
    server.call("LOCK.RELEASE k b").int();
    server.call("LOCK.RELEASE k c").int();
    assert_eq!(server.call(&eval).grant().token, "d");
}

#[test]
fn a_wait_and_a_place_take_each_other_over() {
    let server = server_with_holder();
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    assert_eq!(server.call("LOCK.QUEUE k c KEEP 600000").int(), 2);
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.known_lock("k").queue_tokens(), ["b", "c"]);
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    assert_taken_over(&mut waiter);
    assert_eq!(queue(&server, "k")[0].text("kind"), "place");
    server.block(&mut waiter, format!("LOCK.WAIT k b {LONG}"));
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(waiter.recv().grant().token, "b");
    let mut other = server.client();
    other.send_batch(&["LOCK.WAIT k c SHARED"]);
    server.until_blocked(&mut other);
    assert_eq!(server.call("LOCK.QUEUE k c SHARED LIMIT 3").int(), 1);
    assert_taken_over(&mut other);
    assert_eq!(server.waiters("k"), 1);
}

#[test]
fn whose_user_lost_its_rights_is_not_granted_its_place() {
    let server = server_with_holder();
    let script = "return redis.call('LOCK.QUEUE', KEYS[1], ARGV[1])";
    for (loss, script_too) in [
        ("resetkeys", false),
        ("-lock.queue", false),
        ("resetkeys", true),
        ("off", false),
    ] {
        server.call("ACL SETUSER guest on >secret ~* +@all").okay();
        let mut guest = server.client();
        guest.call("AUTH guest secret").okay();
        if script_too {
            guest.call(&["EVAL", script, "1", "k", "b"]).int();
        } else {
            guest.call("LOCK.QUEUE k b KEEP 600000").int();
        }
        assert_eq!(server.call("LOCK.QUEUE k c KEEP 600000").int(), 2);
        server.call(format!("ACL SETUSER guest {loss}")).okay();
        server.call("LOCK.RELEASE k a").int();
        let holders = server.known_lock("k").holder_tokens();
        // A user that is off can't log in, but a client that is logged in keeps its rights.
        let expected = if loss == "off" { "b" } else { "c" };
        assert_eq!(holders, [expected], "{loss}, in a script: {script_too}");
        server.call("ACL DELUSER guest").int();
        server.call("DEL k").int();
        server.call("LOCK.CANCEL k c").int();
        server.call("DEL k").int();
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    }
}

#[test]
fn a_user_that_is_gone_is_not_granted_its_place() {
    let server = server_with_holder();
    server.call("ACL SETUSER guest on >secret ~* +@all").okay();
    let mut guest = server.client();
    guest.call("AUTH guest secret").okay();
    guest.call("LOCK.QUEUE k b KEEP 600000").int();
    guest.call("LOCK.MQUEUE 2 k j b KEEP 600000").int();
    server.call("ACL DELUSER guest").int();
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
    assert_eq!(server.info("lock", "lock_places"), "0");
}

#[test]
fn a_place_is_refused_where_memory_is_short_and_given_up_all_the_same() {
    let server = server_with_holder();
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    server.call("CONFIG SET maxmemory 1").okay();
    for command in ["LOCK.QUEUE k b", "LOCK.MQUEUE 2 k j c"] {
        let error = server.call(command).error();
        assert!(error.starts_with("OOM"), "{command}: {error}");
    }
    assert_eq!(server.call("LOCK.CANCEL k b").int(), 1);
}

#[test]
fn tickets_are_bounded() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-tickets 3").okay();
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    assert_eq!(server.call("LOCK.MQUEUE 2 k j c KEEP 600000").int(), 2);
    let full = "MAXTICKETS as many wait without a connection as lock.max-tickets allows";
    assert_eq!(server.call("LOCK.QUEUE k d").error(), full);
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    let _waiter = server.waiter(format!("LOCK.WAIT k d {LONG}"));
    assert_eq!(server.call("LOCK.QUEUE k d").int(), 3);
    server.call("CONFIG SET lock.max-tickets 0").okay();
    assert_eq!(server.call("LOCK.QUEUE k e").int(), 4);
}

#[test]
fn a_place_keeps_for_the_default_where_it_says_nothing() {
    let server = server_with_holder();
    for keep_ms in [10_000, 700_000] {
        server.call("LOCK.QUEUE k b").int();
        let kept_ms = queue(&server, "k")[0].int("keep-ms");
        assert!((1..=keep_ms).contains(&kept_ms), "{kept_ms}");
        server.call("CONFIG SET lock.default-keep 700000").okay();
    }
    server.call("LOCK.QUEUE k b").int();
    assert!(queue(&server, "k")[0].int("keep-ms") > 10_000);
}

#[test]
fn a_server_that_becomes_a_replica_has_no_places() {
    let (server, other) = (server_with_holder(), Server::start());
    other.call(format!("LOCK.ACQUIRE k x {LONG}")).grant();
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    server.replica_of(&other);
    until("no place is left", || {
        server.info("lock", "lock_places") == "0"
    });
    let error = server.call("LOCK.QUEUE k b").error();
    assert!(error.starts_with("READONLY"), "{error}");
    assert_eq!(other.call("LOCK.QUEUE k c KEEP 600000").int(), 1);
    server.until_in_step(&other);
    assert_eq!(server.waiters("k"), 0, "places are the primary's alone");
    server.call("REPLICAOF NO ONE").okay();
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    server.call("LOCK.RELEASE k x").int();
    until_holds(&server, "k", "b");
}

#[test]
fn a_grant_to_a_place_is_replicated() {
    let (server, replica) = (server_with_holder(), Server::start());
    replica.replica_of(&server);
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    server.call("LOCK.EXTEND k a PX 30").int();
    until_holds(&server, "k", "b");
    server.call(format!("LOCK.QUEUE k b {LONG}")).grant();
    replica.until_in_step(&server);
    for each in [&server, &replica] {
        let lease_ms = each.known_lock("k").holder().int("lease-ms");
        assert!(lease_ms > 10_000, "{lease_ms}");
    }
    let fence = |server: &Server| server.known_lock("k").holder().int("fence");
    assert_eq!(fence(&server), fence(&replica));
}

#[test]
fn places_stay_with_the_name_as_waits_do() {
    for line in [
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "FLUSHDB",
        "RENAME k j",
        "SWAPDB 0 1",
    ] {
        let server = server_with_holder();
        server.call("LOCK.QUEUE k b KEEP 600000").int();
        assert!(server.call(line).is_ok(), "{line}");
        until_holds(&server, "k", "b");
    }
}

#[test]
fn a_reload_keeps_places_and_a_restart_does_not() {
    let mut server = server_with_holder();
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    if server.call("DEBUG RELOAD").is_ok() {
        assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
        assert_eq!(server.call("LOCK.QUEUE k c KEEP 600000").int(), 2);
    }
    server.call("SAVE").okay();
    server.restart();
    assert_eq!(server.waiters("k"), 0);
    assert_eq!(server.call("LOCK.QUEUE k c KEEP 600000").int(), 1);
}

#[test]
fn another_type_ends_places_without_a_word() {
    let server = server_with_holder();
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    server.call("SET k text").okay();
    until("the place is gone", || {
        server.info("lock", "lock_places") == "0"
    });
    let error = server.call("LOCK.QUEUE k b").error();
    assert!(error.starts_with("WRONGTYPE"), "{error}");
}

#[test]
fn places_lapse_while_writes_are_paused_and_none_is_granted() {
    let server = server_with_holder();
    server.call("LOCK.QUEUE k b KEEP 50").int();
    server.call("LOCK.QUEUE k c KEEP 600000").int();
    server.call_all(&["LOCK.EXTEND k a PX 30", "CLIENT PAUSE 600000 WRITE"]);
    until("the place has lapsed", || {
        server.info("lock", "lock_lapsed_places") == "1"
    });
    until("the lease has ended", || {
        server.known_lock("k").mode == "free"
    });
    server.call("CLIENT UNPAUSE").okay();
    until_holds(&server, "k", "c");
}

#[test]
fn a_place_in_a_slot_that_left_is_not_granted() {
    let server = cluster_node();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.QUEUE k b KEEP 600000").int();
    server.call("LOCK.QUEUE k c KEEP 300").int();
    let slot = server.call("CLUSTER KEYSLOT k").int();
    // In one pass of the loop, so that the lease can't end before.
    server.call_all(&["LOCK.EXTEND k a PX 30", &format!("CLUSTER DELSLOTS {slot}")]);
    assert!(server
        .call("LOCK.QUEUE k b")
        .error()
        .starts_with("CLUSTERDOWN"));
    until("the other place has lapsed", || {
        server.info("lock", "lock_lapsed_places") == "1"
    });
    assert_eq!(server.info("lock", "lock_places"), "1");
    assert_eq!(server.info("lock", "lock_hand_overs"), "0");
    server.call(format!("CLUSTER ADDSLOTS {slot}")).okay();
    until_holds(&server, "k", "b");
}

#[test]
fn the_places_of_several_keys_are_granted_together() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE j a {LONG}")).grant();
    server.call("LOCK.QUEUE j x KEEP 600000").int();
    assert_eq!(server.call("LOCK.MQUEUE 2 k j b KEEP 600000").int(), 2);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.call("LOCK.MQUEUE 2 j k b KEEP 600000").int(), 2);
    server.call("LOCK.CANCEL j x").int();
    server.call("LOCK.RELEASE j a").int();
    let granted = server.call("LOCK.MQUEUE 2 j k b").grant();
    for key in ["j", "k"] {
        assert_eq!(server.known_lock(key).holder().int("fence"), granted.fence);
    }
}
