//! A server without a reader of its effects replicates nothing. From the moment that a reader may
//! exist, it replicates everything. No grant may be lost to a replica or to an append-only file
//! that was added later.

use support::{assert_same_data, until, Client, Expect, ReplicationStream, Server, LONG};

/// The server writes its append-only file before it replies. With everysec it may keep up to 2 s of
/// the file in memory while an fsync runs, which a kill would lose.
const WRITES_AT_ONCE: &str = "appendfsync no";

/// Grants keys by a client, in a transaction and in a script, and grants and releases another key.
fn grant_in_every_way(client: &mut Client, round: &str) {
    client
        .call(format!("LOCK.ACQUIRE {round}:plain t {LONG}"))
        .grant();
    client.call("MULTI").okay();
    client.send(format!("LOCK.ACQUIRE {round}:multi t {LONG}"));
    client.recv().expect("QUEUED");
    client.call("EXEC").expect("an array");
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 't', 'PX', '600000')";
    let key = format!("{round}:script");
    client.call(&["EVAL", script, "1", &key]).grant();
    client
        .call(format!("LOCK.ACQUIRE {round}:released t {LONG}"))
        .grant();
    assert_eq!(
        client
            .call(format!("LOCK.RELEASE {round}:released t"))
            .int(),
        1
    );
}

/// Asserts that the keys which [`grant_in_every_way`] leaves held are held.
fn assert_held(server: &Server, round: &str) {
    for way in ["plain", "multi", "script"] {
        let left_ms = server.call(format!("LOCK.CHECK {round}:{way} t")).int();
        assert!(left_ms > 0, "{round}:{way}");
    }
    assert_eq!(server.call(format!("EXISTS {round}:released")).int(), 0);
}

#[test]
fn a_replica_that_comes_later_has_what_was_granted_before_and_after() {
    let primary = Server::start();
    let mut client = primary.client();
    grant_in_every_way(&mut client, "before");
    let replica = Server::start();
    replica.replica_of(&primary);
    grant_in_every_way(&mut client, "after");
    assert_same_data(&primary, &[&replica]);
    assert_held(&replica, "before");
    assert_held(&replica, "after");
}

#[test]
fn grants_beside_a_replica_that_attaches_all_reach_it() {
    let primary = Server::start();
    let mut client = primary.client();
    client.call(format!("LOCK.ACQUIRE first t {LONG}")).grant();
    let replica = Server::start();
    replica
        .call(format!("REPLICAOF 127.0.0.1 {}", primary.port()))
        .okay();
    let mut granted = 0;
    until("the replica is there", || {
        for _ in 0..100 {
            granted += 1;
            client
                .call(format!("LOCK.ACQUIRE k{granted} t {LONG}"))
                .grant();
        }
        primary.info("replication", "connected_slaves") == "1"
            && replica.info("replication", "master_link_status") == "up"
    });
    replica.until_in_step(&primary);
    assert_same_data(&primary, &[&replica]);
    assert_eq!(replica.call("DBSIZE").int(), granted + 1);
}

#[test]
fn a_backlog_is_written_to_after_its_replica_has_gone() {
    let primary = Server::start();
    primary.call(format!("LOCK.ACQUIRE k t {LONG}")).grant();
    let mut stream = ReplicationStream::attach(&primary);
    primary.call(format!("LOCK.ACQUIRE l t {LONG}")).grant();
    let lines = stream.lines_up_to_now(&primary);
    assert!(
        lines.iter().any(|line| line.starts_with("LOCK.APPLY l ")),
        "{lines:?}"
    );
    // The replica's backlog remains after the replica has gone, so that the replica can return.
    drop(stream);
    let offset = primary.info("replication", "master_repl_offset");
    primary.call(format!("LOCK.ACQUIRE m t {LONG}")).grant();
    assert_ne!(primary.info("replication", "master_repl_offset"), offset);
}

#[test]
fn a_replica_reads_all_however_its_command_is_called_and_spelt() {
    for command in [
        "PSYNC ? -1",
        "psync ? -1",
        "PsYnC ? -1",
        "SYNC",
        "sync",
        "sYnC",
    ] {
        let primary = Server::start();
        primary.call(format!("LOCK.ACQUIRE k t {LONG}")).grant();
        let mut stream = ReplicationStream::attach_by(&primary, command);
        primary.call(format!("LOCK.ACQUIRE l t {LONG}")).grant();
        primary.call("LOCK.RELEASE k t").int();
        let lines = stream.lines_up_to_now(&primary);
        let [grant, release] = lines.as_slice() else {
            panic!("{command}: {lines:?}");
        };
        assert!(
            grant.starts_with("LOCK.APPLY l GRANT t "),
            "{command}: {grant}"
        );
        assert_eq!(release, "DEL k", "{command}");
    }
}

/// Digests tell holders, holds, permits, deadlines, fences and data.
#[test]
fn replicas_have_what_their_primary_has_while_sessions_are_renewed() {
    let (primary, first, late) = (Server::start(), Server::start(), Server::start());
    first.replica_of(&primary);
    let mut holders: Vec<Client> = (0..20).map(|_| primary.client()).collect();
    for (number, holder) in holders.iter_mut().enumerate() {
        let own = format!("LOCK.ACQUIRE k{number} t PX 3000 SESSION DATA d{number}");
        let shared = format!("LOCK.ACQUIRE s t{number} PX 3000 SESSION SHARED LIMIT 20");
        let both = format!("LOCK.MACQUIRE 2 m{number} n{number} t PX 3000 SESSION");
        for command in [own, shared, both] {
            holder.call(command).grant();
        }
    }
    late.replica_of(&primary);
    let mut last = String::new();
    for (round, holder) in holders.iter_mut().enumerate().take(5) {
        let extend = format!("LOCK.EXTEND k{round} t DATA round");
        assert_eq!(holder.call(extend).int(), 1);
        // A pause of writes is one of renewals too.
        primary.call("CLIENT PAUSE 2000 WRITE").okay();
        let digest = assert_same_data(&primary, &[&first, &late]);
        primary.call("CLIENT UNPAUSE").okay();
        assert_ne!(digest, last, "round {round}");
        last = digest;
        let ends_ms = |key: &str| primary.call(format!("PEXPIRETIME {key}")).int();
        let before = ends_ms("k19");
        until("k19 is renewed", || ends_ms("k19") > before);
    }
    drop(holders);
    until("all are released", || primary.call("DBSIZE").int() == 0);
    assert_same_data(&primary, &[&first, &late]);
}

#[test]
fn a_promoted_replica_replicates() {
    let primary = Server::start();
    let replica = Server::start();
    // The replica first grants without a reader, and later has a reader.
    replica.call(format!("LOCK.ACQUIRE own t {LONG}")).grant();
    replica.replica_of(&primary);
    replica.call("REPLICAOF NO ONE").okay();
    let mut client = replica.client();
    grant_in_every_way(&mut client, "promoted");
    primary.replica_of(&replica);
    grant_in_every_way(&mut client, "later");
    assert_same_data(&replica, &[&primary]);
    assert_held(&primary, "promoted");
    assert_held(&primary, "later");
}

/// The module checks once in a pass of the server's loop if there is an append-only file. A batch
/// of commands is one pass.
#[test]
fn an_append_only_file_has_what_follows_it_in_the_same_pass() {
    let mut server = Server::builder().config(WRITES_AT_ONCE).start();
    let acquire = |key| format!("LOCK.ACQUIRE {key} t {LONG}");
    let (before, after) = (acquire("before"), acquire("after"));
    let batch = [before.as_str(), "CONFIG SET appendonly yes", &after];
    let replies = server.call_batch(&batch);
    assert_eq!(replies.len(), batch.len(), "{replies:?}");
    let fences = |server: &Server| {
        let fence = |key| server.known_lock(key).holder().int("fence");
        ["before", "after"].map(fence)
    };
    let granted = fences(&server);
    server.until_rewritten();
    server.kill9();
    server.restart_with("appendonly yes");
    // If the file had the command instead of its effect, loading the file would grant anew.
    assert_eq!(fences(&server), granted);
}

#[test]
fn an_append_only_file_that_is_switched_on_has_what_follows() {
    let mut server = Server::builder()
        .config("enable-debug-command yes")
        .config(WRITES_AT_ONCE)
        .start();
    let mut client = server.client();
    grant_in_every_way(&mut client, "before");
    client.call("CONFIG SET appendonly yes").okay();
    grant_in_every_way(&mut client, "during");
    server.until_rewritten();
    grant_in_every_way(&mut client, "after");
    let rounds = ["before", "during", "after"];
    let fences = |server: &Server| {
        rounds.map(|round| {
            let lock = server.known_lock(&format!("{round}:plain"));
            lock.holder().int("fence")
        })
    };
    let granted = fences(&server);
    drop(client);
    server.kill9();
    server.restart_with("appendonly yes");
    for round in rounds {
        assert_held(&server, round);
    }
    // The file has the grants, not commands that would grant anew.
    assert_eq!(fences(&server), granted);
}

#[test]
fn grants_that_nobody_reads_count_as_changes() {
    let server = Server::start();
    let changes = || -> i64 {
        let changes = server.info("persistence", "rdb_changes_since_last_save");
        changes.parse().expect("a number")
    };
    let before = changes();
    server.call(format!("LOCK.ACQUIRE k t {LONG}")).grant();
    assert_eq!(changes(), before + 1);
    assert_eq!(server.call("LOCK.RELEASE k t").int(), 1);
    assert_eq!(changes(), before + 2);
    // A release without a holder changes nothing.
    assert_eq!(server.call("LOCK.RELEASE k t").int(), 0);
    assert_eq!(changes(), before + 2);
}
