//! LOCK.HOT: where waiting happens, in both protocols and in every context.

use redis::Value;
use support::{until, Client, Expect, Fields, LockInfo, Reply, Server, LONG};

/// The fields of a key, sorted.
const FIELDS: [&str; 9] = [
    "db",
    "grants",
    "held-ms",
    "key",
    "longest-wait-ms",
    "refused",
    "waited-ms",
    "waiters",
    "waits",
];

/// Returns the maps of a reply.
#[track_caller]
fn maps(reply: Reply) -> Vec<Fields> {
    reply.list().into_iter().map(Fields::of).collect()
}

#[track_caller]
fn keys(reply: Reply) -> Vec<String> {
    maps(reply).iter().map(|hot| hot.text("key")).collect()
}

/// Returns LOCK.HOT's numbers of a key: waiters, waits, refused and grants.
#[track_caller]
fn counts(server: &Server, key: &str) -> [i64; 4] {
    let hot = maps(server.call("LOCK.HOT COUNT 128"));
    let own = hot.iter().find(|hot| hot.text("key") == key);
    own.map_or([0; 4], |own| {
        ["waiters", "waits", "refused", "grants"].map(|field| own.int(field))
    })
}

/// Returns LOCK.INFO of a key of another database.
fn lock_in(client: &mut Client, key: &str) -> Option<LockInfo> {
    LockInfo::of(client.call(&["LOCK.INFO", key]).value())
}

#[test]
fn hot_tells_each_field_of_a_key_in_both_protocols() {
    let server = Server::start();
    assert_eq!(server.call("LOCK.HOT").list(), []);
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.ACQUIRE k b").nil();
    let mut waiter = server.waiter("LOCK.WAIT k c");
    server.call("LOCK.QUEUE k d KEEP 60000").int();
    until("they have waited", || {
        let hot = maps(server.call("LOCK.HOT"));
        let longest_ms = hot[0].int("longest-wait-ms");
        longest_ms >= 5 && hot[0].int("waited-ms") >= longest_ms + 3
    });
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    waiter.recv().grant();
    let [flat, map] = [server.client(), server.client().into_resp3()]
        .map(|mut client| client.call("LOCK.HOT").list());
    assert!(matches!(flat[..], [Value::Array(_)]), "{flat:?}");
    assert!(matches!(map[..], [Value::Map(_)]), "{map:?}");
    for hot in [flat, map].map(|hot| Fields::of(hot[0].clone())) {
        assert_eq!(hot.names(), FIELDS);
        assert_eq!((hot.text("key"), hot.int("db")), ("k".to_owned(), 0));
        assert_eq!(
            ["waiters", "waits", "refused", "grants"].map(|field| hot.int(field)),
            [1, 2, 1, 1]
        );
        assert!(hot.int("longest-wait-ms") >= 5);
        assert!(hot.int("waited-ms") >= hot.int("longest-wait-ms") + 3);
        // Waits are measured by another clock than holds, and both are cut to milliseconds.
        assert!(hot.int("held-ms") >= 4);
    }
}

#[test]
fn commands_that_contend_with_nobody_leave_no_trace() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.MACQUIRE 2 l m a {LONG}")).grant();
    server.call("LOCK.EXTEND k a").int();
    server.call("LOCK.RELEASE k b").int();
    server.call("LOCK.RELEASE k a").int();
    server.call("DEL l").int();
    server.call("FLUSHALL").okay();
    assert_eq!(server.call("LOCK.HOT").list(), []);
}

#[test]
fn count_is_1_to_128_and_16_without_it() {
    let server = Server::start();
    for key in 0..130 {
        server.call(format!("LOCK.ACQUIRE k{key} a {LONG}")).grant();
        server.call(format!("LOCK.ACQUIRE k{key} b")).nil();
    }
    server.call("LOCK.ACQUIRE k7 b").nil();
    for (command, count) in [
        ("LOCK.HOT", 16),
        ("LOCK.HOT COUNT 1", 1),
        ("lock.hot count 17", 17),
        ("LOCK.HOT COUNT 128", 128),
    ] {
        let keys = keys(server.call(command));
        assert_eq!((keys.len(), keys[0].as_str()), (count, "k7"), "{command}");
    }
    for (command, error) in [
        ("LOCK.HOT COUNT 0", "ERR invalid count, must be 1 to 128"),
        ("LOCK.HOT COUNT 129", "ERR invalid count, must be 1 to 128"),
        ("LOCK.HOT COUNT x", "ERR invalid count, must be 1 to 128"),
        ("LOCK.HOT COUNT", "ERR syntax error"),
        ("LOCK.HOT COUNT 1 COUNT 2", "ERR syntax error"),
        ("LOCK.HOT k", "ERR syntax error"),
    ] {
        assert_eq!(server.call(command).error(), error, "{command}");
    }
}

#[test]
fn the_hottest_key_comes_first_and_equal_ones_by_key_and_db() {
    let server = Server::start();
    for (db, key) in [(1, "b"), (0, "c"), (0, "b"), (2, "a")] {
        let mut client = server.client().into_db(db);
        client.call(format!("LOCK.ACQUIRE {key} h {LONG}")).grant();
        client.call(format!("LOCK.ACQUIRE {key} w")).nil();
    }
    let hot = maps(server.call("LOCK.HOT"));
    let names: Vec<(String, i64)> = hot
        .iter()
        .map(|hot| (hot.text("key"), hot.int("db")))
        .collect();
    let names: Vec<(&str, i64)> = names.iter().map(|(key, db)| (key.as_str(), *db)).collect();
    assert_eq!(names, [("a", 2), ("b", 0), ("b", 1), ("c", 0)]);
    let mut waiter = server.client().into_db(1);
    server.block(&mut waiter, "LOCK.WAIT b w");
    let first = maps(server.call("LOCK.HOT COUNT 1"));
    assert_eq!(
        (first[0].text("key"), first[0].int("db")),
        ("b".to_owned(), 1)
    );
}

#[test]
fn a_user_sees_the_keys_that_it_may_read() {
    let server = Server::start();
    for (user, patterns) in [
        ("reader", "%R~own* ~both*"),
        ("writer", "%W~own*"),
        ("nobody", "resetkeys"),
    ] {
        server
            .call(format!("ACL SETUSER {user} on nopass +@all {patterns}"))
            .okay();
    }
    server
        .call("ACL SETUSER barred on nopass +@all -lock.hot ~*")
        .okay();
    // The keys that the reader may not see are hotter.
    for (key, refusals) in [("other1", 4), ("other2", 3), ("own", 2), ("both", 1)] {
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        for _ in 0..refusals {
            server.call(format!("LOCK.ACQUIRE {key} b")).nil();
        }
    }
    let hot = |user: &str, command: &str| {
        let mut client = server.client();
        client.call(&["AUTH", user, ""]).okay();
        client.call(command)
    };
    assert_eq!(keys(hot("default", "LOCK.HOT COUNT 1")), ["other1"]);
    assert_eq!(keys(hot("reader", "LOCK.HOT")), ["own", "both"]);
    assert_eq!(keys(hot("reader", "LOCK.HOT COUNT 1")), ["own"]);
    assert_eq!(hot("writer", "LOCK.HOT").list(), []);
    assert_eq!(hot("nobody", "LOCK.HOT").list(), []);
    assert!(hot("barred", "LOCK.HOT").error().starts_with("NOPERM"));
    let mut reader = server.client();
    reader.call("AUTH reader x").okay();
    let words = ["EVAL", "return redis.call('LOCK.HOT')", "0"];
    assert_eq!(keys(reader.call(&words)), ["own", "both"]);
}

#[test]
fn a_key_that_a_client_waits_for_outlasts_refused_ones() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    for key in 0..300 {
        server.call(format!("LOCK.ACQUIRE k{key} a {LONG}")).grant();
        server.call(format!("LOCK.ACQUIRE k{key} b")).nil();
    }
    assert_eq!(counts(&server, "k"), [1, 1, 0, 0]);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    waiter.recv().grant();
    assert_eq!(counts(&server, "k"), [0, 1, 0, 1]);
}

/// The module would keep the names of counted keys for two minutes, whatever frees the locks.
#[test]
fn a_key_of_more_than_1024_bytes_is_never_listed() {
    let server = Server::start();
    let [longest, too_long] = [1024, 1025].map(|len| "k".repeat(len));
    let mut waiters = Vec::new();
    for key in [&longest, &too_long] {
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        server.call(format!("LOCK.ACQUIRE {key} b")).nil();
        waiters.push(server.waiter(format!("LOCK.WAIT {key} c")));
    }
    let _both = server.waiter(format!("LOCK.MWAIT 2 {too_long} short d"));
    let listed = keys(server.call("LOCK.HOT COUNT 128"));
    let lengths: Vec<usize> = listed.iter().map(String::len).collect();
    assert_eq!(lengths, [longest.len(), "short".len()]);
    let bytes = || -> u64 {
        let info = server.call("INFO lock").text();
        let field = info
            .lines()
            .find_map(|line| line.strip_prefix("lock_bytes:"));
        field.expect("a field").parse().expect("a number")
    };
    let before = bytes();
    let megabyte = "m".repeat(1 << 20);
    for number in 0..4 {
        let key = format!("{megabyte}{number}");
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        server.call(format!("LOCK.ACQUIRE {key} b")).nil();
        server.call(format!("LOCK.RELEASE {key} a")).int();
    }
    let kept = bytes().saturating_sub(before);
    assert!(kept < 1 << 20, "{kept} bytes");
}

#[test]
fn hot_works_in_a_transaction_and_in_scripts() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let replies = server.call_batch(&[
        "MULTI",
        "LOCK.WAIT k b",
        "LOCK.QUEUE k c",
        "LOCK.HOT",
        "EXEC",
    ]);
    let replies = replies.into_iter().last().expect("EXEC").list();
    let hot = maps(Ok(replies[2].clone()));
    let fields = ["waiters", "waits", "refused"];
    assert_eq!(fields.map(|field| hot[0].int(field)), [1, 1, 1]);
    let script = "redis.call('LOCK.WAIT', KEYS[1], 'b') return redis.call('LOCK.HOT')";
    let hot = maps(server.call(&["EVAL", script, "1", "k"]));
    assert_eq!(hot[0].int("refused"), 2);
    let script = "return redis.call('LOCK.HOT', 'COUNT', '1')";
    assert_eq!(keys(server.call(&["EVAL_RO", script, "0"])), ["k"]);
}

#[test]
fn a_refusal_is_an_acquire_that_gets_nil() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 2"))
        .grant();
    server.call("LOCK.ACQUIRE k b").nil();
    server.call("LOCK.MACQUIRE 2 k j b").nil();
    server.call("LOCK.WAIT k b BLOCK 1").nil();
    server
        .call("LOCK.ACQUIRE k a SHARED LIMIT 2 PERMITS 2")
        .error();
    assert_eq!(counts(&server, "k"), [0, 1, 2, 0]);
    assert_eq!(counts(&server, "j"), [0, 0, 1, 0]);
}

#[test]
fn a_wait_counts_once_for_each_queue_event() {
    let server = Server::start();
    server.call("CONFIG SET notify-keyspace-events Ed").okay();
    let mut events = server.client().into_resp3();
    events.call("SUBSCRIBE __keyevent@0__:lock.queue").value();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.QUEUE k b KEEP 60000").int();
    server.call("LOCK.QUEUE k b KEEP 60000").int();
    let _takes_over = server.waiter("LOCK.WAIT k b");
    let _waits = server.waiter("LOCK.MWAIT 2 k j c");
    for key in ["k", "j", "k"] {
        let event = format!("{:?}", events.recv().value());
        assert!(
            event.contains(&format!("bulk-string('\"{key}\"')")),
            "{event}"
        );
    }
    events.expect_silence();
    assert_eq!(counts(&server, "k"), [2, 2, 0, 0]);
    assert_eq!(counts(&server, "j"), [1, 1, 0, 0]);
}

#[test]
fn a_holder_that_goes_is_counted_however_it_goes() {
    let server = Server::start();
    type Way = (&'static str, fn(&Server));
    let ways: [Way; 9] = [
        ("RELEASE", |server| drop(server.call("LOCK.RELEASE k a"))),
        ("DEL", |server| drop(server.call("DEL k"))),
        ("UNLINK", |server| drop(server.call("UNLINK k"))),
        ("EXPIRE", |server| drop(server.call("PEXPIRE k 20"))),
        ("a lease", |server| {
            drop(server.call("LOCK.EXTEND k a PX 20"))
        }),
        ("FLUSHDB", |server| drop(server.call("FLUSHDB"))),
        ("FLUSHALL ASYNC", |server| {
            drop(server.call("FLUSHALL ASYNC"));
        }),
        ("RENAME over it", |server| {
            server.call(format!("LOCK.ACQUIRE j c {LONG}")).grant();
            server.call("RENAME j k").okay();
            server.call("LOCK.RELEASE k c").int();
        }),
        ("a connection", |server| {
            let mut tied = server.client();
            tied.call("LOCK.EXTEND k a PX 60000 SESSION").int();
            tied.close();
        }),
    ];
    for (number, (way, go)) in (1..).zip(ways) {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let before = counts(&server, "k");
        assert_eq!(before[1], number - 1, "{way}");
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        go(&server);
        waiter.recv().grant();
        server.call("LOCK.RELEASE k b").int();
        let more = i64::from(way == "RENAME over it");
        assert_eq!(counts(&server, "k")[3], before[3] + 1 + more, "{way}");
    }
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let before = counts(&server, "k");
    let mut waiter = server.waiter("LOCK.WAIT k b");
    server.call("SET k other").okay();
    assert!(waiter.recv().error().starts_with("WRONGTYPE"));
    assert_eq!(counts(&server, "k")[3], before[3] + 1, "another type");
}

#[test]
fn an_evicted_holder_is_counted() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server
        .call("CONFIG SET maxmemory-policy allkeys-random")
        .okay();
    server.call("CONFIG SET maxmemory 1").okay();
    until("the lock was evicted", || {
        server.call("CONFIG SET maxmemory 1").okay();
        counts(&server, "k")[3] >= 1
    });
    server.call("CONFIG SET maxmemory 0").okay();
    waiter.recv().grant();
}

#[test]
fn a_lock_that_moves_ends_no_hold() {
    let server = Server::start();
    type Way = (&'static str, fn(&Server));
    let ways: [Way; 3] = [
        ("RENAME k j", |server| server.call("RENAME k j").okay()),
        ("MOVE k 5", |server| {
            assert_eq!(server.call("MOVE k 5").int(), 1);
        }),
        ("SWAPDB 0 6", |server| server.call("SWAPDB 0 6").okay()),
    ];
    for (way, go) in ways {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        go(&server);
        waiter.recv().grant();
        assert_eq!(counts(&server, "k")[3], 0, "{way}");
        server.call("DEL k").int();
    }
    let mut there = server.client().into_db(6);
    let moved = lock_in(&mut there, "k").expect("the moved lock");
    assert_eq!(moved.holder_tokens(), ["a"]);
    assert_eq!(counts(&server, "k"), [0, 3, 0, 0]);
}

#[test]
fn a_reload_ends_no_hold() {
    let server = Server::builder().config("enable-debug-command yes").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.QUEUE k b KEEP 60000").int();
    server.call("DEBUG RELOAD").okay();
    server.settle();
    assert_eq!(counts(&server, "k"), [1, 1, 0, 0]);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(counts(&server, "k"), [0, 1, 0, 1]);
}

#[test]
fn the_counts_stay_with_the_name() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("LOCK.ACQUIRE k b").nil();
    server.call("RENAME k j").okay();
    server.call("MOVE j 3").int();
    server.call("SWAPDB 0 3").okay();
    server.call("DEL j").int();
    server.call("FLUSHALL").okay();
    assert_eq!(counts(&server, "k"), [0, 0, 1, 0]);
    assert_eq!(keys(server.call("LOCK.HOT")), ["k"]);
    assert_eq!(maps(server.call("LOCK.HOT"))[0].int("db"), 0);
}

#[test]
fn waits_that_end_without_a_grant_stop_counting() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let gone = server.waiter("LOCK.WAIT k b");
    let mut unblocked = server.waiter("LOCK.WAIT k c");
    let mut cancelled = server.waiter("LOCK.WAIT k d");
    assert_eq!(counts(&server, "k"), [3, 3, 0, 0]);
    gone.close();
    server
        .call(&["CLIENT", "UNBLOCK", &unblocked.id().to_string()])
        .int();
    unblocked.recv().nil();
    assert_eq!(server.call("LOCK.CANCEL k d").int(), 1);
    cancelled.recv().error();
    until("no waiter is left", || counts(&server, "k")[0] == 0);
    let hot = || maps(server.call("LOCK.HOT"))[0].int("waited-ms");
    let waited_ms = hot();
    server.call("LOCK.WAIT k e BLOCK 20").nil();
    assert!((waited_ms + 20..waited_ms + 2_000).contains(&hot()));
}

#[test]
fn nobody_waits_at_a_replica() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    primary.call("LOCK.ACQUIRE k b").nil();
    primary.call("LOCK.QUEUE k c KEEP 60000").int();
    replica.until_in_step(&primary);
    assert_eq!(counts(&primary, "k"), [1, 1, 1, 0]);
    assert_eq!(replica.call("LOCK.HOT").list(), []);
    // A primary that becomes a replica loses its places.
    primary.call("REPLICAOF 127.0.0.1 1").okay();
    assert_eq!(counts(&primary, "k")[1..], [1, 1, 0]);
    until("the place is gone", || counts(&primary, "k")[0] == 0);
}
