//! Waits and their ends.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::LATE;
use crate::servers::{until, within, SOON};
use crate::world::World;

const KEY: &str = "{t}k";

/// The time limit from a release to the next waiter's answer.
const PROMPT: Duration = Duration::from_millis(250);

/// Takes the median of five rounds, because the machine may be busy in a round.
pub fn a_wait_is_handed_the_lock_promptly(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 10_000}));
    let round = || {
        world.other_holds(KEY);
        let asked = driver.begin_acquire("a", None);
        world.until_waiting(KEY, 1);
        let released = Instant::now();
        world.other_releases(KEY);
        let answer = driver.answer(&asked);
        answer.fence();
        assert!(driver.release("a"));
        answer.at - released
    };
    let mut times = [(); 5].map(|()| round());
    times.sort();
    world.assert_in_time(Some(times[2]), PROMPT);
    world.assert_free(KEY);
}

/// Braces name a key's slot in a cluster, where a channel that announces a turn has to be, too.
pub fn a_key_of_any_text_is_waited_for(world: &mut World) {
    let driver = world.driver();
    for shape in [
        "a}N",
        "{}N",
        "{N",
        "a{N",
        "}{N}{y}",
        "{}{N}",
        "{{N}}",
        "ключN",
        "N/b?c=d#e%f",
        "*N",
        "-N",
    ] {
        let mut keys = (1..).map(|number: u32| shape.replace('N', &number.to_string()));
        let is_here = |key: &String| world.servers.try_call(&format!("EXISTS {key}")).is_ok();
        let key = &keys.find(is_here).expect("a key of the tests' node");
        driver.lock(key, json!({"keys": [key], "keep_ms": 30_000}));
        world.other_holds(key);
        let asked = driver.begin_acquire(key, None);
        world.until_waiting(key, 1);
        world.other_releases(key);
        driver.answer(&asked).fence();
        assert!(driver.release(key));
        world.assert_free(key);
    }
}

/// Checks that a wait never ends early, and not late in the best of some rounds, because the
/// machine may be busy in a round. If the server's reply comes after the end of the wait in a busy
/// round, the client says that no server answered.
pub fn a_wait_ends_in_time_and_leaves_nobody(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 10_000}));
    for wait_ms in [1, 700] {
        let wait = Duration::from_millis(wait_ms);
        let round = || {
            let asked = driver.begin_acquire("a", Some(wait_ms));
            let answer = driver.answer(&asked);
            let answered = Instant::now();
            world.until_nobody_waits(KEY);
            let left_behind = answered.elapsed();
            assert!(answer.after >= wait, "{:?}", answer.after);
            let was_busy = answer.error() == Some("unavailable");
            (!was_busy).then(|| {
                assert!(!answer.ok());
                (answer.after, left_behind)
            })
        };
        let times = [(); 5].map(|()| round());
        let times = || times.iter().flatten();
        world.assert_in_time(times().map(|it| it.0).min(), wait + LATE);
        world.assert_in_time(times().map(|it| it.1).min(), LATE);
    }
    world.other_releases(KEY);
    world.assert_free(KEY);
}

/// An acquire without a limit has that of its lock, of which 0 tries once.
pub fn the_wait_of_a_lock_is_its_limit(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    // A client connects for its first command, which takes long on a busy machine.
    driver.lock("connects", json!({"keys": [KEY]}));
    assert!(!driver.try_acquire("connects").ok());
    for wait_ms in [0, 700] {
        driver.lock("a", json!({"keys": [KEY], "wait_ms": wait_ms}));
        let wait = Duration::from_millis(wait_ms);
        let times = [(); 3].map(|()| {
            let answer = driver.call(json!({"do": "acquire", "lock": "a"}));
            let is_refused = match answer.error() {
                Some(error) => ["not_acquired", "unavailable"].contains(&error),
                None => !answer.ok(),
            };
            assert!(is_refused, "{answer}");
            assert!(answer.after >= wait, "{answer}");
            answer.after
        });
        world.assert_in_time(times.into_iter().min(), wait + LATE);
    }
    world.until_nobody_waits(KEY);
}

pub fn three_wait_and_are_served_in_order(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    let names = ["a", "b", "c"];
    let mut waits = Vec::new();
    for (number, name) in names.iter().enumerate() {
        driver.lock(name, json!({"keys": [KEY]}));
        waits.push(driver.begin_acquire(name, None));
        world.until_waiting(KEY, number + 1);
    }
    world.other_hands_over(KEY);
    let mut last = 0;
    for (name, asked) in names.iter().zip(&waits) {
        let fence = driver.answer(asked).fence();
        assert!(fence > last, "{name} was served before its turn");
        assert!(driver.release(name));
        last = fence;
    }
    world.assert_free(KEY);
}

pub fn twenty_of_one_process_all_get_it(world: &mut World) {
    let driver = world.driver();
    let names: Vec<String> = (0..20).map(|number| format!("lock-{number}")).collect();
    for name in &names {
        driver.lock(name, json!({"keys": [KEY]}));
    }
    world.other_holds(KEY);
    let begin = |name: &String| (name.clone(), driver.begin_acquire(name, None));
    let mut waits: Vec<_> = names.iter().map(begin).collect();
    // A client may let a few of its waiters ask, and keep the order of the others itself.
    until("they wait", || world.waiters(KEY) >= 4);
    world.other_releases(KEY);
    let moment = Duration::from_millis(1);
    until("all of them had it", || {
        waits.retain(|(name, asked)| match driver.answer_within(asked, moment) {
            Some(answer) => {
                answer.fence();
                assert!(driver.release(name));
                false
            }
            None => true,
        });
        waits.is_empty()
    });
    world.assert_free(KEY);
}

pub fn a_cancelled_wait_leaves_nothing(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 10_000}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    let cancelled = driver.begin_cancel(&asked);
    assert_eq!(driver.answer(&asked).error(), Some("cancelled"));
    assert!(driver.answer(&cancelled).ok());
    world.until_nobody_waits(KEY);
    world.other_releases(KEY);
    world.assert_free(KEY);
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
    assert_eq!(driver.losses("a"), 0);
}

pub fn a_waiter_that_died_is_forgotten_soon_after_its_limit(world: &mut World) {
    let mut driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 60_000}));
    driver.begin_acquire("a", Some(2000));
    let began = Instant::now();
    world.until_waiting(KEY, 1);
    driver.kill();
    until("the place is given up", || world.waiters(KEY) == 0);
    let limit = Duration::from_millis(2000 + 1000);
    assert!(began.elapsed() < limit + SOON, "{:?}", began.elapsed());
}

/// Accepts both outcomes, the grant or the cancellation first.
pub fn a_wait_cancelled_as_it_is_granted_leaves_nothing(world: &mut World) {
    let driver = world.driver();
    let options = json!({"keys": [KEY], "lease_ms": 60_000, "keep_ms": 60_000});
    driver.lock("a", options);
    for round in 0..20 {
        world.other_holds(KEY);
        let asked = driver.begin_acquire("a", None);
        world.until_waiting(KEY, 1);
        let cancelled = if round % 2 == 0 {
            let cancelled = driver.begin_cancel(&asked);
            world.other_releases(KEY);
            cancelled
        } else {
            world.other_releases(KEY);
            driver.begin_cancel(&asked)
        };
        let answer = driver.answer(&asked);
        driver.answer(&cancelled);
        match answer.error() {
            None => {
                answer.fence();
                assert!(driver.release("a"), "round {round}");
            }
            Some(error) => assert_eq!(error, "cancelled", "round {round}"),
        }
        world.until_free(KEY);
    }
}

/// Accepts both outcomes: a blocked client gets an error, and a client with a place asks again.
pub fn a_wait_that_somebody_else_gave_up_is_cancelled_or_asked_again(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 3000}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    let token = world.waiter(KEY);
    assert_eq!(world.servers.int(&format!("LOCK.CANCEL {KEY} {token}")), 1);
    let mut told = None;
    until("the wait fails or is repeated", || {
        told = driver.answer_within(&asked, Duration::ZERO);
        told.is_some() || world.waiters(KEY) == 1
    });
    world.other_releases(KEY);
    if let Some(answer) = told {
        assert_eq!(answer.error(), Some("cancelled"));
    } else {
        driver.answer(&asked).fence();
        assert!(driver.release("a"));
    }
    world.assert_free(KEY);
}

/// Waits longer than libraries stay on one connection, which they change to notice a dead one. A
/// stop of the process also interrupts its read. The place must outlive the connection, although
/// KEEP doesn't keep it with SESSION.
pub fn a_long_wait_for_a_session_keeps_its_place(world: &mut World) {
    let driver = world.driver();
    let made = driver.try_lock("a", json!({"keys": [KEY], "session": true}));
    if made.error().is_some() {
        assert_eq!(made.error(), Some("unsupported"));
        return;
    }
    world.other_holds(KEY);
    let began = Instant::now();
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world
        .servers
        .call(&format!("LOCK.QUEUE {KEY} behind KEEP 60000"));
    driver.stop();
    driver.signal(Signal::CONT);
    let stays = || {
        assert_ne!(world.waiter(KEY), "behind", "the place is lost");
        (began.elapsed() > Duration::from_secs(17)).then_some(())
    };
    assert!(within(Duration::from_secs(20), stays).is_some());
    world.other_hands_over(KEY);
    driver.answer(&asked).fence();
    assert_eq!(world.left_of(KEY, "behind"), 0);
    assert!(driver.release("a"));
}

/// A library waits in steps of 2 s at most, and of a third of KEEP where its tasks share a connection.
pub fn a_wait_longer_than_its_keep_keeps_its_place(world: &mut World) {
    for keep_ms in [3000, 1500] {
        play_long_wait(world, keep_ms);
    }
}

fn play_long_wait(world: &World, keep_ms: u64) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": keep_ms}));
    let began = Instant::now();
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world
        .servers
        .call(&format!("LOCK.QUEUE {KEY} behind KEEP 60000"));
    // Some libraries wait in steps of 2 s, between which the waiter is absent for a moment.
    until("the wait is longer than its KEEP", || {
        began.elapsed() > Duration::from_millis(5000)
    });
    world.other_hands_over(KEY);
    driver.answer(&asked).fence();
    assert_eq!(world.left_of(KEY, "behind"), 0);
    assert!(driver.release("a"));
    assert!(world.left_of(KEY, "behind") > 0);
    world.servers.call(&format!("LOCK.RELEASE {KEY} behind"));
    world.assert_free(KEY);
}
