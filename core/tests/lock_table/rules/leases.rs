//! Leases: their ends, their extension, and the clock that they follow.
//!
//! - A lease is in force up to its deadline. After that, no command restores it.
//! - LOCK.EXTEND sets the rest of the lease and doesn't add to it. Without PX it sets the length
//!   that the lease was given last.
//! - With GT it sets the lease and its length only if the lease then ends later.
//! - When a lease ends, the timer grants the lock to the next waiter. No command is needed.
//! - Deadlines follow the wall clock. BLOCK follows the steady clock.

use super::scene::{play, scenes};
use crate::world;

scenes! {
    a_lease_ends_at_its_deadline: "
        ACQUIRE k a PX 100 -> granted
        +100
        ACQUIRE k b -> nil
        +1
        ACQUIRE k b -> granted";

    nothing_brings_an_ended_lease_back: "
        ACQUIRE k a PX 100 -> granted
        +101
        EXTEND k a PX 100 -> 0
        RELEASE k a -> 0";

    extend_sets_and_does_not_add: "
        ACQUIRE k a PX 1000 -> granted
        EXTEND k a PX 10 -> 1
        +11
        = k
        ACQUIRE k b -> granted";

    gt_never_shortens_a_lease: "
        ACQUIRE k a PX 1000 -> granted
        EXTEND k a PX 10 GT -> 1
        +11
        ACQUIRE k b -> nil
        EXTEND k a GT PX 1000 DATA d -> 1
        +1000
        ACQUIRE k b -> nil
        +1
        EXTEND k a GT -> 0
        ACQUIRE k b -> granted";

    gt_leaves_the_own_length_where_it_leaves_the_lease: "
        ACQUIRE k a PX 1000 -> granted
        EXTEND k a PX 10 GT -> 1
        +500
        EXTEND k a -> 1             // its length is still 1000
        +1000
        ACQUIRE k b -> nil
        EXTEND k a PX 2000 GT -> 1
        +1
        EXTEND k a -> 1
        +2000
        ACQUIRE k b -> nil";

    gt_decides_at_each_key: "
        ACQUIRE j a PX 100 -> granted
        ACQUIRE k a PX 1000 -> granted
        MEXTEND 2 j k a PX 500 GT -> 2
        +500
        ACQUIRE j b -> nil
        +1
        ACQUIRE j b -> granted
        ACQUIRE k b -> nil";

    a_claim_with_gt_claims: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 PX 300 -> place 1
        RELEASE k h -> 1
        EXTEND k a PX 50 GT -> 1
        +100
        ACQUIRE k b -> nil
        EXTEND k a -> 1             // by the PX of its QUEUE
        +300
        ACQUIRE k b -> nil";

    a_lease_end_hands_over_with_nobody_touching_the_key: "
        ACQUIRE k a PX 100 -> granted
        WAIT k b PX 500 -> waits
        +101
        < WAIT k b PX 500: granted
        +500
        = k b#1                     // the lease counts from the grant
        +1
        = k";
}

#[test]
fn a_bare_extension_is_as_long_as_the_lease_was_set_last() {
    let mut world = play(
        "
        ACQUIRE k a PX 400 -> granted
        ACQUIRE s a SHARED PX 500 -> granted
        ACQUIRE s b SHARED PX 50 -> granted",
    );
    let mut extended = |line: &str, key: &str, lease_ms: u64| {
        world.pass_ms(20);
        assert_ne!(world.say(line), "0", "{line}");
        assert_eq!(world.lease_ms(key, "a"), lease_ms, "{line}");
        let replica = world.replica.lock(&world::name(key));
        let own = replica.holder(&world::token("a"));
        assert_eq!(own.map(|own| own.lease_ms), Some(lease_ms), "{line}");
    };
    extended("EXTEND k a", "k", 400);
    extended("EXTEND k a PX 70", "k", 70);
    extended("EXTEND k a NOSESSION", "k", 70);
    extended("MEXTEND 2 k s a", "s", 500);
    extended("ACQUIRE k a PX 900", "k", 900);
    extended("EXTEND k a", "k", 900);
    // A deadline set by EXPIRE is no lease length.
    world.expire("k", Some(world.wall_ms() + 100));
    world.fire(vec![world::name("k")]);
    assert_eq!(world.lease_ms("k", "a"), 100);
    assert_eq!(world.say("EXTEND k a"), "1");
    assert_eq!(world.lease_ms("k", "a"), 900);
    assert_eq!(world.say("EXTEND s b"), "0", "its lease had ended");
    // A waiter's lease has the length that it asked for.
    world.say("WAIT k c PX 300");
    world.say("RELEASE k a");
    world.pass_ms(250);
    assert_eq!(world.say("EXTEND k c"), "1");
    assert_eq!(world.lease_ms("k", "c"), 300);
}

#[test]
fn a_lease_that_ends_beside_others_is_ended_with_nobody_touching_the_key() {
    let mut world = play(
        "ACQUIRE k a SHARED PX 100 -> granted
         ACQUIRE k b SHARED PX 500 -> granted",
    );
    let before = world.stream.len();
    world.pass_ms(101);
    assert_eq!(world.stream.len() - before, 1);
    assert_eq!(world.holders("k"), ["b#1"]);
    assert_eq!(
        world.table.next_due_ms(),
        None,
        "the key's own expiry does for the last"
    );
}

#[test]
fn holds_that_nobody_released_are_counted_by_their_cause() {
    let mut world = play(
        "ACQUIRE k a PX 50 SHARED -> granted
         ACQUIRE k b PX 900 SHARED SESSION -> granted
         ACQUIRE k c PX 900 SHARED SESSION KEEP 30 -> granted
         ACQUIRE k d PX 900 SHARED -> granted
         +50
         +20
         CLOSE ACQUIRE k b PX 900 SHARED SESSION
         CLOSE ACQUIRE k c PX 900 SHARED SESSION KEEP 30
         +31
         = k d#1
         RELEASE k d -> 1",
    );
    let lost = world.table.times().lost_holds;
    let counts = (lost.expired, lost.deleted, lost.disconnected);
    assert_eq!(counts, (2, 0, 1));
    assert_eq!(
        (lost.times.count(), lost.times.sum_ms()),
        (3, 50 + 70 + 100)
    );
    let released = world.table.times().holds.buckets();
    assert_eq!((released.count(), released.sum_ms()), (1, 101));
}

#[test]
fn a_clock_that_is_set_changes_no_span() {
    let mut world = play(
        "ACQUIRE k a PX 100000 -> granted
         ACQUIRE s a PX 90 SESSION -> granted
         WAIT k b BLOCK 50 -> waits",
    );
    world.set_clock(-500_000);
    world.pass_ms(30);
    world.pass_ms(20);
    assert_eq!(world.heard(), [""; 0]);
    assert_eq!(
        world.lease_ms("s", "a"),
        500_040,
        "a renewal never shortens a lease"
    );
    world.pass_ms(1);
    assert_eq!(world.heard(), ["WAIT k b BLOCK 50: nil"]);
}

#[test]
fn a_clock_that_is_set_ahead_ends_leases_at_once() {
    let mut world = play(
        "ACQUIRE k a PX 1000 -> granted
         WAIT k b PX 1000 -> waits",
    );
    world.set_clock(1_001);
    assert_eq!(world.heard(), ["WAIT k b PX 1000: granted"]);
}
