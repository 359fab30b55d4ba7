//! A random walk through all commands. The invariants are checked after every step.

use crate::naive_contention::{Done, NaiveContention, Seen};
use crate::world::{self, World};
use proptest::prelude::*;
use redis_lock_core::state::hand_over::FenceOrigin;
use redis_lock_core::state::queue::KnownQueue;
use redis_lock_core::store::KeyState;
use redis_lock_core::values::lock::Lock;

/// One step of a walk.
#[derive(Clone, Debug)]
pub enum Step {
    Say(String),
    Pass(u64),
    Delete(&'static str),
    HangUp(usize),
    /// A connection that waits for several keys is lost. An operation comes before the timer.
    HangUpUnseen(usize),
    /// The database is flushed.
    Flush,
    /// Some replicas acknowledge all effects so far.
    Acknowledge(usize),
    /// An administrator cuts a wait for replicas short.
    CutShort(usize),
    /// The server answers a blocked client by itself.
    Unblock(usize),
    /// A connection was lost before it got the reply to its hand-over.
    TakeBack,
    CloseAll,
    /// Connections close or time passes. An operation comes before the timer.
    CloseUnseen,
    PassUnseen(u64),
    Expire(&'static str, Option<u64>),
    /// A key holds another type while a command comes. Then the key is deleted.
    Overwrite(&'static str, String),
    /// A key is renamed. The timer fires, or an operation comes first.
    Rename(&'static str, &'static str, Timer),
    /// A lock is dumped, or the lock that was dumped last is restored.
    Dump(&'static str),
    Restore(&'static str, Timer),
    /// A key moves to another server, with or without a lock. Its slot stays, or comes back.
    SendAway(&'static str),
    BringBack(&'static str),
}

/// The timer after a change that was made without an operation.
#[derive(Clone, Copy, Debug)]
pub enum Timer {
    Fires,
    IsLate,
}

/// The keys of all steps.
pub const KEYS: [&str; 3] = ["x", "y", "z"];

/// The fences to which extensions raise grants. There are few, so that several grants are raised to
/// one.
pub const RAISED_TO: [u64; 3] = [1_000_050_000, 1_000_100_000, 1_000_150_000];

/// The modes of most requests.
pub const MODES: [&str; 6] = [
    "",
    "SHARED",
    "SHARED LIMIT 1",
    "SHARED LIMIT 2",
    "SHARED LIMIT 3 PERMITS 2",
    "SHARED LIMIT 3 PERMITS 3",
];

/// Shared modes under limits of all kinds.
pub const SHARED_MODES: [&str; 11] = [
    "SHARED",
    "SHARED LIMIT 2",
    "SHARED LIMIT 3",
    "SHARED LIMIT 5",
    "SHARED LIMIT 9",
    "SHARED LIMIT 5 PERMITS 2",
    "SHARED LIMIT 5 PERMITS 4",
    "SHARED LIMIT 9 PERMITS 2",
    "SHARED LIMIT 9 PERMITS 5",
    "SHARED LIMIT 9 PERMITS 8",
    "SHARED LIMIT 99 PERMITS 7",
];

fn line(modes: &[&'static str]) -> impl Strategy<Value = String> {
    let token = proptest::sample::select(vec!["a", "b", "c", "d", "e"]);
    let mode = proptest::sample::select(modes.to_vec());
    let keys = proptest::sample::subsequence(KEYS.to_vec(), 1..=3);
    let reentry = proptest::sample::select(vec![
        "",
        "",
        "REENTRANT",
        "HOLDS 2",
        "SESSION",
        "SESSION KEEP 20",
    ]);
    (0..10, keys, token, 1u64..60, mode, reentry, 0u64..60).prop_map(
        |(verb, keys, token, ms, mode, reentry, block)| {
            let first = keys[0];
            let keys = format!("{} {}", keys.len(), keys.join(" "));
            let replicas = ["", "", "REPLICAS 1", "REPLICAS 2 WITHIN 40", "REPLICAS 3"];
            let replicas = replicas[(ms / 3) as usize % replicas.len()];
            let data = ["", "DATA who", "DATA \"\"", ""][block as usize % 4];
            match verb {
                0 | 1 => {
                    format!("MACQUIRE {keys} {token} PX {ms} {mode} {reentry} {data} {replicas}")
                }
                2..=4 => {
                    let keep =
                        ["", "KEEP 25"][usize::from(ms % 2 == 0 && !reentry.contains("KEEP"))];
                    format!(
                        "MWAIT {keys} {token} PX {ms} BLOCK {block} {mode} {reentry} {keep} {data} {replicas}"
                    )
                }
                8 | 9 => {
                    let holds = ["", "HOLDS 2"][usize::from(reentry == "HOLDS 2")];
                    format!(
                        "MQUEUE {keys} {token} PX {ms} KEEP {} {mode} {holds} {data}",
                        block + 1
                    )
                }
                5 => format!("CANCEL {first} {token}"),
                6 if ms % 2 == 0 => {
                    let gt = ["", "GT"][block as usize % 2];
                    format!("MEXTEND {keys} {token} PX {ms} {gt} {data} {replicas}")
                }
                6 if block % 2 == 0 => {
                    let fence = RAISED_TO[block as usize % 3];
                    format!("MEXTEND {keys} {token} FENCE {fence} {data} {replicas}")
                }
                6 => format!(
                    "MEXTEND {keys} {token} {} {data}",
                    ["", "NOSESSION", "SESSION KEEP 30"][ms as usize % 3]
                ),
                _ => format!(
                    "MRELEASE {keys} {token}{}",
                    match ms % 4 {
                        0 => String::new(),
                        1 => " ALL".to_owned(),
                        2 => " HOLDS 1".to_owned(),
                        _ => format!(" LEAVE {}", block + 1),
                    }
                ),
            }
        },
    )
}

fn step(modes: &[&'static str]) -> impl Strategy<Value = Step> {
    let key = proptest::sample::select(KEYS.to_vec());
    prop_oneof![
        12 => line(modes).prop_map(Step::Say),
        3 => (0u64..30).prop_map(Step::Pass),
        1 => key.clone().prop_map(Step::Delete),
        1 => (key.clone(), line(modes)).prop_map(|(key, line)| Step::Overwrite(key, line)),
        2 => (0usize..9).prop_map(Step::HangUp),
        2 => (0usize..9).prop_map(Step::HangUpUnseen),
        1 => Just(Step::Flush),
        1 => (0usize..9).prop_map(Step::Unblock),
        2 => (0usize..=2).prop_map(Step::Acknowledge),
        1 => (0usize..9).prop_map(Step::CutShort),
        1 => Just(Step::TakeBack),
        1 => Just(Step::CloseAll),
        1 => Just(Step::CloseUnseen),
        1 => (0u64..30).prop_map(Step::PassUnseen),
        1 => (key.clone(), proptest::option::of(1u64..40)).prop_map(|(key, ms)| Step::Expire(key, ms)),
        2 => (key.clone(), key.clone(), timer()).prop_map(|(from, to, timer)| Step::Rename(from, to, timer)),
        1 => key.clone().prop_map(Step::Dump),
        1 => key.clone().prop_map(Step::SendAway),
        1 => key.clone().prop_map(Step::BringBack),
        1 => (key, timer()).prop_map(|(key, timer)| Step::Restore(key, timer)),
    ]
}

fn timer() -> impl Strategy<Value = Timer> {
    prop_oneof![Just(Timer::Fires), Just(Timer::IsLate)]
}

/// Takes one step.
pub fn take(world: &mut World, step: Step) {
    match step {
        Step::Rename(from, to, timer) => {
            if from != to && world.dump(from).is_some() {
                world.rename_unseen(from, to);
                take_timer(world, timer);
            }
        }
        Step::Dump(key) => world.dumped = world.dump(key),
        Step::Restore(key, timer) => {
            if let Some(lock) = world.dumped.clone() {
                world.restore_unseen(key, &lock);
                take_timer(world, timer);
            }
        }
        Step::SendAway(key) => {
            world.send_away(key);
            world.delete(key);
        }
        Step::BringBack(key) => world.bring_back(key),
        Step::Say(line) => say(world, &line),
        Step::Pass(ms) => world.pass_ms(ms),
        Step::Delete(key) => world.delete(key),
        Step::Overwrite(key, line) => {
            world.overwrite(key);
            say(world, &line);
            world.delete(key);
        }
        Step::HangUp(n) => {
            if let Some(line) = one_of_the_blocked(world, n) {
                world.hang_up(&line);
            }
        }
        Step::HangUpUnseen(n) => {
            let one = one_of_the_blocked(world, n).filter(|line| line.starts_with("MWAIT"));
            let several = one.filter(|line| !line.starts_with("MWAIT 1 "));
            if let Some(line) = several {
                assert_eq!(world.hang_up_unseen(&line), None);
            }
        }
        Step::Flush => world.flush(),
        Step::Unblock(n) => {
            if let Some(line) = one_of_the_blocked(world, n) {
                world.unblock(&line);
            }
        }
        Step::Acknowledge(replicas) => world.acknowledge(replicas),
        Step::CutShort(n) => {
            if let Some(line) = one_of_the_blocked(world, n) {
                world.cut_short(&line);
            }
        }
        Step::TakeBack => {
            let last = world.handed_over.last();
            if last.is_some_and(|last| last.fence_origin == FenceOrigin::New) {
                world.take_back_last();
            }
        }
        Step::CloseAll => world.close_all(),
        Step::CloseUnseen => world.orphan_all(),
        Step::PassUnseen(ms) => world.now_ms += ms,
        Step::Expire(key, ms) => {
            world.expire(key, ms.map(|ms| world.wall_ms() + ms));
            world.fire(vec![world::name(key)]);
        }
    }
}

/// Sends a line. A request gets LEFT if its token has left one of the keys, and only then.
fn say(world: &mut World, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let keys = names_of(line);
    let token = words[words.len().min(if words[0] == "CANCEL" {
        2
    } else {
        2 + keys.len()
    })];
    let is_request = ["MACQUIRE", "MWAIT", "MQUEUE"].contains(&words[0]);
    let has_left = |name| world.marked_until_ms(name, token).is_some();
    let is_late = is_request && keys.iter().any(has_left);
    let answer = world.say(line);
    assert_eq!(answer.starts_with("LEFT "), is_late, "{line}: {answer}");
}

fn take_timer(world: &mut World, timer: Timer) {
    if let Timer::Fires = timer {
        world.fire(Vec::new());
    }
}

fn one_of_the_blocked(world: &World, n: usize) -> Option<String> {
    let mut waiting = world.waiting();
    waiting.sort();
    (!waiting.is_empty()).then(|| waiting.swap_remove(n % waiting.len()))
}

/// Returns steps after which nothing is left to the timer, with pauses of up to two minutes.
pub fn settled_step() -> impl Strategy<Value = Step> {
    let settled = |step| match step {
        Step::CloseUnseen | Step::Restore(..) => Step::CloseAll,
        Step::PassUnseen(ms) => Step::Pass(ms),
        Step::HangUpUnseen(n) => Step::HangUp(n),
        Step::Overwrite(key, _) => Step::Delete(key),
        Step::Rename(from, to, _) => Step::Rename(from, to, Timer::Fires),
        step => step,
    };
    prop_oneof![
        30 => step(&MODES).prop_map(settled),
        1 => (0u64..130_000).prop_map(Step::Pass),
    ]
}

/// Returns the names of a command's keys.
fn names_of(line: &str) -> Vec<world::Name> {
    world::keys_of(line).into_iter().map(world::name).collect()
}

/// Checks the invariants.
fn check(world: &World) -> Result<(), TestCaseError> {
    world.table.queues().check().map_err(TestCaseError::fail)?;
    world
        .table
        .sessions()
        .check()
        .map_err(TestCaseError::fail)?;
    world
        .table
        .replica_waits()
        .check()
        .map_err(TestCaseError::fail)?;
    check_replica_waits(world)?;
    for key in KEYS {
        let stored = stored(world, &world::name(key));
        if !stored.is_free() {
            let sound = Lock::held(stored.mode(), stored.holders().iter().cloned().collect());
            prop_assert!(sound.is_some(), "an invalid lock: {stored:?}");
        }
    }
    // The timer is still to settle the names that are due and the names that changed without an
    // operation.
    let is_settled = world.table.next_due_ms().is_none_or(|ms| ms > world.now_ms);
    if is_settled && world.store.touched.is_empty() {
        KEYS.iter().try_for_each(|key| check_recorded(world, key))?;
    }
    world
        .check_settled()
        .map_err(|broken| TestCaseError::fail(broken.to_string()))
}

fn stored(world: &World, name: &world::Name) -> Lock {
    match world.store.keys.get(name) {
        Some(KeyState::Lock(stored)) => stored.lock.clone(),
        _ => Lock::free(),
    }
}

/// Checks that each client whose reply is held back still has what its command gave it, under the
/// fence that it would be told.
fn check_replica_waits(world: &World) -> Result<(), TestCaseError> {
    for (name, token, fence) in world.table.replica_waits().followed() {
        let stored = stored(world, name);
        let own = stored.holder(token).map(|own| own.fence);
        prop_assert_eq!(own, Some(fence), "{:?} at {:?}", token, name);
    }
    Ok(())
}

/// Checks that a queue has recorded the lock of its name.
fn check_recorded(world: &World, key: &str) -> Result<(), TestCaseError> {
    let queue = world.table.queues().known(&world::name(key));
    if let Some(recorded) = queue.and_then(KnownQueue::lock) {
        let lock = world.lock(key);
        prop_assert_eq!(recorded.holders(), lock.holders(), "recorded at {}", key);
        prop_assert!(lock.is_free() || recorded.mode() == lock.mode(), "{key}");
    }
    Ok(())
}

/// Takes steps, and checks the invariants after each. Then all clients go.
pub fn walk(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    world.store.replicas = 2;
    for step in steps {
        take(&mut world, step);
        check(&world)?;
    }
    KEYS.iter().for_each(|key| world.bring_back(key));
    // Each remaining waiter leaves in the end, whatever the leases and timeouts were.
    for _ in 0..100 {
        world.acknowledge(2);
        world.close_all();
        world.pass_ms(60);
        check(&world)?;
        if world.store.keys.is_empty() && world.check_nothing_left().is_ok() {
            break;
        }
    }
    prop_assert_eq!(world.check_nothing_left(), Ok(()));
    Ok(())
}

/// Takes steps, and compares contention with the naive model after each.
pub fn walk_with_naive_model(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut naive = NaiveContention::default();
    for step in steps {
        let before = Seen::of(&world, &KEYS);
        let mut done = Done::default();
        match step {
            Step::Say(line) => {
                if world.say(&line) == "nil" {
                    done.refused = names_of(&line);
                }
            }
            Step::Rename(from, to, _) => {
                done.moved = Some((world::name(from), world::name(to)));
                take(&mut world, step);
            }
            step => {
                done.takes_back = matches!(step, Step::TakeBack);
                take(&mut world, step);
            }
        }
        naive.take(&world, &KEYS, &before, &done);
        naive.check(&world, &KEYS)?;
    }
    Ok(())
}

/// Returns steps in all modes.
pub fn any_step() -> impl Strategy<Value = Step> {
    step(&MODES)
}

/// Returns steps of tokens that share.
pub fn sharing_step() -> impl Strategy<Value = Step> {
    step(&SHARED_MODES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * ProptestConfig::default().cases))]

    #[test]
    fn the_rules_hold_after_every_step(steps in proptest::collection::vec(any_step(), 1..60)) {
        walk(steps)?;
    }

    #[test]
    fn the_rules_hold_among_those_who_share(steps in proptest::collection::vec(sharing_step(), 1..90)) {
        let mut world = World::new();
        world.store.replicas = 2;
        for step in steps {
            take(&mut world, step);
            check(&world)?;
        }
    }

    #[test]
    fn contention_is_counted_like_by_a_naive_model(
        steps in proptest::collection::vec(settled_step(), 1..60),
    ) {
        walk_with_naive_model(steps)?;
    }
}
