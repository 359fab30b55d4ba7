//! The key that keeps the last fence in a file, while clients write under its name, and the counter
//! of a replica that becomes a primary.
//!
//! tests/replication/clocks.rs has what the key is for: a clock that is set back.

use std::fs;

use support::{unix_time_us, until, Client, Expect, Server, LONG};

const NAME: &str = "redis-lock:last-fence:";

const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 86_400 * SECOND_US;

/// The module's line in the log for a client's own value under the name, at a load or a save.
const NOT_SAVED: &str = "the last fence isn't saved while it exists";

/// The fence of the year 2112 that a client once sent under the name.
const POISON: i64 = 1 << 52;

/// The commands that save the whole data set, each with the settings that it needs.
const SAVES: [(&str, &[&str]); 4] = [
    ("SAVE", &["appendonly no"]),
    ("BGSAVE", &["appendonly no"]),
    ("BGREWRITEAOF", &["appendonly yes"]),
    (
        "BGREWRITEAOF",
        &["appendonly yes", "aof-use-rdb-preamble no"],
    ),
];

/// Returns the time for which a key of this fence is kept, in ms since the epoch.
fn expiry_ms(fence: i64) -> i64 {
    fence / 1000 + 1
}

fn hours_ahead(hours: i64) -> i64 {
    unix_time_us() + hours * 3_600 * SECOND_US
}

/// Returns commands that write a client's own value under the name. None is of the module's form,
/// though some have its digits or its expiry.
fn own_values() -> Vec<String> {
    let ahead = hours_ahead(3);
    let until = expiry_ms(ahead);
    vec![
        format!("SET {NAME} {POISON}"),
        format!("SET {NAME} {POISON} PX 86400000"),
        format!("SET {NAME} {ahead}"),
        format!("SET {NAME} {ahead} PXAT {}", until + 1),
        format!("SET {NAME} {ahead} PXAT {}", until - 1),
        format!("SET {NAME} 0{ahead} PXAT {until}"),
        format!("SET {NAME} why PXAT {until}"),
        format!("RPUSH {NAME} a b"),
        format!("HSET {NAME} field value"),
        format!("LOCK.ACQUIRE {NAME} a {LONG}"),
    ]
}

/// The value under the name: its serialized form and its expiry.
#[track_caller]
fn value(server: &Server) -> (Vec<u8>, i64) {
    let dump = server.call(&["DUMP", NAME]).bytes();
    (dump, server.call(&["PEXPIRETIME", NAME]).int())
}

#[track_caller]
fn exists(server: &Server) -> bool {
    server.call(&["EXISTS", NAME]).int() == 1
}

/// Connects a client that has selected the database.
#[track_caller]
fn client_on(server: &Server, db: i32) -> Client {
    let mut client = server.client();
    client.call(format!("SELECT {db}")).okay();
    client
}

#[track_caller]
fn last_fence(server: &Server) -> i64 {
    let last = server.info("lock", "lock_last_fence");
    last.parse().expect("a fence")
}

/// Raises the server's fences to this number.
#[track_caller]
fn raise(server: &Server, fence: i64) {
    server.call("LOCK.ACQUIRE raised a").grant();
    let extend = format!("LOCK.EXTEND raised a FENCE {fence}");
    assert_eq!(server.call(extend).int(), 1);
    assert_eq!(server.call("LOCK.RELEASE raised a").int(), 1);
}

#[track_caller]
fn save(server: &Server, how: &str) {
    assert!(server.call(how).is_ok(), "{how}");
    until("it is saved", || {
        let is_over = |field: &str| server.info("persistence", field) == "0";
        is_over("rdb_bgsave_in_progress")
            && is_over("aof_rewrite_in_progress")
            && is_over("aof_rewrite_scheduled")
    });
}

fn count(log: &str, line: &str) -> usize {
    log.matches(line).count()
}

/// Starts a server that the settings let save, and returns it.
#[track_caller]
fn server_with(settings: &[&str]) -> Server {
    let lines = settings.iter();
    lines
        .fold(Server::builder(), |it, line| it.config(line))
        .start()
}

#[test]
fn a_clients_own_value_raises_no_fence_and_stays_over_each_save_and_restart() {
    for (how, settings) in SAVES {
        let mut server = server_with(settings);
        for command in own_values() {
            let scene = format!("{how}, {settings:?}: {command}");
            server.call("LOCK.ACQUIRE k a").grant();
            server.call(&command).value();
            let before = value(&server);
            let logged = count(&server.log(), NOT_SAVED);
            save(&server, how);
            assert_eq!(value(&server), before, "{scene}: saved");
            assert_eq!(count(&server.log(), NOT_SAVED), logged + 1, "{scene}");
            server.kill9();
            server.restart();
            assert_eq!(value(&server), before, "{scene}: loaded");
            assert!(server.log().contains(NOT_SAVED), "{scene}: not logged");
            let fence = server.call("LOCK.ACQUIRE next a").grant().fence;
            assert!(fence <= unix_time_us(), "{scene}: {fence}");
            server.call(&["DEL", NAME]).int();
        }
        raise(&server, unix_time_us() + 50 * SECOND_US);
        let last = last_fence(&server);
        save(&server, how);
        server.kill9();
        server.restart();
        assert_eq!(last_fence(&server), last, "{how}: saved once it is gone");
        assert!(!exists(&server), "{how}");
    }
}

#[test]
fn a_clients_own_value_that_only_the_append_only_file_has_raises_no_fence_and_stays() {
    for command in own_values() {
        let mut server = server_with(&["appendonly yes"]);
        server.call(&command).value();
        let before = value(&server);
        server.shutdown("NOSAVE");
        server.restart();
        assert_eq!(value(&server), before, "{command}");
        assert!(server.log().contains(NOT_SAVED), "{command}: not logged");
        let fence = server.call("LOCK.ACQUIRE next a").grant().fence;
        assert!(fence <= unix_time_us(), "{command}: {fence}");
    }
}

#[test]
fn a_clients_own_value_stays_on_replicas_and_in_their_files() {
    let ways = ["repl-diskless-load disabled", "repl-diskless-load swapdb"];
    for (way, diskless) in [(ways[0], "no"), (ways[0], "yes"), (ways[1], "yes")] {
        let sync = format!("repl-diskless-sync {diskless}");
        let primary = server_with(&[&sync, "repl-diskless-sync-delay 0"]);
        primary.call("LOCK.ACQUIRE k a").grant();
        for command in [
            format!("RPUSH {NAME} a b"),
            format!("SET {NAME} {POISON}"),
            format!("SET {NAME} why PXAT {}", expiry_ms(hours_ahead(1))),
        ] {
            let scene = format!("{way}, {sync}: {command}");
            primary.call(&command).value();
            let before = value(&primary);
            let mut replica = server_with(&[way]);
            replica.replica_of(&primary);
            // The primary writes nothing of its own for a new replica after that.
            primary.until_acknowledged_by(1);
            primary.settle();
            replica.until_in_step(&primary);
            assert_eq!(value(&replica), before, "{scene}: synchronised");
            assert!(replica.log().contains(NOT_SAVED), "{scene}: not logged");
            for how in ["SAVE", "BGSAVE"] {
                save(&replica, how);
            }
            replica.call("REPLICAOF NO ONE").okay();
            let fence = replica.call("LOCK.ACQUIRE next a").grant().fence;
            assert!(fence <= unix_time_us(), "{scene}: {fence}");
            replica.kill9();
            replica.restart();
            assert_eq!(value(&replica), before, "{scene}: loaded");
            primary.call(&["DEL", NAME]).int();
        }
    }
}

#[test]
fn a_forged_fence_in_the_modules_form_counts_as_a_day_ahead_at_most() {
    let most_us = || unix_time_us() + DAY_US;
    for settings in [["appendonly yes"], ["appendonly no"]] {
        for (ahead, is_bounded) in [(hours_ahead(23), false), (hours_ahead(9_000), true)] {
            let scene = format!("{settings:?}, {ahead}");
            let mut server = server_with(&settings);
            let forged = format!("SET {NAME} {ahead} PXAT {}", expiry_ms(ahead));
            server.call(&forged).okay();
            let (least, how) = (most_us(), ["SAVE", "NOSAVE"]);
            server.shutdown(how[usize::from(settings == ["appendonly yes"])]);
            server.restart();
            let last = last_fence(&server);
            if is_bounded {
                assert!((least..=most_us()).contains(&last), "{scene}: {last}");
            } else {
                assert_eq!(last, ahead, "{scene}");
            }
            let logged = server
                .log()
                .contains(&format!("last fence of the loaded file, {ahead}"));
            assert_eq!(logged, is_bounded, "{scene}: the log");
            assert!(!exists(&server), "{scene}");
            server.call("LOCK.ACQUIRE k a").grant();
        }
    }
}

/// A client's key of the module's form can't be told from the module's own.
/// Values of the module's own form that a client stores in memory go once a replica has loaded them,
/// in each database and wherever a SWAPDB moves them meanwhile. So both have the same keys.
#[test]
fn a_forged_fence_in_memory_goes_with_that_of_a_new_replica() {
    for is_a_lock_taken in [true, false] {
        let primary = server_with(&["repl-diskless-sync-delay 0"]);
        if is_a_lock_taken {
            primary.call("LOCK.ACQUIRE k a").grant();
        }
        let forged = hours_ahead(1);
        for db in [0, 3] {
            let mut client = client_on(&primary, db);
            let command = format!("SET {NAME} {forged} PXAT {}", expiry_ms(forged));
            client.call(command).okay();
        }
        let replica = server_with(&[]);
        replica.replica_of(&primary);
        replica.until_in_step(&primary);
        let none_has_the_key = || {
            [&primary, &replica].iter().all(|server| {
                let mut clients = [0, 3, 5].map(|db| client_on(server, db));
                clients
                    .iter_mut()
                    .all(|client| client.call(&["EXISTS", NAME]).int() == 0)
            })
        };
        primary.call("SWAPDB 3 5").okay();
        until("none has the key", none_has_the_key);
        replica.until_in_step(&primary);
        support::assert_same_data(&primary, &[&replica]);
    }
}

#[test]
fn a_forged_fence_below_the_last_one_doesnt_take_its_place_in_a_file() {
    for (how, settings) in SAVES {
        let mut server = server_with(settings);
        let last = unix_time_us() + 50 * SECOND_US;
        raise(&server, last);
        let forged = last - 20 * SECOND_US;
        let forged = format!("SET {NAME} {forged} PXAT {}", expiry_ms(forged));
        server.call(&forged).okay();
        save(&server, how);
        server.kill9();
        server.restart();
        assert_eq!(last_fence(&server), last, "{how}, {settings:?}");
    }
}

// ---- promotion

const JUMP: i64 = 60_000_000;

#[test]
fn a_promoted_replica_skips_fences_if_its_counter_is_ahead_of_its_clock() {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let ahead = unix_time_us() + 50 * SECOND_US;
    raise(&primary, ahead);
    replica.until_in_step(&primary);
    assert_eq!(last_fence(&replica), ahead, "not on a replica");

    replica.call("REPLICAOF NO ONE").okay();

    assert_eq!(last_fence(&replica), ahead + JUMP);
    let next = replica.call("LOCK.ACQUIRE k a").grant().fence;
    assert_eq!(next, ahead + JUMP + 1);
    replica.call("REPLICAOF NO ONE").okay();
    assert_eq!(last_fence(&replica), next, "it is a primary already");
}

#[test]
fn a_promoted_replica_whose_counter_isnt_ahead_of_its_clock_skips_nothing() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let last = primary.call("LOCK.ACQUIRE k a").grant().fence;
    replica.until_in_step(&primary);
    replica.call("REPLICAOF NO ONE").okay();
    let counted = last_fence(&replica);
    assert!(last <= counted && counted <= unix_time_us(), "{counted}");
    let next = replica.call("LOCK.ACQUIRE next a").grant().fence;
    assert!(last < next && next <= unix_time_us(), "{next}");
}

#[test]
fn neither_a_start_as_a_primary_nor_a_load_skips_fences() {
    let mut server = server_with(&["appendonly yes"]);
    let ahead = unix_time_us() + 50 * SECOND_US;
    raise(&server, ahead);
    server.call("DEBUG RELOAD").okay();
    assert_eq!(last_fence(&server), ahead);
    server.shutdown("SAVE");
    server.restart();
    assert_eq!(last_fence(&server), ahead);
}

#[test]
fn a_server_that_starts_as_a_replica_skips_fences_when_it_is_promoted() {
    let (primary, mut replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let ahead = unix_time_us() + 50 * SECOND_US;
    raise(&primary, ahead);
    replica.until_in_step(&primary);
    replica.call("SAVE").okay();
    replica.kill9();
    replica.restart_with(&format!("replicaof 127.0.0.1 {}", primary.port()));
    until("its link is up", || {
        replica.info("replication", "master_link_status") == "up"
    });
    assert_eq!(last_fence(&replica), ahead);
    replica.call("REPLICAOF NO ONE").okay();
    assert_eq!(last_fence(&replica), ahead + JUMP);
}

/// A save that fails puts nothing into the keyspace, and the next one saves the last fence.
#[test]
fn a_save_that_fails_leaves_no_key_behind() {
    for how in ["SAVE", "BGSAVE", "SHUTDOWN SAVE"] {
        let mut server = server_with(&["appendonly no"]);
        raise(&server, unix_time_us() + 50 * SECOND_US);
        let last = last_fence(&server);
        // No file can take the place of a folder.
        let file = server.dir().join("dump.rdb");
        drop(fs::remove_file(&file));
        fs::create_dir(&file).expect("a folder");
        let failed = server.call(how);
        match how {
            "BGSAVE" => until("it has failed", || {
                server.info("persistence", "rdb_last_bgsave_status") == "err"
            }),
            _ => drop(failed.error()),
        }
        assert_eq!(server.call("DBSIZE").int(), 0, "{how}");
        assert!(!exists(&server), "{how}");
        fs::remove_dir(&file).expect("an empty folder");
        server.shutdown("SAVE");
        server.restart();
        assert_eq!(last_fence(&server), last, "{how}");
    }
}

/// The deletion on a new replica and later commands of the append-only file don't take the last fence
/// from it, and leave no key of the module's in any database.
#[test]
fn what_follows_a_rewrite_in_the_append_only_file_doesnt_lower_fences() {
    let ways: [&[&str]; 5] = [
        &[],
        &["FLUSHALL"],
        &["SELECT 1", "FLUSHDB"],
        &["SWAPDB 0 1"],
        &["SWAPDB 0 3", "FLUSHALL SYNC", "SWAPDB 0 1"],
    ];
    for preamble in ["yes", "no"] {
        for way in ways {
            let preamble = format!("aof-use-rdb-preamble {preamble}");
            let mut server = server_with(&["appendonly yes", "appendfsync always", &preamble]);
            raise(&server, unix_time_us() + 50_000_000);
            server.call("BGREWRITEAOF").value();
            server.until_rewritten();
            let replica = Server::start();
            replica.replica_of(&server);
            replica.until_in_step(&server);
            until("the replica has no key", || {
                replica.call("DBSIZE").int() == 0
            });
            let mut client = server.client();
            for command in way {
                client.call(*command).okay();
            }
            let last = last_fence(&server);
            server.kill9();
            server.restart();
            let next = server.call("LOCK.ACQUIRE k t").grant().fence;
            assert!(next > last, "{way:?}, {preamble}: {next} after {last}");
            assert_eq!(server.call("LOCK.RELEASE k t").int(), 1);
            let keys = server.call("INFO keyspace").text();
            assert_eq!(keys.trim(), "# Keyspace", "{way:?}, {preamble}");
        }
    }
}
