//! LOCK.RELEASE ... LEAVE: a token ends all that it has at a key, and its late commands are turned away.
//!
//! - The reply, the effects and the notifications are those of a LOCK.CANCEL and a RELEASE ALL at once.
//! - Until the mark ends, ACQUIRE, WAIT and QUEUE of the token get LEFT at the key.
//! - Only time and `lock.max-tickets` end a mark.

use super::scene::{assert_hot, play, scenes};
use crate::world::World;

const LEFT: &str = "LEFT this token has left the lock by LOCK.RELEASE ... LEAVE";

scenes! {
    // ---- A token that holds

    a_holder_that_leaves_releases_all_its_holds: "
        ACQUIRE k a HOLDS 3 -> granted
        WAIT k b -> waits
        RELEASE k a LEAVE 100 -> 1
        < WAIT k b: granted
        = k b#1
        RELEASE k a LEAVE 100 -> 0";

    late_commands_are_turned_away_until_the_mark_ends: "
        ACQUIRE k a -> granted
        RELEASE k a LEAVE 100 -> 1
        +100
        ACQUIRE k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        WAIT k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        QUEUE k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        = k
        +1
        ACQUIRE k a -> granted";

    other_tokens_and_keys_are_not_affected: "
        RELEASE k a LEAVE 100 -> 0
        ACQUIRE j a -> granted
        ACQUIRE k b -> granted
        EXTEND k a -> 0
        RELEASE k a -> 0
        CANCEL k a -> 0
        WAIT k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE";

    // ---- A token that waits

    a_waiter_that_leaves_is_unblocked_and_those_behind_it_move_up: "
        ACQUIRE k h SHARED -> granted
        WAIT k a -> waits
        WAIT k b SHARED -> waits
        RELEASE k a LEAVE 100 -> 0
        < WAIT k a: UNBLOCKED | WAIT k b SHARED: granted";

    a_holder_that_waits_too_leaves_at_once: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        WAIT k c -> waits
        RELEASE k a LEAVE 100 -> 1
        < WAIT k a: UNBLOCKED
        RELEASE k b -> 1
        < WAIT k c: granted";

    absent_waiters_and_places_end_too: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        QUEUE k b NOTIFY ch b-left -> place 2
        QUEUE k c -> place 3
        RELEASE k a LEAVE 100 -> 0
        < nothing
        QUEUE k c -> place 2
        RELEASE k b LEAVE 100 -> 0
        < ch: b-left
        QUEUE k c -> place 1";

    a_wait_for_several_keys_ends_as_a_whole: "
        ACQUIRE x h -> granted
        MWAIT 3 x y z a -> waits
        QUEUE y b -> place 2
        RELEASE z a LEAVE 100 -> 0
        < MWAIT 3 x y z a: UNBLOCKED
        = y b#1
        MACQUIRE 2 y z a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        WAIT x a -> waits";

    // ---- Several keys

    every_named_key_is_marked_and_no_other: "
        MACQUIRE 2 x y a -> granted
        MRELEASE 2 x z a LEAVE 100 -> 1
        ACQUIRE x a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        ACQUIRE z a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        ACQUIRE y a -> granted
        MACQUIRE 2 y z a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        = y a#1";

    another_type_changes_nothing: "
        ACQUIRE x a -> granted
        SET y
        MRELEASE 2 x y a LEAVE 100 -> WRONGTYPE Operation against a key holding the wrong kind of value
        = x a#1
        ACQUIRE x a -> granted
        WAIT y a -> WRONGTYPE Operation against a key holding the wrong kind of value";

    another_type_at_a_later_key_cancels_nothing: "
        ACQUIRE x h -> granted
        WAIT x a -> waits
        SET y
        MRELEASE 2 x y a LEAVE 100 -> WRONGTYPE Operation against a key holding the wrong kind of value
        < nothing
        RELEASE x h -> 1
        < WAIT x a: granted
        ACQUIRE x a -> granted";

    // ---- The mark's time

    a_second_leave_never_ends_the_mark_earlier: "
        RELEASE k a LEAVE 100 -> 0
        RELEASE k a LEAVE 10 -> 0
        RELEASE k a -> 0
        +100
        ACQUIRE k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        RELEASE k a LEAVE 100 -> 0
        +100
        ACQUIRE k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        +1
        ACQUIRE k a -> granted";

    a_mark_stays_with_its_key: "
        ACQUIRE k a -> granted
        ACQUIRE j h -> granted
        RELEASE j a LEAVE 100 -> 0
        DEL j
        RENAME k j
        ACQUIRE j a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        EXTEND j a -> 1
        RELEASE j a -> 1
        ACQUIRE k a -> granted";

    left_comes_before_another_type: "
        RELEASE k a LEAVE 100 -> 0
        SET k
        ACQUIRE k a -> LEFT this token has left the lock by LOCK.RELEASE ... LEAVE
        ACQUIRE k a SHARED LIMIT 0 -> ERR invalid limit, must be 1 to 4294967295";
}

#[test]
fn a_hand_over_taken_back_does_not_return_to_a_place_that_its_token_left() {
    let mut world = play(
        "ACQUIRE k h -> granted
         MWAIT 2 k j a KEEP 500 -> waits
         RELEASE k h -> 1
         < MWAIT 2 k j a KEEP 500: granted
         RELEASE j a LEAVE 100 -> 1",
    );
    world.take_back_last();
    assert!(world.holders("k").is_empty());
    assert!(world.table.queues().is_empty());
    assert_eq!(world.say("ACQUIRE k a"), "granted", "another key");
}

#[test]
fn the_oldest_mark_goes_beyond_the_limit_of_the_next_leave() {
    let mut world = World::new();
    // The judge knows the marks by the commands.
    world.is_judged = false;
    world.max_tickets = 2;
    world.say("MRELEASE 2 k j a LEAVE 100");
    world.say("RELEASE k b LEAVE 100");
    let mut left = ["k a", "j a", "k b"].iter();
    let is_marked = |world: &mut World, subject: &str| {
        let answer = world.say(&format!("ACQUIRE {subject}"));
        world.say(&format!("RELEASE {subject} ALL"));
        answer == LEFT
    };
    let marked: Vec<bool> = left.by_ref().map(|it| is_marked(&mut world, it)).collect();
    assert_eq!(marked.iter().filter(|marked| **marked).count(), 2);
    assert!(marked[2], "the newest");
    world.max_tickets = 1;
    assert_eq!(world.table.leave_marks().len(), 2);
    world.say("RELEASE k c LEAVE 100");
    assert_eq!(world.table.leave_marks().len(), 1);
    assert!(is_marked(&mut world, "k c"));
}

#[test]
fn a_leave_counts_as_a_release_and_a_cancel() {
    let mut world = play(
        "MACQUIRE 2 x y a SHARED -> granted
         ACQUIRE x b SHARED -> granted
         WAIT x a -> waits",
    );
    let before = *world.table.counters();
    world.say("MRELEASE 3 x y z a LEAVE 100");
    let after = *world.table.counters();
    assert_eq!(after.releases - before.releases, 2);
    assert_eq!(after.cancels - before.cancels, 1);
    assert_eq!(world.say("ACQUIRE x a"), LEFT);
    assert_hot(&world, "x", "waits 1 refused 0");
}
