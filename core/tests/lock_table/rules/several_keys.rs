//! Several keys in one command: LOCK.MACQUIRE, LOCK.MWAIT, LOCK.MEXTEND and LOCK.MRELEASE.
//!
//! - A token is granted all keys of the command or none, under one fence.
//! - A wait for several keys is in the queue of each key. It is granted when it is admissible in
//!   all of them, and its end frees all of them.
//! - A waiter needs no turn at a key that its token already holds.

use super::scene::{play, scenes};

scenes! {
    // ---- Waits that need no turn

    each_wait_of_a_token_that_holds_the_name_now_is_looked_at: "
        ACQUIRE x g -> granted
        ACQUIRE k h -> granted
        ACQUIRE j t -> granted
        MWAIT 2 k x t -> waits
        MWAIT 2 k y t -> waits
        RENAME j k
        < MWAIT 2 k y t: granted
        = k t#1
        RELEASE x g -> 1
        < MWAIT 2 k x t: granted";

    // ---- Acquire and release

    a_refusal_at_the_second_key_changes_nothing_at_the_first: "
        ACQUIRE k a HOLDS 2 -> granted
        SET s
        MRELEASE 2 k s a -> WRONGTYPE Operation against a key holding the wrong kind of value
        MRELEASE 2 k s a ALL -> WRONGTYPE Operation against a key holding the wrong kind of value
        MRELEASE 2 k s a HOLDS 1 -> WRONGTYPE Operation against a key holding the wrong kind of value
        MRELEASE 2 k s a LEAVE 100 -> WRONGTYPE Operation against a key holding the wrong kind of value
        MEXTEND 2 k s a PX 5 -> WRONGTYPE Operation against a key holding the wrong kind of value
        MACQUIRE 2 k s a PX 5 -> WRONGTYPE Operation against a key holding the wrong kind of value
        MWAIT 2 k s a PX 5 -> WRONGTYPE Operation against a key holding the wrong kind of value
        MQUEUE 2 k s a PX 5 -> WRONGTYPE Operation against a key holding the wrong kind of value
        = k a#2
        ACQUIRE k a -> granted";

    all_keys_or_none: "
        ACQUIRE y b -> granted
        MACQUIRE 2 x y a -> nil
        = x
        RELEASE y b -> 1
        MACQUIRE 2 x y a -> granted
        = x a#1
        = y a#1";

    release_of_several_counts_those_that_lost_a_hold: "
        ACQUIRE x a -> granted
        ACQUIRE y b -> granted
        MRELEASE 2 x y a -> 1
        = x
        = y b#1
        MEXTEND 2 x y b -> 0        // not without all of them
        MEXTEND 1 y b -> 1";

    holds_of_several_keys_are_set_and_left_at_each: "
        ACQUIRE x a HOLDS 7 -> granted
        MACQUIRE 3 x y z a HOLDS 2 -> granted
        = x a#2
        = z a#2
        RELEASE z a ALL -> 1
        MRELEASE 3 x y z a HOLDS 1 -> 2
        MRELEASE 3 x y z a HOLDS 1 -> 2    // held, so it counts, though no hold goes
        = x a#1
        MRELEASE 2 x y a HOLDS 0 -> 2
        = x
        = y";

    // ---- Waits

    a_wait_for_several_is_granted_when_first_in_all: "
        ACQUIRE x a -> granted
        ACQUIRE y b -> granted
        MWAIT 2 y x m -> waits
        WAIT x c -> waits
        WAIT y d -> waits
        RELEASE x a -> 1
        < nothing                   // the first waiter for x also waits for y
        RELEASE y b -> 1
        < MWAIT 2 y x m: granted
        MRELEASE 2 x y m -> 2
        < WAIT x c: granted | WAIT y d: granted";

    waits_for_several_never_wait_for_each_other: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        MWAIT 2 y x n -> waits
        RELEASE x a -> 1
        < MWAIT 2 x y m: granted
        MRELEASE 2 x y m -> 2
        < MWAIT 2 y x n: granted";

    a_dead_wait_for_several_leaves_all_queues: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        WAIT y c -> waits           // y is free, but not its turn
        BYE MWAIT 2 x y m
        < WAIT y c: granted";

    a_timed_out_wait_for_several_leaves_all_queues: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m BLOCK 10 -> waits
        WAIT y c -> waits
        +11
        < MWAIT 2 x y m BLOCK 10: nil | WAIT y c: granted";

    an_upgrade_in_the_middle_of_a_queue_is_admitted_once_alone: "
        ACQUIRE x h -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y t -> waits
        WAIT x u SHARED -> waits
        RELEASE x h -> 1
        < nothing
        RELEASE y h -> 1
        < MWAIT 2 x y t: granted";

    each_name_of_a_grant_is_looked_at_again_as_its_lease_ends: "
        ACQUIRE y a -> granted
        MWAIT 2 x y b PX 50 -> waits
        WAIT x c -> waits
        WAIT y d -> waits
        RELEASE y a -> 1
        < MWAIT 2 x y b PX 50: granted
        +51
        < WAIT x c: granted | WAIT y d: granted";

    // ---- Keys that the token already holds

    what_it_holds_already_needs_no_turn: "
        ACQUIRE x m -> granted
        ACQUIRE y b -> granted
        WAIT x c -> waits           // waits for m
        MWAIT 2 x y m -> waits      // would wait for c, did x count
        RELEASE y b -> 1
        < MWAIT 2 x y m: granted";

    what_a_token_is_granted_it_needs_no_turn_for: "
        ACQUIRE k2 h -> granted
        WAIT k2 t SHARED -> waits
        WAIT k2 w -> waits
        MWAIT 2 k3 k2 t SHARED -> waits
        RELEASE k2 h -> 1
        < WAIT k2 t SHARED: granted | MWAIT 2 k3 k2 t SHARED: granted";

    what_a_token_acquires_it_needs_no_turn_for: "
        ACQUIRE y h -> granted
        ACQUIRE x h SHARED -> granted
        WAIT x w -> waits
        MWAIT 2 x y t SHARED -> waits
        RELEASE y h -> 1
        < nothing
        RELEASE x h -> 1
        < WAIT x w: granted
        RELEASE x w -> 1
        < MWAIT 2 x y t SHARED: granted";

    a_grant_of_one_wait_admits_another_one_of_its_token: "
        ACQUIRE x a -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y b -> waits
        WAIT x b -> waits
        WAIT y c -> waits
        RELEASE x a -> 1
        < nothing
        RELEASE y h -> 1
        < MWAIT 2 x y b: granted | WAIT x b: granted
        = y b#1
        RELEASE y b -> 1
        < WAIT y c: granted";
}

#[test]
fn several_keys_have_one_fence() {
    let mut world = play("ACQUIRE x a -> granted\nMACQUIRE 2 x y a -> granted");
    let fence = world.fence("x", "a");
    assert_eq!(fence, world.fence("y", "a"));
    world.say("MACQUIRE 2 y x a");
    assert_eq!(world.fence("x", "a"), fence, "held already under one fence");
    world.say("ACQUIRE z a");
    world.say("MACQUIRE 2 x z a");
    assert!(world.fence("x", "a") > fence, "held under two");
    assert_eq!(world.fence("x", "a"), world.fence("z", "a"));
}
