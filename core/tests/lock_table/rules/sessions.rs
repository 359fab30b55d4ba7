//! SESSION: a grant that is tied to a connection.
//!
//! - The timer renews the lease while the connection is open. The grant ends with the connection.
//! - The latest command with SESSION ties the grant to its own connection. NOSESSION unties it.
//! - The session follows the lock through RENAME and SWAPDB, and ends with the grant.

use redis_lock_core::values::name::{Name, Relocation};

use super::scene::{play, scenes};
use crate::world::{self, World};

scenes! {
    // ---- Tie and untie

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

    one_permit_s_session_ends_that_permit: "
        ACQUIRE k a SHARED LIMIT 2 SESSION -> granted
        ACQUIRE k b SHARED LIMIT 2 -> granted
        WAIT k c SHARED LIMIT 2 -> waits
        CLOSE ACQUIRE k a SHARED LIMIT 2 SESSION
        < WAIT k c SHARED LIMIT 2: granted
        = k b#1 c#1";

    // ---- The grant ends or moves

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

    the_session_follows_a_rename: "
        ACQUIRE k a PX 90 SESSION -> granted
        RENAME k j
        +200
        = j a#1
        WAIT j b -> waits
        CLOSE ACQUIRE k a PX 90 SESSION
        < WAIT j b: granted";

    all_sessions_of_a_lock_follow_a_rename: "
        ACQUIRE k a SHARED PX 90 SESSION -> granted
        ACQUIRE k b SHARED PX 60 SESSION -> granted
        ACQUIRE k c SHARED PX 30 SESSION -> granted
        RENAME k j
        +200
        = j a#1 b#1 c#1
        CLOSE ACQUIRE k b SHARED PX 60 SESSION
        = j a#1 c#1
        CLOSE ACQUIRE k c SHARED PX 30 SESSION
        = j a#1
        CLOSE ACQUIRE k a SHARED PX 90 SESSION
        = j";
}

// ---- NOSESSION

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
    // A grant that is untied after its connection has closed has ended already.
    world.orphan_all();
    assert_eq!(world.say("EXTEND k a NOSESSION"), "0");
}

// ---- The client that is shown

/// Returns the client that a holder's grant is shown with.
fn shown_client(world: &World, token: &str) -> Option<u64> {
    let lock = world.lock("k");
    Some(lock.holder(&world::token(token))?.client_id)
}

#[test]
fn the_client_of_a_grant_is_the_one_that_was_granted_or_tied_last() {
    let (first, second) = (501, 502);
    for (line, shown) in [
        ("ACQUIRE k a", second),
        ("ACQUIRE k a REENTRANT", second),
        ("ACQUIRE k a SHARED", second),
        ("WAIT k a", second),
        ("QUEUE k a", second),
        ("EXTEND k a", first),
        ("EXTEND k a PX 50 GT DATA d", first),
        ("EXTEND k a NOSESSION", first),
        ("EXTEND k a SESSION", second),
        ("EXTEND k a PX 50 GT SESSION", second),
        ("MEXTEND 1 k a SESSION KEEP 50", second),
        ("CANCEL k a", first),
        ("RELEASE k a HOLDS 1", first),
    ] {
        let mut world = World::new();
        assert_eq!(world.say_as(first, "ACQUIRE k a HOLDS 2"), "granted");
        world.say_as(second, line);
        assert_eq!(shown_client(&world, "a"), Some(shown), "{line}");
    }
}

#[test]
fn a_place_that_is_granted_leaves_the_client_of_what_its_token_held() {
    let mut world = World::new();
    assert_eq!(world.say_as(501, "ACQUIRE k a SHARED"), "granted");
    assert_eq!(world.say_as(503, "ACQUIRE k b SHARED"), "granted");
    assert_eq!(world.say_as(502, "QUEUE k a"), "place 1");
    assert_eq!(world.say_as(503, "RELEASE k b"), "1");
    assert_eq!(shown_client(&world, "a"), Some(501));
    assert_eq!(world.say_as(502, "QUEUE k a"), "granted");
    assert_eq!(shown_client(&world, "a"), Some(502));
    let mut world = play("ACQUIRE k h -> granted\nQUEUE k a -> place 1\nRELEASE k h -> 1");
    assert_eq!(shown_client(&world, "a"), Some(0));
    assert_eq!(world.say_as(501, "ACQUIRE k a"), "granted");
    assert_eq!(shown_client(&world, "a"), Some(501));
}

// ---- The length of the lease

#[test]
fn a_tied_grant_is_renewed_by_its_own_length_whatever_has_set_it() {
    for (line, lease_ms) in [
        ("EXTEND k a PX 30 GT", 90),
        ("EXTEND k a PX 30 GT SESSION", 90),
        ("MEXTEND 2 j k a PX 30 GT", 90),
        ("EXTEND k a PX 30 GT DATA d", 90),
        ("EXTEND k a PX 200 GT", 200),
        ("EXTEND k a PX 30", 30),
        ("EXTEND k a PX 30 SESSION KEEP 5", 30),
        ("EXTEND k a SESSION", 90),
        ("ACQUIRE k a PX 60 REENTRANT", 60),
        ("ACQUIRE k a PX 60 SHARED", 60),
        ("WAIT k a PX 60", 60),
        ("QUEUE k a PX 60", 60),
    ] {
        let mut world = play("MACQUIRE 2 j k a PX 90 SESSION -> granted");
        assert_ne!(world.say(line), "0", "{line}");
        for _ in 0..3 {
            world.pass_ms(90);
            assert_eq!(world.lease_ms("k", "a"), lease_ms, "{line}");
        }
    }
}

// ---- The end of a session

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
fn a_session_begun_and_ended_in_one_operation_is_forgotten() {
    let mut world = play(
        "ACQUIRE k a PX 100 -> granted
         WAIT k b SESSION -> waits",
    );
    world.now_ms += 101;
    // The RELEASE of b settles the name, which grants it to b first.
    assert_eq!(world.say("RELEASE k b"), "1");
    assert!(world.table.sessions().is_empty());
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
fn no_session_outlives_a_grant_that_went_unseen_for_long() {
    let mut world = play("ACQUIRE k a PX 90 SESSION -> granted");
    world.store.keys.clear();
    world.replica.locks.clear();
    world.pass_ms(30);
    assert!(world.table.sessions().is_empty());
}

// ---- Databases and slots

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
    world.table.follow(&Relocation::Swapped(0, 5));
    assert_eq!(names(&world), [Name::new(5, b"k")]);
    world.table.follow(&Relocation::Swapped(3, 5));
    assert_eq!(names(&world), [Name::new(3, b"k")]);
    world.table.follow(&Relocation::Swapped(3, 3));
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
    world.replica.locks.clear();
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

/// A grant of another database may still have the number of a session that has ended.
#[test]
fn the_numbers_of_sessions_are_not_given_again_after_a_flush_or_a_demotion() {
    let ends: [fn(&mut World); 4] = [
        World::flush,
        |world| {
            world.table.end_sessions_everywhere();
            world.table.due_names(world.now_ms, 9);
        },
        |world| drop(world.table.demote(world.now_ms)),
        |world| world.delete("k"),
    ];
    for (number, end) in ends.iter().enumerate() {
        let mut world = play("ACQUIRE k a PX 9000 SESSION -> granted");
        let next = world.table.sessions().next_id();
        end(&mut world);
        assert!(world.table.sessions().is_empty(), "end {number}");
        assert!(world.table.sessions().next_id() >= next, "end {number}");
    }
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
fn a_renewal_never_shortens_a_lease() {
    let mut world = play("ACQUIRE k a PX 90 SESSION -> granted");
    let deadline_ms = |world: &World| world.wall_ms() + world.lease_ms("k", "a");
    let before_ms = deadline_ms(&world);
    world.set_clock(-1_000);
    for _ in 0..4 {
        world.pass_ms(30);
        assert_eq!(deadline_ms(&world), before_ms);
    }
    assert_eq!(world.table.sessions().len(), 1, "still tied");
    world.set_clock(0);
    world.pass_ms(30);
    assert!(deadline_ms(&world) > before_ms, "renewed again");
    world.set_clock(-30);
    let before_ms = deadline_ms(&world);
    world.pass_ms(30);
    assert_eq!(deadline_ms(&world), before_ms, "a renewal to the same time");
    assert_eq!(world.table.sessions().len(), 1, "tied all the same");
}
