//! Faults of servers, connections and clients, one after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::RngExt;

use super::scope::{Holds, Limit, Sets, A_CUT, A_FAILOVER, LEASE};
use super::seat::Seat;
use crate::bad_days::faults::{self as outages, Outage};
use crate::servers::{Kind, Servers};
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
    /// A change that can lose grants, or lets two primaries grant for a while.
    Failover(fn(&mut World, Duration)),
    /// A fault of one client's process.
    Client(fn(&Seat, Duration)),
    /// A setting of clocks by a number of ms between these two.
    Clock(fn(&Servers, i64), i64, i64),
}

use Kind::{Cluster, Masters, Replicas, Sentinel, Standalone};
const ALL: &[Kind] = &[Standalone, Cluster, Sentinel, Replicas, Masters];
/// Kinds without a Sentinel, which would act on a silent server. Their clients connect to relays.
const RELAYED: &[Kind] = &[Standalone, Cluster, Replicas, Masters];
/// Kinds with one primary and one clock, which may be set back.
const ONE_CLOCK: &[Kind] = &[Standalone, Replicas];
/// Kinds with several primaries, or without data that a successor has. Fences can fall there after a
/// clock was set back, so it is only set forward.
const FORWARD_ONLY: &[Kind] = &[Cluster, Sentinel];

/// The most that clocks are set forward within a lease, in ms, and the library's margin still covers it.
const A_LITTLE_MS: i64 = Sets::COVERED_MS;
/// A time that is longer than the margin, and shorter than the timeout of a cluster's nodes, in ms.
const SOME_MS: i64 = 3000;
/// A time that is longer than the lease, in ms.
const FAR_MS: i64 = 10_000;

const FAULTS: [Fault; 44] = [
    fault(
        "killed and restarted",
        RELAYED,
        What::Outage(&outages::KILLED),
    ),
    fault(
        "killed with everysec",
        &[Cluster],
        What::Failover(kill_with_everysec),
    ),
    fault("stopped", RELAYED, What::Outage(&outages::STOPPED)),
    fault("vanished", RELAYED, What::Outage(&outages::VANISHED)),
    fault("hanging", RELAYED, What::Outage(&outages::HANGING)),
    fault("connections reset", RELAYED, What::Outage(&outages::RESET)),
    fault("out of memory", ALL, What::Outage(&outages::OUT_OF_MEMORY)),
    fault("can't save", RELAYED, What::Outage(&outages::CANT_SAVE)),
    fault("disk full", RELAYED, What::Outage(&outages::DISK_FULL)),
    fault(
        "disk full with everysec",
        RELAYED,
        What::Outage(&outages::DISK_FULL_EVERYSEC),
    ),
    fault(
        "too few replicas",
        &[Standalone, Masters],
        What::Outage(&outages::TOO_FEW_REPLICAS),
    ),
    fault("script without end", RELAYED, What::Outage(&outages::BUSY)),
    fault(
        "demoted and promoted",
        &[Standalone, Replicas, Masters],
        What::Outage(&outages::READ_ONLY),
    ),
    fault(
        "slot without a node",
        &[Cluster],
        What::Outage(&outages::CLUSTER_DOWN),
    ),
    fault("slot moved", &[Cluster], What::Change(move_slot)),
    fault(MOVED_AS_A_WHOLE, &[Cluster], What::Change(move_as_a_whole)),
    fault(
        "connections killed",
        ALL,
        What::Change(|world, _| world.servers.kill_connections()),
    ),
    fault("commands held back", RELAYED, What::Change(hold_back)),
    fault("commands lost", RELAYED, What::Change(lose_commands)),
    fault("replies lost", RELAYED, What::Change(lose_replies)),
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
    fault("defragmented", ALL, What::Change(defragment)),
    fault(
        "replication cut",
        &[Replicas],
        What::Change(|world, time| world.servers.cut_replication(time)),
    ),
    fault(
        "handed over by REPLICAOF",
        &[Replicas],
        What::Change(|world, _| world.servers.hand_over()),
    ),
    fault(
        "FAILOVER",
        &[Replicas],
        What::Change(|world, _| world.servers.fail_over_by_command("TIMEOUT 10000")),
    ),
    fault(
        "FAILOVER FORCE",
        &[Replicas],
        What::Failover(|world, _| world.servers.fail_over_by_command("FORCE TIMEOUT 1")),
    ),
    fault(
        "killed and replaced",
        &[Replicas],
        What::Failover(|world, _| world.servers.replace_killed()),
    ),
    fault(
        "isolated and replaced",
        &[Replicas],
        What::Failover(|world, time| world.servers.replace_isolated(time)),
    ),
    fault(
        NODE_FAILOVER,
        &[Cluster],
        What::Change(|world, _| world.servers.fail_over_node("")),
    ),
    fault(
        "CLUSTER FAILOVER FORCE",
        &[Cluster],
        What::Failover(|world, _| world.servers.fail_over_node(" FORCE")),
    ),
    fault(
        "CLUSTER FAILOVER TAKEOVER",
        &[Cluster],
        What::Failover(|world, _| world.servers.fail_over_node(" TAKEOVER")),
    ),
    fault("failover", &[Sentinel], What::Failover(fail_over)),
    fault("primary superseded", &[Sentinel], What::Failover(supersede)),
    fault(
        "data lost, and away for a lease",
        &[Masters],
        What::Change(|world, _| world.servers.forget(LEASE)),
    ),
    fault(
        "clocks set forward a little",
        &[Standalone, Cluster, Sentinel, Replicas],
        What::Clock(Servers::set_clocks, 1, A_LITTLE_MS),
    ),
    fault(
        "clocks set forward",
        FORWARD_ONLY,
        What::Clock(Servers::set_clocks, A_LITTLE_MS, SOME_MS),
    ),
    fault(
        "clock set far forward",
        ONE_CLOCK,
        What::Clock(Servers::set_clocks, A_LITTLE_MS, FAR_MS),
    ),
    fault(
        "clock set back",
        ONE_CLOCK,
        What::Clock(Servers::set_clocks, -FAR_MS, -1),
    ),
    fault(
        "a master's clock set a little",
        &[Masters],
        What::Clock(Servers::set_clock, -A_LITTLE_MS, A_LITTLE_MS),
    ),
    fault(
        "a master's clock set far",
        &[Masters],
        What::Clock(Servers::set_clock, -FAR_MS, FAR_MS),
    ),
    fault("client stopped", ALL, What::Client(Seat::pause)),
];

const fn fault(name: &'static str, kinds: &'static [Kind], what: What) -> Fault {
    Fault { name, kinds, what }
}

const MOVED_AS_A_WHOLE: &str = "slot moved as a whole";
const FULL: &str = "disk full";
const NODE_FAILOVER: &str = "CLUSTER FAILOVER";

/// The faults that were made.
#[derive(Default)]
pub struct Faults {
    counts: BTreeMap<&'static str, usize>,
    /// The ends of the promises' scope.
    pub limits: Vec<Limit>,
    sets: Sets,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(it, count)| format!("{it} {count}"))
            .collect();
        let all: usize = self.counts.values().sum();
        writeln!(f, "  {all} faults: {}", counts.join(", "))
    }
}

impl Faults {
    fn count(&mut self, fault: &Fault) {
        *self.counts.entry(fault.name).or_default() += 1;
    }

    /// Returns true if a known defect of Valkey would let a server crash: replicas do after failovers
    /// between moves of slots as a whole.
    fn meets_a_known_defect(&self, fault: &Fault, world: &World) -> bool {
        let has = |beginning: &str| self.counts.keys().any(|it| it.starts_with(beginning));
        let both = fault.name == MOVED_AS_A_WHOLE && has(NODE_FAILOVER)
            || fault.name.starts_with(NODE_FAILOVER) && has(MOVED_AS_A_WHOLE);
        both && world.setting.server_name.starts_with("Valkey")
    }

    fn limit(&mut self, reason: &'static str, of: Holds, from: Instant) {
        let time = (from, Instant::now());
        self.limits.push(Limit { reason, of, time });
    }

    /// Makes a fault.
    fn make(
        &mut self,
        fault: &Fault,
        world: &mut World,
        seat: &Seat,
        (time, random): (Duration, &mut SmallRng),
    ) {
        self.count(fault);
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
                self.limit(A_FAILOVER, Holds::Unreplicated, from);
            }
            What::Clock(set, least, most) => {
                let by_ms = random.random_range(*least..=*most);
                set(&world.servers, by_ms);
                self.limits.extend(self.sets.add(by_ms, from));
                return;
            }
            What::Client(_) if random.random_ratio(1, 4) => return seat.kill(),
            What::Client(fault) => return fault(seat, time),
        }
        self.limit(A_CUT, Holds::Sessions, from);
    }

    /// Makes an outage of one master, and of another one within it.
    fn make_two(&mut self, faults: [&Fault; 2], world: &mut World, time: Duration, master: usize) {
        let [What::Outage(outer), What::Outage(inner)] = faults.map(|it| &it.what) else {
            return;
        };
        faults.into_iter().for_each(|it| self.count(it));
        (outer.begin)(world);
        world.servers.choose_master(master + 1);
        (inner.begin)(world);
        thread::sleep(time);
        (inner.end)(world);
        world.servers.choose_master(master);
        (outer.end)(world);
    }
}

/// Makes faults until the end.
pub fn make(world: &mut World, seats: &[Seat], mut random: SmallRng, end: Instant) -> Faults {
    let mut faults = Faults::default();
    let kind = world.servers.kind;
    let possible = FAULTS.iter().filter(|it| it.kinds.contains(&kind));
    let possible: Vec<&Fault> = match world.servers.can_fill_disks() {
        true => possible.collect(),
        false => possible.filter(|it| !it.name.starts_with(FULL)).collect(),
    };
    let is_outage = |it: &Fault| matches!(it.what, What::Outage(_));
    thread::sleep(Duration::from_millis(QUIET_MS));
    while Instant::now() < end {
        let mut choose = || *possible.choose(&mut random).expect("a fault");
        let (fault, other) = (choose(), choose());
        let time = Duration::from_millis(random.random_range(50..LONGEST_MS));
        let seat = seats.choose(&mut random).expect("a client");
        let master = random.random_range(0..100);
        if kind == Masters {
            world.servers.choose_master(master);
        }
        if kind == Masters && is_outage(fault) && is_outage(other) {
            faults.make_two([fault, other], world, time, master);
        } else if !faults.meets_a_known_defect(fault, world) {
            faults.make(fault, world, seat, (time, &mut random));
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

fn lose_commands(world: &mut World, time: Duration) {
    world.servers.relay().lose_commands();
    thread::sleep(time);
    world.servers.relay().pass();
}

fn lose_replies(world: &mut World, time: Duration) {
    world.servers.relay().lose_replies();
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

fn move_as_a_whole(world: &mut World, _: Duration) {
    let setting = world.setting.clone();
    world.servers.move_as_a_whole(&setting);
}

fn kill_with_everysec(world: &mut World, time: Duration) {
    call(world, "CONFIG SET appendfsync everysec");
    thread::sleep(time);
    world.servers.kill();
    world.servers.restart();
    world.until_served();
}

fn defragment(world: &mut World, time: Duration) {
    for (setting, value) in [
        ("active-defrag-ignore-bytes", "1"),
        ("active-defrag-threshold-lower", "0"),
        ("activedefrag", "yes"),
    ] {
        call(world, &format!("CONFIG SET {setting} {value}"));
    }
    thread::sleep(time);
    call(world, "CONFIG SET activedefrag no");
}

fn fail_over(world: &mut World, _: Duration) {
    world.servers.fail_over();
    world.servers.until_online(1);
}

fn supersede(world: &mut World, time: Duration) {
    world.servers.supersede();
    thread::sleep(time / 4);
    world.servers.bring_back_superseded();
    world.servers.until_superseded_follows();
    world.servers.until_online(1);
}
