//! Crowds of clients that follow their locks through a cluster while it changes.

use std::time::{Duration, Instant};

use crate::contenders::{contend, grants, Find, History, Plan, Route};
use crate::nodes::{address_in, Cluster, NODE_TIMEOUT_MS};
use support::history::{fences_rise, no_writer_overlaps, nobody_stuck, Outage};
use support::{until, Client, Expect, Server};

/// Time after which a client that waits for a served lock counts as stuck.
const STUCK: Duration = Duration::from_secs(2);

/// Returns a crowd in the slot of `{t}` with short holds, one in ten of which is left to expire.
fn brisk(replicas: usize) -> Plan {
    Plan {
        keys: (0..4).map(|number| format!("{{t}}{number}")).collect(),
        contenders: 3,
        lease_ms: 250,
        hold_ms: 1..15,
        lapses_of_ten: 1,
        replicas,
    }
}

/// Finds the node of a key like a cluster client: by a redirect, or else by asking any node.
fn route(ports: &[u16], key: &str, trouble: Option<&str>) -> Option<Route> {
    let sent_on = trouble.and_then(sent_to);
    sent_on.or_else(|| ports.iter().find_map(|port| asked_at(*port, key)))
}

fn sent_to(error: &str) -> Option<Route> {
    let moved = address_in(error, "MOVED ").map(|port| (port, false));
    let asked = || address_in(error, "ASK ").map(|port| (port, true));
    let (port, asking) = moved.or_else(asked)?;
    Some(Route { port, asking })
}

/// Returns the route to a key, if the node at `port` has its slot.
fn asked_at(port: u16, key: &str) -> Option<Route> {
    let mut client = Client::try_connect(port).ok()?;
    match client.try_call(format!("EXISTS {key}")) {
        Ok(_) => Some(Route {
            port,
            asking: false,
        }),
        Err(error) if error.starts_with("ASK ") => sent_to(&error),
        Err(_) => None,
    }
}

fn ports(cluster: &Cluster) -> Vec<u16> {
    cluster.nodes().iter().map(Server::port).collect()
}

/// Waits until a server has granted `more` more locks.
#[track_caller]
fn until_it_grants(server: &Server, more: i64) {
    let before = grants(server);
    until("the crowd is at work", || grants(server) >= before + more);
}

/// Asserts all guarantees that hold if no grant is lost.
#[track_caller]
fn assert_nothing_lost(history: &History, outages: &[Outage]) {
    fences_rise(&history.grants).unwrap();
    no_writer_overlaps(&history.holds).unwrap();
    assert!(history.lost.is_empty(), "{:#?}", history.lost);
    nobody_stuck(&history.waits, outages, STUCK).unwrap();
}

#[test]
fn a_crowd_follows_its_slot_key_by_key() {
    let cluster = Cluster::of_primaries();
    let ports = ports(&cluster);
    let find: Find<'_> = &|key, trouble| route(&ports, key, trouble);
    let ([history], ()) = contend([brisk(0)], find, || {
        until_it_grants(cluster.node(cluster.owner("{t}")), 100);
        for _ in 0..3 {
            let slot = cluster.next_move("{t}");
            slot.begin();
            // The slot migrates for longer than a client may wait, with its keys at the source.
            let begun = Instant::now();
            until_it_grants(slot.source, 100);
            until("leases have ended meanwhile", || begun.elapsed() > STUCK);
            // The keys are split between the nodes, for a short while only: a client that waits at
            // the source for a key that has left is redirected once the slot has its new owner.
            for key in ["{t}0", "{t}1"] {
                slot.key(key);
            }
            let split = Instant::now();
            until("both have served", || split.elapsed() > STUCK / 4);
            slot.all_keys();
            slot.end();
            until_it_grants(slot.target, 100);
        }
    });
    eprintln!(
        "{} grants; errors: {:?}",
        history.grants.len(),
        history.errors
    );
    assert_nothing_lost(&history, &[]);
    assert!(history.errors.contains_key("MOVED"));
}

#[test]
fn a_crowd_follows_its_slot_as_a_whole() {
    let cluster = Cluster::of_primaries();
    let ports = ports(&cluster);
    let find: Find<'_> = &|key, trouble| route(&ports, key, trouble);
    let ([history], moves) = contend([brisk(0)], find, || {
        until_it_grants(cluster.node(cluster.owner("{t}")), 100);
        let mut moves = 0;
        for _ in 0..6 {
            let slot = cluster.next_move("{t}");
            match slot.begin_as_a_whole() {
                Ok(()) => moves += 1,
                Err(error) => assert!(error.starts_with("ERR unknown subcommand"), "{error}"),
            }
            if moves > 0 {
                slot.until_known();
                until_it_grants(slot.target, 100);
            }
        }
        moves
    });
    eprintln!(
        "{moves} moves; {} grants; errors: {:?}",
        history.grants.len(),
        history.errors
    );
    assert_nothing_lost(&history, &[]);
    assert_eq!(history.errors.contains_key("MOVED"), moves > 0);
}

/// Makes a replica and its primary swap roles. Returns an upper bound of the time without writes.
#[track_caller]
fn change_roles(owner: &Server, heir: &Server) -> Outage {
    let from = Instant::now();
    heir.call("CLUSTER FAILOVER").okay();
    until("a write succeeds", || heir.call("SET {t}probe 1").is_ok());
    let to = Instant::now();
    until("the old primary follows", || {
        owner.info("replication", "role") == "slave"
            && owner.info("replication", "master_link_status") == "up"
    });
    Outage { from, to }
}

#[test]
fn a_crowd_goes_on_when_roles_change_by_hand() {
    let cluster = Cluster::start();
    let ports = ports(&cluster);
    let find: Find<'_> = &|key, trouble| route(&ports, key, trouble);
    let ([history], outages) = contend([brisk(1)], find, || {
        let owner = cluster.owner("{t}");
        let (owner, heir) = (cluster.node(owner), cluster.node(owner + 3));
        until_it_grants(owner, 100);
        let there = change_roles(owner, heir);
        until_it_grants(heir, 100);
        // Two elections for one primary must be this far apart.
        until("the other primaries vote again", || {
            there.to.elapsed() > Duration::from_millis(2 * NODE_TIMEOUT_MS + 500)
        });
        let back = change_roles(heir, owner);
        until_it_grants(owner, 100);
        [there, back]
    });
    eprintln!(
        "{} grants; errors: {:?}",
        history.grants.len(),
        history.errors
    );
    assert_nothing_lost(&history, &outages);
}

#[test]
fn a_crowd_goes_on_when_a_replica_takes_over() {
    let mut cluster = Cluster::start();
    let ports = ports(&cluster);
    let owner = cluster.owner("{t}");
    let heir = owner + 3;
    let find: Find<'_> = &|key, trouble| route(&ports, key, trouble);
    let careful = Plan {
        lease_ms: 600,
        lapses_of_ten: 0,
        keys: vec!["{t}careful".to_owned()],
        ..brisk(1)
    };
    let ([brisk, careful], outage) = contend([brisk(0), careful], find, || {
        until_it_grants(cluster.node(owner), 200);
        let from = Instant::now();
        cluster.node_mut(owner).kill9();
        let heir = cluster.node(heir);
        until("a write succeeds", || heir.call("SET {t}probe 1").is_ok());
        let to = Instant::now();
        until_it_grants(heir, 200);
        Outage { from, to }
    });
    eprintln!(
        "a write after {:?}; {} and {} grants; errors: {:?}",
        outage.to - outage.from,
        brisk.grants.len(),
        careful.grants.len(),
        brisk.errors
    );
    // The brisk crowd did not wait for its replica, so it may have lost its latest grants.
    fences_rise(&brisk.grants).unwrap();
    nobody_stuck(&brisk.waits, &[outage], STUCK).unwrap();
    assert_nothing_lost(&careful, &[outage]);
}
