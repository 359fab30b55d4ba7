//! A session ends with its grant in every way in which a grant can end, and no wait is left. A
//! session follows a lock that moves.
//!
//! The renewal of a `HOLD` lease comes after any test, so only the end of the grant itself can end
//! its session.

use support::{until, Client, Expect, Server};

/// A lease whose renewal comes after the end of any test.
const HOLD: &str = "PX 3600000 SESSION";

/// A way in which the value at `k` goes, or stays without its session. The test runs `before`
/// before it takes the lock. In `commands`, `#` stands for the port of another server.
struct Way {
    before: &'static [&'static str],
    commands: &'static [&'static str],
}

const fn way(commands: &'static [&'static str]) -> Way {
    Way {
        before: &[],
        commands,
    }
}

const fn after(before: &'static [&'static str], commands: &'static [&'static str]) -> Way {
    Way { before, commands }
}

const WAYS: [Way; 39] = [
    way(&["DEL k"]),
    way(&["UNLINK k"]),
    way(&["FLUSHALL"]),
    way(&["FLUSHALL SYNC"]),
    way(&["FLUSHALL ASYNC"]),
    way(&["FLUSHDB"]),
    way(&["FLUSHDB SYNC"]),
    way(&["FLUSHDB ASYNC"]),
    way(&["SET k words"]),
    way(&["SINTERSTORE k nothing"]),
    after(&["RPUSH list 1"], &["SORT list STORE k"]),
    after(&["SET other words"], &["RENAME other k"]),
    after(&["SET other words"], &["COPY other k REPLACE"]),
    after(&["LOCK.ACQUIRE other o PX 3600000"], &["RENAME other k"]),
    way(&["EXPIRE k 0"]),
    way(&["EXPIRE k -1"]),
    way(&["PEXPIREAT k 1"]),
    way(&["PEXPIRE k 20"]),
    way(&["PEXPIRE k 20", "DEBUG SLEEP 0.05", "EXISTS k"]),
    way(&["LOCK.EXTEND k t PX 30 SESSION", "PEXPIRE k 5"]),
    way(&["MIGRATE 127.0.0.1 # k 0 5000"]),
    way(&["SWAPDB 0 1", "SELECT 1", "FLUSHDB", "SELECT 0"]),
    way(&["SWAPDB 0 1", "FLUSHALL"]),
    way(&["MOVE k 1", "SELECT 1", "DEL k", "SELECT 0"]),
    way(&["RENAME k l", "DEL l"]),
    way(&["RENAME k l", "RENAME l k", "UNLINK k"]),
    way(&["DEBUG RELOAD"]),
    way(&["LOCK.RELEASE k t"]),
    way(&["LOCK.RELEASE k t ALL"]),
    way(&["LOCK.MRELEASE 1 k t"]),
    way(&["MULTI", "DEL k", "EXEC"]),
    way(&["MULTI", "DEL k", "SET k words", "EXEC"]),
    way(&["MULTI", "LOCK.RELEASE k t", "EXEC"]),
    way(&["MULTI", "DEL k", "LOCK.ACQUIRE k u PX 3600000", "EXEC"]),
    way(&["DEL k", "LOCK.ACQUIRE k u PX 3600000"]),
    way(&["DEL k", "LOCK.ACQUIRE k t PX 3600000"]),
    way(&["EVAL return(redis.call('LOCK.RELEASE',KEYS[1],'t')) 1 k"]),
    way(&["EVAL return(redis.call('DEL',KEYS[1])) 1 k"]),
    way(&["EVAL return(redis.call('FLUSHALL')) 0"]),
];

/// Sends the commands one by one, so that the module's timer runs in between.
#[track_caller]
fn one_by_one(server: &Server, commands: &[String]) {
    let mut client = server.client();
    for command in commands {
        let reply = client.call(command);
        assert!(reply.is_ok(), "{command}: {reply:?}");
        server.settle();
    }
}

/// Sends the commands in one write.
#[track_caller]
fn at_once(server: &Server, commands: &[String]) {
    server.call_all(commands);
}

const PACES: [fn(&Server, &[String]); 2] = [one_by_one, at_once];

#[track_caller]
fn with_port(commands: &[&str], other: &Server) -> Vec<String> {
    let port = other.port().to_string();
    commands.iter().map(|it| it.replace('#', &port)).collect()
}

#[track_caller]
fn until_zero(server: &Server, field: &str, what: &str) {
    until(&format!("{field} is back to 0 after {what}"), || {
        server.info("lock", field) == "0"
    });
}

#[test]
fn a_session_ends_with_its_grant() {
    let other = Server::start();
    for Way { before, commands } in &WAYS {
        for pace in PACES {
            let server = Server::start();
            let mut holder = server.client();
            server.call_all(before);
            holder.call(format!("LOCK.ACQUIRE k t {HOLD}")).grant();
            assert_eq!(server.info("lock", "lock_sessions"), "1");
            pace(&server, &with_port(commands, &other));
            until_zero(&server, "lock_sessions", &format!("{commands:?}"));
            other.call("FLUSHALL").okay();
        }
    }
}

#[test]
fn all_sessions_and_waits_of_many_keys_and_holders_go_with_their_grants() {
    for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "SWAPDB 0 1"] {
        let server = Server::start();
        let mut holder = server.client();
        for number in 0..20 {
            holder
                .call(format!("LOCK.ACQUIRE shared s{number} {HOLD} SHARED"))
                .grant();
            holder
                .call(format!("LOCK.ACQUIRE k{number} t {HOLD}"))
                .grant();
        }
        holder
            .call(format!("LOCK.MACQUIRE 3 m1 m2 m3 t {HOLD}"))
            .grant();
        let mut waiters: Vec<Client> = (0..20)
            .map(|number| server.waiter(format!("LOCK.WAIT k{number} w {HOLD}")))
            .collect();
        waiters.push(server.waiter(format!("LOCK.WAIT shared w {HOLD}")));
        waiters.push(server.waiter(format!("LOCK.MWAIT 2 m3 m1 w {HOLD}")));
        server.call(flush).okay();
        for waiter in &mut waiters {
            assert_eq!(waiter.recv().grant().token, "w", "{flush}");
        }
        if flush == "SWAPDB 0 1" {
            // The locks and their sessions are in the other database now.
            assert_eq!(server.info("lock", "lock_sessions"), "66");
            server.call_all(&["SELECT 1", "FLUSHDB", "SELECT 0"]);
        }
        // The last wait holds two keys.
        until("only the new grants are tied", || {
            server.info("lock", "lock_sessions") == "23"
        });
        for waiter in waiters {
            waiter.close();
        }
        until_zero(&server, "lock_sessions", flush);
        until_zero(&server, "lock_waiters", flush);
        until_zero(&server, "lock_locks", flush);
    }
}

#[test]
fn nothing_is_left_of_holder_and_waiter_however_the_value_goes() {
    let other = Server::start();
    for Way { before, commands } in &WAYS {
        for pace in PACES {
            let server = Server::start();
            let mut holder = server.client();
            server.call_all(before);
            holder.call(format!("LOCK.ACQUIRE k t {HOLD}")).grant();
            let waiter = server.waiter(format!("LOCK.WAIT k w {HOLD}"));
            pace(&server, &with_port(commands, &other));
            waiter.close();
            holder.close();
            let what = format!("{commands:?}");
            until_zero(&server, "lock_waiters", &what);
            server.call("FLUSHALL").okay();
            for field in [
                "lock_sessions",
                "lock_waiters",
                "lock_deferred",
                "lock_locks",
            ] {
                until_zero(&server, field, &what);
            }
            other.call("FLUSHALL").okay();
        }
    }
}

#[test]
fn a_session_ends_with_a_restore_over_its_lock() {
    let server = Server::start();
    server.call("SET words words").okay();
    server.call("LOCK.ACQUIRE lock l PX 3600000").grant();
    let mut holder = server.client();
    for source in ["words", "lock"] {
        let dump = server.call(&["DUMP", source]).bytes();
        holder.call(format!("LOCK.ACQUIRE k t {HOLD}")).grant();
        let restore = [b"RESTORE".as_slice(), b"k", b"0", &dump, b"REPLACE"];
        server.call(&restore).okay();
        until_zero(&server, "lock_sessions", &format!("RESTORE of {source}"));
        server.call("DEL k").int();
    }
}

#[test]
fn a_session_ends_with_a_lock_that_is_evicted() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call(format!("LOCK.ACQUIRE k t {HOLD}")).grant();
    server
        .call("CONFIG SET maxmemory-policy allkeys-random")
        .okay();
    server.call("CONFIG SET maxmemory 1").okay();
    until("the lock is evicted", || server.call("DBSIZE").int() == 0);
    server.call("CONFIG SET maxmemory 0").okay();
    until_zero(&server, "lock_sessions", "eviction");
}

#[test]
fn sessions_and_waits_end_with_the_role_of_a_primary() {
    let (server, other) = (Server::start(), Server::start());
    let mut holder = server.client();
    holder.call(format!("LOCK.ACQUIRE k t {HOLD}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k w {HOLD}"));
    server.replica_of(&other);
    assert!(waiter.recv().error().starts_with("UNBLOCKED "));
    for field in ["lock_sessions", "lock_waiters", "lock_deferred"] {
        until_zero(&server, field, "a demotion");
    }
    server.call("REPLICAOF NO ONE").okay();
    server.settle();
    assert_eq!(server.info("lock", "lock_sessions"), "0");
}

#[test]
fn a_session_ends_with_a_lease_that_ends_during_a_pause() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k t PX 300 SESSION").grant();
    server.call("CLIENT PAUSE 600 WRITE").okay();
    until_zero(&server, "lock_sessions", "a lease that couldn't be renewed");
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_session_of_several_at_one_lock_ends_alone() {
    let server = Server::start();
    let mut holder = server.client();
    for token in ["a", "b", "c"] {
        holder
            .call(format!("LOCK.ACQUIRE k {token} {HOLD} SHARED"))
            .grant();
    }
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    until("one is gone", || {
        server.info("lock", "lock_sessions") == "2"
    });
    server.call("DEL k").int();
    until_zero(&server, "lock_sessions", "DEL");
}

// ---- memory

const ROUNDS: usize = 10_000;

/// The number of bytes by which used memory may vary by itself.
const SLACK: i64 = 400_000;

#[track_caller]
fn used_memory(server: &Server) -> i64 {
    server
        .info("memory", "used_memory")
        .parse()
        .expect("a number of bytes")
}

/// Repeats commands in pipelines. In the commands, `#` stands for the round.
#[track_caller]
fn repeat(client: &mut Client, commands: &[&str], rounds: usize) {
    const AT_ONCE: usize = 500;
    for first in (0..rounds).step_by(AT_ONCE) {
        let batch: Vec<String> = (first..first + AT_ONCE)
            .flat_map(|round| {
                let number = round.to_string();
                commands.iter().map(move |it| it.replace('#', &number))
            })
            .collect();
        client.call_all(&batch);
    }
}

#[test]
fn grants_whose_values_go_leave_no_memory_behind() {
    let rounds: [&[&str]; 7] = [
        &["LOCK.ACQUIRE k t PX 3600000 SESSION", "DEL k"],
        &["LOCK.ACQUIRE k t PX 9007199254740991 SESSION", "UNLINK k"],
        &["LOCK.ACQUIRE k# t PX 3600000 SESSION", "DEL k#"],
        &["LOCK.ACQUIRE k t# PX 3600000 SESSION", "SET k v", "DEL k"],
        &["LOCK.MACQUIRE 2 k l t PX 3600000 SESSION", "FLUSHALL SYNC"],
        &["LOCK.ACQUIRE k t PX 3600000 SESSION", "LOCK.RELEASE k t"],
        &["LOCK.ACQUIRE k t PX 3600000 SESSION", "RENAME k l", "DEL l"],
    ];
    rounds.into_iter().for_each(assert_leaves_no_memory_behind);
}

/// The name of a lock with several holders is scheduled for the ends of their leases.
#[test]
fn shared_locks_whose_values_go_leave_no_memory_behind() {
    let acquire = |token| format!("LOCK.ACQUIRE k# {token} SHARED PX 9007199254740991");
    let (one, other) = (acquire("a"), acquire("b"));
    let ends: [&[&str]; 7] = [
        &["DEL k#"],
        &["SET k# v", "DEL k#"],
        &["RENAME k# l", "DEL l"],
        &["FLUSHALL SYNC"],
        &["FLUSHDB ASYNC"],
        &["MOVE k# 1", "SWAPDB 0 1", "DEL k#"],
        &["LOCK.RELEASE k# a", "LOCK.RELEASE k# b"],
    ];
    for end in ends {
        let commands = [&[one.as_str(), other.as_str()], end].concat();
        assert_leaves_no_memory_behind(&commands);
    }
}

#[track_caller]
fn assert_leaves_no_memory_behind(commands: &[&str]) {
    let server = Server::start();
    let mut client = server.client();
    repeat(&mut client, commands, ROUNDS / 5);
    server.settle();
    let before = used_memory(&server);
    repeat(&mut client, commands, ROUNDS);
    until_zero(&server, "lock_sessions", &format!("{commands:?}"));
    until(&format!("the memory is back after {commands:?}"), || {
        used_memory(&server) < before + SLACK
    });
}

// ---- sessions that follow their locks

#[test]
fn a_session_follows_its_lock_wherever_it_goes() {
    let moves: [&[&str]; 6] = [
        &["RENAME k l", "RENAME l m", "RENAME m l"],
        &["RENAME k l", "MULTI", "MOVE l 1", "EXEC", "SWAPDB 0 1"],
        &["MOVE k 1", "SWAPDB 0 1", "RENAME k l"],
        &["SWAPDB 0 1", "SWAPDB 1 0", "RENAME k l"],
        &[
            "MULTI",
            "RENAME k m",
            "MOVE m 2",
            "SWAPDB 2 0",
            "RENAME m l",
            "EXEC",
        ],
        &[
            "SWAPDB 0 1",
            "SWAPDB 1 2",
            "SELECT 2",
            "RENAME k l",
            "SELECT 0",
            "SWAPDB 2 0",
        ],
    ];
    for commands in moves {
        for pace in PACES {
            let commands: Vec<String> = commands.iter().map(|it| (*it).to_owned()).collect();
            let server = Server::start();
            // The lease is short, so the session has to be renewed at its new name too.
            let mut holder = server.client();
            holder.call("LOCK.ACQUIRE k t PX 1500 SESSION").grant();
            pace(&server, &commands);
            let mut waiter = server.client();
            waiter.call("LOCK.WAIT l w BLOCK 2000").nil();
            assert_eq!(server.known_lock("l").holder().int("session"), 1);
            assert_eq!(server.info("lock", "lock_sessions"), "1", "{commands:?}");
            let mut waiter = server.waiter("LOCK.WAIT l w PX 600000");
            holder.close();
            assert_eq!(waiter.recv().grant().token, "w", "{commands:?}");
            until_zero(&server, "lock_sessions", &format!("{commands:?}"));
        }
    }
}
