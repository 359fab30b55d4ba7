//! The cluster's own replies to a waiter, for every shape of key: MOVED, CLUSTERDOWN, and UNBLOCKED
//! on a demotion. The server finds waiters by the slots of the keys that block them, and the slot
//! depends on the braces in a key.
//!
//! Clients whose reply is held back for replicas get the same replies.

use crate::nodes::{moved_to, Cluster, Move};
use support::{until, Client, Expect, Server, LONG};

/// Returns sets of keys. The keys of a set share a slot.
fn odd_keys() -> Vec<Vec<Vec<u8>>> {
    let sets: [&[&[u8]]; 16] = [
        &[b"plain"],
        &[b"{t}x", b"{t}y"],
        &[b"{}x"],
        &[b"{a}{b}", b"{a}", b"x{a}y{z}"],
        &[b"a}b{c"],
        &[b"{{x}", b"p{{x}q"],
        &[b"}{"],
        &[b"{"],
        &[b"}"],
        &[b"{}"],
        &[b"{}{a}"],
        &[b"a}{b}c", b"{b}"],
        &[b"\0{\xff\xfe}\r\n", b"{\xff\xfe}\0"],
        &[b"{\0}", b"\xc3{\0}\x28"],
        &[b"\r\n"],
        &[b"}}{\x80{{\x81}"],
    ];
    let mut sets: Vec<Vec<Vec<u8>>> = sets
        .iter()
        .map(|set| set.iter().map(|key| key.to_vec()).collect())
        .collect();
    sets.push(vec![
        b"x".repeat(5_000),
        [b"{", b"x".repeat(5_000).as_slice(), b"}"].concat(),
    ]);
    sets
}

/// Returns the words of a command: its name, its only key, and the rest.
fn about(name: &str, key: &[u8], rest: &str) -> Vec<Vec<u8>> {
    let mut words = vec![name.as_bytes().to_vec(), key.to_vec()];
    words.extend(rest.split(' ').map(|word| word.as_bytes().to_vec()));
    words
}

/// Makes `h` hold all keys of a set, a client wait for each key, and a client wait for them all.
/// Returns the waiters, the one for all keys last.
#[track_caller]
fn hold_and_wait(server: &Server, keys: &[Vec<u8>]) -> Vec<Client> {
    for key in keys {
        server
            .call(&about("LOCK.ACQUIRE", key, &format!("h {LONG}")))
            .grant();
    }
    let mut waiters: Vec<Client> = keys
        .iter()
        .map(|key| server.waiter(&about("LOCK.WAIT", key, &format!("w {LONG}"))))
        .collect();
    let mut words = vec![b"LOCK.MWAIT".to_vec(), keys.len().to_string().into_bytes()];
    words.extend(keys.iter().cloned());
    // The wait has another token, because for one key it would be the same as LOCK.WAIT's.
    words.push(b"m".to_vec());
    waiters.push(server.waiter(&words));
    waiters
}

#[track_caller]
fn until_nobody_waits(server: &Server) {
    until("no client waits", || {
        server.info("lock", "lock_waiters") == "0"
    });
}

#[test]
fn waiters_are_sent_on_whatever_their_keys_are_called() {
    let cluster = Cluster::of_primaries();
    for keys in odd_keys() {
        let slot = cluster.next_move(&keys[0]);
        let waiters = hold_and_wait(slot.source, &keys);
        slot.begin();
        slot.all_keys();
        slot.end();
        for mut waiter in waiters {
            let error = waiter.recv().error();
            assert_eq!(
                moved_to(&error),
                Some(slot.target.port()),
                "{keys:?}: {error}"
            );
        }
        slot.until_known();
        until_nobody_waits(slot.source);
        // The waits left no key of another kind behind.
        assert_eq!(slot.source.call("DBSIZE").int(), 0, "{keys:?}");
        for key in &keys {
            let release = about("LOCK.RELEASE", key, "h");
            assert_eq!(slot.target.call(&release).int(), 1, "{keys:?}");
        }
        assert_eq!(slot.target.call("DBSIZE").int(), 0, "{keys:?}");
    }
}

/// Places last while their slot may stay. They end when the slot has its new owner, long before
/// their KEEP is over.
#[test]
fn places_are_given_up_with_their_slot() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}x");
    let (source, target) = (slot.source, slot.target);
    source.call(format!("LOCK.ACQUIRE {{t}}x h {LONG}")).grant();
    let places = ["QUEUE {t}x a", "QUEUE {t}x b", "MQUEUE 2 {t}x {t}y c"];
    for (index, place) in places.iter().enumerate() {
        let place = source.call(format!("LOCK.{place} KEEP 600000")).int();
        assert_eq!(place, index as i64 + 1);
    }
    let mut blocked = source.waiter(format!("LOCK.WAIT {{t}}y h {LONG} BLOCK 100"));
    slot.begin();
    slot.all_keys();
    // Meanwhile the server has looked at the waiters again and again.
    blocked.recv().nil();
    let places = source.info("lock", "lock_places");
    assert_eq!(places, "4", "one for each key");
    slot.end();
    slot.until_known();
    until("no place is left", || {
        source.info("lock", "lock_places") == "0"
    });
    assert_eq!(source.info("lock", "lock_lapsed_places"), "0");
    let error = source.call("LOCK.QUEUE {t}x a KEEP 600000").error();
    assert_eq!(moved_to(&error), Some(target.port()), "{error}");
    assert_eq!(target.call("LOCK.QUEUE {t}x a KEEP 600000").int(), 1);
    assert_eq!(target.call("LOCK.RELEASE {t}x h").int(), 1);
    let claimed = target.call("LOCK.QUEUE {t}x a KEEP 600000").grant();
    assert_eq!(claimed.token, "a");
}

#[test]
fn waiters_are_granted_whatever_their_keys_are_called() {
    let cluster = Cluster::of_primaries();
    for keys in odd_keys() {
        let server = cluster.node(cluster.owner(&keys[0]));
        let mut waiters = hold_and_wait(server, &keys);
        for key in &keys {
            server.call(&about("LOCK.RELEASE", key, "h")).int();
        }
        let mut all = waiters.pop().expect("the waiter for all keys");
        for (key, waiter) in keys.iter().zip(&mut waiters) {
            assert_eq!(waiter.recv().grant().token, "w", "{keys:?}");
            all.expect_silence();
            server.call(&about("LOCK.RELEASE", key, "w")).int();
        }
        assert_eq!(all.recv().grant().token, "m", "{keys:?}");
        server.call("FLUSHALL").okay();
        until_nobody_waits(server);
    }
}

#[test]
fn waiters_of_a_cluster_that_is_down_are_told_whatever_their_keys_are_called() {
    for here in 0..3 {
        let mut cluster = Cluster::of_primaries();
        let mut waiters = Vec::new();
        for keys in odd_keys() {
            if cluster.owner(&keys[0]) == here {
                waiters.extend(hold_and_wait(cluster.node(here), &keys));
            }
        }
        cluster.node_mut((here + 1) % 3).kill9();
        for mut waiter in waiters {
            let error = waiter.recv().error();
            assert!(error.starts_with("CLUSTERDOWN "), "{error}");
        }
        until_nobody_waits(cluster.node(here));
    }
}

#[test]
fn waiters_at_a_demoted_node_are_told_whatever_their_keys_are_called() {
    let cluster = Cluster::start();
    for old in 0..3 {
        let (old, new) = (cluster.node(old), cluster.node(old + 3));
        let mut waiters = Vec::new();
        for keys in odd_keys() {
            if std::ptr::eq(cluster.node(cluster.owner(&keys[0])), old) {
                waiters.extend(hold_and_wait(old, &keys));
            }
        }
        new.until_in_step(old);
        new.call("CLUSTER FAILOVER").okay();
        for mut waiter in waiters {
            let error = waiter.recv().error();
            let told = error.starts_with("MOVED ") || error.starts_with("UNBLOCKED ");
            assert!(told, "{error}");
        }
        until("the old primary follows", || {
            old.info("replication", "role") == "slave"
        });
        until_nobody_waits(old);
    }
}

/// The replies about keys of the slot of `{t}` that are held back by a replica that hangs.
struct HeldBack<'a> {
    slot: Move<'a>,
    replica: &'a Server,
    clients: Vec<Client>,
}

impl HeldBack<'_> {
    /// Makes the locks, prepares the move of their slot, and has the replies held back at its source.
    #[track_caller]
    fn beside(cluster: &Cluster, prepare: impl FnOnce(Move<'_>)) -> HeldBack<'_> {
        let (slot, replica) = (cluster.next_move("{t}"), cluster.owner("{t}") + 3);
        let (source, replica) = (slot.source, cluster.node(replica));
        for key in ["x a", "m b", "n b", "e a", "h a"] {
            source
                .call(format!("LOCK.ACQUIRE {{t}}{key} {LONG}"))
                .grant();
        }
        prepare(slot);
        source.until_acknowledged_by(1);
        replica.freeze();
        let commands = [
            "LOCK.ACQUIRE {t}x a",
            "LOCK.ACQUIRE {t}x a",
            "LOCK.MACQUIRE 2 {t}m {t}n b",
            "LOCK.EXTEND {t}e a",
            "LOCK.WAIT {t}h b",
        ];
        let clients = commands.map(|command| {
            let mut client = source.client();
            client.send(format!("{command} {LONG} REPLICAS 1 WITHIN 600000"));
            client
        });
        source.until_waiters("{t}h", 1);
        assert_eq!(source.call("LOCK.RELEASE {t}h a").int(), 1);
        until("all replies are held back", || {
            source.info("lock", "lock_replica_waits") == commands.len().to_string()
        });
        HeldBack {
            slot,
            replica,
            clients: clients.into(),
        }
    }

    /// Asserts that the clients are sent to the target, and that nothing of them is left at the
    /// source. Then the replica goes on.
    #[track_caller]
    fn assert_sent_on(self) {
        for mut client in self.clients {
            let error = client.recv().error();
            assert_eq!(moved_to(&error), Some(self.slot.target.port()), "{error}");
        }
        let source = self.slot.source;
        until("no reply is held back", || {
            source.info("lock", "lock_replica_waits") == "0"
        });
        assert_eq!(source.info("lock", "lock_not_acknowledged"), "0");
        assert_eq!(source.info("lock", "lock_acknowledged"), "0");
        self.replica.thaw();
    }
}

#[test]
fn replies_that_are_held_back_move_with_their_slot() {
    let cluster = Cluster::start();
    let held_back = HeldBack::beside(&cluster, |_| {});
    let slot = held_back.slot;
    if let Err(error) = slot.begin_as_a_whole() {
        assert!(error.starts_with("ERR unknown subcommand"), "{error}");
        return;
    }
    held_back.assert_sent_on();
    slot.until_known();
    for (key, token) in [("x", "a"), ("m", "b"), ("n", "b"), ("e", "a"), ("h", "b")] {
        let check = format!("LOCK.CHECK {{t}}{key} {token}");
        assert_ne!(slot.target.call(check).int(), 0, "{key}");
    }
}

#[test]
fn replies_that_are_held_back_are_sent_on_when_another_node_takes_their_slot() {
    let cluster = Cluster::start();
    let held_back = HeldBack::beside(&cluster, |_| {});
    held_back.slot.take_over();
    held_back.assert_sent_on();
}

/// The slot is still here when a key goes.
#[test]
fn replies_that_are_held_back_are_lost_with_a_key_that_moves_alone() {
    let cluster = Cluster::start();
    let mut held_back = HeldBack::beside(&cluster, |slot| slot.begin());
    let assert_lost = |client: &mut Client| {
        let error = client.recv().error();
        assert!(error.starts_with("NOREPLICAS the grant ended"), "{error}");
    };
    held_back.slot.key("{t}x");
    held_back.clients[..2].iter_mut().for_each(assert_lost);
    held_back.clients[2..]
        .iter_mut()
        .for_each(Client::expect_silence);
    held_back.slot.all_keys();
    held_back.clients[2..].iter_mut().for_each(assert_lost);
    held_back.replica.thaw();
}
