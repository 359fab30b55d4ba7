//! Locks for tokio: what the conformance suite can't say.

mod support;

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use futures_util::FutureExt;
use redis::Value;
use redis_lock_client::aio::{Grant, Lock, Locks};
use redis_lock_client::{Error, Options};
use support::{proxied, until, Server};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

const SHORT: Duration = Duration::from_millis(300);

async fn acquire(lock: &Lock) -> Result<Grant> {
    Ok(lock.acquire(None).await?.expect("the lock"))
}

/// Returns a server, and locks with a lock there whose connection is open.
async fn stage() -> Result<(Server, Locks, Lock)> {
    let server = Server::start();
    let locks = Locks::new(server.client());
    let lock = locks.lock("k")?;
    acquire(&lock).await?.release().await?;
    Ok((server, locks, lock))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_at_any_moment_leaves_nothing_behind() -> Result<()> {
    let (server, locks, lock) = stage().await?;
    for round in 0..400 {
        let is_held = round % 2 == 0;
        if is_held {
            server.acquire_as_other();
        }
        let acquires = async { acquire(&lock).await.expect("an answer").lost().await };
        let _ = timeout(Duration::from_micros(round * 7), acquires).await;
        locks.settled().await;
        assert_eq!(server.waiters("k"), 0, "round {round}");
        if is_held {
            server.release_as_other();
        }
        assert!(server.is_free("k"), "round {round}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_dropped_at_any_moment_goes_on() -> Result<()> {
    let (server, locks, lock) = stage().await?;
    for round in 0..200 {
        let grant = acquire(&lock).await?;
        let _ = timeout(Duration::from_micros(round * 3), grant.release()).await;
        locks.settled().await;
        assert!(server.is_free("k"), "round {round}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_can_be_dropped_by_any_thread() -> Result<()> {
    let (server, _, lock) = stage().await?;
    let grant = acquire(&lock).await?;
    thread::spawn(move || drop(grant)).join().expect("no panic");
    server.until_free("k");
    Ok(())
}

/// Its connection is silent from then on, and the server doesn't hear of its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_session_is_released_over_another_connection() -> Result<()> {
    let (server, is_cut) = (Server::start(), Arc::new(AtomicBool::new(false)));
    let cuts = Arc::clone(&is_cut);
    let client = proxied(&server, move || {
        let (cuts, is_new) = (Arc::clone(&cuts), cuts.load(Ordering::SeqCst));
        move |_: &[u8]| is_new || !cuts.load(Ordering::SeqCst)
    });
    let (locks, options) = (Locks::new(client), Options::new().session());
    let grant = acquire(&locks.lock_with("k", options)?).await?;
    is_cut.store(true, Ordering::SeqCst);
    drop(grant);
    server.until_free("k");
    Ok(())
}

#[tokio::test]
async fn a_loss_is_awaited_and_a_release_is_none() -> Result<()> {
    let (_server, locks, lock) = stage().await?;
    let options = Options::new().lease(SHORT).without_renewal();
    let grant = acquire(&locks.lock_with("another", options)?).await?;
    let began = Instant::now();
    grant.lost().await;
    // A tenth of the lease is the margin.
    assert!(began.elapsed() < SHORT, "{:?}", began.elapsed());
    let grant = acquire(&lock).await?;
    locks.release_all().await?;
    assert!(timeout(SHORT, grant.lost()).await.is_err());
    Ok(())
}

/// The loss wakes the block, which may end before the loss is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_ends_its_block_is_told() -> Result<()> {
    let (server, locks, _) = stage().await?;
    let told = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&told);
    let options = Options::new().renew_every(SHORT / 30).on_lost(move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    let lock = locks.lock_with("k", options)?;
    for round in 1..=100 {
        let body = async |_: &Grant| -> Result<(), Error> {
            server.call::<Value>("DEL k");
            pending().await
        };
        assert!(matches!(lock.with(body).await, Err(Error::LockLost)));
        until("the loss is told", || told.load(Ordering::SeqCst) == round);
    }
    Ok(())
}

#[test]
fn a_locks_serves_one_runtime_after_the_other() -> Result<()> {
    let server = Server::start();
    let options = Options::new().lease(SHORT);
    let lock = Locks::new(server.client()).lock_with("k", options)?;
    for _ in 0..2 {
        let grants = async {
            let grant = acquire(&lock).await?;
            sleep(2 * SHORT).await;
            Ok::<_, anyhow::Error>(grant.release().await?)
        };
        assert!(Runtime::new()?.block_on(grants)?);
    }
    Ok(())
}

#[test]
fn a_call_outside_of_a_runtime_is_refused() -> Result<()> {
    let client = redis::Client::open("redis://127.0.0.1:1/")?;
    let tried = Locks::new(client).lock("k")?.try_acquire().now_or_never();
    let Some(Err(Error::InvalidArgument { argument, .. })) = tried else {
        panic!("{tried:?}");
    };
    assert_eq!(argument, "runtime");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_computes() -> Result<()> {
    let (server, locks, _) = stage().await?;
    let (result, tried) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let read = async || match result.load(Ordering::SeqCst) {
        0 => Ok::<_, Error>(None),
        computed => Ok(Some(computed)),
    };
    let compute = async || {
        // The first one fails, so another one computes.
        if tried.fetch_add(1, Ordering::SeqCst) == 0 {
            while server.waiters("k") == 0 {
                sleep(Duration::from_millis(5)).await;
            }
            return Err(Error::Cancelled);
        }
        result.store(7, Ordering::SeqCst);
        Ok(7)
    };
    let once = |_| locks.once("k", Options::new(), &read, &compute);
    let results = timeout(Duration::from_secs(20), join_all((0..10).map(once))).await?;
    let sevens = results.iter().filter(|it| matches!(it, Ok(7))).count();
    assert_eq!((sevens, tried.into_inner()), (9, 2), "{results:?}");
    assert!(server.is_free("k"));
    Ok(())
}

/// Futures of all calls can move between threads.
#[test]
fn futures_are_send() -> Result<()> {
    fn is_send<T: Send>(_: T) {}

    let locks = Locks::new(redis::Client::open("redis://127.0.0.1:1/")?);
    let lock = locks.lock("k")?;
    is_send(lock.acquire(None));
    is_send(lock.with(async |_| Ok::<_, Error>(())));
    is_send(async move { lock.acquire(None).await?.expect("the lock").release().await });
    is_send(locks.adopt("k", "token", 1, Options::new()));
    let (read, compute) = (async || Ok(Some(1)), async || Ok::<_, Error>(1));
    is_send(locks.once("k", Options::new(), read, compute));
    is_send(locks.release_all());
    is_send(locks.settled());
    Ok(())
}
