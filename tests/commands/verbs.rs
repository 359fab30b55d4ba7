//! Exclusive locks: the commands' replies and effects.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, TcpStream};

use redis::Value;
use support::{
    eventually, unix_time_ms, unix_time_us, until, Client, Expect, Fields, Server, LONG, WRONGTYPE,
};

/// Asserts that less than 2 s of a lease have passed.
fn assert_fresh_lease(left_ms: i64, lease_ms: i64) {
    // A loaded machine may be slow between the grant and the reading.
    let least = lease_ms - 2_000;
    assert!(
        left_ms > least && left_ms <= lease_ms,
        "{left_ms} ms left of {lease_ms} ms"
    );
}

#[test]
fn acquire_gives_a_free_lock_and_refuses_a_held_one() {
    let server = Server::start();
    let mut second = server.client();
    let before = unix_time_us();
    let grant = server.call("LOCK.ACQUIRE k a PX 30000").grant();
    assert_eq!(grant.token, "a");
    assert!(grant.fence >= before, "{} is before {before}", grant.fence);
    assert!(
        grant.fence <= unix_time_us(),
        "{} is in the future",
        grant.fence
    );
    second.call("LOCK.ACQUIRE k b PX 30000").nil();
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["a"]);
    // Each key is a separate lock.
    assert_eq!(second.call("LOCK.ACQUIRE other b").grant().token, "b");
}

#[test]
fn wait_gives_a_free_lock_at_once() {
    let server = Server::start();
    assert_eq!(
        server
            .call("LOCK.WAIT k a PX 30000 BLOCK 10000")
            .grant()
            .token,
        "a"
    );
    assert_eq!(server.call("LOCK.CHECK k b").int(), 0);
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 30_000);
}

#[test]
fn a_star_asks_for_a_random_token() {
    let server = Server::start();
    let mut tokens = BTreeSet::new();
    for number in 0..10 {
        let command = if number % 2 == 0 {
            "LOCK.ACQUIRE"
        } else {
            "LOCK.WAIT"
        };
        let key = format!("k{number}");
        let token = server.call(&[command, &key, "*"]).grant().token;
        assert_eq!(token.len(), 32, "{token}");
        assert!(
            token.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{token}"
        );
        assert!(server.call(&["LOCK.CHECK", &key, &token]).int() > 0);
        assert_eq!(server.call(&["LOCK.RELEASE", &key, &token]).int(), 1);
        tokens.insert(token);
    }
    assert_eq!(tokens.len(), 10, "the same token twice: {tokens:?}");
}

#[test]
fn a_star_is_refused_where_a_token_must_exist() {
    let server = Server::start();
    let token = server.call("LOCK.ACQUIRE k *").grant().token;
    for command in [
        "LOCK.QUEUE k *",
        "LOCK.CANCEL k *",
        "LOCK.RELEASE k *",
        "LOCK.EXTEND k * PX 100",
        "LOCK.CHECK k *",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("ERR '*' "), "{command}: {error}");
    }
    assert_fresh_lease(server.call(&["LOCK.CHECK", "k", &token]).int(), 30_000);
}

#[test]
fn tokens_and_keys_are_binary_safe() {
    let server = Server::start();
    let key: &[u8] = b"k\0\r\n\xff $1";
    let token: &[u8] = b"\0\r\n*1\xfe\xff";
    let longer: &[u8] = b"\0\r\n*1\xfe\xff\0";
    let reply = server.call(&[b"LOCK.ACQUIRE", key, token]).list();
    assert_eq!(reply[0], Value::BulkString(token.to_vec()));
    server.call(&[b"LOCK.ACQUIRE", key, longer]).nil();
    assert_eq!(server.call(&[b"LOCK.RELEASE", key, longer]).int(), 0);
    assert!(server.call(&[b"LOCK.CHECK", key, token]).int() > 0);
    assert_eq!(server.call(&[b"LOCK.RELEASE", key, token]).int(), 1);
}

#[test]
fn release_frees_what_its_token_holds_and_nothing_else() {
    let server = Server::start();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 0, "a free lock");
    server.call("LOCK.ACQUIRE k a").grant();
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 0, "another's lock");
    assert_eq!(
        server.call("LOCK.RELEASE k b ALL").int(),
        0,
        "another's lock"
    );
    assert!(server.call("LOCK.CHECK k a").int() > 0);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(server.call("EXISTS k").int(), 0);
    assert_eq!(server.lock_info("k"), None);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 0, "released already");
    server.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn the_same_token_again_gets_the_same_grant_with_a_new_lease() {
    let server = Server::start();
    let first = server.call("LOCK.ACQUIRE k a PX 60000").grant();
    for repeat in [
        "LOCK.ACQUIRE k a PX 600000",
        "LOCK.WAIT k a PX 20000 BLOCK 10",
    ] {
        assert_eq!(server.call(repeat).grant(), first, "{repeat}");
    }
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 20_000);
    // A repeat from another connection gets the same grant and adds no hold.
    assert_eq!(server.client().call("LOCK.ACQUIRE k a").grant(), first);
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 30_000);
    assert_eq!(server.lock_info("k").unwrap().holder().int("holds"), 1);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_repeat_leaves_the_holds_as_they_are() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    server.call("LOCK.ACQUIRE k a").grant();
    assert_eq!(server.lock_info("k").unwrap().holder().int("holds"), 2);
}

#[test]
fn reentrant_counts_holds() {
    let server = Server::start();
    let holds = || server.lock_info("k").unwrap().holder().int("holds");
    let first = server.call("LOCK.ACQUIRE k a PX 60000 REENTRANT").grant();
    assert_eq!(holds(), 1);
    assert_eq!(
        server.call("LOCK.ACQUIRE k a PX 50000 REENTRANT").grant(),
        first
    );
    assert_eq!(holds(), 2);
    assert_eq!(
        server.call("LOCK.WAIT k a PX 40000 REENTRANT").grant(),
        first
    );
    assert_eq!(holds(), 3);
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 40_000);
    for left in [2, 1] {
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert_eq!(holds(), left);
        server.call("LOCK.ACQUIRE k b").nil();
    }
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(server.lock_info("k"), None);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 0);
}

#[test]
fn release_all_drops_all_holds_at_once() {
    let server = Server::start();
    for _ in 0..3 {
        server.call("LOCK.ACQUIRE k a REENTRANT").grant();
    }
    assert_eq!(server.call("LOCK.RELEASE k a ALL").int(), 1);
    assert_eq!(server.lock_info("k"), None);
    assert_eq!(server.call("LOCK.RELEASE k a ALL").int(), 0);
}

#[test]
fn holds_are_set_and_left_as_the_client_counts_them() {
    let server = Server::start();
    let holds = || server.lock_info("k").unwrap().holder().int("holds");
    let first = server.call("LOCK.ACQUIRE k a HOLDS 2").grant();
    assert_eq!(holds(), 2);
    for (command, left) in [
        ("LOCK.ACQUIRE k a HOLDS 2", 2),
        ("LOCK.WAIT k a holds 4294967295", 4_294_967_295),
        ("LOCK.MWAIT 1 k a HOLDS 5 BLOCK 1", 5),
        ("LOCK.MACQUIRE 1 k a HOLDS 3", 3),
        ("LOCK.ACQUIRE k a", 3),
    ] {
        assert_eq!(server.call(command).grant(), first, "{command}");
        assert_eq!(holds(), left, "{command}");
    }
    for (command, left) in [
        ("LOCK.RELEASE k a HOLDS 4294967295", 3),
        ("LOCK.RELEASE k a HOLDS 2", 2),
        ("LOCK.RELEASE k a HOLDS 2", 2),
        ("LOCK.MRELEASE 2 k none a HOLDS 1", 1),
        ("LOCK.MRELEASE 2 k none a HOLDS 1", 1),
    ] {
        assert_eq!(server.call(command).int(), 1, "{command}");
        assert_eq!(holds(), left, "{command}");
    }
    assert_eq!(server.call("LOCK.RELEASE k b HOLDS 0").int(), 0);
    let mut waiter = server.waiter("LOCK.WAIT k b HOLDS 7");
    assert_eq!(server.call("LOCK.RELEASE k a HOLDS 0").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    assert_eq!(holds(), 7);
    assert_eq!(server.call("LOCK.RELEASE k a HOLDS 0").int(), 0);
}

#[test]
fn extend_sets_the_lease_of_the_holder() {
    let server = Server::start();
    let grant = server.call("LOCK.ACQUIRE k a PX 60000").grant();
    for (command, lease_ms) in [
        ("LOCK.EXTEND k a PX 100000", 100_000),
        ("LOCK.EXTEND k a PX 5000", 5_000),
        ("LOCK.EXTEND k a EX 50", 50_000),
        ("LOCK.EXTEND k a", 50_000),
        ("LOCK.EXTEND k a nosession PX 7000", 7_000),
        ("LOCK.MEXTEND 1 k a", 7_000),
    ] {
        assert_eq!(server.call(command).int(), 1, "{command}");
        assert_fresh_lease(server.call("LOCK.CHECK k a").int(), lease_ms);
        assert_fresh_lease(server.call("PTTL k").int(), lease_ms);
    }
    assert_eq!(server.call("LOCK.EXTEND k b PX 90000").int(), 0);
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 7_000);
    assert_eq!(
        server.lock_info("k").unwrap().holder().int("fence"),
        grant.fence
    );
}

#[test]
fn extend_makes_no_lock() {
    let server = Server::start();
    assert_eq!(server.call("LOCK.EXTEND k a PX 1000").int(), 0);
    assert_eq!(server.call("EXISTS k").int(), 0);
}

#[test]
fn nothing_brings_back_a_lease_that_has_ended() {
    let server = Server::start();
    for (number, late) in [
        "LOCK.EXTEND k a PX 60000",
        "LOCK.RELEASE k a",
        "LOCK.RELEASE k a ALL",
        "LOCK.CHECK k a",
    ]
    .iter()
    .enumerate()
    {
        let key = format!("k{number}");
        let acquire = format!("LOCK.ACQUIRE {key} a PX 20");
        let late = late.replace(" k ", &format!(" {key} "));
        // During the sleep the server does nothing else, so no timer runs between the two commands.
        let mut replies = server.call_batch(&[&acquire, "DEBUG SLEEP 0.04", &late]);
        assert_eq!(replies.remove(2).int(), 0, "{late}");
        assert_eq!(server.lock_info(&key), None);
    }
}

#[test]
fn a_lease_that_ended_frees_the_lock_for_anybody() {
    let server = Server::start();
    let first = server.call("LOCK.ACQUIRE k a PX 20").grant();
    let mut replies = server.call_batch(&["DEBUG SLEEP 0.04", "LOCK.ACQUIRE k b PX 60000"]);
    let second = replies.remove(1).grant();
    assert_eq!(second.token, "b");
    assert!(second.fence > first.fence);
    assert_eq!(server.call("LOCK.CHECK k a").int(), 0);
    assert_fresh_lease(server.call("LOCK.CHECK k b").int(), 60_000);
    assert_fresh_lease(server.call("PTTL k").int(), 60_000);
}

#[test]
fn the_same_token_after_its_lease_ended_gets_a_new_fence() {
    let server = Server::start();
    let mut replies = server.call_batch(&[
        "LOCK.ACQUIRE k a PX 20 REENTRANT",
        "LOCK.ACQUIRE k a PX 20 REENTRANT",
        "DEBUG SLEEP 0.04",
        "LOCK.ACQUIRE k a REENTRANT",
    ]);
    let second = replies.remove(3).grant();
    let first = replies.remove(1).grant();
    assert!(second.fence > first.fence);
    assert_eq!(server.lock_info("k").unwrap().holder().int("holds"), 1);
}

#[test]
fn check_tells_the_lease_left() {
    let server = Server::start();
    assert_eq!(server.call("LOCK.CHECK k a").int(), 0);
    server.call("LOCK.ACQUIRE k a PX 5000").grant();
    let first = server.call("LOCK.CHECK k a").int();
    assert_fresh_lease(first, 5_000);
    until("the lease runs down", || {
        server.call("LOCK.CHECK k a").int() < first
    });
    assert_eq!(server.call("LOCK.CHECK k b").int(), 0);
    server.call("LOCK.EXTEND k a PX 30").int();
    until("the lease has ended", || {
        server.call("LOCK.CHECK k a").int() == 0
    });
}

#[test]
fn leases_come_in_milliseconds_or_seconds_and_options_in_any_order_and_case() {
    let server = Server::start();
    let mut keys = 0;
    for (options, lease_ms) in [
        ("PX 20000", 20_000),
        ("EX 20", 20_000),
        ("px 20000 reentrant", 20_000),
        ("Reentrant eX 20", 20_000),
        ("", 30_000),
        ("PX 9007199254740991", 9_007_199_254_740_991),
    ] {
        for command in ["lock.acquire", "Lock.Wait"] {
            keys += 1;
            server
                .call(format!("{command} k{keys} a {options}"))
                .grant();
            assert_fresh_lease(server.call(format!("LOCK.CHECK k{keys} a")).int(), lease_ms);
        }
    }
    server
        .call("LOCK.WAIT w a block 10 REENTRANT pX 20000")
        .grant();
    assert_fresh_lease(server.call("LOCK.CHECK w a").int(), 20_000);
    server
        .call("LOCK.WAIT w b reentrant PX 20000 Block 10")
        .nil();
}

#[test]
fn every_fence_is_greater_than_all_before_it() {
    let mut server = Server::start();
    let mut last = 0;
    let mut rises = |fence: i64, what: &str| {
        assert!(fence > last, "{what}: {fence} after {last}");
        assert!(fence < 1 << 53, "{what}: {fence} doesn't fit in 53 bits");
        last = fence;
    };
    // Many grants in one microsecond, on other keys and in another database.
    let batch: Vec<String> = (0..200)
        .map(|n| format!("LOCK.ACQUIRE many{n} a"))
        .collect();
    let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
    for reply in server.call_batch(&batch) {
        rises(reply.grant().fence, "another key");
    }
    rises(
        server
            .client()
            .into_db(3)
            .call("LOCK.ACQUIRE k a")
            .grant()
            .fence,
        "another database",
    );
    for gone in [
        "LOCK.RELEASE k a",
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "FLUSHDB ASYNC",
    ] {
        rises(server.call("LOCK.ACQUIRE k a").grant().fence, gone);
        server.call(gone).value();
    }
    rises(
        server.call("LOCK.ACQUIRE k a").grant().fence,
        "after a flush",
    );
    server.restart();
    assert_eq!(server.call("DBSIZE").int(), 0, "nothing was saved");
    rises(
        server.call("LOCK.ACQUIRE k a").grant().fence,
        "a restart without persistence",
    );
}

#[test]
fn the_default_lease_is_configurable() {
    let server = Server::builder().config("lock.default-lease 5000").start();
    server.call("LOCK.ACQUIRE k a").grant();
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 5_000);
    server.call("CONFIG SET lock.default-lease 70000").okay();
    server.call("LOCK.ACQUIRE k a").grant();
    assert_fresh_lease(server.call("LOCK.CHECK k a").int(), 70_000);
    for refused in ["0", "-1", "9007199254740992", "soon"] {
        server
            .call(&["CONFIG", "SET", "lock.default-lease", refused])
            .error();
    }
    let pair = server.call("CONFIG GET lock.default-lease").list();
    assert_eq!(Ok(pair[1].clone()).text(), "70000");
}

#[test]
fn the_configuration_starts_with_its_documented_defaults() {
    let server = Server::start();
    for (name, value) in [
        ("lock.default-lease", "30000"),
        ("lock.default-keep", "10000"),
        ("lock.max-tickets", "100000"),
        ("lock.max-waiters", "10000"),
    ] {
        let pair = server.call(&["CONFIG", "GET", name]).list();
        assert_eq!(Ok(pair[1].clone()).text(), value, "{name}");
    }
}

#[test]
fn the_holder_may_repeat_while_others_wait() {
    let server = Server::start();
    let first = server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let mut waiter = server.waiter("LOCK.WAIT k b PX 60000");
    assert_eq!(server.call("LOCK.ACQUIRE k a PX 50000").grant(), first);
    assert_eq!(server.call("LOCK.WAIT k a PX 40000").grant(), first);
    assert_eq!(
        server.call("LOCK.ACQUIRE k a PX 40000 REENTRANT").grant(),
        first
    );
    assert_eq!(server.call("LOCK.EXTEND k a PX 40000").int(), 1);
    waiter.expect_silence();
    assert_eq!(server.waiters("k"), 1);
    server.call("LOCK.RELEASE k a ALL").int();
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn nobody_barges_in_at_the_end_of_a_lease() {
    let server = Server::start();
    // The sleep ends after the lease, so the next command runs before any timer.
    for (number, barging) in ["LOCK.ACQUIRE", "LOCK.WAIT"].iter().enumerate() {
        let key = format!("k{number}");
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        let mut waiter = server.waiter(format!("LOCK.WAIT {key} b PX 60000"));
        let mut barger = server.client();
        barger.send_batch(&[
            &format!("LOCK.EXTEND {key} a PX 20"),
            "DEBUG SLEEP 0.04",
            &format!("{barging} {key} c PX 60000 {}", {
                if *barging == "LOCK.WAIT" {
                    "BLOCK 1"
                } else {
                    ""
                }
            }),
        ]);
        assert_eq!(waiter.recv().grant().token, "b");
        assert_eq!(barger.recv().int(), 1);
        barger.recv().okay();
        barger.recv().nil();
        assert!(server.call(format!("LOCK.CHECK {key} b")).int() > 0);
    }
}

#[test]
fn nobody_barges_in_behind_a_release() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a").grant();
    let mut waiter = server.waiter("LOCK.WAIT k b PX 60000");
    let mut replies = server.call_batch(&["LOCK.RELEASE k a", "LOCK.ACQUIRE k c", "DEL k"]);
    replies.remove(1).nil();
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn nobody_barges_in_behind_a_deletion() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a").grant();
    let mut waiter = server.waiter("LOCK.WAIT k b PX 60000");
    let mut replies = server.call_batch(&["DEL k", "LOCK.ACQUIRE k c"]);
    replies.remove(1).nil();
    assert_eq!(waiter.recv().grant().token, "b");
    assert!(server.call("LOCK.CHECK k b").int() > 0);
}

#[test]
fn a_holder_that_disconnects_keeps_its_lock() {
    let server = Server::start();
    let mut holder = server.client();
    let id = holder.id();
    holder.call("LOCK.ACQUIRE k a PX 60000").grant();
    holder.close();
    until("the holder is gone", || !server.is_connected(id));
    server.settle();
    server.call("LOCK.ACQUIRE k b").nil();
    assert!(server.call("LOCK.CHECK k a").int() > 0);
    // Any connection may release with the token.
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
}

/// The fields of a holder and of a waiter if its client is connected.
const HOLDER_FIELDS: [&str; 12] = [
    "client-addr",
    "client-id",
    "client-name",
    "data",
    "fence",
    "held-ms",
    "holds",
    "lease-ms",
    "limit",
    "permits",
    "session",
    "token",
];
const WAITER_FIELDS: [&str; 13] = [
    "client-addr",
    "client-id",
    "client-name",
    "data",
    "keep-ms",
    "keys",
    "kind",
    "limit",
    "mode",
    "permits",
    "timeout-ms",
    "token",
    "waiting-ms",
];
const CLIENT_FIELDS: [&str; 3] = ["client-addr", "client-id", "client-name"];

#[test]
fn info_tells_holder_and_queue() {
    let server = Server::start();
    assert_eq!(server.lock_info("k"), None);
    let mut holder = server.client();
    holder.call("CLIENT SETNAME till-1").okay();
    let grant = holder.call("LOCK.ACQUIRE k a PX 60000").grant();
    let mut patient = server.waiter("LOCK.WAIT k b PX 60000");
    let hasty = server.waiter("LOCK.WAIT k c PX 60000 BLOCK 50000");

    let info = server.lock_info("k").unwrap();
    assert_eq!(info.mode, "exclusive");
    let it = info.holder();
    assert_eq!(it.names(), HOLDER_FIELDS);
    assert_eq!(it.text("token"), "a");
    assert_eq!(it.int("fence"), grant.fence);
    assert_eq!(
        (it.int("holds"), it.int("limit"), it.int("session")),
        (1, 0, 0)
    );
    assert_fresh_lease(it.int("lease-ms"), 60_000);
    assert!((0..2_000).contains(&it.int("held-ms")), "{it:?}");
    assert_eq!(it.int("client-id"), holder.id());
    assert_eq!(it.text("client-name"), "till-1");
    let listed = server
        .call(format!("CLIENT LIST ID {}", holder.id()))
        .text();
    assert!(
        listed.contains(&format!(" addr={} ", it.text("client-addr"))),
        "{it:?} {listed}"
    );

    assert_eq!(info.waiters, 2);
    assert_eq!(info.queue_tokens(), ["b", "c"]);
    for (it, client) in info.queue.iter().zip([&patient, &hasty]) {
        assert_eq!(it.names(), WAITER_FIELDS);
        assert_eq!(
            (it.text("mode"), it.int("limit")),
            ("exclusive".to_owned(), 0)
        );
        assert!((0..2_000).contains(&it.int("waiting-ms")), "{it:?}");
        assert_eq!(
            it.get("keys"),
            Value::Array(vec![Value::BulkString(b"k".to_vec())])
        );
        assert_eq!(it.int("client-id"), client.id());
        assert_eq!(it.text("client-name"), "", "an unset name is empty");
    }
    assert_eq!(info.queue[0].int("timeout-ms"), 0, "waits forever");
    assert_fresh_lease(info.queue[1].int("timeout-ms"), 50_000);

    holder.call("LOCK.RELEASE k a").int();
    patient.recv().grant();
    let info = server.lock_info("k").unwrap();
    assert_eq!(info.holder().int("client-id"), patient.id());
    assert_eq!(info.queue_tokens(), ["c"]);
}

/// The address is that of CLIENT LIST and CLIENT KILL.
#[test]
fn info_tells_the_address_of_a_client_over_ipv6() {
    let server = Server::builder().config("bind 127.0.0.1 -::1").start();
    let address = (Ipv6Addr::LOCALHOST, server.port());
    if TcpStream::connect(address).is_err() {
        return; // The machine has no IPv6.
    }
    let mut holder = Client::connect_to(address);
    holder.call("LOCK.ACQUIRE k a PX 60000 SESSION").grant();
    let addr = server.known_lock("k").holder().text("client-addr");
    assert_eq!(addr, holder.ends().client.to_string());
    assert_eq!(server.call(format!("CLIENT KILL ADDR {addr}")).int(), 1);
    until("the session has ended", || server.lock_info("k").is_none());
}

#[test]
fn info_lets_time_pass() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let _waiter = server.waiter("LOCK.WAIT k b BLOCK 60000");
    let first = server.lock_info("k").unwrap();
    until("the times move on", || {
        let now = server.lock_info("k").unwrap();
        let (held, held_then) = (now.holder(), first.holder());
        let (waits, waited) = (&now.queue[0], &first.queue[0]);
        held.int("held-ms") > held_then.int("held-ms")
            && held.int("lease-ms") < held_then.int("lease-ms")
            && waits.int("waiting-ms") > waited.int("waiting-ms")
            && waits.int("timeout-ms") < waited.int("timeout-ms")
    });
    // `held-ms` counts from the grant that assigned the fence.
    let held_ms = server.lock_info("k").unwrap().holder().int("held-ms");
    server.call("LOCK.ACQUIRE k a PX 70000").grant();
    server.call("LOCK.EXTEND k a PX 70000").int();
    assert!(server.lock_info("k").unwrap().holder().int("held-ms") >= held_ms);
}

#[test]
fn info_names_the_client_only_while_it_is_connected() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 60000").grant();
    let id = holder.id();
    holder.close();
    until("the client is gone", || !server.is_connected(id));
    let info = server.lock_info("k").unwrap();
    let expected: Vec<&str> = HOLDER_FIELDS
        .into_iter()
        .filter(|name| !CLIENT_FIELDS.contains(name))
        .collect();
    assert_eq!(info.holder().names(), expected);
    // A repeat from another connection makes that connection the client.
    let mut again = server.client();
    again.call("LOCK.ACQUIRE k a PX 60000").grant();
    assert_eq!(
        server.lock_info("k").unwrap().holder().int("client-id"),
        again.id()
    );
}

#[test]
fn info_shows_the_first_of_very_many_waiters() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let places: Vec<String> = (0..3_500)
        .map(|n| format!("LOCK.QUEUE k w{n} KEEP 60000"))
        .collect();
    server.call_all(&places);
    let shown = |command: &str| {
        let fields = Fields::of(server.call(command).value());
        (fields.int("waiters"), fields.maps("queue").len())
    };
    assert_eq!(shown("LOCK.INFO k WAITERS 4000"), (3_500, 3_000));
    // The keys of the shown waiters are limited too, except those of the first waiter.
    for (key, count, tokens) in [
        ("m", 20_001, &["w1", "w2", "w3"][..]),
        ("n", 30_001, &["w4"]),
    ] {
        server
            .call(format!("LOCK.ACQUIRE {key} a PX 60000"))
            .grant();
        for token in tokens {
            let mut words = vec!["LOCK.MQUEUE".to_owned(), count.to_string(), key.to_owned()];
            words.extend((1..count).map(|n| format!("x{n}")));
            words.extend([token, "KEEP", "60000"].map(str::to_owned));
            server.call(&words).int();
            let info = format!("LOCK.INFO {key} WAITERS 9007199254740991");
            assert_eq!(shown(&info).1, 1, "{count} keys, {token}");
        }
    }
}

#[test]
fn info_shows_as_many_waiters_as_asked_for() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let _waiters: Vec<Client> = (0..12)
        .map(|n| server.waiter(format!("LOCK.WAIT k w{n}")))
        .collect();
    for (command, shown) in [
        ("LOCK.INFO k", 10),
        ("LOCK.INFO k WAITERS 0", 0),
        ("LOCK.INFO k waiters 3", 3),
        ("LOCK.INFO k WAITERS 9007199254740991", 12),
    ] {
        let fields = Fields::of(server.call(command).value());
        assert_eq!(fields.int("waiters"), 12, "{command}");
        let queue: Vec<String> = fields
            .maps("queue")
            .iter()
            .map(|waiter| waiter.text("token"))
            .collect();
        let expected: Vec<String> = (0..shown).map(|n| format!("w{n}")).collect();
        assert_eq!(queue, expected, "{command}");
    }
}

#[test]
fn info_is_a_map_in_resp3_and_a_flat_array_in_resp2() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let _waiter = server.waiter("LOCK.WAIT k b");
    let Value::Array(flat) = server.client().call("LOCK.INFO k").value() else {
        panic!("not an array in RESP2");
    };
    assert_eq!(flat.len(), 8);
    let Value::Map(pairs) = server.client().into_resp3().call("LOCK.INFO k").value() else {
        panic!("not a map in RESP3");
    };
    let names: Vec<Value> = pairs.iter().map(|(name, _)| name.clone()).collect();
    let flat_names: Vec<Value> = flat.iter().step_by(2).cloned().collect();
    assert_eq!(names, flat_names, "the same fields in the same order");
    for list in ["holders", "queue"] {
        let name = Value::BulkString(list.as_bytes().to_vec());
        let found = pairs.iter().find(|(it, _)| Ok(it.clone()).text() == list);
        let items = Ok(found.unwrap_or_else(|| panic!("no {name:?}")).1.clone()).list();
        assert!(
            matches!(items.as_slice(), [Value::Map(_)]),
            "{list}: {items:?}"
        );
    }
}

#[test]
fn nil_where_an_array_or_a_map_may_come_is_the_null_array() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let commands = [
        "LOCK.ACQUIRE k b",
        "LOCK.WAIT k b BLOCK 1",
        "LOCK.MACQUIRE 2 j k b",
        "LOCK.MWAIT 2 j k b BLOCK 1",
        "LOCK.INFO free",
    ];
    for command in commands {
        assert_eq!(server.client().call_raw(command), "*-1\r\n", "{command}");
        assert_eq!(
            server.client().into_resp3().call_raw(command),
            "_\r\n",
            "{command}"
        );
    }
}

#[test]
fn help_names_every_command() {
    let server = Server::start();
    for mut client in [server.client(), server.client().into_resp3()] {
        let lines: Vec<String> = client
            .call("LOCK.HELP")
            .list()
            .into_iter()
            .map(|line| Ok(line).text())
            .collect();
        for command in [
            "ACQUIRE", "WAIT", "EXTEND", "RELEASE", "CHECK", "INFO", "HELP",
        ] {
            let name = format!("LOCK.{command}");
            let described = lines.iter().any(|line| line.contains(&name));
            assert!(described, "{name} isn't in {lines:#?}");
        }
        let after = |verb: &str| {
            let synopsis = lines.iter().position(|line| line.contains(verb));
            lines[synopsis.expect("a synopsis") + 1].as_str()
        };
        assert!(after("LOCK.MEXTEND").contains("all of them or none"));
        // LOCK.MRELEASE releases those that the token holds.
        assert!(after("LOCK.MRELEASE").contains("those of the keys"));
    }
}

#[test]
fn a_key_of_another_type_is_refused_and_left_alone() {
    let server = Server::start();
    server.call("SET k value").okay();
    for command in [
        "LOCK.ACQUIRE k a",
        "LOCK.WAIT k a",
        "LOCK.WAIT k a BLOCK 10",
        "LOCK.EXTEND k a",
        "LOCK.RELEASE k a",
        "LOCK.CHECK k a",
        "LOCK.INFO k",
    ] {
        assert_eq!(server.call(command).error(), WRONGTYPE, "{command}");
    }
    assert_eq!(server.call("GET k").text(), "value");
    // In turn, a lock has the wrong type for every other command.
    server.call("LOCK.ACQUIRE lock a PX 60000").grant();
    assert_eq!(server.call("GET lock").error(), WRONGTYPE);
    assert_eq!(server.call("APPEND lock x").error(), WRONGTYPE);
    assert!(server.call("LOCK.CHECK lock a").int() > 0);
}

#[test]
fn ttl_tells_the_lease() {
    let server = Server::start();
    let both = |server: &Server| {
        let mut replies = server.call_batch(&["PTTL k", "LOCK.CHECK k a"]);
        (replies.remove(0).int(), replies.remove(0).int())
    };
    for change in [
        "LOCK.ACQUIRE k a PX 50000",
        "LOCK.ACQUIRE k a PX 90000",
        "LOCK.EXTEND k a",
    ] {
        server.call(change).value();
        let (ttl, lease) = both(&server);
        // A lease ends at its deadline, but the server removes the key only after that time. So the
        // two may differ by that millisecond, and by one more between the two commands.
        assert!(
            (ttl - lease).abs() <= 5,
            "{change}: PTTL {ttl}, lease {lease}"
        );
    }
    assert_eq!(server.call("TTL k").int(), 90);
}

#[test]
fn a_lock_that_ended_goes_by_itself() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 30").grant();
    until("the key is gone", || server.call("DBSIZE").int() == 0);
}

#[test]
fn scan_finds_locks_by_their_type() {
    let server = Server::start();
    server.call("SET text 1").okay();
    server.call("RPUSH list 1").int();
    for key in ["k1", "k2"] {
        server.call(&["LOCK.ACQUIRE", key, "a"]).grant();
        assert_eq!(server.call(&["TYPE", key]).text(), "redislock");
    }
    let page = server.call("SCAN 0 COUNT 100 TYPE redislock").list();
    let keys: BTreeSet<String> = Ok(page[1].clone())
        .list()
        .into_iter()
        .map(|key| Ok(key).text())
        .collect();
    assert_eq!(keys, BTreeSet::from(["k1".to_owned(), "k2".to_owned()]));
}

#[test]
fn rename_takes_the_grant_along() {
    let server = Server::start();
    let grant = server.call("LOCK.ACQUIRE old a PX 60000").grant();
    server.call("RENAME old new").okay();
    assert_eq!(server.lock_info("old"), None);
    assert_eq!(
        server.lock_info("new").unwrap().holder().int("fence"),
        grant.fence
    );
    assert_fresh_lease(server.call("PTTL new").int(), 60_000);
    server.call("LOCK.ACQUIRE new b").nil();
    assert_eq!(server.call("LOCK.RELEASE new a").int(), 1);
}

#[test]
fn move_takes_the_grant_along() {
    let server = Server::start();
    let grant = server.call("LOCK.ACQUIRE k a PX 60000").grant();
    assert_eq!(server.call("MOVE k 1").int(), 1);
    assert_eq!(server.lock_info("k"), None);
    let mut there = server.client().into_db(1);
    assert_eq!(there.call("LOCK.ACQUIRE k a PX 50000").grant(), grant);
    assert_fresh_lease(there.call("LOCK.CHECK k a").int(), 50_000);
    server.call("LOCK.ACQUIRE k b").grant();
}

#[test]
fn copy_is_refused() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    server.call("COPY k k2").error();
    server.call("COPY k k DB 1").error();
    assert_eq!(server.call("EXISTS k2").int(), 0);
    assert_eq!(server.client().into_db(1).call("DBSIZE").int(), 0);
    assert!(server.call("LOCK.CHECK k a").int() > 0);
}

#[test]
fn the_servers_own_commands_work_on_a_lock() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let usage = server.call("MEMORY USAGE k").int();
    assert!((50..2_000).contains(&usage), "{usage} bytes");
    let long = "x".repeat(256);
    server
        .call(&["LOCK.ACQUIRE", "k2", long.as_str(), "PX", "60000"])
        .grant();
    let longer = server.call("MEMORY USAGE k2").int();
    assert!(
        longer >= usage + 200,
        "{longer} bytes, {usage} with a token of one byte"
    );
    assert!(!server.call("OBJECT ENCODING k").text().is_empty());
    assert_eq!(server.call("OBJECT REFCOUNT k").int(), 1);
    assert!(server.call("OBJECT IDLETIME k").int() >= 0);
    assert_eq!(server.call("TOUCH k").int(), 1);
    assert!(!server.call("DEBUG OBJECT k").text().is_empty());
    assert_eq!(server.call("DEBUG DIGEST-VALUE k").list().len(), 1);
}

/// Returns the payload of DUMP.
fn dump(server: &Server, key: &str) -> Vec<u8> {
    server.call(&["DUMP", key]).bytes()
}

fn restore(server: &Server, key: &str, ttl_ms: &str, payload: &[u8]) {
    server
        .call(&[
            b"RESTORE".as_slice(),
            key.as_bytes(),
            ttl_ms.as_bytes(),
            payload,
        ])
        .okay();
}

#[test]
fn restore_brings_back_holder_fence_holds_and_lease() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000 REENTRANT").grant();
    let grant = server.call("LOCK.ACQUIRE k a PX 60000 REENTRANT").grant();
    let payload = dump(&server, "k");
    assert_eq!(server.call("DEL k").int(), 1);
    let later = server.call("LOCK.ACQUIRE elsewhere z").grant();
    restore(&server, "k", "0", &payload);
    let info = server.lock_info("k").unwrap();
    let holder = info.holder();
    assert_eq!(
        (holder.text("token"), holder.int("fence")),
        ("a".to_owned(), grant.fence)
    );
    assert_eq!(holder.int("holds"), 2);
    assert_fresh_lease(holder.int("lease-ms"), 60_000);
    assert!(!holder.has("client-id"), "a restored lock has no client");
    server.call("LOCK.ACQUIRE k b").nil();
    assert_eq!(server.call("LOCK.RELEASE k a ALL").int(), 1);
    assert!(server.call("LOCK.ACQUIRE k b").grant().fence > later.fence);
}

#[test]
fn a_restored_lock_takes_its_expiry_from_its_lease() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 60000").grant();
    let payload = dump(&server, "k");
    for ttl_ms in ["0", "20000", "900000"] {
        server.call("DEL k").int();
        restore(&server, "k", ttl_ms, &payload);
        until(
            &format!("after a TTL of {ttl_ms} the key lives as long as the lease"),
            || (40_000..=60_000).contains(&server.call("PTTL k").int()),
        );
        assert!(server.call("LOCK.CHECK k a").int() > 40_000);
    }
}

#[test]
fn a_restored_lock_whose_lease_has_ended_is_free() {
    let server = Server::start();
    let mut replies = server.call_batch(&["LOCK.ACQUIRE k a PX 300", "DUMP k"]);
    let payload = replies.remove(1).bytes();
    until("the lease has ended", || server.call("EXISTS k").int() == 0);
    restore(&server, "k", "0", &payload);
    assert_eq!(server.call("LOCK.CHECK k a").int(), 0);
    assert_eq!(server.lock_info("k"), None);
    until("the key is gone", || server.call("DBSIZE").int() == 0);
    restore(&server, "k", "0", &payload);
    assert_eq!(server.call("LOCK.ACQUIRE k b").grant().token, "b");
    restore(&server, "k2", "0", &payload);
    assert_eq!(server.call("LOCK.EXTEND k2 a PX 60000").int(), 0);
}

#[test]
fn expire_by_hand_shortens_a_lease() {
    let server = Server::start();
    let soon_ms = || unix_time_ms() + 20_000;
    for shorten in [
        "PEXPIRE k 20000".to_owned(),
        "EXPIRE k 20".to_owned(),
        format!("PEXPIREAT k {}", soon_ms()),
        format!("EXPIREAT k {}", soon_ms() / 1_000),
    ] {
        let grant = server.call("LOCK.ACQUIRE k a PX 60000").grant();
        assert_eq!(server.call(&shorten).int(), 1);
        until(&format!("{shorten} shortens the lease"), || {
            (10_000..=20_000).contains(&server.call("LOCK.CHECK k a").int())
        });
        assert_eq!(
            server.lock_info("k").unwrap().holder().int("fence"),
            grant.fence
        );
        assert!(server.call("PTTL k").int() <= 20_000);
    }
    // PERSIST doesn't undo the shorter lease.
    server.call("PERSIST k").int();
    until("the expiry is put back", || server.call("PTTL k").int() > 0);
    assert!(server.call("PTTL k").int() <= 20_000);
    assert!(server.call("LOCK.CHECK k a").int() <= 20_000);
}

#[test]
fn a_later_expire_and_persist_are_put_back() {
    let server = Server::start();
    let late_ms = unix_time_ms() + 900_000;
    for lengthen in [
        "PEXPIRE k 900000".to_owned(),
        format!("PEXPIREAT k {late_ms}"),
        "PERSIST k".to_owned(),
    ] {
        server.call("LOCK.ACQUIRE k a PX 60000").grant();
        assert_eq!(server.call(&lengthen).int(), 1);
        until(&format!("{lengthen} is put back"), || {
            (40_000..=60_000).contains(&server.call("PTTL k").int())
        });
        let lease = server.call("LOCK.CHECK k a").int();
        assert!((40_000..=60_000).contains(&lease), "{lengthen}: {lease}");
    }
}

#[test]
fn a_lock_made_to_expire_in_the_past_is_gone() {
    let server = Server::start();
    for past in ["PEXPIREAT k 1", "EXPIRE k 0", "PEXPIRE k -5"] {
        server.call("LOCK.ACQUIRE k a PX 60000").grant();
        assert_eq!(server.call(past).int(), 1);
        assert_eq!(server.lock_info("k"), None, "{past}");
        assert_eq!(server.call("LOCK.CHECK k a").int(), 0, "{past}");
    }
}

#[test]
fn a_replica_reads_locks_and_gives_none() {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let grant = primary.call("LOCK.ACQUIRE k a PX 60000").grant();
    replica.until_in_step(&primary);
    assert!(replica.call("LOCK.CHECK k a").int() > 0);
    let info = eventually("the replica has the lock", || replica.lock_info("k"));
    assert_eq!(info.holder().int("fence"), grant.fence);
    for write in ["ACQUIRE k b", "WAIT k b", "EXTEND k a", "RELEASE k a"] {
        let error = replica.call(format!("LOCK.{write}")).error();
        assert!(error.starts_with("READONLY "), "{write}: {error}");
    }
    assert!(!replica.call("LOCK.HELP").list().is_empty());
}

// ---- what a release costs the server

#[test]
fn a_release_hands_nothing_to_another_thread() {
    const ROUNDS: usize = 1_000;
    let server = Server::start();
    let freed_elsewhere = || -> i64 {
        let count = server.info("memory", "lazyfreed_objects");
        count.parse().expect("a number")
    };
    let before = freed_elsewhere();
    let mut client = server.client();
    for lines in [
        ["LOCK.ACQUIRE k t", "LOCK.RELEASE k t"].as_slice(),
        &["LOCK.ACQUIRE k t SHARED", "LOCK.RELEASE k t ALL"],
        &["LOCK.ACQUIRE k t", "DEL k"],
    ] {
        client.call_all(&lines.repeat(ROUNDS));
    }
    until("no other thread has a value to free", || {
        server.info("memory", "lazyfree_pending_objects") == "0"
    });
    assert_eq!(freed_elsewhere(), before);
}

// ---- memory

/// Commands that leave nothing, one round a row.
const ROUNDS_THAT_LEAVE_NOTHING: [&[&str]; 8] = [
    &["LOCK.ACQUIRE k a", "LOCK.EXTEND k a", "LOCK.RELEASE k a"],
    &["LOCK.ACQUIRE k a SESSION", "LOCK.WAIT k a", "DEL k"],
    &["LOCK.ACQUIRE k a SHARED DATA x", "LOCK.RELEASE k a ALL"],
    &["LOCK.MACQUIRE 2 k l a", "LOCK.MRELEASE 2 k l a"],
    &[
        "LOCK.ACQUIRE k a",
        "LOCK.QUEUE k b",
        "LOCK.CANCEL k b",
        "LOCK.RELEASE k a",
    ],
    &[
        "LOCK.ACQUIRE k a",
        "LOCK.INFO k",
        "LOCK.CHECK k a",
        "LOCK.RELEASE k a",
    ],
    &["LOCK.HOT", "LOCK.HELP", "INFO lock"],
    &[
        "EVAL return(redis.call('LOCK.ACQUIRE',KEYS[1],'a')) 1 k",
        "UNLINK k",
    ],
];

#[test]
fn no_command_leaves_memory_behind() {
    const BATCHES: usize = 100;
    const SLACK: i64 = 100_000;
    let server = Server::start();
    let used = || -> i64 { server.info("memory", "used_memory").parse().expect("bytes") };
    for round in ROUNDS_THAT_LEAVE_NOTHING {
        let batch: Vec<&str> = round
            .iter()
            .copied()
            .cycle()
            .take(20 * round.len())
            .collect();
        server.call_all(&batch);
        let before = used();
        for _ in 0..BATCHES {
            server.call_all(&batch);
        }
        until(&format!("{round:?} leave nothing"), || {
            used() < before + SLACK
        });
    }
}
