//! Locks for tokio: what the conformance suite can't say.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::aio::{Grant, Lock, Locks};
use redis_lock_client::{Config, Error, Options};
use support::Server;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);

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
            server.call("LOCK.ACQUIRE k other PX 60000");
        }
        let after = Duration::from_micros(round * 7);
        let _ = timeout(after, async { acquire(&lock).await.lost().await }).await;
        locks.settled().await;
        assert_eq!(server.waiters("k"), 0, "round {round}");
        if is_held {
            server.call("LOCK.RELEASE k other");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_block_ends_with_the_loss() {
    let server = Server::start();
    let locks = locks(&server);
    let options = Options::new().lease(SHORT);
    let lock = locks.lock_with("k", options).expect("a lock");
    let was_dropped = Arc::new(AtomicBool::new(false));
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Dropped(Arc::clone(&was_dropped));
    let ended = lock.with(async move |_| {
        let _dropped = dropped;
        server.delete("k");
        sleep(LONG).await;
        Ok::<_, Error>(())
    });
    let began = Instant::now();
    assert!(matches!(ended.await, Err(Error::LockLost)));
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert!(was_dropped.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_guarded_block_has_its_own_error() {
    let server = Server::start();
    let lock = lock(&locks(&server), "k").await;
    let fails = lock.with(async |_| Err::<(), _>(Error::Deadlock("of the body".into())));
    assert!(matches!(fails.await, Err(Error::Deadlock(_))));
    assert!(server.is_free("k"));
    let lost = lock.with(async |_| {
        server.delete("k");
        Ok::<_, Error>(())
    });
    assert!(matches!(lost.await, Err(Error::LockLost)));
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

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_tasks_take_turns() {
    let server = Server::start();
    let lock = Arc::new(lock(&locks(&server), "k").await);
    let (inside, fences) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let tasks = (0..300).map(|_| {
        let (lock, inside, fences) = (lock.clone(), inside.clone(), fences.clone());
        tokio::spawn(async move {
            let grant = acquire(&lock).await;
            assert!(!inside.swap(true, Ordering::SeqCst));
            tokio::task::yield_now().await;
            let fence = usize::try_from(grant.fence()).expect("a fence");
            assert!(fences.swap(fence, Ordering::SeqCst) < fence);
            inside.store(false, Ordering::SeqCst);
            assert!(grant.release().await.expect("an answer"));
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    assert!(
        server.connections().len() < 10,
        "{:?}",
        server.connections()
    );
}

#[tokio::test]
async fn a_wait_at_a_server_that_stands_still_ends_in_time() {
    let server = Server::start();
    let config = Config::from(server.client()).command_timeout(SHORT);
    let lock = lock(&Locks::new(config.expect("a timeout")), "k").await;
    server.pause();
    let began = Instant::now();
    let tried = lock.try_acquire().await;
    let took = began.elapsed();
    server.resume();
    assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
    assert!(took < SHORT + Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn one_caller_computes() {
    let server = Server::start();
    let (locks, computed) = (Arc::new(locks(&server)), Arc::new(AtomicUsize::new(0)));
    let callers = (0..10).map(|_| {
        let (locks, computed) = (locks.clone(), computed.clone());
        async move {
            let read = async || {
                let count = computed.load(Ordering::SeqCst);
                Ok::<_, Error>((count > 0).then_some(count))
            };
            let compute = async || Ok(computed.fetch_add(1, Ordering::SeqCst) + 1);
            locks.once("k", Options::new(), read, compute).await
        }
    });
    for result in futures_util::future::join_all(callers).await {
        assert_eq!(result.expect("a result"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_passed_on() {
    let server = Server::start();
    let (ours, theirs) = (locks(&server), locks(&server));
    let grant = acquire(&ours.lock("k").expect("a lock")).await;
    let (keys, token, fence) = (grant.keys().clone(), grant.token().to_vec(), grant.fence());
    grant.detach().expect("it is held");
    let adopted = theirs.adopt(keys, token, fence, Options::new()).await;
    let adopted = adopted.expect("an answer").expect("the lock");
    assert!(adopted.extend(LONG).await.expect("an answer"));
    assert!(adopted.release().await.expect("an answer"));
    assert!(server.is_free("k"));
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
    is_send(locks.release_all());
    is_send(locks.settled());
}
