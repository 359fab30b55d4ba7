//! Chaos: clients of all languages acquire, hold and release a few locks, while servers, connections and
//! clients meet faults. The promises judge the holds by the clients' own clocks.
//!
//! - [`seat`]: a client's process, and the tasks that it runs
//! - [`faults`]: what happens to servers and clients meanwhile
//! - [`scope`]: the holds that the promises don't cover after a fault
//! - [`verdict`]: what was seen, and which promise it breaks
//!
//! A seed repeats the choices, but not their times: processes run as the machine lets them.

mod faults;
mod scope;
mod seat;
mod verdict;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::SeedableRng;

use crate::clients::Client;
use crate::servers::{within, Kind, Setting};
use crate::world::World;
use scope::LEASE;
use seat::{Seat, KEYS};
use verdict::{Fences, Seen, Verdict};

/// The time after which a Sentinel takes a silent primary for dead.
const DOWN_AFTER: Duration = Duration::from_secs(5);

/// Plays one setting for a time, prints what happened, and returns true if no promise was broken.
pub fn play(clients: &[Client], setting: &Setting, time: Duration, seed: u64) -> Result<bool> {
    let first = &clients[0];
    let mut world = World::new(&first.folder.join("driver"), first.name, setting)?;
    match setting.kind {
        // A busy machine or a reload shall cause no failover.
        Kind::Sentinel => world.servers.set_down_after(DOWN_AFTER),
        Kind::Cluster => world.servers.add_standbys(setting)?,
        Kind::Standalone | Kind::Replicas | Kind::Masters => {}
    }
    if setting.kind != Kind::Sentinel {
        world.servers.relay();
    }
    if !world.servers.can_fill_disks() {
        eprintln!("{setting}: no disk is filled, because that needs root and the program mount");
    }
    let seats: Vec<Seat> = clients.iter().map(|it| Seat::new(it, &world)).collect();
    let (over, seen) = (AtomicBool::new(false), Seen::default());
    let faults = thread::scope(|scope| {
        for (number, seat) in seats.iter().enumerate() {
            for task in 0..seat.tasks() {
                let (over, seen) = (&over, &seen);
                let random = SmallRng::seed_from_u64(seed ^ (1 + number as u64) << 32 ^ task);
                scope.spawn(move || seat.live(task, random, over, seen));
            }
        }
        let end = Instant::now() + time;
        let random = SmallRng::seed_from_u64(seed);
        let _over = OnDrop(|| over.store(true, Ordering::Relaxed));
        faults::make(&mut world, &seats, random, end)
    });
    let pauses = seats.iter().map(|it| (it.client.name, it.pauses()));
    let fences = match setting.kind {
        Kind::Masters => Fences::OfEachMaster,
        _ => Fences::Rise,
    };
    let unacknowledged = seen.unacknowledged(&world.servers.cuts);
    let mut verdict = Verdict::of(seen, &faults.limits, &pauses.collect(), fences);
    verdict.add("a grant without its replicas", unacknowledged);
    verdict.add("a crash of a server", world.servers.crash());
    verdict.add("a token where nobody asked", world.tokens_shown());
    verdict.add("something is left", left_behind(&world));
    print!(
        "{setting}, {} s, seed {seed}\n{faults}{verdict}",
        time.as_secs()
    );
    Ok(verdict.is_kept())
}

/// Returns the locks that are still held or waited for when all leases of the clients are over. Leases
/// end late on a clock that was set back.
fn left_behind(world: &World) -> Option<String> {
    let held = |key: &&&str| world.servers.has_lock(key);
    let none = || (!KEYS.iter().any(|key| held(&key))).then_some(());
    if within(6 * LEASE, none).is_some() {
        return None;
    }
    let left: Vec<_> = KEYS.iter().filter(held).collect();
    Some(format!("{left:?}"))
}

/// Runs its function when it goes out of scope, in a panic too.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
