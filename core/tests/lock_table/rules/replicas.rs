//! REPLICAS: replies that are held back until replicas have acknowledged what a command changed.
//!
//! - The token is a holder meanwhile, and no waiter.
//! - If a grant ends before, or WITHIN, the reply is NOREPLICAS, and what the command changed stays.
//! - A hand-over whose connection is lost before the reply is taken back, unless a later command of
//!   its token was granted one of its names.

use super::scene::{play, scenes};
use crate::world::{name, World};

scenes! {
    a_reply_is_held_back_until_as_many_replicas_have_acknowledged: "
        REPLICAS 2
        ACQUIRE k a REPLICAS 2 -> held back
        = k a#1
        ACQUIRE k b -> nil
        ACK 1
        < nothing
        ACK 2
        < ACQUIRE k a REPLICAS 2: granted";

    an_extension_is_held_back_too: "
        REPLICAS 1
        MACQUIRE 2 k j a -> granted
        EXTEND k a REPLICAS 1 -> held back
        MEXTEND 2 k j a REPLICAS 1 -> held back
        ACK 1
        < EXTEND k a REPLICAS 1: 1 | MEXTEND 2 k j a REPLICAS 1: 2";

    a_reply_has_the_fence_that_one_of_its_keys_was_raised_to: "
        REPLICAS 1
        MACQUIRE 2 j k a REPLICAS 1 -> held back
        EXTEND j a FENCE 1000050000 -> 1
        ACK 1
        < MACQUIRE 2 j k a REPLICAS 1: granted
        MACQUIRE 2 l m a REPLICAS 1 -> held back
        EXTEND m a FENCE 1000100000 -> 1
        ACK 1
        < MACQUIRE 2 l m a REPLICAS 1: granted";

    a_command_that_does_not_succeed_waits_for_no_replicas: "
        ACQUIRE k a -> granted
        ACQUIRE k b REPLICAS 5 -> nil
        EXTEND k b REPLICAS 5 -> 0
        MEXTEND 2 k j a REPLICAS 5 -> 0
        WAIT k b REPLICAS 5 -> waits
        SET j
        ACQUIRE j b REPLICAS 5 -> WRONGTYPE Operation against a key holding the wrong kind of value
        EXTEND j b REPLICAS 5 -> WRONGTYPE Operation against a key holding the wrong kind of value";

    too_few_replicas_refuse_what_would_succeed: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 2 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        WAIT k a REPLICAS 2 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        = k
        ACQUIRE k a PX 50 -> granted
        EXTEND k a PX 500 REPLICAS 2 -> NOREPLICAS fewer replicas are online than REPLICAS asks for
        +51
        = k";

    a_waiter_is_refused_when_its_turn_comes_and_the_next_is_granted: "
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 -> waits
        WAIT k c -> waits
        RELEASE k a -> 1
        < WAIT k b REPLICAS 1: NOREPLICAS | WAIT k c: granted
        = k c#1";

    a_take_over_is_refused_once_another_wait_of_its_token_was: "
        ACQUIRE j a SHARED LIMIT 2 -> granted
        MWAIT 2 j k t SHARED LIMIT 5 PERMITS 2 -> waits
        WAIT k t REPLICAS 1 -> waits
        MWAIT 2 j k t SHARED REPLICAS 1 -> waits
        < MWAIT 2 j k t SHARED LIMIT 5 PERMITS 2: UNBLOCKED | WAIT k t REPLICAS 1: NOREPLICAS | MWAIT 2 j k t SHARED REPLICAS 1: NOREPLICAS";

    a_hand_over_is_held_back: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 BLOCK 20 -> waits
        RELEASE k a -> 1
        < nothing
        = k b#1
        CANCEL k b -> 0
        +21
        < nothing
        ACK 1
        < WAIT k b REPLICAS 1 BLOCK 20: granted";

    the_wait_ends_with_within: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 WITHIN 20 -> held back
        +20
        ACK 0
        < nothing
        +1
        ACK 0
        < ACQUIRE k a REPLICAS 1 WITHIN 20: NOREPLICAS
        = k a#1";

    an_acknowledgement_goes_before_the_end_of_within: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 WITHIN 20 -> held back
        +30
        ACK 1
        < ACQUIRE k a REPLICAS 1 WITHIN 20: granted";

    the_end_of_a_grant_goes_before_an_acknowledgement: "
        REPLICAS 1
        ACQUIRE k a PX 20 REPLICAS 1 -> held back
        LATE 21
        ACK 1
        < ACQUIRE k a PX 20 REPLICAS 1: NOREPLICAS";

    within_counts_from_the_hand_over: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 WITHIN 20 -> waits
        +100
        RELEASE k a -> 1
        +20
        ACK 0
        < nothing
        +1
        ACK 0
        < WAIT k b REPLICAS 1 WITHIN 20: NOREPLICAS
        = k b#1";

    a_release_ends_the_wait_at_once: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        RELEASE k a -> 1
        < ACQUIRE k a REPLICAS 1: NOREPLICAS";

    a_release_that_leaves_holds_ends_no_wait: "
        REPLICAS 1
        ACQUIRE k a HOLDS 2 REPLICAS 1 -> held back
        RELEASE k a -> 1
        ACK 1
        < ACQUIRE k a HOLDS 2 REPLICAS 1: granted";

    a_grant_that_ended_and_was_made_anew_at_once_is_lost: "
        REPLICAS 1
        ACQUIRE k a PX 20 REPLICAS 1 -> held back
        ACQUIRE j b -> granted
        MWAIT 2 k j a -> waits
        LATE 21
        RELEASE j b -> 1
        < MWAIT 2 k j a: granted | ACQUIRE k a PX 20 REPLICAS 1: NOREPLICAS
        = k a#1";

    a_hand_over_that_is_released_in_the_same_operation_is_lost: "
        REPLICAS 1
        ACQUIRE k a PX 20 -> granted
        WAIT k b REPLICAS 1 -> waits
        LATE 21
        RELEASE k b -> 1
        < WAIT k b REPLICAS 1: NOREPLICAS
        = k";

    a_deleted_key_is_lost: "
        REPLICAS 1
        MACQUIRE 2 k j a REPLICAS 1 -> held back
        DEL k
        ACK 1
        < MACQUIRE 2 k j a REPLICAS 1: NOREPLICAS
        = j a#1";

    a_deleted_key_that_is_acquired_again_is_lost: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        DEL k
        ACQUIRE k a -> granted
        < ACQUIRE k a REPLICAS 1: NOREPLICAS";

    a_renamed_key_is_lost: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        RENAME k j
        RENAME j k
        ACK 1
        < ACQUIRE k a REPLICAS 1: NOREPLICAS
        = k a#1";

    a_conversion_is_no_break: "
        REPLICAS 1
        ACQUIRE k a SHARED REPLICAS 1 -> held back
        ACQUIRE k a -> granted
        ACQUIRE k a SHARED -> granted
        ACK 1
        < ACQUIRE k a SHARED REPLICAS 1: granted";

    two_commands_of_a_token_each_get_their_reply: "
        REPLICAS 2
        ACQUIRE k a REPLICAS 1 -> held back
        ACQUIRE k a REPLICAS 2 WITHIN 50 -> held back
        ACK 1
        < ACQUIRE k a REPLICAS 1: granted
        +51
        ACK 1
        < ACQUIRE k a REPLICAS 2 WITHIN 50: NOREPLICAS";

    a_lost_connection_leaves_what_its_command_did: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        BYE ACQUIRE k a REPLICAS 1
        = k a#1
        ACK 1
        < nothing";

    a_hand_over_whose_connection_is_lost_is_taken_back: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 -> waits
        WAIT k c -> waits
        RELEASE k a -> 1
        BYE WAIT k b REPLICAS 1
        < WAIT k c: granted
        = k c#1";

    a_hand_over_that_another_command_confirmed_stays: "
        REPLICAS 1
        MACQUIRE 2 k j a -> granted
        MWAIT 2 k j b REPLICAS 1 -> waits
        MRELEASE 2 k j a -> 2
        EXTEND j b -> 1
        BYE MWAIT 2 k j b REPLICAS 1
        = k b#1
        = j b#1";

    a_hand_over_that_a_later_hand_over_of_one_of_its_keys_confirmed_stays: "
        REPLICAS 1
        ACQUIRE k a -> granted
        ACQUIRE l c -> granted
        MWAIT 2 j k b REPLICAS 1 -> waits
        RELEASE k a -> 1
        MWAIT 2 k l b -> waits
        RELEASE l c -> 1
        < MWAIT 2 k l b: granted
        BYE MWAIT 2 j k b REPLICAS 1
        = j b#1
        = k b#1
        = l b#1";

    a_hand_over_that_the_confirming_command_itself_made_stays: "
        REPLICAS 1
        ACQUIRE k a PX 50 -> granted
        WAIT k b REPLICAS 1 -> waits
        WAIT k c -> waits
        LATE 51
        EXTEND k b PX 900 -> 1
        BYE WAIT k b REPLICAS 1
        < nothing
        = k b#1";

    a_hand_over_taken_back_gives_back_what_the_token_held: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k b REPLICAS 1 -> waits
        WAIT k c SHARED -> waits
        RELEASE k a -> 1
        = k b#1
        BYE WAIT k b REPLICAS 1
        < WAIT k c SHARED: granted
        = k b#1 c#1";

    with_keep_the_wait_goes_on_at_its_place: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b KEEP 100 REPLICAS 1 -> waits
        WAIT k c -> waits
        RELEASE k a -> 1
        BYE WAIT k b KEEP 100 REPLICAS 1
        < WAIT k c: granted
        WAIT k b -> waits
        RELEASE k c -> 1
        < WAIT k b: granted";

    with_keep_a_wait_for_the_lock_leaves_its_place_after_block: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b BLOCK 20 KEEP 100 REPLICAS 1 -> waits
        WAIT k c -> waits
        +21
        < WAIT k b BLOCK 20 KEEP 100 REPLICAS 1: nil
        WAIT k b REPLICAS 1 -> waits
        RELEASE k a -> 1
        ACK 1
        < WAIT k b REPLICAS 1: granted";

    an_administrator_cuts_the_wait_short: "
        REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        CUT ACQUIRE k a REPLICAS 1
        = k a#1
        ACK 1
        < nothing";

    a_reply_by_the_server_takes_nothing_back: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 -> waits
        RELEASE k a -> 1
        UNBLOCK WAIT k b REPLICAS 1
        = k b#1";

    a_take_over_brings_its_own_replicas: "
        REPLICAS 1
        ACQUIRE k a -> granted
        WAIT k b REPLICAS 1 -> waits
        WAIT k b -> waits
        < WAIT k b REPLICAS 1: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k b: granted";
    a_hand_over_with_a_session_gives_back_what_the_token_held: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k b SESSION REPLICAS 1 -> waits
        WAIT k c SHARED -> waits
        RELEASE k a -> 1
        = k b#1
        BYE WAIT k b SESSION REPLICAS 1
        < WAIT k c SHARED: granted
        = k b#1 c#1";

    a_hand_over_without_a_session_gives_back_the_older_one: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED PX 30 SESSION -> granted
        WAIT k b PX 30 REPLICAS 1 -> waits
        RELEASE k a -> 1
        BYE WAIT k b PX 30 REPLICAS 1
        +500
        = k b#1
        CLOSE ACQUIRE k b SHARED PX 30 SESSION
        = k";

    a_hand_over_of_several_keys_gives_back_each_older_session: "
        REPLICAS 1
        ACQUIRE h a -> granted
        ACQUIRE j b PX 30 SESSION -> granted
        ACQUIRE k b PX 40 SESSION -> granted
        MWAIT 3 h j k b PX 900 REPLICAS 1 -> waits
        RELEASE h a -> 1
        +50
        BYE MWAIT 3 h j k b PX 900 REPLICAS 1
        +500
        = h
        = j b#1
        = k b#1
        CLOSE ACQUIRE j b PX 30 SESSION
        = j
        CLOSE ACQUIRE k b PX 40 SESSION
        = k";

    a_hand_over_beside_an_older_wait_for_replicas_is_taken_back: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED REPLICAS 1 -> held back
        WAIT k b REPLICAS 1 -> waits
        RELEASE k a -> 1
        BYE WAIT k b REPLICAS 1
        ACQUIRE k c SHARED -> granted
        = k b#1 c#1";

    a_take_back_gives_an_older_session_its_own_lease_back: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED PX 30 SESSION -> granted
        WAIT k b PX 900 REPLICAS 1 -> waits
        RELEASE k a -> 1
        +5
        BYE WAIT k b PX 900 REPLICAS 1
        +40
        = k b#1
        CLOSE ACQUIRE k b SHARED PX 30 SESSION
        = k";

    a_take_back_gives_an_older_session_back_after_its_lease: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED PX 30 SESSION -> granted
        WAIT k b PX 900 REPLICAS 1 -> waits
        RELEASE k a -> 1
        +40
        BYE WAIT k b PX 900 REPLICAS 1
        +500
        = k b#1
        CLOSE ACQUIRE k b SHARED PX 30 SESSION
        = k";

    a_take_back_doesnt_give_back_a_hold_that_was_released: "
        REPLICAS 1
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k b REENTRANT REPLICAS 1 -> waits
        RELEASE k a -> 1
        RELEASE k b -> 1
        BYE WAIT k b REENTRANT REPLICAS 1
        = k";

    a_take_back_leaves_shared_holders_that_were_admitted_meanwhile: "
        REPLICAS 1
        ACQUIRE k b -> granted
        ACQUIRE j a -> granted
        MWAIT 2 k j b SHARED REPLICAS 1 -> waits
        WAIT k c SHARED -> waits
        RELEASE j a -> 1
        < WAIT k c SHARED: granted
        = k b#1 c#1
        BYE MWAIT 2 k j b SHARED REPLICAS 1
        = k b#1 c#1
        = j
        ACQUIRE k d SHARED -> granted";

    a_take_back_takes_no_permits_from_others: "
        REPLICAS 1
        ACQUIRE k b SHARED LIMIT 4 PERMITS 4 -> granted
        ACQUIRE j a -> granted
        MWAIT 2 k j b SHARED LIMIT 3 PERMITS 1 REPLICAS 1 -> waits
        WAIT k c SHARED LIMIT 3 PERMITS 2 -> waits
        RELEASE j a -> 1
        < WAIT k c SHARED LIMIT 3 PERMITS 2: granted
        BYE MWAIT 2 k j b SHARED LIMIT 3 PERMITS 1 REPLICAS 1
        = k b#1 c#1
        = j
        RELEASE k c -> 1
        ACQUIRE k d SHARED LIMIT 4 PERMITS 3 -> nil
        ACQUIRE k d SHARED LIMIT 3 PERMITS 2 -> granted";

    a_grant_that_a_hand_over_makes_anew_is_lost_to_the_wait_for_the_old_one: "
        REPLICAS 1
        ACQUIRE j h PX 50 -> granted
        ACQUIRE k a REPLICAS 1 -> held back
        MWAIT 2 j k a -> waits
        LATE 51
        RELEASE k a -> 1
        < MWAIT 2 j k a: granted | ACQUIRE k a REPLICAS 1: NOREPLICAS";
}

#[test]
fn clients_that_wait_for_replicas_count_as_blocked() {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back",
    );
    world.max_waiters = 1;
    let refused = "MAXWAITERS as many clients wait as lock.max-waiters allows";
    assert_eq!(world.say("ACQUIRE j a REPLICAS 1"), refused);
    assert_eq!(world.say("EXTEND k a REPLICAS 1"), refused);
    assert_eq!(world.say("WAIT k b"), refused);
    assert_eq!(world.say("ACQUIRE j a"), "granted");
    world.acknowledge(1);
    assert_eq!(world.say("WAIT k b REPLICAS 1"), "waits");
    // A hand-over is never refused for it.
    world.say("RELEASE k a");
    assert_eq!(world.holders("k"), ["b#1"]);
    world.store.replicas = 0;
    let too_few = "NOREPLICAS fewer replicas are online than REPLICAS asks for";
    assert_eq!(world.say("EXTEND j a REPLICAS 1"), too_few, "comes first");
}

#[test]
fn a_flushed_lock_is_lost_unless_it_was_loaded_again() {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back",
    );
    let state = world.store.keys.clone();
    let replica = world.replica.clone();
    world.flush();
    (world.store.keys, world.replica) = (state, replica);
    world.acknowledge(0);
    assert!(world.heard().is_empty(), "a reload");
    world.flush();
    world.acknowledge(1);
    assert_eq!(world.heard(), ["ACQUIRE k a REPLICAS 1: NOREPLICAS"]);
}

#[test]
fn a_flushed_lock_that_is_acquired_again_is_lost() {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back",
    );
    world.flush();
    assert_eq!(world.say("ACQUIRE k a"), "granted");
    assert_eq!(world.heard(), ["ACQUIRE k a REPLICAS 1: NOREPLICAS"]);
}

#[test]
fn a_flushed_lock_that_is_acquired_again_for_replicas_is_lost_and_the_new_one_is_not() {
    for again in [
        "ACQUIRE k a REPLICAS 1 WITHIN 70",
        "WAIT k a REPLICAS 1 WITHIN 70",
    ] {
        let mut world = play(
            "REPLICAS 1
            ACQUIRE k a REPLICAS 1 -> held back",
        );
        world.flush();
        assert_eq!(world.say(again), "held back");
        assert_eq!(world.heard(), ["ACQUIRE k a REPLICAS 1: NOREPLICAS"]);
        world.acknowledge(1);
        assert_eq!(world.heard(), [format!("{again}: granted")]);
    }
}

/// A world where a waits for a replica, and another grant of a was restored over the flushed lock.
fn with_another_grant_restored() -> World {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        ACQUIRE j a -> granted",
    );
    let other = world.dump("j").expect("a lock");
    world.flush();
    world.restore_unseen("k", &other);
    world
}

#[test]
fn a_flushed_lock_of_which_another_grant_was_restored_is_lost() {
    let mut world = with_another_grant_restored();
    assert_eq!(world.say("EXTEND k a PX 900"), "1");
    assert_eq!(world.heard(), ["ACQUIRE k a REPLICAS 1: NOREPLICAS"]);
}

#[test]
fn a_lock_that_was_loaded_again_with_another_grant_is_lost() {
    let mut world = with_another_grant_restored();
    world.acknowledge(1);
    assert_eq!(world.heard(), ["ACQUIRE k a REPLICAS 1: NOREPLICAS"]);
}

/// An older copy of the lock has the same fence, because its token has extended it since.
#[test]
fn a_lock_that_was_loaded_again_with_a_lease_that_ends_is_lost() {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a PX 5 -> granted",
    );
    let older = world.dump("k").expect("a lock");
    assert_eq!(world.say("EXTEND k a PX 900 REPLICAS 1"), "held back");
    world.flush();
    world.restore_unseen("k", &older);
    world.acknowledge(0);
    assert!(world.heard().is_empty(), "it is in force");
    world.now_ms += 6;
    world.acknowledge(1);
    assert_eq!(world.heard(), ["EXTEND k a PX 900 REPLICAS 1: NOREPLICAS"]);
}

// The server redirects the client. Until then nobody knows what becomes of the lock.
#[test]
fn a_wait_whose_lock_left_with_its_slot_gets_no_reply_but_the_end_of_within() {
    let command = "MACQUIRE 2 k j a PX 20 REPLICAS 1 WITHIN 50";
    let mut world = play(&format!(
        "REPLICAS 1
        {command} -> held back"
    ));
    let left = world.lock("k");
    world.table.lose_grants_at(&name("k"), &left, true);
    world.acknowledge(1);
    assert!(world.heard().is_empty(), "an acknowledgement");
    world.delete("k");
    world.acknowledge(1);
    assert!(world.heard().is_empty(), "the key is deleted");
    world.now_ms += 51;
    world.acknowledge(1);
    assert_eq!(world.heard(), [format!("{command}: NOREPLICAS")]);
}

#[test]
fn a_hand_over_that_has_lost_a_grant_is_taken_back_if_nobody_was_told() {
    let command = "MWAIT 2 k j b REPLICAS 1";
    let mut world = play(&format!(
        "REPLICAS 1
        ACQUIRE k a -> granted
        {command} -> waits
        RELEASE k a -> 1"
    ));
    let left = world.lock("k");
    world.table.lose_grants_at(&name("k"), &left, false);
    world.hang_up(command);
    assert!(world.holders("j").is_empty());
}

#[test]
fn the_counts_tell_how_the_waits_ended() {
    let mut world = play(
        "REPLICAS 1
        ACQUIRE k a REPLICAS 1 -> held back
        ACK 1
        ACQUIRE j a REPLICAS 1 -> held back
        DEL j
        ACQUIRE i a REPLICAS 1 -> held back
        CUT ACQUIRE i a REPLICAS 1",
    );
    world.acknowledge(0);
    let counts = world.table.acknowledgements();
    assert_eq!((counts.acknowledged, counts.not_acknowledged), (1, 2));
    assert!(world.table.replica_waits().is_empty());
}

// The server can expire a key in the middle of an operation, and tells of it after that.
#[test]
fn a_lock_that_left_before_the_grant_takes_nothing() {
    let mut world = play(
        "REPLICAS 1
         ACQUIRE k b PX 50 -> granted
         WAIT k b PX 900 REPLICAS 1 -> held back",
    );
    let left = world.lock("k");
    world.table.lose_grants_at(&name("k"), &left, false);
    world.acknowledge(0);
    assert_eq!(world.heard(), ["WAIT k b PX 900 REPLICAS 1: NOREPLICAS"]);
    let mut world = play(
        "REPLICAS 1
         ACQUIRE k b PX 50 -> granted",
    );
    let left = world.lock("k");
    world.pass_ms(51);
    assert_eq!(world.say("ACQUIRE k b REPLICAS 1"), "held back");
    world.table.lose_grants_at(&name("k"), &left, false);
    world.acknowledge(1);
    assert_eq!(world.heard(), ["ACQUIRE k b REPLICAS 1: granted"]);
}
