//! Fences over promotions of replicas that lag, and the key of the last fence in a cluster.

use std::{fs, thread};

use redis_lock_core::values::slot;
use support::load::Dice;
use support::{assert_same_data, unix_time_us, until, Expect, Server};

use crate::failover::{pair, until_swapped};
use crate::nodes::Cluster;

/// The number of fences that a promotion skips if the counter is ahead of the clock.
const JUMP: i64 = 60_000_000;

const NAME: &[u8] = b"redis-lock:last-fence:";

/// A key in a slot of the first node of a cluster, 3300.
const KEY: &str = "b";

#[track_caller]
fn last_fence(server: &Server) -> i64 {
    let last = server.info("lock", "lock_last_fence");
    last.parse().expect("a fence")
}

/// Raises the server's counter to 50 s ahead of its clock, unless it is further ahead. Returns the
/// counter.
#[track_caller]
fn raise(server: &Server, key: &str) -> i64 {
    let ahead = last_fence(server).max(unix_time_us() + 50_000_000);
    server.call(format!("LOCK.ACQUIRE {key} raiser")).grant();
    let extend = format!("LOCK.EXTEND {key} raiser FENCE {ahead}");
    assert_eq!(server.call(extend).int(), 1);
    last_fence(server)
}

/// Lets four clients acquire 50 locks each. Returns the fences in their order.
#[track_caller]
fn grants(server: &Server, round: usize) -> Vec<i64> {
    let acquire = |client: usize| {
        let mut connection = server.client();
        move || -> Vec<i64> {
            let keys = (0..50).map(|number| format!("k{round}-{client}-{number}"));
            keys.map(|key| connection.call(format!("LOCK.ACQUIRE {key} a")).grant())
                .map(|grant| grant.fence)
                .collect()
        }
    };
    let clients: Vec<_> = (0..4)
        .map(|client| thread::spawn(acquire(client)))
        .collect();
    let fences = clients
        .into_iter()
        .flat_map(|it| it.join().expect("grants"));
    let mut fences: Vec<i64> = fences.collect();
    fences.sort_unstable();
    fences
}

#[track_caller]
fn assert_later(later: &[i64], earlier: &[i64], scene: &str) {
    assert!(later.windows(2).all(|pair| pair[0] < pair[1]), "{scene}");
    let (first, last) = (later.first(), earlier.last());
    assert!(first > last, "{scene}: {first:?} after {last:?}");
}

// ---- promotions

#[test]
fn no_fence_falls_or_repeats_over_promotions_of_replicas_that_lag() {
    let mut dice = Dice::new(7);
    let mut primary = Server::start();
    let mut earlier = Vec::new();
    for round in 0..8 {
        let replica = Server::start();
        replica.replica_of(&primary);
        raise(&primary, &format!("raised{round}"));
        replica.until_in_step(&primary);
        replica.freeze();
        // Otherwise the grants are in the replica's socket, and it reads them after the failover.
        let is_cut = dice.below(3) > 0;
        if is_cut {
            primary.call("CLIENT KILL TYPE replica").int();
        }
        let scene = format!("round {round}, cut: {is_cut}");
        let lost = grants(&primary, 2 * round);
        assert_later(&lost, &earlier, &scene);
        primary.kill9();
        replica.thaw();
        replica.call("REPLICAOF NO ONE").okay();
        earlier = grants(&replica, 2 * round + 1);
        assert_later(&earlier, &lost, &scene);
        primary = replica;
    }
}

/// The second replica hears of the first one's promotion, but of none of its grants.
#[test]
fn no_fence_falls_or_repeats_over_two_promotions_in_a_row() {
    let (mut first, mut second, third) = (Server::start(), Server::start(), Server::start());
    for replica in [&second, &third] {
        replica.replica_of(&first);
    }
    raise(&first, "raised");
    for replica in [&second, &third] {
        replica.until_in_step(&first);
        replica.freeze();
    }
    first.call("CLIENT KILL TYPE replica").int();
    let lost = grants(&first, 0);
    first.kill9();
    for replica in [&second, &third] {
        replica.thaw();
    }
    second.call("REPLICAOF NO ONE").okay();
    third.replica_of(&second);
    assert_eq!(second.info("stats", "sync_partial_ok"), "1");
    until("the replica knows its primary's counter", || {
        third.until_in_step(&second);
        last_fence(&third) == last_fence(&second)
    });
    third.freeze();
    second.call("CLIENT KILL TYPE replica").int();
    let lost_again = grants(&second, 1);
    assert_later(&lost_again, &lost, "the first promotion");
    second.kill9();
    third.thaw();
    third.call("REPLICAOF NO ONE").okay();
    assert_later(&grants(&third, 2), &lost_again, "the second promotion");
}

#[test]
fn a_failover_skips_fences_at_the_new_primary() {
    let (primary, replica) = pair();
    let last = raise(&primary, "raised");
    replica.until_in_step(&primary);
    primary.call("FAILOVER").okay();
    until_swapped(&primary, &replica);
    assert_eq!(last_fence(&replica), last + JUMP);
    assert_same_data(&replica, &[&primary]);
}

#[test]
fn a_failover_in_a_cluster_skips_fences_at_the_new_primary() {
    for how in ["", "FORCE", "TAKEOVER"] {
        let cluster = Cluster::start();
        let (old, new) = (cluster.node(0), cluster.node(3));
        let last = raise(old, KEY);
        new.until_in_step(old);
        assert_eq!(last_fence(new), last);
        new.call(format!("CLUSTER FAILOVER {how}")).okay();
        until("the replica is a primary", || {
            new.info("replication", "role") == "master"
        });
        assert_eq!(last_fence(new), last + JUMP, "CLUSTER FAILOVER {how}");
        until("the old primary knows the new one's counter", || {
            last_fence(old) == last + JUMP
        });
    }
}

// ---- the key of the last fence

/// Starts a node again without its data, and waits until it has all data of its primary.
#[track_caller]
fn resync(cluster: &mut Cluster, number: usize) {
    let node = cluster.node_mut(number);
    node.kill9();
    // The file from the last synchronisation. With it the node would ask for the rest only.
    fs::remove_file(node.dir().join("dump.rdb")).expect("a file");
    node.restart();
    let replica = cluster.node(number);
    until("the replica's link is up", || {
        replica
            .find_info("replication", "master_link_status")
            .as_deref()
            == Some("up")
    });
    cluster.node(number - 3).until_acknowledged_by(1);
}

#[test]
fn a_replica_in_a_cluster_takes_the_last_fence_without_a_miss() {
    let mut cluster = Cluster::start();
    for is_ahead in [false, true] {
        if is_ahead {
            raise(cluster.node(0), KEY);
        } else {
            cluster
                .node(0)
                .call(["LOCK.ACQUIRE", KEY, "a"].as_slice())
                .grant();
            assert_eq!(
                cluster
                    .node(0)
                    .call(["LOCK.RELEASE", KEY, "a"].as_slice())
                    .int(),
                1
            );
        }
        resync(&mut cluster, 3);
        let (primary, replica) = (cluster.node(0), cluster.node(3));
        if is_ahead {
            assert_eq!(last_fence(replica), last_fence(primary));
        }
        assert_same_data(primary, &[replica]);
        assert_eq!(replica.info("stats", "keyspace_misses"), "0");
    }
}

#[test]
fn a_clients_own_value_stays_on_a_replica_in_a_cluster() {
    let mut cluster = Cluster::start();
    cluster
        .node(0)
        .call(["LOCK.ACQUIRE", KEY, "a"].as_slice())
        .grant();
    // The first node saves the last fence in its first slot.
    let name = [NAME, &slot::suffixes_for(NAME)(0)].concat();
    let push = [b"RPUSH".as_slice(), &name, b"a"];
    assert_eq!(cluster.node(0).call(&push).int(), 1);
    resync(&mut cluster, 3);
    let (primary, replica) = (cluster.node(0), cluster.node(3));
    primary.settle();
    replica.until_in_step(primary);
    let mut reader = replica.client();
    reader.call("READONLY").okay();
    let range = [b"LRANGE".as_slice(), &name, b"0", b"-1"];
    assert_eq!(reader.call(&range).list().len(), 1);
    assert_same_data(primary, &[replica]);
}
