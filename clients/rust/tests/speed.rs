//! The processor time of a pair, against that of its raw commands by the redis crate.

mod support;

use std::fs;
use std::time::Duration;

use redis::{cmd, Cmd};
use redis_lock_client::{aio, Locks};
use support::Server;

const PAIRS: u32 = 4000;
const ROUNDS: usize = 5;

/// The most processor time that a pair takes, as a multiple of its raw commands.
const MOST: f64 = 2.0;

/// Returns the processor time that this process has used.
fn used() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("a statistic");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let times = fields.split(' ').skip(12).take(2);
    let ticks = times.map(|it| it.parse::<u64>().expect("a number"));
    // Linux counts a hundred ticks a second for programs.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

fn spent(act: impl FnOnce()) -> Duration {
    let before = used();
    act();
    used() - before
}

fn raw() -> impl Iterator<Item = Cmd> {
    let mut acquire = cmd("LOCK.ACQUIRE");
    acquire.arg("raw").arg("token").arg("PX").arg(30_000);
    let mut release = cmd("LOCK.RELEASE");
    release.arg("raw").arg("token");
    (0..PAIRS).flat_map(move |_| [acquire.clone(), release.clone()])
}

/// Compares the best of some rounds of the raw commands and of the pairs.
fn compare(mut raw: impl FnMut(), mut pairs: impl FnMut()) {
    raw();
    pairs();
    let rounds = [(); ROUNDS].map(|()| [spent(&mut raw), spent(&mut pairs)]);
    let [raw, pairs] = [0, 1].map(|index| {
        let best = rounds.iter().map(|it| it[index]).min();
        best.expect("a round").as_secs_f64() * 1e6 / f64::from(PAIRS)
    });
    println!("a pair takes {pairs:.1} us, its raw commands {raw:.1} us");
    assert!(pairs < MOST * raw);
}

#[test]
#[ignore = "a release build on a quiet machine; `clients/rust/speed` runs it"]
fn a_pair_of_threads_costs_little() {
    let server = Server::start();
    let mut connection = server.client().get_connection().expect("a connection");
    let lock = Locks::new(server.client()).lock("k").expect("a lock");
    let by_hand = || raw().for_each(|it| it.exec(&mut connection).expect("an answer"));
    compare(by_hand, || {
        for _ in 0..PAIRS {
            let grant = lock.acquire(None).expect("an answer").expect("the lock");
            assert!(grant.release().expect("an answer"));
        }
    });
}

#[test]
#[ignore = "a release build on a quiet machine; `clients/rust/speed` runs it"]
fn a_pair_of_tasks_costs_little() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = server.client();
    let connect = client.get_multiplexed_async_connection();
    let mut connection = runtime.block_on(connect).expect("a connection");
    let lock = aio::Locks::new(client).lock("k").expect("a lock");
    let mut by_hand = async || {
        for command in raw() {
            let reply = command.exec_async(&mut connection);
            reply.await.expect("an answer");
        }
    };
    let pairs = async || {
        for _ in 0..PAIRS {
            let grant = lock.acquire(None).await.expect("an answer");
            assert!(grant.expect("the lock").release().await.expect("an answer"));
        }
    };
    compare(|| runtime.block_on(by_hand()), || runtime.block_on(pairs()));
}
