//! Contention: LOCK.HOT shows where waiting happens.
//!
//! - A wait begins once, whatever its token repeats, and is added to the minute in which it ends.
//! - A holder that goes while a waiter waits is counted, by whatever way it goes.
//! - The counts are those of this minute and of the one before, and belong to the name.

use std::collections::BTreeMap;

use proptest::prelude::*;
use redis_lock_core::budget::MOST_NAMES_CHECKED;
use redis_lock_core::state::contention::{MOST_KEY_BYTES, MOST_NAMES};
use redis_lock_core::values::name::{Name, Relocation};

use super::scene::{assert_hot, play, scenes};
use crate::world::{self, World};

/// Returns the keys that LOCK.HOT shows, the hottest first.
fn hottest(world: &World, most: usize) -> Vec<String> {
    let hottest = world.table.hottest(most, world.now_ms, |_| true);
    let keys = hottest.iter().map(|it| it.name.key().escape_ascii());
    keys.map(|key| key.to_string()).collect()
}

scenes! {
    a_lock_that_is_waited_for_by_nobody_is_not_hot: "
        ACQUIRE k a -> granted
        EXTEND k a -> 1
        ACQUIRE k a -> granted
        +50
        RELEASE k a -> 1
        RELEASE k a -> 0
        QUEUE k a -> granted
        +1001
        HOT k nothing";

    a_wait_counts_from_its_beginning_while_it_goes_on_and_when_it_has_ended: "
        ACQUIRE k a -> granted
        +10
        WAIT k b -> waits
        HOT k waits 1 waiters 1 waited-ms 0 longest-wait-ms 0
        +30
        WAIT k c -> waits
        +5
        HOT k waits 2 waiters 2 waited-ms 40 longest-wait-ms 35 grants 0 held-ms 0
        RELEASE k a -> 1
        HOT k waits 2 waiters 1 waited-ms 40 longest-wait-ms 35 grants 1 held-ms 45
        +15
        RELEASE k b -> 1
        RELEASE k c -> 1
        HOT k waits 2 waiters 0 waited-ms 55 longest-wait-ms 35 grants 2 held-ms 60 refused 0";

    a_wait_ends_however_it_ends: "
        ACQUIRE k a PX 9000 -> granted
        WAIT k b BLOCK 20 -> waits
        WAIT k c -> waits
        WAIT k d -> waits
        WAIT k e -> waits
        QUEUE k f KEEP 40 -> place 5
        +21
        HOT k waits 5 waiters 4 waited-ms 105 longest-wait-ms 21
        CANCEL k c -> 1
        UNBLOCK WAIT k d
        BYE WAIT k e
        HOT k waiters 1 waited-ms 105 longest-wait-ms 21
        +20
        HOT k waiters 0 waited-ms 125 longest-wait-ms 41 waits 5 grants 0";

    a_wait_of_another_type_s_key_ends: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        +20
        SET k
        < WAIT k b: WRONGTYPE
        HOT k waiters 0 waited-ms 20 waits 1 grants 1 held-ms 20";

    a_take_over_continues_its_wait: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        +10
        WAIT k b -> waits
        +10
        QUEUE k b -> place 1
        HOT k waits 1 waiters 1 waited-ms 20 longest-wait-ms 20
        +10
        QUEUE k b -> place 1
        WAIT k c -> waits
        WAIT k b SHARED -> waits
        +10
        HOT k waits 2 waiters 2 waited-ms 50 longest-wait-ms 40
        CANCEL k b -> 1
        HOT k waits 2 waiters 1 waited-ms 50 longest-wait-ms 40";

    a_wait_that_is_granted_at_once_ends_the_older_one: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k c -> nil
        WAIT k b -> waits
        +10
        WAIT k b SHARED -> granted
        < WAIT k b: UNBLOCKED
        HOT k waits 1 waiters 0 waited-ms 10 longest-wait-ms 10 grants 0 refused 1
        WAIT k d KEEP 50 -> waits
        BYE WAIT k d KEEP 50
        +5
        WAIT k d SHARED -> granted
        HOT k waits 2 waiters 0 waited-ms 15 longest-wait-ms 10 grants 0 refused 1";

    an_absent_waiter_waits: "
        ACQUIRE k a -> granted
        WAIT k b KEEP 100 -> waits
        +10
        BYE WAIT k b KEEP 100
        +10
        HOT k waits 1 waiters 1 waited-ms 20
        RELEASE k a -> 1
        HOT k grants 1 held-ms 20 waiters 1
        ACQUIRE k c -> granted
        +5
        DEL k
        HOT k grants 2 held-ms 25
        +86
        HOT k waiters 0 waited-ms 111";

    a_place_waits_until_it_is_granted: "
        ACQUIRE k a -> granted
        QUEUE k b KEEP 100 -> place 1
        +30
        RELEASE k a -> 1
        HOT k waits 1 waiters 0 waited-ms 30 grants 1
        +30
        QUEUE k b KEEP 100 -> granted
        HOT k waits 1 waiters 0 waited-ms 30 grants 1";

    a_place_that_is_granted_at_once_never_waited: "
        QUEUE k a -> granted
        HOT k nothing";

    only_an_acquire_that_gets_nil_is_refused: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b -> nil
        MACQUIRE 2 k j b -> nil
        WAIT k b BLOCK 10 -> waits
        +11
        < WAIT k b BLOCK 10: nil
        QUEUE k b KEEP 5 -> place 1
        +6
        WAIT k a -> granted
        RELEASE k a -> 1
        ACQUIRE k a SHARED LIMIT 2 PERMITS 1 -> granted
        ACQUIRE k a SHARED LIMIT 2 PERMITS 2 -> ERR permits can't be raised
        RELEASE k b -> 0
        HOT k refused 2 waits 2
        HOT j refused 1 waits 0 waited-ms 0 grants 0";

    a_command_for_several_keys_counts_at_each: "
        ACQUIRE k a -> granted
        MWAIT 3 j k l b -> waits
        +20
        HOT j waits 1 waiters 1 waited-ms 20
        HOT k waits 1 waiters 1 waited-ms 20
        RELEASE k a -> 1
        HOT j waits 1 waiters 0 waited-ms 20 grants 0
        HOT k waits 1 waiters 0 waited-ms 20 grants 1 held-ms 20
        HOT l waits 1 waiters 0 waited-ms 20 grants 0";

    a_holder_that_goes_unwaited_for_is_not_counted: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        +10
        RELEASE k b -> 1
        WAIT k c -> waits
        +10
        RELEASE k a -> 1
        RELEASE k c -> 1
        HOT k grants 1 held-ms 20";

    a_holder_whose_key_nobody_waits_for_is_not_counted: "
        ACQUIRE k a -> granted
        ACQUIRE j a -> granted
        WAIT j b -> waits
        RELEASE k a -> 1
        HOT k nothing";

    a_hold_that_began_with_a_timeout_has_not_ended: "
        ACQUIRE k a PX 50 -> granted
        WAIT k b PX 500 -> waits
        WAIT k c BLOCK 50 -> waits
        WAIT k d -> waits
        +51
        < WAIT k b PX 500: granted | WAIT k c BLOCK 50: nil
        HOT k grants 1 held-ms 50 waiters 1";

    a_lease_of_another_key_of_the_waiter_ends_a_hold: "
        ACQUIRE x a PX 50 -> granted
        ACQUIRE y h PX 40 -> granted
        MWAIT 2 x y b -> waits
        LATE 60
        ACQUIRE x c -> nil
        < MWAIT 2 x y b: granted
        HOT x grants 1 held-ms 50
        HOT y grants 1 held-ms 40";

    a_holder_goes_when_its_last_hold_goes: "
        ACQUIRE k a HOLDS 2 -> granted
        WAIT k b -> waits
        +10
        RELEASE k a -> 1
        HOT k grants 0
        RELEASE k a -> 1
        HOT k grants 1 held-ms 10";

    an_upgrade_is_no_end_of_a_hold: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        WAIT k c -> waits
        +10
        RELEASE k b -> 1
        < WAIT k a: granted
        HOT k grants 1 held-ms 10
        +5
        RELEASE k a -> 1
        HOT k grants 2 held-ms 15";

    a_hold_that_began_in_the_same_operation_has_not_ended: "
        ACQUIRE x h PX 50 -> granted
        ACQUIRE k s SHARED -> granted
        MWAIT 2 x k t SHARED -> waits
        WAIT k e SHARED LIMIT 2 REPLICAS 5 -> waits
        WAIT k f -> waits
        LATE 51
        MRELEASE 2 k x s -> 1
        < MWAIT 2 x k t SHARED: granted | WAIT k e SHARED LIMIT 2 REPLICAS 5: NOREPLICAS
        = k t#1
        HOT k grants 1 held-ms 51 waiters 1";

    a_lease_that_ends_while_a_waiter_waits_ends_a_hold: "
        ACQUIRE k a PX 50 -> granted
        WAIT k b PX 20 -> waits
        WAIT k c SHARED PX 30 -> waits
        WAIT k d SHARED PX 40 -> waits
        WAIT k e -> waits
        +51
        HOT k grants 1 held-ms 50
        +21
        HOT k grants 2 held-ms 70
        +31
        HOT k grants 3 held-ms 100
        +10
        HOT k grants 4 held-ms 140";

    a_lease_that_an_operation_finds_ended_ends_a_hold: "
        ACQUIRE k a PX 50 -> granted
        WAIT k b -> waits
        LATE 60
        ACQUIRE k c -> nil
        < WAIT k b: granted
        HOT k grants 1 held-ms 50 waited-ms 60 refused 1";

    a_connection_that_closes_ends_its_hold: "
        A> ACQUIRE k a SESSION -> granted
        WAIT k b -> waits
        +20
        CLOSE ACQUIRE k a SESSION
        < WAIT k b: granted
        HOT k grants 1 held-ms 20";

    a_key_that_goes_ends_its_holds: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED PX 15 -> granted
        WAIT k c -> waits
        WAIT k d -> waits
        LATE 20
        DEL k
        < WAIT k c: granted
        HOT k grants 2 held-ms 35
        DEL k
        HOT k grants 3 held-ms 35";

    a_lock_that_is_renamed_takes_its_holders_along: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        ACQUIRE j c -> granted
        WAIT j d -> waits
        +20
        RENAME k j
        < WAIT k b: granted
        HOT k grants 0 waits 1
        HOT j grants 1 held-ms 20
        RELEASE j a -> 1
        HOT j grants 2 held-ms 40";

    a_waiter_of_several_keys_does_not_hide_a_hold_that_ended: "
        ACQUIRE x a -> granted
        ACQUIRE y a -> granted
        MWAIT 2 x y b -> waits
        +10
        MRELEASE 2 x y a -> 2
        HOT x grants 1 held-ms 10
        HOT y grants 1 held-ms 10";

    the_minute_before_counts_and_older_ones_do_not: "
        ACQUIRE k a PX 900000 -> granted
        ACQUIRE k b -> nil
        WAIT k b BLOCK 10 -> waits
        +19999
        < WAIT k b BLOCK 10: nil
        HOT k refused 1 waits 1 waited-ms 19999
        +1
        ACQUIRE k b -> nil
        HOT k refused 2 waits 1 waited-ms 19999
        +59999
        HOT k refused 2 waits 1 waited-ms 19999
        +1
        HOT k refused 1 waits 0 waited-ms 0 longest-wait-ms 0
        +60000
        HOT k nothing
        ACQUIRE k b -> nil
        HOT k refused 1";

    a_wait_of_many_minutes_counts_whole_in_the_minute_of_its_end: "
        ACQUIRE k a PX 900000 -> granted
        WAIT k b -> waits
        +200000
        HOT k waits 0 waiters 1 waited-ms 200000 longest-wait-ms 200000
        RELEASE k a -> 1
        HOT k waits 0 waiters 0 waited-ms 200000 longest-wait-ms 200000 grants 1 held-ms 200000
        +100000
        HOT k waited-ms 200000
        +60000
        HOT k nothing";
}

#[test]
fn a_hand_over_that_is_taken_back_with_keep_goes_on_waiting() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a KEEP 100 -> waits
        WAIT k b PX 5000 -> waits
        +40
        RELEASE k h -> 1
        HOT k waits 2 waited-ms 80 grants 1 held-ms 40",
    );
    world.now_ms += 5;
    world.take_back_last();
    assert_eq!(world.heard().len(), 2);
    assert_hot(
        &world,
        "k",
        "waits 2 waiters 1 waited-ms 90 longest-wait-ms 45 grants 1 held-ms 40",
    );
    world.pass_ms(101);
    assert_hot(
        &world,
        "k",
        "waits 2 waiters 0 waited-ms 191 longest-wait-ms 146",
    );
}

#[test]
fn a_hand_over_that_is_taken_back_in_the_next_minute_is_not_counted_twice() {
    let mut world = play(
        "ACQUIRE k h -> granted
        +19900
        ACQUIRE k h -> granted
        WAIT k a KEEP 300 -> waits
        +99
        RELEASE k h -> 1
        HOT k waited-ms 99",
    );
    world.now_ms += 10;
    world.take_back_last();
    assert_hot(&world, "k", "waited-ms 109 waiters 1 waits 1");
}

#[test]
fn a_hand_over_that_is_taken_back_without_keep_ends_a_hold() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a -> waits
        WAIT k b PX 5000 -> waits
        +40
        RELEASE k h -> 1",
    );
    world.take_back_last();
    assert_hot(
        &world,
        "k",
        "waits 2 waiters 0 waited-ms 80 grants 2 held-ms 40",
    );
}

#[test]
fn a_hand_over_of_several_keys_that_is_taken_back_ends_a_hold_of_each() {
    let mut world = play(
        "MACQUIRE 2 j k h -> granted
        MWAIT 2 j k a -> waits
        WAIT j b -> waits
        WAIT k b -> waits
        +40
        MRELEASE 2 j k h -> 2",
    );
    world.take_back_last();
    for key in ["j", "k"] {
        assert_hot(&world, key, "waiters 0 grants 2 held-ms 40");
    }
}

/// Deletes a key. The timer doesn't fire yet.
fn delete_unseen(world: &mut World, key: &str) {
    world.store.keys.remove(&world::name(key));
    world.store.touched.insert(world::name(key));
}

#[test]
fn a_key_that_went_unseen_ends_a_hold_though_another_command_comes_first() {
    let mut world = play(
        "ACQUIRE k a -> granted
        WAIT k b KEEP 100 -> waits
        BYE WAIT k b KEEP 100
        +20",
    );
    delete_unseen(&mut world, "k");
    assert_eq!(world.say("ACQUIRE k c"), "granted");
    world.fire(Vec::new());
    assert_hot(&world, "k", "grants 1 held-ms 20 waiters 1");
}

#[test]
fn a_key_that_went_unseen_ends_a_hold_though_its_last_wait_ends_first() {
    for (line, answer) in [("CANCEL k b", "1"), ("WAIT k b", "granted")] {
        let mut world = play(
            "ACQUIRE k a -> granted
            WAIT k b KEEP 100 -> waits
            BYE WAIT k b KEEP 100
            +20",
        );
        delete_unseen(&mut world, "k");
        assert_eq!(world.say(line), answer);
        world.fire(Vec::new());
        assert_hot(&world, "k", "grants 1 held-ms 20");
    }
}

#[test]
fn a_key_that_went_unseen_ends_a_hold_though_its_waiter_is_granted_first() {
    let mut world = play(
        "ACQUIRE x a -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y b -> waits
        +20",
    );
    delete_unseen(&mut world, "y");
    assert_eq!(world.say("RELEASE x a"), "1");
    assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
    world.fire(Vec::new());
    assert_hot(&world, "y", "grants 1 held-ms 20 waiters 0");
}

#[test]
fn a_lock_that_was_replaced_unseen_ends_a_hold_though_its_waiter_is_granted_first() {
    let mut world = play(
        "ACQUIRE x a -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y b -> waits
        ACQUIRE z b -> granted
        +20",
    );
    world.rename_unseen("z", "y");
    assert_eq!(world.say("RELEASE x a"), "1");
    assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
    world.fire(Vec::new());
    assert_hot(&world, "y", "grants 1 held-ms 20 waiters 0");
}

#[test]
fn a_wait_that_goes_on_sees_the_end_of_a_grant_that_stayed() {
    let mut world = play(
        "QUEUE z a PX 1 KEEP 1 -> granted
        MWAIT 2 y z d KEEP 20 -> waits
        +2
        < MWAIT 2 y z d KEEP 20: granted
        MACQUIRE 2 x y d -> granted",
    );
    world.take_back_last();
    assert_hot(&world, "y", "grants 0 waiters 1");
    world.delete("y");
    assert_hot(&world, "y", "grants 1 waiters 1");
}

#[test]
fn a_wait_that_goes_on_did_not_see_the_holds_that_ended_before() {
    let mut world = play(
        "ACQUIRE y h -> granted
        MWAIT 2 y z d KEEP 100 -> waits
        RELEASE y h -> 1
        DEL z
        ACQUIRE z e PX 1 -> granted
        LATE 5",
    );
    world.take_back_last();
    assert_hot(&world, "z", "grants 0 waiters 1");
}

#[test]
fn a_flush_ends_the_holds_and_keeps_the_counts() {
    let mut world = play(
        "ACQUIRE k a -> granted
        ACQUIRE k b -> nil
        WAIT k b -> waits
        ACQUIRE j a -> granted
        ACQUIRE j b -> nil
        +20",
    );
    world.flush();
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
    assert_hot(
        &world,
        "k",
        "grants 1 held-ms 20 refused 1 waits 1 waited-ms 20",
    );
    assert_hot(&world, "j", "grants 0 held-ms 0 refused 1");
}

#[test]
fn swapped_databases_end_no_hold() {
    for (one, two) in [(0, 1), (1, 0)] {
        let mut world = play(
            "ACQUIRE k a -> granted
            WAIT k b -> waits
            +20",
        );
        let moved = world.store.keys.remove(&world::name("k"));
        world.table.follow(&Relocation::Swapped(one, two));
        let other = Name::new(1, b"k");
        world
            .store
            .keys
            .insert(other.clone(), moved.expect("a lock"));
        world.fire(vec![world::name("k"), other]);
        assert_eq!(world.heard(), ["WAIT k b: granted"]);
        assert_hot(&world, "k", "grants 0 held-ms 0 waits 1 waited-ms 20");
    }
}

#[test]
fn a_lock_that_left_with_its_slot_ends_no_hold() {
    let mut world = play(
        "ACQUIRE k a -> granted
        WAIT k b -> waits
        +20",
    );
    delete_unseen(&mut world, "k");
    world.defer(&["k"]);
    world.pass_ms(20);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
    assert_hot(&world, "k", "grants 0 held-ms 0 waits 1 waited-ms 40");
}

/// The locks of a replica are its primary's, which counts their holds.
#[test]
fn a_demotion_ends_no_hold_of_a_client_that_still_waits() {
    let mut world = play(
        "ACQUIRE k a -> granted
        WAIT k b -> waits
        +20",
    );
    world.table.demote(world.now_ms);
    delete_unseen(&mut world, "k");
    world.fire(Vec::new());
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
    assert_hot(&world, "k", "grants 0 held-ms 0 waits 1 waited-ms 20");
}

#[test]
fn a_demotion_ends_the_waits_of_places() {
    let mut world = play(
        "ACQUIRE k a -> granted
        QUEUE k b -> place 1
        +20",
    );
    world.table.demote(world.now_ms);
    assert_hot(&world, "k", "waiters 0 waits 1 waited-ms 20");
}

#[test]
fn places_that_move_to_another_server_end() {
    let mut world = play(
        "ACQUIRE k a -> granted
        QUEUE k b -> place 1
        +20",
    );
    let names = [world::name("k")];
    world.table.drop_places_at(&names, 10, world.now_ms);
    assert_hot(&world, "k", "waiters 0 waits 1 waited-ms 20");
}

#[test]
fn the_oldest_wait_is_one_that_is_not_over() {
    let mut world = World::new();
    let oldest_ms = |world: &World| world.table.queues().oldest_wait_ms(world.now_ms);
    for (line, after_ms, expected_ms) in [
        ("ACQUIRE k a PX 9000", 5, 0),
        ("WAIT k b KEEP 100", 0, 0),
        ("QUEUE j a", 5, 5),
        ("ACQUIRE k c", 0, 5),
        ("QUEUE k d KEEP 200", 5, 10),
        ("WAIT k b SHARED KEEP 300", 1, 11),
        ("CANCEL k b", 1, 7),
    ] {
        world.say(line);
        world.pass_ms(after_ms);
        assert_eq!(oldest_ms(&world), expected_ms, "{line}");
    }
    world.say("WAIT k e");
    // The timer is late.
    world.now_ms += 1000;
    assert_eq!(oldest_ms(&world), 1000);
}

#[test]
fn the_hottest_name_comes_first() {
    let mut world = play(
        "ACQUIRE a h PX 9000 -> granted
        ACQUIRE b h PX 9000 -> granted
        ACQUIRE c h PX 9000 -> granted
        ACQUIRE d h PX 9000 -> granted
        ACQUIRE e h PX 9000 -> granted
        ACQUIRE c w -> nil
        ACQUIRE b w -> nil
        ACQUIRE d w -> nil
        ACQUIRE d w -> nil
        WAIT e w -> waits",
    );
    assert_eq!(hottest(&world, 16), ["e", "d", "b", "c"], "waits, refused");
    world.say("WAIT b w");
    world.pass_ms(1);
    world.say("WAIT a w");
    assert_eq!(hottest(&world, 16), ["b", "e", "a", "d", "c"]);
    assert_eq!(hottest(&world, 2), ["b", "e"]);
    let shown = |name: &Name| name.key() != b"b";
    let readable = world.table.hottest(2, world.now_ms, shown);
    let keys: Vec<&[u8]> = readable.iter().map(|it| it.name.key()).collect();
    assert_eq!(keys, [b"e", b"a"]);
}

#[test]
fn rights_are_checked_for_the_hottest_names_only() {
    let mut world = World::new();
    for key in 0..=MOST_NAMES_CHECKED {
        world.say(&format!("ACQUIRE k{key:05} h PX 900000"));
        world.say(&format!("QUEUE k{key:05} w KEEP 900000"));
        if key == 0 || key == MOST_NAMES_CHECKED - 1 {
            world.pass_ms(1);
        }
    }
    let mut checked = Vec::new();
    let nothing = world.table.hottest(16, world.now_ms, |name| {
        checked.push(name.clone());
        false
    });
    assert!(nothing.is_empty());
    assert_eq!(checked.len(), MOST_NAMES_CHECKED);
    assert_eq!(checked[0].key(), b"k00000");
    let coldest = world::name(&format!("k{MOST_NAMES_CHECKED:05}"));
    assert!(!checked.contains(&coldest));
}

#[test]
fn a_minute_counts_the_names_that_were_waited_for_longest() {
    let mut world = World::new();
    world.say("ACQUIRE waited h PX 900000");
    world.say("WAIT waited w BLOCK 5");
    world.pass_ms(6);
    for key in ["often", "once"] {
        world.say(&format!("ACQUIRE {key} h PX 900000"));
        world.say(&format!("ACQUIRE {key} w"));
    }
    world.say("ACQUIRE often w");
    for other in 0..MOST_NAMES - 3 {
        world.say(&format!("ACQUIRE k{other} h PX 900000"));
        world.say(&format!("ACQUIRE k{other} w"));
    }
    assert_eq!(hottest(&world, 1000).len(), MOST_NAMES);
    assert_hot(&world, "once", "refused 1");
    // Each new name replaces one: among the least, the one that was counted first.
    for new in ["new", "newer"] {
        world.say(&format!("ACQUIRE {new} h PX 900000"));
        world.say(&format!("ACQUIRE {new} w"));
    }
    assert_eq!(hottest(&world, 1000).len(), MOST_NAMES);
    for (key, numbers) in [
        ("once", "nothing"),
        ("k0", "nothing"),
        ("k1", "refused 1"),
        ("often", "refused 2"),
        ("waited", "waited-ms 6 refused 0"),
        ("new", "refused 1"),
        ("newer", "refused 1"),
    ] {
        assert_hot(&world, key, numbers);
    }
    // A waiter of now is shown in any case.
    world.say("WAIT k0 w");
    assert_hot(&world, "k0", "waiters 1 waits 1 refused 0");
}

/// Takes a key and has another token refused it once.
fn refuse_once(world: &mut World, key: &str) {
    world.say(&format!("ACQUIRE {key} h PX 900000"));
    assert_eq!(world.say(&format!("ACQUIRE {key} w")), "nil");
}

#[test]
fn a_name_that_is_waited_for_is_replaced_last() {
    let mut world = play(
        "ACQUIRE k h PX 900000 -> granted
        WAIT k w -> waits
        +402",
    );
    for other in 0..2 * MOST_NAMES {
        refuse_once(&mut world, &format!("k{other}"));
    }
    assert_hot(&world, "k", "waits 1 waiters 1 waited-ms 402");
    assert_eq!(hottest(&world, 1000).len(), MOST_NAMES);
    world.say("RELEASE k h");
    assert_hot(&world, "k", "waits 1 grants 1 held-ms 402 waited-ms 402");
}

#[test]
fn a_name_that_was_refused_while_it_was_waited_for_is_replaced_last() {
    let mut world = play(
        "ACQUIRE k h PX 900000 -> granted
        WAIT k w -> waits
        +120000
        ACQUIRE k x -> nil",
    );
    for other in 0..2 * MOST_NAMES {
        refuse_once(&mut world, &format!("k{other}"));
    }
    assert_hot(&world, "k", "refused 1 waits 0 waiters 1");
}

/// Plays a wait at each of as many keys as a minute counts, the first of them the longest.
fn all_waited_for() -> World {
    let mut world = World::new();
    for key in 0..MOST_NAMES {
        world.say(&format!("ACQUIRE k{key} h PX 900000"));
        world.say(&format!("WAIT k{key} w{key}"));
        world.pass_ms(1);
    }
    world
}

#[test]
fn of_names_that_are_all_waited_for_the_least_waited_one_goes() {
    let mut world = all_waited_for();
    let last = format!("k{}", MOST_NAMES - 1);
    refuse_once(&mut world, "new");
    assert_hot(&world, &last, "waits 0 waiters 1");
    // The new one is waited for by nobody, so it goes next.
    refuse_once(&mut world, "newer");
    assert_hot(&world, "new", "nothing");
    assert_hot(&world, "newer", "refused 1");
    world.say("ACQUIRE newest h PX 900000");
    world.say("WAIT newest w");
    assert_hot(&world, "newer", "nothing");
    assert_hot(&world, "newest", "waits 1 waiters 1");
    for key in 0..MOST_NAMES - 1 {
        assert_hot(&world, &format!("k{key}"), "waits 1 waiters 1");
    }
}

#[test]
fn several_waiters_of_a_name_count_together() {
    let mut world = all_waited_for();
    let last = format!("k{}", MOST_NAMES - 1);
    for waiter in 0..3 {
        world.say(&format!("WAIT {last} x{waiter}"));
    }
    world.pass_ms(1);
    refuse_once(&mut world, "new");
    assert_hot(&world, &last, "waits 4 waiters 4");
    let before = format!("k{}", MOST_NAMES - 2);
    assert_hot(&world, &before, "waits 0 waiters 1");
}

#[test]
fn a_name_that_is_no_longer_waited_for_goes_first() {
    let mut world = all_waited_for();
    world.say("CANCEL k7 w7");
    world.say("CANCEL k3 w3");
    world.pass_ms(1);
    let three = format!("waits 1 waiters 0 waited-ms {}", MOST_NAMES - 3);
    assert_hot(&world, "k3", &three);
    refuse_once(&mut world, "new1");
    assert_hot(&world, "k3", &three);
    assert_hot(&world, "k7", "nothing");
    world.say("ACQUIRE new2 h PX 900000");
    world.say("WAIT new2 w");
    assert_hot(&world, "new1", "nothing");
    assert_hot(&world, "k3", &three);
    refuse_once(&mut world, "new3");
    assert_hot(&world, "k3", "nothing");
}

#[test]
fn names_whose_waiter_has_left_are_shown_by_their_counts_only() {
    let mut world = World::new();
    let keys: Vec<String> = (0..MOST_NAMES_CHECKED)
        .map(|key| format!("k{key}"))
        .collect();
    let keys = format!("{MOST_NAMES_CHECKED} {}", keys.join(" "));
    world.say(&format!("MACQUIRE {keys} h"));
    let wait = format!("MWAIT {keys} w");
    assert_eq!(world.say(&wait), "waits");
    assert_eq!(hottest(&world, usize::MAX).len(), MOST_NAMES_CHECKED);
    world.hang_up_unseen(&wait);
    assert_eq!(hottest(&world, usize::MAX).len(), MOST_NAMES);
}

#[test]
fn a_long_key_is_neither_counted_nor_listed() {
    let mut world = World::new();
    let (longest, too_long) = ("k".repeat(MOST_KEY_BYTES), "k".repeat(MOST_KEY_BYTES + 1));
    for key in [&longest, &too_long] {
        refuse_once(&mut world, key);
        world.say(&format!("WAIT {key} w"));
    }
    world.say(&format!("MWAIT 2 j {too_long} x"));
    world.pass_ms(5);
    assert_hot(&world, &longest, "waits 1 refused 1 waiters 1 waited-ms 5");
    assert_hot(&world, &too_long, "nothing");
    assert_hot(&world, "j", "waits 1 waiters 1 waited-ms 5");
    world.say(&format!("RELEASE {too_long} h"));
    assert_hot(&world, &too_long, "nothing");
}

/// The lock that was recorded in the same operation is newer than the one that was read.
#[test]
fn a_hold_that_began_while_settling_has_not_ended() {
    let mut world = play(
        "ACQUIRE x b PX 1 -> granted
        ACQUIRE z b PX 1 -> granted
        MWAIT 2 x y c KEEP 20 -> waits
        BYE MWAIT 2 x y c KEEP 20
        MWAIT 2 y z a PX 50 -> waits
        LATE 21",
    );
    world.pass_ms(0);
    assert_eq!(world.holders("y"), ["a#1"]);
    assert_hot(&world, "y", "grants 0 waits 2");
}

/// The time waited in ended waits, the refusals, and the arrival of a key.
type Counts = (u64, u64, usize);

/// A model of the names that a minute counts, all of whose waits are cancelled or go on.
#[derive(Default)]
struct Counted {
    keys: BTreeMap<usize, Counts>,
    /// The beginnings of the waits that go on.
    waiting: BTreeMap<usize, Vec<u64>>,
    arrivals: usize,
}

impl Counted {
    fn count(&mut self, key: usize, now_ms: u64, waited_ms: u64, refused: u64) {
        if !self.keys.contains_key(&key) && self.keys.len() == MOST_NAMES {
            let rank = |(key, counts): (&usize, &Counts)| {
                let (waited_ms, refused, arrival) = *counts;
                let waits = self.waiting.get(key).into_iter().flatten();
                let going_on: u64 = waits.clone().map(|since_ms| now_ms - since_ms).sum();
                let is_waited_for = waits.count() > 0;
                (is_waited_for, waited_ms + going_on, refused, arrival, *key)
            };
            let (.., least) = self.keys.iter().map(rank).min().expect("a key");
            self.keys.remove(&least);
        }
        self.arrivals += 1;
        let counts = self.keys.entry(key).or_insert((0, 0, self.arrivals));
        counts.0 += waited_ms;
        counts.1 += refused;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_names_to_replace_are_those_of_a_naive_model(
        steps in proptest::collection::vec((0..300_usize, 0..10_u8), 1..2000),
    ) {
        let (mut world, mut counted) = (World::new(), Counted::default());
        for key in 0..300 {
            world.say(&format!("ACQUIRE k{key} h PX 900000"));
        }
        world.pass_ms(60_000 - world.now_ms % 60_000);
        for (key, step) in steps {
            world.pass_ms(1);
            let now_ms = world.now_ms;
            let waits = counted.waiting.entry(key).or_default();
            match step {
                0..5 => {
                    world.say(&format!("WAIT k{key} w{now_ms}"));
                    waits.push(now_ms);
                    counted.count(key, now_ms, 0, 0);
                }
                5 => {
                    world.say(&format!("ACQUIRE k{key} x"));
                    counted.count(key, now_ms, 0, 1);
                }
                _ => {
                    let Some(since_ms) = waits.pop() else { continue };
                    world.say(&format!("CANCEL k{key} w{since_ms}"));
                    counted.count(key, now_ms, now_ms - since_ms, 0);
                }
            }
        }
        let now_ms = world.now_ms;
        for hot in world.table.hottest(usize::MAX, now_ms, |_| true) {
            let key = String::from_utf8_lossy(&hot.name.key()[1..]).parse().expect("a number");
            let waits = counted.waiting.get(&key).into_iter().flatten();
            let going_on: u64 = waits.map(|since_ms| now_ms - since_ms).sum();
            let (waited_ms, refused, _) = counted.keys.remove(&key).unwrap_or_default();
            prop_assert_eq!(hot.counts.waited_ms, waited_ms + going_on, "{}", key);
            prop_assert_eq!(hot.counts.refused, refused, "{}", key);
        }
        prop_assert!(counted.keys.is_empty());
    }
}
