//! Locks for threads: what the conformance suite can't say.

mod support;

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use redis::{ErrorKind, Value};
use redis_lock_client::{Cancel, Config, Error, Grant, Keys, Lock, Locks};
use redis_lock_client::{Observer, Options, Subject};
use support::{proxied, until, Server};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);

fn locks(server: &Server) -> Locks {
    Locks::new(server.client())
}

fn acquire(lock: &Lock) -> Grant {
    lock.acquire(None).expect("an answer").expect("the lock")
}

/// Returns a server, and locks with a lock there.
fn stage(options: Options) -> (Server, Locks, Lock) {
    let server = Server::start();
    let locks = locks(&server);
    let lock = locks.lock_with("k", options).expect("a lock");
    (server, locks, lock)
}

#[test]
fn the_drop_of_a_grant_ends_in_time_and_goes_on() -> Result<()> {
    let (server, timeout) = (Server::start(), Duration::from_millis(400));
    let config = Config::from(server.client()).command_timeout(timeout)?;
    let lock = Locks::new(config).lock("k")?;
    drop(acquire(&lock));
    assert!(server.is_free("k"));
    let grant = acquire(&lock);
    server.process.freeze()?;
    let began = Instant::now();
    drop(grant);
    let took = began.elapsed();
    server.process.thaw()?;
    assert!(took >= timeout && took < 2 * timeout, "{took:?}");
    server.until_free("k");
    Ok(())
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
async fn a_thread_of_a_runtime_can_block_in_calls() -> Result<()> {
    let (server, locks, lock) = stage(Options::new());
    let held = acquire(&lock);
    assert!(lock.acquire(SHORT)?.is_none());
    assert!(held.extend(LONG)?);
    drop(held);
    drop(acquire(&lock));
    assert!(server.is_free("k"));
    // The end of its own runtime doesn't panic here.
    drop((lock, locks));
    Ok(())
}

/// Counts the losses, and panics if it is asked to.
#[derive(Clone, Default)]
struct Losses {
    count: Arc<AtomicUsize>,
    panics: bool,
}

impl Losses {
    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Observer for Losses {
    fn lost(&self, _: &Subject<'_>) {
        self.count.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "of the observer");
    }

    fn granted(&self, _: &Subject<'_>) {
        assert!(!self.panics, "of the observer");
    }
}

/// Each panics. The other locks are renewed nevertheless.
#[test]
fn functions_that_panic_are_called_once() -> Result<()> {
    let (server, called) = (Server::start(), Losses::default());
    let panics = Losses {
        count: Arc::clone(&called.count),
        panics: true,
    };
    let locks = Locks::new(Config::from(server.client()).observer(panics.clone()));
    let lease = Duration::from_secs(1);
    let options = Options::new().lease(SHORT).on_lost(move |_| {
        called.count.fetch_add(10, Ordering::SeqCst);
        panic!("of on_lost");
    });
    let lost = acquire(&locks.lock_with("lost", options)?);
    let renewed = acquire(&locks.lock_with("k", Options::new().lease(lease))?);
    server.call::<Value>("DEL lost");
    thread::sleep(2 * lease);
    assert!(lost.is_lost());
    assert!(renewed.release()?);
    assert!(!lost.release()?);
    assert_eq!(panics.count(), 11);
    Ok(())
}

#[test]
fn a_grant_is_passed_on() -> Result<()> {
    let (server, _, lock) = stage(Options::new().lease(LONG));
    let losses = Losses::default();
    let theirs = Locks::new(Config::from(server.client()).observer(losses.clone()));
    let grant = acquire(&lock);
    let (keys, token, fence) = (grant.keys().clone(), grant.token().to_vec(), grant.fence());
    grant.detach()?;
    let adopt = || theirs.adopt(keys.clone(), token.clone(), fence, Options::new());
    let adopted = adopt()?.expect("the lock");
    assert_eq!(adopted.fence(), fence);
    assert!(adopted.owned()?);
    assert!(adopted.left() > LONG / 2);
    assert!(adopted.release()?);
    assert!(server.is_free("k"));
    // A grant that has ended is no loss.
    assert!(adopt()?.is_none());
    assert_eq!(losses.count(), 0);
    Ok(())
}

#[test]
fn one_caller_computes() {
    let (server, locks, _) = stage(Options::new());
    let (result, tried) = (Mutex::new(None), AtomicUsize::new(0));
    let read = || Ok::<_, Error>(*result.lock().expect("no panic"));
    let compute = || {
        // The first one fails, so another one computes.
        if tried.fetch_add(1, Ordering::SeqCst) == 0 {
            server.until_waiters("k", 4);
            return Err(Error::Cancelled);
        }
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
    assert_eq!((sevens, tried.into_inner()), (9, 2), "{results:?}");
}

#[test]
fn all_grants_are_released_at_once() -> Result<()> {
    let (server, locks, lock) = stage(Options::new().wait(SHORT));
    let grant = acquire(&lock);
    assert_eq!(locks.release_all()?, 1);
    assert!(!grant.is_lost());
    assert!(!grant.extend(LONG)?);
    assert!(matches!(grant.release(), Err(Error::NotHeld)));
    assert_eq!(lock.with(|_| locks.release_all())?, 1);
    server.acquire_as_other();
    let not_acquired = lock.with(|_| Ok::<_, Error>(()));
    assert!(matches!(not_acquired, Err(Error::NotAcquired)));
    Ok(())
}

#[test]
fn a_switch_ends_all_its_waits() -> Result<()> {
    let (server, locks, lock) = stage(Options::new());
    server.acquire_as_other();
    let cancel = Cancel::new();
    let is_cancelled = || matches!(lock.acquire_unless(None, &cancel), Err(Error::Cancelled));
    thread::scope(|scope| {
        let waits = [(); 6].map(|()| scope.spawn(is_cancelled));
        server.until_waiters("k", 4);
        cancel.cancel();
        assert!(waits.into_iter().all(|it| it.join().expect("no panic")));
    });
    locks.settled()?;
    assert_eq!(server.waiters("k"), 0);
    assert!(is_cancelled());
    Ok(())
}

#[test]
fn a_lock_that_is_released_after_a_while_stays_without_its_connection() -> Result<()> {
    for options in [Options::new(), Options::new().session()] {
        let (server, _, lock) = stage(options);
        let grant = acquire(&lock);
        let token = String::from_utf8(grant.token().to_vec())?;
        assert!(grant.release_after(LONG / 2)?);
        server.kill_connections();
        let left: i64 = server.call(&format!("LOCK.CHECK k {token}"));
        assert!((1..=15_000).contains(&left), "{left}");
    }
    Ok(())
}

#[test]
fn a_session_is_lost_with_its_connection() -> Result<()> {
    let (server, _, lock) = stage(Options::new().session());
    let cut_off = || {
        let grant = acquire(&lock);
        server.kill_connections();
        server.until_free("k");
        grant
    };
    assert!(acquire(&lock).release()?);
    let extended = cut_off();
    assert!(!extended.extend(LONG)?);
    assert!(extended.is_lost());
    assert!(!cut_off().release()?);
    Ok(())
}

/// Returns a client whose network holds the first command with this word back, and a function that
/// delivers it.
fn holding_back(server: &Server, word: &'static str) -> (redis::Client, impl Fn()) {
    const SENT: usize = 1;
    const MAY_PASS: usize = 2;
    const HAS_PASSED: usize = 3;
    let state = Arc::new(AtomicUsize::new(0));
    let held = Arc::clone(&state);
    let client = proxied(server, move || {
        let held = Arc::clone(&held);
        move |bytes| {
            let has_word = bytes.windows(word.len()).any(|it| it == word.as_bytes());
            if has_word && held.fetch_max(SENT, Ordering::SeqCst) == 0 {
                until("it may pass", || held.load(Ordering::SeqCst) == MAY_PASS);
                held.store(HAS_PASSED, Ordering::SeqCst);
            }
            true
        }
    });
    let deliver = move || {
        assert_eq!(state.swap(MAY_PASS, Ordering::SeqCst), SENT);
        until("it passes", || state.load(Ordering::SeqCst) == HAS_PASSED);
        thread::sleep(SHORT);
    };
    (client, deliver)
}

#[test]
fn a_late_tie_ends_no_session() -> Result<()> {
    let server = Server::start();
    let (client, deliver) = holding_back(&server, "SESSION");
    let grant = acquire(&Locks::new(client).lock_with("k", Options::new().session())?);
    deliver();
    assert!(grant.owned()?);
    Ok(())
}

#[test]
fn a_late_acquire_of_a_released_grant_is_turned_away() -> Result<()> {
    let server = Server::start();
    let (client, deliver) = holding_back(&server, "LOCK.ACQUIRE");
    assert!(acquire(&Locks::new(client).lock("k")?).release()?);
    deliver();
    assert!(server.is_free("k"));
    Ok(())
}

#[test]
fn an_adoption_without_a_reply_leaves_no_session() -> Result<()> {
    let (server, locks, lock) = stage(Options::new());
    server.acquire_as_other();
    // A wait leaves an open connection.
    assert!(lock.acquire(SHORT)?.is_none());
    server.process.freeze()?;
    let adopted = locks.adopt("k", "other", 1, Options::new().session());
    server.process.thaw()?;
    let is_outage = matches!(adopted, Err(Error::Unavailable { .. }));
    assert!(is_outage, "{adopted:?}");
    server.until_free("k");
    Ok(())
}

/// A connection takes more than half of an attempt to open, and so does a command.
#[test]
fn a_slow_connection_is_kept_and_leases_count_from_the_request() -> Result<()> {
    let server = Server::start();
    let client = proxied(&server, || {
        |_: &[u8]| {
            thread::sleep(2 * SHORT);
            true
        }
    });
    let config = Config::from(client).command_timeout(Duration::from_secs(3))?;
    let lock = Locks::new(config).lock("k")?;
    assert!(lock.try_acquire()?.expect("the lock").release()?);
    // The margin is 1 s.
    let latest = || Instant::now() + LONG - Duration::from_secs(1) + SHORT;
    let is_lost_by = latest();
    let grant = lock.try_acquire()?.expect("the lock");
    assert!(Instant::now() + grant.left() < is_lost_by);
    let is_lost_by = latest();
    assert!(grant.extend(LONG)?);
    assert!(Instant::now() + grant.left() < is_lost_by);
    Ok(())
}

#[test]
fn a_renewal_comes_as_often_as_asked() {
    let hour = Duration::from_secs(3600);
    let (server, _, lock) = stage(Options::new().lease(hour).renew_every(SHORT));
    let grant = acquire(&lock);
    server.call::<Value>("DEL k");
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
fn wrong_arguments_are_refused_by_name_before_anything_is_sent() -> Result<()> {
    let (zero, far, options) = (Duration::ZERO, Duration::MAX, Options::new);
    let nowhere = || redis::Client::open("redis://127.0.0.1:1/");
    let locks = Locks::new(nowhere()?);
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
    assert_eq!(refused(locks.lock("k")?.acquire(far)), "limit");
    for token in ["", "*"] {
        assert_eq!(refused(locks.adopt("k", token, 1, options())), "token");
    }
    let timeout = Config::from(nowhere()?).command_timeout(zero);
    assert_eq!(refused(timeout), "command_timeout");
    Ok(())
}

#[test]
fn wrong_arguments_of_a_grant_are_refused_by_name() -> Result<()> {
    let (server, locks, lock) = stage(Options::new());
    let grant = acquire(&lock);
    for lease in [Duration::ZERO, Duration::MAX, Duration::from_secs(1)] {
        assert_eq!(refused(grant.extend(lease)), "lease");
    }
    assert!(grant.release()?);
    let session = acquire(&locks.lock_with("k", Options::new().session())?);
    assert_eq!(refused(session.detach()), "session");
    server.until_free("k");
    assert_eq!(refused(acquire(&lock).release_after(Duration::MAX)), "rest");
    assert!(server.is_free("k"));
    Ok(())
}

#[test]
fn no_text_has_the_password() -> Result<()> {
    let config = Config::from(redis::Client::open("redis://me:secret123@127.0.0.1:1/")?);
    let text = format!("{config:?} {:?}", Locks::new(config.clone()));
    assert!(!text.contains("secret123"), "{text}");
    Ok(())
}

#[test]
fn a_server_without_hello_is_served() -> Result<()> {
    let server = Server::with_lines(&["rename-command HELLO \"\""]);
    assert!(acquire(&locks(&server).lock("k")?).release()?);
    // A client that sends it gets another error than that of a missing module.
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url()))?;
    let refused = Locks::new(client).lock("k")?.try_acquire();
    assert!(matches!(refused, Err(Error::Redis(_))), "{refused:?}");
    Ok(())
}

#[test]
fn a_function_of_the_program_can_connect() -> Result<()> {
    let server = Server::start();
    let (opened, client) = (Arc::new(AtomicUsize::new(0)), server.client());
    let counts = Arc::clone(&opened);
    let open = move || -> futures_util::future::BoxFuture<'static, _> {
        let client = client.clone();
        if counts.fetch_add(1, Ordering::SeqCst) == 0 {
            return Box::pin(async { Err((ErrorKind::Io, "not yet").into()) });
        }
        Box::pin(async move { client.get_multiplexed_async_connection().await })
    };
    let locks = Locks::new(Config::opened_by("the server", Arc::new(open)));
    assert!(acquire(&locks.lock("k")?).release()?);
    assert!(opened.load(Ordering::SeqCst) > 1);
    Ok(())
}

/// Returns the calls in Rust's column of the page.
fn calls_of_the_page() -> Vec<String> {
    let page = include_str!("../../../docs/migrate/set-nx.md").lines();
    let table = page.skip_while(|line| !line.contains("| Rust |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let calls = rows.filter_map(|row| row.split('|').nth(4));
    calls.map(|it| it.replace([' ', '`'], "")).collect()
}

#[test]
fn the_calls_of_the_migration_page_run() -> Result<()> {
    let (_server, _locks, lock) = stage(Options::new());
    let (d, mut ran) = (LONG, Vec::new());
    macro_rules! run {
        ($call:expr) => {{
            ran.push(stringify!($call).replace(' ', ""));
            $call
        }};
    }
    let mut grant;
    run!(grant = lock.try_acquire()?);
    assert!(grant.expect("the lock").release()?);
    run!(grant = lock.acquire(d)?);
    let grant = grant.expect("the lock");
    assert!(run!(grant.extend(d)?));
    assert!(run!(grant.owned()?));
    assert!(run!(grant.release()?));
    let mut calls = calls_of_the_page();
    calls.sort();
    ran.sort();
    assert_eq!(ran, calls);
    Ok(())
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
