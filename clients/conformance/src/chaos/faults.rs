//! Faults of servers, connections and clients, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::RngExt;

use super::seat::{Pause, Seat};
use crate::bad_days::faults::{self as outages, Outage};
use crate::servers::Kind;
use crate::world::World;

/// The longest time of a fault, and of the quiet after it, in ms.
const LONGEST_MS: u64 = 4000;
const QUIET_MS: u64 = 2500;

/// A fault that may happen.
struct Fault {
    name: &'static str,
    kinds: &'static [Kind],
    what: What,
}

enum What {
    /// An outage of the server of the keys, which begins and ends.
    Outage(&'static Outage),
    /// A change of the server or of its connections, which ends by itself or after a time.
    Change(fn(&mut World, Duration)),
    /// A failover, after which the promises of a primary begin anew.
    Failover(fn(&mut World, Duration)),
    /// A fault of one client's process.
    Client(fn(&Seat, Duration)),
}

use Kind::{Cluster, Sentinel, Standalone};
const ALL: &[Kind] = &[Standalone, Cluster, Sentinel];
/// Kinds without a Sentinel, which would act on a silent server. Their clients connect to relays.
const RELAYED: &[Kind] = &[Standalone, Cluster];

const FAULTS: [Fault; 21] = [
    fault(
        "killed and restarted",
        RELAYED,
        What::Outage(&outages::KILLED),
    ),
    fault("stopped", RELAYED, What::Outage(&outages::STOPPED)),
    fault("vanished", RELAYED, What::Outage(&outages::VANISHED)),
    fault("hanging", RELAYED, What::Outage(&outages::HANGING)),
    fault("connections reset", RELAYED, What::Outage(&outages::RESET)),
    fault("out of memory", ALL, What::Outage(&outages::OUT_OF_MEMORY)),
    fault("disk full", RELAYED, What::Outage(&outages::CANT_SAVE)),
    fault(
        "too few replicas",
        RELAYED,
        What::Outage(&outages::TOO_FEW_REPLICAS),
    ),
    fault("script without end", RELAYED, What::Outage(&outages::BUSY)),
    fault(
        "demoted and promoted",
        &[Standalone],
        What::Outage(&outages::READ_ONLY),
    ),
    fault(
        "slot without a node",
        &[Cluster],
        What::Outage(&outages::CLUSTER_DOWN),
    ),
    fault("slot moved", &[Cluster], What::Change(move_slot)),
    fault(
        "connections killed",
        ALL,
        What::Change(|world, _| world.servers.kill_connections()),
    ),
    fault("commands held back", RELAYED, What::Change(hold_back)),
    fault("replies late", RELAYED, What::Change(delay)),
    fault("writes paused", ALL, What::Change(pause_writes)),
    fault(
        "append-only file rewritten",
        ALL,
        What::Change(|world, _| call(world, "BGREWRITEAOF")),
    ),
    fault(
        "data reloaded",
        ALL,
        What::Change(|world, _| call(world, "DEBUG RELOAD")),
    ),
    fault(
        "failover",
        &[Sentinel],
        What::Failover(|world, _| world.servers.fail_over()),
    ),
    fault("primary superseded", &[Sentinel], What::Failover(supersede)),
    fault("client stopped", ALL, What::Client(Seat::pause)),
];

const fn fault(name: &'static str, kinds: &'static [Kind], what: What) -> Fault {
    Fault { name, kinds, what }
}

/// The faults that were made.
#[derive(Default)]
pub struct Faults {
    pub counts: BTreeMap<&'static str, usize>,
    /// The times from the beginning of a failover until the old primary was a replica.
    pub failovers: Vec<Pause>,
    /// The times in which connections may have been cut.
    pub cuts: Vec<Pause>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(it, count)| format!("{it} {count}"))
            .collect();
        writeln!(f, "  faults: {}", counts.join(", "))
    }
}

/// Makes faults until the end.
pub fn make(world: &mut World, seats: &[Seat], mut random: SmallRng, end: Instant) -> Faults {
    let mut faults = Faults::default();
    let kind = world.servers.kind;
    let possible: Vec<&Fault> = FAULTS
        .iter()
        .filter(|it| it.kinds.contains(&kind))
        .collect();
    thread::sleep(Duration::from_millis(QUIET_MS));
    while Instant::now() < end {
        let fault = possible.choose(&mut random).expect("a fault");
        let time = Duration::from_millis(random.random_range(50..LONGEST_MS));
        let seat = seats.choose(&mut random).expect("a client");
        *faults.counts.entry(fault.name).or_default() += 1;
        let from = Instant::now();
        match &fault.what {
            What::Outage(outage) => {
                (outage.begin)(world);
                thread::sleep(time);
                (outage.end)(world);
            }
            What::Change(change) => change(world, time),
            What::Failover(failover) => {
                failover(world, time);
                world.servers.until_replica_is_online();
                faults.failovers.push((from, Instant::now()));
            }
            What::Client(_) if random.random_ratio(1, 4) => seat.kill(),
            What::Client(fault) => fault(seat, time),
        }
        if !matches!(fault.what, What::Client(_)) {
            faults.cuts.push((from, Instant::now()));
        }
        thread::sleep(Duration::from_millis(random.random_range(0..QUIET_MS)));
    }
    faults
}

fn call(world: &mut World, command: &str) {
    // The server may still be at the one before.
    drop(world.servers.try_call(command));
}

fn move_slot(world: &mut World, time: Duration) {
    world.servers.begin_move();
    thread::sleep(time / 2);
    world.servers.move_keys();
    thread::sleep(time / 2);
    world.servers.move_keys();
    world.servers.end_move(&[]);
}

fn hold_back(world: &mut World, time: Duration) {
    world.servers.relay().hold_back();
    thread::sleep(time);
    world.servers.relay().pass();
}

fn delay(world: &mut World, time: Duration) {
    world.servers.relay().delay_replies(time / 10);
    thread::sleep(time);
    world.servers.relay().delay_replies(Duration::ZERO);
}

fn pause_writes(world: &mut World, time: Duration) {
    call(world, &format!("CLIENT PAUSE {} WRITE", time.as_millis()));
    thread::sleep(time);
}

fn supersede(world: &mut World, time: Duration) {
    world.servers.supersede();
    thread::sleep(time / 4);
    world.servers.bring_back_superseded();
    world.servers.until_superseded_follows();
}
