//! Locks for tokio: what the conformance suite can't say.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::aio::{Grant, Lock, Locks};
use redis_lock_client::{Error, Options};
use support::{proxied, Server};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

const SHORT: Duration = Duration::from_millis(300);

fn locks(server: &Server) -> Locks {
    Locks::new(server.client())
}

async fn acquire(lock: &Lock) -> Grant {
    lock.acquire(None)
        .await
        .expect("an answer")
        .expect("the lock")
}

/// Returns a lock, with a connection that is open.
async fn lock(locks: &Locks, key: &str) -> Lock {
    let lock = locks.lock(key).expect("a lock");
    acquire(&lock).await.release().await.expect("an answer");
    lock
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_at_any_moment_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = lock(&locks, "k").await;
    for round in 0..400 {
        let is_held = round % 2 == 0;
        if is_held {
            server.acquire_as_other();
        }
        let after = Duration::from_micros(round * 7);
        let _ = timeout(after, async { acquire(&lock).await.lost().await }).await;
        locks.settled().await;
        assert_eq!(server.waiters("k"), 0, "round {round}");
        if is_held {
            server.release_as_other();
        }
        assert!(server.is_free("k"), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_dropped_at_any_moment_goes_on() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = lock(&locks, "k").await;
    for round in 0..200 {
        let grant = acquire(&lock).await;
        let _ = timeout(Duration::from_micros(round * 3), grant.release()).await;
        locks.settled().await;
        assert!(server.is_free("k"), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_can_be_dropped_by_any_thread() {
    let server = Server::start();
    let lock = lock(&locks(&server), "k").await;
    let grant = acquire(&lock).await;
    thread::spawn(move || drop(grant)).join().expect("no panic");
    server.until_free("k");
}

/// Its connection is silent from then on, and the server doesn't hear of its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_session_is_released_over_another_connection() {
    let (server, is_cut) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let cuts = Arc::clone(&is_cut);
    let client = proxied(&server, move || {
        let (cuts, is_new) = (Arc::clone(&cuts), cuts.load(Ordering::SeqCst));
        move |_: &[u8]| is_new || !cuts.load(Ordering::SeqCst)
    });
    let (locks, options) = (Locks::new(client), Options::new().session());
    let grant = acquire(&locks.lock_with("k", options).expect("a lock")).await;
    is_cut.store(true, Ordering::SeqCst);
    drop(grant);
    server.until_free("k");
}

#[tokio::test]
async fn a_loss_is_awaited_and_a_release_is_none() {
    let server = Server::start();
    let locks = locks(&server);
    let options = Options::new().lease(SHORT).without_renewal();
    let grant = acquire(&locks.lock_with("k", options).expect("a lock")).await;
    let began = Instant::now();
    grant.lost().await;
    // A tenth of the lease is the margin.
    assert!(began.elapsed() < SHORT, "{:?}", began.elapsed());
    let grant = acquire(&locks.lock("j").expect("a lock")).await;
    locks.release_all().await.expect("an answer");
    assert!(timeout(SHORT, grant.lost()).await.is_err());
}

#[test]
fn a_locks_serves_one_runtime_after_the_other() {
    let server = Server::start();
    let locks = locks(&server);
    let options = Options::new().lease(SHORT);
    let lock = locks.lock_with("k", options).expect("a lock");
    for _ in 0..2 {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let grant = acquire(&lock).await;
            sleep(2 * SHORT).await;
            assert!(grant.release().await.expect("an answer"));
        });
    }
}

#[test]
fn a_call_outside_of_a_runtime_is_refused() {
    let server = Server::start();
    let lock = locks(&server).lock("k").expect("a lock");
    let tried = futures_util::FutureExt::now_or_never(lock.try_acquire());
    let argument = match tried {
        Some(Err(Error::InvalidArgument { argument, .. })) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(argument, "runtime");
}

/// Futures of all calls can move between threads.
#[test]
fn futures_are_send() {
    fn is_send<T: Send>(_: T) {}

    let client = redis::Client::open("redis://127.0.0.1:1/").expect("a client");
    let locks = Locks::new(client);
    let lock = locks.lock("k").expect("a lock");
    is_send(lock.acquire(None));
    is_send(lock.with(async |_| Ok::<_, Error>(())));
    is_send(async move { lock.acquire(None).await?.expect("the lock").release().await });
    is_send(locks.adopt("k", "token", 1, Options::new()));
    is_send(locks.once(
        "k",
        Options::new(),
        async || Ok(Some(1)),
        async || Ok::<_, Error>(1),
    ));
    is_send(locks.release_all());
    is_send(locks.settled());
}
