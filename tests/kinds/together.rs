//! Two features in one scene that each have tests alone. Each test names the two in its comment.

use support::{packed, until, Client, Expect, LockInfo, Server, LONG};

/// Returns the holder and the queue of `k`, as the client's database has them.
#[track_caller]
fn holder_and_queue(client: &mut Client) -> (Vec<String>, Vec<String>) {
    let info = LockInfo::of(client.call("LOCK.INFO k").value()).expect("a lock");
    (info.holder_tokens(), info.queue_tokens())
}

/// Sessions and several databases: equal names and tokens there are different grants.
#[test]
fn sessions_of_equal_names_in_several_databases_live_and_end_by_themselves() {
    let server = Server::start();
    let mut holder = server.client();
    let mut databases = [0, 2, 5].map(|db| server.client().into_db(db));
    for db in [0, 2, 5] {
        holder.call(format!("SELECT {db}")).okay();
        holder.call("LOCK.ACQUIRE k t PX 900 SESSION").grant();
    }
    let sessions = |count: &str| {
        until(&format!("{count} sessions"), || {
            server.info("lock", "lock_sessions") == count
        });
    };
    // The holder's connection has another database selected than those of two grants.
    for db in &mut databases {
        db.send("LOCK.WAIT k w BLOCK 2000");
    }
    for db in &mut databases {
        db.recv().nil();
        assert_eq!(holder_and_queue(db).0, ["t"]);
    }
    assert_eq!(databases[1].call("LOCK.RELEASE k t").int(), 1);
    sessions("2");
    databases[0].call("LOCK.WAIT k w BLOCK 1500").nil();
    databases[0].call("SWAPDB 0 2").okay();
    databases[1].call("LOCK.WAIT k w BLOCK 1500").nil();
    databases[2].call("FLUSHDB").okay();
    sessions("1");

    let mut waiter = server.client().into_db(2);
    server.block(&mut waiter, format!("LOCK.WAIT k w {LONG}"));
    holder.close();
    waiter.recv().grant();
    sessions("0");
    assert_eq!(holder_and_queue(&mut databases[1]).0, ["w"]);
}

/// The longest hold and reentrance: a hold lasts until its last release, and is counted once.
#[test]
fn a_reentrant_hold_is_counted_once_from_its_grant_to_its_last_release() {
    let server = Server::start();
    let ended = || {
        let histogram = server.info("lock", "lock_hold_ms");
        let (_, count) = histogram.rsplit_once("count=").expect("a count");
        count.parse::<i64>().expect("a number")
    };
    let longest_ms = || -> f64 {
        let longest = server.info("lock", "lock_hold_max_ms");
        longest.parse().expect("a number")
    };
    server
        .call(format!("LOCK.ACQUIRE k t {LONG} REENTRANT"))
        .grant();
    server.call("LOCK.WAIT other w BLOCK 1").grant();
    server.call("DEBUG SLEEP 0.2").okay();
    server
        .call(format!("LOCK.ACQUIRE k t {LONG} REENTRANT"))
        .grant();
    assert_eq!(server.call("LOCK.RELEASE k t").int(), 1);
    assert_eq!((ended(), longest_ms()), (0, 0.0), "a hold is left");
    server.call("LOCK.EXTEND k t PX 500000").int();
    server.call("DEBUG SLEEP 0.1").okay();
    assert_eq!(server.call("LOCK.RELEASE k t").int(), 1);
    assert_eq!(ended(), 1);
    let longest_ms = longest_ms();
    assert!((300.0..60_000.0).contains(&longest_ms), "{longest_ms} ms");
}

/// Take-backs and several keys: the place comes back in each queue, ahead of all others.
#[test]
fn a_grant_of_several_keys_that_nobody_got_goes_back_to_its_place_in_each_queue() {
    let server = Server::start();
    for round in 0..50 {
        server.call(format!("LOCK.MACQUIRE 2 j k a {LONG}")).grant();
        let mut dies = server.waiter(format!("LOCK.MWAIT 2 j k t {LONG} KEEP 600000 DATA why"));
        let mut behind = ["j", "k"].map(|key| server.waiter(format!("LOCK.WAIT {key} w {LONG}")));
        let kill = format!("CLIENT KILL ID {}", dies.id());
        server.call_batch(&["LOCK.MRELEASE 2 j k a", &kill]);
        dies.replies_to_close();
        // Nobody is held up by one who isn't there.
        for waiter in &mut behind {
            assert_eq!(waiter.recv().grant().token, "w", "round {round}");
        }
        for key in ["j", "k"] {
            let info = server.known_lock(key);
            assert_eq!(info.queue_tokens(), ["t"], "{key}, round {round}");
        }
        let mut back = server.waiter(format!("LOCK.MWAIT 2 j k t {LONG}"));
        assert_eq!(server.call("LOCK.MRELEASE 2 j k w").int(), 2);
        let grant = back.recv().grant();
        for key in ["j", "k"] {
            let info = server.known_lock(key);
            assert_eq!(info.holder_tokens(), ["t"], "{key}, round {round}");
            assert_eq!(info.holder().int("fence"), grant.fence, "{key}");
        }
        assert_eq!(server.call("LOCK.MRELEASE 2 j k t").int(), 2);
    }
}

/// Ways of a restored lock to another name, with the database and the key that it then has.
const WAYS: [(&[&str], u32, &str); 7] = [
    (&[], 0, "restored"),
    (&["RENAME restored other"], 0, "other"),
    (&["MOVE restored 1"], 1, "restored"),
    (&["MULTI", "MOVE restored 1", "EXEC"], 1, "restored"),
    (&["SWAPDB 0 1"], 1, "restored"),
    (&["RENAME restored other", "SWAPDB 0 1"], 1, "other"),
    (
        &["SWAPDB 0 1", "SELECT 1", "MOVE restored 2"],
        2,
        "restored",
    ),
];

/// Holds a lock of `t` for 600 s, restores it with a TTL of 50 s, and runs commands in the same pass of
/// the server's loop.
#[track_caller]
fn restore_and(server: &Server, commands: &[&str]) {
    server.call(format!("LOCK.ACQUIRE k t {LONG}")).grant();
    let dump = server.call("DUMP k").bytes();
    let restore: [&[u8]; 4] = [b"RESTORE", b"restored", b"50000", &dump];
    let mut bytes = packed(&restore);
    commands.iter().for_each(|it| bytes.extend(packed(*it)));
    let mut client = server.client();
    client.send_bytes(&bytes);
    client.recv().okay();
    for command in commands {
        client.recv().expect(command);
    }
}

#[track_caller]
fn until_it_expires_with_its_lease(server: &Server, (way, db, key): (&[&str], u32, &str)) {
    let mut client = server.client().into_db(db);
    until(&format!("the expiry of the lease, after {way:?}"), || {
        client.call(format!("PTTL {key}")).int() > 100_000
    });
    let left_ms = client.call(format!("LOCK.CHECK {key} t")).int();
    assert!(left_ms > 100_000, "{way:?}: {left_ms}");
}

/// RESTORE, and RENAME, MOVE and SWAPDB: a restored lock expires with its lease at its next name.
#[test]
fn a_restored_lock_that_moves_at_once_expires_with_its_lease() {
    for way in WAYS {
        let server = Server::start();
        restore_and(&server, way.0);
        until_it_expires_with_its_lease(&server, way);
    }
}

/// RESTORE where nothing may be granted, and RENAME, MOVE and SWAPDB afterwards.
#[test]
fn a_restored_lock_that_moves_while_it_is_deferred_expires_with_its_lease() {
    for way in WAYS {
        let server = Server::start();
        restore_and(&server, &["CONFIG SET min-replicas-to-write 1"]);
        until("it is deferred", || {
            server.info("lock", "lock_deferred") == "1"
        });
        server.call("CONFIG SET min-replicas-to-write 0").okay();
        server.client().call_all(way.0);
        until_it_expires_with_its_lease(&server, way);
    }
}
