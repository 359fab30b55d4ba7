//! Locks of threads.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, Lock, Locks, Options};
use support::{until, Server};

const LEASE: Duration = Duration::from_secs(30);

fn locks(server: &Server) -> Locks {
    Locks::new(server.client())
}

/// Starts a thread that waits, and returns when it is in the queue.
fn waiter<'a>(
    scope: &'a thread::Scope<'a, '_>,
    server: &Server,
    lock: &Lock,
) -> thread::ScopedJoinHandle<'a, Result<i64, Error>> {
    let before = server.waiters("k");
    let lock = lock.clone();
    let waits = scope.spawn(move || {
        let guard = lock.acquire()?;
        let fence = guard.fence();
        guard.release()?;
        Ok(fence)
    });
    server.until_waiters("k", before + 1);
    waits
}

#[test]
fn what_is_held_is_refused_to_others_until_it_is_dropped() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().expect("the lock");
    let other = locks.lock("k");
    assert!(other.try_acquire().expect("an answer").is_none());
    assert!(other.left().expect("an answer").is_zero());
    let left = guard.left().expect("an answer");
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    let fence = guard.fence();
    drop(guard);
    assert!(server.is_free("k"));
    let next = other.try_acquire().expect("an answer").expect("the lock");
    assert!(next.fence() > fence);
    assert!(next.release().expect("an answer"));
    assert!(server.is_free("k"));
}

#[test]
fn a_wait_is_handed_the_lock_as_it_is_released() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().expect("the lock");
    thread::scope(|scope| {
        let waits = waiter(scope, &server, &locks.lock("k"));
        let fence = guard.fence();
        let released = Instant::now();
        drop(guard);
        assert!(waits.join().expect("no panic").expect("the lock") > fence);
        assert!(released.elapsed() < LEASE / 6);
    });
}

#[test]
fn a_lease_counts_from_the_grant_however_long_the_wait_was() {
    let server = Server::start();
    let locks = locks(&server);
    let lease = Duration::from_secs(3);
    let lock = locks.lock_with("k", Options::new().lease(lease).without_renewal());
    let guard = locks.lock("k").acquire().expect("the lock");
    thread::scope(|scope| {
        let began = Instant::now();
        let waits = scope.spawn(|| {
            lock.acquire()
                .map(|guard| (guard.is_lost(), guard.release()))
        });
        server.until_waiters("k", 1);
        until("the wait is longer than the lease", || {
            began.elapsed() > lease
        });
        drop(guard);
        let (lost, released) = waits.join().expect("no panic").expect("the lock");
        assert!(!lost);
        assert!(released.expect("an answer"));
    });
}

#[test]
fn a_wait_that_ends_leaves_nobody_in_the_queue() {
    let server = Server::start();
    let locks = locks(&server);
    let _guard = locks.lock("k").acquire().expect("the lock");
    let wait = Duration::from_millis(200);
    let start = Instant::now();
    assert!(locks
        .lock("k")
        .acquire_within(wait)
        .expect("an answer")
        .is_none());
    assert!(start.elapsed() >= wait, "{:?}", start.elapsed());
    assert!(start.elapsed() < LEASE / 6, "{:?}", start.elapsed());
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn a_wait_is_cancelled_by_another_thread() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().expect("the lock");
    let lock = locks.lock("k");
    assert!(!lock.cancel(), "no thread waits");
    thread::scope(|scope| {
        let waits = waiter(scope, &server, &lock);
        let began = Instant::now();
        assert!(lock.cancel());
        assert!(matches!(
            waits.join().expect("no panic"),
            Err(Error::Cancelled)
        ));
        assert!(began.elapsed() < Duration::from_secs(5));
    });
    assert_eq!(server.waiters("k"), 0);
    drop(guard);
    assert!(server.is_free("k"));
}

#[test]
fn a_wait_outlives_its_connection_and_its_server() {
    let mut server = Server::start();
    let locks = locks(&server);
    let guard = locks.lock("k").acquire().expect("the lock");
    thread::scope(|scope| {
        let waits = waiter(scope, &server, &locks.lock("k"));
        server.kill_connections();
        server.until_waiters("k", 1);
        server.process.kill();
        assert!(!waits.is_finished());
        server.process.restart().expect("a server");
        assert!(waits.join().expect("no panic").is_ok());
    });
    // Without persistence, the restart has lost the lock.
    assert!(!guard.release().expect("an answer"));
}

#[test]
fn a_lease_is_renewed_while_it_is_held() {
    let server = Server::start();
    let locks = locks(&server);
    let lease = Duration::from_secs(3);
    let guard = locks
        .lock_with("k", Options::new().lease(lease))
        .acquire()
        .expect("the lock");
    let start = Instant::now();
    let other = locks.lock("k");
    until("two leases have passed", || {
        assert!(other.try_acquire().expect("an answer").is_none());
        server.kill_connections();
        // Leaves time for at least one renewal.
        thread::sleep(lease / 6);
        start.elapsed() > 2 * lease
    });
    assert!(!guard.is_lost());
    assert!(guard.release().expect("an answer"));
}

#[test]
fn a_lock_that_is_released_after_a_while_is_held_until_then_without_its_connection() {
    let server = Server::start();
    let locks = locks(&server);
    let rest = Duration::from_secs(60);
    for options in [Options::new(), Options::new().session()] {
        let lock = locks.lock_with("k", options);
        let guard = lock.acquire().expect("the lock");
        let fence = guard.fence();
        assert!(guard.release_after(rest).expect("an answer"));
        server.kill_connections();
        let left = lock.left().expect("an answer");
        assert!(left > rest / 2 && left <= rest, "{left:?}");
        let other = locks.lock("k").try_acquire().expect("an answer");
        assert!(other.is_none());
        // The owner can acquire the lock again.
        let guard = lock.try_acquire().expect("an answer").expect("the lock");
        assert_eq!(guard.fence(), fence);
        server.delete("k");
        assert!(!guard.release_after(rest).expect("an answer"));
    }
}

#[test]
fn a_lease_is_renewed_as_often_as_asked() {
    let server = Server::start();
    let options = Options::new().lease(Duration::from_secs(3600));
    let options = options.renew_every(Duration::from_millis(100));
    let guard = locks(&server).lock_with("k", options).acquire();
    let guard = guard.expect("the lock");
    server.delete("k");
    until("the loss is known", || guard.is_lost());
}

#[test]
fn the_loss_of_a_lock_is_told_once() {
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
        let guard = locks.lock_with("k", options).acquire().expect("the lock");
        assert!(!guard.is_lost());
        server.delete("k");
        let next = locks.lock("k").acquire().expect("the lock");
        until("the loss is known", || told.load(Ordering::SeqCst) > before);
        assert!(guard.is_lost());
        assert!(!guard.extend(lease).expect("an answer"));
        assert!(!guard.release().expect("an answer"));
        assert_eq!(told.load(Ordering::SeqCst), before + 1);
        assert!(!next.left().expect("an answer").is_zero(), "the next grant");
    }
}

#[test]
fn a_callback_that_panics_leaves_the_other_locks_renewed() {
    let server = Server::start();
    let locks = locks(&server);
    let (short, lease) = (Duration::from_millis(300), Duration::from_secs(3));
    let panics = Options::new()
        .lease(short)
        .on_lost(|| panic!("of the callback"));
    let lost = locks.lock_with("lost", panics).acquire().expect("the lock");
    let renewed = locks
        .lock_with("k", Options::new().lease(lease))
        .acquire()
        .expect("the lock");
    server.delete("lost");
    let start = Instant::now();
    until("two leases have passed", || start.elapsed() > 2 * lease);
    assert!(lost.is_lost());
    assert!(!renewed.is_lost());
    assert!(renewed.release().expect("an answer"));
}

#[test]
fn a_try_at_a_server_that_is_gone_fails_after_a_second() {
    let server = Server::start();
    let lock = locks(&server).lock("k");
    assert!(lock.try_acquire().expect("an answer").is_some());
    server.process.kill();
    let start = Instant::now();
    assert!(matches!(lock.try_acquire(), Err(Error::Redis(_))));
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

#[test]
fn the_same_lock_counts_its_holds() {
    let server = Server::start();
    let lock = locks(&server).lock("k");
    let first = lock.acquire().expect("the lock");
    let second = lock
        .acquire_within(LEASE)
        .expect("an answer")
        .expect("the lock");
    assert_eq!(first.fence(), second.fence());
    assert!(first.release().expect("an answer"));
    assert!(!lock.left().expect("an answer").is_zero());
    drop(second);
    assert!(server.is_free("k"));
}

#[test]
fn shared_locks_semaphores_and_several_keys() {
    let server = Server::start();
    let locks = locks(&server);
    let shared = |options: Options| {
        locks
            .lock_with("k", options)
            .try_acquire()
            .expect("an answer")
    };
    let readers = [
        shared(Options::new().shared()),
        shared(Options::new().shared()),
    ];
    assert!(readers.iter().all(Option::is_some));
    assert!(shared(Options::new()).is_none());
    drop(readers);
    let most = shared(Options::new().semaphore(3, 2)).expect("two permits");
    let last = shared(Options::new().semaphore(3, 1)).expect("the third");
    assert!(shared(Options::new().semaphore(3, 1)).is_none());
    drop((most, last));
    let both = locks.lock(["{k}1", "{k}2"]).acquire().expect("both");
    assert!(locks
        .lock("{k}2")
        .try_acquire()
        .expect("an answer")
        .is_none());
    assert!(both.extend(2 * LEASE).expect("an answer"));
    assert!(both.left().expect("an answer") > LEASE);
    assert!(both.release().expect("an answer"));
    assert!(server.is_free("{k}1") && server.is_free("{k}2"));
}

#[test]
fn a_session_ends_with_its_connection() {
    let server = Server::start();
    let locks = locks(&server);
    let told = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&told);
    let lease = Duration::from_secs(3);
    let options = Options::new().session().lease(lease);
    let options = options.on_lost(move || {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    let session = locks.lock_with("k", options);
    let at_once = locks.lock_with("long", Options::new().session());
    let _at_once = at_once.acquire().expect("the lock");
    server.kill_connections();
    server.until_free("long");
    let guard = session.acquire().expect("the lock");
    let again = session.acquire().expect("the lock");
    let start = Instant::now();
    until("two leases have passed", || {
        assert!(!server.is_free("k"));
        start.elapsed() > 2 * lease
    });
    drop(again);
    assert!(!guard.is_lost());
    server.kill_connections();
    server.until_free("k");
    until("the loss is known", || told.load(Ordering::SeqCst) == 1);
    assert!(!guard.release().expect("an answer"));
}

#[test]
fn sessions_that_are_over_leave_no_connections() {
    let server = Server::start();
    let locks = locks(&server);
    let sessions: [Lock; 8] =
        std::array::from_fn(|_| locks.lock_with("k", Options::new().session()));
    for session in &sessions {
        let guard = session.acquire().expect("the lock");
        assert!(guard.release().expect("an answer"));
    }
    until("one connection is left", || server.connections().len() == 1);
}

#[test]
fn a_waiting_upgrade_that_cannot_end_is_a_deadlock() {
    let server = Server::start();
    let locks = locks(&server);
    let reader = |token: &str| locks.lock_with("k", Options::new().shared().token(token));
    let _first = reader("a").acquire().expect("the lock");
    let _second = reader("b").acquire().expect("the lock");
    let writer = |token: &str| locks.lock_with("k", Options::new().token(token));
    let first = writer("a");
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.acquire().map(drop));
        server.until_waiters("k", 1);
        let refused = writer("b").acquire().map(drop);
        assert!(first.cancel());
        assert!(waits.join().expect("no panic").is_err());
        assert!(matches!(refused, Err(Error::Deadlock(_))));
    });
}
