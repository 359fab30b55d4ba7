//! Locks survive everything that the server's persistence survives, with the same holders, holds,
//! deadlines and fences before and after.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use support::payload;
use support::{unix_time_ms, unix_time_us, until, Client, Expect, Grant, LockInfo, Server, LONG};

/// Starts a server with an append-only file that is rewritten as RDB or as commands.
fn appending_server(preamble: &str) -> Server {
    Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .config(&format!("aof-use-rdb-preamble {preamble}"))
        .start()
}

/// The locks of `fill`: database and key.
const KEYS: [(u32, &[u8]); 9] = [
    (0, b"plain"),
    (0, b"longest"),
    (3, b"plain"),
    (0, b"key \0\r\n\xff"),
    (0, b"widest"),
    (9, b"held"),
    (0, b"passed"),
    (0, b"extended"),
    (0, b"shortened"),
];

#[track_caller]
fn acquire(server: &Server, db: u32, key: &[u8], token: &[u8], options: &str) {
    let mut command = vec![b"LOCK.ACQUIRE".as_slice(), key, token];
    command.extend(options.split_whitespace().map(str::as_bytes));
    server.client().into_db(db).call(&command).grant();
}

/// Creates locks in every possible way, and another key.
fn fill(server: &Server) {
    acquire(server, 0, b"plain", b"a", LONG);
    acquire(server, 0, b"longest", b"a", "PX 9007199254740991");
    acquire(server, 3, b"plain", b"b", LONG);
    acquire(server, 0, KEYS[3].1, b"\0\r\n*1\xfe ", LONG);
    acquire(server, 0, b"widest", &[0xa7; 256], LONG);
    for _ in 0..4 {
        acquire(server, 9, b"held", b"c", "PX 700000 REENTRANT");
    }
    let mut client = server.client().into_db(9);
    assert_eq!(client.call("LOCK.RELEASE held c").int(), 1);
    acquire(server, 0, b"passed", b"first", LONG);
    let mut waiter = server.waiter("LOCK.WAIT passed next PX 600000");
    assert_eq!(server.call("LOCK.RELEASE passed first").int(), 1);
    waiter.recv().grant();
    acquire(server, 0, b"extended", b"a", "PX 60000");
    assert_eq!(server.call("LOCK.EXTEND extended a PX 800000").int(), 1);
    acquire(server, 0, b"shortened", b"a", LONG);
    assert_eq!(server.call("PEXPIRE shortened 500000").int(), 1);
    server.settle();
    acquire(server, 0, b"released", b"a", LONG);
    assert_eq!(server.call("LOCK.RELEASE released a").int(), 1);
    server.call("SET text value").okay();
}

/// The state that has to be the same afterwards.
#[derive(Debug, PartialEq)]
struct State {
    /// DEBUG DIGEST of all databases. It covers tokens, holds, fences and deadlines.
    digest: String,
    locks: Vec<Lock>,
}

/// The part of a lock that does not change with time or with the clients' connections.
#[derive(Debug, PartialEq)]
struct Lock {
    token: Vec<u8>,
    fence: i64,
    holds: i64,
    expiry_ms: i64,
}

impl State {
    #[track_caller]
    fn of(server: &Server) -> State {
        State {
            digest: server.call("DEBUG DIGEST").text(),
            locks: KEYS.map(|(db, key)| Lock::of(server, db, key)).into(),
        }
    }
}

impl Lock {
    #[track_caller]
    fn of(server: &Server, db: u32, key: &[u8]) -> Lock {
        let mut client = server.client().into_db(db);
        let info = client.call(&[b"LOCK.INFO".as_slice(), key]).value();
        let info = LockInfo::of(info).expect("a lock");
        assert_eq!(info.mode, "exclusive");
        let expiry_ms = client.call(&[b"PEXPIRETIME".as_slice(), key]).int();
        // The remaining lease agrees with the key's expiry.
        let differ_ms = expiry_ms - unix_time_ms() - info.holder().int("lease-ms");
        assert!(differ_ms.abs() < 5_000, "{differ_ms} ms apart");
        Lock {
            token: Ok(info.holder().get("token")).bytes(),
            fence: info.holder().int("fence"),
            holds: info.holder().int("holds"),
            expiry_ms,
        }
    }
}

#[track_caller]
fn rewrite(server: &Server) {
    server.call("BGREWRITEAOF").value();
    server.until_rewritten();
}

/// Fills a server, runs `save_and_load`, and asserts that the locks are unchanged.
#[track_caller]
fn assert_survives(mut server: Server, what: &str, save_and_load: impl FnOnce(&mut Server)) {
    fill(&server);
    let before = State::of(&server);
    assert_eq!(before.locks[5].holds, 3);
    let last: i64 = server.info("lock", "lock_last_fence").parse().unwrap();
    save_and_load(&mut server);
    assert_eq!(State::of(&server), before, "{what}");
    // Valkey frees the old data on a thread of its own.
    until("the locks are there once", || {
        server.info("lock", "lock_locks") == KEYS.len().to_string()
    });
    // They are locks like before: for other clients, for their holders, and for the fence counter.
    server.call("LOCK.ACQUIRE plain z").nil();
    assert_eq!(server.call("LOCK.EXTEND plain a PX 900000").int(), 1);
    assert!(
        server.call("LOCK.ACQUIRE free z").grant().fence > last,
        "{what}"
    );
    // Each lock keeps its own lease length, whatever remained of its lease.
    for (key, lease_ms) in [("extended", 800_000), ("shortened", 600_000)] {
        assert_eq!(server.call(format!("LOCK.EXTEND {key} a")).int(), 1);
        let left_ms = server.call(["PTTL", key].as_slice()).int();
        assert!((lease_ms - 20_000..=lease_ms).contains(&left_ms), "{what}");
    }
    let mut client = server.client().into_db(9);
    for left in [2, 1, 0] {
        assert_eq!(client.call("LOCK.RELEASE held c").int(), 1, "{what}");
        assert_eq!(
            client.call("EXISTS held").int(),
            i64::from(left > 0),
            "{what}"
        );
    }
}

// ---- the same before and after

#[test]
fn locks_survive_debug_reload() {
    assert_survives(Server::start(), "DEBUG RELOAD", |server| {
        server.call("DEBUG RELOAD").okay();
    });
}

#[test]
fn locks_survive_a_snapshot_and_a_restart() {
    assert_survives(Server::start(), "SAVE", |server| {
        server.call("SAVE").okay();
        server.restart();
    });
}

#[test]
fn locks_survive_a_shutdown_that_saves() {
    assert_survives(Server::start(), "SHUTDOWN SAVE", |server| {
        server.shutdown("SAVE");
        server.restart();
    });
}

#[test]
fn locks_survive_debug_loadaof() {
    for preamble in ["yes", "no"] {
        assert_survives(appending_server(preamble), preamble, |server| {
            server.call("DEBUG LOADAOF").okay();
        });
    }
}

#[test]
fn locks_survive_a_restart_from_what_was_appended() {
    for preamble in ["yes", "no"] {
        assert_survives(appending_server(preamble), preamble, |server| {
            server.kill9();
            server.restart();
        });
    }
}

#[test]
fn locks_survive_a_rewrite_of_the_append_only_file() {
    for preamble in ["yes", "no"] {
        assert_survives(appending_server(preamble), preamble, |server| {
            rewrite(server);
            server.call("DEBUG LOADAOF").okay();
        });
        assert_survives(appending_server(preamble), preamble, |server| {
            rewrite(server);
            server.kill9();
            server.restart();
        });
    }
}

#[test]
fn a_rewrite_without_preamble_writes_effects_and_no_rdb() {
    let server = appending_server("no");
    let grant = server.call("LOCK.ACQUIRE k a PX 600000 REENTRANT").grant();
    let deadline_ms = server.call("PEXPIRETIME k").int();
    rewrite(&server);
    let base = fs::read_dir(server.dir().join("appendonlydir"))
        .expect("the folder of the file")
        .map(|entry| entry.expect("a file").path())
        .find(|path| path.to_string_lossy().contains(".base."))
        .expect("a rewritten part");
    let text = fs::read_to_string(base).expect("commands");
    let mut words = text.lines().filter(|line| !line.starts_with(['*', '$']));
    words.find(|word| *word == "LOCK.APPLY").expect("an effect");
    let effect: Vec<&str> = words.take(4).flat_map(|word| word.split(' ')).collect();
    let (fence, deadline) = (grant.fence.to_string(), deadline_ms.to_string());
    assert_eq!(
        effect[..7],
        ["k", "GRANT", "a", "exclusive", "0", &fence, "1"]
    );
    assert_eq!(effect[7], deadline);
}

// ---- time goes on while the server is down

/// Returns a server that stopped while `k` was held and restarted after the lease's deadline, and
/// the grant's fence.
#[track_caller]
fn back_after_the_lease(start: impl Fn() -> Server, save: impl Fn(&Server)) -> (Server, i64) {
    // A slow machine may need the longer leases to stop the server within the lease.
    for lease_ms in [300, 1_500, 7_500] {
        let mut server = start();
        server.call(format!("LOCK.ACQUIRE other a {LONG}")).grant();
        let first = server
            .call(format!("LOCK.ACQUIRE k a PX {lease_ms}"))
            .grant();
        let deadline_ms = server.call("PEXPIRETIME k").int();
        save(&server);
        server.kill9();
        if unix_time_ms() >= deadline_ms {
            continue;
        }
        until("the lease is over", || unix_time_ms() > deadline_ms);
        server.restart();
        return (server, first.fence);
    }
    panic!("the server didn't stop within any lease");
}

#[track_caller]
fn assert_free_for_another(server: &Server, first_fence: i64, what: &str) {
    assert_eq!(server.lock_info("k"), None, "{what}");
    for late in ["LOCK.CHECK k a", "LOCK.EXTEND k a", "LOCK.RELEASE k a"] {
        assert_eq!(server.call(late).int(), 0, "{what}: {late}");
    }
    let grant = server.call("LOCK.ACQUIRE k b").grant();
    assert!(grant.fence > first_fence, "{what}");
    assert!(
        server.call("LOCK.CHECK other a").int() > 0,
        "{what}: the other lease runs on"
    );
}

#[test]
fn a_lease_that_ended_while_the_server_was_down_is_free_after_a_snapshot() {
    let (server, fence) = back_after_the_lease(Server::start, |server| {
        server.call("SAVE").okay();
    });
    assert_free_for_another(&server, fence, "RDB");
}

#[test]
fn a_lease_that_ended_while_the_server_was_down_is_free_after_an_append_only_file() {
    for preamble in ["yes", "no"] {
        let start = || appending_server(preamble);
        let (server, fence) = back_after_the_lease(start, |_| {});
        assert_free_for_another(&server, fence, &format!("appended, {preamble}"));
        let (server, fence) = back_after_the_lease(start, rewrite);
        assert_free_for_another(&server, fence, &format!("rewritten, {preamble}"));
    }
}

#[test]
fn a_lease_runs_on_while_the_server_is_down() {
    let mut server = appending_server("yes");
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let deadline_ms = server.call("PEXPIRETIME k").int();
    server.kill9();
    server.restart();
    let left_ms = server.call("LOCK.CHECK k a").int();
    let now_ms = unix_time_ms();
    assert!(
        (left_ms - (deadline_ms - now_ms)).abs() < 2_000,
        "{left_ms}"
    );
    assert_eq!(server.call("PEXPIRETIME k").int(), deadline_ms);
    // It also expires by itself, and the waiter is granted.
    server.call("LOCK.EXTEND k a PX 200").int();
    server.restart();
    assert_eq!(
        server
            .client()
            .call("LOCK.WAIT k b BLOCK 10000")
            .grant()
            .token,
        "b"
    );
}

// ---- fences

#[test]
fn fences_rise_over_a_restart_however_far_the_last_one_was_ahead_of_the_clock() {
    for (what, config, save) in [
        ("RDB", "appendonly no", Some("SAVE")),
        ("AOF", "appendonly yes", None),
        ("AOF of commands", "aof-use-rdb-preamble no", None),
    ] {
        let mut builder = Server::builder()
            .config(config)
            .config("appendfsync always");
        if what == "AOF of commands" {
            builder = builder.config("appendonly yes");
        }
        let mut server = builder.start();
        let ahead = unix_time_us() + 3_600_000_000;
        payload::restore_with_fence(&server, "ahead", ahead);
        let last = server
            .call(format!("LOCK.ACQUIRE k a {LONG}"))
            .grant()
            .fence;
        assert!(last > ahead);
        match save {
            Some(save) => server.call(save).okay(),
            None => rewrite(&server),
        }
        server.restart();
        let next = server.call("LOCK.ACQUIRE l a").grant().fence;
        assert!(next > last, "{what}: {next} after {last}");
    }
}

#[test]
fn fences_rise_over_a_restart_from_appended_effects() {
    let mut server = appending_server("yes");
    payload::restore_with_fence(&server, "ahead", unix_time_us() + 3_600_000_000);
    assert_eq!(server.call("DEL ahead").int(), 1);
    let last = server
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant()
        .fence;
    assert!(last > unix_time_us() + 3_000_000_000);
    server.kill9();
    server.restart();
    let next = server.call("LOCK.ACQUIRE l a").grant().fence;
    assert!(next > last, "{next} after {last}");
}

#[test]
fn fences_rise_over_a_restart_without_persistence() {
    let mut server = Server::start();
    let mut last = 0;
    for _ in 0..3 {
        let fence = server.call("LOCK.ACQUIRE k a").grant().fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        server.restart();
        assert_eq!(server.call("DBSIZE").int(), 0);
    }
}

// ---- a crash

/// The replies that one client received before the server was killed.
#[derive(Default)]
struct Told {
    /// Each key whose grant arrived, with that grant.
    granted: Vec<(String, Grant)>,
    /// Keys whose release got its reply.
    released: Vec<String>,
}

/// Acquires keys that no other client uses until the server is gone. Each third key is granted and
/// kept, granted to a waiter when a lease expires, or granted and released.
fn grab_until_the_end(port: u16, number: usize, answered: &AtomicUsize) -> Told {
    let mut told = Told::default();
    let mut client = Client::connect(port);
    for round in 0.. {
        let key = format!("{number}-{round}");
        let lease = if round % 3 == 1 { "PX 2" } else { LONG };
        let Ok(mut grant) = client.try_call(format!("LOCK.ACQUIRE {key} first {lease}")) else {
            break;
        };
        if round % 3 == 1 {
            match client.try_call(format!("LOCK.WAIT {key} second {LONG}")) {
                Ok(handed_over) => grant = handed_over,
                Err(_) => break,
            }
        }
        if round % 3 == 2 {
            if client
                .try_call(format!("LOCK.RELEASE {key} first"))
                .is_err()
            {
                break;
            }
            told.released.push(key);
        } else {
            told.granted.push((key, Ok(grant).grant()));
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    told
}

#[test]
fn no_grant_that_was_answered_is_lost_in_a_crash() {
    let mut server = appending_server("yes");
    let answered = AtomicUsize::new(0);
    let port = server.port();
    let told: Vec<Told> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|number| {
                let answered = &answered;
                scope.spawn(move || grab_until_the_end(port, number, answered))
            })
            .collect();
        until("many replies arrived", || {
            answered.load(Ordering::Relaxed) > 400
        });
        server.kill9();
        clients
            .into_iter()
            .map(|client| client.join().expect("a client"))
            .collect()
    });
    server.restart();
    let mut last = 0;
    for Told { granted, released } in told {
        assert!(granted.len() > 10, "a client that hardly took part");
        for (key, grant) in granted {
            let info = server
                .lock_info(&key)
                .unwrap_or_else(|| panic!("{key} is lost"));
            assert_eq!(info.holder().text("token"), grant.token, "{key}");
            assert_eq!(info.holder().int("fence"), grant.fence, "{key}");
            last = last.max(grant.fence);
        }
        for key in released {
            assert_eq!(server.lock_info(&key), None, "{key} is back");
        }
    }
    assert!(server.call("LOCK.ACQUIRE free a").grant().fence > last);
}

// ---- waiters while the data is loaded anew

#[test]
fn those_who_wait_go_on_waiting_through_a_reload() {
    for (server, reload) in [
        (Server::start(), "DEBUG RELOAD"),
        (appending_server("yes"), "DEBUG LOADAOF"),
        (appending_server("no"), "DEBUG LOADAOF"),
    ] {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut first = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let mut second = server.waiter(format!("LOCK.WAIT k c {LONG}"));
        server.call(reload).okay();
        server.settle();
        let info = server.lock_info("k").unwrap();
        assert_eq!(info.holder_tokens(), ["a"], "{reload}");
        assert_eq!(info.queue_tokens(), ["b", "c"], "{reload}");
        first.expect_silence();
        server.call(format!("CLIENT UNBLOCK {}", second.id())).int();
        second.recv().nil();
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert_eq!(first.recv().grant().token, "b", "{reload}");
    }
}

#[test]
fn those_who_wait_get_a_lock_that_the_loaded_data_doesnt_have() {
    let server = Server::start();
    server.call("SAVE").okay();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("DEBUG RELOAD NOSAVE").okay();
    assert_eq!(waiter.recv().grant().token, "b");
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["b"]);
}

#[test]
fn those_who_wait_wait_for_the_holder_in_the_loaded_data() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k old {LONG}")).grant();
    server.call("SAVE").okay();
    server.call("LOCK.RELEASE k old").int();
    server.call(format!("LOCK.ACQUIRE k new {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("DEBUG RELOAD NOSAVE").okay();
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["old"]);
    waiter.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k new").int(), 0);
    // The lease of `old` counts now.
    assert_eq!(server.call("LOCK.EXTEND k old PX 20").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn those_who_wait_get_wrongtype_when_the_loaded_data_has_another_type() {
    let server = Server::start();
    server.call("SET k value").okay();
    server.call("SAVE").okay();
    server.call("DEL k").int();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("DEBUG RELOAD NOSAVE").okay();
    assert_eq!(waiter.recv().error(), support::WRONGTYPE);
    assert_eq!(server.call("GET k").text(), "value");
}

#[test]
fn a_lease_that_ends_during_a_reload_grants_to_the_next() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call_all(&[
        "LOCK.EXTEND k a PX 100",
        "SAVE",
        "DEBUG SLEEP 0.15",
        "DEBUG RELOAD NOSAVE",
    ]);
    assert_eq!(waiter.recv().grant().token, "b");
}
