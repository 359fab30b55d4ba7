//! FAILOVER, and the CLIENT PAUSE that comes with it: leases and waits end meanwhile, and no waiter
//! is forgotten.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Value;

use crate::contenders::{contend, grants, Plan, Route};
use support::history::{self, Hold, Outage};
use support::{assert_same_data, unix_time_ms, until, Client, Expect, Reply, Server, LONG};

/// Time within which a waiter is served once the server may do so. The module checks every 5 ms.
/// The rest allows for a busy machine.
const SOON: Duration = Duration::from_millis(500);

/// Starts a primary, and a replica that is in step with it.
#[track_caller]
pub fn pair() -> (Server, Server) {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    // The primary may send a new replica its first command up to a second later.
    primary.call("PUBLISH begun 1").int();
    replica.until_in_step(&primary);
    (primary, replica)
}

fn is_primary(server: &Server) -> bool {
    server.info("replication", "role") == "master"
}

/// Waits until the two servers have swapped roles, and the link between them is up.
#[track_caller]
pub fn until_swapped(old: &Server, new: &Server) {
    until("the replica is the primary", || is_primary(new));
    until("the old primary follows it", || {
        old.find_info("replication", "master_link_status")
            .as_deref()
            == Some("up")
    });
}

/// Returns the server's counts of grants, hand-overs and expirations.
fn decided(server: &Server) -> [String; 3] {
    ["lock_grants", "lock_hand_overs", "lock_expirations"].map(|field| server.info("lock", field))
}

/// Waits until the lease of `key`'s only holder is over by the server's clock.
#[track_caller]
fn until_expired(server: &Server, key: &str) {
    until(&format!("the lease of {key} is over"), || {
        server
            .lock_info(key)
            .is_none_or(|info| info.holders.is_empty())
    });
}

#[track_caller]
fn assert_unblocked(waiter: &mut Client) {
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED "), "{error}");
}

// ---- FAILOVER

/// Locks and waiters of several kinds at a primary that is about to hand over its role. `a` holds
/// `long` with a long lease and `brief` for 2500 ms. `c` holds `tied` in a session of 9000 ms.
struct Scene {
    session: Client,
    /// The waiters of `b`, one for each key, without a BLOCK.
    waiters: [Client; 3],
    /// The waiter for `long` with a BLOCK of 2000 ms.
    impatient: Client,
    highest: i64,
    /// The deadline of `tied` if its lease is not renewed, in Unix ms.
    tied_until_ms: i64,
}

const SCENE: [&str; 3] = ["long", "brief", "tied"];

impl Scene {
    #[track_caller]
    fn set(primary: &Server) -> Scene {
        let mut session = primary.client();
        primary.call(format!("LOCK.ACQUIRE long a {LONG}")).grant();
        let tied = "LOCK.ACQUIRE tied c PX 9000 SESSION";
        session.call(tied).grant();
        let brief = format!("LOCK.ACQUIRE brief a {LONG}");
        let highest = primary.call(brief).grant().fence;
        let wait = |key| primary.waiter(format!("LOCK.WAIT {key} b {LONG}"));
        let scene = Scene {
            session,
            waiters: SCENE.map(wait),
            impatient: primary.waiter("LOCK.WAIT long d BLOCK 2000"),
            highest,
            tied_until_ms: primary.call("PEXPIRETIME tied").int(),
        };
        assert_eq!(primary.call("LOCK.EXTEND brief a PX 2500").int(), 1);
        scene
    }
}

/// Asserts the state after the replica of [`Scene`]'s primary has taken over: leases run on, and
/// clients that ask again get their turn.
#[track_caller]
fn assert_taken_over(scene: Scene, old: &Server, new: &Server) {
    let decided_before = decided(old);
    // The old primary no longer renews the session, which would be due at a third of its lease.
    until("the time of a renewal is over", || {
        unix_time_ms() > scene.tied_until_ms - 6_000 + 5
    });
    old.settle();
    assert_eq!(old.call("PEXPIRETIME tied").int(), scene.tied_until_ms);
    let long = new.lock_info("long").expect("a holder");
    assert_eq!(long.holder_tokens(), ["a"]);
    let tied = new.lock_info("tied").expect("a holder");
    assert_eq!(tied.holder_tokens(), ["c"]);
    assert_eq!(
        tied.holder().int("session"),
        0,
        "the session ended with the old primary"
    );

    let mut waiter = new.client();
    let brief = waiter.call(format!("LOCK.WAIT brief b {LONG}")).grant();
    assert!(brief.fence > scene.highest, "{brief:?}");

    // The client ties the lock to a new session, whose end then releases the lock.
    let mut session = new.client();
    let extend = "LOCK.EXTEND tied c PX 9000 SESSION";
    assert_eq!(session.call(extend).int(), 1);
    let mut next = new.waiter(format!("LOCK.WAIT tied b {LONG}"));
    drop(scene.session);
    new.settle();
    next.expect_silence();
    session.close();
    assert!(next.recv().grant().fence > brief.fence);

    let mut long = new.waiter(format!("LOCK.WAIT long b {LONG}"));
    assert_eq!(new.call("LOCK.RELEASE long a").int(), 1);
    long.recv().grant();
    assert_same_data(new, &[old]);
    assert_eq!(decided(old), decided_before, "a replica decides nothing");
}

#[test]
fn a_failover_hands_over_holders_and_sends_waiters_on() {
    let (primary, replica) = pair();
    let mut scene = Scene::set(&primary);
    replica.until_in_step(&primary);
    // The replica is slow, so that a lease and a BLOCK end during the failover.
    replica.freeze();
    scene.highest = primary.call("LOCK.ACQUIRE unheard a").grant().fence;
    let before = decided(&primary);
    let failover = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 15000", replica.port());
    primary.call(failover).okay();
    scene.impatient.recv().nil();
    let state = primary.info("replication", "master_failover_state");
    assert_eq!(state, "waiting-for-sync");
    until_expired(&primary, "brief");
    primary.settle();
    for waiter in &mut scene.waiters {
        waiter.expect_silence();
    }
    let thawed = Instant::now();
    replica.thaw();
    for waiter in &mut scene.waiters {
        assert_unblocked(waiter);
    }
    let unblocked = thawed.elapsed();
    until_swapped(&primary, &replica);
    let swapped = thawed.elapsed();
    eprintln!(
        "FAILOVER: UNBLOCKED {unblocked:?}, roles changed {swapped:?} after the replica caught up"
    );
    assert_eq!(
        decided(&primary),
        before,
        "the pause grants and expires nothing"
    );
    assert!(replica.call("LOCK.CHECK unheard a").int() > 0);
    assert_taken_over(scene, &primary, &replica);
}

#[test]
fn a_forced_failover_leaves_a_replica_that_ends_nothing() {
    let (primary, replica) = pair();
    let mut scene = Scene::set(&primary);
    primary.call("LOCK.ACQUIRE later a PX 4500").grant();
    replica.until_in_step(&primary);
    replica.freeze();
    scene.highest = primary.call("LOCK.ACQUIRE unheard a").grant().fence;
    let before = decided(&primary);
    let size = primary.call("DBSIZE").int();
    let target = format!("127.0.0.1 {}", replica.port());
    let failover = format!("FAILOVER TO {target} FORCE TIMEOUT 3500");
    primary.call(failover).okay();
    scene.impatient.recv().nil();
    // The old primary has given up its role, and the new primary has not taken over yet.
    until("the primary gave up its role", || !is_primary(&primary));
    until_expired(&primary, "brief");
    until_expired(&primary, "later");
    primary.settle();
    assert_eq!(primary.call("DBSIZE").int(), size);
    assert_eq!(decided(&primary), before);
    replica.thaw();
    until_swapped(&primary, &replica);
    for waiter in &mut scene.waiters {
        assert_unblocked(waiter);
    }
    assert_taken_over(scene, &primary, &replica);
}

/// Valkey 9 keeps blocked clients waiting until the target has taken over. All other servers
/// unblock them before that, when they give up their role.
#[test]
fn an_aborted_forced_failover_loses_nobody() {
    let (primary, replica) = pair();
    let keys = ["deleted", "expired", "late"];
    let waiters = keys.map(|key| {
        primary.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        primary.waiter(format!("LOCK.WAIT {key} b {LONG}"))
    });
    primary.call_all(&[
        "LOCK.EXTEND expired a PX 2500",
        "LOCK.EXTEND late a PX 2500",
    ]);
    let mut impatient = primary.waiter("LOCK.WAIT deleted c BLOCK 2500");
    replica.until_in_step(&primary);
    replica.freeze();
    primary.call("SET unheard 1").okay();
    let target = format!("127.0.0.1 {}", replica.port());
    let failover = format!("FAILOVER TO {target} FORCE TIMEOUT 500");
    // DEL runs in the loop pass in which the pause begins, so it grants no waiter.
    primary.call_all(&["DEL deleted", &failover]);
    until("the primary gave up its role", || !is_primary(&primary));
    // The reply comes after BLOCK if the client still waits, and at once if it was unblocked.
    match impatient.recv() {
        Ok(reply) => assert_eq!(reply, Value::Nil),
        Err(error) => assert!(error.starts_with("UNBLOCKED "), "{error}"),
    }
    until_expired(&primary, "expired");
    assert!(!is_primary(&primary));
    primary.call("FAILOVER ABORT").okay();
    let aborted = Instant::now();
    let mut last = 0;
    for (key, mut waiter) in keys.iter().zip(waiters) {
        let grant = match waiter.recv() {
            Err(error) if error.starts_with("UNBLOCKED ") => {
                primary.call(format!("LOCK.WAIT {key} b {LONG}")).grant()
            }
            reply => reply.grant(),
        };
        last = last.max(grant.fence);
    }
    let took = aborted.elapsed();
    assert!(took < SOON, "granted {took:?} after the end");
    assert!(primary.call("LOCK.ACQUIRE more a").grant().fence > last);
    replica.thaw();
    // A link that was cut may still look up.
    primary.call("SET again 1").okay();
    until("the replica follows again", || {
        replica.call("EXISTS again") == Ok(Value::Int(1))
    });
    assert_same_data(&primary, &[&replica]);
}

#[test]
fn an_aborted_failover_goes_on_where_it_stood() {
    let (primary, replica) = pair();
    let mut scene = Scene::set(&primary);
    replica.until_in_step(&primary);
    replica.freeze();
    primary.call("SET unheard 1").okay();
    primary.call("FAILOVER").okay();
    scene.impatient.recv().nil();
    until_expired(&primary, "brief");
    // If a session closes during the pause, its lock is released after the pause.
    scene.session.close();
    // A release that is sent during the pause is executed after it.
    let mut holder = primary.client();
    holder.send("LOCK.RELEASE long a");
    primary.settle();
    for waiter in &mut scene.waiters {
        waiter.expect_silence();
    }
    holder.expect_silence();
    let aborted = Instant::now();
    primary.call("FAILOVER ABORT").okay();
    for waiter in &mut scene.waiters {
        let fence = waiter.recv().grant().fence;
        assert!(fence > scene.highest, "{fence} after {}", scene.highest);
    }
    let took = aborted.elapsed();
    assert!(took < SOON, "granted {took:?} after the end");
    assert_eq!(holder.recv().int(), 1);
    replica.thaw();
    assert_same_data(&primary, &[&replica]);
}

#[test]
fn a_crowd_goes_on_over_failovers_back_and_forth() {
    let servers = pair();
    let both = [&servers.0, &servers.1];
    let find = |_: &str, _: Option<&str>| {
        let takes_writes = |port: &u16| {
            let role =
                Client::try_connect(*port).and_then(|mut it| it.try_call("INFO replication"));
            role.is_ok_and(|info| Ok(info).text().contains("role:master"))
        };
        let port = both.map(Server::port).into_iter().find(takes_writes)?;
        Some(Route {
            port,
            asking: false,
        })
    };
    let keys = |name: &str| (0..4).map(|number| format!("{name}{number}")).collect();
    let brisk = Plan {
        keys: keys("brisk"),
        contenders: 3,
        lease_ms: 1_000,
        hold_ms: 1..15,
        lapses_of_ten: 0,
        replicas: 0,
    };
    let steady = Plan {
        keys: keys("steady"),
        contenders: 3,
        lease_ms: 3_000,
        hold_ms: 800..2_500,
        lapses_of_ten: 0,
        replicas: 0,
    };
    let (histories, outages) = contend([brisk, steady], &find, || {
        [(0, 1), (1, 0), (0, 1), (1, 0)].map(|(old, new)| hand_over_role(both[old], both[new]))
    });
    for history in &histories {
        history::fences_rise(&history.grants).unwrap();
        // FAILOVER loses no effect of a command that was answered.
        history::no_writer_overlaps(&history.holds).unwrap();
        assert!(history.lost.is_empty(), "{:#?}", history.lost);
    }
    let [brisk, steady] = &histories;
    history::nobody_stuck(&brisk.waits, &outages, Duration::from_secs(2)).unwrap();
    let lasted = |hold: &&Hold| {
        let mut outages = outages.iter();
        outages.any(|outage| hold.from < outage.from && hold.to > outage.to)
    };
    let kept = steady.holds.iter().filter(lasted).count();
    eprintln!(
        "FAILOVER: a write after {:?}; {} and {} grants; {kept} holds went on; errors: {:?}",
        outages.map(|outage| outage.to - outage.from),
        brisk.grants.len(),
        steady.grants.len(),
        brisk.errors
    );
    assert!(kept > 0, "no client held a lock throughout a failover");
}

/// Lets a crowd work for a while, then makes the other server take over. Returns the outage.
#[track_caller]
fn hand_over_role(old: &Server, new: &Server) -> Outage {
    let before = grants(old);
    until("the crowd is at work", || grants(old) > before + 300);
    until("the replica is listed", || {
        old.info("replication", "slave0").contains("state=online")
    });
    take_over(old, new)
}

/// Makes the replica take over and the old primary follow it. Returns the outage.
#[track_caller]
pub fn take_over(old: &Server, new: &Server) -> Outage {
    let from = Instant::now();
    old.call(format!("FAILOVER TO 127.0.0.1 {}", new.port()))
        .okay();
    until("a write succeeds", || new.call("SET probe 1").is_ok());
    let to = Instant::now();
    until_swapped(old, new);
    Outage { from, to }
}

// ---- CLIENT PAUSE

/// Length of the pause, in ms.
const PAUSE_MS: i64 = 800;

/// Number of keys whose leases end one after the other, during the pause and after it.
const KEYS: i64 = 50;

/// Returns the lease of a key when the pause begins, in ms.
fn lease_ms(number: i64) -> i64 {
    50 + number * 20
}

#[test]
fn nobody_is_lost_in_a_pause_of_writes() {
    assert_nobody_is_lost_in_a_pause("WRITE");
}

#[test]
fn nobody_is_lost_in_a_pause_of_everything() {
    assert_nobody_is_lost_in_a_pause("ALL");
}

#[track_caller]
fn assert_nobody_is_lost_in_a_pause(mode: &str) {
    let (primary, replica) = pair();
    let mut session = primary.client();
    session.call("LOCK.ACQUIRE tied s PX 2000 SESSION").grant();
    let mut gone = primary.client();
    gone.call("LOCK.ACQUIRE gone s PX 20000 SESSION").grant();
    let mut heir = primary.waiter(format!("LOCK.WAIT gone b {LONG}"));
    let hold_and_wait = |number| {
        let hold = format!("LOCK.ACQUIRE k{number} a {LONG}");
        primary.call(hold).grant();
        primary.waiter(format!("LOCK.WAIT k{number} b {LONG}"))
    };
    let patient: Vec<Client> = (0..KEYS).map(hold_and_wait).collect();
    let impatient: Vec<Impatient> = (1..8).map(|n| Impatient::wait(&primary, n * 100)).collect();
    let mut commands: Vec<String> = (0..KEYS)
        .map(|number| format!("LOCK.EXTEND k{number} a PX {}", lease_ms(number)))
        .collect();
    commands.push(format!("CLIENT PAUSE {PAUSE_MS} {mode}"));
    let start_ms = unix_time_ms();
    primary.call_all(&commands);
    gone.close();

    for waiter in impatient {
        waiter.assert_nil_in_time();
    }
    let over_ms = start_ms + PAUSE_MS;
    let granted = |waiter: &mut Client, lease_over_ms: i64| {
        // A fence is the time of its grant, in microseconds.
        let granted_ms = waiter.recv().grant().fence / 1_000;
        let late_ms = granted_ms - over_ms.max(lease_over_ms);
        assert!((0..500).contains(&late_ms), "{late_ms} ms after it was due");
    };
    for (number, mut waiter) in (0..KEYS).zip(patient) {
        granted(&mut waiter, start_ms + lease_ms(number));
    }
    granted(&mut heir, over_ms);
    let left_ms = primary.call("LOCK.CHECK tied s").int();
    assert!(left_ms > 0, "its lease is longer than the pause");
    let renewed = || primary.call("LOCK.CHECK tied s").int() > left_ms;
    until("the session is renewed again", renewed);
    assert_same_data(&primary, &[&replica]);
}

/// A waiter whose BLOCK ends before the lock is free. A thread of its own reads the reply.
struct Impatient {
    answer: JoinHandle<(Reply, Instant)>,
    asked: Instant,
    block: Duration,
}

impl Impatient {
    #[track_caller]
    fn wait(primary: &Server, block_ms: u64) -> Impatient {
        let mut client = primary.client();
        let asked = Instant::now();
        client.send(format!("LOCK.WAIT gone w{block_ms} BLOCK {block_ms}"));
        // The waiter is in the queue, or out of it again, before the pause begins.
        primary.settle();
        Impatient {
            answer: thread::spawn(move || (client.recv(), Instant::now())),
            asked,
            block: Duration::from_millis(block_ms),
        }
    }

    #[track_caller]
    fn assert_nil_in_time(self) {
        let (reply, answered) = self.answer.join().expect("an answer");
        reply.nil();
        let late = (answered - self.asked).saturating_sub(self.block);
        assert!(late < SOON, "{:?}, and {late:?} more", self.block);
    }
}
