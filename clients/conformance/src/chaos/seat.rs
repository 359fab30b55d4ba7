//! A client's process, which is started again when it dies, and the tasks that it runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::RngExt;
use redis_lock_promises::history::{Granted, Hold, Mode};
use rustix::process::Signal;
use serde_json::{json, Value};

use super::scope::{Ground, Pause, LEASE, MARGIN};
use super::verdict::Seen;
use crate::clients::Client;
use crate::driver::{lock_order, Answer, Driver, Sightings};
use crate::servers::Kind;
use crate::table::Ability;
use crate::world::World;

/// The keys of all locks.
pub const KEYS: [&str; 7] = [
    "{t}0",
    "{t}1",
    "{t}2",
    "{t}readers",
    "{t}permits",
    "{t}replicated",
    "{t}replicated2",
];

/// Returns true if all replicas acknowledge each grant of a key.
pub fn is_replicated(key: &str) -> bool {
    let mut locks = LOCKS.iter().filter(|it| it.options == ON_ALL_REPLICAS);
    locks.any(|it| it.keys.contains(&key))
}

/// The number of permits of the semaphore.
pub const PERMITS: usize = 3;

/// A kind of lock that tasks acquire.
struct Lock {
    keys: &'static [&'static str],
    options: &'static str,
    mode: Mode,
    kinds: &'static [Kind],
}

use Kind::{Cluster, Masters, Replicas, Sentinel, Standalone};
const ANY: &[Kind] = &[Standalone, Cluster, Sentinel, Replicas, Masters];
const NO_MASTERS: &[Kind] = &[Standalone, Cluster, Sentinel, Replicas];
const ON_ALL_REPLICAS: &str = r#"{"replicas": 2}"#;
const OF_A_SESSION: &str = r#"{"session": true}"#;

const LOCKS: [Lock; 9] = [
    lock(&["{t}0"], "{}", Mode::Exclusive, ANY),
    lock(&["{t}1"], "{}", Mode::Exclusive, ANY),
    lock(&["{t}2"], OF_A_SESSION, Mode::Exclusive, NO_MASTERS),
    lock(&["{t}1", "{t}2"], "{}", Mode::Exclusive, NO_MASTERS),
    lock(&["{t}readers"], "{}", Mode::Exclusive, NO_MASTERS),
    lock(
        &["{t}readers"],
        r#"{"shared": true}"#,
        Mode::Shared,
        NO_MASTERS,
    ),
    lock(
        &["{t}permits"],
        r#"{"shared": true, "limit": 3}"#,
        Mode::Shared,
        NO_MASTERS,
    ),
    lock(
        &["{t}replicated"],
        ON_ALL_REPLICAS,
        Mode::Exclusive,
        &[Replicas],
    ),
    lock(
        &["{t}replicated2"],
        ON_ALL_REPLICAS,
        Mode::Exclusive,
        &[Replicas],
    ),
];

const fn lock(
    keys: &'static [&'static str],
    options: &'static str,
    mode: Mode,
    kinds: &'static [Kind],
) -> Lock {
    Lock {
        keys,
        options,
        mode,
        kinds,
    }
}

/// The limits of acquires, in ms.
const WAITS_MS: [u64; 4] = [0, 100, 700, 3000];

/// The time after its limit within which an acquire must have ended. The contract allows 250 ms, and a
/// driver that can't be interrupted another 1 s. The rest is for a busy machine.
const HANG: Duration = Duration::from_secs(10);

/// A client's seat.
pub struct Seat {
    pub client: Client,
    locks: Vec<&'static Lock>,
    connect: Value,
    complaints: PathBuf,
    sightings: Arc<Sightings>,
    driver: Mutex<Option<Arc<Driver>>>,
    pauses: Mutex<Vec<Pause>>,
    names: AtomicU64,
}

impl Seat {
    pub fn new(client: &Client, world: &World) -> Seat {
        Seat {
            client: client.clone(),
            locks: LOCKS
                .iter()
                .filter(|it| it.kinds.contains(&world.servers.kind))
                .collect(),
            connect: world.connect_order(),
            complaints: world.complaints_of(client.name),
            sightings: Arc::clone(&world.sightings),
            driver: Mutex::new(None),
            pauses: Mutex::new(Vec::new()),
            names: AtomicU64::new(0),
        }
    }

    /// Returns how many tasks the client runs at once. One without a background has one thread.
    pub fn tasks(&self) -> u64 {
        if self.renews() {
            3
        } else {
            1
        }
    }

    fn renews(&self) -> bool {
        !self.client.lacks.contains(&Ability::Background)
    }

    /// Returns the times in which the process didn't run.
    pub fn pauses(&self) -> Vec<Pause> {
        locked(&self.pauses).clone()
    }

    /// Stops the process for a time.
    pub fn pause(&self, time: Duration) {
        let Some(driver) = locked(&self.driver).clone() else {
            return;
        };
        let from = Instant::now();
        driver.signal(Signal::STOP);
        thread::sleep(time);
        driver.signal(Signal::CONT);
        locked(&self.pauses).push((from, Instant::now()));
    }

    /// Kills the process.
    pub fn kill(&self) {
        let Some(driver) = locked(&self.driver).take() else {
            return;
        };
        let from = Instant::now();
        driver.signal(Signal::KILL);
        locked(&self.pauses).push((from, from));
    }

    /// Runs a task until the play is over.
    pub fn live(&self, task: u64, mut random: SmallRng, over: &AtomicBool, seen: &Seen) {
        while !over.load(Ordering::Relaxed) {
            match self.driver() {
                Some(driver) => drop(self.turn(&driver, task, &mut random, seen)),
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the running process. Starts one if there is none.
    fn driver(&self) -> Option<Arc<Driver>> {
        let mut own = locked(&self.driver);
        if own.as_ref().is_none_or(|driver| driver.has_ended()) {
            let script = self.client.folder.join("driver");
            let new = Driver::start(&script, self.client.name, &self.complaints, &self.sightings);
            let new = new.unwrap_or_else(|error| panic!("{error:#}"));
            let connected = new.try_call(self.connect.clone(), HANG);
            *own = connected.map(|_| Arc::new(new));
        }
        own.clone()
    }

    /// Acquires a lock, holds it for a while and releases it. Ends early if the process dies.
    fn turn(&self, driver: &Driver, task: u64, random: &mut SmallRng, seen: &Seen) -> Option<()> {
        let lock = *self.locks.choose(random).expect("a lock");
        let wait = Duration::from_millis(*WAITS_MS.choose(random).expect("a limit"));
        let name = format!("{task}-{}", self.names.fetch_add(1, Ordering::Relaxed));
        let mut order = lock_order(&name, serde_json::from_str(lock.options).expect("JSON"));
        order["keys"] = json!(lock.keys);
        order["lease_ms"] = json!(LEASE.as_millis());
        driver.try_call(order, HANG)?;
        let acquire = json!({"do": "acquire", "lock": name, "wait_ms": wait.as_millis()});
        let asked = driver.try_begin(acquire)?;
        let Some(answer) = driver.answer_within(&asked, wait + HANG) else {
            let is_excused = driver.has_ended() || self.has_paused_since(asked.at);
            seen.hang(
                self.client.name,
                &format!("an acquire of {wait:?}"),
                is_excused,
            );
            return None;
        };
        seen.count(self.client.name, &self.outcome_of(&answer));
        if answer.error().is_some() || !answer.ok() {
            return Some(());
        }
        self.hold(driver, lock, &name, (asked.at, &answer), random, seen)
    }

    fn hold(
        &self,
        driver: &Driver,
        lock: &Lock,
        name: &str,
        (asked, answer): (Instant, &Answer),
        random: &mut SmallRng,
        seen: &Seen,
    ) -> Option<()> {
        let fence = i64::try_from(answer.fence()).expect("a fence");
        let token = format!("{} {name}", self.client.name);
        let granted = |key: &&str| Granted {
            key: (*key).to_owned(),
            token: token.clone(),
            fence,
            asked,
            answered: answer.at,
        };
        seen.grants(lock.keys.iter().map(granted));
        // One of eight is held for longer than its lease.
        let longest_ms = if random.random_ratio(1, 8) { 8000 } else { 300 };
        let work = Duration::from_millis(random.random_range(0..longest_ms));
        let lost = driver.loss_within(name, work);
        let release = driver.try_begin(json!({"do": "release", "lock": name}));
        let mut to = release.as_ref().map_or_else(Instant::now, |it| it.at);
        to = to.min(lost.unwrap_or(to));
        if !self.renews() {
            to = to.min(asked + LEASE - MARGIN);
        }
        let hold = |key: &&str| Hold {
            key: (*key).to_owned(),
            token: token.clone(),
            mode: lock.mode,
            fence,
            from: answer.at,
            to,
        };
        let ground = match lock.options {
            OF_A_SESSION => Ground::Session,
            ON_ALL_REPLICAS => Ground::Replicated(asked + LEASE - MARGIN),
            _ => Ground::Lease,
        };
        let grounds = (ground, asked);
        seen.holds(self.client.name, grounds, lock.keys.iter().map(hold));
        let released = release?;
        match driver.answer_within(&released, HANG) {
            Some(answer) => seen.count(self.client.name, release_of(&answer)),
            None => {
                let is_excused = driver.has_ended() || self.has_paused_since(released.at);
                seen.hang(self.client.name, "a release", is_excused);
            }
        }
        Some(())
    }

    /// Returns the outcome of an acquire, with the client and its text for an error that no fault explains.
    fn outcome_of(&self, answer: &Answer) -> String {
        match answer.error() {
            Some(error @ ("unavailable" | "not_replicated")) => error.to_owned(),
            Some(error) => {
                let reason = answer.text().lines().next().unwrap_or_default();
                format!("{error} of {} ({reason})", self.client.name)
            }
            None if answer.ok() => "granted".to_owned(),
            None => "not now".to_owned(),
        }
    }

    fn has_paused_since(&self, since: Instant) -> bool {
        locked(&self.pauses).iter().any(|(_, to)| *to >= since)
    }
}

fn release_of(answer: &Answer) -> &str {
    match answer.error() {
        Some(_) => "release failed",
        None if answer.ok() => "released",
        None => "lost before its release",
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
