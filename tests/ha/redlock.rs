//! The Redlock of `examples/redlock.rs` over five masters, of which some die or stop.

#[path = "../../examples/redlock.rs"]
#[allow(dead_code, reason = "its program runs as a process of its own")]
mod example;

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use example::{Held, Missed, Redlock, Settings};

use support::history::{assert_no_writer_overlaps, Hold, Mode};
use support::load::{soak_time, Dice, Over};
use support::payload;
use support::{eventually, signal, unix_time_us, until, Expect, Server, PATIENCE};

/// A lease longer than any test here. A lock that is free earlier was released.
const LEASE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a busy machine may add to a round. It is shorter than another timeout.
const SLACK: Duration = Duration::from_millis(800);

/// Returns settings for one try with a long lease.
fn once() -> Settings {
    Settings {
        timeout: TIMEOUT,
        tries: 1,
        ..Settings::with_lease(LEASE)
    }
}

fn five_masters() -> Vec<Server> {
    (0..5).map(|_| Server::start()).collect()
}

fn addresses(masters: &[Server]) -> Vec<String> {
    let ports = masters.iter().map(Server::port);
    ports.map(|port| format!("127.0.0.1:{port}")).collect()
}

#[track_caller]
fn client(masters: &[Server], settings: Settings) -> Redlock {
    Redlock::new(&addresses(masters), settings).expect("addresses that can be read")
}

/// Returns a client that is connected to all masters.
#[track_caller]
fn connected_client(masters: &[Server], settings: Settings) -> Redlock {
    let mut redlock = client(masters, settings);
    let held = redlock.lock("another").expect("all masters grant it");
    assert_eq!(redlock.release(held), masters.len());
    redlock
}

/// Returns the token that holds `k`, if any.
#[track_caller]
fn holder(master: &Server) -> Option<String> {
    let info = master.lock_info("k")?;
    Some(info.holder().text("token"))
}

#[track_caller]
fn assert_held_on(masters: &[Server], token: &str) {
    for master in masters {
        assert_eq!(holder(master).as_deref(), Some(token));
    }
}

#[track_caller]
fn assert_free_on(masters: &[Server]) {
    for master in masters {
        assert_eq!(holder(master), None);
    }
}

/// Returns how many times a master has executed a LOCK command, like `acquire`.
#[track_caller]
fn calls(master: &Server, command: &str) -> u64 {
    let stats = master.find_info("commandstats", &format!("cmdstat_lock.{command}"));
    stats.map_or(0, |stats| {
        let count = stats.split(',').find_map(|it| it.strip_prefix("calls="));
        count.expect("a count").parse().expect("a number")
    })
}

/// Returns the number of yes votes of an outcome that missed its quorum.
#[track_caller]
fn yes_votes<T: std::fmt::Debug>(outcome: Result<T, Missed>) -> usize {
    match outcome {
        Err(Missed::NoQuorum { yes, quorum: 3, .. }) => yes,
        other => panic!("not a missed quorum of three: {other:?}"),
    }
}

/// Returns the indices of the masters that granted the lock.
fn granted_by(held: &Held) -> Vec<usize> {
    let fences = held.fences().iter().enumerate();
    fences.filter_map(|(at, fence)| fence.map(|_| at)).collect()
}

#[track_caller]
fn assert_quicker(since: Instant, bound: Duration) {
    let took = since.elapsed();
    assert!(took < bound, "{took:?}, not {bound:?}");
}

// --- all masters there ----------------------------------------------------------------------

#[test]
fn all_masters_grant_one_token_until_it_is_released() {
    let masters = five_masters();
    let mut redlock = client(&masters, once());
    let asked_at = Instant::now();
    let held = redlock.lock("k").unwrap();
    let promised = LEASE - (LEASE / 100 + Duration::from_millis(2));
    assert!(held.until() >= asked_at + promised);
    assert!(held.until() <= Instant::now() + promised);
    for (master, fence) in masters.iter().zip(held.fences()) {
        let info = master.lock_info("k").expect("a lock");
        assert_eq!(info.mode, "exclusive");
        assert_eq!(info.holder().text("token"), held.token());
        assert_eq!(Some(info.holder().int("fence") as u64), *fence);
        let on_master = Duration::from_millis(info.holder().int("lease-ms") as u64);
        assert!(on_master > held.left(), "{on_master:?} after {held:?}");
    }
    assert_eq!(held.token().len(), 32);
    assert_eq!(held.tries(), 1);

    let mut other = client(&masters, once());
    assert_eq!(yes_votes(other.lock("k")), 0);
    assert_held_on(&masters, held.token());

    let token = held.token().to_owned();
    assert_eq!(redlock.release(held), 5);
    assert_free_on(&masters);
    let held = other.lock("k").unwrap();
    assert_ne!(held.token(), token);
}

#[test]
fn an_extension_starts_the_lease_anew_on_all_masters() {
    let masters = five_masters();
    let mut redlock = client(&masters, once());
    let mut held = redlock.lock("k").unwrap();
    let (until, fences) = (held.until(), held.fences().to_vec());
    let asked_at = Instant::now();
    redlock.extend(&mut held).unwrap();
    assert!(held.until() > until);
    assert!(held.until() >= asked_at + LEASE - LEASE / 100 - Duration::from_millis(2));
    assert_eq!(held.fences(), fences);
    for master in &masters {
        let left_ms = master.lock_info("k").unwrap().holder().int("lease-ms");
        assert!(left_ms as u128 > held.left().as_millis());
    }
}

#[test]
fn a_validity_that_has_ended_is_not_extended() {
    let masters = five_masters();
    let brief = Settings {
        drift: LEASE - Duration::from_millis(100),
        ..once()
    };
    let mut redlock = client(&masters, brief);
    let mut held = redlock.lock("k").unwrap();
    let promised_until = held.until();
    until("the validity is over", || held.left().is_zero());
    // All masters still have the lock, and would extend it.
    assert_held_on(&masters, held.token());
    assert_eq!(redlock.extend(&mut held), Err(Missed::TooLate));
    assert_eq!(held.until(), promised_until);
}

#[test]
fn nobody_releases_what_another_token_holds() {
    let masters = five_masters();
    let mut redlock = client(&masters, once());
    let held = redlock.lock("k").unwrap();
    let mut short = client(
        &masters,
        Settings {
            tries: 3,
            retry_delay: Duration::ZERO,
            ..once()
        },
    );
    assert_eq!(yes_votes(short.lock("k")), 0);
    assert_held_on(&masters, held.token());
    redlock.release(held);

    // A holder whose lease is over releases nothing either.
    let lease = Duration::from_millis(150);
    let mut late = client(
        &masters,
        Settings {
            timeout: TIMEOUT,
            ..Settings::with_lease(lease)
        },
    );
    let mut expired = late.lock("k").unwrap();
    until("the lease is over on all masters", || {
        masters.iter().all(|master| holder(master).is_none())
    });
    assert!(expired.left().is_zero());
    let held = redlock.lock("k").unwrap();
    assert_eq!(yes_votes(late.extend(&mut expired)), 0);
    assert_eq!(late.release(expired), 0);
    assert_held_on(&masters, held.token());
}

#[test]
fn connections_that_broke_meanwhile_are_replaced_within_the_round() {
    let masters = five_masters();
    let mut redlock = connected_client(&masters, once());
    let break_all = || {
        for master in &masters {
            assert!(master.call("CLIENT KILL TYPE normal SKIPME yes").int() >= 1);
        }
    };
    break_all();
    let mut held = redlock.lock("k").unwrap();
    assert_eq!(granted_by(&held).len(), 5);
    break_all();
    redlock.extend(&mut held).unwrap();
    break_all();
    assert_eq!(redlock.release(held), 5);
}

// --- a minority missing ---------------------------------------------------------------------

#[test]
fn two_dead_masters_of_five_are_not_missed() {
    let mut masters = five_masters();
    let mut redlock = connected_client(&masters, once());
    masters[0].kill9();
    masters[3].kill9();
    let asked_at = Instant::now();
    let mut held = redlock.lock("k").unwrap();
    assert_eq!(granted_by(&held), [1, 2, 4]);
    redlock.extend(&mut held).unwrap();
    assert_eq!(yes_votes(client(&masters, once()).lock("k")), 0);
    assert_eq!(redlock.release(held), 3);
    assert_quicker(asked_at, SLACK);
    for alive in [1, 2, 4] {
        assert_free_on(&masters[alive..=alive]);
    }
}

#[test]
fn two_stopped_masters_of_five_cost_their_timeout_and_keep_nothing() {
    let masters = five_masters();
    let mut redlock = connected_client(&masters, once());
    masters[0].freeze();
    masters[1].freeze();
    let asked_at = Instant::now();
    let mut held = redlock.lock("k").unwrap();
    assert_quicker(asked_at, TIMEOUT + SLACK);
    assert_eq!(granted_by(&held), [2, 3, 4]);
    redlock.extend(&mut held).unwrap();
    // The release waits for neither stopped master.
    assert_eq!(redlock.release(held), 3);
    assert_quicker(asked_at, 2 * TIMEOUT + SLACK);

    // Both requests are in the stopped masters' sockets, the release behind the acquisition.
    for master in &masters[..2] {
        master.thaw();
        until("what was sent is carried out", || {
            calls(master, "acquire") == 2 && holder(master).is_none()
        });
    }

    // The client does not take their late replies for the replies to its new requests.
    let held = redlock.lock("k").unwrap();
    for (master, fence) in masters.iter().zip(held.fences()) {
        let info = master.lock_info("k").expect("a lock");
        assert_eq!(Some(info.holder().int("fence") as u64), *fence);
    }
}

#[test]
fn a_quorum_that_comes_when_the_lease_is_over_holds_nothing() {
    let masters = five_masters();
    let lease = Duration::from_millis(150);
    let slow = Settings {
        timeout: 2 * lease,
        tries: 1,
        ..Settings::with_lease(lease)
    };
    let mut redlock = client(&masters, slow);
    masters[0].freeze();
    masters[1].freeze();
    assert_eq!(redlock.lock("k").unwrap_err(), Missed::TooLate);
    for master in &masters[2..] {
        assert_eq!(calls(master, "acquire"), 1);
        assert_eq!(calls(master, "release"), 1);
    }
}

// --- a majority missing ---------------------------------------------------------------------

#[test]
fn three_dead_masters_of_five_let_nobody_hold_anything() {
    let mut masters = five_masters();
    let dead = addresses(&masters[2..]);
    let settings = Settings {
        tries: 3,
        retry_delay: Duration::from_millis(10),
        ..once()
    };
    let mut redlock = client(&masters, settings);
    for master in &mut masters[2..] {
        master.kill9();
    }
    let asked_at = Instant::now();
    let missed = redlock.lock("k").unwrap_err();
    assert_quicker(asked_at, SLACK);
    let Missed::NoQuorum {
        yes: 2, failures, ..
    } = &missed
    else {
        panic!("{missed:?}")
    };
    let named = failures.iter().zip(&dead);
    assert!(named.clone().count() == 3, "{missed}");
    for (failure, address) in named {
        assert!(failure.starts_with(address.as_str()), "{missed}");
    }
    for master in &masters[..2] {
        assert_eq!(calls(master, "acquire"), 3);
    }
    assert_free_on(&masters[..2]);
}

#[test]
fn three_stopped_masters_of_five_let_nobody_hold_anything() {
    let masters = five_masters();
    let mut redlock = connected_client(&masters, once());
    let (alive, stopped) = masters.split_at(2);
    for master in stopped {
        master.freeze();
    }
    let asked_at = Instant::now();
    assert_eq!(yes_votes(redlock.lock("k")), 2);
    // The release waits for no master.
    assert_quicker(asked_at, TIMEOUT + SLACK);
    assert_free_on(alive);
    // A stopped master accepts new connections too.
    let asked_at = Instant::now();
    assert_eq!(yes_votes(client(&masters, once()).lock("k")), 2);
    assert_quicker(asked_at, TIMEOUT + SLACK);
    assert_free_on(alive);

    for master in stopped {
        master.thaw();
        until("what was sent is carried out", || {
            calls(master, "acquire") == 3 && holder(master).is_none()
        });
    }
    assert!(redlock.lock("k").is_ok());
}

#[test]
fn a_hold_is_not_extended_while_a_majority_is_stopped() {
    let masters = five_masters();
    let mut redlock = client(&masters, once());
    let mut held = redlock.lock("k").unwrap();
    let promised_until = held.until();
    for master in &masters[..3] {
        master.freeze();
    }
    assert_eq!(yes_votes(redlock.extend(&mut held)), 2);
    assert_eq!(held.until(), promised_until);
    assert_eq!(yes_votes(client(&masters, once()).lock("k")), 0);
    for master in &masters[..3] {
        master.thaw();
    }
    redlock.extend(&mut held).unwrap();
    assert!(held.until() > promised_until);
    assert_eq!(redlock.release(held), 5);
    assert_free_on(&masters);
}

#[test]
fn a_hold_that_a_majority_forgot_is_not_extended_and_not_taken_anew() {
    let mut masters = five_masters();
    let mut redlock = client(&masters, once());
    let mut held = redlock.lock("k").unwrap();
    let promised_until = held.until();
    for master in &mut masters[..2] {
        master.restart();
    }
    redlock.extend(&mut held).unwrap();
    assert!(held.until() > promised_until);

    let promised_until = held.until();
    masters[2].restart();
    assert_eq!(yes_votes(redlock.extend(&mut held)), 2);
    assert_eq!(held.until(), promised_until);
    assert_free_on(&masters[..3]);
    assert_held_on(&masters[3..], held.token());
    assert_eq!(redlock.release(held), 2);
}

// --- a slow network -------------------------------------------------------------------------

/// A proxy to a master. Each connection carries nothing until it is opened.
struct Gate {
    port: u16,
    /// One bit for each connection, in the order of arrival.
    opened: Arc<AtomicU64>,
}

impl Gate {
    fn before(master: &Server) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let gate = Gate {
            port: listener.local_addr().expect("a bound port").port(),
            opened: Arc::new(AtomicU64::new(0)),
        };
        let (opened, far_port) = (Arc::clone(&gate.opened), master.port());
        thread::spawn(move || {
            let connections = listener.incoming().map_while(Result::ok);
            for (near, number) in connections.zip(0..) {
                let opened = Arc::clone(&opened);
                thread::spawn(move || {
                    until("the gate is opened", || {
                        opened.load(Ordering::Acquire) >> number & 1 == 1
                    });
                    carry(&near, far_port);
                });
            }
        });
        gate
    }

    fn open(&self, number: u64) {
        self.opened.fetch_or(1 << number, Ordering::Release);
    }

    fn open_all(&self) {
        self.opened.store(u64::MAX, Ordering::Release);
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn carry(near: &TcpStream, far_port: u16) {
    let far = TcpStream::connect((Ipv4Addr::LOCALHOST, far_port)).expect("a master behind it");
    thread::scope(|scope| {
        scope.spawn(|| carry_one_way(near, &far));
        scope.spawn(|| carry_one_way(&far, near));
    });
}

/// Copies bytes until one side closes or is gone.
fn carry_one_way(mut from: &TcpStream, mut to: &TcpStream) {
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}

#[test]
fn a_release_goes_the_way_that_its_acquisition_went() {
    let masters = five_masters();
    let gate = Gate::before(&masters[0]);
    let mut addresses = addresses(&masters);
    addresses[0] = gate.address();
    let mut redlock = Redlock::new(&addresses, once()).expect("a client");
    let mut held = redlock.lock("k").unwrap();
    redlock.extend(&mut held).unwrap();
    assert_eq!(redlock.release(held), 4);

    // The later request arrives first.
    gate.open(1);
    until("the extension arrives", || {
        calls(&masters[0], "extend") == 1
    });
    gate.open(0);
    until("the acquisition arrives, and its release", || {
        calls(&masters[0], "acquire") == 1 && holder(&masters[0]).is_none()
    });
}

// --- clients against each other -------------------------------------------------------------

#[test]
fn clients_that_split_the_votes_both_come_to_hold_the_lock() {
    let mut masters = five_masters();
    masters[4].kill9();
    let gates: Vec<Gate> = masters[..4].iter().map(Gate::before).collect();
    let (mut left, mut right) = (addresses(&masters), addresses(&masters));
    for (at, gate) in gates.iter().enumerate() {
        let far_side = if at < 2 { &mut right } else { &mut left };
        far_side[at] = gate.address();
    }
    let settings = Settings {
        timeout: PATIENCE,
        tries: 1_000,
        retry_delay: Duration::from_millis(50),
        ..once()
    };
    thread::scope(|scope| {
        let clients = [left, right].map(|addresses| {
            let mut redlock = Redlock::new(&addresses, settings.clone()).expect("a client");
            scope.spawn(move || hold_once(&mut redlock))
        });
        let holders = || -> Option<Vec<String>> { masters[..4].iter().map(holder).collect() };
        let split = eventually("each of the four has a holder", holders);
        assert!(split[0] == split[1] && split[2] == split[3] && split[0] != split[2]);
        gates.iter().for_each(Gate::open_all);

        // One client may release so soon that the other client's first round succeeds.
        let holds = clients.map(|client| client.join().expect("a client that held the lock"));
        assert!(holds.iter().any(|(tries, _)| *tries > 1));
        for (tries, hold) in &holds {
            assert_eq!(*tries == 1, split.contains(&hold.token), "a token a round");
        }
        assert_one_at_a_time(&holds.map(|(_, hold)| hold));
    });
    assert_free_on(&masters[..4]);
}

/// One hold of a client.
struct Recorded {
    token: String,
    fences: Vec<Option<u64>>,
    from: Instant,
    to: Instant,
}

impl Recorded {
    /// Returns a hold that ends now, or at the end of its validity if that was earlier.
    fn until_now(held: &Held, from: Instant) -> Recorded {
        Recorded {
            token: held.token().to_owned(),
            fences: held.fences().to_vec(),
            from,
            to: held.until().min(Instant::now()),
        }
    }

    /// Returns the hold of a client that dies. It lasts until the end of its validity.
    fn to_the_end(held: &Held, from: Instant) -> Recorded {
        Recorded {
            to: held.until(),
            ..Recorded::until_now(held, from)
        }
    }
}

/// Takes the lock and releases it. Returns the number of rounds, and the hold.
fn hold_once(redlock: &mut Redlock) -> (u32, Recorded) {
    let held = redlock.lock("k").unwrap();
    let from = Instant::now();
    let tries = held.tries();
    let recorded = Recorded::until_now(&held, from);
    assert!(redlock.release(held) >= 3, "a quorum had it");
    (tries, recorded)
}

const CROWD: u64 = 6;
const SHORT_LEASE: Duration = Duration::from_millis(400);

/// Takes the lock again and again, and holds it for a moment. Now and then extends it, and now and
/// then leaves without a release. Returns the holds.
fn contend(
    mut redlock: Redlock,
    number: u64,
    holds: &AtomicUsize,
    over: &AtomicBool,
) -> Vec<Recorded> {
    let mut dice = Dice::new(number);
    let mut recorded = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Ok(mut held) = redlock.lock("k") else {
            continue;
        };
        let from = Instant::now();
        thread::sleep(Duration::from_millis(dice.below(15)));
        if dice.below(4) == 0 {
            // If the extension fails, the hold ends at its earlier deadline.
            drop(redlock.extend(&mut held));
            thread::sleep(Duration::from_millis(dice.below(15)));
        }
        if dice.below(20) == 0 {
            recorded.push(Recorded::to_the_end(&held, from));
        } else {
            recorded.push(Recorded::until_now(&held, from));
            redlock.release(held);
        }
        holds.fetch_add(1, Ordering::Relaxed);
    }
    recorded
}

/// A temporary mishap of a master.
#[derive(Clone, Copy)]
enum Mishap {
    None,
    Stop,
    Kill,
}

impl Mishap {
    fn befall(self, master: &mut Server) {
        match self {
            Mishap::None => {}
            Mishap::Stop => master.freeze(),
            Mishap::Kill => master.kill9(),
        }
    }

    fn end(self, master: &mut Server) {
        match self {
            Mishap::None => {}
            Mishap::Stop => master.thaw(),
            Mishap::Kill => master.restart(),
        }
    }
}

/// Stops or kills two masters at most. A killed master has forgotten everything, so it stays down
/// until the leases that it granted are over.
fn disturb(masters: &mut [Server], dice: &mut Dice) {
    let mishaps = [Mishap::None, Mishap::Stop, Mishap::Kill];
    let first = usize::try_from(dice.below(5)).expect("an index");
    let second = (first + 1 + usize::try_from(dice.below(4)).expect("an index")) % 5;
    let befallen = [first, second].map(|at| (at, *dice.pick(&mishaps)));
    for (at, mishap) in befallen {
        mishap.befall(&mut masters[at]);
    }
    thread::sleep(SHORT_LEASE + Duration::from_millis(20));
    for (at, mishap) in befallen {
        mishap.end(&mut masters[at]);
    }
}

#[test]
fn grants_never_overlap_while_masters_come_and_go() {
    let mut masters = five_masters();
    let settings = Settings {
        timeout: Duration::from_millis(60),
        retry_delay: Duration::from_millis(30),
        tries: 3,
        ..Settings::with_lease(SHORT_LEASE)
    };
    let over = AtomicBool::new(false);
    let counts: Vec<AtomicUsize> = (0..CROWD).map(|_| AtomicUsize::new(0)).collect();
    let recorded: Vec<Recorded> = thread::scope(|scope| {
        let ends = Over(&over);
        let clients: Vec<_> = (0..CROWD)
            .zip(&counts)
            .map(|(number, count)| {
                let redlock = client(&masters, settings.clone());
                let over = &over;
                scope.spawn(move || contend(redlock, number, count, over))
            })
            .collect();
        let end = Instant::now() + soak_time(Duration::from_secs(5));
        let mut dice = Dice::new(99);
        while Instant::now() < end {
            disturb(&mut masters, &mut dice);
        }
        until("each client has held the lock", || {
            counts.iter().all(|count| count.load(Ordering::Relaxed) > 0)
        });
        drop(ends);
        let parts = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        parts.flatten().collect()
    });
    assert_one_at_a_time(&recorded);
    assert_no_writer_overlaps(&by_master(&recorded));
}

#[track_caller]
fn assert_one_at_a_time(recorded: &[Recorded]) {
    assert!(recorded.len() > 1, "nothing to compare");
    let mut spans: Vec<_> = recorded
        .iter()
        .map(|hold| (hold.from, hold.to, &hold.token))
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        assert!(
            pair[0].1 <= pair[1].0,
            "{:?} overlaps {:?}",
            pair[0],
            pair[1]
        );
    }
}

/// Returns each master's grants like those of a separate lock, because fences order only the grants
/// of one master.
fn by_master(recorded: &[Recorded]) -> Vec<Hold> {
    let of_one = |hold: &Recorded, at: usize, fence: u64| Hold {
        key: format!("k of master {at}"),
        token: hold.token.clone(),
        mode: Mode::Exclusive,
        fence: i64::try_from(fence).expect("a fence"),
        from: hold.from,
        to: hold.to,
    };
    let of_all = |hold: &Recorded| -> Vec<Hold> {
        let fences = hold.fences.iter().enumerate();
        fences
            .filter_map(|(at, fence)| fence.map(|fence| of_one(hold, at, fence)))
            .collect()
    };
    recorded.iter().flat_map(of_all).collect()
}

// --- fences, and masters that forget --------------------------------------------------------

/// A resource that a lock guards. It accepts requests in the order of their fences.
#[derive(Default)]
struct Resource {
    highest: [u64; 5],
}

impl Resource {
    /// Returns true if a request with these fences is accepted.
    fn takes(&mut self, held: &Held) -> bool {
        let pairs = || self.highest.iter().zip(held.fences());
        if pairs().any(|(highest, fence)| fence.is_some_and(|fence| fence < *highest)) {
            return false;
        }
        self.highest =
            std::array::from_fn(|at| self.highest[at].max(held.fences()[at].unwrap_or(0)));
        true
    }
}

/// Takes `k` for a client while another token holds it at `others`.
#[track_caller]
fn lock_without(others: &[Server], redlock: &mut Redlock) -> Held {
    for master in others {
        master.call("LOCK.ACQUIRE k somebody").grant();
    }
    let held = redlock.lock("k").unwrap();
    for master in others {
        assert_eq!(master.call("LOCK.RELEASE k somebody").int(), 1);
    }
    held
}

#[test]
fn fences_tell_holders_apart_master_by_master_and_not_by_the_greatest() {
    let masters = five_masters();
    let hour_us = 3_600_000_000;
    payload::restore_with_fence(&masters[4], "ahead", unix_time_us() + hour_us);
    let mut redlock = client(&masters, once());
    let lock_and_lose = |redlock: &mut Redlock, others| {
        let held = lock_without(others, redlock);
        for master in &masters {
            master.call("DEL k").int();
        }
        held
    };
    let first = lock_and_lose(&mut redlock, &masters[..2]);
    let second = lock_and_lose(&mut redlock, &masters[3..]);
    let third = lock_and_lose(&mut redlock, &[]);
    assert_eq!(granted_by(&first), [2, 3, 4]);
    assert_eq!(granted_by(&second), [0, 1, 2]);
    assert!(first.fences().iter().max() > second.fences().iter().max());

    let mut resource = Resource::default();
    assert!(resource.takes(&first));
    assert!(resource.takes(&first));
    assert!(resource.takes(&second));
    assert!(!resource.takes(&first));
    assert!(resource.takes(&second));
    assert!(resource.takes(&third));
    assert!(!resource.takes(&second));
    assert!(!resource.takes(&first));
}

/// Lets a client hold `k` at the first three masters, restarts the third at once, and lets a second
/// client ask. Returns the first hold and the second client's outcome.
fn second_client_after_restart(third: Server) -> (Held, Result<Held, Missed>) {
    let mut masters = five_masters();
    masters[2] = third;
    let first = lock_without(&masters[3..], &mut client(&masters, once()));
    assert_eq!(granted_by(&first), [0, 1, 2]);
    masters[2].restart();
    let second = client(&masters, once()).lock("k");
    assert!(!first.left().is_zero());
    (first, second)
}

#[test]
fn a_master_that_forgets_and_is_back_too_soon_makes_a_second_holder_whom_fences_tell() {
    let (first, second) = second_client_after_restart(Server::start());
    let second = second.expect("a grant that shouldn't be");
    assert_eq!(granted_by(&second), [2, 3, 4]);
    let mut resource = Resource::default();
    assert!(resource.takes(&first));
    assert!(resource.takes(&second));
    assert!(!resource.takes(&first));
}

#[test]
fn a_master_that_writes_all_grants_to_disk_may_be_back_at_once() {
    let durable = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    let (_first, second) = second_client_after_restart(durable);
    assert_eq!(yes_votes(second), 2);
}

// --- the program ----------------------------------------------------------------------------

fn build_example() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--example", "redlock"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = cargo.status().expect("cargo, which runs this test");
    assert!(built.success(), "the example has to be built");
}

/// Returns the command that runs the current program. The first call builds it, because cargo
/// builds no examples for a single test binary.
fn program(masters: &[Server], options: &[&str], command: &str) -> Command {
    static BUILD: Once = Once::new();
    BUILD.call_once(build_example);
    let test = env::current_exe().expect("this test's own path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps");
    let program = profile.join("examples").join("redlock");
    let mut redlock = Command::new(program);
    redlock.args(addresses(masters)).args(["--key", "k"]);
    redlock.args(options).args(["--", "sh", "-c", command]);
    redlock.stdin(Stdio::piped()).stdout(Stdio::piped());
    redlock.stderr(Stdio::piped());
    redlock
}

/// Returns the first line that the program's command writes.
#[track_caller]
fn first_line(running: &mut Child) -> String {
    let mut line = String::new();
    let out = running.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// Waits until the program has ended. Its input stays open.
#[track_caller]
fn until_ended(running: &mut Child) {
    until("the program has ended", || {
        running.try_wait().expect("a child").is_some()
    });
}

/// Returns true if a process with this id exists.
fn is_alive(process_id: &str) -> bool {
    signal(process_id, 0)
}

#[track_caller]
fn assert_exit(output: &Output, code: i32, complaint: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(complaint), "{text}");
}

#[test]
fn the_program_holds_the_lock_for_as_long_as_its_command_runs() {
    let masters = five_masters();
    let mut running = program(
        &masters,
        &["--lease-ms", "900", "--timeout-ms", "250"],
        "echo \"$REDLOCK_FENCES\"; read line; exit 7",
    )
    .spawn()
    .expect("the program runs");
    let fences = first_line(&mut running);
    let token = holder(&masters[0]).expect("a holder");
    let granted: Vec<String> = masters
        .iter()
        .map(|master| {
            master
                .lock_info("k")
                .expect("a lock")
                .holder()
                .int("fence")
                .to_string()
        })
        .collect();
    assert_eq!(fences, granted.join(" "));

    // After four extensions, a third of a lease apart, the first lease is over.
    until("the lock has been extended", || {
        calls(&masters[0], "extend") >= 4
    });
    assert_held_on(&masters, &token);
    let refused = program(&masters, &["--tries", "1"], "echo never").output();
    let refused = refused.expect("the program runs");
    assert_exit(&refused, 75, "not held: yes from 0 masters, needed from 3");
    assert_eq!(refused.stdout, b"");

    let mut input = running.stdin.take().expect("a pipe");
    input.write_all(b"done\n").expect("a command that reads");
    until_ended(&mut running);
    let output = running.wait_with_output().expect("what it wrote");
    assert_exit(&output, 7, "");
    assert_free_on(&masters);
}

#[test]
fn the_program_kills_its_command_when_the_lock_is_lost() {
    let masters = five_masters();
    let mut running = program(
        &masters,
        &["--lease-ms", "900", "--timeout-ms", "250"],
        "echo $$; read line",
    )
    .spawn()
    .expect("the program runs");
    let process_id = first_line(&mut running);
    assert!(is_alive(&process_id));
    for master in &masters[..3] {
        master.freeze();
    }
    until_ended(&mut running);
    assert!(!is_alive(&process_id));
    let output = running.wait_with_output().expect("what it wrote");
    assert_exit(&output, 76, "the lock was lost, and the command killed");
    assert_free_on(&masters[3..]);
}
