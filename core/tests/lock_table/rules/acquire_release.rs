//! Acquire and release: the holder of one key and its holds.
//!
//! - A lock has one exclusive holder, and only the holder can release the lock.
//! - A token that already holds the lock is granted again. Such a repeat adds a hold only with
//!   REENTRANT.
//! - HOLDS sets the number of holds. With HOLDS a release lowers the number and never raises it.
//! - Each new grant has a greater fence than all grants before it. A repeat keeps the fence.

use super::scene::{play, scenes};

scenes! {
    one_at_a_time: "
        ACQUIRE k a -> granted
        ACQUIRE k b -> nil
        RELEASE k b -> 0            // only the holder may
        RELEASE k a -> 1
        RELEASE k a -> 0
        ACQUIRE k b -> granted";

    reentrant_counts_and_a_repeat_does_not: "
        ACQUIRE k a REENTRANT -> granted
        ACQUIRE k a REENTRANT -> granted
        ACQUIRE k a -> granted
        = k a#2
        RELEASE k a -> 1
        = k a#1
        RELEASE k a -> 1
        = k";

    all_drops_every_hold: "
        ACQUIRE k a REENTRANT -> granted
        ACQUIRE k a REENTRANT -> granted
        WAIT k b -> waits
        RELEASE k a ALL -> 1
        < WAIT k b: granted";

    holds_say_how_many_there_are: "
        ACQUIRE k a HOLDS 3 -> granted
        = k a#3
        ACQUIRE k a HOLDS 3 -> granted     // the answer was lost
        = k a#3
        ACQUIRE k a -> granted
        = k a#3
        ACQUIRE k a REENTRANT -> granted
        = k a#4
        WAIT k a HOLDS 2 -> granted
        = k a#2
        ACQUIRE k a SHARED HOLDS 5 -> granted
        = k a#5
        ACQUIRE k a HOLDS 4294967295 -> granted
        = k a#4294967295
        ACQUIRE k a REENTRANT -> granted
        = k a#4294967296";

    a_release_leaves_so_many_holds_and_never_adds_any: "
        ACQUIRE k a HOLDS 5 -> granted
        WAIT k b HOLDS 2 -> waits
        RELEASE k a HOLDS 3 -> 1
        = k a#3
        RELEASE k a HOLDS 3 -> 1           // the answer was lost
        RELEASE k a HOLDS 4294967295 -> 1
        = k a#3
        RELEASE k a -> 1
        = k a#2
        RELEASE k a HOLDS 1 -> 1
        RELEASE k a HOLDS 1 -> 1
        = k a#1
        RELEASE k b HOLDS 1 -> 0
        < nothing
        RELEASE k a HOLDS 0 -> 1
        < WAIT k b HOLDS 2: granted
        = k b#2
        RELEASE k a HOLDS 0 -> 0
        RELEASE k a HOLDS 1 -> 0";
}

#[test]
fn fences_rise_with_every_grant_and_stay_with_a_repeat() {
    let mut world = play("ACQUIRE k a -> granted\nACQUIRE j b -> granted");
    let (first, second) = (world.fence("k", "a"), world.fence("j", "b"));
    assert!(first < second, "across keys");
    world.say("ACQUIRE k a");
    assert_eq!(world.fence("k", "a"), first, "the same token again");
    world.say("ACQUIRE k a SHARED");
    assert_eq!(world.fence("k", "a"), first, "a downgrade keeps its fence");
    world.say("ACQUIRE k a");
    assert!(world.fence("k", "a") > second, "an upgrade is a new grant");
}
