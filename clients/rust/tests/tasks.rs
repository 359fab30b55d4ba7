//! Locks of tasks over one connection.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_lock_client::aio::{Lock, Locks};
use redis_lock_client::{Config, Error, Options};
use support::{is_refused, late, until, Gate, Server, PATIENCE};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);

fn locks(server: &Server) -> Locks {
    Locks::new(server.client())
}

/// Starts a task that waits, and returns when it is in the queue.
fn waiter(server: &Server, lock: &Lock) -> JoinHandle<Result<i64, Error>> {
    let before = server.waiters("k");
    let lock = lock.clone();
    let waits = tokio::spawn(async move {
        let guard = lock.acquire().await?;
        let fence = guard.fence();
        guard.release().await?;
        Ok(fence)
    });
    server.until_waiters("k", before + 1);
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_the_background_can_be_waited_for() {
    let server = Server::start();
    let locks = locks(&server);
    for _ in 0..50 {
        drop(locks.acquire("k").await.expect("the lock"));
        locks.settled().await;
        assert!(server.is_free("k"));
    }
    let _guard = locks.acquire("k").await.expect("the lock");
    let waits = waiter(&server, &locks.handle("k").expect("a lock"));
    waits.abort();
    assert!(waits.await.is_err());
    locks.settled().await;
    assert_eq!(server.waiters("k"), 0);
    let other = locks.handle("k").expect("a lock");
    let wait = Duration::from_millis(200);
    let ends = async { while !is_refused(other.acquire_within(wait).await) {} };
    timeout(PATIENCE, ends).await.expect("the wait ends");
    assert_eq!(server.waiters("k"), 0);
}

#[tokio::test]
async fn a_wait_dropped_before_a_try_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    server.call("LOCK.ACQUIRE k other PX 600000");
    // A place that is left behind stays longer than the test takes.
    let options = Options::new().keep(2 * LEASE);
    let lock = locks.handle_with("k", options).expect("a lock");
    for round in 0..20 {
        let waits = async {
            while server.waiters("k") == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = lock.acquire() => panic!("another holder has the lock"),
            () = waits => {}
        }
        let tried = lock.try_acquire().await;
        assert!(tried.expect("an answer").is_none());
        locks.settled().await;
        assert_eq!(server.waiters("k"), 0, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_goes_on_after_an_acquire_that_is_dropped() {
    let server = Server::start();
    let gate = Gate::default();
    let config = Config::from(server.client()).connector(gate.connector());
    let lock = Locks::new(config).handle("k").expect("a lock");
    let guard = lock.acquire().await.expect("the lock");
    gate.close();
    server.kill_connections();
    let late = guard.release().await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    assert!(timeout(Duration::from_millis(100), lock.acquire())
        .await
        .is_err());
    gate.open();
    // The test waits half as long as the lease.
    server.until_free("k");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_as_it_is_granted_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    // A place that is left behind stays longer than the test takes.
    let options = Options::new().keep(2 * LEASE);
    let lock = locks.handle_with("k", options).expect("a lock");
    for round in 0..50 {
        server.call("LOCK.ACQUIRE k other PX 600000");
        let waits = waiter(&server, &lock);
        server.call("LOCK.RELEASE k other");
        waits.abort();
        // The waiter may have got the lock by then.
        let _ = waits.await;
        locks.settled().await;
        assert!(server.is_free("k"), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_dropped_at_any_moment_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    for step in 0..200 {
        let guard = locks.acquire("k").await.expect("the lock");
        // A place that is left behind stays longer than the test waits.
        let options = Options::new().keep(2 * LEASE);
        let lock = locks.handle_with("k", options).expect("a lock");
        let release = tokio::spawn(guard.release());
        let moment = Duration::from_micros(20 * step);
        drop(timeout(moment, lock.acquire()).await);
        release.await.expect("no panic").expect("an answer");
    }
    server.until_free("k");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_lock_is_told_once() {
    let server = Server::start();
    let locks = locks(&server);
    let told = Arc::new(AtomicUsize::new(0));
    let lease = Duration::from_secs(2);
    for options in [Options::new(), Options::new().without_renewal()] {
        let counts = Arc::clone(&told);
        let before = told.load(Ordering::SeqCst);
        let count = move || {
            counts.fetch_add(1, Ordering::SeqCst);
        };
        let options = options.lease(lease).on_lost(count);
        let lock = locks.handle_with("k", options).expect("a lock");
        let guard = lock.acquire().await.expect("the lock");
        assert!(timeout(Duration::ZERO, guard.lost()).await.is_err());
        server.delete("k");
        let next = locks.acquire("k").await.expect("the lock");
        timeout(LEASE / 2, guard.lost()).await.expect("the loss");
        assert!(guard.is_lost());
        assert!(!guard.extend(lease).await.expect("an answer"));
        assert!(!guard.release().await.expect("an answer"));
        until("the loss is told", || told.load(Ordering::SeqCst) > before);
        assert_eq!(told.load(Ordering::SeqCst), before + 1);
        assert!(
            !next.left().await.expect("an answer").is_zero(),
            "the next holder keeps its lease"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_reached_no_server_leaves_no_work_behind() {
    // Nothing listens there.
    let locks = Locks::new(redis::Client::open("redis://127.0.0.1:1/").expect("a client"));
    let options = Options::new().lease(Duration::from_secs(3600));
    let lock = locks.handle_with("k", options).expect("a lock");
    let start = Instant::now();
    let tried = lock.try_acquire().await;
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    let late = start.elapsed().checked_sub(Duration::from_secs(1));
    let late = late.expect("the command timeout is 1 s");
    assert!(late < Duration::from_secs(4), "{late:?} late");
    let settled = timeout(PATIENCE, locks.settled()).await;
    settled.expect("nothing is left to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reentrant_lock_counts_its_holds() {
    let server = Server::start();
    let lock = locks(&server)
        .handle_with(["{k}1", "{k}2"], Options::new().reentrant())
        .expect("a lock");
    let first = lock.acquire().await.expect("the lock");
    let second = lock
        .acquire_within(LEASE)
        .await
        .expect("an answer")
        .expect("the lock");
    assert_eq!(first.fence(), second.fence());
    assert!(first.release().await.expect("an answer"));
    assert!(!lock.left().await.expect("an answer").is_zero());
    assert!(second.extend(2 * LEASE).await.expect("an answer"));
    assert!(lock.left().await.expect("an answer") > LEASE);
    drop(second);
    server.until_free("{k}1");
    assert!(server.is_free("{k}2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_added_while_another_ends_is_real() {
    let server = Server::start();
    let lock = locks(&server).handle_with("k", Options::new().reentrant());
    let lock = lock.expect("a lock");
    for round in 0..200 {
        let first = lock.acquire().await.expect("the lock");
        let adds = lock.clone();
        let added = tokio::spawn(async move { adds.acquire().await });
        tokio::task::yield_now().await;
        assert!(first.release().await.expect("an answer"), "round {round}");
        let added = added.await.expect("no panic").expect("the lock");
        assert!(added.owned().await.expect("an answer"), "round {round}");
        assert!(added.release().await.expect("an answer"), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_added_has_the_lease_of_the_extension_before_it() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = locks.handle_with("k", Options::new().reentrant());
    let lock = lock.expect("a lock");
    let first = lock.acquire().await.expect("the lock");
    let left = first.left().await.expect("an answer");
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    let other = locks.handle("k").expect("a lock");
    assert!(other.left().await.expect("an answer").is_zero());
    assert!(first.extend(4 * LEASE).await.expect("an answer"));
    let second = lock.acquire().await.expect("the lock");
    let left = second.left().await.expect("an answer");
    assert!(left > 2 * LEASE, "{left:?}");
}

// In one thread, the acquire begins before the release.
#[tokio::test]
async fn a_hold_that_is_added_while_the_server_stands_still_outlives_a_release() {
    let server = Server::start();
    let locks = locks(&server);
    // Less and more than the command timeout.
    for (round, stall_ms) in [750, 1500].into_iter().enumerate() {
        let key = format!("k{round}");
        let lock = locks.handle_with(key.as_str(), Options::new().reentrant());
        let lock = lock.expect("a lock");
        let first = lock.acquire().await.expect("the lock");
        server.pause();
        let adds = lock.clone();
        let added = tokio::spawn(async move { adds.acquire().await });
        tokio::task::yield_now().await;
        let released = tokio::spawn(first.release());
        // The calls have to meet a server that stands still.
        sleep(Duration::from_millis(stall_ms)).await;
        server.resume();
        let added = added.await.expect("no panic").expect("the lock");
        match released.await.expect("no panic") {
            Ok(is_released) => assert!(is_released, "round {round}"),
            Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        locks.settled().await;
        assert!(added.owned().await.expect("an answer"), "round {round}");
        assert!(added.release().await.expect("an answer"), "round {round}");
        assert!(server.is_free(&key), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_that_end_together_lose_nothing() {
    let server = Server::start();
    let lost = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&lost);
    let options = Options::new().reentrant().on_lost(move || {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    let lock = locks(&server).handle_with("k", options).expect("a lock");
    for round in 0..300 {
        let mut releases = Vec::new();
        for _ in 0..4 {
            let guard = lock.acquire().await.expect("the lock");
            releases.push(async move { guard.release().await });
        }
        let releases: Vec<_> = releases.into_iter().map(tokio::spawn).collect();
        for release in releases {
            let released = release.await.expect("no panic");
            assert!(released.expect("an answer"), "round {round}");
        }
        assert!(server.is_free("k"), "round {round}");
    }
    assert_eq!(lost.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reentrant_lock_can_be_tried_right_after_a_hold_was_dropped() {
    let server = Server::start();
    let lock = locks(&server).handle_with("k", Options::new().reentrant());
    let lock = lock.expect("a lock");
    let _first = lock.acquire().await.expect("the lock");
    for _ in 0..50 {
        drop(lock.acquire().await.expect("the lock"));
        assert!(lock.try_acquire().await.expect("an answer").is_some());
    }
}

// In one thread, tasks begin in the order in which they were spawned.
#[tokio::test]
async fn five_hundred_tasks_are_served_in_their_order() {
    let server = Server::start();
    let locks = locks(&server);
    let first = locks.acquire("k").await.expect("the lock");
    let served = Arc::new(AtomicUsize::new(0));
    let wait = |number| {
        let lock = locks.handle("k").expect("a lock");
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), number);
            guard.release().await
        })
    };
    let waits: Vec<_> = (0..500).map(wait).collect();
    while server.waiters("k") < 500 {
        sleep(Duration::from_millis(5)).await;
    }
    let connections = server.connections().len();
    assert!(connections < 3, "{connections} connections");
    let began = Instant::now();
    assert!(first.release().await.expect("an answer"));
    for wait in waits {
        assert!(wait.await.expect("in order").expect("an answer"));
    }
    assert!(began.elapsed() < 2 * LEASE, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_is_refused_its_own_lock_until_it_is_lost() {
    let server = Server::start();
    let lock = locks(&server).handle("k").expect("a lock");
    let guard = lock.acquire().await.expect("the lock");
    assert!(lock.try_acquire().await.expect("an answer").is_none());
    server.delete("k");
    assert!(!guard.extend(LEASE).await.expect("an answer"));
    let next = lock.try_acquire().await.expect("an answer");
    let next = next.expect("the lock");
    server.delete("k");
    assert!(!next.release().await.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_a_connection_of_its_own() {
    let server = Server::start();
    let locks = locks(&server);
    let session = Options::new().session();
    let lock = locks.handle_with("k", session).expect("a lock");
    let other = locks.acquire("other").await.expect("the lock");
    let guard = lock.acquire().await.expect("the lock");
    let waits = waiter(&server, &locks.handle("k").expect("a lock"));
    assert!(other.release().await.expect("an answer"));
    server.kill_connections();
    waits.await.expect("no panic").expect("the lock");
    assert!(!guard.release().await.expect("an answer"));
    drop(lock.acquire().await.expect("the lock"));
    locks.settled().await;
    assert!(server.is_free("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_a_server_that_stands_still() {
    let server = Server::start();
    let locks = locks(&server);
    let session = locks.handle_with("k", Options::new().session());
    let guard = session.expect("a lock").acquire().await.expect("the lock");
    server.pause();
    let late = guard.extend(LEASE).await;
    server.resume();
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    assert!(guard.extend(LEASE).await.expect("an answer"));
    assert!(guard.owned().await.expect("an answer"));
    // One connection of the session, and one for all other commands.
    until("the earlier connection is closed", || {
        server.connections().len() == 2
    });
    assert!(guard.owned().await.expect("an answer"));
    assert!(guard.release().await.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_at_a_server_that_stands_still_ends_in_time() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = locks.handle("k").expect("a lock");
    assert!(lock
        .acquire()
        .await
        .expect("the lock")
        .release()
        .await
        .expect("an answer"));
    server.pause();
    let start = Instant::now();
    let limit = Duration::from_millis(500);
    let none = lock.acquire_within(limit).await;
    let late = start.elapsed().saturating_sub(limit);
    assert!(late < Duration::from_secs(5), "{late:?} late");
    let Err(Error::Unavailable { text, .. }) = none else {
        panic!("{none:?}");
    };
    assert!(text.starts_with("no answer from the server"), "{text}");
    server.resume();
    server.until_free("k");
}

// In one thread, the first call begins before the second one.
#[tokio::test]
async fn a_wait_behind_another_call_of_its_handle_is_told_of_the_outage() {
    let server = Server::start();
    let locks = locks(&server);
    for is_held in [false, true] {
        let lock = locks.handle("k").expect("a lock");
        let guard = lock.acquire().await.expect("the lock");
        let first = lock.clone();
        let first = match is_held {
            true => {
                server.pause();
                tokio::spawn(async move { guard.release().await.map(drop) })
            }
            false => {
                assert!(guard.release().await.expect("an answer"));
                server.pause();
                tokio::spawn(async move { first.acquire().await.map(drop) })
            }
        };
        tokio::task::yield_now().await;
        let late = lock.acquire_within(Duration::from_millis(300)).await;
        server.resume();
        assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
        drop(first.await.expect("no panic"));
        locks.settled().await;
        assert!(server.is_free("k"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_ends_in_time_though_every_reply_takes_longer_than_the_lease() {
    let server = Server::start();
    let connector = late(Duration::from_millis(100));
    let locks = Locks::new(Config::from(server.client()).connector(connector));
    let options = Options::new().lease(Duration::from_millis(50));
    let lock = locks.handle_with("k", options).expect("a lock");
    let acquires = lock.acquire_within(Duration::from_secs(1));
    let ended = timeout(PATIENCE, acquires).await.expect("an end");
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_at_any_moment_leaves_the_next_grant_alone() {
    let server = Server::start();
    let locks = locks(&server);
    for options in [Options::new(), Options::new().token("chosen")] {
        let lock = locks.handle_with("k", options).expect("a lock");
        for step in 0..400 {
            drop(timeout(Duration::ZERO, lock.acquire()).await);
            // The reply to a command of the cleanup comes within this time.
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(step) {
                std::hint::spin_loop();
            }
            let guard = lock.acquire().await.expect("the lock");
            assert!(guard.owned().await.expect("an answer"), "step {step}");
            assert!(guard.release().await.expect("an answer"), "step {step}");
        }
    }
}
