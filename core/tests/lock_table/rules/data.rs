//! DATA: bytes of a holder or a waiter for everyone who may read the key.
//!
//! - A token that begins to hold a key has the data of that command, or none.
//! - While it holds the key, a repeat, a conversion, a claim or LOCK.EXTEND replaces the data if it
//!   brings DATA. Otherwise the data stays.
//! - A waiter has the data of its latest wait. At the grant it counts as that wait's DATA.
//! - A command without success changes no data.

use super::scene::{play, scenes};

scenes! {
    a_new_holder_has_the_data_of_its_command_or_none: "
        ACQUIRE k a DATA one -> granted
        = k a#1:one
        RELEASE k a -> 1
        ACQUIRE k a -> granted
        = k a#1
        RELEASE k a -> 1
        WAIT k a DATA two -> granted
        = k a#1:two
        RELEASE k a -> 1
        QUEUE k a DATA three -> granted
        = k a#1:three";

    only_commands_that_bring_data_replace_it: "
        ACQUIRE k a DATA one -> granted
        ACQUIRE k a -> granted
        EXTEND k a PX 2000 -> 1
        = k a#1:one
        ACQUIRE k a REENTRANT -> granted
        = k a#2:one
        ACQUIRE k a HOLDS 3 DATA two -> granted
        = k a#3:two
        RELEASE k a -> 1
        RELEASE k a HOLDS 1 -> 1
        = k a#1:two
        WAIT k a -> granted
        QUEUE k a -> granted
        = k a#1:two
        EXTEND k a DATA three -> 1
        = k a#1:three
        EXTEND k a DATA \"\" -> 1
        = k a#1
        ACQUIRE k a DATA four -> granted
        ACQUIRE k a DATA \"\" -> granted
        = k a#1";

    a_conversion_keeps_the_data_unless_it_brings_its_own: "
        ACQUIRE k a DATA one -> granted
        ACQUIRE k a SHARED -> granted
        = k a#1:one
        ACQUIRE k a -> granted
        = k a#1:one
        ACQUIRE k a SHARED DATA two -> granted
        = k a#1:two
        ACQUIRE k a DATA three -> granted
        = k a#1:three";

    each_shared_holder_has_its_own: "
        ACQUIRE k a SHARED DATA one -> granted
        ACQUIRE k b SHARED -> granted
        ACQUIRE k c SHARED DATA three -> granted
        = k a#1:one b#1 c#1:three
        EXTEND k b DATA two -> 1
        RELEASE k a -> 1
        = k b#1:two c#1:three";

    a_command_without_success_changes_nothing: "
        ACQUIRE k a DATA one -> granted
        EXTEND k b DATA two -> 0
        ACQUIRE k b DATA two -> nil
        MEXTEND 2 k j a DATA two -> 0
        MACQUIRE 2 j k b DATA two -> nil
        = k a#1:one
        = j
        SET s
        MEXTEND 2 k s a DATA two -> WRONGTYPE Operation against a key holding the wrong kind of value
        MACQUIRE 2 k s a DATA two -> WRONGTYPE Operation against a key holding the wrong kind of value
        = k a#1:one";

    several_keys_follow_the_rules_one_by_one: "
        ACQUIRE k a DATA one -> granted
        MACQUIRE 2 k j a -> granted
        = k a#1:one
        = j a#1
        MACQUIRE 3 k j i a DATA two -> granted
        = k a#1:two
        = j a#1:two
        = i a#1:two
        EXTEND j a DATA three -> 1
        MEXTEND 2 k j a PX 2000 -> 2
        = k a#1:two
        = j a#1:three
        MEXTEND 2 k j a DATA four -> 2
        = k a#1:four
        = j a#1:four
        = i a#1:two";

    a_waiter_has_the_data_of_its_latest_wait: "
        ACQUIRE k a -> granted
        WAIT k b DATA one -> waits
        QUEUE k c DATA two -> place 2
        WAIT k d -> waits
        ? k b:one c:two d:
        WAIT k b DATA three -> waits
        < WAIT k b DATA one: UNBLOCKED
        QUEUE k c -> place 2
        ? k b:three c: d:
        RELEASE k a -> 1
        < WAIT k b DATA three: granted
        = k b#1:three
        RELEASE k b -> 1
        = k c#1
        RELEASE k c -> 1
        < WAIT k d: granted
        = k d#1";

    a_take_over_without_data_has_none: "
        ACQUIRE k a -> granted
        WAIT k b DATA one -> waits
        WAIT k b SHARED -> waits
        < WAIT k b DATA one: UNBLOCKED
        ? k b:
        RELEASE k a -> 1
        < WAIT k b SHARED: granted
        = k b#1";

    a_claim_keeps_the_data_of_the_place_unless_it_brings_its_own: "
        ACQUIRE k a -> granted
        QUEUE k b DATA one -> place 1
        RELEASE k a -> 1
        = k b#1:one
        QUEUE k b -> granted
        = k b#1:one
        RELEASE k b -> 1
        ACQUIRE k a -> granted
        QUEUE k b DATA one -> place 1
        RELEASE k a -> 1
        EXTEND k b DATA two -> 1
        = k b#1:two
        ACQUIRE k b DATA three -> granted
        = k b#1:three";

    an_upgrade_that_waits_without_data_leaves_the_holders: "
        ACQUIRE k a SHARED DATA one -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        RELEASE k b -> 1
        < WAIT k a: granted
        = k a#1:one
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a DATA two -> waits
        = k a#1:one b#1
        RELEASE k b -> 1
        < WAIT k a DATA two: granted
        = k a#1:two";

    an_acquire_leaves_the_data_of_its_tokens_wait: "
        ACQUIRE k a -> granted
        ACQUIRE j b -> granted
        MWAIT 2 k j b DATA one -> waits
        ACQUIRE k b DATA two -> nil
        ACQUIRE j b DATA two -> granted
        EXTEND j b DATA three -> 1
        ? k b:one
        ? j b:one
        = j b#1:three
        RELEASE k a -> 1
        < MWAIT 2 k j b DATA one: granted
        = k b#1:one
        = j b#1:one";

    a_renewed_session_keeps_its_data: "
        ACQUIRE k a PX 90 SESSION DATA one -> granted
        +60
        +60
        = k a#1:one
        CLOSE ACQUIRE k a PX 90 SESSION DATA one
        = k";

    a_kept_place_keeps_its_data: "
        ACQUIRE k a -> granted
        WAIT k b KEEP 100 DATA one -> waits
        BYE WAIT k b KEEP 100 DATA one
        ? k b:one
        QUEUE k b -> place 1
        ? k b:";

    too_long: "
        ACQUIRE k a HOLDS 0 DATA x -> ERR invalid holds, must be 1 to 4294967295";
}

#[test]
fn more_than_1024_bytes_are_refused() {
    let mut world = play("ACQUIRE k a -> granted");
    let refused = "ERR invalid data, must be 0 to 1024 bytes";
    let long = "x".repeat(1025);
    assert_eq!(world.say(&format!("EXTEND k a DATA {long}")), refused);
    assert_eq!(world.say(&format!("WAIT k b DATA {long}")), refused);
    assert_eq!(world.holders("k"), ["a#1"]);
    assert!(world.table.queues().is_empty());
    let longest = "x".repeat(1024);
    assert_eq!(world.say(&format!("EXTEND k a DATA {longest}")), "1");
    assert_eq!(world.holders("k"), [format!("a#1:{longest}")]);
}

/// A client that died in the tick of its grant has not held the lock.
#[test]
fn a_hand_over_that_is_taken_back_restores_the_data() {
    let mut world = play(
        "ACQUIRE k a SHARED DATA one -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a KEEP 100 DATA two -> waits
         RELEASE k b -> 1
         = k a#1:two",
    );
    world.take_back_last();
    assert_eq!(world.holders("k"), ["a#1:one"]);
    assert_eq!(world.data_of_queue("k"), ["a:two"]);
}
