//! The contract's rules, each as a short scene: who says what, and what they are told.

use redis_lock_core::state::queue::{Position, WaiterId};
use redis_lock_core::values::name::Name;

use crate::world::{self, World};

/// A scene: lines with their answers, in order. `+50` lets 50 ms pass, `LATE 50` too, but the timer is
/// late; `< line: answer` is what a
/// waiter is told since the line before; `= key a#1 b#2` is who holds, with their holds. Each line is said on
/// a connection of its own, but for those that name one: `A> `.
fn play(scene: &str) -> World {
    let mut world = World::new();
    for line in scene.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let line = line.split("//").next().unwrap_or_default().trim();
        if let Some(ms) = line.strip_prefix('+') {
            world.pass_ms(ms.parse().expect("milliseconds"));
        } else if let Some(told) = line.strip_prefix("< ") {
            let heard = world.heard();
            let expected: Vec<&str> = if told == "nothing" {
                vec![]
            } else {
                told.split(" | ").collect()
            };
            assert_eq!(heard, expected, "in the scene at {line:?}:\n{scene}");
        } else if let Some(holders) = line.strip_prefix("= ") {
            let mut words = holders.split_whitespace();
            let key = words.next().expect("a key");
            let expected: Vec<&str> = words.collect();
            assert_eq!(
                world.holders(key),
                expected,
                "in the scene at {line:?}:\n{scene}"
            );
        } else if let Some(ms) = line.strip_prefix("LATE ") {
            world.now_ms += ms.parse::<u64>().expect("milliseconds");
        } else if let Some(key) = line.strip_prefix("DEL ") {
            world.delete(key);
        } else if let Some(key) = line.strip_prefix("SET ") {
            world.overwrite(key);
        } else if let Some(said) = line.strip_prefix("CLOSE ") {
            world.close(said);
        } else if let Some(keys) = line.strip_prefix("RENAME ") {
            let (from, to) = keys.split_once(' ').expect("two keys");
            world.rename(from, to);
        } else if let Some(said) = line.strip_prefix("UNBLOCK ") {
            world.unblock(said);
        } else if let Some(said) = line.strip_prefix("BYE ") {
            world.hang_up(said);
        } else {
            let (said, answer) = line
                .split_once(" -> ")
                .unwrap_or_else(|| panic!("no answer in {line:?}"));
            let answered = match said.split_once("> ") {
                Some((connection, said)) => world.say_as(client_id_of(connection), said),
                None => world.say(said),
            };
            assert_eq!(answered, answer, "in the scene at {line:?}:\n{scene}");
        }
        world.table.queues().check().expect("sound queues");
    }
    world
}

/// The client id of a connection that has a letter.
fn client_id_of(connection: &str) -> u64 {
    1_000_000 + u64::from(connection.as_bytes()[0])
}

macro_rules! scenes {
    ($($(#[$doc:meta])* $name:ident: $scene:literal;)*) => {
        $($(#[$doc])* #[test] fn $name() { play($scene); })*
    };
}

scenes! {
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

    a_token_that_comes_to_hold_by_rename_needs_no_turn_there: "
        ACQUIRE k1 x -> granted
        WAIT k1 t5 -> waits
        MWAIT 2 k1 k2 t6 -> waits
        ACQUIRE k3 t6 -> granted
        RENAME k3 k1
        < MWAIT 2 k1 k2 t6: granted
        = k1 t6#1
        = k2 t6#1
        ACQUIRE k2 zz -> nil";

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

    a_place_stays_for_keep_when_its_connection_is_lost: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 100
        QUEUE k c -> place 3                // the absent one is counted
        +99
        WAIT k a -> waits
        BYE WAIT k b
        RELEASE k h -> 1
        < WAIT k a: granted
        = k a#1";

    nobody_is_granted_a_place_where_nobody_stands: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 500
        RELEASE k h -> 1
        < WAIT k b: granted
        RELEASE k b -> 1
        = k
        ACQUIRE k c -> granted
        WAIT k d -> waits
        WAIT k a -> waits
        RELEASE k c -> 1
        < WAIT k a: granted
        RELEASE k a -> 1
        < WAIT k d: granted";

    the_head_that_is_lost_lets_those_behind_it_go: "
        ACQUIRE k h SHARED -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b SHARED -> waits
        BYE WAIT k a KEEP 500
        < WAIT k b SHARED: granted
        ACQUIRE k c SHARED -> granted
        WAIT k a -> waits
        ACQUIRE k d SHARED -> nil";

    a_place_whose_connection_was_lost_is_gone_after_keep: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 -> waits
        QUEUE k b KEEP 500 -> place 2
        BYE WAIT k a KEEP 100
        +100
        QUEUE k b KEEP 500 -> place 2
        +1
        QUEUE k b KEEP 500 -> place 1
        WAIT k a -> waits
        RELEASE k h -> 1
        = k b#1";

    a_lost_place_can_be_taken_up_by_a_queue: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 100 BLOCK 200 -> waits
        WAIT k b -> waits
        BYE WAIT k a KEEP 100 BLOCK 200
        QUEUE k a KEEP 500 -> place 1
        +499                                // the BLOCK is forgotten
        RELEASE k h -> 1
        = k a#1";

    a_connection_that_comes_back_has_what_is_left_of_the_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 200 -> waits
        +51
        BYE WAIT k a KEEP 500 BLOCK 200
        +50
        WAIT k a BLOCK 1000 -> waits
        +99
        < nothing
        +1
        < WAIT k a BLOCK 1000: nil
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        WAIT k a BLOCK 30 -> waits
        +31
        < WAIT k a BLOCK 30: nil";

    a_connection_that_takes_over_a_living_one_brings_its_own_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 200 -> waits
        WAIT k a KEEP 500 BLOCK 1000 -> waits
        < WAIT k a KEEP 500 BLOCK 200: UNBLOCKED
        +1000
        < nothing
        +1
        < WAIT k a KEEP 500 BLOCK 1000: nil";

    a_lost_place_ends_with_its_block: "
        ACQUIRE k h PX 5000 -> granted
        WAIT k a KEEP 500 BLOCK 50 -> waits
        QUEUE k b -> place 2
        BYE WAIT k a KEEP 500 BLOCK 50
        +51
        QUEUE k b -> place 1
        WAIT k a BLOCK 300 -> waits         // a new one: its BLOCK is its own
        +300
        < nothing
        +1
        < WAIT k a BLOCK 300: nil";

    what_the_server_answered_by_itself_is_given_up: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        QUEUE k b -> place 2
        UNBLOCK WAIT k a KEEP 500
        QUEUE k b -> place 1";

    a_lost_place_is_cancelled_and_written_over_as_others_are: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 -> waits
        WAIT k b KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        BYE WAIT k b KEEP 500
        QUEUE k c -> place 3
        CANCEL k a -> 1
        < nothing
        QUEUE k c -> place 2
        SET k
        DEL k
        < nothing
        ACQUIRE k h -> granted
        QUEUE k c -> place 1";

    a_lease_is_waited_for_behind_one_who_is_not_there: "
        ACQUIRE k h -> granted
        WAIT k b KEEP 500 -> waits
        BYE WAIT k b KEEP 500
        DEL k
        ACQUIRE k c PX 30 -> granted
        WAIT k a -> waits
        +31
        < WAIT k a: granted
        EXTEND k a PX 30 -> 1
        WAIT k b -> waits
        +31
        < WAIT k b: granted";

    another_mode_takes_up_nothing: "
        ACQUIRE k h -> granted
        WAIT k a KEEP 500 BLOCK 100 -> waits
        QUEUE k b -> place 2
        BYE WAIT k a KEEP 500 BLOCK 100
        WAIT k a SHARED BLOCK 300 -> waits
        QUEUE k b -> place 1
        +300
        < nothing
        +1
        < WAIT k a SHARED BLOCK 300: nil";

    a_lost_upgrade_still_refuses_a_second_one: "
        ACQUIRE k a SHARED PX 5000 -> granted
        ACQUIRE k b SHARED PX 5000 -> granted
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        ACQUIRE k c SHARED -> granted
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        RELEASE k c -> 1
        RELEASE k b -> 1
        = k a#1
        WAIT k a -> granted";

    several_keys_are_kept_and_hold_nobody_up: "
        ACQUIRE x h PX 5000 -> granted
        MWAIT 2 x y a KEEP 500 -> waits
        ACQUIRE y c -> nil
        BYE MWAIT 2 x y a KEEP 500
        ACQUIRE y c -> granted
        MWAIT 2 y x a -> waits
        RELEASE y c -> 1
        RELEASE x h -> 1
        < MWAIT 2 y x a: granted";

    whoever_comes_back_holds_up_those_behind_it_again: "
        ACQUIRE k h SHARED -> granted
        WAIT k a KEEP 500 -> waits
        BYE WAIT k a KEEP 500
        ACQUIRE k b SHARED -> granted
        QUEUE k a -> place 1
        ACQUIRE k c SHARED -> nil
        WAIT k d SHARED -> waits
        CANCEL k a -> 1
        < WAIT k d SHARED: granted";

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

    a_place_that_comes_first_is_no_place: "
        QUEUE k a PX 700 -> granted
        +700
        = k a#1
        +1
        = k
        QUEUE k a SHARED -> granted
        QUEUE k b SHARED -> granted
        = k a#1 b#1";

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

    a_grant_to_a_place_never_shortens_a_lease: "
        ACQUIRE k a SHARED PX 900 -> granted
        ACQUIRE k b SHARED PX 900 -> granted
        QUEUE k a KEEP 100 -> place 1
        RELEASE k b -> 1
        +900
        = k a#1
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

    another_type_ends_places_without_a_word: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        WAIT k w -> waits
        SET k
        < WAIT k w: WRONGTYPE
        QUEUE k a -> WRONGTYPE Operation against a key holding the wrong kind of value";

    a_key_that_goes_grants_the_place: "
        ACQUIRE k h -> granted
        QUEUE k a -> place 1
        DEL k
        = k a#1
        DEL k
        = k
        ACQUIRE k a -> granted
        QUEUE k b -> place 1
        RENAME k j
        = k b#1
        = j a#1";

    what_a_token_is_granted_it_needs_no_turn_for: "
        ACQUIRE k2 h -> granted
        WAIT k2 t SHARED -> waits
        WAIT k2 w -> waits
        MWAIT 2 k3 k2 t SHARED -> waits
        RELEASE k2 h -> 1
        < WAIT k2 t SHARED: granted | MWAIT 2 k3 k2 t SHARED: granted";

    what_a_token_acquires_it_needs_no_turn_for: "
        ACQUIRE y h -> granted
        ACQUIRE x h SHARED -> granted
        WAIT x w -> waits
        MWAIT 2 x y t SHARED -> waits
        RELEASE y h -> 1
        < nothing
        RELEASE x h -> 1
        < WAIT x w: granted
        RELEASE x w -> 1
        < MWAIT 2 x y t SHARED: granted";

    an_upgrade_in_the_middle_of_a_queue_is_admitted_once_alone: "
        ACQUIRE x h -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y t -> waits
        WAIT x u SHARED -> waits
        RELEASE x h -> 1
        < nothing
        RELEASE y h -> 1
        < MWAIT 2 x y t: granted";

    the_first_in_line_goes_first_whoever_looks: "
        ACQUIRE x h -> granted
        ACQUIRE y h -> granted
        WAIT y b -> waits
        WAIT x a -> waits
        MRELEASE 2 x y h -> 2
        < WAIT y b: granted | WAIT x a: granted";

    one_at_a_time: "
        ACQUIRE k a -> granted
        ACQUIRE k b -> nil
        RELEASE k b -> 0            // only the owner
        RELEASE k a -> 1
        RELEASE k a -> 0
        ACQUIRE k b -> granted";

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

    release_hands_over_in_order: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        RELEASE k a -> 1
        < WAIT k b: granted
        = k b#1
        RELEASE k b -> 1
        < WAIT k c: granted";

    a_lease_end_hands_over_with_nobody_touching_the_key: "
        ACQUIRE k a PX 100 -> granted
        WAIT k b PX 500 -> waits
        +101
        < WAIT k b PX 500: granted
        +500
        = k b#1                     // the lease counts from the grant
        +1
        = k";

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

    several_permits_in_one_grant_are_all_or_none: "
        ACQUIRE k a SHARED LIMIT 5 PERMITS 3 -> granted
        ACQUIRE k b SHARED LIMIT 5 PERMITS 3 -> nil
        ACQUIRE k b SHARED LIMIT 5 PERMITS 2 -> granted
        ACQUIRE k c SHARED LIMIT 5 -> nil
        ACQUIRE k c SHARED -> nil
        RELEASE k b -> 1
        ACQUIRE k c SHARED -> granted       // without PERMITS it is one
        ACQUIRE k d SHARED LIMIT 5 PERMITS 2 -> nil
        ACQUIRE k d SHARED LIMIT 6 PERMITS 1 -> granted";

    a_newer_wait_for_other_permits_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 3 -> waits
        WAIT k c SHARED LIMIT 3 PERMITS 2 -> waits
        WAIT k b SHARED LIMIT 3 PERMITS 2 -> waits
        < WAIT k b SHARED LIMIT 3: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c SHARED LIMIT 3 PERMITS 2: granted
        RELEASE k c -> 1
        < WAIT k b SHARED LIMIT 3 PERMITS 2: granted";

    who_waits_for_several_permits_holds_up_those_behind_it: "
        ACQUIRE k a SHARED LIMIT 3 PERMITS 2 PX 100 -> granted
        WAIT k b SHARED LIMIT 3 PERMITS 2 -> waits
        WAIT k c SHARED LIMIT 3 -> waits
        ACQUIRE k d SHARED LIMIT 3 -> nil
        < nothing
        +101
        < WAIT k b SHARED LIMIT 3 PERMITS 2: granted | WAIT k c SHARED LIMIT 3: granted";

    one_of_many_leases_gives_back_all_its_permits: "
        ACQUIRE k a SHARED LIMIT 9 PERMITS 5 PX 100 -> granted
        ACQUIRE k b SHARED LIMIT 9 PERMITS 4 -> granted
        WAIT k c SHARED LIMIT 9 PERMITS 3 -> waits
        WAIT k d SHARED LIMIT 9 PERMITS 2 -> waits
        WAIT k e SHARED LIMIT 9 -> waits
        +101
        < WAIT k c SHARED LIMIT 9 PERMITS 3: granted | WAIT k d SHARED LIMIT 9 PERMITS 2: granted
        = k b#1 c#1 d#1";

    a_repeat_lowers_permits_and_the_queue_moves: "
        ACQUIRE k a SHARED LIMIT 4 PERMITS 4 -> granted
        WAIT k b SHARED LIMIT 4 PERMITS 2 -> waits
        WAIT k c SHARED LIMIT 4 -> waits
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> granted
        < nothing
        WAIT k a SHARED LIMIT 4 PERMITS 2 -> granted
        < WAIT k b SHARED LIMIT 4 PERMITS 2: granted
        ACQUIRE k a SHARED LIMIT 4 REENTRANT -> granted
        < WAIT k c SHARED LIMIT 4: granted
        = k a#2 b#1 c#1";

    a_repeat_does_not_raise_permits: "
        ACQUIRE k a SHARED LIMIT 4 PERMITS 2 -> granted
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> ERR permits can't be raised
        WAIT k a SHARED LIMIT 9 PERMITS 3 REENTRANT -> ERR permits can't be raised
        = k a#1
        ACQUIRE j other -> granted
        MACQUIRE 2 j k a SHARED LIMIT 9 PERMITS 3 -> ERR permits can't be raised
        MWAIT 2 j k a SHARED LIMIT 9 PERMITS 3 -> ERR permits can't be raised
        SET t
        MACQUIRE 2 k t a SHARED LIMIT 9 PERMITS 3 -> WRONGTYPE Operation against a key holding the wrong kind of value
        ACQUIRE k a SHARED LIMIT 4 PERMITS 2 -> granted
        RELEASE k a -> 1
        ACQUIRE k a SHARED LIMIT 4 PERMITS 3 -> granted";

    a_conversion_brings_its_permits_freely: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 5 PERMITS 2 -> waits
        ACQUIRE k a SHARED LIMIT 5 PERMITS 4 -> granted
        < nothing
        ACQUIRE k a SHARED LIMIT 5 PERMITS 3 -> granted
        < WAIT k b SHARED LIMIT 5 PERMITS 2: granted
        RELEASE k b -> 1
        ACQUIRE k a -> granted
        ACQUIRE k a SHARED LIMIT 5 PERMITS 5 -> granted
        ACQUIRE k b SHARED -> nil";

    who_came_to_hold_fewer_permits_is_granted_when_the_others_are_free: "
        ACQUIRE k h SHARED LIMIT 6 PERMITS 6 -> granted
        WAIT k t SHARED LIMIT 6 -> waits
        WAIT k w SHARED LIMIT 6 PERMITS 6 -> waits
        MWAIT 2 j k t SHARED LIMIT 6 PERMITS 4 -> waits
        ACQUIRE k h SHARED LIMIT 6 PERMITS 5 -> granted
        < WAIT k t SHARED LIMIT 6: granted
        ACQUIRE k h SHARED LIMIT 6 PERMITS 3 -> granted
        < nothing                           // five are taken, and three more wanted
        ACQUIRE k h SHARED LIMIT 6 PERMITS 2 -> granted
        < MWAIT 2 j k t SHARED LIMIT 6 PERMITS 4: granted
        = j t#1
        RELEASE k h -> 1
        < nothing
        RELEASE k t -> 1
        < WAIT k w SHARED LIMIT 6 PERMITS 6: granted";

    who_lacks_fewer_permits_passes_one_that_lacks_more: "
        ACQUIRE k h SHARED LIMIT 9 PERMITS 9 -> granted
        WAIT k t SHARED LIMIT 9 -> waits
        WAIT k u SHARED LIMIT 9 -> waits
        MWAIT 2 i k t SHARED LIMIT 9 PERMITS 5 -> waits
        MWAIT 2 j k u SHARED LIMIT 9 PERMITS 3 -> waits
        ACQUIRE k h SHARED LIMIT 9 PERMITS 7 -> granted
        < WAIT k t SHARED LIMIT 9: granted | WAIT k u SHARED LIMIT 9: granted
        ACQUIRE k h SHARED LIMIT 9 PERMITS 5 -> granted
        < MWAIT 2 j k u SHARED LIMIT 9 PERMITS 3: granted
        ACQUIRE k h SHARED LIMIT 9 -> granted
        < MWAIT 2 i k t SHARED LIMIT 9 PERMITS 5: granted";

    a_limit_that_its_own_grant_had_does_not_bind: "
        ACQUIRE k h SHARED LIMIT 9 PERMITS 9 -> granted
        WAIT k t SHARED LIMIT 3 -> waits
        MWAIT 2 j k t SHARED LIMIT 9 PERMITS 8 -> waits
        ACQUIRE k h SHARED LIMIT 9 PERMITS 2 -> granted
        < WAIT k t SHARED LIMIT 3: granted
        ACQUIRE k h SHARED LIMIT 9 -> granted
        < MWAIT 2 j k t SHARED LIMIT 9 PERMITS 8: granted";

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

    holds_of_several_keys_are_set_and_left_at_each: "
        ACQUIRE x a HOLDS 7 -> granted
        MACQUIRE 3 x y z a HOLDS 2 -> granted
        = x a#2
        = z a#2
        RELEASE z a ALL -> 1
        MRELEASE 3 x y z a HOLDS 1 -> 2
        MRELEASE 3 x y z a HOLDS 1 -> 2    // held, so it counts, though no hold goes
        = x a#1
        MRELEASE 2 x y a HOLDS 0 -> 2
        = x
        = y";

    holds_of_one_among_many_are_its_own: "
        ACQUIRE k a SHARED HOLDS 2 -> granted
        ACQUIRE k b SHARED HOLDS 3 PX 100 -> granted
        RELEASE k b HOLDS 2 -> 1
        = k a#2 b#2
        +101
        = k a#2
        RELEASE k b HOLDS 0 -> 0
        RELEASE k a HOLDS 1 -> 1
        = k a#1";

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

    the_dead_do_not_block_the_living: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        BYE WAIT k b
        RELEASE k a -> 1
        < WAIT k c: granted";

    a_take_over_keeps_the_place: "
        ACQUIRE k a -> granted
        WAIT k b PX 10 -> waits
        WAIT k c -> waits
        WAIT k b PX 20 -> waits
        < WAIT k b PX 10: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k b PX 20: granted";

    a_take_over_in_another_mode_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        WAIT k b SHARED -> waits
        < WAIT k b: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c: granted
        RELEASE k c -> 1
        < WAIT k b SHARED: granted
        = k b#1";

    a_token_that_waited_exclusively_and_now_shares_is_told_so_once: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        WAIT k t SHARED -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k t SHARED: granted
        ACQUIRE k b SHARED -> granted
        = k t#1 b#1";

    a_take_over_with_another_limit_queues_anew: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 2 -> waits
        WAIT k c -> waits
        WAIT k b SHARED LIMIT 3 -> waits
        < WAIT k b SHARED LIMIT 2: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k c: granted";

    a_take_over_with_another_lease_block_and_repeat_keeps_the_place: "
        ACQUIRE k a -> granted
        WAIT k b SHARED LIMIT 2 -> waits
        WAIT k c -> waits
        WAIT k b SHARED LIMIT 2 PX 7 BLOCK 50 REENTRANT SESSION -> waits
        < WAIT k b SHARED LIMIT 2: UNBLOCKED
        RELEASE k a -> 1
        < WAIT k b SHARED LIMIT 2 PX 7 BLOCK 50 REENTRANT SESSION: granted";

    a_take_over_without_its_older_self_before_it_is_granted: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k t SHARED -> waits
        < WAIT k t: UNBLOCKED | WAIT k t SHARED: granted
        = k r#1 t#1";

    who_stood_behind_a_wait_that_was_taken_over_is_looked_at: "
        ACQUIRE k r SHARED -> granted
        WAIT k t -> waits
        WAIT k s SHARED -> waits
        WAIT k t SHARED LIMIT 2 -> waits
        < WAIT k t: UNBLOCKED | WAIT k s SHARED: granted
        RELEASE k r -> 1
        < WAIT k t SHARED LIMIT 2: granted";

    the_same_set_of_keys_in_another_order_is_the_same_wait: "
        ACQUIRE x a -> granted
        MWAIT 2 x y b -> waits
        MWAIT 2 y x b -> waits
        < MWAIT 2 x y b: UNBLOCKED
        MWAIT 1 x b -> waits
        < nothing
        WAIT x b -> waits
        < MWAIT 1 x b: UNBLOCKED
        MWAIT 3 x y z b -> waits
        < nothing
        MWAIT 2 x y b SHARED -> waits
        < MWAIT 2 y x b: UNBLOCKED";

    a_wait_for_several_that_is_taken_over_frees_all_its_places: "
        ACQUIRE x a -> granted
        MWAIT 2 x y t -> waits
        WAIT y b -> waits
        MWAIT 2 x y t SHARED -> waits
        < MWAIT 2 x y t: UNBLOCKED | WAIT y b: granted
        RELEASE x a -> 1
        RELEASE y b -> 1
        < MWAIT 2 x y t SHARED: granted";

    a_wait_that_is_granted_at_once_ends_the_older_one: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k t -> waits
        WAIT k c SHARED -> waits
        WAIT k t SHARED -> granted      // it holds: a repeat
        < WAIT k t: UNBLOCKED | WAIT k c SHARED: granted
        = k t#1 b#1 c#1";

    an_acquire_leaves_the_wait_of_its_token_alone: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k t -> waits
        ACQUIRE k t SHARED -> granted
        < nothing
        RELEASE k b -> 1
        < WAIT k t: granted";

    an_upgrade_that_is_sent_again_stays_at_the_front: "
        ACQUIRE k t SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k c -> waits
        WAIT k t -> waits
        WAIT k t PX 50 -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k b -> 1
        < WAIT k t PX 50: granted";

    a_waiter_that_came_to_hold_is_granted_when_it_asks_again: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        ACQUIRE other t -> granted
        RENAME other k
        < WAIT k t: granted
        = k t#1";

    a_waiter_that_came_to_share_keeps_its_place_when_it_asks_again: "
        ACQUIRE k a -> granted
        WAIT k c -> waits
        WAIT k t -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other b SHARED -> granted
        RENAME other k
        WAIT k t PX 50 -> waits
        < WAIT k t: UNBLOCKED
        RELEASE k b -> 1
        < WAIT k t PX 50: granted";

    a_take_over_that_would_deadlock_leaves_the_older_wait_as_it_was: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        WAIT k u -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other u SHARED -> granted
        RENAME other k
        WAIT k t PX 50 -> DEADLOCK another holder waits to upgrade this lock
        < nothing
        RELEASE k u -> 1
        < WAIT k t: granted";

    a_take_over_of_several_with_an_upgrade_leaves_the_older_wait_as_it_was: "
        ACQUIRE k a -> granted
        ACQUIRE j a -> granted
        MWAIT 2 j k t -> waits
        ACQUIRE other t SHARED -> granted
        ACQUIRE other u SHARED -> granted
        RENAME other k
        MWAIT 2 j k t PX 50 -> DEADLOCK another holder waits to upgrade this lock
        < nothing
        RELEASE k u -> 1
        RELEASE j a -> 1
        < MWAIT 2 j k t: granted";

    a_take_over_of_another_type_s_key_leaves_nobody_waiting: "
        ACQUIRE k a -> granted
        WAIT k t -> waits
        SET k
        < WAIT k t: WRONGTYPE
        WAIT k t -> WRONGTYPE Operation against a key holding the wrong kind of value";

    a_cancel_gives_up_a_wait: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c -> waits
        CANCEL k b -> 1
        < WAIT k b: UNBLOCKED
        CANCEL k b -> 0
        RELEASE k a -> 1
        < WAIT k c: granted
        WAIT k b -> waits       // it may come again
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

    two_who_would_wait_for_each_other_s_sessions: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        A> WAIT y a -> waits
        B> ACQUIRE x b -> nil
        B> WAIT x b BLOCK 100 -> DEADLOCK connections would wait for each other's SESSION grants
        B> RELEASE y b -> 1
        < WAIT y a: granted";

    a_circle_of_many: "
        A> ACQUIRE v a SESSION -> granted
        B> ACQUIRE w b SESSION -> granted
        C> ACQUIRE x c SESSION -> granted
        D> ACQUIRE y d SESSION -> granted
        A> WAIT w a -> waits
        B> WAIT x b -> waits
        C> MWAIT 2 y z c -> waits
        D> WAIT x d -> DEADLOCK connections would wait for each other's SESSION grants
        D> MWAIT 2 z v d -> DEADLOCK connections would wait for each other's SESSION grants
        E> WAIT v e -> waits        // waits for all of them and is no part of it
        D> RELEASE y d -> 1
        < MWAIT 2 y z c: granted";

    a_connection_that_would_wait_for_itself: "
        A> ACQUIRE x a SESSION -> granted
        A> WAIT x other -> DEADLOCK connections would wait for each other's SESSION grants
        A> WAIT x a -> granted
        B> WAIT x other -> waits";

    leases_end_by_themselves_and_make_no_circle: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b -> granted
        A> WAIT y a -> waits
        B> WAIT x b -> waits
        A> ACQUIRE z a2 -> granted
        +1001
        < WAIT y a: granted";

    a_circle_through_the_queue: "
        H> ACQUIRE k h -> granted
        A> ACQUIRE y a SESSION -> granted
        B> MWAIT 2 k y b -> waits
        A> WAIT k a -> DEADLOCK connections would wait for each other's SESSION grants
        C> WAIT k c -> waits
        B> ACQUIRE z b SESSION -> granted
        D> WAIT z d -> waits";

    who_stands_behind_and_waits_for_nothing_else_is_no_part_of_a_circle: "
        H> ACQUIRE k h -> granted
        A> ACQUIRE y a SESSION -> granted
        B> WAIT k b -> waits
        C> WAIT y c -> waits
        A> WAIT k a -> waits
        H> RELEASE k h -> 1
        < WAIT k b: granted";

    another_permit_opens_a_circle: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        P> ACQUIRE s p SHARED LIMIT 2 -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        A> WAIT y a -> waits
        P> RELEASE s p -> 1
        < WAIT s b SHARED LIMIT 2: granted";

    a_session_of_somebody_who_doesn_t_wait_opens_a_circle_too: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        P> ACQUIRE s p SHARED LIMIT 2 SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        A> WAIT y a -> waits";

    no_permit_is_outside_the_circle: "
        A> ACQUIRE s a SHARED LIMIT 2 SESSION -> granted
        C> ACQUIRE s c SHARED LIMIT 2 SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b SHARED LIMIT 2 -> waits
        C> WAIT y c -> waits
        A> WAIT y a -> DEADLOCK connections would wait for each other's SESSION grants";

    one_shared_holder_in_the_circle_is_enough_for_an_exclusive_wait: "
        A> ACQUIRE s a SHARED SESSION -> granted
        P> ACQUIRE s p SHARED -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT s b -> waits
        A> WAIT y a -> DEADLOCK connections would wait for each other's SESSION grants";

    a_circle_through_an_upgrade: "
        A> ACQUIRE k a SHARED SESSION -> granted
        B> ACQUIRE k b SHARED SESSION -> granted
        A> ACQUIRE j a SESSION -> granted
        A> WAIT k a -> waits
        B> WAIT j b -> DEADLOCK connections would wait for each other's SESSION grants
        B> RELEASE k b -> 1
        < WAIT k a: granted";

    an_upgrade_that_would_stand_before_whom_it_waits_for: "
        C> ACQUIRE k t SHARED -> granted
        D> ACQUIRE k u SHARED SESSION -> granted
        D> WAIT k v SHARED LIMIT 2 -> waits
        C> WAIT k t -> DEADLOCK connections would wait for each other's SESSION grants
        C> RELEASE k t -> 1
        < WAIT k v SHARED LIMIT 2: granted";

    what_the_own_token_holds_is_in_nobody_s_way: "
        A> ACQUIRE x t SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT x t2 -> waits
        A> MWAIT 2 x y t -> DEADLOCK connections would wait for each other's SESSION grants
        B> ACQUIRE q t SHARED -> granted";

    a_take_over_that_would_close_a_circle_leaves_the_older_wait_as_it_was: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        B> WAIT x b -> waits
        O> WAIT y a -> waits
        A> WAIT y a PX 5 -> DEADLOCK connections would wait for each other's SESSION grants
        A> WAIT y a SHARED -> DEADLOCK connections would wait for each other's SESSION grants
        < nothing
        P> WAIT y a PX 6 -> waits
        < WAIT y a: UNBLOCKED";

    an_older_wait_that_ends_is_no_part_of_a_circle: "
        A> ACQUIRE x a SESSION -> granted
        C> ACQUIRE y c SESSION -> granted
        C> WAIT x t -> waits
        A> ACQUIRE z a -> granted
        B> WAIT x t SHARED -> waits
        < WAIT x t: UNBLOCKED
        A> WAIT y a -> waits";

    the_end_of_a_wait_opens_the_way: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b SESSION -> granted
        A> WAIT y a BLOCK 10 -> waits
        B> WAIT x b -> DEADLOCK connections would wait for each other's SESSION grants
        +11
        < WAIT y a BLOCK 10: nil
        B> WAIT x b -> waits";

    a_circle_that_comes_about_otherwise_is_not_found_and_harms_no_other: "
        A> ACQUIRE x a SESSION -> granted
        B> ACQUIRE y b -> granted
        A> WAIT y a -> waits
        B> WAIT x b -> waits
        B> EXTEND y b SESSION -> 1     // a connection that waits can't, a script of it could
        C> WAIT y c -> waits
        D> ACQUIRE z d SESSION -> granted
        E> WAIT z e -> waits
        D> WAIT x d -> waits";

    del_frees_by_force: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        DEL k
        < WAIT k b: granted";

    another_type_ends_all_waits: "
        ACQUIRE k a -> granted
        WAIT k b -> waits
        WAIT k c BLOCK 10 -> waits
        SET k
        < WAIT k b: WRONGTYPE | WAIT k c BLOCK 10: WRONGTYPE
        ACQUIRE k d -> WRONGTYPE Operation against a key holding the wrong kind of value";

    shared_admit_each_other: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        ACQUIRE k c -> nil
        = k a#1 b#1";

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

    each_name_of_a_grant_is_looked_at_again_as_its_lease_ends: "
        ACQUIRE y a -> granted
        MWAIT 2 x y b PX 50 -> waits
        WAIT x c -> waits
        WAIT y d -> waits
        RELEASE y a -> 1
        < MWAIT 2 x y b PX 50: granted
        +51
        < WAIT x c: granted | WAIT y d: granted";

    a_grant_of_one_wait_admits_another_one_of_its_token: "
        ACQUIRE x a -> granted
        ACQUIRE y h -> granted
        MWAIT 2 x y b -> waits
        WAIT x b -> waits
        WAIT y c -> waits
        RELEASE x a -> 1
        < nothing
        RELEASE y h -> 1
        < MWAIT 2 x y b: granted | WAIT x b: granted
        = y b#1
        RELEASE y b -> 1
        < WAIT y c: granted";

    a_semaphore_admits_its_limit: "
        ACQUIRE k a SHARED LIMIT 2 -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        ACQUIRE k c SHARED LIMIT 2 -> nil
        RELEASE k a -> 1
        ACQUIRE k c SHARED LIMIT 2 -> granted";

    one_permit_that_lapses_admits_one_waiter_on_time: "
        ACQUIRE k a SHARED LIMIT 2 PX 100 -> granted
        ACQUIRE k b SHARED LIMIT 2 PX 1000 -> granted
        WAIT k c SHARED LIMIT 2 -> waits
        WAIT k d SHARED LIMIT 2 -> waits
        +101
        < WAIT k c SHARED LIMIT 2: granted
        = k b#1 c#1";

    the_smallest_limit_binds: "
        ACQUIRE k a SHARED LIMIT 3 -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        ACQUIRE k c SHARED LIMIT 3 -> nil
        ACQUIRE k b SHARED -> granted   // a repeat without LIMIT takes the limit away
        ACQUIRE k c SHARED LIMIT 3 -> granted";

    a_repeat_that_lifts_a_limit_lets_the_next_in: "
        ACQUIRE k a SHARED LIMIT 1 -> granted
        WAIT k b SHARED -> waits
        ACQUIRE k a SHARED LIMIT 2 -> granted
        < WAIT k b SHARED: granted";

    a_downgrade_lets_the_queue_move: "
        ACQUIRE k a REENTRANT -> granted
        WAIT k b SHARED -> waits
        WAIT k a SHARED -> granted
        < WAIT k b SHARED: granted
        = k a#1 b#1";

    a_conversion_with_reentrant_adds_a_hold: "
        ACQUIRE k a -> granted
        ACQUIRE k a SHARED REENTRANT -> granted
        = k a#2
        ACQUIRE k a REENTRANT -> granted
        = k a#3";

    an_upgrade_waits_for_the_others_and_stands_first: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k c -> waits
        ACQUIRE k a -> nil
        WAIT k a -> waits
        RELEASE k b -> 1
        < WAIT k a: granted
        = k a#1";

    a_second_upgrade_is_refused: "
        ACQUIRE k a SHARED -> granted
        ACQUIRE k b SHARED -> granted
        WAIT k a -> waits
        WAIT k b -> DEADLOCK another holder waits to upgrade this lock
        ACQUIRE k b -> nil
        WAIT k a PX 7 -> waits      // the same one may come again
        < WAIT k a: UNBLOCKED";

    an_upgrade_whose_share_ended_is_an_ordinary_waiter_at_the_front: "
        ACQUIRE k a SHARED PX 100 -> granted
        ACQUIRE k b SHARED -> granted
        ACQUIRE k d SHARED -> granted
        WAIT k c -> waits
        WAIT k a -> waits
        +101
        < nothing
        WAIT k b -> waits           // no upgrade waits any more, so this one may, and goes first
        RELEASE k d -> 1
        < WAIT k b: granted
        RELEASE k b -> 1
        < WAIT k a: granted
        RELEASE k a -> 1
        < WAIT k c: granted";

    all_keys_or_none: "
        ACQUIRE y b -> granted
        MACQUIRE 2 x y a -> nil
        = x
        RELEASE y b -> 1
        MACQUIRE 2 x y a -> granted
        = x a#1
        = y a#1";

    a_wait_for_several_is_granted_when_first_in_all: "
        ACQUIRE x a -> granted
        ACQUIRE y b -> granted
        MWAIT 2 y x m -> waits
        WAIT x c -> waits
        WAIT y d -> waits
        RELEASE x a -> 1
        < nothing                   // x waits for the first in the queue, who waits for y
        RELEASE y b -> 1
        < MWAIT 2 y x m: granted
        MRELEASE 2 x y m -> 2
        < WAIT x c: granted | WAIT y d: granted";

    waits_for_several_never_wait_for_each_other: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        MWAIT 2 y x n -> waits
        RELEASE x a -> 1
        < MWAIT 2 x y m: granted
        MRELEASE 2 x y m -> 2
        < MWAIT 2 y x n: granted";

    a_dead_wait_for_several_leaves_all_queues: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        WAIT y c -> waits           // y is free, but not its turn
        BYE MWAIT 2 x y m
        < WAIT y c: granted";

    a_timed_out_wait_for_several_leaves_all_queues: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m BLOCK 10 -> waits
        WAIT y c -> waits
        +11
        < MWAIT 2 x y m BLOCK 10: nil | WAIT y c: granted";

    what_it_holds_already_needs_no_turn: "
        ACQUIRE x m -> granted
        ACQUIRE y b -> granted
        WAIT x c -> waits           // waits for m
        MWAIT 2 x y m -> waits      // would wait for c, did x count
        RELEASE y b -> 1
        < MWAIT 2 x y m: granted";

    a_wait_for_several_with_an_upgrade_is_refused: "
        ACQUIRE x m SHARED -> granted
        ACQUIRE y b -> granted
        MWAIT 2 x y m -> DEADLOCK another holder waits to upgrade this lock
        RELEASE y b -> 1
        MWAIT 2 x y m -> granted";

    release_of_several_counts_those_that_lost_a_hold: "
        ACQUIRE x a -> granted
        ACQUIRE y b -> granted
        MRELEASE 2 x y a -> 1
        = x
        = y b#1
        MEXTEND 2 x y b -> 0        // not without all of them
        MEXTEND 1 y b -> 1";

    the_same_keys_are_a_set: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m PX 5 -> waits
        MWAIT 2 y x m PX 6 -> waits
        < MWAIT 2 x y m PX 5: UNBLOCKED";

    a_session_is_renewed_and_ends_with_its_connection: "
        ACQUIRE k a PX 90 SESSION -> granted
        WAIT k b -> waits
        +30
        +30
        +30
        +500                        // however late the timer fires
        = k a#1
        < nothing
        CLOSE ACQUIRE k a PX 90 SESSION
        < WAIT k b: granted";

    a_session_ends_with_all_its_holds_and_keys: "
        MACQUIRE 2 x y a SESSION -> granted
        MACQUIRE 2 x y a REENTRANT -> granted
        CLOSE MACQUIRE 2 x y a SESSION
        = x
        = y";

    another_connection_s_end_is_nothing_to_it: "
        ACQUIRE k a PX 90 SESSION -> granted
        ACQUIRE j b PX 90 -> granted
        CLOSE ACQUIRE j b PX 90
        = k a#1
        = j b#1";

    a_repeat_without_session_leaves_the_session: "
        ACQUIRE k a PX 90 SESSION -> granted
        ACQUIRE k a PX 60 -> granted
        CLOSE ACQUIRE k a PX 60
        = k a#1
        +100
        = k a#1
        CLOSE ACQUIRE k a PX 90 SESSION
        = k";

    extend_with_session_moves_the_session: "
        ACQUIRE k a PX 90 SESSION -> granted
        EXTEND k a PX 90 SESSION -> 1
        CLOSE ACQUIRE k a PX 90 SESSION
        +100
        = k a#1
        CLOSE EXTEND k a PX 90 SESSION
        = k";

    extend_with_session_ties_what_was_not: "
        ACQUIRE k a PX 90 -> granted
        EXTEND k a PX 90 SESSION -> 1
        +300
        = k a#1
        CLOSE EXTEND k a PX 90 SESSION
        = k";

    a_waiter_s_session_is_tied_when_granted: "
        ACQUIRE k a PX 50 -> granted
        WAIT k b PX 90 SESSION -> waits
        +51
        < WAIT k b PX 90 SESSION: granted
        +200
        = k b#1
        CLOSE WAIT k b PX 90 SESSION
        = k";

    the_session_follows_a_rename: "
        ACQUIRE k a PX 90 SESSION -> granted
        RENAME k j
        +200
        = j a#1
        WAIT j b -> waits
        CLOSE ACQUIRE k a PX 90 SESSION
        < WAIT j b: granted";

    a_released_session_is_forgotten: "
        ACQUIRE k a PX 90 SESSION -> granted
        RELEASE k a -> 1
        ACQUIRE k a PX 90 -> granted
        CLOSE ACQUIRE k a PX 90 SESSION
        = k a#1
        +91
        = k";

    a_deleted_session_does_not_come_back: "
        ACQUIRE k a PX 90 SESSION -> granted
        DEL k
        ACQUIRE k b PX 90 -> granted
        CLOSE ACQUIRE k a PX 90 SESSION
        = k b#1";

    one_permit_s_session_ends_that_permit: "
        ACQUIRE k a SHARED LIMIT 2 SESSION -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        WAIT k c SHARED LIMIT 2 -> waits
        CLOSE ACQUIRE k a SHARED LIMIT 2 SESSION
        < WAIT k c SHARED LIMIT 2: granted
        = k b#1 c#1";

    one_of_several_of_another_type_ends_the_wait: "
        ACQUIRE x a -> granted
        MWAIT 2 x y m -> waits
        WAIT x c -> waits
        SET y
        < MWAIT 2 x y m: WRONGTYPE
        RELEASE x a -> 1
        < WAIT x c: granted";
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
        let replica = world.replica.get(&world::name(key));
        let own = replica.and_then(|lock| lock.holder(&world::token("a")));
        assert_eq!(own.map(|own| own.lease_ms), Some(lease_ms), "{line}");
    };
    extended("EXTEND k a", "k", 400);
    extended("EXTEND k a PX 70", "k", 70);
    extended("EXTEND k a NOSESSION", "k", 70);
    extended("MEXTEND 2 k s a", "s", 500);
    extended("ACQUIRE k a PX 900", "k", 900);
    extended("EXTEND k a", "k", 900);
    // What an EXPIRE by hand did is no length.
    world.expire("k", Some(world.now_ms + 100));
    world.fire(vec![world::name("k")]);
    assert_eq!(world.lease_ms("k", "a"), 100);
    assert_eq!(world.say("EXTEND k a"), "1");
    assert_eq!(world.lease_ms("k", "a"), 900);
    assert_eq!(world.say("EXTEND s b"), "0", "its lease had ended");
    // A waiter's length is the one it asked for.
    world.say("WAIT k c PX 300");
    world.say("RELEASE k a");
    world.pass_ms(250);
    assert_eq!(world.say("EXTEND k c"), "1");
    assert_eq!(world.lease_ms("k", "c"), 300);
}

#[test]
fn a_kept_grant_lasts_so_long_after_its_connection() {
    for keep_ms in [1, 30, 5_000] {
        let line = format!("ACQUIRE k a PX 300 SESSION KEEP {keep_ms}");
        let mut world = World::new();
        assert_eq!(world.say(&line), "granted");
        world.say("WAIT k b PX 7");
        world.pass_ms(1_000);
        world.close(&line);
        assert_eq!(world.lease_ms("k", "a"), keep_ms);
        assert!(world.table.sessions().is_empty());
        world.pass_ms(keep_ms);
        assert_eq!(world.holders("k"), ["a#1"], "KEEP {keep_ms}");
        world.pass_ms(1);
        assert_eq!(world.heard(), ["WAIT k b PX 7: granted"]);
    }
}

#[test]
fn a_kept_grant_is_a_plain_lease_of_its_own_length_from_then_on() {
    let mut world = play("ACQUIRE k a PX 300 SESSION KEEP 50 -> granted");
    world.close("ACQUIRE k a PX 300 SESSION KEEP 50");
    world.pass_ms(20);
    assert_eq!(world.say("EXTEND k a"), "1");
    assert_eq!(world.lease_ms("k", "a"), 300, "its own length, not KEEP");
    world.pass_ms(301);
    assert!(world.holders("k").is_empty(), "nothing renews it");
}

#[test]
fn the_latest_session_says_how_long_a_grant_is_kept() {
    let scenes = [
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "ACQUIRE k a PX 300",
            Some(50),
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "EXTEND k a PX 200",
            Some(50),
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "EXTEND k a SESSION",
            None,
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "WAIT k a SESSION KEEP 70",
            Some(70),
        ),
        (
            "ACQUIRE k a PX 300 SESSION",
            "MEXTEND 1 k a SESSION KEEP 70",
            Some(70),
        ),
        (
            "ACQUIRE k a PX 300 SHARED SESSION KEEP 50",
            "ACQUIRE k a",
            Some(50),
        ),
    ];
    for (first, then, kept_ms) in scenes {
        let mut world = World::new();
        assert_eq!(world.say(first), "granted");
        let client_id = world.client_of(first);
        assert_ne!(world.say_as(client_id, then), "0");
        world.close(first);
        let left_ms = (!world.holders("k").is_empty()).then(|| world.lease_ms("k", "a"));
        assert_eq!(left_ms, kept_ms, "{first}, then {then}");
    }
    let mut world = play(
        "ACQUIRE k a PX 300 SESSION KEEP 50 -> granted
         EXTEND k a NOSESSION -> 1",
    );
    world.close("ACQUIRE k a PX 300 SESSION KEEP 50");
    assert_eq!(world.lease_ms("k", "a"), 300, "untied before");
}

#[test]
fn a_kept_grant_can_be_tied_again_before_its_end() {
    let mut world = play("MACQUIRE 2 x y a PX 300 SESSION KEEP 50 -> granted");
    world.close("MACQUIRE 2 x y a PX 300 SESSION KEEP 50");
    world.pass_ms(49);
    assert_eq!(world.say("MEXTEND 2 x y a SESSION KEEP 80"), "2");
    world.pass_ms(1_000);
    assert_eq!(world.holders("x"), ["a#1"]);
    world.close("MEXTEND 2 x y a SESSION KEEP 80");
    assert_eq!(world.lease_ms("y", "a"), 80);
    world.pass_ms(81);
    assert_eq!(world.say("MEXTEND 2 x y a SESSION"), "0", "too late");
}

#[test]
fn what_is_kept_counts_from_the_close_however_late_anybody_looks() {
    let line = "ACQUIRE k a SHARED PX 300 SESSION KEEP 50";
    for (late_ms, left_ms) in [(0, Some(50)), (20, Some(30)), (50, Some(0)), (51, None)] {
        let mut world = play("ACQUIRE k z SHARED PX 9000 -> granted");
        assert_eq!(world.say(line), "granted");
        world.orphan_all();
        world.now_ms += late_ms;
        assert_eq!(world.say("ACQUIRE k b SHARED PX 9000"), "granted");
        let lock = world.lock("k");
        let own = lock.holder(&world::token("a"));
        let left = own.map(|own| own.deadline_ms - world.wall_ms());
        assert_eq!(left, left_ms, "looked at {late_ms} ms later");
        world.fire(Vec::new());
        assert!(world.table.sessions().is_empty());
    }
    // A lease that had ended by then is not brought back.
    let mut world = World::new();
    assert_eq!(world.say(line), "granted");
    world.expire("k", Some(world.now_ms + 5));
    world.now_ms += 6;
    world.orphan_all();
    assert_eq!(world.say("EXTEND k a"), "0");
}

#[test]
fn an_untied_grant_outlives_its_connection_and_is_renewed_no_more() {
    let mut world = play("ACQUIRE k a PX 300 SESSION -> granted");
    world.pass_ms(200);
    assert_eq!(world.say("EXTEND k a NOSESSION"), "1");
    assert!(world.table.sessions().is_empty());
    world.close("ACQUIRE k a PX 300 SESSION");
    world.pass_ms(200);
    assert_eq!(world.holders("k"), ["a#1"]);
    assert_eq!(world.lease_ms("k", "a"), 100);
    assert_eq!(world.say("EXTEND k a SESSION"), "1");
    world.pass_ms(1_000);
    assert_eq!(world.holders("k"), ["a#1"]);
    // Untied only after its connection had closed, it has ended already.
    world.orphan_all();
    assert_eq!(world.say("EXTEND k a NOSESSION"), "0");
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

#[test]
fn several_keys_have_one_fence() {
    let mut world = play("ACQUIRE x a -> granted\nMACQUIRE 2 x y a -> granted");
    let fence = world.fence("x", "a");
    assert_eq!(fence, world.fence("y", "a"));
    world.say("MACQUIRE 2 y x a");
    assert_eq!(world.fence("x", "a"), fence, "held already under one fence");
    world.say("ACQUIRE z a");
    world.say("MACQUIRE 2 x z a");
    assert!(world.fence("x", "a") > fence, "held under two");
    assert_eq!(world.fence("x", "a"), world.fence("z", "a"));
}

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
fn an_expiry_by_hand_shortens_and_never_lengthens() {
    let mut world = play("ACQUIRE k a PX 1000 -> granted\nWAIT k b -> waits");
    world.expire("k", Some(world.now_ms + 5000));
    world.fire(vec![world::name("k")]);
    assert_eq!(world.lease_ms("k", "a"), 1000);
    world.expire("k", Some(world.now_ms + 10));
    assert_eq!(world.lease_ms("k", "a"), 10, "before anything was settled");
    world.fire(vec![world::name("k")]);
    world.pass_ms(11);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

#[test]
fn a_take_back_undoes_this_grant_and_no_other() {
    let mut world = play(
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         RELEASE k a -> 1
         WAIT k c -> waits
         < WAIT k b: granted",
    );
    let hand_over = world.handed_over.clone();
    world.take_back_last();
    assert_eq!(world.heard(), ["WAIT k c: granted"]);
    world.say("RELEASE k c");
    world.say("ACQUIRE k b");
    world.handed_over = hand_over;
    world.take_back_last();
    assert_eq!(
        world.holders("k"),
        ["b#1"],
        "a later grant to the same token"
    );
}

#[test]
fn a_take_back_gives_back_what_the_token_had_before() {
    let mut world = play(
        "ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a -> waits
         WAIT k c SHARED -> waits
         RELEASE k b -> 1
         < WAIT k a: granted",
    );
    world.take_back_last();
    assert_eq!(world.holders("k"), ["a#1", "c#1"]);
    assert_eq!(world.heard(), ["WAIT k c SHARED: granted"]);
}

#[test]
fn an_expiry_by_hand_ends_a_session_too() {
    let mut world = play("ACQUIRE k a PX 900 SESSION -> granted\nWAIT k b -> waits");
    world.expire("k", Some(world.now_ms + 100));
    world.fire(vec![world::name("k")]);
    world.pass_ms(101);
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
}

#[test]
fn a_session_begun_and_ended_in_one_operation_is_forgotten() {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         WAIT k b SESSION -> waits",
    );
    world.now_ms += 101;
    // Settling grants to b, whose RELEASE is what settles.
    assert_eq!(world.say("RELEASE k b"), "1");
    assert!(world.table.sessions().is_empty());
}

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
fn a_session_ends_when_its_grant_goes() {
    type Loss = fn(&mut World);
    let losses: [Loss; 4] = [
        |world| world.delete("k"),
        |world| world.overwrite("k"),
        |world| drop(world.say("RELEASE k a")),
        |world| world.table.end_sessions_in(0),
    ];
    for lose in losses {
        let mut world = play("ACQUIRE k a PX 9000 SESSION -> granted");
        assert_eq!(world.table.sessions().len(), 1);
        lose(&mut world);
        assert_eq!(world.table.sessions().len(), 0);
        world.fire(Vec::new());
        assert!(world.table.sessions().is_empty());
    }
}

#[test]
fn sessions_go_with_their_database() {
    let mut world = play("ACQUIRE k a PX 9000 SESSION -> granted");
    let client = world.client_of("ACQUIRE k a PX 9000 SESSION");
    let names = |world: &World| -> Vec<Name> {
        world
            .table
            .sessions()
            .ties_of(client)
            .map(|(_, name)| name)
            .collect()
    };
    world.table.swap_databases(0, 5);
    assert_eq!(names(&world), [Name::new(5, b"k")]);
    world.table.swap_databases(3, 5);
    assert_eq!(names(&world), [Name::new(3, b"k")]);
    world.table.swap_databases(3, 3);
    world.table.end_sessions_in(5);
    assert_eq!(names(&world), [Name::new(3, b"k")]);
    world.table.end_sessions_in(3);
    assert_eq!(names(&world), []);
    world.table.sessions().check().expect("sound sessions");
}

#[test]
fn a_session_that_was_moved_survives_the_flush_of_where_it_was() {
    let mut world = play("ACQUIRE k a PX 9000 SESSION -> granted");
    let session = world.lock("k").holders().only().expect("a holder").session;
    world.table.relocate(&[session], &Name::new(1, b"k"));
    world.table.end_sessions_in(0);
    assert!(world.table.sessions().is_alive(session));
    world.table.end_sessions_in(1);
    assert!(!world.table.sessions().contains(session));
    world.table.sessions().check().expect("sound sessions");
}

#[test]
fn a_database_has_new_sessions_before_those_are_taken_out_that_a_flush_ended() {
    let mut world = play(
        "ACQUIRE k a PX 9000 SESSION -> granted
         ACQUIRE m b PX 9000 SESSION -> granted",
    );
    world.store.keys.clear();
    world.replica.clear();
    world.table.end_sessions_in(0);
    assert_eq!(world.table.sessions().len(), 0);
    assert_eq!(world.say("ACQUIRE k c PX 9000 SESSION"), "granted");
    assert_eq!(world.table.sessions().len(), 1);
    world.table.sessions().check().expect("sound sessions");
    world.pass_ms(3_000);
    assert_eq!(world.lease_ms("k", "c"), 9_000);
    assert_eq!(world.table.sessions().len(), 1);
    world.table.sessions().check().expect("sound sessions");
}

#[test]
fn a_connection_that_is_reset_ties_anew() {
    let mut world = play(
        "ACQUIRE k a PX 9000 SESSION -> granted
         ACQUIRE m a PX 9000 SESSION KEEP 50 -> granted",
    );
    let client = world.client_of("ACQUIRE k a PX 9000 SESSION");
    assert_eq!(world.say_as(client, "ACQUIRE n a SESSION"), "granted");
    let wall_ms = world.wall_ms();
    world.table.close_client(client, wall_ms);
    assert_eq!(
        world.say_as(client, "ACQUIRE o a PX 9000 SESSION"),
        "granted"
    );
    assert_eq!(world.table.sessions().count_of(client), 1);
    assert_eq!(world.say("ACQUIRE k b"), "granted");
    world.table.sessions().check().expect("sound sessions");
    world.fire(Vec::new());
    assert_eq!(world.holders("n"), [""; 0]);
    assert_eq!(world.holders("o"), ["a#1"]);
    world.close("ACQUIRE o a PX 9000 SESSION");
    assert_eq!(world.holders("o"), [""; 0]);
    world.table.sessions().check().expect("sound sessions");
}

#[test]
fn a_session_is_renewed_in_time_while_many_end() {
    let mut world = play("ACQUIRE own a PX 30 SESSION -> granted");
    let client = world.client_of("ACQUIRE own a PX 30 SESSION") + 1;
    for key in 0..50 {
        world.say_as(client, &format!("ACQUIRE k{key} b PX 9000 SESSION"));
    }
    world.now_ms += 10;
    let wall_ms = world.wall_ms();
    world.table.close_client(client, wall_ms);
    let names = world.table.due_names(world.now_ms, 5);
    assert!(names.contains(&world::name("own")), "{names:?}");
}

#[test]
fn who_left_for_several_keys_holds_nobody_up_before_the_timer_fires() {
    for keep in ["", " KEEP 50"] {
        let mut world = play("MACQUIRE 3 x y z h -> granted");
        let lost = format!("MWAIT 3 x y z a{keep}");
        world.say(&lost);
        world.say("WAIT y b");
        world.say("MQUEUE 2 y z p KEEP 900");
        assert_eq!(world.hang_up_unseen(&lost), None);
        assert_eq!(world.say("RELEASE y h"), "1");
        assert_eq!(world.heard(), ["WAIT y b: granted"]);
        assert_eq!(world.say("RELEASE x h"), "1");
        assert_eq!(world.say("ACQUIRE x c"), "granted");
        assert_eq!(world.say("RELEASE z h"), "1");
        assert_eq!(world.say("RELEASE y b"), "1");
        assert_eq!(world.holders("z"), ["p#1"]);
        world.table.queues().check().expect("sound queues");
        world.fire(Vec::new());
        world.table.queues().check().expect("sound queues");
        world.pass_ms(51);
        assert!(world.table.queues().is_empty());
    }
}

#[test]
fn who_comes_back_before_the_timer_fires_stands_where_it_stood() {
    let mut world = play(
        "MACQUIRE 3 x y z h -> granted
         MWAIT 3 x y z a KEEP 50 -> waits
         MWAIT 2 y z b -> waits",
    );
    world.hang_up_unseen("MWAIT 3 x y z a KEEP 50");
    assert_eq!(world.say("MWAIT 3 x y z a"), "waits");
    world.table.queues().check().expect("sound queues");
    assert_eq!(world.say("MRELEASE 3 x y z h"), "3");
    assert_eq!(world.heard(), ["MWAIT 3 x y z a: granted"]);
    world.table.queues().check().expect("sound queues");
}

#[test]
fn who_left_for_several_keys_is_not_counted() {
    let mut world = play(
        "ACQUIRE x h -> granted
         WAIT x a -> waits
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y b");
    assert_eq!(world.table.queues().len(), 2);
    assert_eq!(world.table.queues().queue_len(&world::name("x")), 2);
    assert_eq!(world.table.queues().queue(&world::name("x")).count(), 2);
    assert_eq!(world.table.queues().queue_len(&world::name("y")), 0);
}

#[test]
fn a_lease_is_seen_to_end_where_who_waited_before_has_just_left() {
    let mut world = play(
        "ACQUIRE x h PX 40 -> granted
         MWAIT 2 x y a -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y a");
    assert_eq!(world.say("WAIT x b"), "waits");
    world.pass_ms(41);
    assert_eq!(world.heard(), ["WAIT x b: granted"]);
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

#[test]
fn no_session_outlives_a_grant_that_went_unseen_for_long() {
    let mut world = play("ACQUIRE k a PX 90 SESSION -> granted");
    world.store.keys.clear();
    world.replica.clear();
    world.pass_ms(30);
    assert!(world.table.sessions().is_empty());
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
        70,
        "renewed 20 ms ago, from the clock as it is"
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

#[test]
fn a_lease_that_ends_beside_others_is_ended_with_nobody_touching_the_key() {
    let mut world = play(
        "ACQUIRE k a SHARED PX 100 -> granted
         ACQUIRE k b SHARED PX 500 -> granted",
    );
    let before = world.effects_seen;
    world.pass_ms(101);
    assert_eq!(world.effects_seen - before, 1);
    assert_eq!(world.holders("k"), ["b#1"]);
    assert_eq!(
        world.table.next_due_ms(),
        None,
        "the key's own expiry does for the last"
    );
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

#[test]
fn a_refused_or_vain_command_has_no_effect() {
    let mut world = play("ACQUIRE k a -> granted");
    let before = world.effects_seen;
    for line in [
        "ACQUIRE k b",
        "WAIT k c",
        "RELEASE k b",
        "EXTEND k b",
        "ACQUIRE k b PX 0",
    ] {
        world.say(line);
        assert_eq!(world.effects_seen, before, "{line}");
    }
}

#[test]
fn a_hand_over_is_one_effect() {
    let mut world =
        play("ACQUIRE k a PX 10 -> granted\nWAIT k b PX 10 -> waits\nWAIT k c -> waits");
    for hand_over in ["RELEASE k a", "a lease end"] {
        let before = world.effects_seen;
        match hand_over {
            "a lease end" => world.pass_ms(11),
            line => drop(world.say(line)),
        }
        assert_eq!(world.effects_seen - before, 1, "{hand_over}");
    }
}

#[test]
fn every_success_is_told_to_the_replicas_even_if_it_changes_nothing() {
    let mut world = play("ACQUIRE k a PX 100 -> granted\nMACQUIRE 2 x y a PX 100 -> granted");
    for (line, effects) in [
        ("ACQUIRE k a PX 100", 1),
        ("WAIT k a PX 100", 1),
        ("EXTEND k a PX 100", 1),
        ("MACQUIRE 2 x y a PX 100", 2),
        ("MEXTEND 2 x y a PX 100", 2),
    ] {
        let before = world.effects_seen;
        let answer = world.say(line);
        assert!(
            ["granted", "1", "2"].contains(&answer.as_str()),
            "{line}: {answer}"
        );
        assert_eq!(world.effects_seen - before, effects, "{line}");
    }
}

#[test]
fn a_wait_that_need_not_wait_passes_where_as_many_wait_as_may() {
    // `b` is first of those who stand at k, and waits for j.
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
    world.say("WAIT k a KEEP 5000");
    assert_eq!(world.heard(), ["WAIT k a KEEP 5000: granted"]);
    assert_eq!(world.holders("k"), ["a#1"]);
    // Where it would have to wait it is one too many, and its place stays.
    let mut world = play(scene);
    world.max_waiters = 1;
    world.say("ACQUIRE k c");
    assert_eq!(world.holders("k"), [""; 0], "behind b");
    world.rename_unseen("j", "k");
    world.fire(Vec::new());
    assert!(world.say("WAIT k a KEEP 5000").starts_with("MAXWAITERS"));
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
fn sessions_of_locks_that_are_elsewhere_now_are_dropped() {
    let mut world = play(
        "ACQUIRE here a PX 90 SESSION -> granted
         ACQUIRE elsewhere a PX 90 SESSION -> granted
         ACQUIRE closed a PX 90 SESSION -> granted",
    );
    for key in ["elsewhere", "closed"] {
        world.store.keys.remove(&world::name(key));
    }
    world.table.close_client(3, world.wall_ms());
    world.now_ms += 30;
    let due = world.table.due_names(world.now_ms, 9);
    assert_eq!(due.len(), 3, "the one that was closed among them: {due:?}");
    world.defer(&["here", "elsewhere", "closed"]);
    assert_eq!(world.table.sessions().len(), 1, "one grant is there still");
    world.pass_ms(20);
    assert_eq!(world.lease_ms("here", "a"), 90, "renewed, later than usual");
}

#[test]
fn a_lock_that_is_away_is_granted_to_nobody() {
    let mut world = play(
        "ACQUIRE y a -> granted
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.send_away("x");
    assert_eq!(world.say("RELEASE y a"), "1");
    assert_eq!(world.heard(), [""; 0]);
    assert_eq!(world.holders("y"), [""; 0]);
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms + 20));
    world.pass_ms(20);
    assert_eq!(world.heard(), [""; 0]);
    world.bring_back("x");
    world.pass_ms(20);
    assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
}

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
    // An extension is another end.
    world.say("EXTEND k a PX 300");
    assert_eq!(world.table.announce_ends(end_ms, 9), []);
    assert_eq!(
        world.table.announce_ends(end_ms + 200, 9),
        [world::name("k")]
    );
}

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
    // The end of the lease was put off: nothing is due any sooner than it was.
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

/// The names to settle are found a moment before they are settled: a wait that ends in between ends at
/// names that are none of them. Who it let through must not be forgotten because somebody behind was
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
fn tickets_are_limited_and_keeping_one_passes() {
    let mut world = World::new();
    world.max_tickets = 2;
    world.max_waiters = 1;
    let full = "MAXTICKETS as many wait without a connection as lock.max-tickets allows";
    for (line, answer) in [
        ("MACQUIRE 2 k j h", "granted"),
        ("QUEUE k a", "place 1"),
        ("MQUEUE 2 j k b", "place 2"),
        ("QUEUE j c", full),
        ("QUEUE k a", "place 1"),
        // It leaves one and takes another.
        ("QUEUE k a SHARED", "place 2"),
        ("WAIT j w", "waits"),
        (
            "WAIT k v",
            "MAXWAITERS as many clients wait as lock.max-waiters allows",
        ),
        // A wait over a place counts as new, and refused it leaves the place.
        (
            "WAIT k a SHARED",
            "MAXWAITERS as many clients wait as lock.max-waiters allows",
        ),
        ("QUEUE k a SHARED", "place 2"),
        // A place over a wait is kept, but not another one.
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
    assert_eq!((queues.blocked_len(), queues.place_count()), (1, 2));
}

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
fn no_place_is_left_on_a_server_that_is_no_primary() {
    let mut world = World::new();
    for key in ["k", "j"] {
        world.say(&format!("ACQUIRE {key} h"));
    }
    world.say("QUEUE k a");
    world.say("QUEUE j a");
    assert!(world.table.demote().is_empty());
    assert!(world.table.queues().is_empty());
    world.say("QUEUE k a");
    world.say("WAIT k b");
    world.say("MQUEUE 2 j k c");
    let mut left = world.table.demote();
    left.sort();
    assert_eq!(left, [world::name("j"), world::name("k"), world::name("k")]);
    assert_eq!(world.table.queues().len(), 1);
    world.table.queues().check().expect("sound queues");
    world.say("RELEASE k h");
    assert_eq!(world.heard(), ["WAIT k b: granted"]);
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

#[test]
fn a_grant_taken_back_goes_back_to_its_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a KEEP 100 BLOCK 900 -> waits
        WAIT k b PX 5000 -> waits
        RELEASE k h -> 1
        < WAIT k a KEEP 100 BLOCK 900: granted",
    );
    world.take_back_last();
    assert_eq!(world.heard(), ["WAIT k b PX 5000: granted"]);
    assert_eq!(world.say("QUEUE k c"), "place 2");
    assert_eq!(world.say("WAIT k a"), "waits");
    world.pass_ms(900);
    assert!(world.heard().is_empty());
    world.pass_ms(1);
    assert_eq!(world.heard(), ["WAIT k a: nil"]);
    world.table.queues().check().expect("sound queues");
}

#[test]
fn a_grant_taken_back_without_keep_leaves_no_place() {
    let mut world = play(
        "ACQUIRE k h -> granted
        WAIT k a -> waits
        RELEASE k h -> 1",
    );
    world.take_back_last();
    assert_eq!(world.table.queues().len(), 0);
}

#[test]
fn who_came_back_meanwhile_has_one_place() {
    for again in ["QUEUE k a", "WAIT k a"] {
        let mut world = play(
            "ACQUIRE k h -> granted
            WAIT k a KEEP 100 -> waits
            WAIT k b PX 5000 -> waits
            RELEASE k h -> 1
            DEL k
            < WAIT k a KEEP 100: granted | WAIT k b PX 5000: granted",
        );
        world.handed_over.pop();
        world.say(again);
        world.take_back_last();
        assert_eq!(world.table.queues().len(), 1, "{again}");
        world.table.queues().check().expect("sound queues");
    }
}

#[test]
fn a_lost_place_needs_a_ticket() {
    let mut world = World::new();
    world.max_tickets = 1;
    world.say("ACQUIRE k h PX 5000");
    for (token, left) in [("a", 1), ("b", 1)] {
        let line = format!("WAIT k {token} KEEP 500");
        world.say(&line);
        world.hang_up(&line);
        assert_eq!(world.table.queues().len(), left);
    }
    assert_eq!(world.table.counters().max_tickets_refusals, 1);
    assert_eq!(world.say("QUEUE k a"), "place 1");
}

#[test]
fn a_lost_place_taken_up_by_a_wait_counts_as_new() {
    let mut world = World::new();
    world.max_waiters = 1;
    world.say("ACQUIRE k h PX 5000");
    world.say("WAIT k a KEEP 500");
    world.hang_up("WAIT k a KEEP 500");
    assert_eq!(world.say("WAIT k b"), "waits");
    assert!(world.say("WAIT k a").starts_with("MAXWAITERS"));
    assert_eq!(world.say("QUEUE k a"), "place 1");
}

/// Its place is gone again by the time that it would be told: it is refused, and neither granted what it has
/// no right to nor told to wait.
#[test]
fn who_loses_its_place_as_it_takes_it_is_refused() {
    let mut world = play(
        "ACQUIRE k h SHARED -> granted
         QUEUE k a -> place 1",
    );
    world.store.barred.insert(world::token("a"));
    assert_eq!(
        world.say("QUEUE k a SHARED"),
        "NOPERM No permissions to access a key"
    );
    assert_eq!(world.holders("k"), ["h#1"]);
    assert!(world.table.queues().is_empty());
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
    assert_eq!(world.table.drop_places_at(&names, 1), names);
    assert_eq!(world.table.queues().place_count(), 2);
    let left = world.table.drop_places_at(&names, 10);
    assert_eq!(left, [world::name("j"), world::name("k")]);
    assert_eq!(world.table.drop_places_at(&names, 10), []);
    world.table.queues().check().expect("sound queues");
    // Who is blocked is the server's to send on, and the other name is none of this.
    let waiting = world.table.queues();
    assert_eq!((waiting.blocked_len(), waiting.place_count()), (1, 1));
    assert_eq!(world.heard(), [""; 0]);
}

#[test]
fn a_wait_that_is_over_ends_no_other_at_its_position() {
    let mut world = play(
        "ACQUIRE k h -> granted
         WAIT k a KEEP 100 -> waits",
    );
    let (name, older) = (world::name("k"), first_wait(&world));
    // Its position goes to a newer connection of its token.
    assert_eq!(world.say("WAIT k a BLOCK 500 KEEP 100"), "waits");
    let newer = first_wait(&world);
    assert_eq!(older.1, newer.1);
    assert_eq!(world.table.leave(older.0, older.1), None);
    assert_eq!(world.table.lose(older.0, older.1, 0, 0), None);
    assert_eq!(world.table.queues().blocked_len(), 1);
    // That one is lost, and nobody stands there.
    let left = world.table.lose(newer.0, newer.1, 0, 0);
    assert_eq!(left.as_slice(), std::slice::from_ref(&name));
    assert_eq!(world.table.leave(newer.0, newer.1), None);
    assert_eq!(world.table.lose(newer.0, newer.1, 0, 0), None);
    assert_eq!(world.table.queues().place_count(), 1);
    assert!(world.table.queues().has_queue(&name));
    world.table.queues().check().expect("sound queues");
}

/// The first wait for `k`, and its position.
fn first_wait(world: &World) -> (WaiterId, Position) {
    let name = world::name("k");
    let (position, waiter) = world.table.queues().queue(&name).next().expect("a wait");
    (waiter.waiter_id, position)
}
