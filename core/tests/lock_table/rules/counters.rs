//! The counters of INFO: what each command and each end adds to them.

use redis_lock_core::table::Counters;
use redis_lock_core::values::name::Relocation;

use super::scene::play;
use crate::world::{self, World};

/// A scene, the counter that it is about, and the value at its end.
type Row = (&'static str, fn(&Counters) -> u64, u64);

const ROWS: [Row; 16] = [
    (
        "ACQUIRE k a -> granted
         ACQUIRE k a -> granted
         ACQUIRE j b -> granted
         MACQUIRE 2 x y c -> granted
         ACQUIRE k d -> nil",
        |counters| counters.grants,
        3,
    ),
    (
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         WAIT k c -> waits
         QUEUE k d -> place 3
         RELEASE k a -> 1
         RELEASE k b -> 1
         RELEASE k c -> 1",
        |counters| counters.hand_overs,
        3,
    ),
    (
        "ACQUIRE k a PX 10 SHARED -> granted
         ACQUIRE k b PX 10 SHARED -> granted
         ACQUIRE k c PX 99 SHARED -> granted
         +11",
        |counters| counters.expirations,
        2,
    ),
    (
        "ACQUIRE k a -> granted
         WAIT k b BLOCK 10 -> waits
         WAIT k c BLOCK 20 -> waits
         WAIT k d BLOCK 10 KEEP 50 -> waits
         +21",
        |counters| counters.timeouts,
        2,
    ),
    (
        "ACQUIRE k a -> granted
         QUEUE k b KEEP 10 -> place 1
         QUEUE k c KEEP 20 -> place 2
         WAIT k d BLOCK 10 KEEP 10 -> waits
         +11
         +11",
        |counters| counters.lapses,
        3,
    ),
    (
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         WAIT k b -> waits
         WAIT k b -> waits
         QUEUE k c -> place 2
         QUEUE k c -> place 2",
        |counters| counters.take_overs,
        2,
    ),
    (
        "ACQUIRE k a -> granted
         QUEUE k b -> place 1
         WAIT k b -> waits
         QUEUE k b -> place 1",
        |counters| counters.take_overs,
        2,
    ),
    (
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         QUEUE k c -> place 2
         CANCEL k b -> 1
         CANCEL k c -> 1
         CANCEL k c -> 0",
        |counters| counters.cancels,
        2,
    ),
    (
        "MACQUIRE 2 x y a -> granted
         MEXTEND 2 x y a PX 50 -> 2
         EXTEND x a PX 50 -> 1
         EXTEND x b PX 50 -> 0",
        |counters| counters.extensions,
        3,
    ),
    (
        "MACQUIRE 3 x y z a -> granted
         MRELEASE 2 x y a -> 2
         RELEASE z a -> 1
         RELEASE z a -> 0",
        |counters| counters.releases,
        3,
    ),
    (
        "MACQUIRE 2 x y a -> granted
         MRELEASE 2 x y a LEAVE 50 -> 2
         RELEASE x b LEAVE 50 -> 0",
        |counters| counters.releases,
        2,
    ),
    (
        "ACQUIRE k a SHARED -> granted
         ACQUIRE k b SHARED -> granted
         WAIT k a -> waits
         WAIT k b -> DEADLOCK",
        |counters| counters.deadlocks,
        1,
    ),
    (
        "A> ACQUIRE x a SESSION -> granted
         B> ACQUIRE y b SESSION -> granted
         A> WAIT y c -> waits
         B> WAIT x d -> DEADLOCK
         B> WAIT x d -> DEADLOCK",
        |counters| counters.deadlocks,
        2,
    ),
    (
        "ACQUIRE k a -> granted
         ACQUIRE k b -> nil",
        |counters| {
            counters.deadlocks + counters.max_waiters_refusals + counters.max_tickets_refusals
        },
        0,
    ),
    (
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         RELEASE k a -> 1
         EXTEND k b GT PX 5 -> 1",
        |counters| counters.extensions,
        1,
    ),
    (
        "ACQUIRE k a PX 10 -> granted
         WAIT k b PX 10 -> waits
         +11",
        |counters| counters.expirations,
        1,
    ),
];

#[test]
fn each_counter_counts_what_it_is_named_after() {
    for (scene, counter, expected) in ROWS {
        let scene = scene.replace("-> DEADLOCK", &format!("-> {}", deadlock(scene)));
        let world = play(&scene);
        assert_eq!(counter(world.table.counters()), expected, "{scene}");
    }
}

/// Returns the text of the deadlock that a scene ends in.
fn deadlock(scene: &str) -> &'static str {
    use redis_lock_core::values::refusal::Refusal;
    let refusal = if scene.contains("SESSION") {
        Refusal::SessionDeadlock
    } else {
        Refusal::Deadlock
    };
    refusal.text()
}

#[test]
fn waits_beyond_the_settings_are_counted() {
    let mut world = World::new();
    world.max_waiters = 1;
    world.max_tickets = 1;
    for (line, answer) in [
        ("ACQUIRE k a", "granted"),
        ("WAIT k b", "waits"),
        ("WAIT k c", "MAXWAITERS"),
        ("WAIT k c", "MAXWAITERS"),
        ("QUEUE k d", "place 2"),
        ("QUEUE k e", "MAXTICKETS"),
        ("QUEUE k e", "MAXTICKETS"),
        ("QUEUE k e", "MAXTICKETS"),
    ] {
        let said = world.say(line);
        assert!(said.starts_with(answer), "{line}: {said}");
    }
    let counters = world.table.counters();
    assert_eq!(counters.max_waiters_refusals, 2);
    assert_eq!(counters.max_tickets_refusals, 3);
}

#[test]
fn the_time_of_each_kind_of_wait_is_counted_when_it_is_granted() {
    for wait in [
        "WAIT k a",
        "WAIT k a KEEP 50",
        "QUEUE k a",
        "MQUEUE 2 j k a",
    ] {
        let mut world = World::new();
        world.say("ACQUIRE k h");
        world.say(wait);
        world.pass_ms(40);
        world.say("RELEASE k h");
        let waits = world.table.times().waits.summary();
        assert_eq!(waits.max_ms, 40, "{wait}");
    }
}

#[test]
fn take_backs_are_counted() {
    let mut world = play(
        "ACQUIRE k a -> granted
         WAIT k b -> waits
         WAIT k c -> waits
         RELEASE k a -> 1",
    );
    world.take_back_last();
    world.take_back_last();
    assert_eq!(world.table.counters().take_backs, 2);
}

// ---- What the timer is asked for

/// Schedules x, which two hold, and y, for which one waits. Returns the world.
fn scheduled() -> World {
    play(
        "ACQUIRE x a SHARED PX 50 -> granted
         ACQUIRE x b SHARED PX 60 -> granted
         ACQUIRE y a PX 90 -> granted
         WAIT y b -> waits",
    )
}

#[test]
fn a_name_is_scheduled_until_it_is_settled() {
    let mut world = World::new();
    assert!(!world.table.is_any_scheduled());
    assert!(!world.table.is_scheduled(&world::name("x")));
    world = scheduled();
    assert!(world.table.is_any_scheduled());
    assert!(world.table.is_scheduled(&world::name("x")));
    assert!(!world.table.is_scheduled(&world::name("z")));
    world.pass_ms(61);
    assert!(!world.table.is_scheduled(&world::name("x")));
}

/// The times of a flushed database go, except where clients wait.
#[test]
fn the_times_of_a_flushed_database_are_forgotten() {
    for (db, is_kept) in [(Some(0), false), (None, false), (Some(1), true)] {
        let mut world = scheduled();
        let waits = world.table.is_scheduled(&world::name("y"));
        world.table.forget_times_in(db);
        assert_eq!(
            world.table.is_scheduled(&world::name("x")),
            is_kept,
            "{db:?}"
        );
        assert_eq!(world.table.is_scheduled(&world::name("y")), waits, "{db:?}");
    }
}

#[test]
fn swapped_databases_exchange_times_and_lose_replies_that_are_held_back() {
    for (one, other) in [(3, 0), (0, 3)] {
        let mut world = scheduled();
        world.store.replicas = 1;
        assert_eq!(world.say("ACQUIRE z c REPLICAS 1"), "held back");
        assert!(world.table.replica_waits().has_unsent());
        world.table.follow(&Relocation::Swapped(1, 2));
        assert!(world.table.is_scheduled(&world::name("x")));
        assert!(!world.table.replica_waits().has_more());
        world.table.follow(&Relocation::Swapped(one, other));
        assert!(!world.table.is_scheduled(&world::name("x")));
        assert!(world.table.replica_waits().has_more(), "the lost reply");
    }
}

#[test]
fn a_swap_with_the_same_database_loses_nothing() {
    let mut world = World::new();
    world.store.replicas = 1;
    assert_eq!(world.say("ACQUIRE z c REPLICAS 1 WITHIN 70"), "held back");
    world.table.follow(&Relocation::Swapped(0, 0));
    assert!(!world.table.replica_waits().has_more());
    let until_ms = world.table.replica_waits().next_timeout_ms();
    assert_eq!(until_ms, Some(world.now_ms + 70));
    world.acknowledge(1);
    assert!(!world.table.replica_waits().has_unsent());
    assert_eq!(world.heard(), ["ACQUIRE z c REPLICAS 1 WITHIN 70: granted"]);
    assert_eq!(world.table.replica_waits().next_timeout_ms(), None);
}

#[test]
fn all_sessions_end_with_all_keys() {
    let mut world = play(
        "ACQUIRE x a SESSION -> granted
         ACQUIRE y b SESSION -> granted",
    );
    assert_eq!(world.table.sessions().len(), 2);
    world.table.end_sessions_everywhere();
    assert_eq!(world.table.sessions().len(), 0);
}

#[test]
fn positions_that_were_left_are_due_at_once() {
    let mut world = World::new();
    world.say("MACQUIRE 2 x y a");
    world.say("MWAIT 2 x y b");
    world.hang_up_unseen("MWAIT 2 x y b");
    assert!(world.table.queues().is_empty());
    assert_eq!(world.table.next_due_ms(), Some(0));
}

#[test]
fn positions_that_were_left_are_due_though_nothing_is_scheduled() {
    let mut world = play(
        "ACQUIRE x a -> granted
         MWAIT 3 x y z b -> waits",
    );
    world.hang_up_unseen("MWAIT 3 x y z b");
    world.say("RELEASE x a");
    assert!(!world.table.is_any_scheduled());
    assert_eq!(world.table.next_due_ms(), Some(0));
    world.fire(Vec::new());
    assert_eq!(world.table.next_due_ms(), None);
}

#[test]
fn positions_that_were_left_are_worked_off() {
    let mut world = play(
        "MACQUIRE 2 x y a -> granted
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.hang_up_unseen("MWAIT 2 x y b");
    assert_eq!(world.table.work_off_left(9), ["x", "y"].map(world::name));
    assert_eq!(world.table.work_off_left(9), []);
}
