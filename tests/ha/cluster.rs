//! A cluster whose nodes fail or change roles.

use std::time::Duration;

use redis::cluster::ClusterClient;

use crate::nodes::{moved_to, Cluster};
use support::{assert_same_data, until, Client, Expect, Grant, Server, LONG};

/// Takes locks of several kinds in one slot. Returns for each the command to send again, and its
/// grant. `a` holds `{t}x` twice.
fn hold(primary: &Server) -> Vec<(&'static str, Grant)> {
    primary
        .call("LOCK.ACQUIRE {t}x a PX 600000 REENTRANT")
        .grant();
    primary
        .call("LOCK.ACQUIRE {t}x a PX 600000 REENTRANT")
        .grant();
    let commands = [
        "LOCK.ACQUIRE {t}x a PX 600000",
        "LOCK.ACQUIRE {t}s p PX 600000 SHARED LIMIT 2",
        "LOCK.MACQUIRE 2 {t}m {t}n b PX 600000",
    ];
    commands.map(|it| (it, primary.call(it).grant())).to_vec()
}

/// Asserts that each command of [`hold`] still returns its grant, with the same fence.
#[track_caller]
fn assert_held(server: &Server, held: &[(&str, Grant)]) {
    for (again, grant) in held {
        assert_eq!(server.call(*again).grant(), *grant, "{again}");
    }
}

/// Returns true if the error is one by which a demoted primary ends a wait.
fn is_sent_on(error: &str) -> bool {
    error.starts_with("MOVED ") || error.starts_with("UNBLOCKED ")
}

/// Returns a connection that has sent the command. The reply comes at once or later.
fn asking(server: &Server, command: String) -> Client {
    let mut client = server.client();
    client.send(command);
    client
}

pub fn until_primary(server: &Server) {
    until("the replica is a primary", || {
        server.info("replication", "role") == "master"
    });
    until("the key is served", || server.call("EXISTS {t}").is_ok());
}

#[test]
fn a_replica_takes_over_with_its_locks() {
    let mut cluster = Cluster::start();
    let (old, new) = (cluster.owner("{t}"), cluster.owner("{t}") + 3);
    let held = hold(cluster.node(old));
    cluster
        .node(old)
        .call("LOCK.ACQUIRE {t}soon c PX 1000")
        .grant();
    let mut waiters: Vec<Client> = ["{t}x", "{t}soon"]
        .map(|key| {
            cluster
                .node(old)
                .waiter(format!("LOCK.WAIT {key} w {LONG}"))
        })
        .into();
    cluster.node(new).until_in_step(cluster.node(old));
    cluster.node_mut(old).kill9();
    for waiter in &mut waiters {
        waiter.expect_close();
    }
    let server = cluster.node(new);
    until_primary(server);
    assert_held(server, &held);
    let mut waiters: Vec<Client> = ["{t}x", "{t}soon"]
        .map(|key| asking(server, format!("LOCK.WAIT {key} w {LONG}")))
        .into();
    let soon = waiters[1].recv().grant();
    let newest = held.iter().map(|(_, grant)| grant.fence).max();
    assert!(Some(soon.fence) > newest, "{soon:?} after {newest:?}");
    for _ in 0..2 {
        waiters[0].expect_silence();
        assert_eq!(server.call("LOCK.RELEASE {t}x a").int(), 1);
    }
    assert!(waiters[0].recv().grant().fence > soon.fence);

    // The old primary returns as a replica.
    cluster.node_mut(old).restart();
    let (back, server) = (cluster.node(old), cluster.node(new));
    until("the old primary follows", || {
        back.info("replication", "role") == "slave"
            && back.info("replication", "master_link_status") == "up"
    });
    assert_same_data(server, &[back]);
}

#[test]
fn roles_change_by_hand_and_nobody_is_lost() {
    for how in ["", "FORCE", "TAKEOVER"] {
        let cluster = Cluster::start();
        let (old, new) = (cluster.owner("{t}"), cluster.owner("{t}") + 3);
        let (old, new) = (cluster.node(old), cluster.node(new));
        let held = hold(old);
        old.call(format!("LOCK.ACQUIRE {{t}}soon c {LONG}")).grant();
        let mut session = old.client();
        session
            .call("LOCK.ACQUIRE {t}session d PX 1500 SESSION")
            .grant();
        let mut waiter = old.waiter(format!("LOCK.WAIT {{t}}x w {LONG}"));
        let mut soon = old.waiter(format!("LOCK.WAIT {{t}}soon w {LONG}"));
        assert_eq!(old.call("LOCK.EXTEND {t}soon c PX 300").int(), 1);
        new.until_in_step(old);
        new.call(format!("CLUSTER FAILOVER {how}")).okay();
        until_primary(new);
        until("the old primary follows", || {
            old.info("replication", "role") == "slave"
        });
        let error = waiter.recv().error();
        assert!(is_sent_on(&error), "{how}: {error}");
        // This waiter may have been granted the lock before the roles changed.
        let early = soon.recv();
        assert!(
            early
                .as_ref()
                .map_or_else(|error| is_sent_on(error), |_| true),
            "{how}: {early:?}"
        );
        assert_held(new, &held);
        let mut soon = asking(new, format!("LOCK.WAIT {{t}}soon w {LONG}"));
        soon.recv().grant();
        let mut waiter = new.waiter(format!("LOCK.WAIT {{t}}x w {LONG}"));
        new.call("LOCK.RELEASE {t}x a ALL").int();
        waiter.recv().grant();
        // The session is now a plain lease. The old primary neither renews nor ends it.
        assert_eq!(
            new.lock_info("{t}session").unwrap().holder().int("session"),
            0
        );
        until("the lease of the session has ended", || {
            new.call("LOCK.CHECK {t}session d").int() == 0
        });
        assert_eq!(old.info("lock", "lock_sessions"), "0");
        until("both have the same data", || {
            old.call("DEBUG DIGEST").text() == new.call("DEBUG DIGEST").text()
        });
    }
}

#[test]
fn a_cluster_that_is_down_refuses_and_goes_on_afterwards() {
    let mut cluster = Cluster::of_primaries();
    let (here, lost) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let held = hold(cluster.node(here));
    let mut session = cluster.node(here).client();
    session
        .call("LOCK.ACQUIRE {t}session d PX 60000 SESSION")
        .grant();
    let mut waiter = cluster
        .node(here)
        .waiter(format!("LOCK.WAIT {{t}}x w {LONG}"));
    cluster.node_mut(lost).kill9();
    let server = cluster.node(here);
    let error = waiter.recv().error();
    assert!(error.starts_with("CLUSTERDOWN "), "{error}");
    until("no client waits", || {
        server.info("lock", "lock_waiters") == "0"
    });
    for command in [
        "LOCK.ACQUIRE {t}y a",
        "LOCK.WAIT {t}x w",
        "LOCK.RELEASE {t}x a",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("CLUSTERDOWN "), "{command}: {error}");
    }
    // The lock of a session that closes now is released once the cluster is up again.
    session.close();
    cluster.node_mut(lost).restart();
    cluster.until_all_serve();
    let server = cluster.node(here);
    assert_held(server, &held);
    until("the session has ended", || {
        server.call("LOCK.CHECK {t}session d").int() == 0
    });
    let mut waiter = server.waiter(format!("LOCK.WAIT {{t}}x w {LONG}"));
    server.call("LOCK.RELEASE {t}x a ALL").int();
    waiter.recv().grant();
}

#[test]
fn several_keys_are_served_where_their_hash_tag_is() {
    let cluster = Cluster::of_primaries();
    let owner = cluster.owner("{t}");
    let elsewhere = cluster.node((owner + 1) % 3);
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        let error = elsewhere
            .call(format!("LOCK.{command} 2 {{t}}a {{t}}b me"))
            .error();
        assert_eq!(
            moved_to(&error),
            Some(cluster.node(owner).port()),
            "{command}: {error}"
        );
    }
    // A client that does not know the commands finds the node all the same.
    let url = format!("redis://127.0.0.1:{}", elsewhere.port());
    let client = ClusterClient::new(vec![url]).expect("an address");
    let mut connection = client
        .get_connection()
        .expect("a connection to the cluster");
    let mut call = |words: &str| -> redis::Value {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        command.query(&mut connection).expect("an answer")
    };
    let grant = Ok(call("LOCK.MACQUIRE 2 {t}a {t}b me PX 600000")).grant();
    let same = Ok(call("LOCK.MWAIT 2 {t}b {t}a me PX 600000")).grant();
    assert_eq!(grant, same);
    assert_eq!(call("LOCK.MEXTEND 2 {t}a {t}b me"), redis::Value::Int(2));
    assert_eq!(call("LOCK.MRELEASE 2 {t}a {t}b me"), redis::Value::Int(2));
}

#[test]
fn a_transaction_needs_one_hash_tag() {
    let cluster = Cluster::of_primaries();
    let mut client = cluster.node(cluster.owner("{t}")).client();
    let commands = [
        "MULTI",
        "LOCK.ACQUIRE {t}x a",
        "LOCK.WAIT {t}x b",
        "SET {t}y 1",
        "EXEC",
    ];
    let replies = client.call_batch(&commands).remove(4).list();
    assert_eq!(replies[1], redis::Value::Nil, "a LOCK.WAIT doesn't wait");
    assert_eq!(client.call("GET {t}y").text(), "1");
    let owner = cluster.owner("{t}");
    let other = (0..).map(|it| format!("{{{it}}}"));
    let other = other
        .filter(|it| cluster.slot(it) != cluster.slot("{t}"))
        .find(|it| cluster.owner(it) == owner);
    let other = other.expect("another slot of the node");
    let acquire = format!("LOCK.ACQUIRE {other} a");
    let mut replies = client.call_batch(&["MULTI", "LOCK.RELEASE {t}x a", &acquire, "EXEC"]);
    assert!(replies.remove(3).error().starts_with("CROSSSLOT"));
    let script = client.call(format!("EVAL return(1) 2 {{t}}x {other}"));
    assert!(script.error().starts_with("CROSSSLOT"));
}

#[test]
fn a_replica_of_the_cluster_answers_readers_and_sends_others_on() {
    let cluster = Cluster::start();
    let owner = cluster.owner("{t}");
    let (primary, replica) = (cluster.node(owner), cluster.node(owner + 3));
    let grant = primary.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    replica.until_in_step(primary);
    let mut reader = replica.client();
    assert_eq!(
        moved_to(&reader.call("LOCK.CHECK {t} a").error()),
        Some(primary.port())
    );
    reader.call("READONLY").okay();
    assert!(reader.call("LOCK.CHECK {t} a").int() > 590_000);
    let info = reader.call("LOCK.INFO {t}").value();
    let info = support::LockInfo::of(info).expect("a lock");
    assert_eq!(info.holder().int("fence"), grant.fence);
    for command in [
        "LOCK.ACQUIRE {t} a",
        "LOCK.WAIT {t} b BLOCK 10",
        "LOCK.RELEASE {t} a",
    ] {
        let error = reader.call(command).error();
        assert_eq!(moved_to(&error), Some(primary.port()), "{command}");
    }
    assert!(reader.try_recv(Duration::ZERO).is_none());
}
