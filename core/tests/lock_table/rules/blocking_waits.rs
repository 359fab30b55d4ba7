//! LOCK.WAIT: every end of a wait other than a grant, and the limit on blocked clients.
//!
//! - BLOCK ends a wait. If a grant and the timeout fall on the same millisecond, the waiter is
//!   granted.
//! - A waiter without KEEP leaves the queue when its connection is lost.
//! - LOCK.CANCEL ends all waits of a token for a key and never touches a grant.
//! - `lock.max-waiters` limits the blocked clients. A wait that is granted at once is not limited.
//! - A waiter whose user has lost its rights is refused when its turn comes.

use super::scene::{play, scenes};
use crate::world;

scenes! {
    // ---- BLOCK and lost connections

    block_ends_a_wait: "
        ACQUIRE k a PX 1000 -> granted
        WAIT k b BLOCK 50 -> waits
        WAIT k c -> waits
        +51
        < WAIT k b BLOCK 50: nil
        RELEASE k a -> 1
        < WAIT k c: granted";

    the_grant_wins_over_the_timeout_of_the_same_moment: "
        ACQUIRE k a PX 50 -> granted
        WAIT k b BLOCK 50 -> waits
        +51
        < WAIT k b BLOCK 50: granted";

    the_next_behind_a_grant_is_told_that_its_time_is_over: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c BLOCK 100 -> waits
        WAIT k d -> waits
        LATE 101
        RELEASE k a -> 1
        < WAIT k b: granted | WAIT k c BLOCK 100: nil
        RELEASE k b -> 1
        < WAIT k d: granted";

    the_dead_do_not_block_the_living: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        BYE WAIT k b
        RELEASE k a -> 1
        < WAIT k c: granted";

    // ---- LOCK.CANCEL

    a_cancel_gives_up_a_wait: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        CANCEL k b -> 1
        < WAIT k b: UNBLOCKED
        CANCEL k b -> 0
        RELEASE k a -> 1
        < WAIT k c: granted
        WAIT k b -> waits       // it may be sent again
        RELEASE k c -> 1
        < WAIT k b: granted";

    a_cancel_never_touches_a_grant: "
        ACQUIRE k a -> granted
        CANCEL k a -> 0
        CANCEL free a -> 0
        WAIT k b -> waits
        RELEASE k a -> 1
        CANCEL k b -> 0
        < WAIT k b: granted
        = k b#1";

    a_cancel_of_one_key_gives_up_the_whole_wait: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        WAIT y b -> waits
        CANCEL y m -> 1
        < MWAIT 2 x y m: UNBLOCKED | WAIT y b: granted
        CANCEL x m -> 0";

    a_cancel_gives_up_all_waits_that_need_the_key: "
        ACQUIRE x a -> granted
        ACQUIRE y a -> granted
        MWAIT 2 x y m -> waits
        WAIT x m -> waits
        WAIT y m -> waits
        MWAIT 2 x z m -> waits
        WAIT x n -> waits
        CANCEL x m -> 1
        < MWAIT 2 x y m: UNBLOCKED | WAIT x m: UNBLOCKED | MWAIT 2 x z m: UNBLOCKED
        RELEASE x a -> 1
        < WAIT x n: granted
        RELEASE y a -> 1
        < WAIT y m: granted";

    a_cancel_lets_those_behind_in: "
        ACQUIRE k r SHARED -> granted
        WAIT k w -> waits
        WAIT k s SHARED -> waits
        CANCEL k w -> 1
        < WAIT k w: UNBLOCKED | WAIT k s SHARED: granted";

    a_cancel_gives_up_an_upgrade_and_leaves_the_share: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        CANCEL k a -> 1
        < WAIT k a: UNBLOCKED
        WAIT k b -> waits       // no deadlock any more
        = k a#1 b#1";

    a_cancel_at_another_type_s_key_is_an_error: "
        SET k
        CANCEL k a -> WRONGTYPE Operation against a key holding the wrong kind of value";
}

// ---- Limits and rights

#[test]
fn the_waiter_limit_counts_a_wait_for_several_once_and_lets_take_overs_pass() {
    let mut world = play("ACQUIRE x a -> granted\nMWAIT 2 x y m -> waits");
    world.max_waiters = 2;
    assert_eq!(world.say("WAIT x b"), "waits");
    assert_eq!(
        world.say("WAIT x c"),
        "MAXWAITERS as many clients wait as lock.max-waiters allows"
    );
    assert_eq!(world.say("WAIT x b PX 1"), "waits");
    assert_eq!(
        world.say("WAIT x b SHARED"),
        "waits",
        "one that queues anew"
    );
    assert_eq!(world.table.queues().len(), 2);
}

#[test]
fn a_wait_that_need_not_wait_passes_where_as_many_wait_as_may() {
    // `b` is the first present waiter at k, and waits for j.
    let scene = "
        ACQUIRE j h -> granted
        ACQUIRE k x -> granted
        WAIT k a KEEP 5000 -> waits
        MWAIT 2 j k b -> waits
        BYE WAIT k a KEEP 5000
        RELEASE k x -> 1
        < nothing";
    let mut world = play(scene);
    world.max_waiters = 1;
    assert_eq!(
        world.say("WAIT k new"),
        "MAXWAITERS as many clients wait as lock.max-waiters allows"
    );
    world.store.replicas = 1;
    assert_eq!(
        world.say("WAIT k a KEEP 5000 REPLICAS 1"),
        "MAXWAITERS as many clients wait as lock.max-waiters allows",
        "its reply would have to wait"
    );
    assert_eq!(world.say("WAIT k a KEEP 5000"), "granted");
    assert_eq!(world.holders("k"), ["a#1"]);
    // If `a` had to wait it would exceed the limit. So it is refused and its position stays.
    let mut world = play(scene);
    world.max_waiters = 1;
    world.say("ACQUIRE k c");
    assert_eq!(world.holders("k"), [""; 0], "behind b");
    world.rename_unseen("j", "k");
    world.fire(Vec::new());
    assert!(world.say("WAIT k a KEEP 5000").starts_with("MAXWAITERS"));
}

#[test]
fn who_lost_its_rights_is_refused_and_the_next_is_granted() {
    let mut world = play(
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         WAIT k c -> waits",
    );
    world.store.barred.insert(world::token("b"));
    assert_eq!(world.say("RELEASE k a"), "1");
    assert_eq!(world.heard(), ["WAIT k b: NOPERM", "WAIT k c: granted"]);
}
