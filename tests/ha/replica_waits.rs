//! REPLICAS: a reply that is held back until replicas have acknowledged what the command changed.
//!
//! A replica that hangs acknowledges nothing, so the tests decide when a reply may come.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::nodes::Cluster;
use crate::{cluster, sentinel};
use support::{eventually, until, Client, Expect, Reply, Server, LONG, MOVES};

const TOO_FEW: &str = "NOREPLICAS fewer replicas are online than REPLICAS asks for";
const LOST: &str = "NOREPLICAS the grant ended before enough replicas had acknowledged it";
const LATE: &str = "NOREPLICAS too few replicas acknowledged the command in time";

/// A primary and its replicas.
struct Group {
    primary: Server,
    replicas: Vec<Server>,
}

impl Group {
    #[track_caller]
    fn of(replicas: usize) -> Group {
        let primary = Server::builder()
            .config("appendonly yes")
            .config("busy-reply-threshold 50")
            .start();
        let replicas: Vec<Server> = (0..replicas).map(|_| Server::start()).collect();
        for replica in &replicas {
            replica.replica_of(&primary);
        }
        primary.until_acknowledged_by(replicas.len());
        Group { primary, replicas }
    }

    fn freeze(&self) {
        self.replicas.iter().for_each(Server::freeze);
    }

    fn thaw(&self) {
        self.replicas.iter().for_each(Server::thaw);
    }

    /// Sends a command whose reply is held back, and waits until it is.
    #[track_caller]
    fn held_back(&self, command: &str) -> Client {
        let mut client = self.primary.client();
        self.hold_back(&mut client, command);
        client
    }

    #[track_caller]
    fn hold_back(&self, client: &mut Client, command: &str) {
        let before = self.held_replies();
        client.send(command);
        self.until_held_replies(before + 1);
    }

    fn held_replies(&self) -> usize {
        let count = self.primary.info("lock", "lock_replica_waits");
        count.parse().expect("a number")
    }

    #[track_caller]
    fn until_held_replies(&self, count: usize) {
        until(&format!("{count} replies are held back"), || {
            self.held_replies() == count
        });
    }

    /// Returns the tokens that hold a key, as this server has them.
    fn holders(server: &Server, key: &str) -> Vec<String> {
        let info = server.lock_info(key);
        info.map_or(Vec::new(), |info| info.holder_tokens())
    }
}

#[track_caller]
fn assert_refused(reply: Reply, text: &str, what: &str) {
    assert_eq!(reply.error(), text, "{what}");
}

#[test]
fn a_reply_comes_when_the_replica_has_the_change() {
    let group = Group::of(1);
    let [replica] = group.replicas.as_slice() else {
        unreachable!("one replica");
    };
    for (prepared, command, key) in [
        (None, "LOCK.ACQUIRE k1 t", "k1"),
        (None, "LOCK.WAIT k2 t", "k2"),
        (None, "LOCK.MACQUIRE 2 k3 l3 t", "k3"),
        (None, "LOCK.MWAIT 2 k4 l4 t", "k4"),
        (
            Some("LOCK.ACQUIRE k5 t PX 100000"),
            "LOCK.EXTEND k5 t",
            "k5",
        ),
        (
            Some("LOCK.MACQUIRE 2 k6 l6 t PX 100000"),
            "LOCK.MEXTEND 2 k6 l6 t",
            "k6",
        ),
        (
            Some("LOCK.ACQUIRE k7 t PX 100000"),
            "LOCK.ACQUIRE k7 t REENTRANT",
            "k7",
        ),
    ] {
        prepared.map(|prepared| group.primary.call(prepared).grant());
        group.primary.until_acknowledged_by(1);
        replica.freeze();
        let mut client = group.held_back(&format!("{command} {LONG} REPLICAS 1 WITHIN 60000"));
        client.expect_silence();
        replica.thaw();
        let reply = client.recv();
        let deadline_ms = group.primary.call(format!("PEXPIRETIME {key}")).int();
        // The reply says that the replica has it, so this looks once.
        assert_eq!(Group::holders(replica, key), ["t"], "{command}");
        assert_eq!(
            replica.call(format!("PEXPIRETIME {key}")).int(),
            deadline_ms
        );
        match reply {
            Ok(Value::Int(count)) => assert!(count > 0, "{command}"),
            grant => drop(grant.grant()),
        }
    }
    assert_eq!(group.primary.info("lock", "lock_acknowledged"), "7");
    assert_eq!(group.primary.info("lock", "lock_replica_waits"), "0");
}

#[test]
fn a_hand_over_comes_when_the_replica_has_it() {
    let group = Group::of(1);
    let [replica] = group.replicas.as_slice() else {
        unreachable!("one replica");
    };
    for (key, end) in [
        ("k1", "LOCK.RELEASE k1 a"),
        ("k2", "DEL k2"),
        ("k3", "LOCK.EXTEND k3 a PX 20"),
    ] {
        group
            .primary
            .call(format!("LOCK.ACQUIRE {key} a {LONG}"))
            .grant();
        let command = format!("LOCK.WAIT {key} b {LONG} REPLICAS 1 WITHIN 60000 BLOCK 60000");
        let mut waiter = group.primary.waiter(command);
        group.primary.until_acknowledged_by(1);
        replica.freeze();
        group.primary.call(end).int();
        group.until_held_replies(1);
        assert_eq!(Group::holders(&group.primary, key), ["b"], "{end}");
        waiter.expect_silence();
        replica.thaw();
        let grant = waiter.recv().grant();
        let holder = replica.known_lock(key);
        assert_eq!(holder.holder().int("fence"), grant.fence, "{end}");
    }
}

#[test]
fn too_few_replicas_change_nothing() {
    let group = Group::of(1);
    let call = |command: &str| group.primary.call(command);
    let last_fence = group.primary.info("lock", "lock_last_fence");
    for command in [
        "LOCK.ACQUIRE k t REPLICAS 2",
        "LOCK.WAIT k t REPLICAS 2",
        "LOCK.MACQUIRE 2 k l t REPLICAS 1000",
        "LOCK.MWAIT 2 k l t REPLICAS 2 WITHIN 1",
    ] {
        assert_refused(call(command), TOO_FEW, command);
        assert_eq!(call("EXISTS k").int(), 0, "{command}");
    }
    assert_eq!(group.primary.info("lock", "lock_last_fence"), last_fence);
    call("LOCK.ACQUIRE k t PX 50000").grant();
    let deadline_ms = call("PEXPIRETIME k").int();
    assert_refused(
        call("LOCK.EXTEND k t PX 90000 REPLICAS 2"),
        TOO_FEW,
        "EXTEND",
    );
    assert_eq!(call("PEXPIRETIME k").int(), deadline_ms);
    // A command that would not succeed gets the reply that it gets without REPLICAS.
    call("LOCK.ACQUIRE k u REPLICAS 2").nil();
    assert_eq!(call("LOCK.EXTEND k u REPLICAS 2").int(), 0);
    call("LOCK.WAIT k u BLOCK 1 REPLICAS 2").nil();
    call("SET s 1").okay();
    assert!(call("LOCK.ACQUIRE s u REPLICAS 2")
        .error()
        .starts_with("WRONGTYPE"));
}

#[test]
fn a_waiter_is_refused_when_its_turn_comes() {
    let group = Group::of(1);
    group
        .primary
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant();
    let mut waiter = group
        .primary
        .waiter(format!("LOCK.WAIT k b {LONG} REPLICAS 2"));
    let mut next = group.primary.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(group.primary.call("LOCK.RELEASE k a").int(), 1);
    assert_refused(waiter.recv(), TOO_FEW, "its turn");
    next.recv().grant();
}

#[test]
fn where_a_client_may_not_block_replicas_are_refused() {
    let group = Group::of(1);
    let here = "ERR REPLICAS can't be waited for here";
    let mut client = group.primary.client();
    for command in ["LOCK.ACQUIRE k t REPLICAS 1", "LOCK.WAIT k t REPLICAS 1"] {
        client.call("MULTI").okay();
        client.call(command).text();
        let Value::Array(replies) = client.call("EXEC").value() else {
            unreachable!("EXEC replies an array");
        };
        assert!(format!("{replies:?}").contains("can't be waited for here"));
        let words = command.split(' ').map(|word| format!("'{word}'"));
        let words: Vec<String> = words.collect();
        let script = format!("return redis.call({})", words.join(","));
        let error = client.call(&["EVAL", &script, "1", "k"]).error();
        assert!(
            error.contains("REPLICAS can't be waited for here"),
            "{error}"
        );
        let script = format!("return redis.pcall({})['err']", words.join(","));
        assert_eq!(client.call(&["EVAL", &script, "1", "k"]).text(), here);
    }
    // Errors of the words come first, WRONGTYPE comes later.
    client.call("SET s 1").okay();
    let script = "return {redis.pcall('LOCK.ACQUIRE','k','t','REPLICAS','0')['err'], \
                  redis.pcall('LOCK.ACQUIRE','s','t','REPLICAS','1')['err']}";
    let Value::Array(errors) = client.call(&["EVAL", script, "1", "k"]).value() else {
        unreachable!("an array");
    };
    let errors = format!("{errors:?}");
    assert!(
        errors.contains("invalid replicas") && errors.contains("waited for here"),
        "{errors}"
    );
    assert_eq!(client.call("EXISTS k").int(), 0);
}

/// Ways to end a grant of `k` in database 0.
const ENDS: [&[&str]; 12] = [
    &["LOCK.RELEASE k t"],
    &["DEL k"],
    &["UNLINK k"],
    &["SET k text"],
    &["RENAME k l"],
    &["MOVE k 1"],
    &["SWAPDB 0 1"],
    &["FLUSHDB"],
    &["FLUSHALL ASYNC"],
    &["PEXPIRE k 1"],
    &["MULTI", "DEL k", "LOCK.ACQUIRE k t", "EXEC"],
    &["MULTI", "RENAME k l", "RENAME l k", "EXEC"],
];

#[test]
fn a_grant_that_ends_is_told_at_once() {
    let group = Group::of(1);
    for end in ENDS {
        for command in ["LOCK.ACQUIRE k t", "LOCK.MACQUIRE 2 j k t"] {
            group.primary.call("FLUSHALL").okay();
            group.primary.until_acknowledged_by(1);
            group.freeze();
            let command = format!("{command} {LONG} REPLICAS 1 WITHIN 600000");
            let mut client = group.held_back(&command);
            group.primary.call_batch(end);
            assert_refused(client.recv(), LOST, &format!("{end:?}, {command}"));
            group.thaw();
        }
    }
    // A lease that ends.
    group.freeze();
    let begun = Instant::now();
    let reply = group
        .primary
        .call("LOCK.ACQUIRE e t PX 100 REPLICAS 1 WITHIN 60000");
    assert_refused(reply, LOST, "the end of the lease");
    assert!(begun.elapsed() >= Duration::from_millis(100));
    group.thaw();
}

#[test]
fn what_changes_no_grant_ends_no_wait() {
    let group = Group::of(1);
    for command in [
        "DEBUG RELOAD",
        "LOCK.EXTEND k t PX 700000",
        "LOCK.ACQUIRE k t SHARED PX 700000",
        "LOCK.CANCEL k t",
        "PERSIST k",
        "PEXPIRE k 800000",
        "SWAPDB 1 1",
        "FLUSHDB",
        "DEL other",
    ] {
        group.primary.call("FLUSHALL").okay();
        group.primary.until_acknowledged_by(1);
        group.freeze();
        let mut client =
            group.held_back(&format!("LOCK.ACQUIRE k t {LONG} REPLICAS 1 WITHIN 60000"));
        let mut other = group.primary.client();
        if command == "FLUSHDB" {
            other.call("SELECT 1").okay();
        }
        assert!(other.call(command).is_ok(), "{command}");
        client.expect_silence();
        assert_eq!(group.held_replies(), 1, "{command}");
        group.thaw();
        client.recv().grant();
    }
}

#[test]
fn within_bounds_the_wait_and_what_the_command_did_stays() {
    let group = Group::of(2);
    group.replicas[0].freeze();
    let refused_after_ms = |command: &str, least_ms: u64| {
        let begun = Instant::now();
        let reply = group.primary.call(command);
        let took = begun.elapsed();
        assert_refused(reply, LATE, command);
        assert!(took >= Duration::from_millis(least_ms), "{took:?}");
    };
    for _ in 0..20 {
        refused_after_ms("LOCK.ACQUIRE k t REPLICAS 2 WITHIN 30", 30);
    }
    assert_eq!(Group::holders(&group.primary, "k"), ["t"]);
    assert_eq!(group.primary.info("lock", "lock_not_acknowledged"), "20");
    group
        .primary
        .call("CONFIG SET lock.replicas-timeout 40")
        .okay();
    refused_after_ms("LOCK.EXTEND k t REPLICAS 2", 40);
    // One replica has acknowledged, which is enough for REPLICAS 1.
    group.primary.call("LOCK.ACQUIRE k t REPLICAS 1").grant();
    group.replicas[0].thaw();
    group.primary.call("LOCK.ACQUIRE k t REPLICAS 2").grant();
}

#[test]
fn client_unblock_cuts_the_wait_short() {
    let group = Group::of(1);
    for hand_over in [false, true] {
        for (how, told) in [
            ("TIMEOUT", LATE),
            ("ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ] {
            group.primary.call("FLUSHALL").okay();
            group.primary.until_acknowledged_by(1);
            let wait = format!("LOCK.WAIT k t {LONG} REPLICAS 1 WITHIN 60000 KEEP 50000");
            let mut client = if hand_over {
                group.primary.call("LOCK.ACQUIRE k a").grant();
                let client = group.primary.waiter(&*wait);
                group.freeze();
                group.primary.call("LOCK.RELEASE k a").int();
                group.until_held_replies(1);
                client
            } else {
                group.freeze();
                group.held_back(&wait)
            };
            let unblock = format!("CLIENT UNBLOCK {} {how}", client.id());
            assert_eq!(group.primary.call(unblock).int(), 1);
            assert_refused(client.recv(), told, how);
            group.until_held_replies(0);
            group.primary.settle();
            assert_eq!(
                Group::holders(&group.primary, "k"),
                ["t"],
                "{how} {hand_over}"
            );
            group.thaw();
        }
    }
}

/// A CLIENT UNBLOCK ... ERROR may come when the replica has acknowledged and the reply isn't written
/// yet. The time of the command follows the time of the reply, so that they meet often.
#[test]
fn an_error_takes_nothing_back_in_the_tick_of_the_acknowledgement() {
    let group = Group::of(1);
    let primary = &group.primary;
    let mut delay = Duration::from_micros(100);
    let step = Duration::from_micros(4);
    let mut administrator = primary.client();
    for round in 0..1_000 {
        let key = format!("k{round}");
        primary.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        let wait = format!("LOCK.WAIT {key} b {LONG} REPLICAS 1 WITHIN 60000");
        let mut waiter = primary.client();
        let unblock = format!("CLIENT UNBLOCK {} ERROR", waiter.id());
        waiter.send(&*wait);
        primary.until_waiters(&key, 1);
        administrator.send(format!("LOCK.RELEASE {key} a"));
        let sent = Instant::now();
        while sent.elapsed() < delay {
            std::hint::spin_loop();
        }
        administrator.send(&*unblock);
        assert_eq!(administrator.recv().int(), 1);
        administrator.recv().int();
        if waiter.recv().is_ok() {
            delay = delay.saturating_sub(step);
        } else {
            delay += step;
        }
        primary.settle();
        assert_eq!(Group::holders(primary, &key), ["b"], "round {round}");
    }
}

#[test]
fn a_hand_over_with_a_session_gives_back_what_the_token_held() {
    let group = Group::of(1);
    let primary = &group.primary;
    for keep in ["", "KEEP 60000"] {
        primary.call("FLUSHALL").okay();
        let mut owner = primary.client();
        owner
            .call(format!("LOCK.ACQUIRE k b {LONG} SHARED DATA old"))
            .grant();
        let fence = primary.known_lock("k").holder().int("fence");
        primary
            .call(format!("LOCK.ACQUIRE k a {LONG} SHARED"))
            .grant();
        let options = format!("{LONG} SESSION {keep} DATA new REPLICAS 1 WITHIN 60000");
        let waiter = primary.waiter(format!("LOCK.WAIT k b {options}"));
        primary.until_acknowledged_by(1);
        group.freeze();
        primary.call("LOCK.RELEASE k a").int();
        group.until_held_replies(1);
        assert_eq!(primary.known_lock("k").mode, "exclusive", "{keep}");
        waiter.close();
        until("the shared grant is restored", || {
            primary
                .lock_info("k")
                .is_some_and(|lock| lock.mode == "shared")
        });
        let lock = primary.known_lock("k");
        let restored = lock.holder();
        assert_eq!(restored.int("fence"), fence, "{keep}");
        assert_eq!(restored.text("data"), "old", "{keep}");
        group.thaw();
    }
}

#[test]
fn a_lost_connection_takes_back_a_hand_over_only() {
    let group = Group::of(1);
    let primary = &group.primary;
    group.freeze();
    let client = group.held_back(&format!("LOCK.ACQUIRE k0 t {LONG} REPLICAS 1 WITHIN 60000"));
    client.close();
    group.until_held_replies(0);
    primary.settle();
    assert_eq!(Group::holders(primary, "k0"), ["t"]);
    let tied = group.held_back("LOCK.ACQUIRE k1 t PX 90000 SESSION REPLICAS 1 WITHIN 60000");
    tied.close();
    until("the session has ended", || {
        Group::holders(primary, "k1").is_empty()
    });
    // A hand-over goes to the next in line, and with KEEP back to its place.
    for keep in ["", "KEEP 60000"] {
        primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let options = format!("{LONG} REPLICAS 1 WITHIN 60000 {keep}");
        let waiter = primary.waiter(format!("LOCK.WAIT k b {options}"));
        let mut next = primary.waiter(format!("LOCK.WAIT k c {LONG}"));
        primary.call("LOCK.RELEASE k a").int();
        group.until_held_replies(1);
        waiter.close();
        next.recv().grant();
        let queue = primary.known_lock("k").queue_tokens();
        let kept = if keep.is_empty() { vec![] } else { vec!["b"] };
        assert_eq!(queue, kept, "{keep}");
        primary.call("LOCK.CANCEL k b").int();
        primary.call("LOCK.RELEASE k c").int();
    }
    // Another command of the token has the grant.
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let waiter = primary.waiter(format!("LOCK.WAIT k b {LONG} REPLICAS 1 WITHIN 60000"));
    primary.call("LOCK.RELEASE k a").int();
    group.until_held_replies(1);
    primary.call("LOCK.ACQUIRE k b").grant();
    waiter.close();
    group.until_held_replies(0);
    primary.settle();
    assert_eq!(Group::holders(primary, "k"), ["b"]);
    group.thaw();
}

/// The waiter got nothing of its hand-over, so the lock is taken back at its new name.
#[test]
fn a_lost_connection_takes_back_a_lock_that_moves_at_the_same_time() {
    let group = Group::of(1);
    let primary = &group.primary;
    group.freeze();
    for (way, ..) in MOVES {
        for is_moved_first in [false, true] {
            let waiter = handed_over(&group);
            lose_and_move(&group, waiter, way, is_moved_first);
            until(&format!("{way} leaves no key"), || {
                let keys = |db| primary.client().into_db(db).call("DBSIZE").int();
                keys(0) + keys(1) == 0
            });
        }
    }
    group.thaw();
}

/// The token knows of its grant by another connection.
#[test]
fn a_lost_connection_takes_back_no_moved_lock_that_another_one_was_told_of() {
    let group = Group::of(1);
    let primary = &group.primary;
    group.freeze();
    for (way, db, key) in MOVES {
        for told in ["LOCK.EXTEND k b PX 600000", "LOCK.CHECK k b"] {
            for is_moved_first in [false, true] {
                let waiter = handed_over(&group);
                assert!(primary.call(told).int() > 0);
                lose_and_move(&group, waiter, way, is_moved_first);
                assert_kept(&group, db, key, told);
            }
        }
        for told in ["LOCK.EXTEND", "LOCK.CHECK"] {
            let waiter = handed_over(&group);
            let kill = format!("CLIENT KILL ID {}", waiter.id());
            let (select, told) = (format!("SELECT {db}"), format!("{told} {key} b"));
            let mut client = primary.client();
            client.call_all(&[way, &select, &told, &kill]);
            group.until_held_replies(0);
            assert_kept(&group, db, key, &told);
        }
    }
    group.thaw();
}

/// Asserts that b still holds a lock that moved, and releases it.
#[track_caller]
fn assert_kept(group: &Group, db: u32, key: &str, told: &str) {
    group.primary.settle();
    let mut there = group.primary.client().into_db(db);
    let released = there.call(format!("LOCK.RELEASE {key} b"));
    assert_eq!(released.int(), 1, "{told}: {db}:{key}");
}

/// Hands the lock k over to b, whose reply is held back. Returns its client.
fn handed_over(group: &Group) -> Client {
    let primary = &group.primary;
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let waiter = primary.waiter(format!("LOCK.WAIT k b {LONG} REPLICAS 1 WITHIN 600000"));
    primary.call("LOCK.RELEASE k a").int();
    group.until_held_replies(1);
    waiter
}

/// Kills a client whose reply is held back, and moves its lock in the same pass of the event loop.
fn lose_and_move(group: &Group, waiter: Client, way: &str, is_moved_first: bool) {
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    let mut batch = [kill.as_str(), way];
    if is_moved_first {
        batch.reverse();
    }
    group.primary.call_all(&batch);
    group.until_held_replies(0);
}

/// The server waits for more replicas before it sends its data.
#[test]
fn a_replica_that_has_no_data_yet_does_not_count() {
    let primary = Server::builder()
        .config("repl-diskless-sync yes")
        .config("repl-diskless-sync-delay 4")
        .start();
    let replica = Server::start();
    let follow = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    replica.call(follow).okay();
    until("the replica is connected", || {
        let line = primary.find_info("replication", "slave0");
        line.is_some_and(|line| line.contains("state=wait_bgsave"))
    });
    let command = "LOCK.ACQUIRE k t REPLICAS 1 WITHIN 60000";
    assert_refused(primary.call(command), TOO_FEW, "without its data");
    assert_eq!(primary.call("EXISTS k").int(), 0);
    primary.until_acknowledged_by(1);
    primary.call(command).grant();
}

/// Another connection of the token sent a command in the tick of the hand-over. Its reply is held back
/// when the waiter's connection is lost.
#[test]
fn a_command_whose_reply_is_held_back_keeps_a_hand_over_of_a_lost_connection() {
    let group = Group::of(1);
    let primary = &group.primary;
    for told in [
        "LOCK.ACQUIRE k b",
        "LOCK.WAIT k b",
        "LOCK.MACQUIRE 2 k l b",
        "LOCK.EXTEND k b",
        "LOCK.MEXTEND 1 k b",
    ] {
        for is_killed_first in [false, true] {
            group.freeze();
            let mut other = eventually("both commands arrive in the pause", || {
                primary.call("FLUSHALL").okay();
                primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
                let waiter = primary.waiter(format!("LOCK.WAIT k b {LONG}"));
                let kill = format!("CLIENT KILL ID {}", waiter.id());
                let told = format!("{told} {LONG} REPLICAS 1 WITHIN 600000");
                let (mut holder, mut other, mut killer) =
                    (primary.client(), primary.client(), primary.client());
                let kills: (&mut Client, &[&str]) = (&mut killer, &[&kill]);
                let tells: (&mut Client, &[&str]) = (&mut other, &[&told]);
                let releases: (&mut Client, &[&str]) = (&mut holder, &["LOCK.RELEASE k a"]);
                let mut sent = match is_killed_first {
                    true => [releases, kills, tells],
                    false => [releases, tells, kills],
                };
                let in_time = primary.sends_in_a_pause(&mut sent);
                killer.recv().value();
                in_time.then_some(other)
            });
            primary.settle();
            let what = format!("{told}, killed first: {is_killed_first}");
            assert_eq!(Group::holders(primary, "k"), ["b"], "{what}");
            group.thaw();
            let replied = other.recv();
            assert!(replied.is_ok(), "{what}: {replied:?}");
        }
    }
}

#[test]
fn clients_that_wait_for_replicas_count_in_max_waiters() {
    let group = Group::of(1);
    group.primary.call("CONFIG SET lock.max-waiters 2").okay();
    group.freeze();
    let _one = group.held_back("LOCK.ACQUIRE k1 t REPLICAS 1 WITHIN 60000");
    let _other = group.primary.waiter("LOCK.WAIT k1 u");
    let refused = "MAXWAITERS as many clients wait as lock.max-waiters allows";
    for command in [
        "LOCK.ACQUIRE k2 t REPLICAS 1",
        "LOCK.EXTEND k1 t REPLICAS 1",
        "LOCK.WAIT k1 v",
    ] {
        assert_refused(group.primary.call(command), refused, command);
    }
    group.primary.call("LOCK.ACQUIRE k2 t").grant();
    group.thaw();
}

#[test]
fn replies_come_during_a_pause_of_writes() {
    let group = Group::of(1);
    group.freeze();
    let mut acknowledged =
        group.held_back(&format!("LOCK.ACQUIRE k1 t {LONG} REPLICAS 1 WITHIN 60000"));
    let mut late = group.held_back(&format!("LOCK.ACQUIRE k2 t {LONG} REPLICAS 1 WITHIN 400"));
    let mut ended = group.held_back("LOCK.ACQUIRE k3 t PX 400 REPLICAS 1 WITHIN 60000");
    group.primary.call("CLIENT PAUSE 600000 WRITE").okay();
    assert_refused(late.recv(), LATE, "WITHIN in a pause");
    assert_refused(ended.recv(), LOST, "the end of a lease in a pause");
    // The replica acknowledges by itself, once a second.
    group.thaw();
    acknowledged.recv().grant();
    group.primary.call("CLIENT UNPAUSE").okay();
}

#[test]
fn a_demotion_unblocks_and_takes_nothing_back() {
    let group = Group::of(1);
    group
        .primary
        .call(format!("LOCK.ACQUIRE k2 a {LONG}"))
        .grant();
    let mut handed = group
        .primary
        .waiter(format!("LOCK.WAIT k2 t {LONG} REPLICAS 1 WITHIN 60000"));
    group.primary.until_acknowledged_by(1);
    group.freeze();
    let mut client = group.held_back(&format!("LOCK.ACQUIRE k t {LONG} REPLICAS 1 WITHIN 60000"));
    group.primary.call("LOCK.RELEASE k2 a").int();
    group.until_held_replies(2);
    let elsewhere = Server::start();
    // The address takes connections, but is no primary, so nothing is loaded from there.
    let replicaof = format!("REPLICAOF 127.0.0.1 {}", elsewhere.port() + 1);
    group.primary.call(replicaof).okay();
    for unblocked in [&mut client, &mut handed] {
        let error = unblocked.recv().error();
        assert!(error.starts_with("UNBLOCKED "), "{error}");
    }
    assert_eq!(Group::holders(&group.primary, "k"), ["t"]);
    assert_eq!(Group::holders(&group.primary, "k2"), ["t"]);
    assert_eq!(group.held_replies(), 0);
    group.primary.call("REPLICAOF NO ONE").okay();
    group.primary.settle();
    assert_eq!(Group::holders(&group.primary, "k2"), ["t"]);
    group.thaw();
}

#[test]
fn a_replica_of_a_replica_does_not_count_and_one_that_joins_does() {
    let group = Group::of(1);
    let [replica] = group.replicas.as_slice() else {
        unreachable!("one replica");
    };
    let chained = Server::start();
    chained.replica_of(replica);
    assert_refused(
        group.primary.call("LOCK.ACQUIRE k t REPLICAS 2"),
        TOO_FEW,
        "chained",
    );
    group.primary.call("LOCK.ACQUIRE k t REPLICAS 1").grant();
    chained.until_in_step(replica);
    assert_eq!(Group::holders(&chained, "k"), ["t"]);
    // A replica that joins meanwhile counts, and one that leaves does not.
    let other = Server::start();
    other.replica_of(&group.primary);
    group.primary.until_acknowledged_by(2);
    replica.freeze();
    let mut client = group.held_back(&format!("LOCK.ACQUIRE j t {LONG} REPLICAS 2 WITHIN 60000"));
    client.expect_silence();
    let third = Server::start();
    third.replica_of(&group.primary);
    client.recv().grant();
    other.call("REPLICAOF NO ONE").okay();
    third.call("REPLICAOF NO ONE").okay();
    until("two replicas have left", || {
        group.primary.info("replication", "connected_slaves") == "1"
    });
    assert_refused(
        group.primary.call("LOCK.ACQUIRE i t REPLICAS 2"),
        TOO_FEW,
        "they left",
    );
    replica.thaw();
}

#[test]
fn nothing_of_it_is_in_the_append_only_file() {
    let group = Group::of(1);
    for number in 0..50 {
        let command = format!("LOCK.ACQUIRE k{number} t {LONG} REPLICAS 1");
        group.primary.call(command).grant();
    }
    let dir = group.primary.dir().join("appendonlydir");
    let written = || {
        let files = std::fs::read_dir(&dir).expect("the files of the log");
        let paths = files.map(|file| file.expect("a file").path());
        let bytes: Vec<u8> = paths
            .flat_map(|path| std::fs::read(path).unwrap_or_default())
            .collect();
        String::from_utf8_lossy(&bytes).to_uppercase()
    };
    until("all grants are in the log", || {
        written().matches("GRANT").count() >= 50
    });
    assert!(!written().contains("REPLCONF"));
}

/// The number of clients that wait for the same replica.
const CROWD: usize = 1_000;

/// Returns the number of requests for acknowledgements that a replica has had.
fn requests_at(replica: &Server) -> u64 {
    let stats = replica.find_info("commandstats", "cmdstat_replconf");
    let stats = stats.unwrap_or_else(|| "calls=0".to_owned());
    let calls = stats.split(['=', ',']).nth(1);
    calls
        .and_then(|calls| calls.parse().ok())
        .expect("a number")
}

/// To the server a request is a change that it has yet to save. So there is none while nothing changes.
#[test]
fn a_crowd_that_waits_asks_the_replicas_nothing_more() {
    let group = Group::of(2);
    let [stands_still, other] = group.replicas.as_slice() else {
        unreachable!("two replicas");
    };
    stands_still.freeze();
    let mut clients: Vec<Client> = (0..CROWD).map(|_| group.primary.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!(
            "LOCK.ACQUIRE k{number} t {LONG} REPLICAS 2 WITHIN 600000"
        ));
    }
    group.until_held_replies(CROWD);
    other.until_in_step(&group.primary);
    let changes = || -> u64 {
        let changes = group
            .primary
            .info("persistence", "rdb_changes_since_last_save");
        changes.parse().expect("a number")
    };
    let before = (requests_at(other), changes());
    // Longer than the server once took to ask again, and than its own timers.
    thread::sleep(Duration::from_millis(500));
    assert_eq!((requests_at(other), changes()), before);
    stands_still.thaw();
    for client in &mut clients {
        client.recv().grant();
    }
    assert_eq!(
        group.primary.info("lock", "lock_acknowledged"),
        CROWD.to_string()
    );
}

/// Its answer may have been lost with the connection.
#[test]
fn a_replica_that_has_come_back_is_asked_again() {
    let group = Group::of(1);
    let [replica] = group.replicas.as_slice() else {
        unreachable!("one replica");
    };
    replica.freeze();
    let command = format!("LOCK.ACQUIRE k t {LONG} REPLICAS 1 WITHIN 600000");
    let mut client = group.held_back(&command);
    let before = {
        replica.thaw();
        client.recv().grant();
        requests_at(replica)
    };
    replica.freeze();
    let mut client = group.held_back(&command);
    group.primary.call("CLIENT KILL TYPE replica").int();
    replica.thaw();
    client.recv().grant();
    // The request in the stream, and the one after the return.
    until("the replica is asked again", || {
        requests_at(replica) >= before + 2
    });
}

/// The clients that acquire locks until their primary dies.
const CLIENTS: usize = 50;

/// Acquires locks of these replicas by many clients at once, as often as there are turns, and kills
/// the primary during the last turn. Every second lock is handed over. The keys begin with `prefix`.
/// Returns those whose grants were answered. Each has its own name as its token.
#[track_caller]
fn acquire_until_death(
    primary: &mut Server,
    replicas: usize,
    prefix: &str,
    turns: usize,
) -> Vec<String> {
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| primary.client()).collect();
    let mut granted = Vec::new();
    for turn in 0..turns {
        let key = |number: usize| format!("{prefix}{}", turn * CLIENTS + number);
        for (number, client) in clients.iter_mut().enumerate() {
            let key = key(number);
            let wait = format!("LOCK.WAIT {key} {key} {LONG} REPLICAS {replicas} WITHIN 60000");
            if number % 2 == 0 {
                client.send(&*wait);
            } else {
                primary
                    .call(format!("LOCK.ACQUIRE {key} old {LONG}"))
                    .grant();
                client.send(&*wait);
                primary.until_waiters(&key, 1);
                primary.call(format!("LOCK.RELEASE {key} old")).int();
            }
        }
        let is_last = turn == turns - 1;
        if is_last {
            primary.kill9();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let is_granted = if is_last {
                client.replies_to_close().iter().any(Result::is_ok)
            } else {
                client.recv().is_ok()
            };
            if is_granted {
                granted.push(key(number));
            }
        }
    }
    assert!(granted.len() >= (turns - 1) * CLIENTS, "{}", granted.len());
    granted
}

#[track_caller]
fn assert_has_all(server: &Server, granted: &[String]) {
    for key in granted {
        assert_eq!(Group::holders(server, key), [&**key], "a lost grant");
    }
}

#[test]
fn no_answered_grant_is_lost_when_a_primary_dies() {
    let mut answered = 0;
    for _ in 0..7 {
        let mut group = Group::of(2);
        let granted = acquire_until_death(&mut group.primary, 2, "k", 4);
        answered += granted.len();
        for replica in &group.replicas {
            replica.call("REPLICAOF NO ONE").okay();
            assert_has_all(replica, &granted);
        }
    }
    assert!(answered >= 1_000, "{answered}");
}

#[test]
fn sentinels_promote_no_replica_that_lacks_an_answered_grant() {
    let (mut primary, peers) = sentinel::group();
    let granted = acquire_until_death(&mut primary, 2, "k", 21);
    assert_has_all(peers.promoted(), &granted);
}

#[test]
fn a_cluster_loses_no_answered_grant() {
    let mut cluster = Cluster::start();
    let (old, new) = (cluster.owner("{t}"), cluster.owner("{t}") + 3);
    cluster.node(old).until_acknowledged_by(1);
    let granted = acquire_until_death(cluster.node_mut(old), 1, "{t}k", 21);
    cluster::until_primary(cluster.node(new));
    assert_has_all(cluster.node(new), &granted);
}

/// With REPLICAS 1 of two, the replica that has come further has every answered grant. The other
/// one may lack some: a failover that promotes it loses them.
#[test]
fn of_two_replicas_the_one_that_came_further_has_all() {
    let (mut answered, mut lacking) = (0, 0);
    for _ in 0..5 {
        let mut group = Group::of(2);
        let granted = acquire_until_death(&mut group.primary, 1, "k", 5);
        answered += granted.len();
        let mut lacks: Vec<usize> = Vec::new();
        for replica in &group.replicas {
            replica.call("REPLICAOF NO ONE").okay();
            let has = |key: &&String| Group::holders(replica, key) == [key.as_str()];
            lacks.push(granted.len() - granted.iter().filter(has).count());
        }
        assert_eq!(lacks.iter().min(), Some(&0), "{lacks:?}");
        lacking += lacks.iter().max().expect("two replicas");
    }
    println!("{lacking} of {answered} grants are missing at the other replica");
}
