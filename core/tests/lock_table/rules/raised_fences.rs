//! FENCE: an extension that raises the fence of a grant.
//!
//! - The fence becomes the given number if it was lower. It never falls.
//! - Later grants of the server have greater fences.
//! - The grant stays the same one: `held-ms` goes on, and a repeat keeps the raised fence.
//! - A command without success raises nothing.

use super::scene::play;
use crate::world::{name, World};
use redis_lock_core::effect::Change;
use redis_lock_core::values::fence::MAX_RAISED_AHEAD_US;
use redis_lock_core::values::holder::Mode;

const REFUSED: &str =
    "ERR invalid fence, must be 1 to 9007199254740991 and at most 60 s ahead of the clock";

/// Returns a fence that is this much above the clock.
fn ahead(world: &World, by: u64) -> u64 {
    world.wall_us() + by
}

fn raise(world: &mut World, what: &str, fence: u64) -> String {
    world.say(&format!("{what} FENCE {fence}"))
}

#[test]
fn it_rises_and_never_falls_and_later_grants_are_above_it() {
    let mut world = play("ACQUIRE k a -> granted");
    let first = world.fence("k", "a");
    let raised = ahead(&world, 1000);
    assert_eq!(raise(&mut world, "EXTEND k a PX 70", raised), "1");
    assert_eq!(world.fence("k", "a"), raised);
    for lower in [1, first, raised - 1, raised] {
        assert_eq!(raise(&mut world, "EXTEND k a", lower), "1");
        assert_eq!(world.fence("k", "a"), raised);
    }
    assert_eq!(world.say("ACQUIRE k a"), "granted");
    assert_eq!(world.fence("k", "a"), raised, "a repeat keeps it");
    assert_eq!(world.say("ACQUIRE j b"), "granted");
    assert!(world.fence("j", "b") > raised);
    assert_eq!(world.say("RELEASE k a"), "1");
    assert_eq!(world.say("ACQUIRE k b"), "granted");
    assert!(world.fence("k", "b") > raised);
}

#[test]
fn it_renews_the_lease_and_the_grant_goes_on() {
    let mut world = play("ACQUIRE k a PX 100 -> granted\n+60");
    let since_ms = world.lock("k").holders().only().unwrap().since_ms;
    let raised = ahead(&world, 1000);
    assert_eq!(raise(&mut world, "EXTEND k a", raised), "1");
    let own = world.lock("k").holders().only().cloned().unwrap();
    assert_eq!(own.since_ms, since_ms);
    assert_eq!(own.deadline_ms, world.wall_ms() + 100);
    let (mode, holder) = (Mode::Exclusive, own);
    assert_eq!(
        world.changes().last(),
        Some(&Change::Raise { mode, holder })
    );
}

#[test]
fn a_place_that_is_claimed_with_a_greater_fence_is_the_same_grant() {
    let mut world = play(
        "ACQUIRE k h -> granted
         QUEUE k a -> place 1
         RELEASE k h -> 1",
    );
    let raised = ahead(&world, 1000);
    assert_eq!(raise(&mut world, "EXTEND k a", raised), "1");
    let is_raise = |change: &Change| matches!(change, Change::Raise { .. });
    assert!(world.changes().last().is_some_and(is_raise));
    assert_eq!(world.say("QUEUE k a"), "granted");
    assert_eq!(world.fence("k", "a"), raised);
}

/// A new grant in the same ms is no raise, although it looks like one: it has a greater fence and
/// the same `since`.
#[test]
fn a_new_grant_of_the_same_token_is_no_raise() {
    let mut world = play(
        "ACQUIRE k a -> granted
         ACQUIRE j a -> granted",
    );
    world.stream.clear();
    assert_eq!(world.say("MACQUIRE 2 k j a"), "granted");
    let is_grant = |change: &Change| matches!(change, Change::Grant { .. });
    assert!(
        world.stream.len() == 2 && world.changes().all(is_grant),
        "{:?}",
        world.stream
    );
}

#[test]
fn it_is_at_most_60_s_ahead_of_the_clock_or_was_given_before() {
    let mut world = play("ACQUIRE k a -> granted");
    let most = ahead(&world, MAX_RAISED_AHEAD_US);
    for (fence, answer) in [
        ("0".to_owned(), REFUSED),
        ("9007199254740992".to_owned(), REFUSED),
        ("-1".to_owned(), REFUSED),
        ((most + 1).to_string(), REFUSED),
        (most.to_string(), "1"),
    ] {
        assert_eq!(
            world.say(&format!("EXTEND k a FENCE {fence}")),
            answer,
            "{fence}"
        );
    }
    world.set_clock(-1_000_000);
    assert_eq!(raise(&mut world, "EXTEND k a", most), "1", "given before");
    assert_eq!(raise(&mut world, "EXTEND k a", most + 1), REFUSED);
}

#[test]
fn a_fence_too_far_ahead_is_refused_before_anything_is_looked_at() {
    let mut world = play("SET s");
    let most = ahead(&world, MAX_RAISED_AHEAD_US);
    assert_eq!(raise(&mut world, "EXTEND s a", most + 1), REFUSED);
    assert_eq!(raise(&mut world, "EXTEND none a", most + 1), REFUSED);
    assert_eq!(raise(&mut world, "EXTEND none a", most), "0");
}

#[test]
fn a_command_without_success_raises_nothing_not_even_the_counter() {
    let mut world = play("ACQUIRE k a -> granted\nSET s");
    let first = world.fence("k", "a");
    let high = ahead(&world, 1_000_000);
    assert_eq!(raise(&mut world, "EXTEND k b", high), "0");
    assert_eq!(raise(&mut world, "EXTEND j a", high), "0");
    assert_eq!(raise(&mut world, "MEXTEND 2 k j a", high), "0");
    assert!(raise(&mut world, "MEXTEND 2 k s a", high).starts_with("WRONGTYPE"));
    assert_eq!(world.fence("k", "a"), first);
    assert_eq!(world.say("ACQUIRE j b"), "granted");
    assert!(world.fence("j", "b") < high);
}

#[test]
fn grants_raised_to_one_fence_are_held_under_it() {
    let mut world = play(
        "ACQUIRE k a -> granted
         ACQUIRE j a -> granted
         ACQUIRE i a -> granted",
    );
    let raised = ahead(&world, 1000);
    assert_eq!(raise(&mut world, "MEXTEND 2 k j a", raised), "2");
    assert_eq!(world.say("MACQUIRE 2 k j a"), "granted");
    assert_eq!(world.fence("k", "a"), raised);
    assert_eq!(world.fence("j", "a"), raised);
    // Not under one fence, so all get a new one.
    assert_eq!(world.say("MACQUIRE 3 k j i a"), "granted");
    let fences = ["k", "j", "i"].map(|key| world.fence(key, "a"));
    assert!(fences[0] > raised && fences.iter().all(|fence| *fence == fences[0]));
}

#[test]
fn each_key_keeps_its_fence_if_that_is_greater() {
    let mut world = play("ACQUIRE k a -> granted\nACQUIRE j a -> granted");
    let (low, high) = (ahead(&world, 1000), ahead(&world, 2000));
    raise(&mut world, "EXTEND j a", high);
    assert_eq!(raise(&mut world, "MEXTEND 2 k j a", low), "2");
    assert_eq!([world.fence("k", "a"), world.fence("j", "a")], [low, high]);
}

/// Holders with one fence are all found by their tokens, in a list and in trees.
#[test]
fn shared_holders_may_have_one_fence() {
    for count in [3, 40] {
        let mut world = World::new();
        let raised = ahead(&world, 1_000_000);
        let tokens: Vec<String> = (0..count).map(|n| format!("t{n:02}")).collect();
        for token in &tokens {
            assert_eq!(
                world.say(&format!("ACQUIRE k {token} SHARED LIMIT 40")),
                "granted"
            );
        }
        for token in tokens.iter().rev() {
            assert_eq!(raise(&mut world, &format!("EXTEND k {token}"), raised), "1");
        }
        let fences: Vec<u64> = world
            .lock("k")
            .holders()
            .iter()
            .map(|own| own.fence)
            .collect();
        assert_eq!(fences, vec![raised; count]);
        let holders = tokens.iter().map(|token| format!("{token}#1"));
        assert_eq!(world.holders("k"), holders.collect::<Vec<_>>());
        let replica = world.replica.lock(&name("k"));
        assert_eq!(replica.holders(), world.lock("k").holders());
        for (gone, token) in (1..).zip(&tokens) {
            assert_eq!(world.say(&format!("RELEASE k {token}")), "1");
            assert_eq!(world.lock("k").holders().len(), count - gone);
        }
    }
}

/// Another shared holder's fence doesn't stand in for the own one.
#[test]
fn an_upgrade_after_a_raise_has_a_fence_of_its_own() {
    let mut world = play(
        "ACQUIRE k a -> granted
         ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted",
    );
    let raised = world.fence("k", "b");
    assert_eq!(raise(&mut world, "EXTEND k a", raised), "1");
    assert_eq!(world.fence("k", "a"), raised);
    world.say("RELEASE k a");
    assert_eq!(world.say("ACQUIRE k b"), "granted");
    assert!(world.fence("k", "b") > raised);
}

/// A client that died in the tick of its hand-over: another command raised the fence meanwhile, so
/// the token knows of the grant.
#[test]
fn a_hand_over_whose_fence_was_raised_is_not_taken_back() {
    let mut world = play(
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         RELEASE k a -> 1",
    );
    let raised = ahead(&world, 1000);
    assert_eq!(raise(&mut world, "EXTEND k b", raised), "1");
    world.take_back_last();
    assert_eq!(world.holders("k"), ["b#1"]);
}
