//! Deadlocks of sessions: the table's search compared with an exhaustive one.

use crate::world::{self, World};
use proptest::prelude::*;
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::waiter::{Waiter, WaiterId, WaiterKind};
use redis_lock_core::values::holder::Mode;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::{LeaseKind, Reentry, Request};

const KEYS: [&str; 4] = ["w", "x", "y", "z"];

/// Keys of two slots.
const SLOTS: [[&str; 2]; 2] = [["{a}w", "{a}x"], ["{b}y", "{b}z"]];

fn all_keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter().chain(SLOTS.into_iter().flatten())
}

/// A command of a connection.
#[derive(Clone, Debug)]
struct Said {
    connection: u64,
    verb: &'static str,
    keys: Vec<&'static str>,
    token: &'static str,
    mode: &'static str,
    session: &'static str,
}

impl Said {
    fn line(&self) -> String {
        let Self {
            verb,
            keys,
            token,
            mode,
            session,
            ..
        } = self;
        let keys = format!("{} {}", keys.len(), keys.join(" "));
        match *verb {
            "RELEASE" => format!("MRELEASE {keys} {token} ALL"),
            _ => format!("M{verb} {keys} {token} PX 1000000 {mode} {session}"),
        }
    }

    fn names(&self) -> Names {
        let names = self.keys.iter().map(|key| world::name(key)).collect();
        Names::set(names).expect("different keys")
    }

    fn request(&self) -> Request {
        let behind = |option: &str| {
            let mut words = self.mode.split(' ').skip_while(|word| *word != option);
            words.nth(1).and_then(|number| number.parse().ok())
        };
        Request {
            token: world::token(self.token),
            mode: if self.mode.is_empty() {
                Mode::Exclusive
            } else {
                Mode::Shared
            },
            limit: behind("LIMIT").unwrap_or(0),
            permits: behind("PERMITS").unwrap_or(1),
            lease_ms: 1,
            reentry: Reentry::Renews,
            lease_kind: LeaseKind::Lease,
            data: None,
        }
    }
}

fn keys() -> impl Strategy<Value = Vec<&'static str>> {
    prop_oneof![
        4 => proptest::sample::subsequence(KEYS.to_vec(), 1),
        1 => proptest::sample::subsequence(KEYS.to_vec(), 2),
    ]
}

fn keys_of_one_slot() -> impl Strategy<Value = Vec<&'static str>> {
    let slot = proptest::sample::select(SLOTS.to_vec());
    (slot, 0usize..5).prop_map(|(slot, how)| match how {
        0 => slot.to_vec(),
        _ => vec![slot[how % 2]],
    })
}

fn said(keys: impl Strategy<Value = Vec<&'static str>>) -> impl Strategy<Value = Said> {
    let verb = proptest::sample::select(vec!["ACQUIRE", "WAIT", "WAIT", "RELEASE"]);
    let token = proptest::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
    let mode = proptest::sample::select(vec![
        "",
        "",
        "SHARED",
        "SHARED LIMIT 1",
        "SHARED LIMIT 2",
        "SHARED LIMIT 3 PERMITS 2",
    ]);
    let session = proptest::sample::select(vec!["SESSION", "SESSION", ""]);
    (1_000u64..1_005, verb, keys, token, mode, session).prop_map(
        |(connection, verb, keys, token, mode, session)| Said {
            connection,
            verb,
            keys,
            token,
            mode,
            session,
        },
    )
}

/// The rank of a waiter in the queues: before all positions, at a position, or behind all
/// positions.
type JoinAt = (i8, Option<Position>);

fn waiters(world: &World) -> Vec<(JoinAt, Waiter)> {
    let mut waiters = Vec::new();
    for key in all_keys() {
        for (position, waiter) in world.table.queues().queue(&world::name(key)) {
            let rank = (0, Some(position));
            if waiters.iter().all(|(other, _)| *other != rank) {
                waiters.push((rank, waiter.clone()));
            }
        }
    }
    waiters
}

/// Returns true for each stuck waiter: it is not granted even if the grants of all connections that
/// are not stuck end.
fn stuck(world: &World, waiters: &[(JoinAt, Waiter)]) -> Vec<bool> {
    let mut stuck = vec![true; waiters.len()];
    loop {
        let before = stuck.clone();
        for at in 0..waiters.len() {
            let (rank, waiter) = &waiters[at];
            stuck[at] &= !waiter
                .names
                .iter()
                .all(|name| will_admit(world, name, *rank, waiter, waiters, &stuck));
        }
        if stuck == before {
            return stuck;
        }
    }
}

fn will_admit(
    world: &World,
    name: &Name,
    rank: JoinAt,
    waiter: &Waiter,
    waiters: &[(JoinAt, Waiter)],
    stuck: &[bool],
) -> bool {
    let key = std::str::from_utf8(name.key()).expect("text");
    let lock = world.lock(key);
    let request = &waiter.request;
    let mut stuck_waiters = waiters.iter().zip(stuck).filter(|(_, stuck)| **stuck);
    let stays = |client_id: u64| {
        let mut those = waiters.iter().zip(stuck).filter(|(_, stuck)| **stuck);
        those.any(|((_, waiter), _)| waiter.client_id == client_id)
    };
    let holders = lock.holders().iter().filter(|own| {
        let client_id = world.table.sessions().client_of(own.session);
        own.token != request.token && client_id.is_some_and(stays)
    });
    let (limits, permits): (Vec<u32>, Vec<u32>) =
        holders.map(|own| (own.limit, own.permits)).unzip();
    if lock.holder(&request.token).is_some() {
        let upgrade = lock.mode() == Mode::Shared && request.mode == Mode::Exclusive;
        return !upgrade || limits.is_empty();
    }
    let mut smallest = limits
        .iter()
        .chain([&request.limit])
        .filter(|limit| **limit > 0);
    let shared = lock.mode() == Mode::Shared && request.mode == Mode::Shared;
    let wanted = permits.iter().sum::<u32>() + request.permits;
    let admitted = limits.is_empty() || (shared && smallest.all(|most| wanted <= *most));
    admitted
        && !stuck_waiters.any(|((other, waiter), _)| *other < rank && waiter.names.contains(name))
}

/// Returns true if the deadlock of the last waiter is final: no token that is tied in it also waits for a
/// name at which no connection of the deadlock waits.
fn is_final(world: &World, waiters: &[(JoinAt, Waiter)], stuck: &[bool]) -> bool {
    let circle = circle(world, waiters, stuck);
    let of = |at: &usize| &waiters[*at].1;
    let names: Vec<&Name> = circle.iter().flat_map(|at| of(at).names.iter()).collect();
    let tied = names.iter().flat_map(|name| {
        let lock = world.lock(std::str::from_utf8(name.key()).expect("text"));
        let tied = lock.holders().iter().filter(|own| {
            let client_id = world.table.sessions().client_of(own.session);
            client_id.is_some_and(|id| circle.iter().any(|at| of(at).client_id == id))
        });
        tied.map(|own| own.token.clone()).collect::<Vec<_>>()
    });
    let tied: Vec<_> = tied.collect();
    let outside = (0..waiters.len()).filter(|at| !circle.contains(at));
    let mut of_tied = outside.filter(|at| tied.contains(&of(at).request.token));
    !of_tied.any(|at| of(&at).names.iter().any(|name| !names.contains(&name)))
}

/// Returns the stuck waiters that the last one waits for, directly or not, and the last one.
fn circle(world: &World, waiters: &[(JoinAt, Waiter)], stuck: &[bool]) -> Vec<usize> {
    let mut circle = vec![waiters.len() - 1];
    let mut next = 0;
    while let Some(at) = circle.get(next).copied() {
        next += 1;
        let (rank, waiter) = &waiters[at];
        for other in (0..waiters.len()).filter(|other| stuck[*other]) {
            let mut names = waiter.names.iter();
            let is_hindered = names.any(|name| {
                !will_admit(world, name, *rank, waiter, waiters, stuck)
                    && waits_for(
                        world,
                        name,
                        (*rank, waiter),
                        &waiters[other],
                        stuck,
                        waiters,
                    )
            });
            if is_hindered && !circle.contains(&other) {
                circle.push(other);
            }
        }
    }
    circle
}

/// Returns true if a waiter that is not admitted at a name waits there for another stuck one.
fn waits_for(
    world: &World,
    name: &Name,
    (rank, waiter): (JoinAt, &Waiter),
    (other_rank, other): &(JoinAt, Waiter),
    stuck: &[bool],
    waiters: &[(JoinAt, Waiter)],
) -> bool {
    let lock = world.lock(std::str::from_utf8(name.key()).expect("text"));
    let token = &waiter.request.token;
    let is_tied = lock.holders().iter().any(|own| {
        let client_id = world.table.sessions().client_of(own.session);
        own.token != *token && client_id == Some(other.client_id)
    });
    let first = (-2, None);
    let is_holder_in_the_way = || !will_admit(world, name, first, waiter, waiters, stuck);
    let is_before =
        lock.holder(token).is_none() && *other_rank < rank && other.names.contains(name);
    is_before || (is_tied && is_holder_in_the_way())
}

/// Returns the waiters as they would be if this command had begun to wait.
fn with_newcomer(world: &World, said: &Said) -> Vec<(JoinAt, Waiter)> {
    let (names, request) = (said.names(), said.request());
    let mut all = waiters(world);
    let older = all
        .iter()
        .position(|(_, waiter)| waiter.request.token == request.token && waiter.names == names);
    let older = older.map(|at| all.remove(at));
    let kept = older.filter(|(_, older)| request.takes_as_much_as(&older.request));
    let upgrades = names.iter().any(|name| {
        let lock = world.lock(std::str::from_utf8(name.key()).expect("text"));
        let holds = lock.holder(&request.token).is_some();
        holds && lock.mode() == Mode::Shared && request.mode == Mode::Exclusive
    });
    let rank = match kept {
        Some((rank, _)) => rank,
        None if upgrades => (-1, None),
        None => (1, None),
    };
    let newcomer = Waiter {
        kind: WaiterKind::Blocked { keep_ms: None },
        waiter_id: WaiterId(0),
        client_id: said.connection,
        names,
        request,
        since_ms: 0,
        timeout_ms: None,
        replicas: None,
    };
    all.push((rank, newcomer));
    all
}

/// Runs these commands, and asserts that each deadlock is found when it closes, and nothing else is
/// refused.
fn find_circles(mut world: World, lines: Vec<Said>) -> Result<(), TestCaseError> {
    for said in lines {
        let all = waiters(&world);
        // Conversions can close a deadlock unnoticed. Then there is nothing to compare with.
        if stuck(&world, &all).contains(&true) {
            return Ok(());
        }
        // A client that waits can't send a command.
        if all
            .iter()
            .any(|(_, waiter)| waiter.client_id == said.connection)
        {
            continue;
        }
        let expected = with_newcomer(&world, &said);
        let stuck = stuck(&world, &expected);
        let closes = stuck.last() == Some(&true) && is_final(&world, &expected, &stuck);
        let answer = world.say_as(said.connection, &said.line());
        if answer == Refusal::SessionDeadlock.text() {
            prop_assert!(closes, "{said:?} is refused: {expected:?}");
        } else if answer == "waits" {
            prop_assert!(!closes, "{said:?} waits: {expected:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]

    #[test]
    fn every_circle_is_found_and_nothing_else(lines in proptest::collection::vec(said(keys()), 1..40)) {
        find_circles(World::new(), lines)?;
    }

    #[test]
    fn every_circle_over_slots_is_found_and_nothing_else(
        lines in proptest::collection::vec(said(keys_of_one_slot()), 1..40),
    ) {
        find_circles(World::in_cluster(), lines)?;
    }
}

/// Sends lines like `1 ACQUIRE k a`, each on the connection with its number. Returns the last
/// answer.
fn say_all(lines: &[&str]) -> String {
    let mut world = World::in_cluster();
    let mut answer = String::new();
    for line in lines {
        let (connection, said) = line.split_once(' ').expect("a connection");
        answer = world.say_as(connection.parse().expect("a number"), said);
        // The lines before the last are granted or wait.
        assert!(answer == "granted" || answer == "waits" || Some(line) == lines.last());
    }
    answer
}

#[test]
fn a_circle_over_two_slots_is_found_whatever_its_modes() {
    let deadlock: [&[&str]; 6] = [
        &[
            "1 ACQUIRE {a}x a SESSION",
            "2 ACQUIRE {b}y b SESSION",
            "1 WAIT {b}y a SHARED",
            "2 WAIT {a}x b",
        ],
        &[
            "1 ACQUIRE {a}x a SHARED LIMIT 3 PERMITS 2 SESSION",
            "2 ACQUIRE {b}y b SHARED SESSION",
            "1 WAIT {b}y a SHARED LIMIT 1",
            "2 WAIT {a}x b SHARED LIMIT 3 PERMITS 2",
        ],
        // The first holder waits for a conversion, so its grant stays.
        &[
            "1 ACQUIRE {a}x a SHARED SESSION",
            "2 ACQUIRE {a}x b SHARED SESSION",
            "2 ACQUIRE {b}y b SESSION",
            "1 WAIT {a}x a",
            "3 ACQUIRE {b}z c SESSION",
            "2 WAIT {b}z b",
            "3 WAIT {a}x c",
        ],
        &[
            "1 ACQUIRE {a}x a SHARED SESSION",
            "2 ACQUIRE {a}x b SHARED SESSION",
            "1 ACQUIRE {b}y a SESSION",
            "1 WAIT {a}x a",
            "2 WAIT {b}y b",
        ],
        // More holders than fit into a list.
        &[
            "1 ACQUIRE {a}x a SESSION",
            "2 ACQUIRE {b}y b SHARED SESSION",
            "3 ACQUIRE {b}y c SHARED SESSION",
            "4 ACQUIRE {b}y d SHARED SESSION",
            "5 ACQUIRE {b}y e SHARED SESSION",
            "6 ACQUIRE {b}y f SHARED SESSION",
            "1 WAIT {b}y a SHARED LIMIT 5",
            "2 WAIT {a}x b",
            "3 WAIT {a}x c",
            "4 WAIT {a}x d",
            "5 WAIT {a}x e",
            "6 WAIT {a}x f",
        ],
        // Through a waiter that is before another one in a queue.
        &[
            "3 ACQUIRE {b}z c SESSION",
            "9 ACQUIRE {b}y h",
            "2 ACQUIRE {a}x b SESSION",
            "1 MWAIT 2 {b}y {b}z a",
            "2 WAIT {b}y b",
            "3 WAIT {a}x c",
        ],
    ];
    for circle in deadlock {
        assert_eq!(
            say_all(circle),
            Refusal::SessionDeadlock.text(),
            "{circle:?}"
        );
    }
}

/// A command in slot `{a}` can't know if the token `a` holds `{b}y`. If it does, it doesn't wait
/// behind `b`.
#[test]
fn a_lock_of_another_slot_that_is_not_known_refuses_nobody() {
    let mut world = World::in_cluster();
    for (client, line) in [
        (1, "ACQUIRE {a}x a SESSION"),
        (2, "ACQUIRE {b}y b SESSION"),
        (1, "WAIT {b}y a"),
    ] {
        world.say_as(client, line);
    }
    // A change at another name leaves the lock known.
    world.store.touched.insert(world::name("{b}z"));
    assert_eq!(
        world.say_as(2, "WAIT {a}x b"),
        Refusal::SessionDeadlock.text()
    );
    world.defer(&["{b}y"]);
    assert_eq!(world.say_as(2, "WAIT {a}x b"), "waits");
}
