//! DATA, which LOCK.INFO shows to all who may read a key, and FENCE, which raises a fence.

use redis::Value;
use support::{unix_time_us, until, Client, Expect, Fields, LockInfo, Server, LONG};

/// Returns the data of the holders and of the waiters of a key. Asserts that RESP2 and RESP3 agree.
#[track_caller]
fn data(server: &Server, key: &str) -> (Vec<String>, Vec<String>) {
    let of = |fields: &[Fields]| fields.iter().map(|it| it.text("data")).collect();
    let [flat, map] = [server.client(), server.client().into_resp3()].map(|mut client| {
        let info = LockInfo::of(client.call(&["LOCK.INFO", key]).value()).expect("a lock");
        (of(&info.holders), of(&info.queue))
    });
    assert_eq!(flat, map);
    map
}

#[track_caller]
fn data_of_holder(server: &Server, key: &str) -> String {
    server.known_lock(key).holder().text("data")
}

#[test]
fn each_holder_and_each_waiter_has_its_own() {
    let server = Server::start();
    server.call_all(&[
        format!("LOCK.ACQUIRE k a {LONG} SHARED DATA backup"),
        format!("LOCK.ACQUIRE k b {LONG} SHARED"),
    ]);
    let _waiters = [
        server.waiter("LOCK.WAIT k c DATA report"),
        server.waiter("LOCK.MWAIT 2 j k d DATA both"),
        server.waiter("LOCK.WAIT k e"),
    ];
    assert_eq!(server.call("LOCK.QUEUE k f KEEP 60000 DATA place").int(), 4);
    let (holders, waiters) = data(&server, "k");
    assert_eq!(holders, ["backup", ""]);
    assert_eq!(waiters, ["report", "both", "", "place"]);
    let (holders, waiters) = data(&server, "j");
    assert!(holders.is_empty());
    assert_eq!(waiters, ["both"]);
}

#[test]
fn the_data_follows_the_contract_command_by_command() {
    let server = Server::start();
    let scenes = [
        ("LOCK.ACQUIRE k a PX 60000 DATA one", "one"),
        ("LOCK.ACQUIRE k a PX 60000", "one"),
        ("LOCK.ACQUIRE k a REENTRANT data two PX 60000", "two"),
        ("LOCK.RELEASE k a", "two"),
        ("LOCK.EXTEND k a PX 70000", "two"),
        ("LOCK.EXTEND k a DATA three", "three"),
        ("LOCK.ACQUIRE k a SHARED PX 60000", "three"),
        ("LOCK.WAIT k a PX 60000 DATA four", "four"),
        ("LOCK.MACQUIRE 2 j k a PX 60000", "four"),
        ("LOCK.MEXTEND 2 j k a DATA five", "five"),
        ("LOCK.QUEUE k a PX 60000 DATA six", "six"),
        ("LOCK.EXTEND k b DATA seven", "six"),
        ("LOCK.ACQUIRE k b DATA seven", "six"),
    ];
    for (command, expected) in scenes {
        server.call(command).value();
        assert_eq!(data_of_holder(&server, "k"), expected, "{command}");
    }
    assert_eq!(data_of_holder(&server, "j"), "five");
    let clear = ["LOCK.EXTEND", "k", "a", "DATA", ""];
    assert_eq!(server.call(&clear).int(), 1);
    assert_eq!(data_of_holder(&server, "k"), "");
}

#[test]
fn any_bytes_are_data_up_to_1024() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let all: Vec<u8> = (0..=255).cycle().take(1024).collect();
    let extend = |data: &[u8]| server.call(&[b"LOCK.EXTEND".as_slice(), b"k", b"a", b"DATA", data]);
    for data in [all.as_slice(), b"\0", b"DATA"] {
        assert_eq!(extend(data).int(), 1);
        let shown = server.known_lock("k").holder().get("data");
        assert_eq!(shown, Value::BulkString(data.to_vec()));
    }
    let error = extend(&[b'x'; 1025]).error();
    assert_eq!(error, "ERR invalid data, must be 0 to 1024 bytes");
    assert_eq!(data_of_holder(&server, "k"), "DATA");
}

#[test]
fn a_waiter_is_granted_with_its_data() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} DATA one"))
        .grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG} DATA two"));
    server
        .call("LOCK.QUEUE k c PX 60000 KEEP 60000 DATA three")
        .int();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    waiter.recv().grant();
    assert_eq!(
        data(&server, "k"),
        (vec!["two".into()], vec!["three".into()])
    );
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    assert_eq!(data_of_holder(&server, "k"), "three");
    // Without DATA the claim keeps it.
    server.call("LOCK.ACQUIRE k c PX 60000").grant();
    assert_eq!(data_of_holder(&server, "k"), "three");
}

#[test]
fn a_session_keeps_its_data_while_it_is_renewed() {
    let server = Server::start();
    let mut tied = server.client();
    tied.call("LOCK.ACQUIRE k a PX 600 SESSION DATA why")
        .grant();
    until("it was renewed", || {
        let info = server.known_lock("k");
        let holder = info.holder();
        assert_eq!(holder.text("data"), "why");
        holder.int("held-ms") > 1_800
    });
    tied.close();
    until("it ended", || server.lock_info("k").is_none());
}

#[test]
fn data_counts_in_the_memory_and_in_the_digest() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let bytes = || server.call("MEMORY USAGE k").int();
    let digest = || server.call("DEBUG DIGEST-VALUE k").list();
    let (plain, first) = (bytes(), digest());
    let data = "x".repeat(1000);
    let extend = |data: &str| {
        let extend = ["LOCK.EXTEND", "k", "a", "PX", "600000", "DATA", data];
        assert_eq!(server.call(&extend).int(), 1);
    };
    extend(&data);
    let with_data = bytes();
    assert!(
        (1_000..1_400).contains(&(with_data - plain)),
        "{plain}, {with_data}"
    );
    assert_ne!(digest(), first);
    extend("");
    assert_eq!(bytes(), plain, "a lock without data is as small as before");
}

#[test]
fn a_lock_with_data_is_dumped_moved_and_not_copied() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} DATA why"))
        .grant();
    let dump = server.call("DUMP k").bytes();
    let restore: [&[u8]; 4] = [b"RESTORE", b"restored", b"0", &dump];
    server.call(&restore).okay();
    assert_eq!(data_of_holder(&server, "restored"), "why");
    server.call("COPY k copied").error();
    server.call("RENAME k renamed").okay();
    assert_eq!(data_of_holder(&server, "renamed"), "why");
    assert_eq!(server.call("MOVE renamed 1").int(), 1);
    let mut there = server.client().into_db(1);
    let info = LockInfo::of(there.call("LOCK.INFO renamed").value()).expect("a lock");
    assert_eq!(info.holder().text("data"), "why");
}

/// A client must not lose its lease because the server has no memory.
#[test]
fn an_extension_with_data_is_never_refused_for_lack_of_memory() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("CONFIG SET maxmemory-policy noeviction").okay();
    server.call("CONFIG SET maxmemory 1").okay();
    let refused = server.call("LOCK.ACQUIRE j a DATA why").error();
    assert!(refused.starts_with("OOM"), "{refused}");
    assert_eq!(server.call("LOCK.EXTEND k a DATA why").int(), 1);
    assert_eq!(server.call("LOCK.MEXTEND 1 k a DATA because").int(), 1);
    server.call("CONFIG SET maxmemory 0").okay();
    assert_eq!(data_of_holder(&server, "k"), "because");
}

#[test]
fn a_watch_sees_an_extension_that_only_changes_data() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut watcher = server.client();
    watcher.call("WATCH k").okay();
    assert_eq!(
        server
            .call(format!("LOCK.EXTEND k a {LONG} DATA why"))
            .int(),
        1
    );
    watcher.call_all(&["MULTI", "PING"]);
    watcher.call("EXEC").nil();
}

// --- FENCE --------------------------------------------------------------------------------------

const REFUSED: &str =
    "ERR invalid fence, must be 1 to 9007199254740991 and at most 60 s ahead of the clock";

#[track_caller]
fn fence(server: &Server, key: &str) -> i64 {
    server.known_lock(key).holder().int("fence")
}

#[test]
fn a_fence_is_raised_and_later_grants_are_above_it() {
    let server = Server::start();
    let first = server
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant()
        .fence;
    let raised = first + 30_000_000;
    assert_eq!(
        server.call(format!("LOCK.EXTEND k a FENCE {raised}")).int(),
        1
    );
    assert_eq!(fence(&server, "k"), raised);
    assert_eq!(server.info("lock", "lock_last_fence"), raised.to_string());
    assert_eq!(
        server.call(format!("LOCK.EXTEND k a fence {first}")).int(),
        1
    );
    assert_eq!(fence(&server, "k"), raised, "it never falls");
    let repeat = server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(repeat.fence, raised);
    let next = server.call("LOCK.ACQUIRE j b").grant().fence;
    assert!(next > raised);
    // The raised fence is what a DUMP and a restart have.
    server.call("DEBUG RELOAD").okay();
    assert_eq!(fence(&server, "k"), raised);
}

#[test]
fn a_fence_is_at_most_60_s_ahead_of_the_clock() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call("SET text 1").okay();
    let most_us = 60_000_000;
    let too_far = unix_time_us() as i64 + most_us + 60_000_000;
    let last = server.info("lock", "lock_last_fence");
    for key in ["k", "text", "none"] {
        for fence in [0, 1 << 53, too_far] {
            let extend = format!("LOCK.EXTEND {key} a FENCE {fence}");
            assert_eq!(server.call(extend).error(), REFUSED, "{key} {fence}");
        }
    }
    let far = unix_time_us() as i64 + most_us;
    assert_eq!(
        server.call(format!("LOCK.EXTEND none a FENCE {far}")).int(),
        0
    );
    let wrong = server
        .call(format!("LOCK.MEXTEND 2 k text a FENCE {far}"))
        .error();
    assert!(wrong.starts_with("WRONGTYPE"), "{wrong}");
    assert_eq!(
        server.info("lock", "lock_last_fence"),
        last,
        "nothing was raised"
    );
    assert_eq!(server.call(format!("LOCK.EXTEND k a FENCE {far}")).int(), 1);
    assert_eq!(fence(&server, "k"), far);
}

/// The recipe of docs/concepts/fencing.md, with three masters.
#[test]
fn fences_of_several_masters_can_be_compared() {
    let masters = [Server::start(), Server::start(), Server::start()];
    let acquire = |token: &str, of: &[usize]| -> i64 {
        let fences = of.iter().map(|n| {
            let acquire = format!("LOCK.ACQUIRE k {token} {LONG}");
            masters[*n].call(acquire).grant().fence
        });
        let greatest = fences.max().expect("a majority");
        for n in of {
            let raise = format!("LOCK.EXTEND k {token} FENCE {greatest}");
            assert_eq!(masters[*n].call(raise).int(), 1);
        }
        greatest
    };
    let mut last = 0;
    // The clock of the last master is 50 s ahead.
    let ahead = unix_time_us() as i64 + 50_000_000;
    let mut first: Client = masters[2].client();
    first.call("LOCK.ACQUIRE other x").grant();
    first
        .call(format!("LOCK.EXTEND other x FENCE {ahead}"))
        .int();
    for (token, of) in [("a", [1, 2]), ("b", [0, 1]), ("c", [0, 2]), ("d", [0, 1])] {
        let fence = acquire(token, &of);
        assert!(fence > last, "{token}: {fence} after {last}");
        last = fence;
        for n in of {
            assert_eq!(masters[n].call(format!("LOCK.RELEASE k {token}")).int(), 1);
        }
    }
}
