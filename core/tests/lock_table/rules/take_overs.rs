//! Take-overs: a token sends its LOCK.WAIT again while its older wait is in the queue.
//!
//! - The older wait ends with UNBLOCKED.
//! - If mode, limit, permits and keys are the same, the newer wait continues at the position of the
//!   older one. Else it is enqueued anew.
//! - A wait for the same keys in another order is the same wait.
//! - If the newer wait is refused with DEADLOCK, the older wait stays.

use super::scene::scenes;

scenes! {
    // ---- The same request

    a_take_over_keeps_the_place: "
        ACQUIRE k a -> granted
        WAIT k b PX 10 -> waits
        WAIT k c -> waits
        WAIT k b PX 20 -> waits
        < WAIT k b PX 10: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k b PX 20: granted";

    a_take_over_with_another_lease_block_and_repeat_keeps_the_place: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 2 -> waits
        WAIT k c -> waits
        WAIT k b SHARED LIMIT 2 PX 7 BLOCK 50 REENTRANT SESSION -> waits
        < WAIT k b SHARED LIMIT 2: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k b SHARED LIMIT 2 PX 7 BLOCK 50 REENTRANT SESSION: granted";

    the_same_keys_are_a_set: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m PX 5 -> waits
        MWAIT 2 y x m PX 6 -> waits
        < MWAIT 2 x y m PX 5: UNBLOCKED";

    the_same_set_of_keys_in_another_order_is_the_same_wait: "
        ACQUIRE x a -> granted
        MWAIT 2 x y b -> waits
        MWAIT 2 y x b -> waits
        < MWAIT 2 x y b: UNBLOCKED
        MWAIT 1 x b -> waits
        < nothing
        WAIT x b -> waits
        < MWAIT 1 x b: UNBLOCKED
        MWAIT 3 x y z b -> waits
        < nothing
        MWAIT 2 x y b SHARED -> waits
        < MWAIT 2 y x b: UNBLOCKED";

    // ---- Another request

    a_take_over_in_another_mode_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        WAIT k b SHARED -> waits
        < WAIT k b: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c: granted
        RELEASE k c -> 1
        < WAIT k b SHARED: granted
        = k b#1";

    a_take_over_with_another_limit_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 2 -> waits
        WAIT k c -> waits
        WAIT k b SHARED LIMIT 3 -> waits
        < WAIT k b SHARED LIMIT 2: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c: granted";

    a_newer_wait_for_other_permits_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 3 -> waits
        WAIT k c SHARED LIMIT 3 PERMITS 2 -> waits
        WAIT k b SHARED LIMIT 3 PERMITS 2 -> waits
        < WAIT k b SHARED LIMIT 3: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c SHARED LIMIT 3 PERMITS 2: granted
        RELEASE k c -> 1
        < WAIT k b SHARED LIMIT 3 PERMITS 2: granted";

    a_token_that_waited_exclusively_and_now_shares_is_told_so_once: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        WAIT k t SHARED -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k t SHARED: granted
        ACQUIRE k b SHARED -> granted
        = k t#1 b#1";

    who_stood_behind_a_wait_that_was_taken_over_is_looked_at: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k s SHARED -> waits
        WAIT k t SHARED LIMIT 2 -> waits
        < WAIT k t: UNBLOCKED | WAIT k s SHARED: granted
        RELEASE k r -> 1
        < WAIT k t SHARED LIMIT 2: granted";

    a_wait_for_several_that_is_taken_over_frees_all_its_places: "
        ACQUIRE x a -> granted
        MWAIT 2 x y t -> waits
        WAIT y b -> waits
        MWAIT 2 x y t SHARED -> waits
        < MWAIT 2 x y t: UNBLOCKED | WAIT y b: granted
        RELEASE x a -> 1
        RELEASE y b -> 1
        < MWAIT 2 x y t SHARED: granted";

    // ---- A newer wait that only the older one blocks is granted at once, not handed over

    a_take_over_that_its_own_wait_alone_blocks_is_granted_at_once: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k t SHARED -> granted
        < WAIT k t: UNBLOCKED
        = k r#1 t#1";

    a_place_that_its_own_wait_alone_blocks_is_granted_at_once: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        QUEUE k t SHARED -> granted
        < WAIT k t: UNBLOCKED
        = k r#1 t#1";

    too_few_replicas_refuse_it_and_leave_the_older_wait: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k t SHARED REPLICAS 1 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        < nothing
        = k r#1
        RELEASE k r -> 1
        < WAIT k t: granted";

    too_few_replicas_refuse_it_and_leave_the_older_place: "
        ACQUIRE k r SHARED LIMIT 3 -> granted
        QUEUE k t SHARED LIMIT 3 PERMITS 3 -> place 1
        WAIT k t SHARED LIMIT 3 PERMITS 2 REPLICAS 1 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        QUEUE k t SHARED LIMIT 3 PERMITS 3 -> place 1
        = k r#1";

    too_few_replicas_refuse_it_and_leave_the_wait_with_another_limit: "
        ACQUIRE k r SHARED LIMIT 3 -> granted
        WAIT k t SHARED LIMIT 1 -> waits
        WAIT k t SHARED LIMIT 2 REPLICAS 1 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        < nothing
        RELEASE k r -> 1
        < WAIT k t SHARED LIMIT 1: granted";

    too_few_replicas_refuse_it_and_leave_an_absent_place_with_a_waiter_behind: "
        ACQUIRE k t -> granted
        ACQUIRE k3 z -> granted
        WAIT k u KEEP 60000 -> waits
        BYE WAIT k u KEEP 60000
        MQUEUE 2 k k3 v KEEP 60000 -> place 2
        RELEASE k t -> 1
        WAIT k u REPLICAS 1 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        WAIT k u -> granted
        MQUEUE 2 k k3 v KEEP 60000 -> place 1";

    a_wait_for_several_with_an_upgrade_that_its_own_wait_alone_blocks_is_granted: "
        ACQUIRE j r SHARED -> granted
        MWAIT 2 j k t -> waits
        ACQUIRE other t SHARED -> granted
        RENAME other k
        MWAIT 2 j k t SHARED -> granted
        < MWAIT 2 j k t: UNBLOCKED
        = j r#1 t#1";

    a_take_over_behind_another_waiter_is_handed_over: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k v SHARED -> waits
        WAIT k t SHARED -> waits
        < WAIT k t: UNBLOCKED | WAIT k v SHARED: granted | WAIT k t SHARED: granted
        = k r#1 v#1 t#1";

    // ---- A token that holds the lock

    a_wait_that_is_granted_at_once_ends_the_older_one: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k t -> waits
        WAIT k c SHARED -> waits
        WAIT k t SHARED -> granted      // it holds: a repeat
        < WAIT k t: UNBLOCKED | WAIT k c SHARED: granted
        = k t#1 b#1 c#1";

    an_acquire_leaves_the_wait_of_its_token_alone: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k t -> waits
        ACQUIRE k t SHARED -> granted
        < nothing
        RELEASE k b -> 1
        < WAIT k t: granted";

    an_upgrade_that_is_sent_again_stays_at_the_front: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k c -> waits
        WAIT k t -> waits
        WAIT k t PX 50 -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k b -> 1
        < WAIT k t PX 50: granted";

    a_waiter_that_came_to_share_keeps_its_place_when_it_asks_again: "
        ACQUIRE k a -> granted
        WAIT k c -> waits
        WAIT k t -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other b SHARED -> granted
        RENAME other k
        WAIT k t PX 50 -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k b -> 1
        < WAIT k t PX 50: granted";

    // ---- Refusals

    a_take_over_that_would_deadlock_leaves_the_older_wait_as_it_was: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        WAIT k u -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other u SHARED -> granted
        RENAME other k
        WAIT k t PX 50 -> DEADLOCK another holder waits to upgrade this lock
        < nothing
        RELEASE k u -> 1
        < WAIT k t: granted";

    a_take_over_of_several_with_an_upgrade_leaves_the_older_wait_as_it_was: "
        ACQUIRE k a -> granted
        ACQUIRE j a -> granted
        MWAIT 2 j k t -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other u SHARED -> granted
        RENAME other k
        MWAIT 2 j k t PX 50 -> DEADLOCK another holder waits to upgrade this lock
        < nothing
        RELEASE k u -> 1
        RELEASE j a -> 1
        < MWAIT 2 j k t: granted";

    a_take_over_of_another_type_s_key_leaves_nobody_waiting: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        SET k
        < WAIT k t: WRONGTYPE
        WAIT k t -> WRONGTYPE Operation against a key holding the wrong kind of value";
}
