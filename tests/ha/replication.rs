//! Replicas after a partial or a full resync, while clients hold and wait at the primary.
//! `tests/replication/stream.rs` tests an unbroken replication stream.

use std::time::Duration;

use redis::Value;

use crate::contenders::{contend, Plan, Route};
use support::history;
use support::payload;
use support::{assert_same_data, unix_time_us, until, Client, Expect, Server, LONG};

/// A primary, its replica, and that replica's own replica.
struct Chain {
    primary: Server,
    middle: Server,
    last: Server,
}

impl Chain {
    #[track_caller]
    fn start() -> Chain {
        let chain = Chain {
            primary: Server::start(),
            middle: Server::start(),
            last: Server::start(),
        };
        chain.middle.replica_of(&chain.primary);
        chain.last.replica_of(&chain.middle);
        // The primary may send a new replica its first command up to a second later.
        chain.primary.call("PUBLISH begun 1").int();
        for replica in chain.replicas() {
            replica.until_in_step(&chain.primary);
        }
        chain
    }

    fn replicas(&self) -> [&Server; 2] {
        [&self.middle, &self.last]
    }

    /// Asserts that all three servers have the same data. No client may write meanwhile.
    #[track_caller]
    fn assert_same_data(&self) {
        // A link that was cut may still look up.
        for replica in self.replicas() {
            until("the replica follows", || {
                replica.info("replication", "master_link_status") == "up"
            });
        }
        assert_same_data(&self.primary, &self.replicas());
    }
}

fn count(server: &Server, section: &str, field: &str) -> i64 {
    server.info(section, field).parse().expect("a count")
}

fn expirations(server: &Server) -> i64 {
    count(server, "lock", "lock_expirations")
}

fn hand_overs(server: &Server) -> i64 {
    count(server, "lock", "lock_hand_overs")
}

/// Runs a crowd that releases its locks, at a server that keeps its role, and asserts that no grant
/// is lost. Returns the result of `meanwhile`.
fn contend_at<T>(server: &Server, meanwhile: impl FnOnce() -> T) -> T {
    let plan = Plan {
        keys: (0..4).map(|number| format!("brisk{number}")).collect(),
        contenders: 3,
        lease_ms: 5_000,
        hold_ms: 1..15,
        lapses_of_ten: 0,
        replicas: 0,
    };
    let port = server.port();
    let find = |_: &str, _: Option<&str>| {
        Some(Route {
            port,
            asking: false,
        })
    };
    let ([history], told) = contend([plan], &find, meanwhile);
    history::fences_rise(&history.grants).unwrap();
    history::no_writer_overlaps(&history.holds).unwrap();
    history::nobody_stuck(&history.waits, &[], Duration::from_secs(2)).unwrap();
    assert!(history.lost.is_empty(), "{:#?}", history.lost);
    assert!(history.errors.is_empty(), "{:?}", history.errors);
    told
}

/// A queue of waiters that never release the lock, so a lease expires every 30 ms.
struct Line(Vec<Client>);

impl Line {
    #[track_caller]
    fn start(primary: &Server) -> Line {
        primary.call(format!("LOCK.ACQUIRE line a {LONG}")).grant();
        let wait = |number| primary.waiter(format!("LOCK.WAIT line w{number} PX 30"));
        let line = Line((0..120).map(wait).collect());
        assert_eq!(primary.call("LOCK.RELEASE line a").int(), 1);
        line
    }

    #[track_caller]
    fn assert_all_served(self) {
        let mut last = 0;
        for mut waiter in self.0 {
            let fence = waiter.recv().grant().fence;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
    }
}

/// Waiters for separate locks whose leases expire one every 20 ms. Each waiter keeps its lock.
struct Heirs {
    name: &'static str,
    waiters: Vec<Client>,
}

impl Heirs {
    #[track_caller]
    fn line_up(primary: &Server, name: &'static str) -> Heirs {
        let hold_and_wait = |number| {
            let hold = format!("LOCK.ACQUIRE {name}{number} a {LONG}");
            primary.call(hold).grant();
            primary.waiter(format!("LOCK.WAIT {name}{number} b {LONG}"))
        };
        let waiters = (0..40).map(hold_and_wait).collect();
        Heirs { name, waiters }
    }

    /// Shortens the leases, so that they expire one after the other.
    #[track_caller]
    fn inherit(&self, primary: &Server) {
        let name = self.name;
        let end = |number| format!("LOCK.EXTEND {name}{number} a PX {}", 100 + number * 20);
        let ends: Vec<String> = (0..40).map(end).collect();
        primary.call_all(&ends);
    }

    #[track_caller]
    fn assert_all_served(self) {
        for mut waiter in self.waiters {
            waiter.recv().grant();
        }
    }
}

// ---- partial resync

#[test]
fn a_link_that_was_cut_goes_on_where_it_broke() {
    let chain = Chain::start();
    let Chain {
        primary, middle, ..
    } = &chain;
    primary.call("CONFIG SET repl-backlog-size 64mb").okay();
    let full = [primary, middle].map(|it| count(it, "stats", "sync_full"));
    let partial = || count(primary, "stats", "sync_partial_ok");
    let cut = || {
        let before = partial();
        primary.call("CLIENT KILL TYPE replica").int();
        before
    };
    let line = Line::start(primary);
    let mut heirs = Vec::new();
    contend_at(primary, || {
        for _ in 0..5 {
            let before = cut();
            until("the replica has asked for the rest", || partial() > before);
        }
        for name in ["first", "second", "third"] {
            let next = Heirs::line_up(primary, name);
            middle.freeze();
            let before = cut();
            primary
                .call(format!("LOCK.ACQUIRE {name} a {LONG}"))
                .grant();
            let (handed_over, expired) = (hand_overs(primary), expirations(primary));
            next.inherit(primary);
            until(
                "leases expired and locks were handed over meanwhile",
                || hand_overs(primary) > handed_over + 50 && expirations(primary) > expired + 20,
            );
            middle.thaw();
            until("the replica has asked for the rest", || partial() > before);
            heirs.push(next);
        }
    });
    line.assert_all_served();
    for heirs in heirs {
        heirs.assert_all_served();
    }
    chain.assert_same_data();
    assert!(
        primary.call("DBSIZE").int() >= 3 * 41,
        "the locks that were handed over"
    );
    let full_after = [primary, middle].map(|it| count(it, "stats", "sync_full"));
    assert_eq!(full_after, full, "no full resync");
}

/// Takes locks with short leases, and two with long leases: those of `keeps` and of `tied`.
/// Returns `b`, which waits for `handed`.
#[track_caller]
fn short_leases(primary: &Server) -> Client {
    for command in [
        "LOCK.ACQUIRE alone a PX 2000",
        "LOCK.ACQUIRE handed a PX 2000",
        "LOCK.ACQUIRE deep a PX 2000 REENTRANT",
        "LOCK.ACQUIRE deep a PX 2000 REENTRANT",
        "LOCK.ACQUIRE pool a PX 2000 SHARED",
        "LOCK.ACQUIRE pool keeps PX 600000 SHARED",
        "LOCK.MACQUIRE 2 one two a PX 2000",
        "LOCK.ACQUIRE tied a PX 600000 SESSION",
    ] {
        primary.call(command).grant();
    }
    primary.waiter(format!("LOCK.WAIT handed b {LONG}"))
}

const ENDING: [&str; 6] = ["alone", "handed", "deep", "pool", "one", "two"];

#[test]
fn a_replica_that_is_cut_off_ends_nothing_by_itself() {
    let chain = Chain::start();
    let Chain {
        primary, middle, ..
    } = &chain;
    let mut waiter = short_leases(primary);
    for replica in chain.replicas() {
        replica.until_in_step(primary);
    }
    let full = count(primary, "stats", "sync_full");
    let partial = count(primary, "stats", "sync_partial_ok");
    // No server listens on this port.
    middle.call("REPLICAOF 127.0.0.1 1").okay();
    let before = chain
        .replicas()
        .map(|replica| replica.call("DEBUG DIGEST").text());
    let size = middle.call("DBSIZE").int();
    assert_eq!(size, 7);

    waiter.recv().grant();
    for replica in chain.replicas() {
        for key in ENDING {
            until(&format!("the lease of {key} is over here"), || {
                replica.call(&["LOCK.CHECK", key, "a"]).int() == 0
            });
            let tokens = replica.lock_info(key).map(|info| info.holder_tokens());
            let expected = (key == "pool").then(|| vec!["keeps".to_owned()]);
            assert_eq!(tokens, expected, "{key}");
        }
        assert!(replica.call("LOCK.CHECK tied a").int() > 0);
        replica.settle();
        assert_eq!(replica.call("DBSIZE").int(), size);
    }
    let after = chain
        .replicas()
        .map(|replica| replica.call("DEBUG DIGEST").text());
    assert_eq!(after, before, "a replica expires nothing by itself");

    middle.replica_of(primary);
    chain.assert_same_data();
    for replica in chain.replicas() {
        let handed = replica.lock_info("handed").expect("a holder");
        assert_eq!(handed.holder_tokens(), ["b"]);
        assert_eq!(count(replica, "lock", "lock_grants"), 0);
        assert_eq!(count(replica, "lock", "lock_expirations"), 0);
    }
    assert_eq!(count(primary, "stats", "sync_full"), full);
    assert_eq!(count(primary, "stats", "sync_partial_ok"), partial + 1);
}

// ---- full sync

/// A way to transfer the data set: the settings of both servers, and the text that the new replica
/// logs.
struct Way {
    primary: &'static str,
    replica: &'static str,
    logged: &'static str,
}

#[test]
fn a_full_sync_from_disk() {
    let way = Way {
        primary: "repl-diskless-sync no",
        replica: "repl-diskless-load disabled",
        logged: "to disk",
    };
    assert_old_data_replaced(&way);
}

#[test]
fn a_full_sync_by_socket_to_disk() {
    let way = Way {
        primary: "repl-diskless-sync yes",
        replica: "repl-diskless-load disabled",
        logged: "to disk",
    };
    assert_old_data_replaced(&way);
}

/// The replica loads from disk all the same, because the module does not declare that it supports
/// two data sets.
#[test]
fn a_full_sync_where_swapdb_is_asked_for() {
    let way = Way {
        primary: "repl-diskless-sync yes",
        replica: "repl-diskless-load swapdb",
        logged: "to disk",
    };
    assert_old_data_replaced(&way);
}

#[test]
fn a_full_sync_by_socket_into_memory() {
    let way = Way {
        primary: "repl-diskless-sync yes",
        replica: "repl-diskless-load on-empty-db",
        logged: "to parser",
    };
    assert_full_sync(&way, way.new_replica());
}

impl Way {
    #[track_caller]
    fn new_replica(&self) -> Server {
        Server::builder()
            .config(self.replica)
            .config("key-load-delay 300")
            .start()
    }
}

/// Asserts that a full sync leaves nothing of the locks that the new replica had before.
#[track_caller]
fn assert_old_data_replaced(way: &Way) {
    let middle = way.new_replica();
    middle.call(format!("LOCK.ACQUIRE own a {LONG}")).grant();
    middle.call(format!("LOCK.ACQUIRE held1 z {LONG}")).grant();
    assert_full_sync(way, middle);
}

/// Takes locks of every kind, enough that saving them takes a while.
#[track_caller]
fn many_locks(primary: &Server) {
    for number in 0..150 {
        for command in [
            format!("LOCK.ACQUIRE held{number} a {LONG}"),
            format!("LOCK.ACQUIRE deep{number} a {LONG} REENTRANT"),
            format!("LOCK.ACQUIRE deep{number} a {LONG} REENTRANT"),
            format!("LOCK.ACQUIRE pool{number} a {LONG} SHARED LIMIT 3"),
            format!("LOCK.ACQUIRE pool{number} b PX 700000 SHARED LIMIT 3"),
        ] {
            primary.call(command).grant();
        }
    }
}

/// Makes `middle`, which has a replica, follow a primary at which crowds contend. Asserts a single
/// full sync, and that all three servers then have the same data.
#[track_caller]
fn assert_full_sync(way: &Way, middle: Server) {
    let primary = Server::builder()
        .config(way.primary)
        .config("rdb-key-save-delay 500")
        .start();
    let last = Server::start();
    last.replica_of(&middle);
    let chain = Chain {
        primary,
        middle,
        last,
    };
    let Chain {
        primary, middle, ..
    } = &chain;
    many_locks(primary);
    let line = Line::start(primary);
    let heirs = Heirs::line_up(primary, "turn");
    heirs.inherit(primary);
    let full = count(primary, "stats", "sync_full");
    let handed_over = contend_at(primary, || {
        let before = hand_overs(primary);
        middle.replica_of(primary);
        hand_overs(primary) - before
    });
    assert!(handed_over > 50, "{handed_over} hand-overs meanwhile");
    assert_eq!(count(primary, "stats", "sync_full"), full + 1);
    assert!(middle.log().contains(way.logged), "not {}", way.logged);
    line.assert_all_served();
    heirs.assert_all_served();
    chain.assert_same_data();
    assert_eq!(middle.lock_info("own"), None);

    assert!(middle.call("LOCK.CHECK held1 a").int() > 0);
}

#[test]
fn whoever_was_given_the_whole_data_set_numbers_on_from_there() {
    let primary = Server::start();
    // An hour ahead of the clock, so that the clock alone gives no greater fence.
    payload::restore_with_fence(&primary, "ahead", unix_time_us() + 3_600_000_000);
    let last = primary.call("LOCK.ACQUIRE k a").grant().fence;
    let replica = Server::start();
    replica.replica_of(&primary);
    replica.call("REPLICAOF NO ONE").okay();
    let next = replica.call("LOCK.ACQUIRE other a").grant().fence;
    assert!(next > last, "{next} after {last}");
}

// ---- refusals

const WRITES: [&str; 18] = [
    "LOCK.ACQUIRE k a",
    "LOCK.ACQUIRE k b",
    "LOCK.ACQUIRE free a SESSION",
    "LOCK.ACQUIRE pool b SHARED LIMIT 2",
    "LOCK.ACQUIRE k a REENTRANT",
    "LOCK.WAIT k a",
    "LOCK.WAIT k b BLOCK 1",
    "LOCK.WAIT free a",
    "LOCK.EXTEND k a PX 5",
    "LOCK.EXTEND k a SESSION",
    "LOCK.RELEASE k a",
    "LOCK.RELEASE k a ALL",
    "LOCK.MACQUIRE 2 free other a",
    "LOCK.MWAIT 2 k free b BLOCK 1",
    "LOCK.MEXTEND 1 k a PX 5",
    "LOCK.MRELEASE 2 k pool a",
    "LOCK.APPLY k DROP a",
    "DEL k",
];

#[test]
fn replicas_answer_what_they_know_and_refuse_the_rest() {
    let chain = Chain::start();
    let primary = &chain.primary;
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let share = format!("LOCK.ACQUIRE pool a {LONG} SHARED LIMIT 2");
    primary.call(share).grant();
    for replica in chain.replicas() {
        replica.until_in_step(primary);
        let digest = replica.call("DEBUG DIGEST").text();
        for command in WRITES {
            let error = replica.call(command).error();
            assert!(error.starts_with("READONLY "), "{command}: {error}");
            assert_refused_within(replica, command);
        }
        assert_reads_within(replica);
        // Even if clients may write to a replica, its locks belong to its primary.
        replica.call("CONFIG SET replica-read-only no").okay();
        for command in WRITES.iter().filter(|it| it.starts_with("LOCK.")) {
            let error = replica.call(*command).error();
            let refused = ["READONLY ", "ERR LOCK.APPLY is internal"];
            let refused = refused.iter().any(|start| error.starts_with(start));
            assert!(refused, "{command}: {error}");
        }
        assert_eq!(replica.call("DEBUG DIGEST").text(), digest);
        assert_eq!(count(replica, "lock", "lock_waiters"), 0);
    }
}

/// Asserts that a transaction and a script refuse the command too.
#[track_caller]
fn assert_refused_within(replica: &Server, command: &str) {
    let mut replies = replica.call_batch(&["MULTI", command, "EXEC"]);
    let exec = replies.remove(2).error();
    assert!(exec.starts_with("EXECABORT "), "{command}: {exec}");
    let mut eval = vec!["EVAL", "return redis.call(unpack(ARGV))", "0"];
    eval.extend(command.split(' '));
    let error = replica.call(&eval).error();
    assert!(error.contains("READONLY"), "{command}: {error}");
}

#[track_caller]
fn assert_reads_within(replica: &Server) {
    let check = "LOCK.CHECK k a";
    assert!(replica.call(check).int() > 0);
    assert_eq!(replica.call("LOCK.CHECK k b").int(), 0);
    let exec = replica.call_batch(&["MULTI", check, "EXEC"]).remove(2);
    assert!(matches!(exec.list().as_slice(), [Value::Int(1..)]));
    let script = "return redis.call('LOCK.CHECK', KEYS[1], ARGV[1])";
    for eval in ["EVAL", "EVAL_RO"] {
        assert!(replica.call(&[eval, script, "1", "k", "a"]).int() > 0);
    }
    let info = replica.lock_info("pool").expect("a holder");
    assert_eq!((info.holder().int("limit"), info.waiters), (2, 0));
    assert_eq!(replica.lock_info("free"), None);
    replica.call("LOCK.HELP").list();
}

// ---- a primary that doesn't know of its successor

#[test]
fn an_old_primary_that_is_cut_off_makes_a_second_holder_of_a_replicated_lock() {
    let (old, new) = (Server::start(), Server::start());
    new.replica_of(&old);
    for key in ["released", "extended"] {
        old.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    new.until_in_step(&old);
    new.call("REPLICAOF NO ONE").okay();
    until("the link is cut", || {
        old.info("replication", "connected_slaves") == "0"
    });

    assert_eq!(old.call("LOCK.RELEASE released a").int(), 1);
    old.call(format!("LOCK.ACQUIRE released b {LONG}")).grant();
    assert!(new.call("LOCK.CHECK released a").int() > 0, "held twice");

    assert_eq!(old.call("LOCK.EXTEND extended a PX 1200000").int(), 1);
    let left = new.call("LOCK.CHECK extended a").int();
    assert!((1..=600_000).contains(&left), "{left} ms");
    // The new primary's earlier deadline passes.
    assert_eq!(new.call("PEXPIRE extended 1").int(), 1);
    new.call(format!("LOCK.WAIT extended c {LONG}")).grant();
    assert!(old.call("LOCK.CHECK extended a").int() > 600_000);

    old.call("CONFIG SET min-replicas-to-write 1").okay();
    for command in ["LOCK.EXTEND extended a", "LOCK.ACQUIRE other d"] {
        let refused = old.call(command).error();
        assert!(refused.starts_with("NOREPLICAS"), "{command}: {refused}");
    }
}
