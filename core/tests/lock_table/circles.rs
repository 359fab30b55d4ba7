//! Circles of sessions, found by the table, held against a search that tries everything.

use crate::world::{self, World};
use proptest::prelude::*;
use redis_lock_core::state::place::Stand;
use redis_lock_core::state::queue::{Position, Waiter, WaiterId};
use redis_lock_core::values::holder::Mode;
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::{Life, Repeat, Request};

const KEYS: [&str; 4] = ["w", "x", "y", "z"];

/// What a connection says.
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
            repeat: Repeat::Renews,
            life: Life::Lease,
        }
    }
}

fn said() -> impl Strategy<Value = Said> {
    let verb = proptest::sample::select(vec!["ACQUIRE", "WAIT", "WAIT", "RELEASE"]);
    let keys = prop_oneof![
        4 => proptest::sample::subsequence(KEYS.to_vec(), 1),
        1 => proptest::sample::subsequence(KEYS.to_vec(), 2),
    ];
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

/// Who waits, in the order of the queues: before everybody, at a position, behind everybody.
type Rank = (i8, Option<Position>);

fn waiters(world: &World) -> Vec<(Rank, Waiter)> {
    let mut waiters = Vec::new();
    for key in KEYS {
        for (position, waiter) in world.table.queues().queue(&world::name(key)) {
            let rank = (0, Some(position));
            if waiters.iter().all(|(other, _)| *other != rank) {
                waiters.push((rank, waiter.clone()));
            }
        }
    }
    waiters
}

/// Which of them wait for ever: all but those who would be granted if everybody else's grants ended.
fn stuck(world: &World, waiters: &[(Rank, Waiter)]) -> Vec<bool> {
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
    rank: Rank,
    waiter: &Waiter,
    waiters: &[(Rank, Waiter)],
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

/// The waiters as they would be if this line had begun to wait.
fn with_newcomer(world: &World, said: &Said) -> Vec<(Rank, Waiter)> {
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
        stand: Stand::Blocked { keep_ms: None },
        waiter_id: WaiterId(0),
        client_id: said.connection,
        names,
        request,
        since_ms: 0,
        timeout_ms: None,
    };
    all.push((rank, newcomer));
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_circle_is_found_and_nothing_else(lines in proptest::collection::vec(said(), 1..40)) {
        let mut world = World::new();
        for said in lines {
            let all = waiters(&world);
            // Conversions can close a circle unseen; then there is nothing to compare with.
            if stuck(&world, &all).contains(&true) {
                return Ok(());
            }
            // Who waits can say nothing.
            if all.iter().any(|(_, waiter)| waiter.client_id == said.connection) {
                continue;
            }
            let expected = with_newcomer(&world, &said);
            let closes = stuck(&world, &expected).last() == Some(&true);
            let answer = world.say_as(said.connection, &said.line());
            if answer == Refusal::Circle.text() {
                prop_assert!(closes, "{said:?} is refused: {expected:?}");
            } else if answer == "waits" {
                prop_assert!(!closes, "{said:?} waits: {expected:?}");
            }
        }
    }
}
