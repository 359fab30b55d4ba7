//! LOCK.INFO of shared, counted, multi-key and tied locks, in both protocols.

use redis::Value;
use support::{until, Client, Expect, Fields, LockInfo, Server, LONG};

/// Returns LOCK.INFO of a key. Asserts that RESP2 and RESP3 agree on every field that doesn't
/// change with time.
#[track_caller]
fn info(server: &Server, key: &str) -> LockInfo {
    let [flat, map] = [server.client(), server.client().into_resp3()]
        .map(|mut client| client.call(&["LOCK.INFO", key]).value());
    assert!(matches!(flat, Value::Array(_)), "{flat:?}");
    assert!(matches!(map, Value::Map(_)), "{map:?}");
    for (value, is_map) in [(&flat, false), (&map, true)] {
        for entry in entries(value) {
            assert_eq!(matches!(entry, Value::Map(_)), is_map, "{entry:?}");
        }
    }
    let [flat, map] = [flat, map].map(|value| LockInfo::of(value).expect("a lock"));
    assert_eq!(without_times(&flat), without_times(&map));
    map
}

/// Returns the holders and the waiters, each as it was replied.
fn entries(info: &Value) -> Vec<&Value> {
    let fields: Vec<&Value> = match info {
        Value::Map(pairs) => pairs.iter().map(|(_, value)| value).collect(),
        Value::Array(items) => items.iter().collect(),
        other => panic!("neither a map nor an array: {other:?}"),
    };
    let lists = fields.into_iter().filter_map(|field| match field {
        Value::Array(items) => Some(items),
        _ => None,
    });
    lists.flatten().collect()
}

/// Returns every field except those that count milliseconds.
fn without_times(info: &LockInfo) -> Vec<(String, Value)> {
    let all = info.holders.iter().chain(&info.queue);
    let fields = all.flat_map(|fields| {
        let names = fields.names().into_iter();
        let lasting = names.filter(|name| !name.ends_with("-ms"));
        lasting
            .map(|name| (name.to_owned(), fields.get(name)))
            .collect::<Vec<_>>()
    });
    let mode = Value::BulkString(info.mode.clone().into_bytes());
    fields
        .chain([
            ("mode".to_owned(), mode),
            ("waiters".to_owned(), Value::Int(info.waiters)),
        ])
        .collect()
}

/// Returns the keys that a waiter needs, sorted because they are a set.
#[track_caller]
fn keys(waiter: &Fields) -> Vec<String> {
    let keys = Ok(waiter.get("keys")).list().into_iter();
    let mut keys: Vec<String> = keys.map(|key| Ok(key).text()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn info_tells_all_shared_holders_with_their_own_numbers() {
    let server = Server::start();
    let mut first = server.client();
    first.call("CLIENT SETNAME reader-1").okay();
    let a = first
        .call("LOCK.ACQUIRE k a PX 100000 SHARED LIMIT 7")
        .grant();
    let mut second = server.client();
    let b = second
        .call("LOCK.ACQUIRE k b PX 200000 SHARED REENTRANT")
        .grant();
    second
        .call("LOCK.ACQUIRE k b PX 200000 SHARED REENTRANT")
        .grant();
    let info = info(&server, "k");
    assert_eq!((info.mode.as_str(), info.waiters), ("shared", 0));
    let of = |holder: &Fields| {
        (
            holder.text("token"),
            holder.int("fence"),
            holder.int("holds"),
            holder.int("limit"),
            holder.int("client-id"),
            holder.text("client-name"),
        )
    };
    let told: Vec<_> = info.holders.iter().map(of).collect();
    let expected = [
        ("a", a.fence, 1, 7, first.id(), "reader-1"),
        ("b", b.fence, 2, 0, second.id(), ""),
    ];
    for (told, (token, fence, holds, limit, id, name)) in told.into_iter().zip(expected) {
        let expected = (token.to_owned(), fence, holds, limit, id, name.to_owned());
        assert_eq!(told, expected);
    }
    for (holder, lease_ms) in info.holders.iter().zip([100_000, 200_000]) {
        assert!((lease_ms - 20_000..=lease_ms).contains(&holder.int("lease-ms")));
        assert!((0..20_000).contains(&holder.int("held-ms")));
    }
}

#[test]
fn info_lists_holders_by_their_fences() {
    let server = Server::start();
    let share = |token: &str| server.call(format!("LOCK.ACQUIRE k {token} {LONG} SHARED"));
    for token in ["z", "m", "a"] {
        share(token).grant();
    }
    share("z").grant();
    assert_eq!(info(&server, "k").holder_tokens(), ["z", "m", "a"]);
    assert_eq!(server.call("LOCK.RELEASE k z").int(), 1);
    share("z").grant();
    assert_eq!(info(&server, "k").holder_tokens(), ["m", "a", "z"]);
}

#[test]
fn info_follows_conversions() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(info(&server, "k").mode, "exclusive");
    let fence = info(&server, "k").holder().int("fence");
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED LIMIT 2"))
        .grant();
    let shared = info(&server, "k");
    let own = shared.holder();
    assert_eq!(
        (shared.mode.as_str(), own.int("limit"), own.int("fence")),
        ("shared", 2, fence)
    );
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let upgraded = info(&server, "k");
    let own = upgraded.holder();
    assert_eq!((upgraded.mode.as_str(), own.int("limit")), ("exclusive", 0));
    assert!(own.int("fence") > fence);
}

#[test]
fn info_tells_what_each_waiter_wants() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let waits = [
        ("LOCK.WAIT k b", "exclusive", 0, &["k"][..]),
        ("LOCK.WAIT k c SHARED BLOCK 60000", "shared", 0, &["k"]),
        ("LOCK.WAIT k d SHARED LIMIT 9", "shared", 9, &["k"]),
        ("LOCK.MWAIT 3 z k m e", "exclusive", 0, &["k", "m", "z"]),
        (
            "LOCK.MWAIT 2 k m f SHARED LIMIT 3",
            "shared",
            3,
            &["k", "m"],
        ),
        ("LOCK.MWAIT 1 k g", "exclusive", 0, &["k"]),
    ];
    let clients: Vec<Client> = waits
        .iter()
        .map(|(wait, ..)| server.waiter(*wait))
        .collect();
    let info = info(&server, "k");
    assert_eq!(info.waiters, 6);
    assert_eq!(info.queue_tokens(), ["b", "c", "d", "e", "f", "g"]);
    for ((waiter, (wait, mode, limit, of)), client) in info.queue.iter().zip(waits).zip(&clients) {
        assert_eq!(waiter.text("mode"), mode, "{wait}");
        assert_eq!(waiter.int("limit"), limit, "{wait}");
        assert_eq!(keys(waiter), of, "{wait}");
        assert_eq!(waiter.int("client-id"), client.id(), "{wait}");
        let left_ms = waiter.int("timeout-ms");
        if wait.ends_with("60000") {
            assert!((40_000..=60_000).contains(&left_ms), "{wait}: {left_ms}");
        } else {
            assert_eq!(left_ms, 0, "{wait}");
        }
    }
    // LOCK.INFO shows the same keys for a waiter in each of its queues.
    let elsewhere = server.lock_info("m").expect("a lock that is waited for");
    assert_eq!(elsewhere.queue_tokens(), ["e", "f"]);
    assert_eq!(keys(&elsewhere.queue[1]), keys(&info.queue[4]));
}

#[test]
fn info_tells_of_a_free_lock_that_somebody_waits_for() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    let _waiter = server.waiter("LOCK.MWAIT 2 held free b");
    let info = info(&server, "free");
    assert_eq!((info.mode.as_str(), info.waiters), ("free", 1));
    assert!(info.holders.is_empty());
    assert_eq!(keys(&info.queue[0]), ["free", "held"]);
    assert_eq!(server.call("EXISTS free").int(), 0);
}

/// Returns the replies of LOCK.INFO that follow these commands before the timer fires.
#[track_caller]
fn info_before_the_timer(server: &Server, commands: &[&str], infos: usize) -> Vec<LockInfo> {
    let replies = server.call_batch(commands);
    let infos = replies.into_iter().rev().take(infos);
    infos
        .map(|reply| LockInfo::of(reply.value()).expect("a lock"))
        .collect()
}

#[test]
fn info_leaves_out_waits_whose_time_is_over() {
    let server = Server::builder().config("enable-debug-command yes").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let _blocked = server.waiter("LOCK.WAIT k blocked BLOCK 200");
    let absent = server.waiter("LOCK.WAIT k absent KEEP 200");
    absent.close();
    until("it is absent", || {
        let queue = server.lock_info("k").expect("a lock").queue;
        queue
            .iter()
            .all(|waiter| waiter.text("token") != "absent" || waiter.text("kind") == "absent")
    });
    let commands = [
        "LOCK.QUEUE k place KEEP 20",
        "LOCK.QUEUE k stays KEEP 60000",
        "DEBUG SLEEP 0.4",
        "LOCK.INFO k",
        "LOCK.INFO k WAITERS 1",
    ];
    for info in info_before_the_timer(&server, &commands, 2) {
        assert_eq!(info.queue_tokens(), ["stays"]);
        assert!((1..=4).contains(&info.waiters), "{}", info.waiters);
    }
    until("the timer has removed them", || {
        server.lock_info("k").is_some_and(|info| info.waiters == 1)
    });
}

#[test]
fn info_shows_a_place_that_outlives_its_block() {
    let server = Server::builder().config("enable-debug-command yes").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let _stays = server.waiter("LOCK.WAIT k stays BLOCK 200 KEEP 60000");
    let commands = ["DEBUG SLEEP 0.4", "LOCK.INFO k"];
    let info = info_before_the_timer(&server, &commands, 1).remove(0);
    assert_eq!(info.queue_tokens(), ["stays"]);
    assert_eq!(info.queue[0].text("kind"), "absent");
    assert_eq!(info.queue[0].int("keep-ms"), 60_000);
    assert_eq!(info.queue[0].int("timeout-ms"), 0);
}

#[test]
fn info_tells_of_a_lock_whose_lease_ended_as_free_until_it_is_granted() {
    let server = Server::builder().config("enable-debug-command yes").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let commands = [
        "LOCK.QUEUE k b KEEP 60000",
        "LOCK.EXTEND k a PX 20",
        "DEBUG SLEEP 0.1",
        "LOCK.INFO k",
    ];
    let info = info_before_the_timer(&server, &commands, 1).remove(0);
    assert_eq!((info.mode.as_str(), info.waiters), ("free", 1));
    assert!(info.holders.is_empty());
    assert_eq!(info.queue_tokens(), ["b"]);
    until("it is granted", || {
        let info = server.lock_info("k").expect("a lock");
        info.holder_tokens() == ["b"] && info.waiters == 0
    });
}

#[test]
fn info_tells_which_holders_are_tied() {
    let server = Server::start();
    let mut tied = server.client();
    tied.call(format!("LOCK.ACQUIRE k a {LONG} SHARED SESSION"))
        .grant();
    server
        .call(format!("LOCK.ACQUIRE k b {LONG} SHARED"))
        .grant();
    let sessions = |server: &Server| -> Vec<i64> {
        let holders = info(server, "k").holders;
        holders.iter().map(|holder| holder.int("session")).collect()
    };
    assert_eq!(sessions(&server), [1, 0]);
    let mut second = server.client();
    assert_eq!(
        second.call(format!("LOCK.EXTEND k b {LONG} SESSION")).int(),
        1
    );
    assert_eq!(sessions(&server), [1, 1]);
    tied.close();
    until("the first is gone", || {
        server.lock_info("k").unwrap().holder_tokens() == ["b"]
    });
    assert_eq!(sessions(&server), [1]);
}

#[test]
fn info_is_for_the_database_of_the_client() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut there = server.client().into_db(2);
    there.call("LOCK.INFO k").nil();
    there.call(format!("LOCK.MACQUIRE 2 k x b {LONG}")).grant();
    let mut waiter = server.client().into_db(2);
    server.block(&mut waiter, "LOCK.MWAIT 2 k y c");
    assert_eq!(info(&server, "k").waiters, 0);
    let seen = LockInfo::of(there.call("LOCK.INFO k").value()).expect("a lock");
    assert_eq!(
        (seen.holder_tokens(), seen.queue_tokens()),
        (vec!["b".to_owned()], vec!["c".to_owned()])
    );
    assert_eq!(keys(&seen.queue[0]), ["k", "y"]);
}

#[test]
fn info_of_binary_keys_and_tokens_is_byte_by_byte() {
    let server = Server::start();
    let (key, other): (&[u8], &[u8]) = (b"k \0\r\n\xff", b"\xfe");
    let token: &[u8] = b"\0\r\n*1\xfe ";
    let mut holder = server.client();
    holder.call(&[b"LOCK.ACQUIRE", key, b"a"]).grant();
    let mut waiter = server.client();
    server.block(
        &mut waiter,
        &[b"LOCK.MWAIT", b"2".as_slice(), key, other, token, b"SHARED"],
    );
    for mut client in [server.client(), server.client().into_resp3()] {
        let seen = client.call(&[b"LOCK.INFO", other]).value();
        let seen = LockInfo::of(seen).expect("a lock that is waited for");
        assert_eq!(Ok(seen.queue[0].get("token")).bytes(), token);
        let keys = Ok(seen.queue[0].get("keys")).list().into_iter();
        let mut keys: Vec<Vec<u8>> = keys.map(|key| Ok(key).bytes()).collect();
        keys.sort_unstable();
        assert_eq!(keys, [key, other]);
    }
}
