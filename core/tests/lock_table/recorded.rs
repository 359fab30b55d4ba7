//! Walks whose course is recorded: what each decided, what it counted, and what it cost.
//!
//! The other walks know what must never happen. These know what happened when they were recorded: the
//! files of the folder `recorded` have one line for each walk. A change that is meant to keep the
//! behaviour, the counters and the costs changes no line.
//!
//! If a change is meant to change them, `RECORD=1 cargo test --package redis-lock-core recorded`
//! writes the files anew. Their difference then shows which numbers changed.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use redis_lock_core::effect;

use crate::walk::{self, Step, KEYS};
use crate::world::{self, World};

/// The number of walks in one file.
const WALKS: u8 = 6;

#[test]
fn some_walks_of_all_kinds() {
    compare("0.txt", 0);
}

#[test]
fn more_walks_of_all_kinds() {
    compare("1.txt", 1);
}

#[test]
fn still_more_walks_of_all_kinds() {
    compare("2.txt", 2);
}

#[test]
fn walks_with_few_waiters() {
    compare("3.txt", 3);
}

#[test]
fn long_walks() {
    compare("4.txt", 4);
}

/// Plays the walks of a file, and compares their lines with those that are recorded.
fn compare(file: &str, number: u8) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lock_table/recorded");
    let walks = number * WALKS..(number + 1) * WALKS;
    let lines: Vec<String> = walks.map(played).collect();
    if std::env::var_os("RECORD").is_some() {
        fs::write(folder.join(file), lines.join("\n") + "\n").expect("a file of the record");
    }
    let recorded = fs::read_to_string(folder.join(file)).expect("a record");
    for (number, (line, recorded)) in lines.iter().zip(recorded.lines()).enumerate() {
        assert_eq!(line, recorded, "line {number} of {file}");
    }
    assert_eq!(lines.len(), recorded.lines().count());
}

/// Plays a walk. Returns its line.
fn played(number: u8) -> String {
    let mut world = World::new();
    world.store.replicas = 2;
    world.max_waiters = if number / WALKS == 3 { 2 } else { 0 };
    let mut course = Course::default();
    for step in steps(number) {
        course.add(&format!("{step:?}"));
        match step {
            Step::Say(line) => course.add(&world.say(&line)),
            step => walk::take(&mut world, step),
        }
        course.add_state(&mut world);
    }
    line(&mut world, &course)
}

fn steps(number: u8) -> Vec<Step> {
    let len = if number / WALKS == 4 { 240 } else { 80 };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let steps = match number % 3 {
        0 => vec(walk::any_step(), len).boxed(),
        1 => vec(walk::sharing_step(), len).boxed(),
        _ => vec(walk::settled_step(), len).boxed(),
    };
    steps.new_tree(&mut runner).expect("steps").current()
}

/// Returns the counts and costs of a walk, and a checksum of its course.
fn line(world: &mut World, course: &Course) -> String {
    let mut line = format!("{:016x}", course.sum);
    let mut add = |name: &str, number: u64| write!(line, " {name} {number}").expect("a string");
    add("steps", world.table.steps());
    add("looks", world.table.replica_waits().looks());
    let counters = format!("{:?}", world.table.counters());
    let acknowledgements = world.table.acknowledgements();
    add("acknowledged", acknowledgements.acknowledged);
    add("not_acknowledged", acknowledgements.not_acknowledged);
    let times = world.table.times();
    let summaries = [times.waits.summary(), times.holds.summary()];
    let lost = times.lost_holds;
    add("expired", lost.expired);
    add("deleted", lost.deleted);
    add("disconnected", lost.disconnected);
    write!(line, " {counters} {summaries:?}").expect("a string");
    line.replace("Counters ", "").replace("Summary ", "")
}

/// A checksum of all that was seen, by FNV-1a.
struct Course {
    sum: u64,
    /// The number of effects that were added.
    effects: usize,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            sum: 0xcbf2_9ce4_8422_2325,
            effects: 0,
        }
    }
}

impl Course {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds what clients, replicas and administrators see of a world.
    fn add_state(&mut self, world: &mut World) {
        let mut heard = world.heard();
        heard.sort();
        self.add(&format!("{heard:?}"));
        let mut words: Vec<String> = world.changes().skip(self.effects).map(shown).collect();
        words.sort();
        self.effects = world.changes().count();
        self.add(&format!("{words:?}"));
        for key in KEYS {
            self.add_key(world, key);
        }
        let table = &world.table;
        let (queues, sessions) = (table.queues(), table.sessions());
        self.add(&format!(
            "{} {} {} {} {} {:?} {:?} {} {}",
            queues.len(),
            queues.blocked_len(),
            queues.place_count(),
            queues.oldest_wait_ms(world.now_ms),
            sessions.len(),
            table.next_due_ms(),
            table.next_sweep_ms(),
            table.is_any_scheduled(),
            table.replica_waits().len(),
        ));
        let waits = table.replica_waits();
        self.add(&format!(
            "{} {} {:?} {} {}",
            waits.has_unsent(),
            waits.has_more(),
            waits.next_timeout_ms(),
            table.steps(),
            waits.looks(),
        ));
    }

    fn add_key(&mut self, world: &World, key: &str) {
        let name = world::name(key);
        let lock = world.lock(key);
        self.add(&format!("{key} {:?} {}", lock.mode(), lock.heap_bytes()));
        for own in lock.holders().iter() {
            self.add(&format!("{own:?}"));
        }
        let queues = world.table.queues();
        self.add(&format!("{} ", queues.queue_len(&name)));
        self.add(&format!("{} ", world.table.is_scheduled(&name)));
        for (position, waiter) in queues.queue(&name) {
            let kind = waiter.kind.as_str();
            let rank = queues.rank(&name, position);
            self.add(&format!("{kind} {rank} {:?}", waiter.request));
        }
        let hottest = world.table.hottest(usize::MAX, world.now_ms, |_| true);
        self.add(&format!("{}", hottest.len()));
        for hot in hottest.iter().filter(|hot| hot.name == name) {
            self.add(&format!("{:?} {}", hot.counts, hot.waiters));
        }
    }
}

/// Returns a change as the words that replicas get.
fn shown(change: &effect::Change) -> String {
    let words = effect::words(change).into_iter().flatten();
    let words = words.map(|word| word.as_slice().escape_ascii().to_string());
    words.collect::<Vec<_>>().join(" ")
}
