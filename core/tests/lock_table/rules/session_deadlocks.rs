//! Deadlocks of sessions: connections that would wait for each other's SESSION grants forever.
//!
//! - The wait that would complete the deadlock is refused, and nothing else changes.
//! - A wait that a lease, a permit or a release by another client can end is no deadlock.
//! - A deadlock that arises without a new wait is not found.
//!
//! `deadlock.rs` in the folder above compares the search with an exhaustive one.

use super::scene::{play, scenes};
use crate::world;

scenes! {
    // ---- Refused

    two_who_would_wait_for_each_other_s_sessions: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        A> WAIT y a -> waits
        B> ACQUIRE x b -> nil
        B> WAIT x b BLOCK 100 -> DEADLOCK connections would wait for each other's SESSION grants
        B> RELEASE y b -> 1
        < WAIT y a: granted";

    a_circle_of_many: "
        A> ACQUIRE v a SESSION -> granted
        B> ACQUIRE w b SESSION -> granted
        C> ACQUIRE x c SESSION -> granted
        D> ACQUIRE y d SESSION -> granted
        A> WAIT w a -> waits
        B> WAIT x b -> waits
        C> MWAIT 2 y z c -> waits
        D> WAIT x d -> DEADLOCK connections would wait for each other's SESSION grants
        D> MWAIT 2 z v d -> DEADLOCK connections would wait for each other's SESSION grants
        E> WAIT v e -> waits        // waits for all of them, but is no part of the deadlock
        D> RELEASE y d -> 1
        < MWAIT 2 y z c: granted";

    a_connection_that_would_wait_for_itself: "
        A> ACQUIRE x a SESSION -> granted
        A> WAIT x other -> DEADLOCK connections would wait for each other's SESSION grants
        A> WAIT x a -> granted
        B> WAIT x other -> waits";

    a_circle_through_the_queue: "
        H> ACQUIRE k h -> granted
        A> ACQUIRE y a SESSION -> granted
        B> MWAIT 2 k y b -> waits
        A> WAIT k a -> DEADLOCK connections would wait for each other's SESSION grants
        C> WAIT k c -> waits
        B> ACQUIRE z b SESSION -> granted
        D> WAIT z d -> waits";

    a_circle_through_an_upgrade: "
        A> ACQUIRE k a SHARED SESSION -> granted
        B> ACQUIRE k b SHARED SESSION -> granted
        A> ACQUIRE j a SESSION -> granted
        A> WAIT k a -> waits
        B> WAIT j b -> DEADLOCK connections would wait for each other's SESSION grants
        B> RELEASE k b -> 1
        < WAIT k a: granted";

    an_upgrade_that_would_stand_before_whom_it_waits_for: "
        C> ACQUIRE k t SHARED -> granted
        D> ACQUIRE k u SHARED SESSION -> granted
        D> WAIT k v SHARED LIMIT 2 -> waits
        C> WAIT k t -> DEADLOCK connections would wait for each other's SESSION grants
        C> RELEASE k t -> 1
        < WAIT k v SHARED LIMIT 2: granted";

    no_permit_is_outside_the_circle: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        C> ACQUIRE s c SHARED LIMIT 2 SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        C> WAIT y c -> waits
        A> WAIT y a -> DEADLOCK connections would wait for each other's SESSION grants";

    one_shared_holder_in_the_circle_is_enough_for_an_exclusive_wait: "
        A> ACQUIRE s a SHARED SESSION -> granted
        P> ACQUIRE s p SHARED -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b -> waits
        A> WAIT y a -> DEADLOCK connections would wait for each other's SESSION grants";

    a_circle_through_a_waiter_between_two_that_were_found_before: "
        N> MACQUIRE 2 s t n SESSION -> granted
        R> ACQUIRE u r SESSION -> granted
        W> ACQUIRE y w SESSION -> granted
        Q> MWAIT 2 k u q -> waits
        W> WAIT k w -> waits
        P> MWAIT 2 k t p -> waits   // found before Q, which waits for R
        R> WAIT s r -> waits
        N> WAIT y n -> DEADLOCK connections would wait for each other's SESSION grants";

    what_the_own_token_holds_is_in_nobody_s_way: "
        A> ACQUIRE x t SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT x t2 -> waits
        A> MWAIT 2 x y t -> DEADLOCK connections would wait for each other's SESSION grants
        B> ACQUIRE q t SHARED -> granted";

    a_take_over_that_would_close_a_circle_leaves_the_older_wait_as_it_was: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT x b -> waits
        O> WAIT y a -> waits
        A> WAIT y a PX 5 -> DEADLOCK connections would wait for each other's SESSION grants
        A> WAIT y a SHARED -> DEADLOCK connections would wait for each other's SESSION grants
        < nothing
        P> WAIT y a PX 6 -> waits
        < WAIT y a: UNBLOCKED";

    // ---- No deadlock

    leases_end_by_themselves_and_make_no_circle: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b -> granted
        A> WAIT y a -> waits
        B> WAIT x b -> waits
        A> ACQUIRE z a2 -> granted
        +1001
        < WAIT y a: granted";

    who_stands_behind_and_waits_for_nothing_else_is_no_part_of_a_circle: "
        H> ACQUIRE k h -> granted
        A> ACQUIRE y a SESSION -> granted
        B> WAIT k b -> waits
        C> WAIT y c -> waits
        A> WAIT k a -> waits
        H> RELEASE k h -> 1
        < WAIT k b: granted";

    another_permit_opens_a_circle: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        P> ACQUIRE s p SHARED LIMIT 2 -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        A> WAIT y a -> waits
        P> RELEASE s p -> 1
        < WAIT s b SHARED LIMIT 2: granted";

    a_session_of_somebody_who_doesn_t_wait_opens_a_circle_too: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        P> ACQUIRE s p SHARED LIMIT 2 SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        A> WAIT y a -> waits";

    a_permit_of_a_session_that_ends_opens_a_circle: "
        A> ACQUIRE s a SHARED LIMIT 3 SESSION -> granted
        P> ACQUIRE s p SHARED LIMIT 2 SESSION -> granted
        A> ACQUIRE t a SHARED LIMIT 2 SESSION -> granted
        H> ACQUIRE t h SHARED LIMIT 2 -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 3 PERMITS 2 -> waits
        P> WAIT t p SHARED LIMIT 2 -> waits
        A> WAIT y a -> waits        // H goes, then P, so B is granted beside A
        H> RELEASE t h -> 1
        < WAIT t p SHARED LIMIT 2: granted
        P> RELEASE s p -> 1
        < WAIT s b SHARED LIMIT 3 PERMITS 2: granted";

    a_shared_wait_without_a_limit_is_granted_beside_a_session: "
        A> ACQUIRE s a SHARED SESSION -> granted
        H> ACQUIRE s h SHARED LIMIT 2 -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED -> waits
        A> WAIT y a -> waits
        H> RELEASE s h -> 1
        < WAIT s b SHARED: granted";

    a_shared_wait_needs_nothing_where_its_token_shares_already: "
        A> MACQUIRE 2 v x a SHARED SESSION -> granted
        B> ACQUIRE x b SHARED SESSION -> granted
        H> ACQUIRE y h -> granted
        A> MWAIT 2 x y a SHARED -> waits
        B> WAIT v b -> waits
        H> RELEASE y h -> 1
        < MWAIT 2 x y a SHARED: granted";

    a_place_in_the_queue_lapses_and_is_no_part_of_a_circle: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        P> MQUEUE 2 x k p -> place 1
        B> WAIT k b -> waits
        A> WAIT y a -> waits
        +501
        < WAIT k b: granted";

    an_older_wait_that_ends_is_no_part_of_a_circle: "
        A> ACQUIRE x a SESSION -> granted
        C> ACQUIRE y c SESSION -> granted
        C> WAIT x t -> waits
        A> ACQUIRE z a -> granted
        B> WAIT x t SHARED -> waits
        < WAIT x t: UNBLOCKED
        A> WAIT y a -> waits";

    another_wait_of_a_tied_token_outside_opens_the_way: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        H> ACQUIRE z h -> granted
        P> MWAIT 2 x z a SESSION -> waits
        A> WAIT y a2 -> waits
        B> WAIT x b -> waits
        H> RELEASE z h -> 1
        < MWAIT 2 x z a SESSION: granted
        P> MRELEASE 2 x z a -> 2
        < WAIT x b: granted";

    another_wait_of_a_token_that_an_upgrade_waits_for_opens_the_way: "
        A> ACQUIRE k a SHARED SESSION -> granted
        B> ACQUIRE k b SHARED SESSION -> granted
        A> ACQUIRE j a SESSION -> granted
        N> ACQUIRE n n SESSION -> granted
        H> ACQUIRE z h -> granted
        P> MWAIT 2 k z b SHARED SESSION -> waits
        A> WAIT k a -> waits
        B> WAIT n b2 -> waits
        N> WAIT j n -> waits
        H> RELEASE z h -> 1
        < MWAIT 2 k z b SHARED SESSION: granted
        P> MRELEASE 2 k z b -> 2
        < WAIT k a: granted";

    a_place_of_a_tied_token_outside_opens_the_way_of_one_connection: "
        A> ACQUIRE x a SESSION -> granted
        H> ACQUIRE z h -> granted
        P> QUEUE z a -> place 1
        A> WAIT x other -> waits
        P> CANCEL z a -> 1
        A> ACQUIRE v v SESSION -> granted
        A> WAIT v other -> DEADLOCK connections would wait for each other's SESSION grants";

    a_wait_of_another_token_outside_opens_no_way: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        A> ACQUIRE v a2 SESSION -> granted
        H> ACQUIRE z h -> granted
        P> MWAIT 2 v z a2 SESSION -> waits
        A> WAIT y a3 -> waits
        B> WAIT x b -> DEADLOCK connections would wait for each other's SESSION grants";

    the_end_of_a_wait_opens_the_way: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        A> WAIT y a BLOCK 10 -> waits
        B> WAIT x b -> DEADLOCK connections would wait for each other's SESSION grants
        +11
        < WAIT y a BLOCK 10: nil
        B> WAIT x b -> waits";

    a_circle_that_comes_about_otherwise_is_not_found_and_harms_no_other: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b -> granted
        A> WAIT y a -> waits
        B> WAIT x b -> waits
        B> EXTEND y b SESSION -> 1     // a blocked client can't send this, but its script could
        C> WAIT y c -> waits
        D> ACQUIRE z d SESSION -> granted
        E> WAIT z e -> waits
        D> WAIT x d -> waits";
}

// A waiter that left has its position until the timer works it off, and another one its number.
#[test]
fn a_waiter_that_left_hides_no_other() {
    let mut world = play(
        "A> ACQUIRE k a SESSION -> granted
         B> ACQUIRE m b SESSION -> granted
         ACQUIRE j h -> granted
         WAIT k c -> waits
         MWAIT 2 j k x -> waits",
    );
    world.hang_up_unseen("MWAIT 2 j k x");
    let of = |letter: u8| 1_000_000 + u64::from(letter);
    assert_eq!(world.say_as(of(b'B'), "WAIT k b"), "waits");
    let answer = world.say_as(of(b'A'), "WAIT m a");
    assert!(answer.starts_with("DEADLOCK"), "{answer}");
    world.fire(Vec::new());
}

/// An EXPIRE by hand shortens the lease of a session, which then ends before its renewal is due.
#[test]
fn a_lease_that_was_shortened_and_has_ended_is_no_part_of_a_circle() {
    let mut world = play(
        "A> ACQUIRE x a SESSION -> granted
         B> ACQUIRE y b SESSION -> granted
         C> ACQUIRE z c SESSION -> granted
         A> WAIT y a -> waits
         B> WAIT z b -> waits",
    );
    world.expire("y", Some(world.wall_ms() + 10));
    world.fire(vec![world::name("y")]);
    world.now_ms += 11;
    let c = world.client_of("ACQUIRE z c SESSION");
    assert_eq!(world.say_as(c, "WAIT x c"), "waits");
    world.fire(Vec::new());
    assert_eq!(world.heard(), ["WAIT y a: granted"]);
}
