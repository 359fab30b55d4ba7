//! LOCK.QUEUE: places, which are waiters without a connection.
//!
//! - The same command takes a place, keeps it for KEEP and claims its grant.
//! - Places and blocked waiters are in one queue.
//! - A grant to a place lasts for KEEP, or for the lease if that is shorter, until it is claimed.
//!   A claim sets the whole lease.
//! - A place with another request is a new place.
//! - `lock.max-tickets` limits the places. A command that keeps its place is not limited.

use super::scene::{play, scenes};
use crate::world::{self, World};

scenes! {
    // ---- Take a place, keep it, claim its grant

    a_place_is_taken_asked_for_kept_and_claimed_by_the_same_command: "
        ACQUIRE k h -> granted
        QUEUE k a PX 900 KEEP 100 -> place 1
        WAIT k w -> waits
        QUEUE k b KEEP 100 -> place 3
        QUEUE k a PX 900 KEEP 100 -> place 1
        +99
        QUEUE k a PX 900 KEEP 100 -> place 1
        +1
        QUEUE k b KEEP 100 -> place 3       // gone: it was not kept
        RELEASE k h -> 1
        = k a#1
        < nothing
        QUEUE k a PX 900 KEEP 100 -> granted
        +900
        = k a#1
        +1
        < WAIT k w: granted
        RELEASE k w -> 1
        ACQUIRE k c -> granted";

    places_and_waits_stand_in_one_queue: "
        ACQUIRE k h -> granted
        WAIT k a -> waits
        QUEUE k b SHARED -> place 2
        QUEUE k c SHARED -> place 3
        WAIT k d -> waits
        QUEUE k e -> place 5
        ACQUIRE k f -> nil
        RELEASE k h -> 1
        < WAIT k a: granted
        QUEUE k e -> place 4
        RELEASE k a -> 1
        = k b#1 c#1
        QUEUE k e -> place 2
        < nothing
        RELEASE k b -> 1
        RELEASE k c -> 1
        < WAIT k d: granted";

    a_place_that_comes_first_is_no_place: "
        QUEUE k a PX 700 -> granted
        +700
        = k a#1
        +1
        = k
        QUEUE k a SHARED -> granted
        QUEUE k b SHARED -> granted
        = k a#1 b#1";

    a_grant_that_nobody_claims_lapses: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 -> place 1
        QUEUE k b KEEP 300 PX 50 -> place 2
        WAIT k w -> waits
        RELEASE k h -> 1
        = k a#1
        +100
        = k a#1
        +1
        = k b#1
        +50
        < nothing
        +1
        < WAIT k w: granted
        QUEUE k a KEEP 100 -> place 1";

    places_lapse_one_by_one_and_the_grant_wins: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a KEEP 100 -> place 1
        QUEUE k b KEEP 50 -> place 2
        QUEUE k c -> place 3
        +51
        QUEUE k c -> place 2
        +50
        = k a#1";

    a_claim_keeps_the_fence_and_sets_the_lease: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 HOLDS 3 -> place 1
        RELEASE k h -> 1
        = k a#3
        ACQUIRE k a PX 400 REENTRANT -> granted     // its first hold, not one more
        = k a#3
        ACQUIRE k a PX 400 REENTRANT -> granted
        = k a#4
        +400
        = k a#4
        +1
        = k";

    an_extension_claims: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 -> place 1
        RELEASE k h -> 1
        EXTEND k a PX 400 -> 1
        +399
        ACQUIRE k a REENTRANT -> granted
        = k a#2";

    a_grant_to_a_place_never_shortens_a_lease: "
        ACQUIRE k a SHARED PX 900 -> granted
        ACQUIRE k b SHARED PX 900 -> granted
        QUEUE k a KEEP 100 -> place 1
        RELEASE k b -> 1
        +900
        = k a#1
        +1
        = k";

    what_is_given_up_is_no_place_any_more: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        QUEUE k b -> place 2
        CANCEL k a -> 1
        CANCEL k a -> 0
        QUEUE k b -> place 1
        RELEASE k h -> 1
        CANCEL k b -> 0                     // a grant is never touched
        = k b#1";

    // ---- Several requests of one token

    a_place_goes_to_a_wait_and_a_wait_to_a_place: "
        ACQUIRE k h -> granted
        QUEUE k a KEEP 100 -> place 1
        QUEUE k b -> place 2
        WAIT k a BLOCK 300 -> waits
        QUEUE k b -> place 2
        +200
        < nothing
        QUEUE k a KEEP 100 -> place 1
        < WAIT k a BLOCK 300: UNBLOCKED
        +100
        QUEUE k b -> place 2
        +1
        QUEUE k b -> place 1
        WAIT k b -> waits
        RELEASE k h -> 1
        < WAIT k b: granted";

    a_place_for_something_else_is_a_new_one: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        QUEUE k b -> place 2
        QUEUE k a SHARED -> place 2
        QUEUE k b -> place 1
        WAIT k b SHARED -> waits
        QUEUE k a SHARED -> place 1
        WAIT k a SHARED LIMIT 3 -> waits
        QUEUE k b SHARED LIMIT 2 -> place 2
        < WAIT k b SHARED: UNBLOCKED
        RELEASE k h -> 1
        < WAIT k a SHARED LIMIT 3: granted
        = k a#1 b#1";

    a_new_place_may_be_granted_as_the_old_one_goes: "
        ACQUIRE k h SHARED -> granted
        QUEUE k a -> place 1
        QUEUE k a SHARED -> granted
        = k h#1 a#1
        RELEASE k h -> 1
        +1000
        = k a#1                             // claimed: its own lease, not KEEP
        +1
        = k";

    what_a_token_holds_by_another_way_grants_its_place: "
        ACQUIRE k h PX 100 -> granted
        QUEUE k a SHARED KEEP 300 -> place 1
        +101
        = k a#1
        QUEUE k b KEEP 300 -> place 1
        EXTEND k a PX 10 -> 1
        +11
        = k b#1
        WAIT k b PX 800 -> granted
        +799
        = k b#1";

    // ---- Several keys and upgrades

    places_for_several_keys: "
        ACQUIRE x h -> granted
        QUEUE x a -> place 1
        QUEUE x b -> place 2
        MQUEUE 2 x y c -> place 3
        MQUEUE 2 y x c -> place 3
        QUEUE y d -> place 2
        MWAIT 2 x y c -> waits
        MQUEUE 2 x y c -> place 3
        < MWAIT 2 x y c: UNBLOCKED
        CANCEL x a -> 1
        CANCEL x b -> 1
        RELEASE x h -> 1
        = x c#1
        = y c#1
        CANCEL y d -> 1
        MQUEUE 2 x y c -> granted";

    upgrades_take_places_at_the_front: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        QUEUE k w -> place 1
        QUEUE k a -> place 1
        QUEUE k w -> place 2
        QUEUE k b -> DEADLOCK another holder waits to upgrade this lock
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        MQUEUE 2 j k b -> DEADLOCK another holder waits to upgrade this lock
        RELEASE k b -> 1
        = k a#1
        QUEUE k a -> granted
        RELEASE k a -> 1
        = k w#1";
}

// ---- The end of a place

#[test]
fn places_that_were_not_kept_are_counted() {
    let mut world = World::new();
    world.say("ACQUIRE k h");
    for waiter in ["a", "b", "c"] {
        world.say(&format!("QUEUE k {waiter} KEEP 50"));
    }
    world.say("CANCEL k c");
    world.pass_ms(51);
    let counters = world.table.counters();
    assert_eq!(
        (counters.lapses, counters.timeouts, counters.cancels),
        (2, 0, 1)
    );
}

/// The operation comes before the timer.
#[test]
fn a_place_that_lapsed_unseen_is_gone() {
    let mut world = World::new();
    world.say("ACQUIRE k h");
    world.say("WAIT k w");
    world.say("QUEUE k a KEEP 50");
    world.say("QUEUE k b");
    world.now_ms += 51;
    assert_eq!(world.say("CANCEL k a"), "0");
    world.say("QUEUE k c KEEP 50");
    world.say("QUEUE k d");
    world.now_ms += 51;
    assert_eq!(world.say("QUEUE k c"), "place 4");
    assert_eq!(world.table.counters().lapses, 2);
}

#[test]
fn a_claim_sets_the_holds_that_it_names_and_counts_none() {
    for (claim, holder) in [
        ("QUEUE k a", "a#2"),
        ("QUEUE k a HOLDS 2", "a#2"),
        ("QUEUE k a HOLDS 5", "a#5"),
        ("QUEUE k a HOLDS 1", "a#1"),
        ("ACQUIRE k a HOLDS 5", "a#5"),
        ("WAIT k a HOLDS 5 SESSION", "a#5"),
        ("ACQUIRE k a", "a#2"),
        ("ACQUIRE k a REENTRANT", "a#2"),
        ("WAIT k a REENTRANT", "a#2"),
        ("ACQUIRE k a SHARED REENTRANT", "a#2"),
        ("WAIT k a SHARED LIMIT 3 PERMITS 2 REENTRANT", "a#2"),
        ("MACQUIRE 1 k a REENTRANT", "a#2"),
        ("EXTEND k a SESSION", "a#2"),
    ] {
        let mut world = play(
            "ACQUIRE k h -> granted
             QUEUE k a HOLDS 2 -> place 1
             RELEASE k h -> 1",
        );
        let answer = world.say(claim);
        assert!(
            ["granted", "1"].contains(&answer.as_str()),
            "{claim}: {answer}"
        );
        assert_eq!(world.holders("k"), [holder], "{claim}");
    }
}

#[test]
fn who_lost_its_rights_loses_its_place_when_its_turn_comes() {
    let mut world = World::new();
    world.say("ACQUIRE k h");
    world.say("QUEUE k a");
    world.say("QUEUE k b");
    world.store.barred.insert(world::token("a"));
    assert_eq!(world.say("QUEUE k b"), "place 2");
    world.say("RELEASE k h");
    assert_eq!(world.holders("k"), ["b#1"]);
    assert!(world.table.queues().is_empty());
}

/// The place is gone before its rank can be replied. The command is refused, because the token has
/// no rights and no place.
#[test]
fn who_loses_its_place_as_it_takes_it_is_refused() {
    let mut world = play(
        "ACQUIRE k h SHARED -> granted
         QUEUE k a -> place 1
         WAIT k v SHARED -> waits",
    );
    world.store.barred.insert(world::token("a"));
    assert_eq!(
        world.say("QUEUE k a SHARED"),
        "NOPERM No permissions to access a key"
    );
    assert_eq!(world.holders("k"), ["h#1", "v#1"]);
    assert!(world.table.queues().is_empty());
}

#[test]
fn no_place_is_left_on_a_server_that_is_no_primary() {
    let mut world = World::new();
    for key in ["k", "j"] {
        world.say(&format!("ACQUIRE {key} h"));
    }
    world.say("QUEUE k a");
    world.say("QUEUE j a");
    assert!(world.table.demote(world.now_ms).is_empty());
    assert!(world.table.queues().is_empty());
    world.say("QUEUE k a");
    world.say("WAIT k b");
    world.say("MQUEUE 2 j k c");
    let mut left = world.table.demote(world.now_ms);
    left.sort();
    assert_eq!(left, [world::name("j"), world::name("k"), world::name("k")]);
    assert_eq!(world.table.queues().len(), 1);
    world.table.queues().check().expect("sound queues");
    world.say("RELEASE k h");
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

#[test]
fn places_at_a_name_that_is_elsewhere_are_given_up_in_parts() {
    let mut world = play(
        "MACQUIRE 2 k j h -> granted
         QUEUE k a -> place 1
         WAIT k b -> waits
         MQUEUE 2 k j c -> place 3
         QUEUE j d -> place 2",
    );
    let names = [world::name("k")];
    assert_eq!(world.table.drop_places_at(&names, 1, world.now_ms), names);
    assert_eq!(world.table.queues().place_count(), 3);
    let left = world.table.drop_places_at(&names, 10, world.now_ms);
    assert_eq!(left, [world::name("j"), world::name("k")]);
    assert_eq!(world.table.drop_places_at(&names, 10, world.now_ms), []);
    world.table.queues().check().expect("sound queues");
    // The server redirects a blocked client itself. The other name is not affected.
    let waiting = world.table.queues();
    assert_eq!((waiting.blocked_len(), waiting.place_count()), (1, 1));
    assert_eq!(world.heard(), [""; 0]);
}

#[test]
fn a_name_whose_places_were_given_up_is_scheduled_while_a_client_waits_for_it() {
    let mut world = play(
        "MACQUIRE 2 k j h -> granted
         QUEUE k a -> place 1
         QUEUE j a -> place 1
         WAIT j b -> waits",
    );
    let names = ["k", "j"].map(world::name);
    let left = world.table.drop_places_at(&names, 10, world.now_ms);
    assert_eq!(left, [world::name("j")]);
    let is_scheduled = names.map(|name| world.table.is_scheduled(&name));
    assert_eq!(is_scheduled, [false, true]);
}

// ---- The limit

#[test]
fn tickets_are_limited_and_keeping_one_passes() {
    let mut world = World::new();
    world.max_tickets = 3;
    world.max_waiters = 1;
    let full = "MAXTICKETS as many wait without a connection as lock.max-tickets allows";
    for (line, answer) in [
        ("MACQUIRE 2 k j h", "granted"),
        ("QUEUE k a", "place 1"),
        ("MQUEUE 3 j k l b", full), // a ticket for each key
        ("MQUEUE 2 j k b", "place 2"),
        ("MQUEUE 2 j k b", "place 2"),
        ("QUEUE j c", full),
        ("QUEUE k a", "place 1"),
        // The token leaves one place and takes another.
        ("QUEUE k a SHARED", "place 2"),
        ("WAIT j w", "waits"),
        (
            "WAIT k v",
            "MAXWAITERS as many clients wait as lock.max-waiters allows",
        ),
        // A wait that would replace a place counts as new. If it is refused, the place stays.
        (
            "WAIT k a SHARED",
            "MAXWAITERS as many clients wait as lock.max-waiters allows",
        ),
        ("QUEUE k a SHARED", "place 2"),
        // A place that takes over a wait with the same request is not limited. A place with another
        // request is refused.
        ("QUEUE j w SHARED", full),
        ("QUEUE j w", "place 2"),
        ("QUEUE j w", "place 2"),
        ("QUEUE j w SHARED", full),
        ("CANCEL k a", "1"),
        ("QUEUE j w SHARED", "place 2"),
        ("WAIT k v", "waits"),
    ] {
        assert_eq!(world.say(line), answer, "{line}");
    }
    assert_eq!(world.heard(), ["WAIT j w: UNBLOCKED"]);
    let queues = world.table.queues();
    assert_eq!((queues.blocked_len(), queues.place_count()), (1, 3));
}
