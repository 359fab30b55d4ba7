//! Grants by the timer while the server would refuse a client's write, and obstacles between a
//! hand-over and its client.

use std::time::{Duration, Instant};

use support::{eventually, packed, server_with_holder, until, Expect, Server, LONG};

/// Starts a cluster node without slots.
fn node() -> Server {
    Server::builder().config("cluster-enabled yes").start()
}

#[test]
fn too_few_replicas_hold_back_a_grant_by_the_timer() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut impatient = server.waiter("LOCK.WAIT k c BLOCK 2000");
    server.call_all(&[
        "LOCK.EXTEND k a PX 30",
        "CONFIG SET min-replicas-to-write 1",
    ]);
    // When this wait times out, the timer has already looked at the key after the lease's end.
    impatient.recv().nil();
    assert_eq!(server.known_lock("k").mode, "free");
    waiter.expect_silence();
    assert!(server
        .call("LOCK.ACQUIRE j a")
        .error()
        .starts_with("NOREPLICAS"));
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn too_few_replicas_hold_back_what_is_taken_back() {
    let server = server_with_holder();
    let dying = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    let kill = format!("CLIENT KILL ID {}", dying.id());
    server.call_all(&[
        "LOCK.RELEASE k a",
        &kill,
        "CONFIG SET min-replicas-to-write 1",
    ]);
    server.settle();
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
    assert_eq!(server.info("lock", "lock_deferred"), "1");
    next.expect_silence();
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    assert_eq!(next.recv().grant().token, "c");
    assert_eq!(server.info("lock", "lock_deferred"), "0");
}

#[test]
fn a_grant_is_taken_back_later_though_one_of_its_locks_is_gone() {
    let server = Server::start();
    let command = format!("LOCK.MACQUIRE 2 j k a {LONG}");
    server.call(command).grant();
    let dying = server.waiter(format!("LOCK.MWAIT 2 j k b {LONG}"));
    let kill = format!("CLIENT KILL ID {}", dying.id());
    server.call_all(&[
        "LOCK.MRELEASE 2 j k a",
        &kill,
        "PEXPIRE j 1",
        "CONFIG SET min-replicas-to-write 1",
    ]);
    until("j is gone", || server.call("EXISTS j").int() == 0);
    // The timer looks at the grant every 5 ms.
    let gone = Instant::now();
    until("the timer has looked at it", || {
        gone.elapsed() > Duration::from_millis(100)
    });
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    until("k is free", || server.lock_info("k").is_none());
}

/// A lock counts once, also if it is one of several that a waiter was granted, or is deferred too.
#[test]
fn locks_that_are_to_be_taken_back_are_counted_as_deferred() {
    let server = Server::start();
    let deferred = |count: &str| {
        until(&format!("{count} locks are deferred"), || {
            server.info("lock", "lock_deferred") == count
        });
    };
    server
        .call(format!("LOCK.MACQUIRE 3 j k l a {LONG}"))
        .grant();
    let several = server.waiter(format!("LOCK.MWAIT 2 j k b {LONG}"));
    let one = server.waiter(format!("LOCK.WAIT l c {LONG}"));
    let mut session = server.client();
    session
        .call(format!("LOCK.ACQUIRE s d {LONG} SESSION"))
        .grant();
    let kills = [&several, &one].map(|it| format!("CLIENT KILL ID {}", it.id()));
    server.call_all(&[
        "LOCK.MRELEASE 3 j k l a",
        &kills[0],
        &kills[1],
        "CONFIG SET min-replicas-to-write 1",
    ]);
    deferred("3");
    session.close();
    deferred("4");
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    deferred("0");
    until("all locks are free", || server.call("DBSIZE").int() == 0);
}

#[test]
fn too_few_replicas_hold_back_an_expiry_that_is_put_back() {
    let server = server_with_holder();
    server.call_all(&["PERSIST k", "CONFIG SET min-replicas-to-write 1"]);
    server.settle();
    assert_eq!(server.call("PTTL k").int(), -1);
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    until("the expiry is put back", || server.call("PTTL k").int() > 0);
}

#[test]
fn a_failing_disk_holds_back_a_grant_by_the_timer() {
    let server = Server::builder()
        .config("save 3600 1")
        .config("stop-writes-on-bgsave-error no")
        .start();
    // A directory in the file's place makes every save fail.
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    server.call("BGSAVE").unwrap();
    until("the save has failed", || {
        server.info("persistence", "rdb_last_bgsave_status") == "err"
    });
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut impatient = server.waiter("LOCK.WAIT k c BLOCK 2000");
    server.call_all(&[
        "LOCK.EXTEND k a PX 30",
        "CONFIG SET stop-writes-on-bgsave-error yes",
    ]);
    assert!(server
        .call("LOCK.ACQUIRE j a")
        .error()
        .starts_with("MISCONF"));
    impatient.recv().nil();
    assert_eq!(server.known_lock("k").mode, "free");
    waiter.expect_silence();
    server
        .call("CONFIG SET stop-writes-on-bgsave-error no")
        .okay();
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn a_lock_that_migrates_has_one_holder() {
    let (source, target) = (node(), node());
    source.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("the source serves", || {
        source.info("cluster", "cluster_enabled") == "1"
            && source.call("PING").is_ok()
            && source.call("EXISTS foo").is_ok()
    });
    let (port, bus) = (source.port(), source.bus_port());
    target
        .call(format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))
        .okay();
    let ids = |server: &Server| server.call("CLUSTER MYID").text();
    let (source_id, target_id) = (ids(&source), ids(&target));
    for server in [&source, &target] {
        until("the nodes know each other", || {
            let nodes = server.call("CLUSTER NODES").text();
            nodes.contains(&source_id) && nodes.contains(&target_id) && !nodes.contains("handshake")
        });
    }
    until("the target knows the slots", || {
        target
            .call("CLUSTER INFO")
            .text()
            .contains("cluster_state:ok")
    });
    let fence = source
        .call(format!("LOCK.ACQUIRE foo a {LONG}"))
        .grant()
        .fence;
    let mut waiter = source.waiter(format!("LOCK.WAIT foo b {LONG}"));
    let slot = source.call("CLUSTER KEYSLOT foo").int();
    target
        .call(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))
        .okay();
    source
        .call(format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))
        .okay();
    source
        .call(format!("MIGRATE 127.0.0.1 {} foo 0 5000", target.port()))
        .okay();
    // The key has left the source, so the waiter isn't granted it. The lock is on the target.
    waiter.expect_silence();
    for server in [&target, &source] {
        server
            .call(format!("CLUSTER SETSLOT {slot} NODE {target_id}"))
            .okay();
    }
    assert!(
        waiter.recv().error().starts_with("MOVED "),
        "the server redirects the waiter"
    );
    let holder = target.lock_info("foo").unwrap();
    assert_eq!(holder.holder_tokens(), ["a"]);
    assert_eq!(holder.holder().int("fence"), fence);
    target.call(format!("LOCK.ACQUIRE foo c {LONG}")).nil();
}

#[test]
fn a_replica_that_takes_writes_refuses_to_grant() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    replica.call("CONFIG SET replica-read-only no").okay();
    for command in [
        "LOCK.ACQUIRE k a",
        "LOCK.WAIT k a BLOCK 50",
        "LOCK.RELEASE k a",
        "LOCK.EXTEND k a",
    ] {
        let error = replica.call(command).error();
        assert!(error.starts_with("READONLY "), "{command}: {error}");
    }
    replica.call("REPLICAOF NO ONE").okay();
    replica.call("LOCK.ACQUIRE k a").grant();
}

#[test]
fn a_grant_that_a_busy_script_made_stays_with_a_client_that_has_its_answer() {
    let server = Server::builder().config("busy-reply-threshold 20").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut busy = server.client();
    busy.send(&["EVAL", "redis.call('LOCK.RELEASE','k','a') local t=redis.call('TIME') local till=t[1]*1000000+t[2]+300000 repeat t=redis.call('TIME') until t[1]*1000000+t[2]>till return 1", "0"]);
    waiter.recv().grant();
    waiter.close();
    assert_eq!(busy.recv().int(), 1);
    server.settle();
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["b"]);
}

#[test]
fn an_upgrade_taken_back_leaves_the_share() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k a SHARED {LONG}"))
        .grant();
    server
        .call(format!("LOCK.ACQUIRE k b SHARED {LONG}"))
        .grant();
    let mut upgrade = server.waiter(format!("LOCK.WAIT k a {LONG}"));
    let kill = format!("CLIENT KILL ID {}", upgrade.id());
    server.call_batch(&["LOCK.RELEASE k b", &kill]);
    upgrade.expect_close();
    let shared = eventually("the upgrade is taken back", || {
        server.lock_info("k").filter(|info| info.mode == "shared")
    });
    assert_eq!(shared.holder_tokens(), ["a"]);
}

#[test]
fn an_expiry_set_by_hand_is_put_back_under_a_new_name() {
    let server = Server::start();
    let put_back = |key: &str| {
        until("the expiry is put back", || {
            let left_ms = server.call(format!("PTTL {key}")).int();
            (590_000..=600_000).contains(&left_ms)
        });
    };
    for (n, by_hand) in ["PERSIST", "EXPIRE"].iter().enumerate() {
        let (old, new) = (format!("old{n}"), format!("new{n}"));
        server.call(format!("LOCK.ACQUIRE {old} a {LONG}")).grant();
        let till = if *by_hand == "EXPIRE" { " 6000" } else { "" };
        server.call_batch(&[
            &format!("{by_hand} {old}{till}"),
            &format!("RENAME {old} {new}"),
        ]);
        put_back(&new);
    }
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let payload = server.call("DUMP k").bytes();
    let restore = [&b"RESTORE"[..], b"restored", b"20000", &payload];
    let mut client = server.client();
    let mut bytes = packed(&restore);
    bytes.extend(packed("RENAME restored renamed"));
    client.send_bytes(&bytes);
    client.recv().okay();
    client.recv().okay();
    put_back("renamed");
    assert!(server.call("LOCK.CHECK renamed a").int() > 590_000);
}

#[test]
fn move_leaves_the_client_where_it_was() {
    // Valkey 8.1 leaves a client in the other database if a module listens to key events.
    let server = Server::start();
    let mut client = server.client();
    client.call("SET s 1").okay();
    assert_eq!(client.call("MOVE s 3").int(), 1);
    assert_eq!(client.call("EXISTS s").int(), 0);
}
