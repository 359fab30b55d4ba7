//! Locks of tasks over one connection.

mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_lock_client::aio::{Lock, Locks};
use redis_lock_client::{Error, Options};
use support::Server;
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
async fn what_is_held_is_refused_to_others_until_it_is_released() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().await.expect("the lock");
    let other = locks.lock("k");
    assert!(other.try_acquire().await.expect("an answer").is_none());
    assert!(other.left().await.expect("an answer").is_zero());
    let left = guard.left().await.expect("an answer");
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    let fence = guard.fence();
    assert!(guard.release().await.expect("an answer"));
    assert!(server.is_free("k"));
    let next = other
        .try_acquire()
        .await
        .expect("an answer")
        .expect("the lock");
    assert!(next.fence() > fence);
    drop(next);
    server.until_free("k");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_is_told_of_its_turn() {
    let server = Server::start();
    let url = server.client();
    let manager = url.get_connection_manager().await.expect("a connection");
    let shared = url
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let kinds = [
        locks(&server),
        Locks::on_manager(server.client(), manager),
        Locks::on_multiplexed(server.client(), shared),
    ];
    for locks in kinds {
        let guard = locks.lock("k").acquire().await.expect("the lock");
        let waits = waiter(&server, &locks.lock("k"));
        let released = Instant::now();
        assert!(guard.release().await.expect("an answer"));
        waits.await.expect("no panic").expect("the lock");
        // Without the message, the waiter would ask again after a third of its KEEP.
        assert!(released.elapsed() < LEASE / 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_leaves_nobody_in_the_queue() {
    let server = Server::start();
    let locks = locks(&server);
    let _guard = locks.lock("k").acquire().await.expect("the lock");
    let wait = Duration::from_millis(200);
    let start = Instant::now();
    let none = locks.lock("k").acquire_within(wait).await;
    assert!(none.expect("an answer").is_none());
    assert!(start.elapsed() >= wait, "{:?}", start.elapsed());
    assert!(start.elapsed() < LEASE / 6, "{:?}", start.elapsed());
    assert_eq!(server.waiters("k"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_at_a_slow_server_keeps_the_connection() {
    let server = Server::start();
    let locks = locks(&server);
    let _guard = locks.lock("k").acquire().await.expect("the lock");
    let lock = locks.lock("k");
    let waits = tokio::spawn(async move { lock.acquire_within(LEASE / 10).await });
    server.until_waiters("k", 1);
    let before = server.connections();
    // The pause is longer than the time limit of the first command that gives up the place, so the
    // second command is sent too.
    server.call("CLIENT PAUSE 3500 WRITE");
    assert!(waits.await.expect("no panic").expect("an answer").is_none());
    locks.settled().await;
    assert_eq!(server.connections(), before);
    server.until_waiters("k", 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().await.expect("the lock");
    let lock = locks.lock("k");
    let waits = waiter(&server, &lock);
    waits.abort();
    server.until_waiters("k", 0);
    assert!(guard.release().await.expect("an answer"));
    assert!(server.is_free("k"));
    // The same token can wait again.
    let _guard = lock.acquire().await.expect("the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_the_background_can_be_waited_for() {
    let server = Server::start();
    let locks = locks(&server);
    for _ in 0..50 {
        drop(locks.lock("k").acquire().await.expect("the lock"));
        locks.settled().await;
        assert!(server.is_free("k"));
    }
    let _guard = locks.lock("k").acquire().await.expect("the lock");
    let waits = waiter(&server, &locks.lock("k"));
    waits.abort();
    assert!(waits.await.is_err());
    locks.settled().await;
    assert_eq!(server.waiters("k"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_dropped_as_it_is_granted_leaves_nothing_behind() {
    let server = Server::start();
    let locks = locks(&server);
    // A place that is left behind stays longer than the test takes.
    let options = Options::new().keep(2 * LEASE);
    let lock = locks.lock_with("k", options).expect("a lock");
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
        let guard = locks.lock("k").acquire().await.expect("the lock");
        // A place that is left behind stays longer than the test waits.
        let options = Options::new().keep(2 * LEASE);
        let lock = locks.lock_with("k", options).expect("a lock");
        let release = tokio::spawn(guard.release());
        let moment = Duration::from_micros(20 * step);
        drop(timeout(moment, lock.acquire()).await);
        release.await.expect("no panic").expect("an answer");
    }
    server.until_free("k");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_its_connection_and_its_server() {
    let mut server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().await.expect("the lock");
    let waits = waiter(&server, &locks.lock("k"));
    server.kill_connections();
    server.until_waiters("k", 1);
    server.process.kill();
    assert!(!waits.is_finished());
    server.process.restart().expect("a server");
    assert!(waits.await.expect("no panic").is_ok());
    // Without persistence, the restart has lost the lock.
    assert!(!guard.release().await.expect("an answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_it_is_held() {
    let server = Server::start();
    let locks = locks(&server);
    let lease = Duration::from_secs(3);
    let lock = locks
        .lock_with("k", Options::new().lease(lease))
        .expect("a lock");
    let guard = lock.acquire().await.expect("the lock");
    let other = locks.lock("k");
    let start = Instant::now();
    while start.elapsed() < 2 * lease {
        assert!(other.try_acquire().await.expect("an answer").is_none());
        server.kill_connections();
        // Leaves time for at least one renewal.
        sleep(lease / 6).await;
    }
    assert!(!guard.is_lost());
    assert!(guard.release().await.expect("an answer"));
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
            // However long the callback takes, `lost` returns after it.
            std::thread::sleep(Duration::from_millis(50));
            counts.fetch_add(1, Ordering::SeqCst);
        };
        let options = options.lease(lease).on_lost(count);
        let lock = locks.lock_with("k", options).expect("a lock");
        let guard = lock.acquire().await.expect("the lock");
        assert!(timeout(Duration::ZERO, guard.lost()).await.is_err());
        server.delete("k");
        let next = locks.lock("k").acquire().await.expect("the lock");
        timeout(LEASE / 2, guard.lost()).await.expect("the loss");
        assert!(guard.is_lost());
        assert!(!guard.extend(lease).await.expect("an answer"));
        assert!(!guard.release().await.expect("an answer"));
        assert_eq!(told.load(Ordering::SeqCst), before + 1);
        assert!(
            !next.left().await.expect("an answer").is_zero(),
            "the next holder keeps its lease"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_at_a_server_that_is_gone_fails_after_a_second() {
    let server = Server::start();
    let lock = locks(&server).lock("k");
    let guard = lock.try_acquire().await.expect("an answer");
    assert!(guard.expect("the lock").release().await.expect("an answer"));
    server.process.kill();
    let start = Instant::now();
    assert!(matches!(lock.try_acquire().await, Err(Error::Redis(_))));
    assert!(
        start.elapsed() >= Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_lock_counts_its_holds() {
    let server = Server::start();
    let lock = locks(&server).lock(["{k}1", "{k}2"]);
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
async fn a_session_is_refused_where_the_connection_is_shared() {
    let server = Server::start();
    let session = locks(&server).lock_with("k", Options::new().session());
    assert!(matches!(session, Err(Error::Unsupported)));
}

/// Returns locks of the user that docs/operate/security.md has for a service, whose tasks share one
/// connection.
fn service(server: &Server) -> Locks {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/security.md");
    let document = fs::read_to_string(document).expect("the document");
    let lines = document.lines();
    let mut recipes = lines.filter_map(|line| line.strip_prefix("> ACL SETUSER service "));
    let rights = recipes.next().expect("a recipe");
    server.call(&format!("ACL SETUSER service {rights}"));
    let url = server.url().replace("redis://", "redis://service:secret@");
    Locks::new(redis_lock_client::redis::Client::open(url).expect("a client"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_its_recipe_tries_waits_and_is_told_of_its_turn() {
    let server = Server::start();
    let locks = service(&server);
    let tried = locks.lock("orders:42").try_acquire().await;
    let guard = tried.expect("an answer").expect("the lock");
    // Without a message, the waiter would ask again after 200 s.
    let slow = Options::new().lease(20 * LEASE).keep(20 * LEASE);
    let next = locks.lock_with("orders:42", slow).expect("a lock");
    let waits = tokio::spawn(async move { next.acquire().await?.release().await });
    server.until_waiters("orders:42", 1);
    assert!(guard.extend(LEASE).await.expect("an answer"));
    assert!(guard.release().await.expect("an answer"));
    let waited = timeout(Duration::from_secs(15), waits).await;
    assert!(waited
        .expect("the waiter is notified")
        .expect("a task")
        .expect("an answer"));
}
