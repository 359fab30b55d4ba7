//! Locks for threads: what the conformance suite can't say.

mod support;

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::ErrorKind;
use redis_lock_client::{Cancel, Config, Error, Grant, Keys, Lock, Locks};
use redis_lock_client::{Observer, Options, Subject};
use support::{proxied, until, Server};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);

fn locks(server: &Server) -> Locks {
    Locks::new(server.client())
}

fn lock(locks: &Locks, key: &str, options: Options) -> Lock {
    locks.lock_with(key, options).expect("a lock")
}

fn acquire(lock: &Lock) -> Grant {
    lock.acquire(None).expect("an answer").expect("the lock")
}

/// Returns a server, and locks with a lock there.
fn stage(options: Options) -> (Server, Locks, Lock) {
    let server = Server::start();
    let locks = locks(&server);
    let lock = lock(&locks, "k", options);
    (server, locks, lock)
}

/// Returns the token, as an argument of a command.
fn token(grant: &Grant) -> String {
    String::from_utf8_lossy(grant.token()).into_owned()
}

#[test]
fn the_drop_of_a_grant_ends_in_time_and_goes_on() {
    let server = Server::start();
    let timeout = Duration::from_millis(400);
    let config = Config::from(server.client()).command_timeout(timeout);
    let lock = lock(&Locks::new(config.expect("a timeout")), "k", Options::new());
    drop(acquire(&lock));
    assert!(server.is_free("k"));
    let grant = acquire(&lock);
    server.process.freeze().expect("it stands still");
    let began = Instant::now();
    drop(grant);
    let took = began.elapsed();
    server.process.thaw().expect("it goes on");
    assert!(took >= timeout && took < 2 * timeout, "{took:?}");
    server.until_free("k");
}

#[test]
fn a_grant_can_end_with_its_thread() {
    thread_local! {
        static HELD: RefCell<Option<Grant>> = const { RefCell::new(None) };
    }

    let (server, _, lock) = stage(Options::new());
    let thread = thread::spawn(move || {
        // The first one used is dropped last, after tokio's own state of this thread.
        HELD.set(None);
        HELD.set(Some(acquire(&lock)));
    });
    thread.join().expect("no panic");
    server.until_free("k");
}

#[tokio::test]
async fn a_thread_of_a_runtime_can_block_in_calls() {
    let server = Server::start();
    let locks = locks(&server);
    let held = acquire(&lock(&locks, "k", Options::new()));
    let waits = lock(&locks, "k", Options::new());
    assert!(waits.acquire(SHORT).expect("an answer").is_none());
    assert!(held.extend(LONG).expect("an answer"));
    drop(held);
    drop(acquire(&waits));
    assert!(server.is_free("k"));
    // The end of its own runtime doesn't panic here.
    drop((waits, locks));
}

/// Each panics. The other locks are renewed nevertheless.
#[test]
fn functions_that_panic_are_called_once() {
    #[derive(Clone, Default)]
    struct Panics(Arc<AtomicUsize>);

    impl Observer for Panics {
        fn lost(&self, _: &Subject<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("of the observer");
        }

        fn granted(&self, _: &Subject<'_>) {
            panic!("of the observer");
        }
    }

    let (server, panics) = (Server::start(), Panics::default());
    let locks = Locks::new(Config::from(server.client()).observer(panics.clone()));
    let (lease, called) = (Duration::from_secs(1), Arc::clone(&panics.0));
    let options = Options::new().lease(SHORT).on_lost(move |_| {
        called.fetch_add(10, Ordering::SeqCst);
        panic!("of on_lost");
    });
    let lost = acquire(&lock(&locks, "lost", options));
    let renewed = acquire(&lock(&locks, "k", Options::new().lease(lease)));
    server.delete("lost");
    thread::sleep(2 * lease);
    assert!(lost.is_lost());
    assert!(renewed.release().expect("an answer"));
    assert!(!lost.release().expect("an answer"));
    assert_eq!(panics.0.load(Ordering::SeqCst), 11);
}

#[test]
fn a_grant_is_passed_on() {
    let server = Server::start();
    let (ours, theirs) = (locks(&server), locks(&server));
    let grant = acquire(&lock(&ours, "k", Options::new().lease(LONG)));
    let (keys, token, fence) = (grant.keys().clone(), grant.token().to_vec(), grant.fence());
    grant.detach().expect("it is held");
    let adopt = || theirs.adopt(keys.clone(), token.clone(), fence, Options::new());
    let adopted = adopt().expect("an answer").expect("the lock");
    assert_eq!(adopted.fence(), fence);
    assert!(adopted.owned().expect("an answer"));
    assert!(adopted.left() > LONG / 2);
    assert!(adopted.release().expect("an answer"));
    assert!(server.is_free("k"));
    assert!(adopt().expect("an answer").is_none());
}

#[test]
fn an_adoption_of_what_has_ended_is_no_loss() {
    struct Counts(Arc<AtomicUsize>);

    impl Observer for Counts {
        fn lost(&self, _: &Subject<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let (server, losses) = (Server::start(), Arc::new(AtomicUsize::new(0)));
    let counts = Counts(Arc::clone(&losses));
    let locks = Locks::new(Config::from(server.client()).observer(counts));
    let adopted = locks.adopt("k", "ended", 1, Options::new());
    assert!(adopted.expect("an answer").is_none());
    assert_eq!(losses.load(Ordering::SeqCst), 0);
}

#[test]
fn one_caller_computes() {
    let server = Server::start();
    let (locks, result) = (locks(&server), Mutex::new(None));
    let (computed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let read = || Ok::<_, Error>(*result.lock().expect("no panic"));
    let compute = || {
        // The first one fails, so another one computes.
        if failed.fetch_add(1, Ordering::SeqCst) == 0 {
            server.until_waiters("k", 4);
            return Err(Error::Cancelled);
        }
        computed.fetch_add(1, Ordering::SeqCst);
        *result.lock().expect("no panic") = Some(7);
        Ok(7)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let once = || locks.once("k", Options::new(), read, compute);
        let callers: Vec<_> = (0..10).map(|_| scope.spawn(once)).collect();
        let results = callers.into_iter().map(|it| it.join().expect("no panic"));
        results.collect()
    });
    let sevens = results.iter().filter(|it| matches!(it, Ok(7))).count();
    assert_eq!((sevens, computed.into_inner()), (9, 1), "{results:?}");
}

#[test]
fn all_grants_are_released_at_once() {
    let (server, locks, lock) = stage(Options::new().wait(SHORT));
    let grant = acquire(&lock);
    assert_eq!(locks.release_all().expect("an answer"), 1);
    assert!(!grant.is_lost());
    assert!(!grant.extend(LONG).expect("an answer"));
    assert!(matches!(grant.release(), Err(Error::NotHeld)));
    let released = lock.with(|_| locks.release_all());
    assert_eq!(released.expect("a result"), 1);
    server.acquire_as_other();
    let not_acquired = lock.with(|_| Ok::<_, Error>(()));
    assert!(matches!(not_acquired, Err(Error::NotAcquired)));
}

#[test]
fn a_switch_ends_all_its_waits() {
    let server = Server::start();
    server.acquire_as_other();
    let (locks, cancel) = (locks(&server), Cancel::new());
    let lock = lock(&locks, "k", Options::new());
    thread::scope(|scope| {
        let waits = [(); 6].map(|()| scope.spawn(|| lock.acquire_unless(None, &cancel)));
        server.until_waiters("k", 4);
        cancel.cancel();
        for wait in waits {
            let ended = wait.join().expect("no panic");
            assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
        }
    });
    locks.settled().expect("no work goes on");
    assert_eq!(server.waiters("k"), 0);
    let later = lock.acquire_unless(None, &cancel);
    assert!(matches!(later, Err(Error::Cancelled)));
}

#[test]
fn a_lock_that_is_released_after_a_while_stays_without_its_connection() {
    let server = Server::start();
    let locks = locks(&server);
    for options in [Options::new(), Options::new().session()] {
        let lock = lock(&locks, "k", options);
        let grant = acquire(&lock);
        let check = format!("LOCK.CHECK k {}", token(&grant));
        assert!(grant.release_after(LONG / 2).expect("an answer"));
        server.kill_connections();
        let left: i64 = server.call(&check);
        assert!((1..=15_000).contains(&left), "{left}");
        server.delete("k");
    }
}

#[test]
fn a_session_is_lost_with_its_connection() {
    let (server, _, lock) = stage(Options::new().session());
    let cut_off = || {
        let grant = acquire(&lock);
        server.kill_connections();
        server.until_free("k");
        grant
    };
    assert!(acquire(&lock).release().expect("an answer"));
    let extended = cut_off();
    assert!(!extended.extend(LONG).expect("an answer"));
    assert!(extended.is_lost());
    assert!(!cut_off().release().expect("an answer"));
}

/// The network holds the first tie back until the acquire has another one.
#[test]
fn a_late_tie_ends_no_session() {
    let (server, arrived) = (Server::start(), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&arrived);
    let client = proxied(&server, move || {
        let counts = Arc::clone(&counts);
        move |bytes| {
            let is_tie = bytes.windows(7).any(|it| it == b"SESSION");
            if is_tie && counts.fetch_add(1, Ordering::SeqCst) == 0 {
                until("another tie came", || counts.load(Ordering::SeqCst) > 1);
                thread::sleep(SHORT);
                counts.fetch_add(10, Ordering::SeqCst);
            }
            true
        }
    });
    let grant = acquire(&lock(&Locks::new(client), "k", Options::new().session()));
    until("the first tie came", || arrived.load(Ordering::SeqCst) > 10);
    thread::sleep(SHORT);
    assert!(grant.owned().expect("an answer"));
}

#[test]
fn an_adoption_without_a_reply_leaves_no_session() {
    let server = Server::start();
    server.acquire_as_other();
    let locks = locks(&server);
    // A wait leaves an open connection.
    let waited = lock(&locks, "k", Options::new()).acquire(SHORT);
    assert!(waited.expect("an answer").is_none());
    server.process.freeze().expect("it stands still");
    let adopted = locks.adopt("k", "other", 1, Options::new().session());
    server.process.thaw().expect("it goes on");
    assert!(
        matches!(adopted, Err(Error::Unavailable { .. })),
        "{adopted:?}"
    );
    server.until_free("k");
}

/// A connection takes more than half of an attempt to open, and so does a command.
#[test]
fn a_connection_that_opens_slowly_is_kept() {
    let server = Server::start();
    let client = proxied(&server, || {
        |_: &[u8]| {
            thread::sleep(2 * SHORT);
            true
        }
    });
    let config = Config::from(client).command_timeout(Duration::from_secs(3));
    let lock = lock(&Locks::new(config.expect("a timeout")), "k", Options::new());
    let grant = lock.try_acquire().expect("an answer").expect("the lock");
    assert!(grant.release().expect("an answer"));
}

#[test]
fn a_renewal_comes_as_often_as_asked() {
    let server = Server::start();
    let options = Options::new()
        .lease(Duration::from_secs(3600))
        .renew_every(SHORT);
    let grant = acquire(&lock(&locks(&server), "k", options));
    server.delete("k");
    until("the loss is known", || grant.is_lost());
}

/// Returns the argument that an error names.
fn refused<T: Debug>(result: Result<T, Error>) -> &'static str {
    match result {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    let server = Server::start();
    let (locks, options) = (locks(&server), Options::new);
    let (zero, far) = (Duration::ZERO, Duration::MAX);
    for (options, argument) in [
        (options().lease(zero), "lease"),
        (options().lease(far), "lease"),
        (options().keep(zero), "keep"),
        (options().keep(far), "keep"),
        (options().wait(far), "wait"),
        (options().margin(LONG), "margin"),
        (options().max_hold(zero), "max_hold"),
        (options().at_least(far), "at_least"),
        (options().renew_every(zero), "renew_every"),
        (options().limit(0), "limit"),
        (options().permits(1), "permits"),
        (options().limit(2).permits(3), "permits"),
        (options().data(vec![0; 1025]), "data"),
        (options().replicas(0), "replicas"),
        (options().replicas(1001), "replicas"),
    ] {
        assert_eq!(refused(locks.lock_with("k", options)), argument);
    }
    assert_eq!(refused(locks.lock(Vec::<String>::new())), "keys");
    assert_eq!(refused(locks.lock(["k", "k"])), "keys");
    let lock = lock(&locks, "k", options());
    assert_eq!(refused(lock.acquire(far)), "limit");
    for token in ["", "*"] {
        assert_eq!(refused(locks.adopt("k", token, 1, options())), "token");
    }
    let timeout = Config::from(server.client()).command_timeout(zero);
    assert_eq!(refused(timeout), "command_timeout");
    assert_eq!(server.connections(), 0);
    let grant = acquire(&lock);
    for lease in [zero, far, Duration::from_secs(1)] {
        assert_eq!(refused(grant.extend(lease)), "lease");
    }
    assert!(grant.release().expect("an answer"));
    let session = acquire(&self::lock(&locks, "k", options().session()));
    assert_eq!(refused(session.detach()), "session");
    server.until_free("k");
    assert_eq!(refused(acquire(&lock).release_after(far)), "rest");
    assert!(server.is_free("k"));
}

#[test]
fn no_text_has_the_password() {
    let client = redis::Client::open("redis://someone:secret123@127.0.0.1:1/");
    let config = Config::from(client.expect("a client"));
    let text = format!("{config:?} {:?}", Locks::new(config.clone()));
    assert!(!text.contains("secret123"), "{text}");
}

#[test]
fn a_server_without_hello_is_served() {
    let server = Server::with_lines(&["rename-command HELLO \"\""]);
    let lock = lock(&locks(&server), "k", Options::new());
    assert!(acquire(&lock).release().expect("an answer"));
    // A client that sends it gets another error than that of a missing module.
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url()));
    let locks = Locks::new(client.expect("a client"));
    let refused = locks.lock("k").expect("a lock").try_acquire();
    assert!(matches!(refused, Err(Error::Redis(_))), "{refused:?}");
}

#[test]
fn a_function_of_the_program_can_connect() {
    let server = Server::start();
    let (opened, client) = (Arc::new(AtomicUsize::new(0)), server.client());
    let counts = Arc::clone(&opened);
    let open = move || -> futures_util::future::BoxFuture<'static, _> {
        let client = client.clone();
        if counts.fetch_add(1, Ordering::SeqCst) == 0 {
            let error = (ErrorKind::Io, "not yet").into();
            return Box::pin(async { Err(error) });
        }
        Box::pin(async move { client.get_multiplexed_async_connection().await })
    };
    let locks = Locks::new(Config::opened_by("the server", Arc::new(open)));
    let lock = lock(&locks, "k", Options::new());
    assert!(acquire(&lock).release().expect("an answer"));
    assert!(opened.load(Ordering::SeqCst) > 1);
}

#[test]
fn keys_are_text_or_bytes() {
    let bytes: &[u8] = b"\xff";
    for (keys, shown) in [
        (Keys::from("k"), "k"),
        (Keys::from("k".to_owned()), "k"),
        (Keys::from(bytes), "\u{fffd}"),
        (Keys::from(["a", "b"]), "a, b"),
        (Keys::from(vec![b"a".to_vec()]), "a"),
    ] {
        assert_eq!(keys.to_string(), shown);
    }
}
