//! LOCK.QUEUE ... NOTIFY: a message is published when a place is granted, cancelled or overwritten.
//!
//! - Each LOCK.QUEUE replaces the message of its place.
//! - A command that replies with the grant of its own place publishes no message for it.
//! - A place that lapses, or that another request of its token replaces, publishes nothing.

use super::scene::scenes;

scenes! {
    a_place_that_is_granted_is_told_of: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 NOTIFY jobs 17 -> place 1
        QUEUE k b KEEP 500 NOTIFY jobs 18 -> place 2
        QUEUE k c KEEP 500 -> place 3
        < nothing
        RELEASE k h -> 1
        < jobs: 17
        QUEUE k a KEEP 100 NOTIFY jobs 17 -> granted
        < nothing
        QUEUE k a KEEP 100 NOTIFY jobs 17 -> granted
        +30
        RELEASE k a -> 1
        < jobs: 18
        RELEASE k b -> 1
        < nothing
        = k c#1";

    each_queue_brings_its_message: "
        ACQUIRE k h -> granted
        QUEUE k a NOTIFY jobs 1 -> place 1
        QUEUE k a NOTIFY other 2 -> place 1
        QUEUE k b NOTIFY jobs 3 -> place 2
        QUEUE k b -> place 2
        RELEASE k h -> 1
        < other: 2
        RELEASE k a -> 1
        < nothing
        = k b#1";

    who_is_answered_with_the_grant_needs_no_message: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a PX 900 NOTIFY jobs 1 -> place 1
        LATE 101
        QUEUE k a PX 900 NOTIFY jobs 1 -> granted
        < nothing
        QUEUE k b NOTIFY jobs 2 -> place 1
        QUEUE k c NOTIFY jobs 3 -> place 2
        RELEASE k a -> 1
        < jobs: 2
        QUEUE free d NOTIFY jobs 4 -> granted
        < nothing";

    the_grant_to_another_place_of_the_same_token_is_told_of: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a PX 900 NOTIFY jobs 1 -> place 1
        MQUEUE 2 j k a PX 900 NOTIFY jobs 2 -> place 2
        LATE 101
        QUEUE k a PX 900 NOTIFY jobs 1 -> granted
        < jobs: 2
        = j a#1";

    the_grant_to_another_is_told_of_by_who_is_granted_the_same_lock: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a SHARED NOTIFY jobs 1 -> place 1
        LATE 101
        QUEUE k b SHARED NOTIFY jobs 2 -> granted
        < jobs: 1";

    the_grant_to_another_is_told_of_by_whoever_causes_it: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a NOTIFY jobs 1 -> place 1
        QUEUE k b NOTIFY jobs 2 -> place 2
        LATE 101
        QUEUE k b NOTIFY jobs 2 -> place 1
        < jobs: 1
        ACQUIRE k a -> granted
        ACQUIRE j h PX 100 -> granted
        QUEUE j a NOTIFY jobs 3 -> place 1
        LATE 101
        ACQUIRE j a -> granted
        < jobs: 3";

    a_place_that_is_given_up_is_told_of: "
        ACQUIRE k h -> granted
        QUEUE k a NOTIFY jobs 1 -> place 1
        MQUEUE 2 j k a NOTIFY jobs 2 -> place 2
        QUEUE k b NOTIFY jobs 3 -> place 3
        CANCEL k a -> 1
        < jobs: 1 | jobs: 2
        CANCEL k a -> 0
        < nothing
        SET k
        < jobs: 3
        = k";

    a_place_that_ends_otherwise_is_not_told_of: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 NOTIFY jobs 1 -> place 1
        QUEUE k b NOTIFY jobs 2 -> place 2
        QUEUE k c NOTIFY jobs 3 -> place 3
        QUEUE k d KEEP 100 NOTIFY jobs 4 -> place 4
        LATE 101
        CANCEL k d -> 0
        WAIT k b -> waits
        QUEUE k c SHARED -> place 2
        < nothing
        BYE WAIT k b
        < nothing
        RELEASE k h -> 1
        < nothing
        = k c#1";
}
