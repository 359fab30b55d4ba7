//! Shared locks and semaphores: SHARED, LIMIT and PERMITS.
//!
//! - Shared holders admit each other and exclude an exclusive holder.
//! - With LIMIT the lock is a semaphore. The smallest limit of a holder or of the request binds.
//! - With PERMITS a grant takes several permits at once: all or none. A repeat can lower the number
//!   of permits and can't raise it.
//! - When permits become free, the queue moves.

use super::scene::scenes;

scenes! {
    // ---- SHARED

    shared_admit_each_other: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        ACQUIRE k c -> nil
        = k a#1 b#1";

    holds_of_one_among_many_are_its_own: "
        ACQUIRE k a SHARED HOLDS 2 -> granted
        ACQUIRE k b SHARED HOLDS 3 PX 100 -> granted
        RELEASE k b HOLDS 2 -> 1
        = k a#2 b#2
        +101
        = k a#2
        RELEASE k b HOLDS 0 -> 0
        RELEASE k a HOLDS 1 -> 1
        = k a#1";

    // ---- LIMIT

    a_semaphore_admits_its_limit: "
        ACQUIRE k a SHARED LIMIT 2 -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        ACQUIRE k c SHARED LIMIT 2 -> nil
        RELEASE k a -> 1
        ACQUIRE k c SHARED LIMIT 2 -> granted";

    the_smallest_limit_binds: "
        ACQUIRE k a SHARED LIMIT 3 -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        ACQUIRE k c SHARED LIMIT 3 -> nil
        ACQUIRE k b SHARED -> granted   // a repeat without LIMIT takes the limit away
        ACQUIRE k c SHARED LIMIT 3 -> granted";

    a_repeat_that_lifts_a_limit_lets_the_next_in: "
        ACQUIRE k a SHARED LIMIT 1 -> granted
        WAIT k b SHARED -> waits
        ACQUIRE k a SHARED LIMIT 2 -> granted
        < WAIT k b SHARED: granted";

    one_permit_that_lapses_admits_one_waiter_on_time: "
        ACQUIRE k a SHARED LIMIT 2 PX 100 -> granted
        ACQUIRE k b SHARED LIMIT 2 PX 1000 -> granted
        WAIT k c SHARED LIMIT 2 -> waits
        WAIT k d SHARED LIMIT 2 -> waits
        +101
        < WAIT k c SHARED LIMIT 2: granted
        = k b#1 c#1";

    // ---- PERMITS

    several_permits_in_one_grant_are_all_or_none: "
        ACQUIRE k a SHARED LIMIT 5 PERMITS 3 -> granted
        ACQUIRE k b SHARED LIMIT 5 PERMITS 3 -> nil
        ACQUIRE k b SHARED LIMIT 5 PERMITS 2 -> granted
        ACQUIRE k c SHARED LIMIT 5 -> nil
        ACQUIRE k c SHARED -> nil
        RELEASE k b -> 1
        ACQUIRE k c SHARED -> granted       // without PERMITS it is one
        ACQUIRE k d SHARED LIMIT 5 PERMITS 2 -> nil
        ACQUIRE k d SHARED LIMIT 6 PERMITS 1 -> granted";

    who_waits_for_several_permits_holds_up_those_behind_it: "
        ACQUIRE k a SHARED LIMIT 3 PERMITS 2 PX 100 -> granted
        WAIT k b SHARED LIMIT 3 PERMITS 2 -> waits
        WAIT k c SHARED LIMIT 3 -> waits
        ACQUIRE k d SHARED LIMIT 3 -> nil
        < nothing
        +101
        < WAIT k b SHARED LIMIT 3 PERMITS 2: granted | WAIT k c SHARED LIMIT 3: granted";

    one_of_many_leases_gives_back_all_its_permits: "
        ACQUIRE k a SHARED LIMIT 9 PERMITS 5 PX 100 -> granted
        ACQUIRE k b SHARED LIMIT 9 PERMITS 4 -> granted
        WAIT k c SHARED LIMIT 9 PERMITS 3 -> waits
        WAIT k d SHARED LIMIT 9 PERMITS 2 -> waits
        WAIT k e SHARED LIMIT 9 -> waits
        +101
        < WAIT k c SHARED LIMIT 9 PERMITS 3: granted | WAIT k d SHARED LIMIT 9 PERMITS 2: granted
        = k b#1 c#1 d#1";

    a_repeat_lowers_permits_and_the_queue_moves: "
        ACQUIRE k a SHARED LIMIT 4 PERMITS 4 -> granted
        WAIT k b SHARED LIMIT 4 PERMITS 2 -> waits
        WAIT k c SHARED LIMIT 4 -> waits
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> granted
        < nothing
        WAIT k a SHARED LIMIT 4 PERMITS 2 -> granted
        < WAIT k b SHARED LIMIT 4 PERMITS 2: granted
        ACQUIRE k a SHARED LIMIT 4 REENTRANT -> granted
        < WAIT k c SHARED LIMIT 4: granted
        = k a#2 b#1 c#1";

    a_repeat_does_not_raise_permits: "
        ACQUIRE k a SHARED LIMIT 4 PERMITS 2 -> granted
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> ERR permits can't be raised
        WAIT k a SHARED LIMIT 9 PERMITS 3 REENTRANT -> ERR permits can't be raised
        = k a#1
        ACQUIRE j other -> granted
        MACQUIRE 2 j k a SHARED LIMIT 9 PERMITS 3 -> ERR permits can't be raised
        MWAIT 2 j k a SHARED LIMIT 9 PERMITS 3 -> ERR permits can't be raised
        SET t
        MACQUIRE 2 k t a SHARED LIMIT 9 PERMITS 3 -> WRONGTYPE Operation against a key holding the wrong kind of value
        ACQUIRE k a SHARED LIMIT 4 PERMITS 2 -> granted
        RELEASE k a -> 1
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> granted";

    a_conversion_brings_its_permits_freely: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 5 PERMITS 2 -> waits
        ACQUIRE k a SHARED LIMIT 5 PERMITS 4 -> granted
        < nothing
        ACQUIRE k a SHARED LIMIT 5 PERMITS 3 -> granted
        < WAIT k b SHARED LIMIT 5 PERMITS 2: granted
        RELEASE k b -> 1
        ACQUIRE k a -> granted
        ACQUIRE k a SHARED LIMIT 5 PERMITS 5 -> granted
        ACQUIRE k b SHARED -> nil";

    who_came_to_hold_fewer_permits_is_granted_when_the_others_are_free: "
        ACQUIRE k h SHARED LIMIT 6 PERMITS 6 -> granted
        WAIT k t SHARED LIMIT 6 -> waits
        WAIT k w SHARED LIMIT 6 PERMITS 6 -> waits
        MWAIT 2 j k t SHARED LIMIT 6 PERMITS 4 -> waits
        ACQUIRE k h SHARED LIMIT 6 PERMITS 5 -> granted
        < WAIT k t SHARED LIMIT 6: granted
        ACQUIRE k h SHARED LIMIT 6 PERMITS 3 -> granted
        < nothing                           // five are taken, and three more wanted
        ACQUIRE k h SHARED LIMIT 6 PERMITS 2 -> granted
        < MWAIT 2 j k t SHARED LIMIT 6 PERMITS 4: granted
        = j t#1
        RELEASE k h -> 1
        < nothing
        RELEASE k t -> 1
        < WAIT k w SHARED LIMIT 6 PERMITS 6: granted";

    who_lacks_fewer_permits_passes_one_that_lacks_more: "
        ACQUIRE k h SHARED LIMIT 9 PERMITS 9 -> granted
        WAIT k t SHARED LIMIT 9 -> waits
        WAIT k u SHARED LIMIT 9 -> waits
        MWAIT 2 i k t SHARED LIMIT 9 PERMITS 5 -> waits
        MWAIT 2 j k u SHARED LIMIT 9 PERMITS 3 -> waits
        ACQUIRE k h SHARED LIMIT 9 PERMITS 7 -> granted
        < WAIT k t SHARED LIMIT 9: granted | WAIT k u SHARED LIMIT 9: granted
        ACQUIRE k h SHARED LIMIT 9 PERMITS 5 -> granted
        < MWAIT 2 j k u SHARED LIMIT 9 PERMITS 3: granted
        ACQUIRE k h SHARED LIMIT 9 -> granted
        < MWAIT 2 i k t SHARED LIMIT 9 PERMITS 5: granted";

    a_limit_that_its_own_grant_had_does_not_bind: "
        ACQUIRE k h SHARED LIMIT 9 PERMITS 9 -> granted
        WAIT k t SHARED LIMIT 3 -> waits
        MWAIT 2 j k t SHARED LIMIT 9 PERMITS 8 -> waits
        ACQUIRE k h SHARED LIMIT 9 PERMITS 2 -> granted
        < WAIT k t SHARED LIMIT 3: granted
        ACQUIRE k h SHARED LIMIT 9 -> granted
        < MWAIT 2 j k t SHARED LIMIT 9 PERMITS 8: granted";
}
