//! The order of the queue.
//!
//! - Waiters are granted in the order of their waits. No newcomer overtakes them.
//! - A shared request behind an exclusive waiter waits too, so that the exclusive waiter is granted
//!   in the end. Shared waiters next to each other are granted together.
//! - A holder that repeats its request is granted at once.

use super::scene::scenes;

scenes! {
    release_hands_over_in_order: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        RELEASE k a -> 1
        < WAIT k b: granted
        = k b#1
        RELEASE k b -> 1
        < WAIT k c: granted";

    nobody_barges_in: "
        ACQUIRE k a PX 100 -> granted
        WAIT k b -> waits
        RELEASE k a -> 1
        ACQUIRE k c -> nil
        < WAIT k b: granted";

    a_repeat_succeeds_while_others_wait: "
        ACQUIRE k a PX 100 -> granted
        WAIT k b -> waits
        +50
        ACQUIRE k a PX 100 -> granted
        WAIT k a PX 100 -> granted
        +100
        < nothing
        = k a#1
        +1
        < WAIT k b: granted";

    no_writer_starves: "
        ACQUIRE k r1 SHARED -> granted
        WAIT k w -> waits
        ACQUIRE k r2 SHARED -> nil  // strict order: a shared request behind an exclusive one waits
        WAIT k r2 SHARED -> waits
        RELEASE k r1 -> 1
        < WAIT k w: granted
        RELEASE k w -> 1
        < WAIT k r2 SHARED: granted";

    shared_waiters_at_the_head_are_granted_together: "
        ACQUIRE k w -> granted
        WAIT k r1 SHARED -> waits
        WAIT k r2 SHARED -> waits
        WAIT k v -> waits
        WAIT k r3 SHARED -> waits
        RELEASE k w -> 1
        < WAIT k r1 SHARED: granted | WAIT k r2 SHARED: granted
        = k r1#1 r2#1";

    the_first_in_line_goes_first_whoever_looks: "
        ACQUIRE x h -> granted
        ACQUIRE y h -> granted
        WAIT y b -> waits
        WAIT x a -> waits
        MRELEASE 2 x y h -> 2
        < WAIT y b: granted | WAIT x a: granted";
}
