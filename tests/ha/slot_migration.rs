//! Slots that move key by key: SETSLOT and MIGRATE, with holders and waiters.

use std::time::Instant;

use redis::cluster::ClusterClient;

use crate::nodes::{moved_to, Cluster};
use crate::support::{eventually, until, Client, Expect, Grant, Reply, Server};

/// A lease far longer than any test.
const LONG: &str = "PX 600000";

/// The locks of a slot, as the server digests them: holders, holds, deadlines, fences.
fn digests(server: &Server, keys: &[&str]) -> Vec<String> {
    let mut client = server.client();
    keys.iter()
        .map(|key| {
            client.call("ASKING").okay();
            let digest = client.call(format!("DEBUG DIGEST-VALUE {key}")).list();
            Ok(digest[0].clone()).text()
        })
        .collect()
}

/// A command for a slot that is on its way here.
fn ask(server: &Server, command: &str) -> Reply {
    let mut client = server.client();
    client.call("ASKING").okay();
    client.call(command)
}

#[test]
fn locks_travel_with_token_fence_holds_and_lease() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    let grant = source
        .call(format!("LOCK.ACQUIRE {{t}}x a {LONG} REENTRANT"))
        .grant();
    source
        .call(format!("LOCK.ACQUIRE {{t}}x a {LONG} REENTRANT"))
        .grant();
    for token in ["p", "q"] {
        source
            .call(format!("LOCK.ACQUIRE {{t}}s {token} {LONG} SHARED LIMIT 2"))
            .grant();
    }
    let several = source
        .call(format!("LOCK.MACQUIRE 2 {{t}}m {{t}}n b {LONG}"))
        .grant();
    let keys = ["{t}x", "{t}s", "{t}m", "{t}n"];
    let before = digests(source, &keys);

    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    assert_eq!(digests(target, &keys), before);
    // Who asks here is sent there, and who comes there without having been sent is sent back.
    let error = source.call("LOCK.EXTEND {t}x a").error();
    assert!(error.starts_with("ASK "), "{error}");
    assert!(target
        .call("LOCK.EXTEND {t}x a")
        .error()
        .starts_with("MOVED "));
    ask(target, "LOCK.ACQUIRE {t}x c").nil();
    ask(target, "LOCK.ACQUIRE {t}s r SHARED LIMIT 2").nil();
    assert_eq!(
        ask(target, "LOCK.RELEASE {t}x a").int(),
        1,
        "one of two holds"
    );
    cluster.end_migration(slot, to);

    assert_eq!(
        target.call(format!("LOCK.ACQUIRE {{t}}x a {LONG}")).grant(),
        grant
    );
    let again = target
        .call(format!("LOCK.MACQUIRE 2 {{t}}m {{t}}n b {LONG}"))
        .grant();
    assert_eq!(again, several);
    assert_eq!(target.call("LOCK.RELEASE {t}x a").int(), 1, "the other one");
    let next = target.call("LOCK.ACQUIRE {t}x c").grant();
    assert!(next.fence > several.fence, "{next:?} after {several:?}");
}

#[test]
fn waiters_are_sent_on_and_queue_again_where_the_slot_is() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    let commands = [
        format!("LOCK.WAIT {{t}} b {LONG}"),
        format!("LOCK.WAIT {{t}} c {LONG} SHARED"),
        format!("LOCK.MWAIT 2 {{t}} {{t}}m d {LONG}"),
    ];
    let mut waiters: Vec<Client> = commands.iter().map(|it| source.waiter(it)).collect();

    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    // The lock is gone from here. Nobody here may take that for a release.
    source.settle();
    for waiter in &mut waiters {
        waiter.expect_silence();
    }
    let since = cluster.end_migration(slot, to);
    for waiter in &mut waiters {
        assert_eq!(moved_to(&waiter.recv().error()), Some(target.port()));
    }
    let told_after = since.elapsed();
    assert!(told_after.as_millis() < 1_000, "{told_after:?}");
    until("nobody waits here any more", || {
        source.info("lock", "lock_waiters") == "0"
    });

    let mut waiters: Vec<Client> = commands.iter().map(|it| target.waiter(it)).collect();
    assert_eq!(target.call("LOCK.RELEASE {t} a").int(), 1);
    let mut last = held.fence;
    for (waiter, token) in waiters.iter_mut().zip(["b", "c", "d"]) {
        let grant = waiter.recv().grant();
        assert_eq!(grant.token, token);
        assert!(grant.fence > last, "{grant:?} after {last}");
        last = grant.fence;
        assert_eq!(target.call(format!("LOCK.RELEASE {{t}} {token}")).int(), 1);
    }
}

#[test]
fn a_lease_that_ends_between_two_nodes_is_granted_once() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    let first = source.call("LOCK.ACQUIRE {t} a PX 400").grant();
    let mut here = source.waiter(format!("LOCK.WAIT {{t}} b {LONG}"));
    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    // Both nodes have somebody who waits, and the lease ends.
    let mut there = target.client();
    there.call("ASKING").okay();
    there.send(format!("LOCK.WAIT {{t}} c {LONG}"));
    until("the second one waits", || {
        target.info("lock", "lock_waiters") == "1"
    });
    until("the lease is over", || {
        ask(target, "LOCK.CHECK {t} a").int() == 0
    });
    source.settle();
    here.expect_silence();
    // Somebody who was sent here moves the queue on.
    ask(target, "LOCK.ACQUIRE {t} d").nil();
    let second = there.recv().grant();
    assert!(second.fence > first.fence);
    cluster.end_migration(slot, to);
    assert_eq!(moved_to(&here.recv().error()), Some(target.port()));
    target.call(format!("LOCK.ACQUIRE {{t}} b {LONG}")).nil();
    assert_eq!(target.lock_info("{t}").unwrap().holder_tokens(), ["c"]);
}

#[test]
fn who_waits_at_the_new_node_already_is_granted_when_the_slot_is_its() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    source.call("LOCK.ACQUIRE {t} a PX 300").grant();
    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    let mut there = target.client();
    there.call("ASKING").okay();
    there.send(format!("LOCK.WAIT {{t}} b {LONG}"));
    until("it waits", || target.info("lock", "lock_waiters") == "1");
    until("the lease is over", || {
        ask(target, "LOCK.CHECK {t} a").int() == 0
    });
    let since = cluster.end_migration(slot, to);
    assert_eq!(there.recv().grant().token, "b");
    let stuck = since.elapsed();
    assert!(stuck.as_millis() < 1_000, "{stuck:?}");
}

#[test]
fn a_migration_given_up_leaves_lock_and_queue_where_they_were() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    source.call("LOCK.ACQUIRE {t} a PX 500").grant();
    let mut waiter = source.waiter(format!("LOCK.WAIT {{t}} b {LONG}"));
    cluster.begin_migration(slot, from, to);
    for node in [source, target] {
        node.call(format!("CLUSTER SETSLOT {slot} STABLE")).okay();
    }
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn a_session_runs_on_untied_and_is_taken_up_again() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    let mut holder = source.client();
    let grant = holder.call("LOCK.ACQUIRE {t} a PX 1500 SESSION").grant();
    let mut orphan = source.client();
    orphan.call("LOCK.ACQUIRE {t}o a PX 1500 SESSION").grant();
    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    orphan.close();
    cluster.end_migration(slot, to);
    assert_eq!(target.lock_info("{t}").unwrap().holder().int("session"), 0);
    let mut again = target.client();
    assert_eq!(again.call("LOCK.EXTEND {t} a PX 500 SESSION").int(), 1);
    assert_eq!(target.lock_info("{t}").unwrap().holder().int("session"), 1);
    assert_eq!(
        target.call("LOCK.ACQUIRE {t} a SESSION").grant().fence,
        grant.fence
    );
    // Here nothing is left to renew or to end, and nothing tries to.
    until("the ties are dropped", || {
        source.info("lock", "lock_sessions") == "0"
    });
    assert_eq!(source.info("lock", "lock_held_back"), "0");
    until("the lease of the closed session has ended", || {
        target.call("LOCK.CHECK {t}o a").int() == 0
    });
}

#[test]
fn several_keys_have_to_be_in_one_slot_and_at_one_node() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        let error = source
            .call(format!("LOCK.{command} 2 {{t}}1 {{u}}1 a"))
            .error();
        assert!(error.starts_with("CROSSSLOT "), "{command}: {error}");
    }
    source
        .call(format!("LOCK.MACQUIRE 2 {{t}}1 {{t}}2 a {LONG}"))
        .grant();
    cluster.begin_migration(slot, from, to);
    cluster.migrate_key("{t}1", from, to);
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        let error = source
            .call(format!("LOCK.{command} 2 {{t}}1 {{t}}2 a"))
            .error();
        assert!(error.starts_with("TRYAGAIN "), "{command}: {error}");
        let error = ask(target, &format!("LOCK.{command} 2 {{t}}1 {{t}}2 a")).error();
        assert!(error.starts_with("TRYAGAIN "), "{command}: {error}");
    }
    cluster.migrate_keys(slot, from, to);
    cluster.end_migration(slot, to);
    assert_eq!(target.call("LOCK.MRELEASE 2 {t}1 {t}2 a").int(), 2);
}

#[test]
fn a_wait_for_several_is_not_granted_while_one_of_them_is_elsewhere() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    source.call(format!("LOCK.ACQUIRE {{t}}1 x {LONG}")).grant();
    source.call(format!("LOCK.ACQUIRE {{t}}2 y {LONG}")).grant();
    source.call("LOCK.ACQUIRE {t}3 z PX 500").grant();
    let mut both = source.waiter(format!("LOCK.MWAIT 2 {{t}}1 {{t}}2 b {LONG}"));
    let mut timed = source.waiter(format!("LOCK.MWAIT 2 {{t}}1 {{t}}3 t {LONG} BLOCK 700"));
    let mut behind = source.waiter(format!("LOCK.WAIT {{t}}1 c {LONG}"));
    cluster.begin_migration(slot, from, to);
    cluster.migrate_key("{t}1", from, to);
    // The second key becomes free by a command, the third by its lease's end; the first is held.
    assert_eq!(source.call("LOCK.RELEASE {t}2 y").int(), 1);
    timed.recv().nil();
    source.settle();
    both.expect_silence();
    behind.expect_silence();
    assert_eq!(ask(target, "LOCK.RELEASE {t}1 x").int(), 1);
    source.settle();
    both.expect_silence();
    cluster.migrate_keys(slot, from, to);
    cluster.end_migration(slot, to);
    for waiter in [&mut both, &mut behind] {
        assert_eq!(moved_to(&waiter.recv().error()), Some(target.port()));
    }
}

/// Blocks in a thread of its own, as an application does.
fn wait_through(cluster: &Cluster, key: &'static str) -> std::thread::JoinHandle<(Grant, Instant)> {
    let urls = cluster
        .nodes()
        .iter()
        .map(|node| format!("redis://127.0.0.1:{}", node.port()));
    let client = ClusterClient::new(urls.collect::<Vec<_>>()).expect("addresses");
    std::thread::spawn(move || {
        let mut connection = client
            .get_connection()
            .expect("a connection to the cluster");
        let (token, fence) = redis::cmd("LOCK.WAIT")
            .arg(key)
            .arg("client")
            .arg("PX")
            .arg(600_000)
            .query(&mut connection)
            .expect("a grant");
        (Grant { token, fence }, Instant::now())
    })
}

#[test]
fn a_cluster_client_follows_its_wait_to_the_new_node() {
    let cluster = Cluster::of_primaries();
    let (from, to) = (cluster.owner("{t}"), (cluster.owner("{t}") + 1) % 3);
    let (source, target) = (cluster.node(from), cluster.node(to));
    let slot = cluster.slot("{t}");
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    let waiter = wait_through(&cluster, "{t}");
    source.until_waiters("{t}", 1);
    cluster.begin_migration(slot, from, to);
    cluster.migrate_keys(slot, from, to);
    cluster.end_migration(slot, to);
    target.until_waiters("{t}", 1);
    let released = Instant::now();
    assert_eq!(target.call("LOCK.RELEASE {t} a").int(), 1);
    let (grant, granted) = waiter.join().expect("the client got its grant");
    assert_eq!(grant.token, "client");
    assert!(grant.fence > held.fence);
    assert!((granted - released).as_millis() < 1_000);
    let holder = eventually("the lock is the client's", || target.lock_info("{t}"));
    assert_eq!(holder.holder_tokens(), ["client"]);
}
