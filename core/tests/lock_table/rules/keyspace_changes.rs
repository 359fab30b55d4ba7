//! Changes of a key that no lock command made: DEL, another type, RENAME, EXPIRE, a moved slot.
//!
//! - DEL frees the lock, and the next waiter is granted.
//! - A value of another type ends all waits for the key.
//! - RENAME moves the lock with its holders. A waiter whose token holds the lock then is granted.
//! - EXPIRE can shorten a lease and can't lengthen it.
//! - A lock that may be on another server is granted to no waiter.
//! - A restored lock raises the fences above those of its grants.

use super::scene::{play, scenes};
use crate::world;

scenes! {
    // ---- DEL

    del_frees_by_force: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        DEL k
        < WAIT k b: granted";

    a_key_that_goes_grants_the_place: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        DEL k
        = k a#1
        DEL k
        = k
        ACQUIRE k a -> granted
        QUEUE k b -> place 1
        RENAME k j
        = k b#1
        = j a#1";

    // ---- Another type

    another_type_ends_all_waits: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c BLOCK 10 -> waits
        SET k
        < WAIT k b: WRONGTYPE | WAIT k c BLOCK 10: WRONGTYPE
        ACQUIRE k d -> WRONGTYPE Operation against a key holding the wrong kind of value";

    another_type_ends_places_without_a_word: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        WAIT k w -> waits
        SET k
        < WAIT k w: WRONGTYPE
        QUEUE k a -> WRONGTYPE Operation against a key holding the wrong kind of value";

    one_of_several_of_another_type_ends_the_wait: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        WAIT x c -> waits
        SET y
        < MWAIT 2 x y m: WRONGTYPE
        RELEASE x a -> 1
        < WAIT x c: granted";

    // ---- RENAME

    a_waiter_that_came_to_hold_is_granted_when_it_asks_again: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        ACQUIRE other t -> granted
        RENAME other k
        < WAIT k t: granted
        = k t#1";

    a_token_that_comes_to_hold_by_rename_needs_no_turn_there: "
        ACQUIRE k1 x -> granted
        WAIT k1 t5 -> waits
        MWAIT 2 k1 k2 t6 -> waits
        ACQUIRE k3 t6 -> granted
        RENAME k3 k1
        < MWAIT 2 k1 k2 t6: granted
        = k1 t6#1
        = k2 t6#1
        ACQUIRE k2 zz -> nil";

    one_of_many_that_come_to_hold_by_rename_needs_no_turn_there: "
        ACQUIRE k1 x -> granted
        WAIT k1 t5 -> waits
        MWAIT 2 k1 k2 t6 SHARED -> waits
        ACQUIRE k3 t6 SHARED -> granted
        ACQUIRE k3 u SHARED -> granted
        ACQUIRE k3 v SHARED -> granted
        RENAME k3 k1
        < MWAIT 2 k1 k2 t6 SHARED: granted
        = k1 u#1 v#1 t6#1
        = k2 t6#1";
}

// ---- EXPIRE

#[test]
fn an_expiry_by_hand_shortens_and_never_lengthens() {
    let mut world = play("ACQUIRE k a PX 1000 -> granted\nWAIT k b -> waits");
    world.expire("k", Some(world.wall_ms() + 5000));
    world.fire(vec![world::name("k")]);
    assert_eq!(world.lease_ms("k", "a"), 1000);
    world.expire("k", Some(world.wall_ms() + 10));
    assert_eq!(world.lease_ms("k", "a"), 10, "before anything was settled");
    world.fire(vec![world::name("k")]);
    world.pass_ms(11);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

#[test]
fn an_expiry_by_hand_ends_a_session_too() {
    let mut world = play("ACQUIRE k a PX 900 SESSION -> granted\nWAIT k b -> waits");
    world.expire("k", Some(world.wall_ms() + 100));
    world.fire(vec![world::name("k")]);
    world.pass_ms(101);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

// ---- A moved slot

#[test]
fn a_lock_that_is_away_is_granted_to_nobody() {
    let mut world = play(
        "ACQUIRE y a -> granted
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.send_away("x");
    assert_eq!(world.say("RELEASE y a"), "1");
    assert_eq!(world.heard(), [""; 0]);
    assert_eq!(world.holders("y"), [""; 0]);
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms + 20));
    world.pass_ms(20);
    assert_eq!(world.heard(), [""; 0]);
    world.bring_back("x");
    world.pass_ms(20);
    assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
}

#[test]
fn a_lock_that_is_away_is_not_granted_to_a_wait_that_is_sent_again() {
    for again in [
        "WAIT x b PX 7",
        "WAIT x b SHARED",
        "QUEUE x b",
        "MWAIT 1 x b",
    ] {
        let mut world = play(
            "ACQUIRE x a -> granted
             WAIT x b -> waits",
        );
        world.send_away("x");
        world.table.queues().check().expect("sound queues");
        let answer = world.say(again);
        assert!(
            ["waits", "place 1"].contains(&answer.as_str()),
            "{again}: {answer}"
        );
        assert!(world.holders("x").is_empty(), "{again}");
        world.bring_back("x");
        world.delete("x");
        assert_eq!(world.holders("x"), ["b#1"], "{again}");
    }
}

/// Whatever a client does behind the head of the queue, the table looks again.
#[test]
fn a_lock_that_was_away_is_granted_whoever_comes_meanwhile() {
    let meanwhile: [&[&str]; 5] = [
        &["QUEUE x c KEEP 5000", "QUEUE x c KEEP 5000"],
        &["WAIT x c KEEP 500", "WAIT x c"],
        &["WAIT x c", "CANCEL x c"],
        &["ACQUIRE x c"],
        &["ACQUIRE z d", "MWAIT 2 x z c", "RELEASE z d"],
    ];
    for lines in meanwhile {
        let mut world = play("ACQUIRE y a -> granted\nMWAIT 2 x y b -> waits");
        world.send_away("x");
        world.say("RELEASE y a");
        for line in lines {
            world.say(line);
        }
        world.bring_back("x");
        world.say(lines[lines.len() - 1]);
        world.pass_ms(20);
        let granted = "MWAIT 2 x y b: granted".to_owned();
        assert!(world.heard().contains(&granted), "{lines:?}");
    }
}

#[test]
fn grants_beside_a_restored_lock_have_greater_fences() {
    let elsewhere = play("ACQUIRE k a SHARED -> granted\nACQUIRE k b SHARED -> granted");
    let lock = elsewhere.dump("k").expect("a lock");
    let mut world = play("");
    world.restore_unseen("k", &lock);
    world.fire(Vec::new());
    assert_eq!(world.say("ACQUIRE k c SHARED"), "granted");
    let fences = ["a", "b", "c"].map(|token| world.fence("k", token));
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}
