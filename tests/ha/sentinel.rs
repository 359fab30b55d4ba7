//! Failover by three Sentinels after the primary was killed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::Value;

use crate::contenders::{contend, grants, Plan, Route};
use support::history::{self, Outage};
use support::{assert_same_data, eventually, unix_time_ms, until, Client, Expect, Server, LONG};

/// The name under which the Sentinels know the primary.
const GROUP: &str = "locks";

/// Time after which a Sentinel takes a silent server for dead, in ms. On a busy machine a server
/// may be silent for a large part of it.
const DOWN_AFTER_MS: u32 = 2_000;

/// Two replicas, and three Sentinels that watch the replicas and their primary.
pub struct Peers {
    replicas: [Server; 2],
    sentinels: [Server; 3],
}

/// Starts a primary with its peers, and waits until they know each other.
#[track_caller]
pub fn group() -> (Server, Peers) {
    // The primary's file has every effect that it answered, even if it is killed a moment later.
    let primary = Server::builder()
        .config("appendonly yes")
        .config("appendfsync no")
        .start();
    let replicas = [(); 2].map(|()| Server::start());
    for replica in &replicas {
        replica.replica_of(&primary);
    }
    primary.until_acknowledged_by(replicas.len());
    let sentinels = [(); 3].map(|()| sentinel(primary.port()));
    for sentinel in &sentinels {
        until("the Sentinel knows the others and both replicas", || {
            knows_all(sentinel)
        });
    }
    let peers = Peers {
        replicas,
        sentinels,
    };
    (primary, peers)
}

impl Peers {
    #[track_caller]
    fn until_in_step(&self, primary: &Server) {
        for replica in &self.replicas {
            replica.until_in_step(primary);
        }
    }

    /// Stops the replicas and cuts their links. Later grants of the primary then do not even reach
    /// a replica's socket.
    #[track_caller]
    fn cut_off(&self, primary: &Server) {
        for replica in &self.replicas {
            replica.freeze();
        }
        primary.call("CLIENT KILL TYPE replica").int();
        until("the links are cut", || {
            primary.info("replication", "connected_slaves") == "0"
        });
    }

    #[track_caller]
    fn thaw(&self) {
        for replica in &self.replicas {
            replica.thaw();
        }
    }

    /// Returns the route to the primary that a Sentinel names, if that server accepts writes.
    fn route(&self) -> Option<Route> {
        let mut ports = self.sentinels.iter().filter_map(address);
        let port = ports.find(|port| takes_writes(*port))?;
        Some(Route {
            port,
            asking: false,
        })
    }

    /// Waits until a replica is promoted, and returns it. The primary must be dead.
    #[track_caller]
    pub fn promoted(&self) -> &Server {
        let promoted = eventually("a replica is promoted", || {
            let route = self.route()?;
            self.replicas.iter().find(|it| it.port() == route.port)
        });
        // A Sentinel closes all client connections of a server whose role it changes.
        promoted.reconnect();
        promoted
    }
}

fn sentinel(port: u16) -> Server {
    let sentinel = Server::builder()
        .without_module()
        .argument("--sentinel")
        .config(&format!("sentinel monitor {GROUP} 127.0.0.1 {port} 2"))
        .config(&format!(
            "sentinel down-after-milliseconds {GROUP} {DOWN_AFTER_MS}"
        ))
        .config(&format!("sentinel failover-timeout {GROUP} 2000"))
        .start();
    // Sentinels talk to each other more often than by default, so that a test takes seconds.
    for period in ["info-period 300", "publish-period 200", "ask-period 200"] {
        sentinel.call(format!("SENTINEL DEBUG {period}")).okay();
    }
    sentinel
}

#[track_caller]
fn pairs(value: Value) -> HashMap<String, String> {
    let texts = |items: Vec<Value>| -> Vec<String> {
        items.into_iter().map(|item| Ok(item).text()).collect()
    };
    let texts = match value {
        Value::Map(pairs) => texts(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()),
        other => texts(Ok(other).list()),
    };
    let pairs = texts.chunks(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

fn knows_all(sentinel: &Server) -> bool {
    let master = pairs(sentinel.call(format!("SENTINEL MASTER {GROUP}")).value());
    let replicas = sentinel.call(format!("SENTINEL REPLICAS {GROUP}")).list();
    let others = sentinel.call(format!("SENTINEL SENTINELS {GROUP}")).list();
    let up = |value: &Value, flags: &str| {
        let fields = pairs(value.clone());
        fields["flags"] == flags
            && fields
                .get("master-link-status")
                .is_none_or(|link| link == "ok")
    };
    master["flags"] == "master"
        && replicas.len() == 2
        && replicas.iter().all(|replica| up(replica, "slave"))
        && others.len() == 2
        && others.iter().all(|other| up(other, "sentinel"))
}

/// Returns the port of the primary that a Sentinel gives to clients.
fn address(sentinel: &Server) -> Option<u16> {
    let mut client = Client::try_connect(sentinel.port()).ok()?;
    let command = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {GROUP}");
    let address = client.try_call(command).ok()?;
    let Value::Array(address) = address else {
        return None;
    };
    let port = address.into_iter().nth(1)?;
    Ok(port).text().parse().ok()
}

/// Returns true if the server says that it is a primary. A Sentinel may still name a server that
/// was just demoted or killed.
fn takes_writes(port: u16) -> bool {
    role(port).is_some_and(|role| role.first() == Some(&text("master")))
}

fn role(port: u16) -> Option<Vec<Value>> {
    match Client::try_connect(port).ok()?.try_call("ROLE") {
        Ok(Value::Array(role)) => Some(role),
        _ => None,
    }
}

// ---- what was replicated

/// Returns a lock's mode, and each holder's token, fence, holds and limit.
#[track_caller]
fn told(server: &Server, key: &str) -> (String, Vec<(String, i64, i64, i64)>) {
    let info = server
        .lock_info(key)
        .unwrap_or_else(|| panic!("{key} is held"));
    let holders = info.holders.iter().map(|holder| {
        (
            holder.text("token"),
            holder.int("fence"),
            holder.int("holds"),
            holder.int("limit"),
        )
    });
    (info.mode, holders.collect())
}

/// Takes locks of every kind with leases longer than a failover. Returns the highest fence.
#[track_caller]
fn lock_everything(primary: &Server) -> i64 {
    let commands = [
        "LOCK.ACQUIRE long a PX 600000",
        "LOCK.ACQUIRE short b PX 14000",
        "LOCK.ACQUIRE deep d PX 600000 REENTRANT",
        "LOCK.ACQUIRE deep d PX 600000 REENTRANT",
        "LOCK.ACQUIRE deep d PX 600000 REENTRANT",
        "LOCK.ACQUIRE pool e1 PX 13000 SHARED LIMIT 2",
        "LOCK.ACQUIRE pool e2 PX 600000 SHARED LIMIT 2",
        "LOCK.MACQUIRE 2 one two f PX 600000",
    ];
    let fences = commands.map(|command| primary.call(command).grant().fence);
    fences.into_iter().max().expect("grants")
}

/// Each key of `lock_everything` with its last holder, and a command that repeats that grant.
const HELD: [(&str, &str, &str); 6] = [
    ("short", "b", "LOCK.WAIT short b PX 600000"),
    ("long", "a", "LOCK.ACQUIRE long a PX 600000"),
    ("deep", "d", "LOCK.ACQUIRE deep d PX 600000"),
    ("pool", "e2", "LOCK.WAIT pool e2 PX 600000 SHARED LIMIT 2"),
    ("one", "f", "LOCK.MACQUIRE 2 one two f PX 600000"),
    ("two", "f", "LOCK.MWAIT 2 two one f PX 600000"),
];

/// Commands that wait, each with its key.
const WAITS: [(&str, &str); 5] = [
    ("long", "LOCK.WAIT long w1 PX 600000"),
    ("short", "LOCK.WAIT short w2 PX 50"),
    ("short", "LOCK.WAIT short w3 PX 600000"),
    ("pool", "LOCK.WAIT pool w4 PX 600000 SHARED LIMIT 2"),
    ("soon", "LOCK.WAIT soon w5 PX 600000"),
];

#[test]
fn what_was_replicated_outlives_its_primary() {
    let (mut primary, peers) = group();
    let mut highest = lock_everything(&primary);
    let deadlines = HELD.map(|(key, ..)| primary.call(&["PEXPIRETIME", key]).int());
    let pool_until_ms = unix_time_ms() + primary.call("LOCK.CHECK pool e1").int();
    let before = HELD.map(|(key, ..)| told(&primary, key));
    let mut waiters: Vec<Client> = Vec::new();
    for (key, command) in WAITS {
        if key == "soon" {
            let grant = primary.call(format!("LOCK.ACQUIRE soon c {LONG}")).grant();
            highest = grant.fence;
        }
        waiters.push(primary.waiter(command));
    }
    // This lease ends while no server is a primary.
    assert_eq!(primary.call("LOCK.EXTEND soon c PX 1500").int(), 1);
    peers.until_in_step(&primary);

    let killed = Instant::now();
    primary.kill9();
    for waiter in &mut waiters {
        waiter.expect_close();
    }
    let promoted = peers.promoted();
    eprintln!("killed; a new primary after {:?}", killed.elapsed());

    // The locks are still held, with the same deadlines and fences.
    assert_eq!(HELD.map(|(key, ..)| told(promoted, key)), before);
    for ((key, token, _), deadline_ms) in HELD.into_iter().zip(deadlines) {
        assert_eq!(promoted.call(&["PEXPIRETIME", key]).int(), deadline_ms);
        let asked_ms = unix_time_ms();
        let left_ms = promoted.call(&["LOCK.CHECK", key, token]).int();
        let ends_ms = asked_ms + left_ms..=unix_time_ms() + left_ms;
        assert!(ends_ms.contains(&deadline_ms), "{key}: {ends_ms:?}");
    }
    promoted.call("LOCK.ACQUIRE long stranger").nil();
    for ((_, token, repeat), (_, holders)) in HELD.iter().zip(&before).skip(1) {
        let held = holders.iter().find(|holder| holder.0 == *token).unwrap();
        assert_eq!(promoted.call(*repeat).grant().fence, held.1, "{repeat}");
    }
    assert_waiters_are_served(promoted, highest, pool_until_ms, deadlines[0]);

    // The old primary returns with its own data, and replaces it by the new primary's.
    primary.restart();
    assert!(primary.call("LOCK.CHECK long a").int() > 0);
    for server in peers.replicas.iter().chain([&primary]) {
        if server.port() != promoted.port() {
            until_follows(server, promoted);
        }
    }
    let servers = peers.replicas.iter().chain([&primary]);
    let others: Vec<&Server> = servers
        .filter(|server| server.port() != promoted.port())
        .collect();
    assert_same_data(promoted, &others);
}

#[track_caller]
fn until_follows(server: &Server, primary: &Server) {
    let primary_port = i64::from(primary.port());
    until("the server follows the new primary", || {
        let role = role(server.port()).unwrap_or_default();
        let [kind, _, port, state, _] = role.as_slice() else {
            return false;
        };
        (kind, port, state)
            == (
                &text("slave"),
                &Value::Int(primary_port),
                &text("connected"),
            )
    });
    server.reconnect();
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Repeats the waits of the old primary's waiters, and asserts that they are granted when the
/// leases end that the old primary granted.
#[track_caller]
fn assert_waiters_are_served(
    promoted: &Server,
    highest: i64,
    pool_until_ms: i64,
    short_until_ms: i64,
) {
    let [lasting @ .., (_, soon)] = WAITS;
    let mut last = promoted.call(soon).grant().fence;
    assert!(last > highest, "{last} after {highest}");
    let waiters = lasting.map(|(key, command)| {
        let waiting = promoted.waiters(key);
        let waiter = promoted.waiter(command);
        assert_eq!(promoted.waiters(key), waiting + 1, "{key}");
        waiter
    });
    let [mut long, short, next, pool] = waiters;
    for (mut waiter, since_ms) in [
        (pool, pool_until_ms),
        (short, short_until_ms),
        (next, short_until_ms + 50),
    ] {
        let fence = waiter.recv().grant().fence;
        let late_ms = unix_time_ms() - since_ms;
        assert!((-1..1_000).contains(&late_ms), "{late_ms} ms after the end");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    long.expect_silence();
    assert_eq!(promoted.call("LOCK.RELEASE long a").int(), 1);
    let fence = long.recv().grant().fence;
    assert!(fence > last, "{fence} after {last}");
}

// ---- what was lost

#[test]
fn a_lock_that_was_lost_is_given_again_with_a_greater_fence() {
    let (mut primary, peers) = group();
    let first = primary
        .call("LOCK.ACQUIRE handed a PX 600000")
        .grant()
        .fence;
    let mut waiter = primary.waiter("LOCK.WAIT handed b PX 600000");
    let mut session = primary.client();
    peers.until_in_step(&primary);
    peers.cut_off(&primary);
    assert_eq!(primary.call("LOCK.RELEASE handed a").int(), 1);
    let mut last = waiter.recv().grant().fence;
    assert!(last > first);
    for number in 0..200 {
        let command = format!("LOCK.ACQUIRE lost{number} a PX 600000");
        last = last.max(primary.call(command).grant().fence);
    }
    let command = "LOCK.ACQUIRE tied a PX 600000 SESSION";
    last = last.max(session.call(command).grant().fence);
    primary.kill9();
    peers.thaw();

    let promoted = peers.promoted();
    assert_eq!(promoted.call("DBSIZE").int(), 1, "lost grants stay lost");
    for (key, token) in [("lost0", "a"), ("tied", "a"), ("handed", "b")] {
        let held = promoted.call(&["LOCK.CHECK", key, token]);
        assert_eq!(held.int(), 0, "{key}");
    }
    // The release was lost too, so its client has to repeat it or the lease has to end.
    assert!(promoted.call("LOCK.CHECK handed a").int() > 0);
    assert_eq!(promoted.call("LOCK.RELEASE handed a").int(), 1);
    for command in [
        "LOCK.WAIT handed b PX 600000",
        "LOCK.ACQUIRE lost0 z PX 600000",
        "LOCK.MACQUIRE 2 lost1 lost2 z PX 600000",
        "LOCK.ACQUIRE tied z PX 600000 SHARED",
    ] {
        let fence = promoted.call(command).grant().fence;
        assert!(fence > last, "{command}: {fence} after {last}");
        last = fence;
    }
}

// ---- crowds

const STEADY: [&str; 4] = ["steady0", "steady1", "steady2", "steady3"];

#[test]
fn a_crowd_goes_on_at_the_new_primary() {
    let (mut primary, peers) = group();
    let keys = |keys: [&str; 4]| keys.map(str::to_owned).to_vec();
    let brisk = Plan {
        keys: keys(["brisk0", "brisk1", "brisk2", "brisk3"]),
        contenders: 3,
        lease_ms: 800,
        hold_ms: 1..15,
        lapses_of_ten: 0,
        replicas: 0,
    };
    let steady = Plan {
        keys: keys(STEADY),
        contenders: 3,
        lease_ms: 12_000,
        hold_ms: 9_000..10_000,
        lapses_of_ten: 0,
        // A grant at all replicas is also at the replica that will be promoted.
        replicas: 2,
    };
    let find = |_: &str, _: Option<&str>| peers.route();
    let ([brisk, steady], outage) = contend([brisk, steady], &find, || {
        until("the crowds are at work", || grants(&primary) > 300);
        let held = STEADY.map(|key| fence(&primary, key).expect("a holder"));
        let before = grants(&primary);
        peers.cut_off(&primary);
        until("the primary has grants to lose", || {
            grants(&primary) > before + 50
        });
        let from = Instant::now();
        primary.kill9();
        peers.thaw();
        let promoted = peers.promoted();
        until("a write succeeds", || promoted.call("SET probe 1").is_ok());
        let to = Instant::now();
        until("both crowds have gone on", || {
            let later = STEADY.map(|key| fence(promoted, key));
            grants(promoted) > 300 && held.iter().zip(later).all(|(held, it)| it > Some(*held))
        });
        Outage { from, to }
    });
    let through = |from, to| from < outage.from && to > outage.to;
    let kept = steady.holds.iter().filter(|it| through(it.from, it.to));
    let kept = kept.count();
    eprintln!(
        "killed; a write after {:?}; {} and {} grants; {kept} holds went on; errors: {:?}",
        outage.to - outage.from,
        brisk.grants.len(),
        steady.grants.len(),
        brisk.errors,
    );
    for history in [&brisk, &steady] {
        history::fences_rise(&history.grants).unwrap();
    }
    // The brisk crowd did not wait for the replicas, so it has lost its latest grants.
    history::no_writer_overlaps(&steady.holds).unwrap();
    assert!(steady.lost.is_empty(), "{:#?}", steady.lost);
    history::nobody_stuck(&brisk.waits, &[outage], Duration::from_secs(2)).unwrap();
    assert!(kept > 0, "no client held a lock throughout the failover");
}

fn fence(server: &Server, key: &str) -> Option<i64> {
    Some(server.lock_info(key)?.holders.first()?.int("fence"))
}
