//! LOCK.RELEASE ... LEAVE: a token ends all that it has at a key, and its late commands get LEFT.

use std::time::{Duration, Instant};

use redis::{ServerError, Value};
use support::{server_with_holder, until, Client, Expect, Server, LONG};

/// The longest time for which a mark that has ended is still counted.
const SWEPT_WITHIN: Duration = Duration::from_secs(10);

const DAY_MS: u64 = 86_400_000;

#[track_caller]
fn assert_left(client: &mut Client, command: &str) {
    let error = client.call(command).error();
    assert!(error.starts_with("LEFT "), "{command}: {error}");
}

#[test]
fn late_commands_are_turned_away_wherever_they_come_from() {
    let server = server_with_holder();
    assert_eq!(server.call("LOCK.RELEASE k a LEAVE 600000").int(), 1);
    assert_eq!(server.info("lock", "lock_left"), "1");
    for mut client in [server.client(), server.client().into_resp3()] {
        for command in [
            "LOCK.ACQUIRE k a",
            "LOCK.WAIT k a BLOCK 1",
            "LOCK.QUEUE k a",
            "LOCK.MACQUIRE 2 j k a",
            "LOCK.MWAIT 2 j k a BLOCK 1",
            "LOCK.MQUEUE 2 j k a",
        ] {
            assert_left(&mut client, command);
        }
        client.call("MULTI").okay();
        client.call("LOCK.WAIT k a").text();
        let replies = client.call("EXEC").list();
        let is_left = |error: &ServerError| error.code() == "LEFT";
        let are_left = matches!(&replies[..], [Value::ServerError(error)] if is_left(error));
        assert!(are_left, "{replies:?}");
        let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1])";
        let error = client.call(&["EVAL", script, "1", "k", "a"]).error();
        assert!(error.contains("LEFT "), "{error}");
    }
    assert!(
        server.lock_info("k").is_none(),
        "nothing was granted or queued"
    );
    assert!(server.lock_info("j").is_none());
    server.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn a_blocked_client_is_unblocked_and_the_next_is_granted() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(server.call("LOCK.RELEASE k b LEAVE 600000").int(), 0);
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
    assert_left(&mut waiter, "LOCK.WAIT k b");
    server.call("LOCK.RELEASE k a LEAVE 1").int();
    assert_eq!(behind.recv().grant().token, "c");
}

/// A command that a proxy or a driver's retry has held back arrives after the client gave up.
#[test]
fn a_wait_that_arrives_after_the_leave_takes_nothing_from_the_next() {
    let server = server_with_holder();
    let mut late = server.client();
    server.call_batch(&["LOCK.RELEASE k gone LEAVE 600000", "LOCK.RELEASE k a"]);
    late.send(format!("LOCK.WAIT k gone {LONG}"));
    server.call(format!("LOCK.ACQUIRE k next {LONG}")).grant();
    let error = late.recv().error();
    assert!(error.starts_with("LEFT "), "{error}");
    assert_eq!(server.known_lock("k").holder_tokens(), ["next"]);
}

#[test]
fn only_time_and_a_restart_end_a_mark() {
    let (mut server, other) = (server_with_holder(), Server::start());
    let mut client = server.client();
    server
        .call(format!("LOCK.RELEASE k a LEAVE {DAY_MS}"))
        .int();
    for change in [
        "DEL k",
        "FLUSHALL",
        "SWAPDB 0 1",
        "SWAPDB 0 1",
        "DEBUG RELOAD",
    ] {
        drop(server.call(change));
        assert_left(&mut client, "LOCK.ACQUIRE k a");
    }
    // The mark stays with the number of the database.
    server.call("LOCK.ACQUIRE other a").grant();
    server.call("RENAME other k").okay();
    assert_left(&mut client, "LOCK.ACQUIRE k a");
    assert_eq!(client.call("LOCK.EXTEND k a").int(), 1);
    assert_eq!(client.call("LOCK.RELEASE k a").int(), 1);
    server.replica_of(&other);
    server.call("REPLICAOF NO ONE").okay();
    assert_left(&mut client, "LOCK.ACQUIRE k a");
    server.call("LOCK.ACQUIRE k b").grant();
    server.call("SAVE").okay();
    server.restart();
    server.call("LOCK.RELEASE k b").int();
    server.call("LOCK.ACQUIRE k a").grant();
}

#[test]
fn a_mark_is_not_replicated() {
    let (server, replica) = (server_with_holder(), Server::start());
    replica.replica_of(&server);
    server.call("LOCK.RELEASE k a LEAVE 600000").int();
    replica.until_in_step(&server);
    assert_eq!(replica.info("lock", "lock_left"), "0");
    replica.call("REPLICAOF NO ONE").okay();
    replica.call("LOCK.ACQUIRE k a").grant();
}

#[test]
fn a_mark_that_has_ended_is_removed_also_by_a_replica_and_in_a_pause() {
    let other = Server::start();
    let servers = [Server::start(), Server::start(), Server::start()];
    for server in &servers {
        assert_eq!(server.call("LOCK.MRELEASE 2 k j a LEAVE 1").int(), 0);
        server.call("LOCK.RELEASE k lasting LEAVE 600000").int();
    }
    let begun = Instant::now();
    let [_, demoted, paused] = &servers;
    demoted.replica_of(&other);
    paused.call("CLIENT PAUSE 600000 WRITE").okay();
    for server in &servers {
        until("the ended marks are gone", || {
            server.info("lock", "lock_left") == "1"
        });
    }
    assert!(begun.elapsed() < SWEPT_WITHIN + Duration::from_secs(5));
    paused.call("CLIENT UNPAUSE").okay();
}

#[test]
fn a_mark_takes_at_most_100_bytes() {
    const KEYS: usize = 10_000;
    for key_len in [1, 1000] {
        let server = Server::start();
        let token = "t".repeat(256);
        for batch in 0..10 {
            let keys = (0..KEYS).map(|key| format!("{key:0key_len$}-{batch}"));
            let mut words = vec!["LOCK.MRELEASE".to_owned(), KEYS.to_string()];
            words.extend(keys);
            words.extend([token.clone(), "LEAVE".to_owned(), DAY_MS.to_string()]);
            server.call(&words).int();
        }
        let info = |field| {
            server
                .info("lock", field)
                .parse::<usize>()
                .expect("a number")
        };
        assert_eq!(info("lock_left"), 10 * KEYS);
        let bytes = info("lock_bytes") / (10 * KEYS);
        assert!(
            bytes <= 100,
            "{bytes} bytes a mark with keys of {key_len} bytes"
        );
        // The newest take the place of the oldest.
        server.call("LOCK.RELEASE k more LEAVE 600000").int();
        assert_eq!(info("lock_left"), 10 * KEYS);
    }
}

#[test]
fn a_leave_needs_the_rights_of_a_release_and_no_memory() {
    let server = server_with_holder();
    server
        .call("ACL SETUSER reader on nopass %R~* +@all")
        .okay();
    let mut reader = server.client();
    reader.call("AUTH reader any").okay();
    let error = reader.call("LOCK.RELEASE k a LEAVE 1000").error();
    assert!(error.starts_with("NOPERM"), "{error}");
    server.call("CONFIG SET maxmemory 1").okay();
    assert_eq!(server.call("LOCK.RELEASE k a LEAVE 600000").int(), 1);
    assert_eq!(server.info("lock", "lock_left"), "1");
}

#[test]
fn marks_that_have_ended_free_their_memory_beside_one_that_lasts() {
    const KEYS: usize = 10_000;
    let server = Server::start();
    let info = |field| server.info("lock", field).parse::<i64>().expect("a number");
    server.call("LOCK.RELEASE k lasting LEAVE 600000").int();
    let before = info("lock_bytes");
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let leave = format!("LOCK.MRELEASE {KEYS} {} t LEAVE 1", keys.join(" "));
    server.call(leave).int();
    until("the ended marks are gone", || info("lock_left") == 1);
    assert!(info("lock_bytes") - before < KEYS as i64);
}
