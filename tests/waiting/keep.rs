//! LOCK.WAIT ... KEEP: a waiter's place is kept for a while after its connection is lost, or after its
//! BLOCK has ended.

use redis::Value;
use support::{server_with_holder, until, Client, Expect, Server, LONG, MOVES};

/// Returns the token and the kind of each waiter for a key, in the order of the queue.
fn queue(server: &Server, key: &str) -> Vec<(String, String)> {
    let lock = server.lock_info(key);
    let queue = lock.map_or_else(Vec::new, |lock| lock.queue);
    let told = queue
        .iter()
        .map(|one| (one.text("token"), one.text("kind")));
    told.collect()
}

fn standing(token: &str, kind: &str) -> (String, String) {
    (token.to_owned(), kind.to_owned())
}

/// Waits until the queue of a key is `expected`, like `a absent, b blocked`.
#[track_caller]
fn until_queue(server: &Server, key: &str, expected: &str) {
    let expected: Vec<(String, String)> = expected
        .split(", ")
        .filter_map(|one| one.split_once(' '))
        .map(|(token, kind)| standing(token, kind))
        .collect();
    until(&format!("the queue is {expected:?}"), || {
        queue(server, key) == expected
    });
}

/// Waits with `command` and closes the connection.
fn lost(server: &Server, command: &str) {
    server.waiter(command).close();
}

#[test]
fn every_way_to_lose_a_connection_keeps_the_place() {
    type Loss = fn(&Server, Client);
    let losses: [(&str, Loss); 4] = [
        ("closed", |_, client| client.close()),
        ("reset", |_, client| client.reset()),
        ("killed by its id", |server, client| {
            let kill = format!("CLIENT KILL ID {}", client.id());
            server.call(kill).int();
        }),
        ("killed with all others", |server, _client| {
            server.call("CLIENT KILL TYPE normal SKIPME yes").int();
        }),
    ];
    for (how, lose) in losses {
        let server = server_with_holder();
        let client = server.waiter(format!("LOCK.WAIT k b {LONG} KEEP 600000"));
        let behind = "LOCK.QUEUE k c KEEP 600000";
        assert_eq!(server.call(behind).int(), 2, "{how}");
        lose(&server, client);
        server.reconnect();
        until_queue(&server, "k", "b absent, c place");
        assert_eq!(server.call(behind).int(), 2, "{how}");
        let again = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        until_queue(&server, "k", "b blocked, c place");
        again.close();
        until_queue(&server, "k", "c place");
    }
}

#[test]
fn what_the_server_ends_by_itself_is_given_up() {
    let ends = [
        "CLIENT UNBLOCK <id>",
        "CLIENT UNBLOCK <id> TIMEOUT",
        "CLIENT UNBLOCK <id> ERROR",
        "LOCK.CANCEL k b",
    ];
    for end in ends {
        let server = server_with_holder();
        let mut client = server.waiter("LOCK.WAIT k b KEEP 600000");
        let end = end.replace("<id>", &client.id().to_string());
        assert_eq!(server.call(&end).int(), 1, "{end}");
        drop(client.recv());
        assert_eq!(server.waiters("k"), 0, "{end}");
        client.close();
        server.settle();
        assert_eq!(server.waiters("k"), 0, "{end}");
    }
}

#[test]
fn demotion_gives_the_place_up() {
    let (server, other) = (server_with_holder(), Server::start());
    let mut client = server.waiter("LOCK.WAIT k b KEEP 600000");
    lost(&server, "LOCK.WAIT k c KEEP 600000");
    until_queue(&server, "k", "b blocked, c absent");
    server.replica_of(&other);
    let error = client.recv().error();
    assert!(error.starts_with("UNBLOCKED"), "{error}");
    client.close();
    server.call("REPLICAOF NO ONE").okay();
    server.settle();
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn nobody_is_held_up_by_one_who_is_not_there() {
    let server = server_with_holder();
    lost(&server, "LOCK.WAIT k b KEEP 600000");
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(behind.recv().grant().token, "c");
    server.call("LOCK.RELEASE k c").int();
    assert_eq!(server.call("LOCK.ACQUIRE k d PX 30").grant().token, "d");
    until("the lease has ended", || {
        server.call("LOCK.CHECK k d").int() == 0
    });
    assert_eq!(queue(&server, "k"), [standing("b", "absent")]);
    assert_eq!(server.info("lock", "lock_places"), "1");
    assert_eq!(server.info("lock", "lock_waiters"), "0");
}

#[test]
fn keep_runs_only_while_nobody_is_there() {
    let server = server_with_holder();
    let _connected = server.waiter("LOCK.WAIT k b BLOCK 600000 KEEP 600000");
    lost(&server, "LOCK.WAIT k c BLOCK 600000 KEEP 600000");
    until_queue(&server, "k", "b blocked, c absent");
    until("a millisecond of its KEEP has run", || {
        server.known_lock("k").queue[1].int("keep-ms") < 600_000
    });
    let lock = server.known_lock("k");
    let [connected, absent] = lock.queue.as_slice() else {
        panic!("{lock:?}")
    };
    assert_eq!(connected.int("keep-ms"), 600_000);
    assert!((1..600_000).contains(&absent.int("keep-ms")));
    assert!((1..600_000).contains(&connected.int("timeout-ms")));
    assert_eq!(
        absent.int("timeout-ms"),
        0,
        "no BLOCK counts while nobody is there"
    );
    assert!(connected.has("client-id") && !absent.has("client-id"));
}

#[test]
fn a_place_lapses_after_keep() {
    let server = server_with_holder();
    lost(&server, "LOCK.WAIT k b BLOCK 10 KEEP 30");
    until("the place has lapsed", || {
        server.info("lock", "lock_lapsed_places") == "1"
    });
    assert_eq!(server.waiters("k"), 0);
    assert_eq!(server.info("lock", "lock_timeouts"), "0");
    assert_eq!(server.call("LOCK.QUEUE k c").int(), 1);
}

/// A client waits in one loop, by any driver.
#[test]
fn a_client_that_waits_again_and_again_keeps_its_turn() {
    let server = server_with_holder();
    let mut client = server.client();
    client.call("LOCK.WAIT k b BLOCK 1 KEEP 600000").nil();
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    until_queue(&server, "k", "b absent, c blocked");
    assert_eq!(server.known_lock("k").queue[0].int("timeout-ms"), 0);
    for _ in 0..3 {
        client.call("LOCK.WAIT k b BLOCK 1 KEEP 600000").nil();
    }
    client.send(format!("LOCK.WAIT k b {LONG} BLOCK 600000 KEEP 600000"));
    until_queue(&server, "k", "b blocked, c blocked");
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(client.recv().grant().token, "b");
    server.call("LOCK.RELEASE k b").int();
    assert_eq!(behind.recv().grant().token, "c");
    assert_eq!(server.info("lock", "lock_timeouts"), "0");
}

#[test]
fn a_connection_that_closes_after_its_block_leaves_the_place_alone() {
    for how in ["closed", "killed", "unblocked"] {
        let server = server_with_holder();
        let mut client = server.client();
        let id = client.id();
        client.call("LOCK.WAIT k b BLOCK 1 KEEP 600000").nil();
        match how {
            "closed" => client.close(),
            "killed" => drop(server.call(format!("CLIENT KILL ID {id}")).int()),
            _ => assert_eq!(server.call(format!("CLIENT UNBLOCK {id}")).int(), 0),
        }
        server.settle();
        assert_eq!(queue(&server, "k"), [standing("b", "absent")], "{how}");
    }
}

/// The end of BLOCK and the death of its connection come in one pass of the event loop.
#[test]
fn a_connection_killed_in_the_moment_of_its_nil_leaves_the_place_alone() {
    for _ in 0..30 {
        let server = server_with_holder();
        let client = server.waiter("LOCK.WAIT k b BLOCK 30 KEEP 600000");
        let kill = format!("CLIENT KILL ID {}", client.id());
        server.call_batch(&["DEBUG SLEEP 0.04", &kill]);
        server.settle();
        assert_eq!(queue(&server, "k"), [standing("b", "absent")]);
    }
}

#[test]
fn the_end_of_block_needs_a_ticket_for_each_key() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-tickets 1").okay();
    let mut client = server.client();
    client.call("LOCK.MWAIT 2 k j b BLOCK 1 KEEP 600000").nil();
    assert_eq!(server.waiters("k"), 0);
    assert_eq!(server.info("lock", "lock_timeouts"), "1");
    assert_eq!(server.info("lock", "lock_max_tickets_refusals"), "1");
    server.call("CONFIG SET lock.max-tickets 2").okay();
    client.call("LOCK.MWAIT 2 k j b BLOCK 1 KEEP 600000").nil();
    assert_eq!(queue(&server, "k"), [standing("b", "absent")]);
    assert_eq!(server.info("lock", "lock_places"), "2");
}

#[test]
fn a_wait_that_may_not_block_leaves_no_place() {
    let server = server_with_holder();
    let replies = server.call_batch(&["MULTI", "LOCK.WAIT k b BLOCK 1 KEEP 600000", "EXEC"]);
    assert_eq!(replies[2].clone().list(), [Value::Nil]);
    let script = "return redis.call('LOCK.WAIT', KEYS[1], 'b', 'BLOCK', 1, 'KEEP', 600000)";
    server.call(&["EVAL", script, "1", "k"]).nil();
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn a_queue_takes_the_place_up_and_needs_no_ticket_more() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-tickets 1").okay();
    lost(&server, "LOCK.WAIT k b BLOCK 600000 KEEP 600000");
    until_queue(&server, "k", "b absent");
    let error = server.call("LOCK.QUEUE k c").error();
    assert!(error.starts_with("MAXTICKETS"), "{error}");
    lost(&server, "LOCK.WAIT k d KEEP 600000");
    until_queue(&server, "k", "b absent");
    assert_eq!(server.info("lock", "lock_max_tickets_refusals"), "2");
    assert_eq!(server.call("LOCK.QUEUE k b KEEP 600000").int(), 1);
    assert_eq!(server.known_lock("k").queue[0].int("timeout-ms"), 0);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.call("LOCK.QUEUE k b").grant().token, "b");
}

#[test]
fn a_wait_that_takes_the_place_up_counts_as_new() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-waiters 1").okay();
    lost(&server, "LOCK.WAIT k b KEEP 600000");
    until_queue(&server, "k", "b absent");
    let _other = server.waiter("LOCK.WAIT k c");
    let error = server.call("LOCK.WAIT k b").error();
    assert!(error.starts_with("MAXWAITERS"), "{error}");
    assert_eq!(server.known_lock("k").queue_tokens(), ["b", "c"]);
}

/// Kills the first waiter in the same event loop pass as its grant.
#[test]
fn a_grant_taken_back_goes_back_to_its_place() {
    for round in 0..30 {
        let server = server_with_holder();
        let client = server.waiter(format!("LOCK.WAIT k b {LONG} KEEP 600000"));
        let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
        let kill = format!("CLIENT KILL ID {}", client.id());
        server.call_batch(&["LOCK.RELEASE k a", &kill]);
        assert_eq!(behind.recv().grant().token, "c", "round {round}");
        until_queue(&server, "k", "b absent");
        let mut again = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        server.call("LOCK.RELEASE k c").int();
        assert_eq!(again.recv().grant().token, "b", "round {round}");
    }
}

/// Commands that tell a connection of b's grant.
const TELLERS: [&str; 5] = [
    "LOCK.ACQUIRE k b PX 600000",
    "LOCK.WAIT k b PX 600000",
    "LOCK.QUEUE k b PX 600000",
    "LOCK.MACQUIRE 1 k b PX 600000",
    "LOCK.EXTEND k b PX 600000",
];

/// A command that tells of b's grant and makes none.
const CHECK: &str = "LOCK.CHECK k b";

/// Like `a_grant_taken_back_goes_back_to_its_place`, but another connection of the token gets the
/// grant confirmed, before or after the old connection is killed.
#[test]
fn a_grant_that_another_connection_was_told_of_is_not_taken_back() {
    for told in TELLERS.into_iter().chain([CHECK]) {
        for keep in ["", "KEEP 600000"] {
            for is_killed_first in [false, true] {
                let server = server_with_holder();
                let client = server.waiter(format!("LOCK.WAIT k b {LONG} {keep}"));
                let _behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
                let kill = format!("CLIENT KILL ID {}", client.id());
                let mut batch = ["LOCK.RELEASE k a", told, &kill];
                if is_killed_first {
                    batch.swap(1, 2);
                }
                server.call_batch(&batch);
                server.settle();
                assert_eq!(server.known_lock("k").holder_tokens(), ["b"], "{batch:?}");
                assert_eq!(server.known_lock("k").queue_tokens(), ["c"], "{batch:?}");
            }
        }
    }
}

/// Commands that tell a connection of b's grant of j and k, or of one of the two.
const TELLERS_OF_SEVERAL: [&str; 8] = [
    "LOCK.ACQUIRE j b PX 600000",
    "LOCK.QUEUE k b PX 600000",
    "LOCK.EXTEND k b PX 600000",
    "LOCK.MACQUIRE 2 j k b PX 600000",
    "LOCK.MWAIT 2 k j b PX 600000",
    "LOCK.MQUEUE 2 j k b PX 600000",
    "LOCK.MEXTEND 2 k j b PX 600000",
    CHECK,
];

/// The same for several keys: a reply about one of them keeps all.
#[test]
fn a_grant_of_several_keys_that_another_connection_was_told_of_is_not_taken_back() {
    for told in TELLERS_OF_SEVERAL {
        for is_killed_first in [false, true] {
            let server = server_with_holder();
            let client = server.waiter(format!("LOCK.MWAIT 2 j k b {LONG}"));
            let kill = format!("CLIENT KILL ID {}", client.id());
            let mut batch = ["LOCK.RELEASE k a", told, &kill];
            if is_killed_first {
                batch.swap(1, 2);
            }
            server.call_batch(&batch);
            server.settle();
            for key in ["j", "k"] {
                let info = server.lock_info(key).map(|info| info.holder_tokens());
                assert_eq!(info, Some(vec!["b".to_owned()]), "{key}: {batch:?}");
            }
        }
    }
}

/// The same for a lock that moves in that tick, and which the connection was told of before or after.
#[test]
fn a_lock_that_moves_after_another_connection_was_told_of_it_is_not_taken_back() {
    for (way, db, key) in MOVES {
        let (told, told_late) = (
            format!("LOCK.EXTEND k b {LONG}"),
            format!("LOCK.EXTEND {key} b {LONG}"),
        );
        let select = format!("SELECT {db}");
        for is_killed_first in [false, true] {
            for is_told_first in [false, true] {
                let server = server_with_holder();
                let client = server.waiter(format!("LOCK.MWAIT 2 k l b {LONG}"));
                let kill = format!("CLIENT KILL ID {}", client.id());
                let mut batch = vec!["LOCK.RELEASE k a", way, &kill];
                if is_killed_first {
                    batch.swap(1, 2);
                }
                match is_told_first {
                    true => batch.insert(1, &told),
                    false => batch.extend([select.as_str(), &told_late]),
                }
                server.client().call_all(&batch);
                server.settle();
                let mut there = server.client().into_db(db);
                let check = there.call(format!("LOCK.CHECK {key} b")).int();
                assert!(check > 0, "{batch:?}: {check}");
            }
        }
    }
}

/// Two waits of b that are granted in the same tick. The later one keeps the fence of the earlier one,
/// or replaces its grant.
const TWICE: [[&str; 2]; 3] = [
    ["LOCK.MWAIT 2 k l b", "LOCK.WAIT k b"],
    ["LOCK.MWAIT 2 k l b", "LOCK.WAIT k b SHARED"],
    ["LOCK.WAIT k b", "LOCK.MWAIT 2 k l b"],
];

#[test]
fn a_lock_that_two_clients_of_a_token_wait_for_stays_with_the_one_that_lives() {
    for waits in TWICE {
        for killed in [0, 1] {
            let server = server_with_holder();
            let mut clients = waits.map(|wait| server.waiter(format!("{wait} {LONG}")));
            let kill = format!("CLIENT KILL ID {}", clients[killed].id());
            server.call_all(&["LOCK.RELEASE k a", &kill]);
            clients[1 - killed].recv().grant();
            server.settle();
            let what = format!("{waits:?} without {killed}");
            assert_eq!(server.call("LOCK.RELEASE k b").int(), 1, "{what}");
            // The later hand-over has told nobody of l, and is taken back alone.
            if killed == 1 && waits[1].contains("MWAIT") {
                assert!(server.lock_info("l").is_none(), "{what}");
            }
        }
    }
}

/// The reply is about a grant that the token has released since.
#[test]
fn a_reply_about_an_earlier_grant_keeps_no_later_one() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE l a {LONG}")).grant();
    let mut earlier = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let later = server.waiter(format!("LOCK.MWAIT 2 k l b {LONG}"));
    let kill = format!("CLIENT KILL ID {}", later.id());
    let batch = [
        "LOCK.RELEASE k a",
        "LOCK.RELEASE k b",
        "LOCK.RELEASE l a",
        &kill,
    ];
    for (command, reply) in batch.iter().zip(server.call_batch(&batch)) {
        assert_eq!(reply.int(), 1, "{command}");
    }
    earlier.recv().grant();
    until("no key is left", || server.call("DBSIZE").int() == 0);
}

#[test]
fn a_lock_that_two_clients_of_a_token_wait_for_is_free_if_both_are_killed() {
    for waits in TWICE {
        for is_reversed in [false, true] {
            let server = server_with_holder();
            let clients = waits.map(|wait| server.waiter(format!("{wait} {LONG}")));
            let mut kills = clients.map(|client| format!("CLIENT KILL ID {}", client.id()));
            if is_reversed {
                kills.reverse();
            }
            server.call_all(&["LOCK.RELEASE k a", &kills[0], &kills[1]]);
            until(&format!("{waits:?}, {is_reversed}: no key is left"), || {
                server.call("DBSIZE").int() == 0
            });
        }
    }
}

/// Confirms a grant by the command that makes it, because it settles the key first.
#[test]
fn a_grant_that_the_confirming_command_made_is_not_taken_back() {
    for told in TELLERS {
        let server = server_with_holder();
        let client = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let _behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
        let kill = format!("CLIENT KILL ID {}", client.id());
        server.call_batch(&["DEL k", told, &kill]);
        server.settle();
        assert_eq!(server.known_lock("k").holder_tokens(), ["b"], "{told}");
        assert_eq!(server.known_lock("k").queue_tokens(), ["c"], "{told}");
    }
}

/// Confirms an earlier grant, which must not protect a later grant in the same event loop pass.
#[test]
fn a_grant_after_one_that_was_told_of_is_taken_back() {
    let server = server_with_holder();
    let _other = server.waiter(format!("LOCK.WAIT k x {LONG}"));
    server.call(format!("LOCK.ACQUIRE l b {LONG}")).grant();
    server.call(format!("LOCK.ACQUIRE m a {LONG}")).grant();
    let client = server.waiter(format!("LOCK.MWAIT 2 l m b {LONG}"));
    let mut behind = server.waiter(format!("LOCK.WAIT l c {LONG}"));
    let kill = format!("CLIENT KILL ID {}", client.id());
    let batch = [
        "LOCK.RELEASE k a",
        "LOCK.EXTEND l b",
        "LOCK.RELEASE l b",
        "LOCK.RELEASE m a",
        &kill,
    ];
    for (command, reply) in batch.iter().zip(server.call_batch(&batch)) {
        assert_eq!(reply.int(), 1, "{command}");
    }
    assert_eq!(behind.recv().grant().token, "c");
    assert!(server.lock_info("m").is_none());
}

/// Takes a grant back from a client that stays connected: it has read an error and lost its place.
#[test]
fn a_grant_taken_back_from_one_who_lives_on_leaves_no_place() {
    for round in 0..30 {
        let server = server_with_holder();
        let mut client = server.waiter(format!("LOCK.WAIT k b {LONG} KEEP 600000"));
        let unblock = format!("CLIENT UNBLOCK {} ERROR", client.id());
        server.call_batch(&["LOCK.RELEASE k a", &unblock]);
        match client.recv() {
            Ok(_) => assert_eq!(server.known_lock("k").holder_tokens(), ["b"]),
            Err(error) => {
                assert!(error.starts_with("UNBLOCKED"), "{error}");
                until("the grant is taken back", || {
                    server.lock_info("k").is_none()
                });
            }
        }
        assert_eq!(server.waiters("k"), 0, "round {round}");
    }
}

#[test]
fn with_session_it_keeps_the_grant_too() {
    let server = server_with_holder();
    let mut client = server.waiter("LOCK.WAIT k b PX 600000 SESSION KEEP 500000");
    server.call("LOCK.RELEASE k a").int();
    client.recv().grant();
    client.close();
    until("the tie has ended", || {
        server.known_lock("k").holder().int("session") == 0
    });
    let lease_ms = server.known_lock("k").holder().int("lease-ms");
    assert!((1..=500_000).contains(&lease_ms), "{lease_ms}");
    lost(&server, "LOCK.WAIT k c KEEP 500000 SESSION");
    until_queue(&server, "k", "c absent");
}

#[test]
fn several_keys_are_kept_as_one() {
    let server = server_with_holder();
    lost(&server, "LOCK.MWAIT 2 j k b PX 600000 KEEP 600000");
    until_queue(&server, "j", "b absent");
    until_queue(&server, "k", "b absent");
    assert_eq!(
        server
            .call(format!("LOCK.ACQUIRE j x {LONG}"))
            .grant()
            .token,
        "x"
    );
    let mut again = server.waiter("LOCK.MWAIT 2 k j b PX 600000");
    server.call("LOCK.RELEASE k a").int();
    again.expect_silence();
    server.call("LOCK.RELEASE j x").int();
    again.recv().grant();
}

#[test]
fn another_type_ends_the_place() {
    let server = server_with_holder();
    lost(&server, "LOCK.WAIT k b KEEP 600000");
    lost(&server, "LOCK.WAIT k c KEEP 600000");
    until_queue(&server, "k", "b absent, c absent");
    server.call("SET k text").okay();
    until("the places are gone", || {
        server.info("lock", "lock_places") == "0"
    });
}

#[test]
fn a_reload_keeps_it() {
    let server = server_with_holder();
    lost(&server, "LOCK.WAIT k b KEEP 600000");
    until_queue(&server, "k", "b absent");
    if server.call("DEBUG RELOAD").is_ok() {
        assert_eq!(queue(&server, "k"), [standing("b", "absent")]);
    }
    for line in ["FLUSHALL", "SWAPDB 0 1"] {
        server.call(line).okay();
        server.settle();
        assert_eq!(queue(&server, "k"), [standing("b", "absent")], "{line}");
    }
}

#[test]
fn a_restart_ends_the_place() {
    let mut server = server_with_holder();
    lost(&server, "LOCK.WAIT k b KEEP 600000");
    until_queue(&server, "k", "b absent");
    server.call("SAVE").okay();
    server.restart();
    assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
    assert_eq!(server.waiters("k"), 0);
}
