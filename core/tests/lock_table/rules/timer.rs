//! The timer: it settles the names that are due, when no command does it.
//!
//! - While nothing may be granted, only timeouts take effect. The grants follow later.
//! - What is deferred is done when its time has come.
//! - The end of a lease that a waiter waits for is announced once.

use super::scene::play;
use crate::world::{self, World};

// ---- While nothing may be granted

#[test]
fn where_nothing_may_be_granted_only_timeouts_pass() {
    let mut world = play(
        "ACQUIRE k a PX 50 -> granted
         WAIT k b BLOCK 100 -> waits
         WAIT k c -> waits",
    );
    world.now_ms += 101;
    let decision = world.outside(|table, outside| table.settle_due(&[], 10, outside));
    world.carry_out(decision);
    assert_eq!(world.heard(), ["WAIT k b BLOCK 100: nil"]);
    world.fire(Vec::new());
    assert_eq!(world.heard(), ["WAIT k c: granted"]);
}

#[test]
fn a_timeout_while_nothing_may_be_granted_is_made_up_for() {
    let mut world = play(
        "ACQUIRE k a SHARED PX 1000 -> granted
         WAIT k b BLOCK 50 -> waits
         WAIT k c SHARED -> waits",
    );
    world.now_ms += 51;
    let decision = world.outside(|table, outside| table.time_out_due(10, outside));
    world.carry_out(decision);
    assert_eq!(world.heard(), ["WAIT k b BLOCK 50: nil"]);
    world.pass_ms(0);
    assert_eq!(world.heard(), ["WAIT k c SHARED: granted"]);
}

#[test]
fn a_timeout_while_nothing_may_be_granted_is_made_up_for_at_each_key() {
    let mut world = play(
        "MACQUIRE 2 j k a SHARED -> granted
         MWAIT 2 j k b BLOCK 50 -> waits
         WAIT j c SHARED -> waits
         WAIT k d SHARED -> waits",
    );
    world.now_ms += 51;
    let decision = world.outside(|table, outside| table.time_out_due(10, outside));
    world.carry_out(decision);
    assert_eq!(world.heard(), ["MWAIT 2 j k b BLOCK 50: nil"]);
    world.pass_ms(0);
    let granted = ["WAIT j c SHARED: granted", "WAIT k d SHARED: granted"];
    assert_eq!(world.heard(), granted);
}

#[test]
fn a_connection_that_closes_while_nothing_may_be_granted_is_followed_by_the_next_in_line() {
    let mut world = play(
        "ACQUIRE long a PX 600000 -> granted
         ACQUIRE brief a PX 2500 -> granted
         ACQUIRE tied c PX 9000 SESSION -> granted
         WAIT long b -> waits
         WAIT brief b -> waits
         WAIT tied b -> waits
         WAIT long d BLOCK 2000 -> waits",
    );
    world.now_ms += 2600;
    let decision = world.outside(|table, outside| table.time_out_due(10, outside));
    world.carry_out(decision);
    let client = world.client_of("ACQUIRE tied c PX 9000 SESSION");
    world.table.close_client(client, world.wall_ms());
    world.heard();
    assert_eq!(world.say("RELEASE long a"), "1");
    assert_eq!(world.heard(), ["WAIT long b: granted"]);
    world.fire(Vec::new());
    assert_eq!(
        world.heard(),
        ["WAIT brief b: granted", "WAIT tied b: granted"]
    );
}

#[test]
fn what_is_deferred_is_done_when_its_time_has_come() {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         WAIT k b -> waits
         ACQUIRE s a PX 90 SESSION -> granted",
    );
    world.now_ms += 101;
    world.defer(&["k", "s"]);
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms + 20));
    world.pass_ms(19);
    assert_eq!(world.heard(), [""; 0]);
    world.pass_ms(1);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

#[test]
fn a_name_without_waiters_is_deferred_too() {
    let mut world = play(
        "ACQUIRE k a SHARED PX 50 -> granted
         ACQUIRE k b SHARED PX 90 -> granted",
    );
    world.now_ms += 51;
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms));
    world.defer(&["k"]);
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms + 20));
}

#[test]
fn a_session_where_nothing_may_be_written_is_neither_renewed_nor_ended() {
    let mut world = play(
        "ACQUIRE k a PX 90 SESSION -> granted
         ACQUIRE j b PX 90 SESSION -> granted",
    );
    world.now_ms += 40;
    let names = [world::name("k")];
    let decision = world.outside(|table, outside| table.settle_due(&names, 10, outside));
    world.carry_out(decision);
    assert_eq!(
        (world.lease_ms("k", "a"), world.lease_ms("j", "b")),
        (90, 50)
    );
    assert_eq!(world.table.sessions().len(), 2);
    world.fire(Vec::new());
    assert_eq!(world.lease_ms("j", "b"), 90);
}

// ---- Names that are due

#[test]
fn a_lock_that_was_handed_on_is_looked_at_when_its_first_lease_would_have_ended_and_ends_with_its_last(
) {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         WAIT k b PX 500 -> waits
         WAIT k c -> waits",
    );
    let first_end_ms = world.now_ms + 101;
    assert_eq!(world.say("RELEASE k a"), "1");
    assert_eq!(world.heard(), ["WAIT k b PX 500: granted"]);
    // The end of the lease was postponed. Nothing is due sooner than before.
    let next_ms = world.table.next_due_ms().expect("somebody waits");
    assert!((first_end_ms..=first_end_ms + 400).contains(&next_ms));
    world.pass_ms(101);
    assert_eq!(world.holders("k"), ["b#1"]);
    assert_eq!(world.heard(), [""; 0]);
    assert_eq!(world.table.next_due_ms(), Some(first_end_ms + 400));
    world.pass_ms(399);
    assert_eq!(world.holders("k"), ["b#1"]);
    world.pass_ms(1);
    assert_eq!(world.heard(), ["WAIT k c: granted"]);
}

/// The names to settle are looked up just before they are settled. A wait that ends in between can
/// have other names. A waiter admitted there must not be forgotten because a waiter behind it was
/// looked at meanwhile.
#[test]
fn who_follows_a_wait_that_ends_between_two_looks_is_granted() {
    let mut world = play(
        "ACQUIRE k1 h -> granted
         ACQUIRE k3 g -> granted
         MWAIT 2 k1 k2 a BLOCK 100 -> waits
         WAIT k2 t -> waits
         WAIT k3 x -> waits
         MWAIT 2 k3 k5 b BLOCK 100 -> waits
         MWAIT 2 k2 k5 c -> waits",
    );
    world.now_ms += 101;
    let found = [world::name("k3")];
    let decision = world.outside(|table, outside| table.settle_due(&found, 10, outside));
    world.carry_out(decision);
    assert_eq!(
        world.heard(),
        [
            "MWAIT 2 k1 k2 a BLOCK 100: nil",
            "MWAIT 2 k3 k5 b BLOCK 100: nil"
        ]
    );
    world.fire(Vec::new());
    assert_eq!(world.heard(), ["WAIT k2 t: granted"]);
    assert_eq!(world.table.counters().expirations, 0);
}

#[test]
fn names_are_found_in_parts_whatever_leaves_meanwhile() {
    let mut world = World::new();
    for key in 0..30 {
        world.say(&format!("ACQUIRE k{key} h"));
        world.say(&format!("WAIT k{key} w"));
    }
    let mut found = std::collections::BTreeSet::new();
    let mut below = usize::MAX;
    let mut gone = 0..30;
    while below > 0 {
        let (rest, names) = world.table.queues().names_below(below, 4);
        found.extend(names.cloned());
        below = rest;
        for key in gone.by_ref().take(2) {
            found.insert(world::name(&format!("k{key}")));
            world.hang_up(&format!("WAIT k{key} w"));
        }
        world.say(&format!("ACQUIRE new{below} h"));
        world.say(&format!("WAIT new{below} w"));
    }
    assert!((0..30).all(|key| found.contains(&world::name(&format!("k{key}")))));
}

// ---- Announcements

#[test]
fn the_end_of_a_lease_is_announced_once_where_somebody_waits_for_it() {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         ACQUIRE alone a PX 100 -> granted
         WAIT k b -> waits
         WAIT k c -> waits",
    );
    let end_ms = world.now_ms + 101;
    assert_eq!(world.table.queues().next_unannounced_ms(), Some(end_ms));
    assert_eq!(world.table.announce_ends(end_ms - 1, 9), []);
    assert_eq!(world.table.announce_ends(end_ms, 9), [world::name("k")]);
    assert_eq!(world.table.announce_ends(end_ms, 9), []);
    // An extension sets another end, which is announced too.
    world.say("EXTEND k a PX 300");
    assert_eq!(world.table.announce_ends(end_ms, 9), []);
    assert_eq!(
        world.table.announce_ends(end_ms + 200, 9),
        [world::name("k")]
    );
}

#[test]
fn an_end_that_was_put_off_is_announced_when_it_comes() {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         WAIT k b PX 500 -> waits
         WAIT k c -> waits",
    );
    let first_end_ms = world.now_ms + 101;
    world.say("RELEASE k a");
    assert_eq!(world.table.announce_ends(first_end_ms, 9), []);
    let end_ms = first_end_ms + 400;
    assert_eq!(world.table.queues().next_unannounced_ms(), Some(end_ms));
    assert_eq!(world.table.announce_ends(end_ms - 1, 9), []);
    assert_eq!(world.table.announce_ends(end_ms, 9), [world::name("k")]);
    assert_eq!(world.table.announce_ends(end_ms, 9), []);
    assert_eq!(world.table.queues().next_unannounced_ms(), None);
}
