//! Take-backs: a hand-over is reversed, because its client was gone before it got the reply.
//!
//! - A take-back reverses this grant and no other. The token has again what it had before.
//! - With KEEP the waiter returns to its position.
//! - A lock that was renamed is taken back at its new name.

use redis_lock_core::budget::MOST_A_FIRING;

use super::scene::play;
use crate::world::name;

#[test]
fn a_take_back_undoes_this_grant_and_no_other() {
    let mut world = play(
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         RELEASE k a -> 1
         WAIT k c -> waits
         < WAIT k b: granted",
    );
    let hand_over = world.handed_over.clone();
    world.take_back_last();
    assert_eq!(world.heard(), ["WAIT k c: granted"]);
    world.say("RELEASE k c");
    world.say("ACQUIRE k b");
    world.handed_over = hand_over;
    world.take_back_last();
    assert_eq!(
        world.holders("k"),
        ["b#1"],
        "a later grant to the same token"
    );
}

#[test]
fn a_take_back_gives_back_what_the_token_had_before() {
    let mut world = play(
        "ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a -> waits
         WAIT k c SHARED -> waits
         RELEASE k b -> 1
         < WAIT k a: granted",
    );
    world.take_back_last();
    assert_eq!(world.holders("k"), ["a#1", "c#1"]);
    assert_eq!(world.heard(), ["WAIT k c SHARED: granted"]);
}

#[test]
fn a_take_back_follows_a_lock_that_was_renamed() {
    let mut world = play(
        "ACQUIRE k a -> granted
         ACQUIRE l b -> granted
         MWAIT 2 k l a KEEP 100 -> waits
         RELEASE l b -> 1
         < MWAIT 2 k l a KEEP 100: granted
         RENAME k z
         RENAME l i",
    );
    world.take_back_last();
    assert_eq!(world.holders("z"), ["a#1"], "what the token had before");
    assert!(world.holders("i").is_empty());
    let places = ["k", "l"].map(|key| world.table.queues().position_count(&name(key)));
    assert_eq!(places, [1, 1], "the place stays at the old names");
}

/// The client is lost between the change of a name and the end of its wait for replicas.
#[test]
fn a_take_back_before_its_reply_follows_a_lock_that_was_renamed() {
    let wait = "MWAIT 2 k l a REPLICAS 1";
    let mut world = play(
        "REPLICAS 1
         ACQUIRE k a -> granted
         ACQUIRE l b -> granted
         MWAIT 2 k l a REPLICAS 1 -> waits
         RELEASE l b -> 1",
    );
    for (from, to) in [("k", "z"), ("z", "y"), ("l", "i")] {
        world.rename_unseen(from, to);
    }
    world.hang_up_unseen(wait);
    assert_eq!(world.holders("y"), ["a#1"], "what the token had before");
    assert!(world.holders("i").is_empty());
}

/// Both locks of the hand-over stay, the one that moves and the other one.
#[test]
fn a_grant_before_its_reply_that_another_command_was_told_of_is_not_taken_back() {
    let mut world = play(
        "REPLICAS 1
         ACQUIRE k a -> granted
         MWAIT 2 k l b REPLICAS 1 -> waits
         RELEASE k a -> 1
         EXTEND k b -> 1",
    );
    world.rename_unseen("k", "j");
    world.hang_up_unseen("MWAIT 2 k l b REPLICAS 1");
    let held = ["j", "l"].map(|key| world.holders(key));
    assert_eq!(held, [["b#1"], ["b#1"]]);
}

/// More waits are lost than one operation ends, so the wait of b is still there.
#[test]
fn a_grant_before_its_reply_that_another_command_was_told_of_at_its_new_name_stays() {
    let mut world = play(
        "REPLICAS 1
         ACQUIRE m x -> granted
         ACQUIRE k a -> granted
         WAIT k b REPLICAS 1 -> waits
         RELEASE k a -> 1",
    );
    for _ in 0..=MOST_A_FIRING {
        assert_eq!(world.say("ACQUIRE m x REPLICAS 1"), "held back");
    }
    world.rename_unseen("m", "n");
    world.rename_unseen("k", "j");
    assert_eq!(world.say("EXTEND j b"), "1");
    world.hang_up_unseen("WAIT k b REPLICAS 1");
    assert_eq!(world.holders("j"), ["b#1"]);
}

#[test]
fn a_take_back_of_a_session_before_its_reply_gives_back_a_lock_that_was_renamed() {
    let mut world = play(
        "REPLICAS 1
         ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a SESSION REPLICAS 1 -> waits
         RELEASE k b -> 1
         = k a#1",
    );
    world.rename_unseen("k", "j");
    world.hang_up_unseen("WAIT k a SESSION REPLICAS 1");
    assert_eq!(world.holders("j"), ["a#1"], "what the token had before");
}

#[test]
fn a_take_back_leaves_a_lock_that_another_one_has_replaced() {
    let mut world = play(
        "ACQUIRE k h -> granted
         ACQUIRE i c -> granted
         MWAIT 2 k l a -> waits
         RELEASE k h -> 1
         < MWAIT 2 k l a: granted
         RENAME k l
         RENAME i k",
    );
    world.take_back_last();
    assert!(world.holders("l").is_empty());
    assert_eq!(world.holders("k"), ["c#1"]);
}

#[test]
fn a_session_that_closed_takes_nothing_from_what_the_token_had_before() {
    let mut world = play(
        "ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a SESSION -> waits
         RELEASE k b -> 1
         < WAIT k a SESSION: granted",
    );
    let hand_over = world.handed_over.last().cloned().expect("a hand-over");
    world.table.untie(&hand_over);
    world.close("WAIT k a SESSION");
    world.take_back_last();
    assert_eq!(world.holders("k"), ["a#1"]);
    assert_eq!(world.say("ACQUIRE k c SHARED"), "granted");
}

/// Like a renewal after the clock was set back.
#[test]
fn a_take_back_never_shortens_the_lease_of_a_session() {
    let mut world = play(
        "ACQUIRE k a SHARED PX 9000 SESSION -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a PX 20000 -> waits
         RELEASE k b -> 1
         < WAIT k a PX 20000: granted",
    );
    world.set_clock(-5_000);
    world.take_back_last();
    assert_eq!(world.lease_ms("k", "a"), 14_000);
    assert_eq!(world.say("ACQUIRE k b SHARED"), "granted");
}

#[test]
fn a_session_of_another_token_of_the_connection_ends_with_it() {
    let mut world = play("ACQUIRE k x SHARED LIMIT 2 -> granted");
    let waits = "WAIT k b SHARED LIMIT 2 SESSION";
    world.say_as(7, "ACQUIRE k a SHARED LIMIT 2 SESSION");
    assert_eq!(world.say_as(7, waits), "waits");
    world.say("RELEASE k x");
    assert_eq!(world.holders("k"), ["a#1", "b#1"]);
    let hand_over = world.handed_over.last().cloned().expect("a hand-over");
    world.table.untie(&hand_over);
    world.close(waits);
    world.take_back_last();
    assert!(world.holders("k").is_empty(), "{:?}", world.holders("k"));
}

#[test]
fn a_grant_taken_back_goes_back_to_its_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a KEEP 100 BLOCK 900 -> waits
        WAIT k b PX 5000 -> waits
        RELEASE k h -> 1
        < WAIT k a KEEP 100 BLOCK 900: granted",
    );
    world.take_back_last();
    assert_eq!(world.heard(), ["WAIT k b PX 5000: granted"]);
    assert_eq!(world.say("QUEUE k c"), "place 2");
    world.pass_ms(100);
    assert_eq!(world.say("QUEUE k c"), "place 2");
    world.pass_ms(1);
    assert_eq!(world.say("QUEUE k c"), "place 1", "KEEP has ended");
    world.table.queues().check().expect("sound queues");
}

#[test]
fn a_grant_taken_back_needs_a_ticket_for_each_key_of_its_place() {
    for (max_tickets, is_kept) in [(0, true), (2, true), (1, false)] {
        let mut world = play(
            "ACQUIRE k h -> granted
             MWAIT 2 j k a KEEP 100 -> waits
             RELEASE k h -> 1",
        );
        world.max_tickets = max_tickets;
        world.take_back_last();
        assert!(world.holders("j").is_empty());
        let places = world.table.queues().place_count();
        assert_eq!(places, if is_kept { 2 } else { 0 }, "{max_tickets}");
        let refusals = world.table.counters().max_tickets_refusals;
        assert_eq!(refusals, u64::from(!is_kept), "{max_tickets}");
    }
}

#[test]
fn a_grant_taken_back_without_keep_leaves_no_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a -> waits
        RELEASE k h -> 1",
    );
    world.take_back_last();
    assert_eq!(world.table.queues().len(), 0);
}

#[test]
fn who_came_back_meanwhile_has_one_place() {
    for again in ["QUEUE k a", "WAIT k a"] {
        let mut world = play(
            "ACQUIRE k h -> granted
            WAIT k a KEEP 100 -> waits
            WAIT k b PX 5000 -> waits
            RELEASE k h -> 1
            DEL k
            < WAIT k a KEEP 100: granted | WAIT k b PX 5000: granted",
        );
        world.handed_over.pop();
        world.say(again);
        world.take_back_last();
        assert_eq!(world.table.queues().len(), 1, "{again}");
        world.table.queues().check().expect("sound queues");
    }
}

#[test]
fn who_waits_for_an_upgrade_meanwhile_has_one_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a SHARED KEEP 100 -> waits
        WAIT k b SHARED -> waits
        RELEASE k h -> 1
        WAIT k a -> waits",
    );
    let hand_over = world.handed_over.remove(0);
    world.take_back(&hand_over);
    assert_eq!(world.holders("k"), ["b#1"]);
    assert_eq!(world.table.queues().len(), 1);
}

#[test]
fn a_grant_that_the_same_operation_confirmed_is_not_taken_back() {
    for confirming in [
        "ACQUIRE k a PX 900",
        "EXTEND k a PX 900",
        "QUEUE k a PX 900",
        "WAIT k a PX 900",
    ] {
        let mut world = play(
            "ACQUIRE k h PX 50 -> granted
             WAIT k a -> waits
             WAIT k b -> waits
             LATE 51",
        );
        let answer = world.say(confirming);
        assert!(
            ["granted", "1"].contains(&answer.as_str()),
            "{confirming}: {answer}"
        );
        let hand_over = world.handed_over.last().expect("a hand-over");
        assert!(!hand_over.is_revocable(), "{confirming}");
    }
    // One of the keys is enough.
    for confirming in ["ACQUIRE k a PX 900", "MEXTEND 2 k l a PX 900"] {
        let mut world = play(
            "ACQUIRE l a -> granted
             ACQUIRE k h PX 50 -> granted
             MWAIT 2 j k a -> waits
             LATE 51",
        );
        assert_ne!(world.say(confirming), "0", "{confirming}");
        let hand_over = world.handed_over.last().expect("a hand-over");
        assert!(!hand_over.is_revocable(), "{confirming}");
    }
}

#[test]
fn a_grant_that_an_operation_of_another_token_made_may_be_taken_back() {
    for (mode, answer) in [("", "nil"), ("SHARED", "granted")] {
        let mut world = play(&format!(
            "ACQUIRE k h PX 50 -> granted
             WAIT k a {mode} -> waits
             LATE 51
             ACQUIRE k b {mode} -> {answer}",
        ));
        let hand_over = world.handed_over.last().expect("a hand-over");
        assert!(hand_over.is_revocable(), "{mode}");
        world.say("RELEASE k a");
    }
}
