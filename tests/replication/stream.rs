//! The commands that replicas are sent, word for word: effects with absolute times, and nothing if
//! nothing changed. Replicas that apply the effects have the same locks.

use redis::Value;
use support::load::Dice;
use support::payload;
use support::{
    assert_same_data, unix_time_ms, unix_time_us, until, words, Client, Expect, ReplicationStream,
    Server, LONG,
};

const LONG_MS: i64 = 600_000;

/// Starts a primary and attaches its stream. The server's own search for expired keys is off, so
/// that a test knows what ends a lease.
fn primary() -> (Server, ReplicationStream) {
    let server = Server::start();
    server.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    let stream = ReplicationStream::attach(&server);
    (server, stream)
}

/// Like `primary`, with `k` held by `a`. The stream is read past that grant, which is returned.
fn primary_with_holder() -> (Server, ReplicationStream, Applied) {
    let (server, mut stream) = primary();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let grant = the_grant(&mut stream, &server);
    (server, stream, grant)
}

/// The effect of a grant:
/// `LOCK.APPLY key GRANT token "exclusive 0 fence holds deadline-ms since-ms lease-ms 1"`.
#[derive(Debug, Clone, PartialEq)]
struct Applied {
    key: String,
    token: String,
    fence: i64,
    holds: i64,
    deadline_ms: i64,
    since_ms: i64,
    lease_ms: i64,
}

impl Applied {
    #[track_caller]
    fn of(line: &str) -> Applied {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| -> i64 { word.parse().expect("a number") };
        let ["LOCK.APPLY", key, "GRANT", token, "exclusive", "0", fence, holds, deadline_ms, since_ms, lease_ms, "1"] =
            words.as_slice()
        else {
            panic!("not a grant: {line}");
        };
        Applied {
            key: (*key).to_owned(),
            token: (*token).to_owned(),
            fence: number(fence),
            holds: number(holds),
            deadline_ms: number(deadline_ms),
            since_ms: number(since_ms),
            lease_ms: number(lease_ms),
        }
    }
}

/// Returns the grant sent since the last look. Panics if anything else was sent.
#[track_caller]
fn the_grant(stream: &mut ReplicationStream, server: &Server) -> Applied {
    let lines = stream.lines_up_to_now(server);
    let [line] = lines.as_slice() else {
        panic!("one command was expected: {lines:#?}");
    };
    Applied::of(line)
}

/// Asserts that nothing has been sent since the last look.
#[track_caller]
fn assert_nothing(stream: &mut ReplicationStream, server: &Server, what: &str) {
    let lines = stream.lines_up_to_now(server);
    assert!(lines.is_empty(), "{what}: {lines:#?}");
}

/// Asserts that the effect is a first grant of `key` to `token`, made between `since` and now.
#[track_caller]
fn assert_new(applied: &Applied, key: &str, token: &str, lease_ms: i64, since: i64) {
    assert_eq!((applied.key.as_str(), applied.token.as_str()), (key, token));
    assert_eq!(applied.holds, 1);
    let made = since..=unix_time_ms();
    assert!(made.contains(&applied.since_ms), "{made:?}: {applied:?}");
    assert_eq!(applied.deadline_ms, applied.since_ms + lease_ms);
    assert_eq!(applied.lease_ms, lease_ms);
}

// ---- commands

#[test]
fn a_new_grant_is_one_effect() {
    let (server, mut stream) = primary();
    for command in ["LOCK.ACQUIRE", "LOCK.WAIT"] {
        for (key, options, lease_ms) in [
            ("k1", "", 30_000),
            ("k2", "PX 40000", 40_000),
            ("k3", "EX 50", 50_000),
            ("k4", "REENTRANT PX 1000000", 1_000_000),
        ] {
            let since = unix_time_ms();
            let grant = server.call(format!("{command} {key} a {options}")).grant();
            let applied = the_grant(&mut stream, &server);
            assert_new(&applied, key, "a", lease_ms, since);
            assert_eq!(applied.fence, grant.fence);
            server.call(&["DEL", key]).int();
            stream.lines_up_to_now(&server);
        }
    }
}

#[test]
fn a_drawn_token_is_replicated_as_drawn() {
    let (server, mut stream) = primary();
    let grant = server.call("LOCK.ACQUIRE k * PX 60000").grant();
    assert_eq!(the_grant(&mut stream, &server).token, grant.token);
}

#[test]
fn tokens_and_keys_are_replicated_byte_by_byte() {
    let (server, mut stream) = primary();
    let key: &[u8] = b"k \0\r\n\xff";
    let token: &[u8] = b"\0\r\n*1\xfe ";
    server.call(&[b"LOCK.ACQUIRE", key, token]).grant();
    server.call(&[b"LOCK.RELEASE", key, token]).int();
    let commands = stream.up_to_now(&server);
    let [grant, del] = commands.as_slice() else {
        panic!("two commands were expected: {commands:?}");
    };
    assert_eq!(grant[..4], [b"LOCK.APPLY", key, b"GRANT", token]);
    assert_eq!(*del, [b"DEL", key]);
}

#[test]
fn what_was_refused_is_not_replicated() {
    let (server, mut stream, _) = primary_with_holder();
    server.call("SET text value").okay();
    stream.lines_up_to_now(&server);
    for command in [
        "LOCK.ACQUIRE k b",
        "LOCK.ACQUIRE k *",
        "LOCK.WAIT k b BLOCK 1",
        "LOCK.EXTEND k b PX 5",
        "LOCK.EXTEND free b PX 5",
        "LOCK.RELEASE k b",
        "LOCK.RELEASE k b ALL",
        "LOCK.RELEASE free b",
    ] {
        let reply = server.call(command).value();
        assert!(
            [Value::Nil, Value::Int(0)].contains(&reply),
            "{command}: {reply:?}"
        );
        assert_nothing(&mut stream, &server, command);
    }
    for command in ["LOCK.CHECK k a", "LOCK.INFO k", "LOCK.HELP"] {
        server.call(command).value();
        assert_nothing(&mut stream, &server, command);
    }
    for command in [
        "LOCK.ACQUIRE k a PX 0",
        "LOCK.WAIT k a BLOCK -1",
        "LOCK.ACQUIRE text a",
        "LOCK.RELEASE text a",
        "LOCK.APPLY k DROP a",
    ] {
        server.call(command).error();
        assert_nothing(&mut stream, &server, command);
    }
}

/// Asserts that the lease was set again since `since_ms`, and that fence, holds and the time of the
/// grant stayed.
#[track_caller]
fn assert_only_lease_set(applied: &Applied, first: &Applied, lease_ms: i64, since_ms: i64) {
    let deadlines = since_ms + lease_ms..=unix_time_ms() + lease_ms;
    assert!(deadlines.contains(&applied.deadline_ms), "{applied:?}");
    let expected = Applied {
        deadline_ms: applied.deadline_ms,
        lease_ms,
        ..first.clone()
    };
    assert_eq!(*applied, expected);
}

#[test]
fn a_repeat_is_replicated_with_its_new_deadline() {
    let (server, mut stream, first) = primary_with_holder();
    for (command, lease_ms) in [("LOCK.ACQUIRE", 700_000), ("LOCK.WAIT", 800_000)] {
        let now_ms = unix_time_ms();
        server.call(format!("{command} k a PX {lease_ms}")).grant();
        let applied = the_grant(&mut stream, &server);
        assert_only_lease_set(&applied, &first, lease_ms, now_ms);
    }
}

#[test]
fn holds_are_replicated_as_numbers() {
    let (server, mut stream, first) = primary_with_holder();
    let mut holds = |command: &str| {
        server.call(command).value();
        let applied = the_grant(&mut stream, &server);
        assert_eq!(applied.fence, first.fence);
        assert_eq!(applied.since_ms, first.since_ms);
        (applied.holds, applied.deadline_ms)
    };
    assert_eq!(holds(&format!("LOCK.ACQUIRE k a {LONG} REENTRANT")).0, 2);
    let (count, deadline_ms) = holds(&format!("LOCK.WAIT k a {LONG} REENTRANT"));
    assert_eq!(count, 3);
    // A release of one hold leaves the lease alone.
    assert_eq!(holds("LOCK.RELEASE k a"), (2, deadline_ms));
    assert_eq!(holds("LOCK.RELEASE k a HOLDS 1"), (1, deadline_ms));
    // The repeated command changes nothing, and is still replicated.
    assert_eq!(holds("LOCK.RELEASE k a HOLDS 1"), (1, deadline_ms));
    assert_eq!(holds(&format!("LOCK.ACQUIRE k a {LONG} HOLDS 9")).0, 9);
    assert_eq!(holds("LOCK.RELEASE k a HOLDS 1").0, 1);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(stream.lines_up_to_now(&server), ["DEL k"]);
}

#[test]
fn an_extension_is_replicated_as_a_grant_with_a_new_deadline() {
    let (server, mut stream, first) = primary_with_holder();
    for (options, lease_ms) in [("PX 900000", 900_000), ("EX 50", 50_000), ("", 50_000)] {
        let now_ms = unix_time_ms();
        assert_eq!(server.call(format!("LOCK.EXTEND k a {options}")).int(), 1);
        let applied = the_grant(&mut stream, &server);
        assert_only_lease_set(&applied, &first, lease_ms, now_ms);
    }
}

#[test]
fn an_extension_with_gt_is_replicated_also_if_it_leaves_the_lease() {
    let (server, mut stream, first) = primary_with_holder();
    server.call("LOCK.EXTEND k a PX 1 GT").int();
    assert_eq!(the_grant(&mut stream, &server), first);
    server.call("LOCK.EXTEND k a PX 700000 GT").int();
    let longer = the_grant(&mut stream, &server);
    assert!(longer.deadline_ms > first.deadline_ms);
}

#[test]
fn a_leave_is_replicated_as_a_release_of_all_holds() {
    let (server, mut stream, _) = primary_with_holder();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    stream.lines_up_to_now(&server);
    server.call("LOCK.RELEASE k a LEAVE 600000").int();
    assert_eq!(stream.lines_up_to_now(&server), ["DEL k"]);
    server.call("LOCK.RELEASE k a LEAVE 600000").int();
    server.call("LOCK.ACQUIRE k a").error();
    assert_nothing(&mut stream, &server, "a token that has left");
}

#[test]
fn the_last_release_is_a_deletion() {
    for release in ["LOCK.RELEASE k a", "LOCK.RELEASE k a ALL"] {
        let (server, mut stream, _) = primary_with_holder();
        assert_eq!(server.call(release).int(), 1);
        assert_eq!(stream.lines_up_to_now(&server), ["DEL k"]);
    }
    let (server, mut stream, _) = primary_with_holder();
    server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    stream.lines_up_to_now(&server);
    assert_eq!(server.call("LOCK.RELEASE k a ALL").int(), 1);
    assert_eq!(stream.lines_up_to_now(&server), ["DEL k"]);
}

#[test]
fn effects_are_for_the_database_of_the_command() {
    let (server, mut stream) = primary();
    let mut client = server.client().into_db(7);
    client.call("LOCK.ACQUIRE k a").grant();
    let lines = stream.lines_up_to_now(&server);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_eq!(lines[0], "SELECT 7");
    assert_eq!(Applied::of(&lines[1]).key, "k");
    // A hand-over by the timer, with another database selected last.
    let mut waiter = server.client().into_db(7);
    server.block(&mut waiter, format!("LOCK.WAIT k b {LONG}"));
    client.call_all(&["LOCK.EXTEND k a PX 20", "SELECT 0", "SET begun 1"]);
    waiter.recv().grant();
    let mut lines = stream.lines_up_to_now(&server);
    let begun = lines.iter().position(|line| line == "SET begun 1");
    lines.drain(..=begun.expect("the mark"));
    // If the hand-over is a transaction, the SELECT is inside it.
    let place = usize::from(lines[0] == "MULTI");
    assert_eq!(lines.remove(place), "SELECT 7", "{lines:#?}");
    assert_eq!(hand_over_by_expiration(&lines).token, "b");
}

// ---- hand-overs

#[test]
fn to_queue_and_to_leave_the_queue_is_nobody_elses_business() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.client();
    waiter.call("LOCK.WAIT k b BLOCK 20").nil();
    assert_nothing(&mut stream, &server, "timed out");

    for unblock in ["TIMEOUT", "ERROR"] {
        let mut waiter = server.waiter("LOCK.WAIT k b");
        assert_nothing(&mut stream, &server, "queued");
        let command = format!("CLIENT UNBLOCK {} {unblock}", waiter.id());
        assert_eq!(server.call(command).int(), 1);
        drop(waiter.recv());
        server.settle();
        assert_nothing(&mut stream, &server, unblock);
    }

    let mut waiter = server.waiter("LOCK.WAIT k b");
    server.call(format!("CLIENT KILL ID {}", waiter.id())).int();
    waiter.expect_close();
    server.until_waiters("k", 0);
    assert_nothing(&mut stream, &server, "killed");

    let older = server.waiter("LOCK.WAIT k b");
    let _newer = server.waiter("LOCK.WAIT k b");
    older.close();
    server.settle();
    assert_nothing(&mut stream, &server, "taken over");
    assert_eq!(server.waiters("k"), 1);
}

#[test]
fn a_hand_over_by_release_is_one_effect() {
    for release in ["LOCK.RELEASE k a", "LOCK.RELEASE k a ALL"] {
        let (server, mut stream, _) = primary_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let since = unix_time_ms();
        assert_eq!(server.call(release).int(), 1);
        let grant = waiter.recv().grant();
        let applied = the_grant(&mut stream, &server);
        assert_new(&applied, "k", "b", LONG_MS, since);
        assert_eq!(applied.fence, grant.fence);
    }
}

/// Returns the grant that follows an expired lease. It is sent alone, or in one transaction after
/// the key's deletion. The transaction is sent if the server found the key expired before the
/// module looked.
#[track_caller]
fn hand_over_by_expiration(lines: &[String]) -> Applied {
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    match lines.as_slice() {
        [grant] | ["MULTI", "DEL k" | "UNLINK k", grant, "EXEC"] => Applied::of(grant),
        _ => panic!("not a hand-over: {lines:#?}"),
    }
}

#[test]
fn a_hand_over_by_the_end_of_a_lease_is_one_effect_or_one_transaction() {
    let (server, mut stream, first) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    // Both commands are in one transaction, so that the test knows where the hand-over begins.
    server.call_batch(&["MULTI", "LOCK.EXTEND k a PX 20", "SET begun 1", "EXEC"]);
    let grant = waiter.recv().grant();
    let lines = stream.lines_up_to_now(&server);
    let [multi, shortened, begun, exec, hand_over @ ..] = lines.as_slice() else {
        panic!("a transaction and more was expected: {lines:#?}");
    };
    assert_eq!([multi, begun, exec], ["MULTI", "SET begun 1", "EXEC"]);
    let deadline_ms = Applied::of(shortened).deadline_ms;
    let applied = hand_over_by_expiration(hand_over);
    assert_new(&applied, "k", "b", LONG_MS, deadline_ms);
    assert_eq!(applied.fence, grant.fence);
    assert!(grant.fence > first.fence);
}

#[test]
fn an_expired_lock_that_is_acquired_is_one_effect_or_one_transaction() {
    for command in ["LOCK.ACQUIRE k b PX 600000", "LOCK.WAIT k b PX 600000"] {
        let (server, mut stream) = primary();
        server.call("LOCK.ACQUIRE k a PX 5").grant();
        let deadline_ms = the_grant(&mut stream, &server).deadline_ms;
        until("the lease is over", || unix_time_ms() > deadline_ms + 1);
        server.call(command).grant();
        let applied = hand_over_by_expiration(&stream.lines_up_to_now(&server));
        assert_new(&applied, "k", "b", LONG_MS, deadline_ms);
    }
}

#[test]
fn an_expired_lock_that_nobody_wants_is_deleted_by_the_server() {
    let server = Server::start();
    let mut stream = ReplicationStream::attach(&server);
    let grant = server.call("LOCK.ACQUIRE k a PX 30").grant();
    until("the server is rid of it", || {
        server.call("DBSIZE").int() == 1 // The stream's marker.
    });
    let lines = stream.lines_up_to_now(&server);
    let [granted, deleted] = lines.as_slice() else {
        panic!("a grant and a deletion were expected: {lines:#?}");
    };
    assert_eq!(Applied::of(granted).fence, grant.fence);
    assert!(
        ["DEL k", "UNLINK k"].contains(&deleted.as_str()),
        "{deleted}"
    );
}

#[test]
fn an_expired_lock_that_its_holder_asks_about_is_deleted_at_most() {
    for command in ["LOCK.EXTEND k a", "LOCK.RELEASE k a", "LOCK.CHECK k a"] {
        let (server, mut stream) = primary();
        server.call("LOCK.ACQUIRE k a PX 5").grant();
        let deadline_ms = the_grant(&mut stream, &server).deadline_ms;
        until("the lease is over", || unix_time_ms() > deadline_ms + 1);
        assert_eq!(server.call(command).int(), 0);
        let sent = stream.lines_up_to_now(&server).join("\n");
        assert!(
            ["", "DEL k", "UNLINK k"].contains(&sent.as_str()),
            "{command}: {sent}"
        );
    }
}

#[test]
fn a_deletion_with_a_waiter_is_the_deletion_and_a_grant() {
    for (command, sent) in [
        ("DEL k", "DEL k"),
        ("UNLINK k", "UNLINK k"),
        ("PEXPIREAT k 1", "DEL k"),
        ("RENAME k elsewhere", "RENAME k elsewhere"),
        ("MOVE k 3", "MOVE k 3"),
        ("FLUSHDB", "FLUSHDB"),
        ("FLUSHDB ASYNC", "FLUSHDB ASYNC"),
        ("FLUSHALL", "FLUSHALL"),
        ("SWAPDB 0 3", "SWAPDB 0 3"),
    ] {
        let (server, mut stream, _) = primary_with_holder();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let since = unix_time_ms();
        server.call(command).value();
        let grant = waiter.recv().grant();
        let lines = stream.lines_up_to_now(&server);
        let [first, second] = lines.as_slice() else {
            panic!("{command}: two commands were expected: {lines:#?}");
        };
        // If another thread frees keys, the server may write UNLINK for a DEL of its own.
        let same = first == sent || (sent == "DEL k" && first == "UNLINK k");
        assert!(same, "{command}: {lines:#?}");
        let applied = Applied::of(second);
        assert_new(&applied, "k", "b", LONG_MS, since);
        assert_eq!(applied.fence, grant.fence);
    }
}

#[test]
fn another_type_written_over_the_lock_leads_to_no_effect() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("SET k value").okay();
    waiter.recv().error();
    assert_eq!(stream.lines_up_to_now(&server), ["SET k value"]);
}

#[test]
fn a_grant_to_a_client_that_dies_in_that_tick_is_taken_back() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    server.call_batch(&["LOCK.RELEASE k a", &kill]);
    waiter.drain_to_close();
    until("the lock is free", || server.lock_info("k").is_none());
    let lines = stream.lines_up_to_now(&server);
    let [grant, back] = lines.as_slice() else {
        panic!("two commands were expected: {lines:#?}");
    };
    assert_eq!(Applied::of(grant).token, "b");
    assert_eq!(back, "DEL k");
}

#[test]
fn a_grant_taken_back_for_the_next_in_line_is_two_grants() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    server.call_batch(&["LOCK.RELEASE k a", &kill]);
    waiter.drain_to_close();
    let grant = next.recv().grant();
    let lines = stream.lines_up_to_now(&server);
    let grants: Vec<Applied> = lines.iter().map(|line| Applied::of(line)).collect();
    let [undone, kept] = grants.as_slice() else {
        panic!("two grants were expected: {lines:#?}");
    };
    assert_eq!((undone.token.as_str(), kept.token.as_str()), ("b", "c"));
    assert!(kept.fence > undone.fence);
    assert_eq!(kept.fence, grant.fence);
}

// ---- the server's own commands on a lock

#[test]
fn an_expiry_by_hand_shortens_the_lease_on_replicas_too() {
    let (server, mut stream, first) = primary_with_holder();
    assert_eq!(server.call("PEXPIRE k 60000").int(), 1);
    let at_ms = server.call("PEXPIRETIME k").int();
    server.settle();
    let lines = stream.lines_up_to_now(&server);
    let [expire, grant] = lines.as_slice() else {
        panic!("two commands were expected: {lines:#?}");
    };
    assert_eq!(*expire, format!("PEXPIREAT k {at_ms}"));
    let expected = Applied {
        deadline_ms: at_ms,
        ..first
    };
    assert_eq!(Applied::of(grant), expected);
}

#[test]
fn a_later_expiry_and_persist_are_put_back_by_a_grant() {
    let (server, mut stream, first) = primary_with_holder();
    let later = format!("PEXPIREAT k {}", first.deadline_ms + 1_000_000);
    for command in [later.as_str(), "PERSIST k"] {
        assert_eq!(server.call(command).int(), 1);
        server.settle();
        let lines = stream.lines_up_to_now(&server);
        let [by_hand, grant] = lines.as_slice() else {
            panic!("{command}: two commands were expected: {lines:#?}");
        };
        assert_eq!(by_hand, command);
        assert_eq!(Applied::of(grant), first);
        assert_eq!(server.call("PEXPIRETIME k").int(), first.deadline_ms);
    }
}

#[test]
fn a_restored_lock_gets_its_expiry_by_a_grant() {
    let (server, mut stream, first) = primary_with_holder();
    let payload = server.call("DUMP k").bytes();
    let restore: [&[u8]; 4] = [b"RESTORE", b"copy", b"0", &payload];
    server.call(&restore).okay();
    server.settle();
    let commands = stream.up_to_now(&server);
    let [sent, grant] = commands.as_slice() else {
        panic!("two commands were expected: {commands:?}");
    };
    assert_eq!(sent[..4], restore);
    let grant: Vec<_> = grant
        .iter()
        .map(|word| String::from_utf8_lossy(word))
        .collect();
    let expected = Applied {
        key: "copy".to_owned(),
        ..first.clone()
    };
    assert_eq!(Applied::of(&grant.join(" ")), expected);
    assert_eq!(server.call("PEXPIRETIME copy").int(), first.deadline_ms);
}

#[test]
fn renaming_moving_and_swapping_lead_to_no_effects_of_their_own() {
    let (server, mut stream, _) = primary_with_holder();
    for (command, back) in [
        ("RENAME k l", Some("RENAME l k")),
        ("MOVE k 3", None),
        ("SWAPDB 0 3", None),
    ] {
        server.call(command).value();
        server.settle();
        assert_eq!(stream.lines_up_to_now(&server), [command]);
        if let Some(back) = back {
            server.call(back).value();
            stream.lines_up_to_now(&server);
        }
    }
    assert!(server.call("LOCK.CHECK k a").int() > 0);
}

// ---- transactions and scripts

/// Asserts the frame of a transaction and returns the lines in it.
#[track_caller]
fn transaction(lines: &[String]) -> &[String] {
    let [multi, inner @ .., exec] = lines else {
        panic!("a transaction was expected: {lines:#?}");
    };
    assert_eq!(
        (multi.as_str(), exec.as_str()),
        ("MULTI", "EXEC"),
        "{lines:#?}"
    );
    inner
}

/// Asserts the effects of: SET, a grant to `a`, a refusal, SET, a hand-over to `w`, a release.
#[track_caller]
fn assert_mixed_effects(lines: &[String], waiter: &mut Client) {
    let [before, grant, between, hand_over, del] = transaction(lines) else {
        panic!("five commands were expected: {lines:#?}");
    };
    assert_eq!(before, "SET before 1");
    let grant = Applied::of(grant);
    assert_eq!((grant.key.as_str(), grant.token.as_str()), ("free", "a"));
    assert_eq!(between, "SET between 1");
    let hand_over = Applied::of(hand_over);
    assert_eq!(
        (hand_over.key.as_str(), hand_over.token.as_str()),
        ("k", "w")
    );
    assert_eq!(hand_over.fence, waiter.recv().grant().fence);
    assert!(hand_over.fence > grant.fence);
    assert_eq!(del, "DEL free");
}

#[test]
fn the_effects_of_a_transaction_are_one_transaction() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k w {LONG}"));
    server.call_batch(&[
        "MULTI",
        "SET before 1",
        "LOCK.ACQUIRE free a",
        "LOCK.WAIT k b",
        "SET between 1",
        "LOCK.RELEASE k a",
        "LOCK.RELEASE free a",
        "EXEC",
    ]);
    assert_mixed_effects(&stream.lines_up_to_now(&server), &mut waiter);
}

#[test]
fn the_effects_of_a_script_are_one_transaction() {
    let (server, mut stream, _) = primary_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k w {LONG}"));
    let script = "
        redis.call('SET', 'before', 1)
        redis.call('LOCK.ACQUIRE', 'free', 'a')
        redis.call('LOCK.WAIT', 'k', 'b')
        redis.call('SET', 'between', 1)
        redis.call('LOCK.RELEASE', 'k', 'a')
        redis.call('LOCK.RELEASE', 'free', 'a')";
    server.call(&["EVAL", script, "0"]).nil();
    assert_mixed_effects(&stream.lines_up_to_now(&server), &mut waiter);
}

#[test]
fn a_transaction_and_a_script_without_effects_replicate_nothing() {
    let (server, mut stream, _) = primary_with_holder();
    server.call_batch(&["MULTI", "LOCK.ACQUIRE k b", "LOCK.RELEASE k b", "EXEC"]);
    assert_nothing(&mut stream, &server, "a transaction");
    let script = "return redis.call('LOCK.WAIT', 'k', 'b')";
    server.call(&["EVAL", script, "0"]).nil();
    assert_nothing(&mut stream, &server, "a script");
}

// ---- real replicas

fn replica_of(primary: &Server) -> Server {
    let replica = Server::start();
    replica.replica_of(primary);
    replica
}

#[test]
fn a_replica_answers_what_it_knows_and_refuses_to_write() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    let grant = primary
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    let mut waiter = primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    replica.until_in_step(&primary);
    let info = replica.lock_info("k").unwrap();
    assert_eq!(info.mode, "exclusive");
    assert_eq!(info.holder().text("token"), "a");
    assert_eq!(info.holder().int("fence"), grant.fence);
    assert_eq!(info.holder().int("holds"), 1);
    assert_eq!(info.waiters, 0, "the queue is the primary's");
    let left_ms = replica.call("LOCK.CHECK k a").int();
    assert!((LONG_MS - 60_000..=LONG_MS).contains(&left_ms), "{left_ms}");
    assert_eq!(replica.call("LOCK.CHECK k b").int(), 0);
    for command in [
        "LOCK.ACQUIRE k a",
        "LOCK.ACQUIRE free a",
        "LOCK.WAIT k a",
        "LOCK.WAIT free a",
        "LOCK.EXTEND k a",
        "LOCK.RELEASE k a",
        "LOCK.APPLY k DROP a",
    ] {
        let error = replica.call(command).error();
        assert!(error.starts_with("READONLY "), "{command}: {error}");
    }
    primary.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    replica.until_in_step(&primary);
    assert_eq!(replica.lock_info("k").unwrap().holder_tokens(), ["b"]);
}

#[test]
fn a_writable_replica_refuses_the_internal_command_of_a_client() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    replica.call("CONFIG SET replica-read-only no").okay();
    let error = replica.call("LOCK.APPLY k DROP a").error();
    assert_eq!(error, "ERR LOCK.APPLY is internal");
}

#[test]
fn a_replica_ends_no_lease_by_itself() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    // The primary doesn't look for expired keys either.
    primary.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    primary.call("LOCK.ACQUIRE k a PX 100").grant();
    replica.until_in_step(&primary);
    let held = replica.call("DEBUG DIGEST").text();
    until("the replica sees that the lease is over", || {
        replica.call("LOCK.CHECK k a").int() == 0
    });
    assert_eq!(replica.lock_info("k"), None);
    replica.settle();
    assert_eq!(replica.call("DBSIZE").int(), 1);
    assert_eq!(replica.call("DEBUG DIGEST").text(), held);
    // Only the primary's deletion removes it.
    until(
        "the primary looks a moment later, and finds it expired",
        || primary.call("EXISTS k").int() == 0,
    );
    replica.until_in_step(&primary);
    assert_eq!(replica.call("DBSIZE").int(), 0);
}

#[test]
fn a_demoted_primary_ends_no_lease_by_itself() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    // The new primary never exists, so the data stays the same.
    let mut replies = server.call_batch(&[
        "LOCK.EXTEND k a PX 100",
        "PEXPIRETIME k",
        "DEBUG DIGEST",
        "REPLICAOF 127.0.0.1 1",
    ]);
    replies.remove(3).okay();
    let held = replies.remove(2).text();
    let deadline_ms = replies.remove(1).int();
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
    // The timer was armed for the millisecond after the deadline, so it has fired by then.
    until("the lease is over", || unix_time_ms() > deadline_ms + 5);
    server.settle();
    assert_eq!(server.call("LOCK.CHECK k a").int(), 0);
    assert_eq!(server.call("DBSIZE").int(), 1);
    assert_eq!(server.call("DEBUG DIGEST").text(), held);
    // After its promotion, the server drops the expired lease and has no waiter left.
    server.call("REPLICAOF NO ONE").okay();
    assert_eq!(server.call("LOCK.ACQUIRE k c").grant().token, "c");
}

#[test]
fn a_promoted_replica_ends_leases_grants_and_numbers_on() {
    let mut primary = Server::start();
    let replica = replica_of(&primary);
    // A fence an hour ahead of the clock, so that the clock alone can't give a greater fence.
    let mut fence = unix_time_us() + 3_600_000_000;
    payload::restore_with_fence(&primary, "ahead", fence);
    let last = primary.call("LOCK.ACQUIRE k a PX 300").grant().fence;
    assert!(last > fence);
    primary.call(format!("LOCK.ACQUIRE long a {LONG}")).grant();
    fence = primary
        .call(format!("LOCK.ACQUIRE long a {LONG} REENTRANT"))
        .grant()
        .fence;
    replica.until_in_step(&primary);
    primary.kill9();
    replica.call("REPLICAOF NO ONE").okay();
    let next = replica.call(format!("LOCK.WAIT k b {LONG}")).grant();
    assert!(next.fence > fence, "{} after {fence}", next.fence);
    assert_eq!(replica.lock_info("long").unwrap().holder().int("holds"), 2);
    assert_eq!(replica.call("LOCK.RELEASE long a ALL").int(), 1);
}

#[test]
fn an_expiry_that_a_replica_was_told_of_counts_when_it_is_promoted() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    let grant = primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    replica.until_in_step(&primary);
    assert!(replica.call("LOCK.CHECK k a").int() > 60_000);
    replica.call("CONFIG SET replica-read-only no").okay();
    assert_eq!(replica.call("PEXPIRE k 60000").int(), 1);
    assert!(replica.call("LOCK.CHECK k a").int() <= 60_000);
    replica.call("REPLICAOF NO ONE").okay();
    assert!(replica.call("LOCK.CHECK k a").int() <= 60_000);
    let again = replica.call(format!("LOCK.WAIT k a {LONG}")).grant();
    assert_eq!(again.fence, grant.fence);
    assert!(replica.call("PTTL k").int() > 60_000);
}

/// Starts a replica that appends each effect to a file of its own.
fn replica_with_own_file(primary: &Server) -> Server {
    let replica = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    replica.replica_of(primary);
    // For a new data set, the server writes a new file beside the old file.
    until("the file of the new data set is in use", || {
        replica.info("persistence", "aof_rewrite_in_progress") == "0"
            && replica.info("persistence", "aof_rewrite_scheduled") == "0"
    });
    replica
}

#[test]
fn a_replicas_own_append_only_file_has_the_effects() {
    let primary = Server::start();
    let mut replica = replica_with_own_file(&primary);
    primary.call(format!("LOCK.ACQUIRE k1 a {LONG}")).grant();
    let mut waiter = primary.waiter(format!("LOCK.WAIT k1 b {LONG}"));
    primary.call("LOCK.RELEASE k1 a").int();
    waiter.recv().grant();
    primary
        .call(format!("LOCK.ACQUIRE k2 a {LONG} REENTRANT"))
        .grant();
    primary
        .call(format!("LOCK.ACQUIRE k2 a {LONG} REENTRANT"))
        .grant();
    primary.call("PEXPIRE k2 500000").int();
    primary.call("LOCK.ACQUIRE k3 a").grant();
    primary.call("LOCK.RELEASE k3 a").int();
    let mut other_db = primary.client().into_db(3);
    other_db.call(format!("LOCK.ACQUIRE k1 c {LONG}")).grant();
    let digest = assert_same_data(&primary, &[&replica]);
    let expiries = |server: &Server| {
        [
            server.call("PEXPIRETIME k1").int(),
            server.call("PEXPIRETIME k2").int(),
        ]
    };
    let before = expiries(&primary);
    assert_eq!(expiries(&replica), before);
    replica.restart();
    assert_eq!(
        replica.info("replication", "role"),
        "master",
        "it has only its own file"
    );
    assert_eq!(replica.call("DEBUG DIGEST").text(), digest);
    assert_eq!(expiries(&replica), before);
    assert_eq!(replica.lock_info("k1").unwrap().holder_tokens(), ["b"]);
}

#[test]
fn a_replicas_own_append_only_file_has_the_renewals_of_sessions() {
    let primary = Server::start();
    let mut replica = replica_with_own_file(&primary);
    let mut holder = primary.client();
    holder.call("LOCK.ACQUIRE k t PX 6000 SESSION").grant();
    holder.call("LOCK.MACQUIRE 2 l m t PX 6000 SESSION").grant();
    let expiries = |server: &Server| {
        ["k", "l", "m"].map(|key| server.call(format!("PEXPIRETIME {key}")).int())
    };
    let granted = expiries(&primary);
    until("all are renewed", || {
        let now = expiries(&primary);
        now.iter().zip(&granted).all(|(now, before)| now > before)
    });
    primary.call("CLIENT PAUSE 60000 WRITE").okay();
    replica.until_in_step(&primary);
    let renewed = expiries(&primary);
    assert_eq!(expiries(&replica), renewed);
    replica.restart();
    assert_eq!(expiries(&replica), renewed, "it has only its own file");
}

#[test]
fn a_replica_that_comes_back_catches_up() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    replica.call("REPLICAOF NO ONE").okay();
    primary
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    primary
        .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT"))
        .grant();
    replica.call(format!("LOCK.ACQUIRE other b {LONG}")).grant();
    let mut waiter = replica.waiter("LOCK.WAIT other c");
    replica.replica_of(&primary);
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
    assert_same_data(&primary, &[&replica]);
    assert_eq!(replica.lock_info("other"), None);
}

/// The number of clients in the mix.
const PLAYERS: u64 = 8;

/// A client of the mix. `waits` is true if a reply is still due.
struct Player {
    client: Client,
    waits: bool,
}

fn random_command(dice: &mut Dice) -> Vec<Vec<u8>> {
    let key = format!("k{}", dice.below(6));
    let token = format!("t{}", dice.below(4));
    let lease = *dice.pick(&["PX 1", "PX 4", "PX 20", "PX 600000", "EX 600", ""]);
    let counted = *dice.pick(&["", "", "REENTRANT"]);
    let other = format!("k{}", dice.below(6));
    words(match dice.below(24) {
        0..=4 => format!("LOCK.ACQUIRE {key} {token} {lease} {counted}"),
        5..=9 => {
            let block_ms = 1 + dice.below(30);
            format!("LOCK.WAIT {key} {token} {lease} {counted} BLOCK {block_ms}")
        }
        10..=13 => format!("LOCK.RELEASE {key} {token} {}", *dice.pick(&["", "ALL"])),
        14 | 15 => format!("LOCK.EXTEND {key} {token} {lease}"),
        16 => format!(
            "{} {key}",
            *dice.pick(&["DEL", "UNLINK", "PERSIST", "GETDEL"])
        ),
        17 => format!("PEXPIRE {key} {}", *dice.pick(&["-1", "3", "15", "900000"])),
        18 => format!("RENAME {key} {other}"),
        19 => format!("MOVE {key} 1"),
        20 => format!("LOCK.CHECK {key} {token}"),
        21 => format!("SET {key} text PX 3"),
        22 => match dice.below(8) {
            0 => "FLUSHDB".to_owned(),
            1 => "SWAPDB 0 1".to_owned(),
            _ => format!("LOCK.INFO {key}"),
        },
        _ => {
            let script = "redis.call('LOCK.RELEASE',KEYS[1],ARGV[1])\
                redis.call('LOCK.WAIT',KEYS[2],ARGV[1],'PX','600000')";
            return words(&["EVAL", script, "2", &key, &other, &token]);
        }
    })
}

/// Returns a command that restores a copy of one key over another key, or PING if the first key
/// doesn't exist.
fn random_restore(server: &Server, dice: &mut Dice) -> Vec<Vec<u8>> {
    let key = format!("k{}", dice.below(6));
    let other = format!("k{}", dice.below(6));
    let ttl_ms = *dice.pick(&["0", "5", "700000"]);
    match server.call(&["DUMP", &key]).value() {
        Value::BulkString(payload) => words(&[
            b"RESTORE".as_slice(),
            other.as_bytes(),
            ttl_ms.as_bytes(),
            &payload,
            b"REPLACE",
        ]),
        _ => words("PING"),
    }
}

/// Plays `rounds` turns of several clients. Some clients wait, and some disconnect while they wait.
fn play(server: &Server, dice: &mut Dice, rounds: usize) {
    let player = || Player {
        client: server.client(),
        waits: false,
    };
    let mut players: Vec<Player> = (0..PLAYERS).map(|_| player()).collect();
    for _ in 0..rounds {
        let number = dice.below(PLAYERS) as usize;
        let it = &mut players[number];
        if it.waits && dice.below(20) == 0 {
            std::mem::replace(it, player()).client.reset();
            continue;
        }
        if it.waits {
            it.waits = it.client.try_recv(std::time::Duration::ZERO).is_none();
            continue;
        }
        let command = match dice.below(20) {
            0 => random_restore(server, dice),
            _ => random_command(dice),
        };
        it.client.send(&command);
        it.waits = command[0] == b"LOCK.WAIT";
        if !it.waits {
            // An error is a valid reply too, like the error for a lock in place of a string.
            drop(it.client.recv());
        }
    }
    for it in players.iter_mut().filter(|it| it.waits) {
        drop(it.client.recv());
    }
    drop(players);
}

/// Returns the keys of a server with their expiries, except keys that expire within 60 s.
fn lasting_keys(server: &Server) -> Vec<(String, i64)> {
    let soon_ms = unix_time_ms() + 60_000;
    (0..=6)
        .map(|number| format!("k{number}"))
        .map(|key| (key.clone(), server.call(&["PEXPIRETIME", &key]).int()))
        .filter(|(_, at_ms)| *at_ms > soon_ms)
        .collect()
}

#[test]
fn replicas_and_their_replicas_have_the_same_locks_after_a_random_mix() {
    let primary = Server::start();
    let replica = replica_of(&primary);
    let chained = replica_of(&replica);
    let mut dice = Dice::new(1);
    for round in 0..3 {
        play(&primary, &mut dice, 3_000);
        for number in 0..=6 {
            // These grants leave locks to compare after any mix. The mix doesn't use the last key.
            let key = format!("k{number}");
            drop(primary.call(&["LOCK.ACQUIRE", &key, "last", "PX", "600000"]));
        }
        // Expired keys stay, so that they are compared too.
        primary.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
        until("nobody waits", || {
            primary.info("lock", "lock_waiters") == "0"
        });
        let keys = lasting_keys(&primary);
        assert!(!keys.is_empty(), "round {round}: nothing to compare");
        assert_same_data(&primary, &[&replica, &chained]);
        for server in [&replica, &chained] {
            assert_eq!(lasting_keys(server), keys, "round {round}");
        }
        primary.call("DEBUG SET-ACTIVE-EXPIRE 1").okay();
    }
    for (field, least) in [
        ("grants", 300),
        ("hand_overs", 50),
        ("expirations", 30),
        ("timeouts", 3),
        ("take_overs", 10),
    ] {
        let count: i64 = primary
            .info("lock", &format!("lock_{field}"))
            .parse()
            .unwrap();
        assert!(count >= least, "too tame a mix: {count} {field}");
    }
    assert_eq!(
        replica.info("lock", "lock_grants"),
        "0",
        "a replica decides nothing"
    );
    assert_eq!(
        replica.info("lock", "lock_expirations"),
        "0",
        "a replica decides nothing"
    );
}

#[test]
fn what_expired_is_replaced_where_a_transaction_pauses_writes() {
    for pause in ["ALL", "WRITE"] {
        let primary = Server::start();
        let replica = replica_of(&primary);
        let mut client = primary.client();
        primary.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
        primary.call("LOCK.ACQUIRE lock a PX 1").grant();
        primary.call("SET string v PX 1").okay();
        primary.call("DEBUG SLEEP 0.02").okay();
        replica.until_in_step(&primary);

        let acquire = format!("LOCK.ACQUIRE lock b {LONG}");
        let acquire_all = format!("LOCK.MACQUIRE 2 string other c {LONG}");
        client.call("MULTI").okay();
        for command in [&format!("CLIENT PAUSE 10 {pause}"), &acquire, &acquire_all] {
            assert_eq!(client.call(command.as_str()).text(), "QUEUED", "{command}");
        }
        let replies = client.call("EXEC").list();
        assert_eq!(Ok(replies[1].clone()).grant().token, "b", "{pause}");
        assert_eq!(Ok(replies[2].clone()).grant().token, "c", "{pause}");

        assert_same_data(&primary, &[&replica]);
        for (key, token) in [("lock", "b"), ("string", "c"), ("other", "c")] {
            let holder = |server: &Server| server.lock_info(key).unwrap().holder().text("token");
            assert_eq!(holder(&replica), token);
            primary.call(format!("LOCK.RELEASE {key} {token}")).int();
            assert_eq!(primary.lock_info(key), None);
        }
        assert_eq!(primary.info("lock", "lock_locks"), "0");
    }
}
