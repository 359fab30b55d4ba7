//! Locks of threads.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Config, Error, Guard, Lock, Locks, Observer, Options, Outcome, Subject};
use support::{is_refused, until, Server, Wire, PATIENCE};

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
fn a_lease_counts_from_the_grant_however_long_the_wait_was() {
    let server = Server::start();
    let locks = locks(&server);
    let lease = Duration::from_secs(3);
    let lock = locks
        .handle_with("k", Options::new().lease(lease).without_renewal())
        .expect("a lock");
    let guard = locks.acquire("k").expect("the lock");
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
fn a_lock_that_is_released_after_a_while_is_held_until_then_without_its_connection() {
    let server = Server::start();
    let locks = locks(&server);
    let rest = Duration::from_secs(60);
    for options in [Options::new(), Options::new().session()] {
        let lock = locks.handle_with("k", options).expect("a lock");
        let guard = lock.acquire().expect("the lock");
        let fence = guard.fence();
        assert!(guard.release_after(rest).expect("an answer"));
        server.kill_connections();
        let left = lock.left().expect("an answer");
        assert!(left > rest / 2 && left <= rest, "{left:?}");
        assert!(lock.owned().expect("an answer"));
        let other = locks
            .handle("k")
            .expect("a lock")
            .try_acquire()
            .expect("an answer");
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
    let guard = locks(&server)
        .handle_with("k", options)
        .expect("a lock")
        .acquire();
    let guard = guard.expect("the lock");
    server.delete("k");
    until("the loss is known", || guard.is_lost());
}

#[test]
fn a_callback_that_panics_leaves_the_other_locks_renewed() {
    let server = Server::start();
    let locks = locks(&server);
    let (short, lease) = (Duration::from_millis(300), Duration::from_secs(3));
    let panics = Options::new()
        .lease(short)
        .on_lost(|| panic!("of the callback"));
    let lost = locks
        .handle_with("lost", panics)
        .expect("a lock")
        .acquire()
        .expect("the lock");
    let renewed = locks
        .handle_with("k", Options::new().lease(lease))
        .expect("a lock")
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
fn a_hold_that_is_added_while_another_ends_is_real() {
    let server = Server::start();
    let lock = locks(&server).handle_with("k", Options::new().reentrant());
    let lock = lock.expect("a lock");
    for round in 0..200 {
        let first = lock.acquire().expect("the lock");
        thread::scope(|scope| {
            let added = scope.spawn(|| lock.acquire());
            assert!(first.release().expect("an answer"), "round {round}");
            let added = added.join().expect("no panic").expect("the lock");
            assert!(added.owned().expect("an answer"), "round {round}");
            assert!(added.release().expect("an answer"), "round {round}");
        });
    }
    drop(lock.acquire().expect("the lock"));
    assert!(server.is_free("k"));
}

#[test]
fn the_release_of_a_lost_hold_does_not_wait_for_the_acquire_of_another() {
    let server = Server::start();
    let lock = locks(&server).handle_with("k", Options::new().reentrant());
    let lock = lock.expect("a lock");
    let guard = lock.acquire().expect("the lock");
    server.delete("k");
    server.kill_connections();
    server.call("LOCK.ACQUIRE k other PX 600000");
    thread::scope(|scope| {
        let waits = waiter(scope, &server, &lock);
        let released = guard.release();
        server.call("LOCK.RELEASE k other");
        waits.join().expect("no panic").expect("the lock");
        assert!(!released.expect("an answer"));
    });
}

#[test]
fn permits_need_only_a_limit() {
    let server = Server::start();
    let locks = locks(&server);
    let tried = |options| {
        let lock = locks.handle_with("k", options).expect("a lock");
        lock.try_acquire().expect("an answer")
    };
    let _most = tried(Options::new().limit(3).permits(2)).expect("two permits");
    let _last = tried(Options::new().limit(3)).expect("the third");
    assert!(tried(Options::new().limit(3)).is_none());
}

#[test]
fn a_session_ends_with_its_connection() {
    let server = Server::start();
    let locks = locks(&server);
    let told = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&told);
    let lease = Duration::from_secs(3);
    let options = Options::new().session().reentrant().lease(lease);
    let options = options.on_lost(move || {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    let session = locks.handle_with("k", options).expect("a lock");
    let at_once = locks
        .handle_with("long", Options::new().session())
        .expect("a lock");
    let _at_once = at_once.acquire().expect("the lock");
    server.kill_connections();
    server.until_free("long");
    let guard = session.acquire().expect("the lock");
    let again = session.acquire_within(LEASE).expect("an answer");
    let again = again.expect("the lock");
    assert_eq!(guard.fence(), again.fence());
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
    assert!(!guard.extend(lease).expect("an answer"));
    assert!(!guard.release().expect("an answer"));
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// Returns a handle of a reentrant session, and makes a connection that its next acquire can use.
fn reentrant_session(locks: &Locks) -> (Lock, Guard) {
    let session = locks.handle_with("k", Options::new().session().reentrant());
    let session = session.expect("a lock");
    let guard = session.acquire().expect("the lock");
    drop(locks.acquire("other").expect("the lock"));
    (session, guard)
}

#[test]
fn an_acquire_that_fails_leaves_the_holds_of_a_session_alone() {
    let server = Server::start();
    let locks = locks(&server);
    let (session, guard) = reentrant_session(&locks);
    server.pause();
    let late = session.acquire_within(Duration::from_millis(300));
    server.resume();
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    locks.settled();
    // One connection of the session, and one for all other commands.
    until("the acquire's connection is closed", || {
        server.connections().len() == 2
    });
    assert!(guard.owned().expect("an answer"));
    assert!(guard.release().expect("an answer"));
}

#[test]
fn a_renewal_that_arrives_after_an_acquire_leaves_the_holds_of_a_session_alone() {
    let server = Server::start();
    let wire = Wire::default();
    let locks = locks_over(&wire, &server);
    let (session, guard) = reentrant_session(&locks);
    thread::scope(|scope| {
        let extend = wire.hold("LOCK.EXTEND");
        let extends = scope.spawn(|| guard.extend(LEASE));
        until("the extension is on its way", || extend.is_held());
        let second = session.acquire().expect("the lock");
        extend.pass();
        let extended = extends.join().expect("no panic");
        // A busy machine may pass the extension too late.
        assert!(matches!(
            extended,
            Ok(true) | Err(Error::Unavailable { .. })
        ));
        until("other connections are closed", || {
            server.connections().len() == 2
        });
        assert!(second.owned().expect("an answer"));
        assert!(second.release().expect("an answer"));
    });
    assert!(guard.release().expect("an answer"));
}

#[test]
fn a_session_that_ended_is_acquired_anew_by_its_owner() {
    let server = Server::start();
    let locks = locks(&server);
    let (session, guard) = reentrant_session(&locks);
    server.delete("k");
    let next = session.acquire().expect("the lock");
    assert_ne!(next.fence(), guard.fence());
    assert!(guard.is_lost());
    assert!(!guard.release().expect("an answer"));
    assert!(next.owned().expect("an answer"));
    server.kill_connections();
    server.until_free("k");
}

#[test]
fn sessions_that_are_over_leave_no_connections() {
    let server = Server::start();
    let locks = locks(&server);
    let sessions: [Lock; 8] = std::array::from_fn(|_| {
        locks
            .handle_with("k", Options::new().session())
            .expect("a lock")
    });
    for session in &sessions {
        let guard = session.acquire().expect("the lock");
        assert!(guard.release().expect("an answer"));
    }
    until("no connection is left", || server.connections().is_empty());
}

#[test]
fn a_burst_of_waits_leaves_few_connections() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.acquire("k").expect("the lock");
    let waits = 40;
    thread::scope(|scope| {
        for _ in 0..waits {
            scope.spawn(|| locks.acquire("k").map(drop).expect("the lock"));
        }
        server.until_waiters("k", waits);
        drop(guard);
    });
    // One connection is that of all other commands.
    until("few connections are left", || {
        server.connections().len() <= 17
    });
}

#[test]
fn threads_with_one_handle_wait_in_the_process() {
    let server = Server::start();
    let lock = locks(&server).handle("k").expect("a lock");
    let guard = lock.acquire().expect("the lock");
    assert!(lock.try_acquire().expect("an answer").is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.acquire().map(drop));
        // Only this thread's wait for the handle can tell that it has begun.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(server.waiters("k"), 0);
        drop(guard);
        waits.join().expect("no panic").expect("the lock");
    });
}

#[test]
fn all_locks_are_released_at_once() {
    let server = Server::start();
    let locks = locks(&server);
    let kept = locks.acquire("kept").expect("the lock");
    let lost = locks.acquire("lost").expect("the lock");
    server.delete("lost");
    assert_eq!(locks.release_all().expect("an answer"), 1);
    assert!(server.is_free("kept"));
    assert!(matches!(kept.release(), Err(Error::NotHeld)));
    assert!(!lost.release().expect("an answer"));
    assert_eq!(locks.release_all().expect("an answer"), 0);
}

/// Returns locks whose calls go on while a test changes the server.
fn patient_locks(server: &Server) -> Locks {
    let config = Config::from(server.client()).command_timeout(PATIENCE);
    Locks::new(config.expect("a configuration"))
}

#[test]
fn a_release_that_was_refused_at_first_is_told_of_the_loss() {
    let server = Server::start();
    let guard = patient_locks(&server).acquire("k").expect("the lock");
    server.delete("k");
    server.call("REPLICAOF 127.0.0.1 1");
    thread::scope(|scope| {
        let releases = scope.spawn(|| guard.release());
        until("the release is refused", || {
            server.calls("lock.release") > 0
        });
        server.call("REPLICAOF NO ONE");
        assert!(!releases.join().expect("no panic").expect("an answer"));
    });
}

#[test]
fn an_extension_that_is_sent_again_leaves_the_next_grant_alone() {
    let server = Server::start();
    let locks = patient_locks(&server);
    let lock = locks.handle_with("k", Options::new().token("chosen"));
    let lock = lock.expect("a lock");
    let guard = lock.acquire().expect("the lock");
    server.call("REPLICAOF 127.0.0.1 1");
    thread::scope(|scope| {
        let extends = scope.spawn(|| guard.extend(Duration::from_millis(200)));
        // After so many, the next one is sent a second later.
        until("the extension is refused", || {
            server.calls("lock.extend") > 5
        });
        let releases = scope.spawn(|| locks.release_all());
        until("the release is refused", || {
            server.calls("lock.release") > 0
        });
        server.call("REPLICAOF NO ONE");
        assert_eq!(releases.join().expect("no panic").expect("an answer"), 1);
        let next = lock.acquire().expect("the lock");
        // A busy machine may send the extension before the release.
        let _ = extends.join().expect("no panic").expect("an answer");
        let left = next.left().expect("an answer");
        assert!(left > LEASE / 2, "{left:?}");
    });
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn hear(&self, text: &str) {
        self.0.lock().expect("no panic").push(text.to_owned());
    }

    fn has(&self, text: &str) -> bool {
        self.0.lock().expect("no panic").iter().any(|it| it == text)
    }
}

impl Observer for Heard {
    fn waited(&self, lock: &Subject<'_>, _: Duration, outcome: Outcome) {
        self.hear(&format!("waited for {}: {outcome:?}", lock.keys()));
    }

    fn granted(&self, lock: &Subject<'_>) {
        self.hear(&format!("granted {}", lock.keys()));
    }

    fn lost(&self, lock: &Subject<'_>) {
        self.hear(&format!("lost {}", lock.keys()));
    }

    fn unavailable(&self, _: &Error) {
        self.hear("unavailable");
    }
}

#[test]
fn an_observer_hears_of_all_locks() {
    let server = Server::start();
    let heard = Heard::default();
    let locks = Locks::new(Config::from(server.client()).observer(heard.clone()));
    let guard = locks.acquire("k").expect("the lock");
    until("the grant", || heard.has("granted k"));
    let wait = Duration::from_millis(100);
    let other = locks.handle("k").expect("a lock");
    until("the wait ends", || is_refused(other.acquire_within(wait)));
    assert_eq!(server.waiters("k"), 0);
    until("the wait", || heard.has("waited for k: NotAcquired"));
    // The loss is found by the release of a guard that is dropped.
    server.delete("k");
    drop(guard);
    until("the loss", || heard.has("lost k"));
    let guard = locks.acquire("k").expect("the lock");
    server.pause();
    let start = Instant::now();
    drop(guard);
    let late = start.elapsed().checked_sub(Duration::from_secs(1));
    let late = late.expect("the command timeout is 1 s");
    assert!(late < Duration::from_secs(4), "{late:?} late");
    until("the outage", || heard.has("unavailable"));
    server.resume();
    server.until_free("k");
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    // Nothing listens there.
    let locks = Locks::new(redis::Client::open("redis://127.0.0.1:1/").expect("a client"));
    let long = Duration::from_millis(1 << 53);
    let zero = Duration::ZERO;
    let new = Options::new;
    let wrong = [
        ("lease", new().lease(zero)),
        ("lease", new().lease(long)),
        ("keep", new().keep(zero)),
        ("max_hold", new().max_hold(zero)),
        ("at_least", new().at_least(long)),
        ("wait", new().wait(Duration::MAX)),
        ("renew_every", new().renew_every(zero)),
        ("token", new().token("")),
        ("token", new().token("*")),
        ("token", new().token([b'x'; 257])),
        ("limit", new().limit(0)),
        ("permits", new().permits(1)),
        ("permits", new().limit(2).permits(3)),
        ("permits", new().limit(2).permits(0)),
        ("data", new().data([0; 1025])),
        ("replicas", new().replicas(0)),
        ("replicas", new().replicas(1001)),
    ];
    let named = |refused| match refused {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    for (argument, options) in wrong {
        assert_eq!(named(locks.handle_with("k", options).map(drop)), argument);
    }
    let none: [&str; 0] = [];
    assert_eq!(named(locks.handle(none).map(drop)), "keys");
    assert_eq!(named(locks.acquire(["a", "b", "a"]).map(drop)), "keys");
    let lock = locks.handle("k").expect("a lock");
    assert_eq!(named(lock.acquire_within(long).map(drop)), "wait");
    let timeout = Config::from(redis::Client::open("redis://127.0.0.1:1/").expect("a client"));
    assert_eq!(
        named(timeout.command_timeout(zero).map(drop)),
        "command_timeout"
    );
}

#[test]
fn a_wrong_extension_leaves_the_lock_as_it_is() {
    let server = Server::start();
    let locks = locks(&server);
    let guard = locks.acquire("k").expect("the lock");
    for lease in [Duration::ZERO, Duration::MAX] {
        let refused = guard.extend(lease);
        assert!(matches!(
            refused,
            Err(Error::InvalidArgument {
                argument: "lease",
                ..
            })
        ));
    }
    let left = guard.left().expect("an answer");
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    let other = locks.handle("k").expect("a lock");
    assert!(other.left().expect("an answer").is_zero());
    assert!(guard.release().expect("an answer"));
}

#[test]
fn a_release_after_too_long_a_time_releases_at_once() {
    let server = Server::start();
    let guard = locks(&server).acquire("k").expect("the lock");
    let refused = guard.release_after(Duration::MAX);
    let Err(Error::InvalidArgument { argument, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(argument, "rest");
    assert!(server.is_free("k"));
}

#[test]
fn no_text_has_the_token_or_the_password() {
    let server = Server::start();
    server.call("CONFIG SET requirepass hunter2");
    let url = server.url().replace("redis://", "redis://:hunter2@");
    let client = redis::Client::open(url.replace("hunter2", "wrong")).expect("a client");
    let refused = Locks::new(client).acquire("k");
    let is_told = matches!(&refused, Err(Error::Redis(it)) if it.code() == Some("WRONGPASS"));
    assert!(is_told, "{refused:?}");
    let client = redis::Client::open(url).expect("a client");
    let config = Config::from(client);
    let mut text = format!("{config:?}");
    let locks = Locks::new(config);
    let options = Options::new().token("secret");
    text += &format!("{options:?}");
    let lock = locks.handle_with("orders", options).expect("a lock");
    let guard = lock.acquire().expect("the lock");
    text += &format!("{locks:?} {lock:?} {guard:?} {:?}", lock.keys());
    assert!(text.contains("orders"), "{text}");
    assert!(
        !text.contains("secret") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn a_server_without_the_module_is_told() {
    let server = Server::without_module();
    let options = Options::new().token("secret");
    let lock = locks(&server).handle_with("k", options).expect("a lock");
    for refused in [lock.acquire().map(drop), lock.try_acquire().map(drop)] {
        let error = refused.expect_err("an error");
        assert_eq!(error.to_string(), "this server hasn't loaded redis-lock");
    }
}

/// Returns locks whose connections lead over a wire, with a command timeout of two attempts.
fn locks_over(wire: &Wire, server: &Server) -> Locks {
    let config = Config::from(server.client()).connector(wire.connector());
    let config = config.command_timeout(Duration::from_secs(3));
    Locks::new(config.expect("a configuration"))
}

#[test]
fn a_late_cleanup_leaves_the_next_grant_alone() {
    let server = Server::start();
    let chosen = Options::new().token("chosen");
    for (options, is_chosen) in [(Options::new(), false), (chosen, true)] {
        let wire = Wire::default();
        let locks = locks_over(&wire, &server);
        let lock = locks.handle_with("k", options).expect("a lock");
        server.call("LOCK.ACQUIRE k other PX 600000");
        thread::scope(|scope| {
            let waits = waiter(scope, &server, &lock);
            let release = wire.hold("LOCK.RELEASE");
            assert!(lock.cancel());
            assert!(waits.join().expect("no panic").is_err());
            until("the release is on its way", || release.is_held());
            server.call("LOCK.RELEASE k other");
            if is_chosen {
                let start = Instant::now();
                let limit = Duration::from_millis(150);
                let refused = lock.acquire_within(limit);
                assert!(
                    matches!(refused, Err(Error::Unavailable { .. })),
                    "{refused:?}"
                );
                let late = start.elapsed().saturating_sub(limit);
                assert!(late < Duration::from_secs(1), "{late:?} late");
            }
            let next = scope.spawn(|| lock.acquire());
            // Only the absence of a grant shows that the next acquire waits for the release. The library
            // gives the release up a second after it was sent.
            thread::sleep(Duration::from_millis(150));
            release.pass();
            let next = next.join().expect("no panic").expect("the lock");
            assert!(next.owned().expect("an answer"));
            assert!(next.release().expect("an answer"));
        });
    }
}

#[test]
fn a_connection_that_died_while_nothing_used_it_costs_a_free_lock_little() {
    let server = Server::start();
    let wire = Wire::default();
    let lock = locks_over(&wire, &server).handle("k").expect("a lock");
    assert!(lock
        .acquire()
        .expect("the lock")
        .release()
        .expect("an answer"));
    wire.lose_waits();
    // A connection that was used just now isn't checked.
    thread::sleep(Duration::from_millis(2500));
    let acquired = lock.acquire_within(Duration::from_secs(3));
    let guard = acquired.expect("an answer").expect("the lock");
    assert!(guard.owned().expect("an answer"));
}

#[test]
fn a_cancelled_wait_that_arrives_late_leaves_nothing_behind() {
    let server = Server::start();
    let wire = Wire::default();
    let locks = locks_over(&wire, &server);
    let lock = locks.handle("k").expect("a lock");
    thread::scope(|scope| {
        let wait = wire.hold("LOCK.WAIT");
        let waits = scope.spawn(|| lock.acquire());
        until("the wait is on its way", || wait.is_held());
        let start = Instant::now();
        assert!(lock.cancel());
        let cancelled = waits.join().expect("no panic");
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
        let late = start.elapsed();
        assert!(late < Duration::from_secs(5), "{late:?} late");
        assert!(!lock.cancel(), "no thread waits");
        wait.pass();
        until("the wait has arrived", || server.calls("lock.wait") > 0);
    });
    locks.settled();
    assert!(server.is_free("k"));
}

#[test]
fn a_release_that_arrives_after_its_connection_was_closed_leaves_the_next_grant_alone() {
    let server = Server::start();
    let wire = Wire::default();
    let lock = locks_over(&wire, &server).handle("k").expect("a lock");
    let guard = lock.acquire().expect("the lock");
    let release = wire.hold("LOCK.RELEASE");
    assert!(guard.release().expect("an answer"));
    assert!(release.is_held());
    let next = lock.acquire().expect("the lock");
    release.pass();
    let start = Instant::now();
    until("the release has arrived", || {
        assert!(next.owned().expect("an answer"));
        start.elapsed() > Duration::from_millis(200)
    });
    assert!(next.release().expect("an answer"));
}

#[test]
fn the_release_of_a_lost_hold_leaves_an_acquire_in_progress_alone() {
    let server = Server::start();
    let wire = Wire::default();
    let lock = locks_over(&wire, &server);
    let lock = lock.handle_with(["{k}1", "{k}2"], Options::new().reentrant());
    let lock = lock.expect("a lock");
    let guard = lock.acquire().expect("the lock");
    thread::scope(|scope| {
        let wait = wire.hold("LOCK.MWAIT");
        let next = scope.spawn(|| lock.acquire());
        until("the wait is on its way", || wait.is_held());
        server.delete("{k}1");
        server.delete("{k}2");
        assert!(!guard.extend(LEASE).expect("an answer"));
        let release = wire.hold("LOCK.MRELEASE");
        assert!(!guard.release().expect("an answer"));
        wait.pass();
        let next = next.join().expect("no panic").expect("the lock");
        release.pass();
        assert!(next.owned().expect("an answer"));
        assert!(next.extend(2 * LEASE).expect("an answer"));
        assert!(next.left().expect("an answer") > LEASE);
        assert!(next.release().expect("an answer"));
    });
}
