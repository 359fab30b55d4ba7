//! Conversions: a holder changes between shared and exclusive.
//!
//! - A downgrade is granted at once, and shared waiters follow.
//! - An upgrade waits for the other holders and goes ahead of all other waiters.
//! - A second upgrade of the same lock is refused with DEADLOCK, because each of the two would wait
//!   for the other. So is a wait for several keys that includes an upgrade.

use super::scene::scenes;

scenes! {
    a_downgrade_lets_the_queue_move: "
        ACQUIRE k a REENTRANT -> granted
        WAIT k b SHARED -> waits
        WAIT k a SHARED -> granted
        < WAIT k b SHARED: granted
        = k a#1 b#1";

    a_conversion_with_reentrant_adds_a_hold: "
        ACQUIRE k a -> granted
        ACQUIRE k a SHARED REENTRANT -> granted
        = k a#2
        ACQUIRE k a REENTRANT -> granted
        = k a#3";

    an_upgrade_waits_for_the_others_and_stands_first: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k c -> waits
        ACQUIRE k a -> nil
        WAIT k a -> waits
        RELEASE k b -> 1
        < WAIT k a: granted
        = k a#1";

    a_second_upgrade_is_refused: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        ACQUIRE k b -> nil
        WAIT k a PX 7 -> waits      // the same wait may be sent again
        < WAIT k a: UNBLOCKED";

    an_upgrade_whose_share_ended_is_an_ordinary_waiter_at_the_front: "
        ACQUIRE k a SHARED PX 100 -> granted
        ACQUIRE k b SHARED -> granted
        ACQUIRE k d SHARED -> granted
        WAIT k c -> waits
        WAIT k a -> waits
        +101
        < nothing
        WAIT k b -> waits           // no conversion waits any more, so this one may, and goes first
        RELEASE k d -> 1
        < WAIT k b: granted
        RELEASE k b -> 1
        < WAIT k a: granted
        RELEASE k a -> 1
        < WAIT k c: granted";

    a_wait_for_several_with_an_upgrade_is_refused: "
        ACQUIRE x m SHARED -> granted
        ACQUIRE y b -> granted
        MWAIT 2 x y m -> DEADLOCK another holder waits to upgrade this lock
        RELEASE y b -> 1
        MWAIT 2 x y m -> granted";
}
