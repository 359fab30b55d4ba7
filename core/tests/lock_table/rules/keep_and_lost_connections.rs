//! LOCK.WAIT ... KEEP: a waiter keeps its position while its connection is lost, and after its BLOCK.
//!
//! - Such a waiter is absent: it is not granted, and the waiters behind it pass it.
//! - Its token takes the position up again with LOCK.WAIT or LOCK.QUEUE and the same request.
//! - The position ends with KEEP, or when the token gives it up.
//! - A lost connection counts from its loss, even before the timer fires.

use redis_lock_core::state::queue::Position;
use redis_lock_core::state::waiter::WaiterId;

use super::scene::{play, scenes};
use crate::world::{self, World};

scenes! {
    // ---- An absent waiter

    a_place_stays_for_keep_when_its_connection_is_lost: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 100
        QUEUE k c -> place 3                // an absent waiter counts
        +99
        WAIT k a -> waits
        BYE WAIT k b
        RELEASE k h -> 1
        < WAIT k a: granted
        = k a#1";

    a_place_whose_connection_was_lost_is_gone_after_keep: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 -> waits
        QUEUE k b KEEP 500 -> place 2
        BYE WAIT k a KEEP 100
        +100
        QUEUE k b KEEP 500 -> place 2
        +1
        QUEUE k b KEEP 500 -> place 1
        WAIT k a -> waits
        RELEASE k h -> 1
        = k b#1";

    nobody_is_granted_a_place_where_nobody_stands: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 500
        RELEASE k h -> 1
        < WAIT k b: granted
        RELEASE k b -> 1
        = k
        ACQUIRE k c -> granted
        WAIT k d -> waits
        WAIT k a -> waits
        RELEASE k c -> 1
        < WAIT k a: granted
        RELEASE k a -> 1
        < WAIT k d: granted";

    the_head_that_is_lost_lets_those_behind_it_go: "
        ACQUIRE k h SHARED -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b SHARED -> waits
        BYE WAIT k a KEEP 500
        < WAIT k b SHARED: granted
        ACQUIRE k c SHARED -> granted
        WAIT k a -> waits
        ACQUIRE k d SHARED -> nil";

    a_lease_is_waited_for_behind_one_who_is_not_there: "
        ACQUIRE k h -> granted
        WAIT k b KEEP 500 -> waits
        BYE WAIT k b KEEP 500
        DEL k
        ACQUIRE k c PX 30 -> granted
        WAIT k a -> waits
        +31
        < WAIT k a: granted
        EXTEND k a PX 30 -> 1
        WAIT k b -> waits
        +31
        < WAIT k b: granted";

    several_keys_are_kept_and_hold_nobody_up: "
        ACQUIRE x h PX 5000 -> granted
        MWAIT 2 x y a KEEP 500 -> waits
        ACQUIRE y c -> nil
        BYE MWAIT 2 x y a KEEP 500
        ACQUIRE y c -> granted
        MWAIT 2 y x a -> waits
        RELEASE y c -> 1
        RELEASE x h -> 1
        < MWAIT 2 y x a: granted";

    a_lost_upgrade_still_refuses_a_second_one: "
        ACQUIRE k a SHARED PX 5000 -> granted
        ACQUIRE k b SHARED PX 5000 -> granted
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        ACQUIRE k c SHARED -> granted
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        RELEASE k c -> 1
        RELEASE k b -> 1
        = k a#1
        WAIT k a -> granted";

    // ---- Its return and its BLOCK

    a_lost_place_can_be_taken_up_by_a_queue: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 BLOCK 200 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 100 BLOCK 200
        QUEUE k a KEEP 500 -> place 1
        +499                                // the BLOCK is forgotten
        RELEASE k h -> 1
        = k a#1";

    whoever_comes_back_holds_up_those_behind_it_again: "
        ACQUIRE k h SHARED -> granted
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        ACQUIRE k b SHARED -> granted
        QUEUE k a -> place 1
        ACQUIRE k c SHARED -> nil
        WAIT k d SHARED -> waits
        CANCEL k a -> 1
        < WAIT k d SHARED: granted";

    a_connection_that_comes_back_brings_its_own_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 200 -> waits
        +51
        BYE WAIT k a KEEP 500 BLOCK 200
        +50
        WAIT k a BLOCK 1000 -> waits
        +1000
        < nothing
        +1
        < WAIT k a BLOCK 1000: nil
        QUEUE k b -> place 1                // it brought no KEEP
        CANCEL k b -> 1
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        WAIT k a BLOCK 30 -> waits
        +31
        < WAIT k a BLOCK 30: nil";

    a_connection_that_takes_over_a_living_one_brings_its_own_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 200 -> waits
        WAIT k a KEEP 500 BLOCK 1000 -> waits
        < WAIT k a KEEP 500 BLOCK 200: UNBLOCKED
        +1000
        < nothing
        +1
        < WAIT k a KEEP 500 BLOCK 1000: nil";

    // ---- The end of its BLOCK

    a_place_stays_for_keep_after_its_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        QUEUE k b KEEP 5000 -> place 2
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        QUEUE k b KEEP 5000 -> place 2
        +100
        QUEUE k b KEEP 5000 -> place 2
        +1
        QUEUE k b KEEP 5000 -> place 1";

    a_waiter_that_asks_again_and_again_keeps_its_turn: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        WAIT k b -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        WAIT k a BLOCK 20 KEEP 100 -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        +50
        WAIT k a BLOCK 20 KEEP 100 -> waits
        RELEASE k h -> 1
        < WAIT k a BLOCK 20 KEEP 100: granted";

    a_grant_passes_a_waiter_between_two_waits_and_its_turn_stays: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        WAIT k b PX 5000 -> waits
        WAIT k c -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        RELEASE k h -> 1
        < WAIT k b PX 5000: granted
        WAIT k a -> waits
        RELEASE k b -> 1
        < WAIT k a: granted";

    the_end_of_a_block_lets_those_behind_it_go: "
        ACQUIRE k h SHARED PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        WAIT k b SHARED PX 5000 -> waits
        MWAIT 2 k j c BLOCK 30 KEEP 100 -> waits
        WAIT j d -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil | WAIT k b SHARED PX 5000: granted
        +10
        < MWAIT 2 k j c BLOCK 30 KEEP 100: nil | WAIT j d: granted";

    a_lease_that_ends_with_the_block_grants_the_waiter: "
        ACQUIRE k h PX 20 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: granted";

    an_upgrade_beyond_its_block_still_refuses_a_second_one: "
        ACQUIRE k a SHARED PX 5000 -> granted
        ACQUIRE k b SHARED PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        +101
        WAIT k b -> waits";

    a_cancel_ends_a_place_beyond_its_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        QUEUE k b -> place 2
        +21
        < WAIT k a BLOCK 20 KEEP 100: nil
        CANCEL k a -> 1
        < nothing
        QUEUE k b -> place 1";

    a_late_timer_leaves_the_place_to_the_next_command: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        QUEUE k c KEEP 5000 -> place 2
        LATE 30
        WAIT k b -> waits
        < WAIT k a BLOCK 20 KEEP 100: nil
        QUEUE k c KEEP 5000 -> place 2
        RELEASE k h -> 1
        = k c#1";

    contention_goes_on_while_the_place_stays: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a BLOCK 20 KEEP 100 -> waits
        +21
        HOT k waits 1 waiters 1 waited-ms 21 longest-wait-ms 21
        < WAIT k a BLOCK 20 KEEP 100: nil
        +10
        WAIT k a BLOCK 20 -> waits
        HOT k waits 1 waiters 1 waited-ms 31 longest-wait-ms 31";

    another_mode_takes_up_nothing: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 BLOCK 100 -> waits
        QUEUE k b -> place 2
        BYE WAIT k a KEEP 500 BLOCK 100
        WAIT k a SHARED BLOCK 300 -> waits
        QUEUE k b -> place 1
        +300
        < nothing
        +1
        < WAIT k a SHARED BLOCK 300: nil";

    // ---- Its end

    a_lost_place_forgets_its_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 50 -> waits
        QUEUE k b KEEP 5000 -> place 2
        BYE WAIT k a KEEP 500 BLOCK 50
        +500
        QUEUE k b KEEP 5000 -> place 2
        +1
        QUEUE k b KEEP 5000 -> place 1
        WAIT k a BLOCK 300 -> waits         // a new wait with its own BLOCK
        +300
        < nothing
        +1
        < WAIT k a BLOCK 300: nil";

    a_lost_place_is_cancelled_and_written_over_as_others_are: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        BYE WAIT k b KEEP 500
        QUEUE k c -> place 3
        CANCEL k a -> 1
        < nothing
        QUEUE k c -> place 2
        SET k
        DEL k
        < nothing
        ACQUIRE k h -> granted
        QUEUE k c -> place 1";

    what_the_server_answered_by_itself_is_given_up: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        QUEUE k b -> place 2
        UNBLOCK WAIT k a KEEP 500
        QUEUE k b -> place 1";
}

// ---- Before the timer fires

#[test]
fn who_left_for_several_keys_holds_nobody_up_before_the_timer_fires() {
    for keep in ["", " KEEP 50"] {
        let mut world = play("MACQUIRE 3 x y z h -> granted");
        let lost = format!("MWAIT 3 x y z a{keep}");
        world.say(&lost);
        world.say("WAIT y b");
        world.say("MQUEUE 2 y z p KEEP 900");
        assert_eq!(world.hang_up_unseen(&lost), None);
        assert_eq!(world.say("RELEASE y h"), "1");
        assert_eq!(world.heard(), ["WAIT y b: granted"]);
        assert_eq!(world.say("RELEASE x h"), "1");
        assert_eq!(world.say("ACQUIRE x c"), "granted");
        assert_eq!(world.say("RELEASE z h"), "1");
        assert_eq!(world.say("RELEASE y b"), "1");
        assert_eq!(world.holders("z"), ["p#1"]);
        world.table.queues().check().expect("sound queues");
        world.fire(Vec::new());
        world.table.queues().check().expect("sound queues");
        world.pass_ms(51);
        assert!(world.table.queues().is_empty());
    }
}

#[test]
fn who_comes_back_before_the_timer_fires_stands_where_it_stood() {
    let mut world = play(
        "MACQUIRE 3 x y z h -> granted
         MWAIT 3 x y z a KEEP 50 -> waits
         MWAIT 2 y z b -> waits",
    );
    world.hang_up_unseen("MWAIT 3 x y z a KEEP 50");
    assert_eq!(world.say("MWAIT 3 x y z a"), "waits");
    world.table.queues().check().expect("sound queues");
    assert_eq!(world.say("MRELEASE 3 x y z h"), "3");
    assert_eq!(world.heard(), ["MWAIT 3 x y z a: granted"]);
    world.table.queues().check().expect("sound queues");
}

#[test]
fn who_comes_back_behind_another_before_the_timer_fires_stands_where_it_stood() {
    let mut world = play(
        "MACQUIRE 3 x y z h -> granted
         MWAIT 3 x y z b -> waits
         MWAIT 3 x y z a KEEP 50 -> waits",
    );
    world.hang_up_unseen("MWAIT 3 x y z a KEEP 50");
    assert_eq!(world.say("MWAIT 3 x y z a"), "waits");
    world.table.queues().check().expect("sound queues");
    world.fire(Vec::new());
    assert_eq!(world.say("MWAIT 3 x y z c"), "waits");
    for token in ["h", "b"] {
        assert_eq!(world.say(&format!("MRELEASE 3 x y z {token}")), "3");
    }
    assert_eq!(
        world.heard(),
        ["MWAIT 3 x y z b: granted", "MWAIT 3 x y z a: granted"]
    );
    world.table.queues().check().expect("sound queues");
}

#[test]
fn a_lost_place_behind_another_is_cancelled_before_the_timer_fires() {
    let mut world = play(
        "MACQUIRE 2 x y h -> granted
         MWAIT 2 x y b -> waits
         MWAIT 2 x y a KEEP 50 -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y a KEEP 50");
    assert_eq!(world.say("CANCEL x a"), "1");
    world.table.queues().check().expect("sound queues");
    assert_eq!(world.table.queues().queue_len(&world::name("y")), 1);
}

#[test]
fn who_left_for_several_keys_is_not_counted() {
    let mut world = play(
        "ACQUIRE x h -> granted
         WAIT x a -> waits
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y b");
    assert_eq!(world.table.queues().len(), 2);
    assert_eq!(world.table.queues().queue_len(&world::name("x")), 2);
    assert_eq!(world.table.queues().queue(&world::name("x")).count(), 2);
    assert_eq!(world.table.queues().queue_len(&world::name("y")), 0);
}

#[test]
fn a_lease_is_seen_to_end_where_who_waited_before_has_just_left() {
    let mut world = play(
        "ACQUIRE x h PX 40 -> granted
         MWAIT 2 x y a -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y a");
    assert_eq!(world.say("WAIT x b"), "waits");
    world.pass_ms(41);
    assert_eq!(world.heard(), ["WAIT x b: granted"]);
}

// ---- Limits, and connections that were replaced

#[test]
fn a_lost_place_needs_a_ticket() {
    let mut world = World::new();
    world.max_tickets = 1;
    world.say("ACQUIRE k h PX 5000");
    for (token, left) in [("a", 1), ("b", 1)] {
        let line = format!("WAIT k {token} KEEP 500");
        world.say(&line);
        world.hang_up(&line);
        assert_eq!(world.table.queues().len(), left);
    }
    assert_eq!(world.table.counters().max_tickets_refusals, 1);
    assert_eq!(world.say("QUEUE k a"), "place 1");
}

#[test]
fn a_place_beyond_its_block_needs_a_ticket_for_each_key() {
    let mut world = World::new();
    world.max_tickets = 2;
    world.say("MACQUIRE 2 k j h PX 5000");
    world.say("MWAIT 2 k j a BLOCK 20 KEEP 500");
    world.say("WAIT k b BLOCK 20 KEEP 500");
    world.pass_ms(21);
    assert_eq!(world.table.queues().place_count(), 2);
    assert_eq!(world.table.queues().len(), 1);
    let counters = world.table.counters();
    assert_eq!((counters.max_tickets_refusals, counters.timeouts), (1, 1));
    world.pass_ms(501);
    assert_eq!(world.table.counters().lapses, 1);
}

#[test]
fn a_connection_lost_after_its_block_leaves_the_place_alone() {
    let mut world = play(
        "ACQUIRE k h -> granted
         WAIT k a BLOCK 20 KEEP 100 -> waits",
    );
    let (waiter_id, position) = first_wait(&world);
    world.pass_ms(21);
    assert_eq!(world.table.lose(waiter_id, position, world.now_ms, 0), None);
    assert_eq!(world.table.leave(waiter_id, position, world.now_ms), None);
    assert_eq!(world.table.queues().place_count(), 1);
}

#[test]
fn a_block_that_ends_while_nothing_may_be_granted_leaves_its_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
         WAIT k a BLOCK 20 KEEP 100 -> waits
         WAIT k b -> waits",
    );
    world.now_ms += 21;
    let decision = world.outside(|table, outside| table.time_out_due(10, outside));
    world.carry_out(decision);
    assert_eq!(world.heard(), ["WAIT k a BLOCK 20 KEEP 100: nil"]);
    assert_eq!(world.table.queues().place_count(), 1);
    assert_eq!(world.say("WAIT k a"), "waits");
    assert_eq!(world.say("RELEASE k h"), "1");
    assert_eq!(world.heard(), ["WAIT k a: granted"]);
}

#[test]
fn a_lost_place_taken_up_by_a_wait_counts_as_new() {
    let mut world = World::new();
    world.max_waiters = 1;
    world.say("ACQUIRE k h PX 5000");
    world.say("WAIT k a KEEP 500");
    world.hang_up("WAIT k a KEEP 500");
    assert_eq!(world.say("WAIT k b"), "waits");
    assert!(world.say("WAIT k a").starts_with("MAXWAITERS"));
    assert_eq!(world.say("QUEUE k a"), "place 1");
}

#[test]
fn a_wait_that_is_over_ends_no_other_at_its_position() {
    let mut world = play(
        "ACQUIRE k h -> granted
         WAIT k a KEEP 100 -> waits",
    );
    let (name, older) = (world::name("k"), first_wait(&world));
    // The position goes to a newer connection of the same token.
    assert_eq!(world.say("WAIT k a BLOCK 500 KEEP 100"), "waits");
    let newer = first_wait(&world);
    assert_eq!(older.1, newer.1);
    assert_eq!(world.table.leave(older.0, older.1, 0), None);
    assert_eq!(world.table.lose(older.0, older.1, 0, 0), None);
    assert_eq!(world.table.queues().blocked_len(), 1);
    // The newer connection is lost, so the waiter is absent.
    let left = world.table.lose(newer.0, newer.1, 0, 0);
    assert_eq!(left.as_slice(), std::slice::from_ref(&name));
    assert_eq!(world.table.leave(newer.0, newer.1, 0), None);
    assert_eq!(world.table.lose(newer.0, newer.1, 0, 0), None);
    assert_eq!(world.table.queues().place_count(), 1);
    assert!(world.table.queues().has_queue(&name));
    world.table.queues().check().expect("sound queues");
}

/// Returns the first waiter for `k` and its position.
fn first_wait(world: &World) -> (WaiterId, Position) {
    let name = world::name("k");
    let (position, waiter) = world.table.queues().queue(&name).next().expect("a wait");
    (waiter.waiter_id, position)
}
