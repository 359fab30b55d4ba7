//! Killed connections, restarted servers, stopped processes.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::driver::{Asked, Driver};
use crate::servers::{until, within, SOON};
use crate::world::{text, World};

const KEY: &str = "{t}k";

/// The delay of replies, in which a lock can be deleted before its client knows that it has it.
const LATE: Duration = Duration::from_millis(300);

/// The number of times that a lock whose slot has moved is handed on, and the longest median.
const HAND_OVERS: usize = 9;
const PROMPT: Duration = Duration::from_millis(500);

pub fn killed_connections_dont_lose_a_wait(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY], "keep_ms": 10_000}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    let token = world.waiter(KEY);
    world
        .servers
        .call(&format!("LOCK.QUEUE {KEY} behind KEEP 60000"));
    for _ in 0..3 {
        world.servers.kill_connections();
        world.until_waiting(KEY, 2);
    }
    let queue = world.servers.info(KEY).expect("it is held").queue;
    let tokens: Vec<String> = queue.iter().map(|one| text(&one["token"])).collect();
    assert_eq!(tokens, [token, "behind".to_owned()]);
    world.other_hands_over(KEY);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    assert_eq!(driver.losses("a"), 0);
}

pub fn killed_connections_dont_lose_a_grant(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 5000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(7500) {
        world.servers.kill_connections();
        assert!(world.left_of(KEY, &token) > 0, "{:?}", began.elapsed());
        // Long enough for a client that checks a new connection first, like ioredis.
        thread::sleep(Duration::from_millis(400));
    }
    assert!(!driver.is_lost("a"));
    world.servers.kill_connections();
    assert!(driver.release("a"));
    world.assert_free(KEY);
    assert_eq!(driver.losses("a"), 0);
}

pub fn a_server_that_restarts_is_waited_at_again(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world.servers.restart();
    world.until_served();
    // The pauses between tries grow to 1 s.
    let waits = || (world.waiters(KEY) == 1).then_some(());
    assert!(within(SOON, waits).is_some(), "the wait is not repeated");
    world.other_releases(KEY);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

pub fn a_server_that_restarts_doesnt_lose_a_grant(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 6000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    world.servers.restart();
    world.until_served();
    let mut last_ms = world.left_of(KEY, &token);
    until("the lease is renewed", || {
        let left_ms = world.left_of(KEY, &token);
        assert!(left_ms > 0, "the lock is lost");
        let renewed = left_ms > last_ms;
        last_ms = left_ms;
        renewed
    });
    assert!(!driver.is_lost("a"));
    assert!(driver.release("a"));
    world.assert_free(KEY);
    assert_eq!(driver.losses("a"), 0);
}

pub fn a_stopped_process_is_told_of_its_loss(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 2000}));
    driver.try_acquire("a").fence();
    driver.stop();
    until("the lease is over", || world.servers.info(KEY).is_none());
    world.other_holds(KEY);
    driver.signal(Signal::CONT);
    let told = driver.loss_within("a", SOON);
    assert!(told.is_some(), "the loss is told");
    assert!(driver.is_lost("a"));
    assert!(!driver.release("a"));
    assert!(world.other_has(KEY));
    assert_eq!(driver.losses("a"), 1);
}

/// Grants the lock to a stopped process. When the process reads the grant, another holder has the
/// lock.
pub fn a_process_stopped_while_it_waits_doesnt_take_an_old_grant(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    let options = json!({"keys": [KEY], "lease_ms": 3000, "keep_ms": 3000});
    driver.lock("a", options);
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    let token = world.waiter(KEY);
    driver.stop();
    world.other_releases(KEY);
    until("the grant is over", || world.left_of(KEY, &token) == 0);
    world.other_holds(KEY);
    driver.signal(Signal::CONT);
    let early = driver.answer_within(&asked, Duration::from_millis(700));
    assert!(early.is_none(), "{early:?}");
    world.other_releases(KEY);
    driver.answer(&asked).fence();
    assert_ne!(world.holder(KEY), "other");
    assert!(driver.release("a"));
}

/// The time of an outage that is longer than the lease and KEEP, which an extension made longer.
const OUTAGE: Duration = Duration::from_secs(4);

/// A release that found no server goes on to the end of the lease, also of one that was extended.
pub fn a_release_goes_on_until_the_extended_lease_ends(world: &mut World) {
    world.servers.relay();
    let driver = world.driver_with(json!({"command_timeout_ms": 600}));
    driver.lock(
        "a",
        json!({"keys": [KEY], "lease_ms": 2000, "keep_ms": 1000}),
    );
    driver.acquire("a");
    assert!(driver.extend("a", 600_000));
    world.servers.relay().swallow();
    let released = driver.answer(&driver.begin_release("a"));
    assert_eq!(released.error(), Some("unavailable"), "{released}");
    thread::sleep(OUTAGE);
    world.servers.relay().pass();
    // Where nothing goes on in the background, it goes on with later calls.
    let again = || {
        let again = driver.try_acquire("a");
        (again.error().is_none() && again.ok()).then_some(())
    };
    assert!(within(2 * SOON, again).is_some(), "it isn't released");
    assert!(driver.release("a"));
}

/// Makes the server a replica of an absent primary, so that it refuses writes and unblocks its
/// waiters.
fn demote(world: &World) {
    world.servers.call("REPLICAOF 127.0.0.1 1");
}

fn promote(world: &World) {
    world.servers.call("REPLICAOF NO ONE");
}

pub fn a_server_that_was_a_replica_for_a_while_is_waited_at_again(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    demote(world);
    assert_eq!(world.waiters(KEY), 0);
    let early = driver.answer_within(&asked, Duration::from_millis(500));
    assert!(early.is_none(), "{early:?}");
    promote(world);
    let waits = || (world.waiters(KEY) == 1).then_some(());
    assert!(within(SOON, waits).is_some(), "the wait is not repeated");
    world.other_releases(KEY);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

pub fn a_server_that_was_a_replica_for_a_while_doesnt_lose_a_grant(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 6000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    // A renewal at a third of the lease is refused.
    demote(world);
    assert_eq!(driver.loss_within("a", Duration::from_millis(2500)), None);
    promote(world);
    assert_eq!(driver.loss_within("a", Duration::from_millis(6000)), None);
    assert!(world.left_of(KEY, &token) > 0);
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// A failover, for example, loses a grant before its session is tied to a connection.
pub fn a_session_that_is_lost_before_its_tie_is_acquired_again(world: &mut World) {
    world.servers.relay();
    let driver = world.driver();
    let asked = session_granted_late(world, &driver);
    world.servers.call(&format!("DEL {KEY}"));
    world.servers.relay().delay_replies(Duration::ZERO);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// A late tie would end the grant with its connection, so the acquire goes on with another token.
pub fn a_session_whose_tie_gets_no_reply_is_acquired_again(world: &mut World) {
    world.servers.relay();
    let driver = world.driver();
    let asked = session_granted_late(world, &driver);
    world.servers.relay().lose_commands();
    world.servers.relay().delay_replies(Duration::ZERO);
    // Nothing shows that the tie was sent, and lost.
    thread::sleep(2 * LATE);
    world.servers.relay().reset();
    world.servers.relay().pass();
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// Begins to acquire a session. The server has granted it, and the reply is on its way.
fn session_granted_late(world: &mut World, driver: &Driver) -> Asked {
    driver.lock("a", json!({"keys": [KEY], "session": true}));
    driver.try_acquire("a").fence();
    assert!(driver.release("a"));
    world.until_free(KEY);
    world.servers.relay().delay_replies(LATE);
    let asked = driver.begin_acquire("a", Some(20_000));
    until("it is granted", || world.servers.info(KEY).is_some());
    asked
}

pub fn a_slot_that_moves_is_followed(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    driver.lock("a", json!({"keys": [KEY]}));
    let asked = driver.begin_acquire("a", None);
    world.until_waiting(KEY, 1);
    world.servers.begin_move();
    // A lock without holders is at the new node already.
    driver.lock("b", json!({"keys": ["{t}another"]}));
    driver.try_acquire("b").fence();
    assert!(driver.release("b"));
    world.servers.end_move(&[KEY]);
    let waits = || (world.waiters(KEY) == 1).then_some(());
    assert!(within(SOON, waits).is_some(), "the wait is not repeated");
    world.other_releases(KEY);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// While some keys of a command have moved, the node replies TRYAGAIN.
pub fn several_keys_whose_slot_moves_are_waited_for(world: &mut World) {
    let driver = world.driver();
    let keys = ["{t}x", "{t}y"];
    driver.lock("a", json!({"keys": keys}));
    driver.acquire("a");
    assert!(driver.release("a"));
    world.other_holds(keys[1]);
    world.servers.begin_move();
    let refused = world.servers.try_call("LOCK.MACQUIRE 2 {t}x {t}y t").err();
    assert_eq!(
        refused.expect("some keys are absent").code(),
        Some("TRYAGAIN")
    );
    let asked = driver.begin_acquire("a", None);
    let early = driver.answer_within(&asked, Duration::from_millis(700));
    assert!(early.is_none(), "{early:?}");
    world.servers.end_move(&[keys[1]]);
    world.other_releases(keys[1]);
    driver.answer(&asked).fence();
    assert!(driver.release("a"));
    keys.iter().for_each(|key| world.assert_free(key));
}

pub fn a_slot_that_moves_doesnt_lose_a_grant(world: &mut World) {
    let driver = world.driver();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 3000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    world.servers.begin_move();
    world.servers.end_move(&[KEY]);
    assert_eq!(driver.loss_within("a", Duration::from_secs(4)), None);
    assert!(world.left_of(KEY, &token) > 0);
    assert!(driver.release("a"));
    world.assert_free(KEY);
}

/// Hands the lock on among three waiters of a slot that has moved. Takes the median, because the
/// machine may be busy.
pub fn a_slot_that_moves_keeps_its_waiters(world: &mut World) {
    let driver = world.driver();
    world.other_holds(KEY);
    let mut waits: Vec<(&str, Asked)> = Vec::new();
    for name in ["a", "b", "c"] {
        driver.lock(name, json!({"keys": [KEY]}));
        waits.push((name, driver.begin_acquire(name, None)));
        world.until_waiting(KEY, waits.len());
    }
    world.servers.begin_move();
    world.servers.end_move(&[KEY]);
    world.until_waiting(KEY, waits.len());
    let mut released = Instant::now();
    world.other_releases(KEY);
    let mut times = [(); HAND_OVERS].map(|()| {
        let is_served = |asked: &Asked| driver.answer_within(asked, Duration::ZERO).is_some();
        let served = within(SOON, || {
            waits.iter().position(|(_, asked)| is_served(asked))
        });
        let (name, asked) = waits.remove(served.expect("a waiter is served"));
        let granted = driver.answer(&asked);
        granted.fence();
        let time = granted.at.saturating_duration_since(released);
        world.until_waiting(KEY, waits.len());
        released = Instant::now();
        assert!(driver.release(name));
        waits.push((name, driver.begin_acquire(name, None)));
        time
    });
    times.sort();
    world.assert_in_time(Some(times[HAND_OVERS / 2]), PROMPT);
}
