//! Locks for threads: what the conformance suite can't say.

mod support;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::ErrorKind;
use redis_lock_client::{Cancel, Config, Error, Grant, Keys, Lock, Locks};
use redis_lock_client::{Observer, Options, Outcome, Subject};
use support::{until, Server};

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

/// Returns the token, as an argument of a command.
fn token(grant: &Grant) -> String {
    String::from_utf8_lossy(grant.token()).into_owned()
}

#[test]
fn a_grant_that_goes_out_of_scope_is_released() {
    let server = Server::start();
    let lock = lock(&locks(&server), "k", Options::new());
    drop(acquire(&lock));
    assert!(server.is_free("k"));
}

#[test]
fn the_drop_of_a_grant_ends_in_time_and_goes_on() {
    let server = Server::start();
    let timeout = Duration::from_millis(400);
    let config = Config::from(server.client()).command_timeout(timeout);
    let locks = Locks::new(config.expect("a timeout"));
    let grant = acquire(&lock(&locks, "k", Options::new()));
    server.pause();
    let began = Instant::now();
    drop(grant);
    let took = began.elapsed();
    server.resume();
    assert!(took >= timeout && took < 2 * timeout, "{took:?}");
    server.until_free("k");
}

#[test]
fn a_grant_can_end_with_its_thread() {
    thread_local! {
        static HELD: RefCell<Option<Grant>> = const { RefCell::new(None) };
    }

    let server = Server::start();
    let lock = lock(&locks(&server), "k", Options::new());
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

#[test]
fn functions_that_panic_leave_the_other_locks_renewed() {
    struct Panics;

    impl Observer for Panics {
        fn lost(&self, _: &Subject<'_>) {
            panic!("of the observer");
        }

        fn granted(&self, _: &Subject<'_>) {
            panic!("of the observer");
        }
    }

    let server = Server::start();
    let locks = Locks::new(Config::from(server.client()).observer(Panics));
    let lease = Duration::from_secs(1);
    let panics = Options::new()
        .lease(SHORT)
        .on_lost(|_| panic!("of on_lost"));
    let lost = acquire(&lock(&locks, "lost", panics));
    let renewed = acquire(&lock(&locks, "k", Options::new().lease(lease)));
    server.delete("lost");
    let began = Instant::now();
    until("two leases have passed", || began.elapsed() > 2 * lease);
    assert!(lost.is_lost());
    assert!(renewed.release().expect("an answer"));
    assert!(!lost.release().expect("an answer"));
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
    let session = acquire(&lock(&ours, "k", Options::new().session()));
    let refused = session.detach().expect_err("a refusal");
    assert!(matches!(
        refused,
        Error::InvalidArgument {
            argument: "session",
            ..
        }
    ));
    server.until_free("k");
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
fn a_guarded_block_has_its_own_error() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = lock(&locks, "k", Options::new());
    let fails = lock.with(|grant| {
        server.delete("k");
        assert!(!grant.extend(LONG).expect("an answer"));
        Err::<(), _>(Error::Cancelled)
    });
    assert!(matches!(fails, Err(Error::Cancelled)));
    let lost = lock.with(|_| {
        server.delete("k");
        Ok::<_, Error>(())
    });
    assert!(matches!(lost, Err(Error::LockLost)));
    let released = lock.with(|_| locks.release_all());
    assert_eq!(released.expect("a result"), 1);
    server.call("LOCK.ACQUIRE k other PX 60000");
    let waits = locks
        .lock_with("k", Options::new().wait(SHORT))
        .expect("a lock");
    let not_acquired = waits.with(|_| Ok::<_, Error>(()));
    assert!(matches!(not_acquired, Err(Error::NotAcquired)));
}

#[test]
fn a_grant_is_released_once() {
    let server = Server::start();
    let locks = locks(&server);
    let grant = acquire(&lock(&locks, "k", Options::new()));
    assert_eq!(locks.release_all().expect("an answer"), 1);
    assert!(!grant.is_lost());
    assert!(!grant.extend(LONG).expect("an answer"));
    assert!(matches!(grant.release(), Err(Error::NotHeld)));
}

#[test]
fn a_switch_ends_all_its_waits() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k other PX 60000");
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
    locks.settled().expect("no cleanup");
    assert_eq!(server.waiters("k"), 0);
    let later = lock.acquire_unless(None, &cancel);
    assert!(matches!(later, Err(Error::Cancelled)));
}

#[test]
fn the_least_time_counts_from_the_grant() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k other PX 60000");
    let at_least = Duration::from_secs(2);
    let lock = lock(&locks(&server), "k", Options::new().at_least(at_least));
    thread::scope(|scope| {
        let waits = scope.spawn(|| acquire(&lock).release());
        server.until_waiters("k", 1);
        let began = Instant::now();
        until("it has waited", || began.elapsed() > at_least / 2);
        let released = Instant::now();
        server.call("LOCK.RELEASE k other");
        assert!(waits.join().expect("no panic").expect("an answer"));
        server.until_free("k");
        assert!(released.elapsed() >= at_least, "{:?}", released.elapsed());
    });
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
        match server.call(&check) {
            redis::Value::Int(left) => assert!((1..=15_000).contains(&left), "{left}"),
            other => panic!("{other:?}"),
        }
        server.delete("k");
        let refused = acquire(&lock).release_after(Duration::MAX);
        assert!(matches!(
            refused,
            Err(Error::InvalidArgument {
                argument: "rest",
                ..
            })
        ));
        assert!(server.is_free("k"));
    }
}

#[test]
fn a_session_has_a_connection_of_its_own() {
    let server = Server::start();
    let locks = locks(&server);
    let lock = lock(&locks, "k", Options::new().session());
    assert!(acquire(&lock).release().expect("an answer"));
    let few = server.connections().len();
    for _ in 0..10 {
        assert!(acquire(&lock).release().expect("an answer"));
    }
    assert_eq!(server.connections().len(), few);
    let grant = acquire(&lock);
    server.kill_connections();
    server.until_free("k");
    assert!(!grant.extend(LONG).expect("an answer"));
    assert!(grant.is_lost());
}

#[test]
fn a_session_ends_with_its_longest_hold() {
    let server = Server::start();
    let options = Options::new().session().lease(SHORT).max_hold(SHORT);
    let grant = acquire(&lock(&locks(&server), "k", options));
    // The server would renew the lease as long as the connection is open.
    server.until_free("k");
    assert!(grant.is_lost());
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

#[test]
fn an_observer_hears_of_all_locks() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    struct Writes(Arc<Heard>);

    impl Observer for Writes {
        fn waited(&self, lock: &Subject<'_>, _: Duration, outcome: Outcome) {
            self.0
                .write(format!("waited for {}: {outcome:?}", lock.keys));
        }

        fn granted(&self, grant: &Subject<'_>) {
            assert!(grant.fence.is_some());
            self.0.write(format!("granted {}", grant.keys));
        }

        fn lost(&self, grant: &Subject<'_>) {
            self.0.write(format!("lost {}", grant.keys));
        }
    }

    impl Heard {
        fn write(&self, line: String) {
            self.0.lock().expect("no panic").push(line);
        }
    }

    let (server, heard) = (Server::start(), Arc::<Heard>::default());
    let observed = Config::from(server.client()).observer(Writes(Arc::clone(&heard)));
    let locks = Locks::new(observed);
    let lock = lock(&locks, "k", Options::new());
    let grant = acquire(&lock);
    assert!(lock.try_acquire().expect("an answer").is_none());
    server.delete("k");
    assert!(!grant.extend(LONG).expect("an answer"));
    let lines = heard.0.lock().expect("no panic").clone();
    assert_eq!(lines, ["granted k", "waited for k: NotAcquired", "lost k"]);
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    let server = Server::start();
    let locks = locks(&server);
    let refused = |result: Result<Lock, Error>| match result {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    let (zero, far) = (Duration::ZERO, Duration::MAX);
    let options = Options::new;
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
    assert!(matches!(
        lock.acquire(far),
        Err(Error::InvalidArgument { .. })
    ));
    for token in ["", "*"] {
        let adopted = locks.adopt("k", token, 1, options());
        assert!(matches!(
            adopted,
            Err(Error::InvalidArgument {
                argument: "token",
                ..
            })
        ));
    }
    let timeout = Config::from(server.client()).command_timeout(zero);
    assert!(matches!(timeout, Err(Error::InvalidArgument { .. })));
    assert_eq!(server.connections(), Vec::<String>::new());
    let grant = acquire(&lock);
    for lease in [zero, far, Duration::from_secs(1)] {
        assert!(matches!(
            grant.extend(lease),
            Err(Error::InvalidArgument { .. })
        ));
    }
    assert!(grant.release().expect("an answer"));
}

#[test]
fn no_text_has_the_token_or_the_password() {
    let server = Server::start();
    server.call("ACL SETUSER someone on >secret123 ~* +@all");
    let url = server
        .url()
        .replace("redis://", "redis://someone:secret123@");
    let client = redis::Client::open(url).expect("a client");
    let config = Config::from(client);
    let text = format!("{config:?}");
    let locks = Locks::new(config);
    let lock = lock(&locks, "k", Options::new().data("of the holder"));
    let grant = acquire(&lock);
    let token = token(&grant);
    server.delete("k");
    server.call("SET k other");
    let error = grant.extend(LONG).expect_err("another type");
    let text = format!("{text} {locks:?} {lock:?} {grant:?} {error} {error:?}");
    assert!(!text.contains(&token), "{text}");
    assert!(!text.contains("secret123"), "{text}");
}

#[test]
fn a_server_without_hello_is_served() {
    let server = Server::without_hello();
    let lock = lock(&locks(&server), "k", Options::new());
    assert!(acquire(&lock).release().expect("an answer"));
    // A client that sends it gets another error than that of a missing module.
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url()));
    let locks = Locks::new(client.expect("a client"));
    let refused = locks.lock("k").expect("a lock").try_acquire();
    assert!(matches!(refused, Err(Error::Redis(_))), "{refused:?}");
}

#[test]
fn a_server_without_the_module_is_told() {
    let server = Server::without_module();
    let tried = locks(&server).lock("k").expect("a lock").try_acquire();
    let error = tried.expect_err("an error");
    assert!(matches!(error, Error::ModuleMissing), "{error}");
    assert_eq!(error.to_string(), "this server hasn't loaded redis-lock");
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
