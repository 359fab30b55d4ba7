//! Growth of an operation's steps with keys, waiters and holders: linear, never quadratic.

use crate::world::World;
use redis_lock_core::budget::{CLEARED_AT_ONCE, MOST_LOOKS, MOST_STEPS, MOST_WORK, WORK_OF_A_STEP};
use redis_lock_core::state::replica_waits::Progress;
use redis_lock_core::values::name::Relocation;
use redis_lock_core::values::refusal::Refusal;

/// Asserts that a number four times as large costs at most about four times as much.
#[track_caller]
fn assert_linear(what: &str, cost: impl Fn(usize) -> u64) {
    let (few, many) = (cost(200), cost(800));
    assert!(
        many <= few * 5,
        "{what}: {few} steps for 200, {many} for 800"
    );
}

/// Asserts that the cost doesn't depend on the number.
#[track_caller]
fn assert_constant(what: &str, cost: impl Fn(usize) -> u64) {
    let (few, many) = (cost(200), cost(800));
    assert!(
        many <= few + 8,
        "{what}: {few} steps for 200, {many} for 800"
    );
}

fn keys(count: usize) -> String {
    let names: Vec<String> = (0..count).map(|n| format!("k{n}")).collect();
    format!("{count} {}", names.join(" "))
}

/// Returns the steps of a line and of all that follows from it.
fn steps(world: &mut World, line: &str, answer: &str) -> u64 {
    let before = world.table.steps();
    assert_eq!(world.say(line), answer, "{:.60}", line);
    world.fire(Vec::new());
    world.table.steps() - before
}

#[test]
fn many_keys() {
    assert_linear("MACQUIRE", |count| {
        let line = format!("MACQUIRE {} a", keys(count));
        steps(&mut World::new(), &line, "granted")
    });
    assert_linear("MWAIT with one of the keys held", |count| {
        let mut world = World::new();
        world.say("ACQUIRE k7 h");
        let line = format!("MWAIT {} a", keys(count));
        steps(&mut world, &line, "waits")
    });
    assert_linear("MRELEASE with an MWAIT behind it", |count| {
        let mut world = World::new();
        world.say(&format!("MACQUIRE {} h", keys(count)));
        world.say(&format!("MWAIT {} a", keys(count)));
        let line = format!("MRELEASE {} h", keys(count));
        let cost = steps(&mut world, &line, &count.to_string());
        assert_eq!(world.heard().len(), 1);
        cost
    });
}

#[test]
fn many_who_wait_for_many_keys() {
    let crowd = |count: usize| {
        let mut world = World::new();
        world.say(&format!("MACQUIRE {} h", keys(100)));
        for waiter in 0..count {
            world.say(&format!("MWAIT {} w{waiter} BLOCK 100", keys(100)));
        }
        world
    };
    assert_constant("to join", |count| {
        let line = format!("MWAIT {} last", keys(100));
        steps(&mut crowd(count), &line, "waits")
    });
    assert_constant("to be released", |count| {
        let line = format!("MRELEASE {} h", keys(100));
        steps(&mut crowd(count), &line, "100")
    });
    assert_linear("to time out", |count| {
        let mut world = crowd(count);
        let before = world.table.steps();
        world.pass_ms(101);
        assert_eq!(world.heard().len(), count);
        world.table.steps() - before
    });
}

#[test]
fn many_who_wait_for_one_key() {
    let crowd = |count: usize, mode: &str| {
        let mut world = World::new();
        world.say("ACQUIRE k h");
        for waiter in 0..count {
            world.say(&format!("WAIT k w{waiter} {mode}"));
        }
        world
    };
    assert_constant("to hand over to one", |count| {
        steps(&mut crowd(count, ""), "RELEASE k h", "1")
    });
    assert_linear("to hand over to all", |count| {
        let mut world = crowd(count, "SHARED");
        let cost = steps(&mut world, "RELEASE k h", "1");
        assert_eq!(world.heard().len(), count);
        cost
    });
}

#[test]
fn one_token_that_waits_for_many_keys() {
    let crowd = |count: usize| {
        let mut world = World::new();
        for key in 0..count {
            world.say(&format!("ACQUIRE k{key} h"));
            world.say(&format!("WAIT k{key} w"));
        }
        world
    };
    assert_constant("to be released at one", |count| {
        steps(&mut crowd(count), "RELEASE k7 h", "1")
    });
    assert_linear("to be released at all", |count| {
        let mut world = crowd(count);
        (0..count)
            .map(|key| steps(&mut world, &format!("RELEASE k{key} h"), "1"))
            .sum()
    });
}

/// Returns a world in which a token waits for a key and for `count` others, each with that key, behind
/// another holder.
fn one_token_that_waits_many_times(count: usize) -> World {
    let mut world = World::new();
    world.say("ACQUIRE k h PX 3600000");
    world.say("QUEUE k t SHARED PX 3600000 KEEP 3600000");
    for wait in 0..count {
        let line = format!("MQUEUE 2 k x{wait} t PX 3600000 KEEP 3600000");
        assert_eq!(world.say(&line), format!("place {}", wait + 2));
    }
    world
}

#[test]
fn many_waits_of_one_token_for_one_key() {
    let granted = |world: &World, count: usize| {
        assert!(world.table.queues().is_empty());
        let holds = |wait| world.holders(&format!("x{wait}")) == ["t#1"];
        assert!((0..count).all(holds));
    };
    assert_linear("to be granted all", |count| {
        let mut world = one_token_that_waits_many_times(count);
        let cost = steps(&mut world, "RELEASE k h", "1");
        granted(&world, count);
        cost
    });
    assert_constant("to be granted a further key", |count| {
        let mut world = World::new();
        world.say("ACQUIRE k t");
        world.say("ACQUIRE x h");
        for wait in 0..count {
            world.say(&format!("MWAIT 3 k x y{wait} t"));
        }
        let cost = steps(&mut world, "MACQUIRE 2 k z t", "granted");
        assert_eq!(world.table.queues().len(), count);
        cost
    });
}

#[test]
fn many_waits_of_one_token_starve_nobody() {
    let count = 5_000;
    let mut world = one_token_that_waits_many_times(count);
    world.say("ACQUIRE v x PX 100");
    world.say("WAIT v y BLOCK 300");
    world.say("WAIT v z BLOCK 300");
    world.now_ms += 101;
    assert_eq!(world.say("RELEASE k h"), "1");
    let mut left = world.table.queues().len();
    for _ in 0..400 {
        let names = world.table.due_names(world.now_ms, 256);
        let decision = world.outside(|table, outside| table.settle_due(&names, 256, outside));
        world.carry_out(decision);
        world.now_ms += 1;
        let now_left = world.table.queues().len();
        assert!(now_left < left || left < 2, "{now_left} left of {left}");
        left = now_left;
    }
    assert_eq!(
        world.heard(),
        ["WAIT v y BLOCK 300: granted", "WAIT v z BLOCK 300: nil"]
    );
}

#[test]
fn waits_that_are_left_to_the_timer_are_granted_after_a_pause() {
    let mut world = World::new();
    world.say("ACQUIRE k h PX 3600000");
    world.say("QUEUE k t PX 3600000 KEEP 3600000");
    world.say("WAIT k behind");
    for wait in 0..1_000 {
        world.say(&format!("MQUEUE 2 k x{wait} t PX 3600000 KEEP 3600000"));
    }
    assert_eq!(world.say("RELEASE k h"), "1");
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms));
    world.defer(&["k"]);
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms + 20));
    world.pass_ms(20);
    assert_eq!(world.table.queues().len(), 1);
    assert!((0..1_000).all(|wait| world.holders(&format!("x{wait}")) == ["t#1"]));
}

#[test]
fn one_operation_admits_no_more_than_the_server_can_answer_at_once() {
    let mut world = World::new();
    world.say("ACQUIRE k h");
    for waiter in 0..2_000 {
        world.say(&format!("WAIT k w{waiter} SHARED"));
    }
    world.say("RELEASE k h");
    let first = world.heard().len();
    assert!((50..200).contains(&first), "{first}");
    // No newcomer overtakes the waiters that were left to the timer.
    assert_eq!(world.say("ACQUIRE k new SHARED"), "nil");
    assert_eq!(world.table.next_due_ms(), Some(world.now_ms));
    world.fire(Vec::new());
    assert!(world.table.queues().is_empty());
    assert_eq!(world.holders("k").len(), 2_000);
    assert_eq!(world.say("ACQUIRE k new SHARED"), "granted");
}

/// Each hand-over takes as many steps. The keys of the command move the step at which the last one
/// begins.
#[test]
fn no_waiter_is_looked_at_when_all_steps_are_taken() {
    let released = |waiters: usize, many_keys: usize| {
        let mut world = World::new();
        let keys = keys(many_keys);
        world.say(&format!("MACQUIRE {keys} h"));
        for waiter in 0..waiters {
            world.say(&format!("WAIT k0 w{waiter} SHARED"));
        }
        let before = world.table.steps();
        assert_eq!(
            world.say(&format!("MRELEASE {keys} h")),
            many_keys.to_string()
        );
        world.table.steps() - before
    };
    let each = released(11, 1) - released(10, 1);
    for many_keys in 1..=each as usize {
        let taken = released(150, many_keys);
        let bounds = MOST_STEPS..MOST_STEPS + each;
        assert!(bounds.contains(&taken), "{taken} with {many_keys} keys");
    }
}

#[test]
fn a_firing_grants_whatever_it_has_taken_to_look_at_its_names() {
    let count = MOST_STEPS as usize / 2 + 1;
    let mut world = World::new();
    for key in 0..count {
        world.say(&format!("ACQUIRE k{key} h PX 100"));
        world.say(&format!("WAIT k{key} w"));
    }
    world.now_ms += 101;
    let names = world.table.due_names(world.now_ms, count);
    assert_eq!(names.len(), count);
    let decision = world.outside(|table, outside| table.settle_due(&names, count, outside));
    world.carry_out(decision);
    assert!(!world.heard().is_empty());
}

#[test]
fn a_firing_ends_waits_whatever_it_has_taken_to_grant() {
    let mut world = one_token_that_waits_many_times(5_000);
    world.say("ACQUIRE v x PX 3600000");
    world.say("WAIT v y BLOCK 50");
    world.now_ms += 51;
    assert_eq!(world.say("RELEASE k h"), "1");
    let names = world.table.due_names(world.now_ms, 256);
    let decision = world.outside(|table, outside| table.settle_due(&names, 256, outside));
    world.carry_out(decision);
    assert_eq!(world.heard(), ["WAIT v y BLOCK 50: nil"]);
    assert!(
        world.table.queues().len() > 1_000,
        "there was more to grant"
    );
}

/// A look at the holder that alone has the smallest limit, at a waiter that lacks permits, and at
/// the waiters for a lock that came by RENAME.
#[test]
fn each_look_at_a_name_is_a_step() {
    let mut world = World::new();
    for line in [
        "ACQUIRE k h SHARED LIMIT 2 PERMITS 2",
        "WAIT k t SHARED LIMIT 5",
        "MWAIT 2 j k t SHARED LIMIT 5 PERMITS 3",
        "ACQUIRE k h SHARED LIMIT 2",
        "ACQUIRE x h",
        "WAIT x w",
        "ACQUIRE y a SHARED",
        "ACQUIRE y b SHARED",
    ] {
        world.say(line);
    }
    assert_eq!(steps(&mut world, "EXTEND k h", "1"), 5);
    let before = world.table.steps();
    world.rename("y", "x");
    assert_eq!(world.table.steps() - before, 6);
}

#[test]
fn many_holders() {
    let held = |count: usize| {
        let mut world = World::new();
        for holder in 0..count {
            world.say(&format!("ACQUIRE k h{holder} SHARED LIMIT 90000 SESSION"));
        }
        world
    };
    assert_constant(
        "a grant of several permits, and a repeat that lowers them",
        |count| {
            let mut world = held(count);
            let take = "ACQUIRE k new SHARED LIMIT 90000 PERMITS 9000";
            let lower = "ACQUIRE k new SHARED LIMIT 90000 PERMITS 7";
            let cost = steps(&mut world, take, "granted") + steps(&mut world, lower, "granted");
            assert_eq!(world.lock("k").holders().permits(), count as u64 + 7);
            cost
        },
    );
    assert_constant("a repeat", |count| {
        steps(&mut held(count), "ACQUIRE k h9 SHARED", "granted")
    });
    assert_constant("a release", |count| {
        steps(&mut held(count), "RELEASE k h9", "1")
    });
}

/// Each token waits for two keys and holds one of them already, with too few permits.
#[test]
fn many_who_lack_permits_that_are_not_free() {
    assert_constant("a repeat that admits no waiter", |count| {
        let mut world = World::new();
        let all = 2 * count;
        world.say(&format!("ACQUIRE k h SHARED LIMIT {all} PERMITS {all}"));
        for token in 0..count {
            world.say(&format!("WAIT k t{token} SHARED LIMIT {all}"));
        }
        for token in 0..count {
            world.say(&format!(
                "MWAIT 2 j{token} k t{token} SHARED LIMIT {all} PERMITS 3"
            ));
        }
        // All of the first waits are granted. One permit is left, and each token lacks two.
        let left = count - 1;
        world.say(&format!("ACQUIRE k h SHARED LIMIT {all} PERMITS {left}"));
        world.fire(Vec::new());
        assert_eq!(world.table.queues().len(), count);
        let again = format!("ACQUIRE k h SHARED LIMIT {all} PERMITS {left}");
        let cost = steps(&mut world, &again, "granted");
        assert_eq!(world.table.queues().len(), count);
        world.say(&format!(
            "ACQUIRE k h SHARED LIMIT {all} PERMITS {}",
            left - 1
        ));
        assert_eq!(world.table.queues().len(), count - 1);
        cost
    });
}

/// Returns a world in which each token waits for two keys. It holds one of them already, with one
/// permit less than it waits for.
fn who_lack_permits(count: usize, request: impl Fn(usize) -> String) -> World {
    let mut world = World::new();
    let all = 2 * count;
    world.say(&format!("ACQUIRE k h SHARED LIMIT {all} PERMITS {all}"));
    for token in 0..count {
        world.say(&format!("WAIT k t{token} SHARED LIMIT {all}"));
    }
    for token in 0..count {
        let request = request(token);
        world.say(&format!("MWAIT 2 j{token} k t{token} SHARED {request}"));
    }
    world.say(&format!("ACQUIRE k h SHARED LIMIT {all} PERMITS {count}"));
    world.fire(Vec::new());
    assert_eq!(world.table.queues().len(), count);
    world.heard();
    world
}

#[test]
fn many_who_lack_permits_that_become_free() {
    assert_linear("to be granted", |count| {
        let mut world = who_lack_permits(count, |_| format!("LIMIT {} PERMITS 2", 2 * count));
        let cost = steps(&mut world, "RELEASE k h", "1");
        assert_eq!(world.heard().len(), count);
        cost
    });
    assert_linear("to be granted, each under another limit", |count| {
        let limit = |token| 4 * count - token;
        let request = |token| format!("LIMIT {} PERMITS 2", limit(token));
        let mut world = who_lack_permits(count, request);
        let cost = steps(&mut world, "RELEASE k h", "1");
        assert_eq!(world.heard().len(), count);
        cost
    });
    assert_linear("to be granted beside as many that can't be", |count| {
        let limit = |token| if token % 2 == 0 { 3 } else { 2 * count };
        let request = |token| format!("LIMIT {} PERMITS 2", limit(token));
        let mut world = who_lack_permits(count, request);
        let cost = steps(&mut world, "RELEASE k h", "1");
        assert_eq!(world.heard().len(), count / 2);
        cost
    });
    assert_linear(
        "to be granted beside as many that wait for others",
        |count| {
            let mut world = who_lack_permits(count, |_| format!("LIMIT {} PERMITS 2", 2 * count));
            for token in 0..count / 2 {
                world.say(&format!("ACQUIRE o{token} other"));
                world.rename(&format!("o{token}"), &format!("j{token}"));
            }
            let cost = steps(&mut world, "RELEASE k h", "1");
            assert_eq!(world.heard().len(), count - count / 2);
            cost
        },
    );
}

/// The timer's work lists only the next waiter of those that lack no permits any more. That waiter
/// may leave before the timer fires.
#[test]
fn who_comes_back_to_wait_for_something_else_leaves_nobody_behind_who_lacks_no_permits() {
    let count = 400;
    let request = |_| format!("LIMIT {} PERMITS 2", 2 * count);
    let mut world = who_lack_permits(count, request);
    world.say("RELEASE k h");
    let next = world.heard().len();
    assert!(next < count / 2, "{next} granted at once");

    let mut world = who_lack_permits(count, request);
    world.say("ACQUIRE o other PX 60000");
    world.rename("o", &format!("j{next}"));
    let others = keys(2_100);
    world.say(&format!("MACQUIRE {others} t{next}"));
    world.say("RELEASE k h");
    assert_eq!(world.heard().len(), next);
    // The operation has used its steps for these keys, so it looks at no waiter.
    let all = others.replacen("2100", "2101 k", 1);
    assert_eq!(world.say(&format!("MRELEASE {all} t{next}")), "2101");
    let again = format!("MWAIT 2 j{next} k t{next} SHARED {}", request(next));
    assert_eq!(world.say(&again), "waits");
    world.fire(Vec::new());
    assert_eq!(world.table.queues().len(), 1);
}

#[test]
fn many_sessions_of_one_connection_end_at_the_same_cost_each() {
    assert_linear("to close", |count| {
        let mut world = World::new();
        world.say("ACQUIRE k0 a PX 9000 SESSION");
        let client = world.client_of("ACQUIRE k0 a PX 9000 SESSION");
        for key in 1..count {
            world.say_as(client, &format!("ACQUIRE k{key} a PX 9000 SESSION"));
        }
        let before = world.table.steps();
        world.close("ACQUIRE k0 a PX 9000 SESSION");
        assert!(world.store.keys.is_empty());
        assert!(world.table.sessions().is_empty());
        world.table.steps() - before
    });
}

/// Returns the number of firings, each for at most 100 of each kind, until nothing is due.
fn firings(world: &mut World) -> u64 {
    let mut firings = 0;
    while world
        .table
        .next_due_ms()
        .is_some_and(|ms| ms <= world.now_ms)
    {
        let names = world.table.due_names(world.now_ms, 100);
        assert!(names.len() <= 300, "{} names at once", names.len());
        let decision = world.outside(|table, outside| table.settle_due(&names, 100, outside));
        world.carry_out(decision);
        firings += 1;
    }
    firings
}

#[test]
fn what_ends_at_once_is_worked_off_in_parts() {
    let tied = |count: usize| {
        let mut world = World::new();
        for key in 0..count {
            world.say_as(1, &format!("ACQUIRE k{key} a PX 9000 SESSION"));
        }
        world
    };
    assert_linear("a database that is flushed", |count| {
        let mut world = tied(count);
        world.table.follow(&Relocation::Swapped(0, 1));
        world.table.end_sessions_in(1);
        assert_eq!(world.table.sessions().len(), 0);
        firings(&mut world)
    });
    assert_linear("a connection that is reset and ties anew", |count| {
        let mut world = tied(count);
        let wall_ms = world.wall_ms();
        world.table.close_client(1, wall_ms);
        let cost = steps_of_one(&mut world, "ACQUIRE other a PX 9000 SESSION");
        assert!(cost < 10, "{cost} steps to tie anew");
        assert_eq!(world.table.sessions().count_of(1), 1);
        firings(&mut world)
    });
    assert_linear("waiters for many keys that are gone", |count| {
        let mut world = World::new();
        world.say(&format!("MACQUIRE {} h", keys(300)));
        let lines = (0..count).map(|waiter| format!("MWAIT {} w{waiter}", keys(300)));
        let lines: Vec<String> = lines.collect();
        for line in &lines {
            world.say(line);
        }
        for line in &lines {
            assert_eq!(world.hang_up_unseen(line), None);
        }
        assert!(world.table.queues().is_empty());
        let firings = firings(&mut world);
        assert!(firings >= (count * 300 / 10_000) as u64, "{firings}");
        firings
    });
}

/// Returns the steps of a line, and of nothing that follows from it.
fn steps_of_one(world: &mut World, line: &str) -> u64 {
    let before = world.table.steps();
    assert_eq!(world.say_as(1, line), "granted");
    world.table.steps() - before
}

#[test]
fn many_places_at_one_key() {
    let crowd = |count: usize| {
        let mut world = World::new();
        world.say("ACQUIRE k h PX 9000");
        for place in 0..count {
            world.say(&format!("QUEUE k t{place} KEEP 100"));
        }
        world
    };
    assert_constant("to take one", |count| {
        let answer = format!("place {}", count + 1);
        steps(&mut crowd(count), "QUEUE k last", &answer)
    });
    assert_constant("to keep one", |count| {
        let answer = format!("place {}", count / 2 + 1);
        steps(
            &mut crowd(count),
            &format!("QUEUE k t{}", count / 2),
            &answer,
        )
    });
    assert_constant("to leave one", |count| {
        steps(&mut crowd(count), &format!("CANCEL k t{}", count / 2), "1")
    });
    assert_constant("to be granted", |count| {
        steps(&mut crowd(count), "RELEASE k h", "1")
    });
    assert_linear("to lapse", |count| {
        let mut world = crowd(count);
        let before = world.table.steps();
        world.pass_ms(101);
        assert!(world.table.queues().is_empty());
        world.table.steps() - before
    });
}

/// The most steps of a wait that looks for deadlocks.
const MOST_OF_A_SEARCH: u64 = 20_000;

/// Returns a world whose connections hold a key each by SESSION. Each connection but the last waits
/// for the key of the next.
fn chain(count: usize) -> (World, u64) {
    let mut world = World::new();
    let last = count as u64 + 1;
    for client in 1..=last {
        world.say_as(client, &format!("ACQUIRE k{client} t SESSION"));
    }
    for client in 1..last {
        world.say_as(client, &format!("WAIT k{} w", client + 1));
    }
    (world, last)
}

#[test]
fn a_circle_costs_as_much_as_it_is_long() {
    let close = |count: usize| {
        let (mut world, last) = chain(count);
        let before = world.table.steps();
        assert_eq!(
            world.say_as(last, "WAIT k1 w"),
            Refusal::SessionDeadlock.text()
        );
        world.table.steps() - before
    };
    assert_linear("to be refused", close);
    assert!(close(10_000) <= MOST_OF_A_SEARCH, "{}", close(10_000));
}

/// Returns the steps of a wait of client 1 that closes a deadlock, and 1 if the search was given
/// up.
fn steps_of_a_search(world: &mut World, line: &str) -> (u64, u64) {
    let given_up = world.table.counters().deadlock_searches_given_up;
    let before = world.table.steps();
    let answer = world.say_as(1, line);
    assert!(
        answer == "waits" || answer == Refusal::SessionDeadlock.text(),
        "{answer}"
    );
    let given_up = world.table.counters().deadlock_searches_given_up - given_up;
    assert_eq!(given_up == 0, answer == Refusal::SessionDeadlock.text());
    (world.table.steps() - before, given_up)
}

/// Returns a world in which client 1 holds one of the keys that all other clients wait for.
fn many_mwaits(waiters: u64, many_keys: usize) -> World {
    let mut world = World::new();
    world.say_as(1, "ACQUIRE k0 t SESSION");
    for client in 2..waiters + 2 {
        world.say_as(client, &format!("ACQUIRE own{client} t SESSION"));
        let line = format!("MWAIT {} w{client}", keys(many_keys));
        assert_eq!(world.say_as(client, &line), "waits");
    }
    world
}

#[test]
fn a_search_for_deadlocks_is_bounded() {
    let (steps, given_up) = steps_of_a_search(&mut many_mwaits(500, 100), "WAIT own2 c");
    assert!(steps <= MOST_OF_A_SEARCH && given_up == 0, "{steps}");
    let (steps, given_up) = steps_of_a_search(&mut many_mwaits(400, 400), "WAIT own2 c");
    assert!(steps <= MOST_OF_A_SEARCH && given_up == 1, "{steps}");
}

#[test]
fn a_search_for_deadlocks_among_many_sessions_is_bounded() {
    let mut world = World::new();
    for key in 0..20_000 {
        world.say_as(1, &format!("ACQUIRE k{key} t SESSION"));
        world.say_as(2, &format!("QUEUE k{key} p"));
    }
    world.say_as(2, "ACQUIRE own t SESSION");
    world.say_as(2, "WAIT k0 w");
    let (steps, given_up) = steps_of_a_search(&mut world, "WAIT own c");
    let bounds = MOST_WORK / WORK_OF_A_STEP..=MOST_OF_A_SEARCH;
    assert!(bounds.contains(&steps) && given_up == 1, "{steps}");
}

#[test]
fn a_search_for_deadlocks_costs_what_it_finds() {
    assert_constant("among sessions that nobody waits for", |count| {
        let mut world = World::new();
        for key in 0..count {
            world.say_as(1, &format!("ACQUIRE k{key} t SESSION"));
        }
        world.say_as(2, "ACQUIRE own t SESSION");
        world.say_as(2, "WAIT k0 w");
        steps_of_a_search(&mut world, "WAIT own c").0
    });
    assert_linear("where many hold what as many wait for", |count| {
        let mut world = World::new();
        world.say_as(1, "ACQUIRE own t SESSION");
        for client in 2..count as u64 + 2 {
            world.say_as(client, &format!("ACQUIRE k t{client} SHARED SESSION"));
            world.say_as(client, &format!("WAIT own w{client}"));
        }
        for waiter in 0..count {
            world.say(&format!("WAIT k x{waiter}"));
        }
        steps_of_a_search(&mut world, "WAIT k c").0
    });
}

#[test]
fn a_search_for_deadlocks_clears_an_entry_for_each_queue() {
    let close = |queues: usize| {
        let mut world = World::new();
        for key in 0..queues {
            world.say(&format!("ACQUIRE o{key} h"));
            world.say(&format!("WAIT o{key} w"));
        }
        world.say_as(1, "ACQUIRE k1 t SESSION");
        world.say_as(2, "ACQUIRE k2 t SESSION");
        world.say_as(2, "WAIT k1 w");
        steps_of_a_search(&mut world, "WAIT k2 w").0
    };
    let queues_a_step = CLEARED_AT_ONCE * WORK_OF_A_STEP as usize;
    let cleared = close(5 * queues_a_step) - close(0);
    assert!((5..=6).contains(&cleared), "{cleared} steps");
}

/// Returns the steps of some work, and the replica waits and grants that it looks at.
fn looks(world: &mut World, work: impl FnOnce(&mut World)) -> u64 {
    let cost = |world: &World| world.table.steps() + world.table.replica_waits().looks();
    let before = cost(world);
    work(world);
    cost(world) - before
}

/// Returns the steps and looks of a line.
fn looks_of(world: &mut World, line: &str, answer: &str) -> u64 {
    looks(world, |world| {
        steps(world, line, answer);
    })
}

/// Returns the steps and looks of a line about many keys in a new world.
fn looks_with_keys(count: usize, earlier: &str, line: &str, answer: &str) -> u64 {
    let mut world = World::new();
    world.store.replicas = 1;
    let keys = keys(count);
    if !earlier.is_empty() {
        world.say(&earlier.replace("KEYS", &keys));
    }
    looks_of(&mut world, &line.replace("KEYS", &keys), answer)
}

#[test]
fn many_keys_of_one_who_waits_for_replicas() {
    let waits = "MACQUIRE KEYS t PX 900000 REPLICAS 1";
    let rows = [
        ("", waits, "held back"),
        (waits, "MACQUIRE KEYS t PX 900000", "granted"),
        (waits, "MEXTEND KEYS t PX 900000", "COUNT"),
    ];
    for (earlier, line, answer) in rows {
        assert_linear(line, |count| {
            let answer = answer.replace("COUNT", &count.to_string());
            let looks = looks_with_keys(count, earlier, line, &answer);
            assert!(looks >= 2 * count as u64, "{line}: {looks} for {count}");
            looks
        });
    }
}

/// Returns a world in which clients wait for a replica, each for an offset of its own: 1, 2 and so on.
fn replica_waits(count: usize) -> World {
    let mut world = World::new();
    world.store.replicas = 1;
    for number in 1..=count {
        let line = format!("ACQUIRE k{number} t PX 900000 REPLICAS 1");
        assert_eq!(world.say(&line), "held back");
        world.table.record_offset(number as u64);
    }
    world
}

/// Acknowledges everything up to an offset. Returns the number of replica waits looked at.
fn acknowledge_up_to(world: &mut World, offset: u64) -> u64 {
    let progress = Progress {
        acknowledged: vec![offset],
    };
    looks(world, |world| {
        let decision = world.outside(|table, outside| table.acknowledge(&progress, 1_000, outside));
        world.carry_out(decision);
    })
}

/// Looks at the replicas until all waits have ended. None is acknowledged. Returns the steps and looks
/// of the costliest look, and of all together.
fn look_until_ended(world: &mut World) -> (u64, u64) {
    let (mut most, mut all) = (0, 0);
    while !world.table.replica_waits().is_empty() {
        let cost = acknowledge_up_to(world, 0);
        (most, all) = (most.max(cost), all + cost);
        assert!(cost > 0, "a look that does nothing");
    }
    (most, all)
}

/// Returns a world in which clients wait for a replica with the same grants of one token.
fn crossing_replica_waits(count: usize, keys: &str) -> World {
    let mut world = World::new();
    world.store.replicas = 1;
    let line = format!("MACQUIRE {keys} t PX 900000 REPLICAS 1");
    for _ in 0..count {
        assert_eq!(world.say(&line), "held back");
    }
    world.table.record_offset(1);
    world
}

#[test]
fn many_who_wait_for_replicas() {
    assert_constant("to acknowledge one", |count| {
        let mut world = replica_waits(count);
        let steps = world.table.steps();
        let looks = (1..=50).map(|offset| {
            let looks = acknowledge_up_to(&mut world, offset);
            assert_eq!(world.heard().len(), 1, "each look finds one");
            looks
        });
        let most = looks.max().expect("some looks");
        assert!(most > 0);
        assert_eq!(world.table.steps(), steps, "no name is looked at");
        assert_eq!(world.table.replica_waits().len(), count - 50);
        most
    });
    assert_constant("to lose one", |count| {
        let mut world = replica_waits(count);
        let cost = steps(&mut world, "RELEASE k7 t", "1");
        assert_eq!(world.heard().len(), 1);
        cost
    });
}

#[test]
fn many_who_are_acknowledged_at_once_are_answered_in_parts() {
    let mut world = replica_waits(2_500);
    for answered in [1_000, 1_000, 500, 0] {
        acknowledge_up_to(&mut world, 2_500);
        assert_eq!(world.heard().len(), answered);
    }
}

#[test]
fn many_who_wait_for_replicas_with_the_same_grants() {
    let (own, keys) = (keys(1), keys(20));
    for line in [
        "MEXTEND KEYS t PX 1000000",
        "MACQUIRE KEYS t PX 900000 REPLICAS 1",
    ] {
        assert_constant(line, |count| {
            let mut world = crossing_replica_waits(count, &keys);
            let line = line.replace("KEYS", &keys);
            let answer = if line.starts_with("MEXTEND") {
                "20"
            } else {
                "held back"
            };
            looks_of(&mut world, &line, answer)
        });
    }
    assert_linear("one grant ends", |count| {
        let mut world = crossing_replica_waits(count, &own);
        let cost = looks_of(&mut world, "RELEASE k0 t", "1");
        cost + look_until_ended(&mut world).1
    });
    assert_linear("all grants end", |count| {
        let mut world = crossing_replica_waits(count, &keys);
        looks(&mut world, World::flush) + look_until_ended(&mut world).1
    });
    assert_linear("all are acknowledged", |count| {
        let mut world = crossing_replica_waits(count, &keys);
        acknowledge_up_to(&mut world, 1)
    });
    assert_linear("all connections are lost", |count| {
        let mut world = crossing_replica_waits(count, &keys);
        let line = format!("MACQUIRE {keys} t PX 900000 REPLICAS 1");
        looks(&mut world, |world| {
            (0..count).for_each(|_| world.hang_up(&line));
        })
    });
}

#[test]
fn waits_for_replicas_that_end_at_once_end_in_parts() {
    let (waits, keys) = (1_000, keys(100));
    for end in [
        "a flush",
        "the end of the leases",
        "a RELEASE",
        "the end of WITHIN",
    ] {
        let mut world = crossing_replica_waits(waits, &keys);
        let at_once = looks(&mut world, |world| match end {
            "a flush" => world.flush(),
            "the end of the leases" => world.now_ms += 900_001,
            "a RELEASE" => drop(world.say(&format!("MRELEASE {keys} t"))),
            _ => world.now_ms += 2_001,
        });
        let (most, _) = look_until_ended(&mut world);
        // A part may exceed the bound by its last wait and by the grants that it finds ended.
        let bound = MOST_LOOKS + 1_000;
        assert!(
            at_once <= bound && most <= bound,
            "{end}: {at_once}, then {most}"
        );
        assert_eq!(world.heard().len(), waits, "{end}");
    }
}

#[test]
fn nobody_is_acknowledged_before_those_who_are_lost() {
    let mut world = crossing_replica_waits(600, &keys(1));
    assert_eq!(
        world.say("ACQUIRE other t PX 900000 REPLICAS 1"),
        "held back"
    );
    world.say("RELEASE k0 t");
    let (mut lost, mut granted) = (0, 0);
    while granted == 0 {
        for reply in world.heard() {
            lost += usize::from(reply.ends_with(": NOREPLICAS"));
            granted += usize::from(reply.ends_with(": granted"));
        }
        world.acknowledge(1);
    }
    assert_eq!((lost, granted), (600, 1));
}

/// A server that is asked to look again at once does so.
#[test]
fn grants_that_are_still_in_doubt_ask_for_another_look() {
    let count = MOST_STEPS as usize + 10;
    let mut world = World::new();
    world.store.replicas = 1;
    for key in 0..count {
        world.say(&format!(
            "ACQUIRE k{key} a PX 900000 REPLICAS 1 WITHIN 900000"
        ));
    }
    let (keys, replica) = (world.store.keys.clone(), world.replica.clone());
    world.flush();
    (world.store.keys, world.replica) = (keys, replica);
    assert!(!world.table.replica_waits().has_more());
    world.acknowledge(1);
    assert!(world.heard().is_empty());
    assert!(world.table.replica_waits().has_more());
    world.acknowledge(1);
    assert!(!world.heard().is_empty());
}

#[test]
fn a_grant_forgets_the_waits_that_have_ended() {
    assert_constant("the end of a grant that had many waits", |count| {
        let mut world = crossing_replica_waits(1, &keys(1));
        looks(&mut world, |world| {
            for number in 0..count {
                let line = format!("EXTEND k0 t PX {} REPLICAS 1", 900_000 + number);
                assert_eq!(world.say(&line), "held back");
                world.hang_up(&line);
            }
        });
        world.table.replica_waits().check().expect("the invariants");
        looks_of(&mut world, "RELEASE k0 t", "1")
    });
}
