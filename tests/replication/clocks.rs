//! Wall clocks set back and forward under a running server, and servers whose clocks differ.
//!
//! tests/replication/moved.c gives a server its own wall clock, which the test moves. A timeout like
//! BLOCK doesn't depend on the wall clock. A lease is a deadline on it.
#![cfg(target_os = "linux")]

use std::ops::Deref;
use std::time::{Duration, Instant};

use support::payload::{body, Frame, StoredHolder};
use support::{
    assert_same_data, eventually, unix_time_ms, unix_time_us, until, Builder, Client, Expect,
    Fields, Reply, Server, LONG, PATIENCE,
};

const SECOND_MS: i64 = 1_000;
const HOUR_MS: i64 = 3_600 * SECOND_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// A lease that outlasts every clock move in this file.
const VERY_LONG: &str = "PX 9007199254740991";

/// The delay allowed on a busy machine. Most tests move the clock by far more, an hour or days.
const IN_TIME: Duration = Duration::from_secs(5);

/// The server's time resolution: it counts whole milliseconds.
const GRAIN: Duration = Duration::from_millis(1);

/// The wall clock of every server started with this clock's `builder`.
struct Clock(redis_lock_rig::Clock);

impl Deref for Clock {
    type Target = redis_lock_rig::Clock;

    fn deref(&self) -> &redis_lock_rig::Clock {
        &self.0
    }
}

impl Clock {
    #[track_caller]
    fn new() -> Clock {
        Clock(redis_lock_rig::Clock::in_step())
    }

    /// Like `set_ms`, but returns once the server has seen the move. Valkey 9 reads the wall clock
    /// only now and then.
    #[track_caller]
    fn set_for(&self, server: &Server, ahead_ms: i64) {
        self.set_ms(ahead_ms);
        until("the server has seen its clock move", || {
            let off_ms = time_ms(server) - unix_time_ms() - ahead_ms;
            off_ms.abs() < SECOND_MS / 2
        });
    }

    fn builder(&self) -> Builder {
        let environment = self.environment();
        environment
            .iter()
            .fold(Server::builder(), |builder, (name, value)| {
                builder.environment(name, value)
            })
    }

    #[track_caller]
    fn server(&self) -> Server {
        self.builder().start()
    }
}

/// Returns the server's wall clock, in ms.
#[track_caller]
fn time_ms(server: &Server) -> i64 {
    let words = server.call("TIME").list();
    let [seconds, us] = [0, 1].map(|at| Ok(words[at].clone()).text().parse::<i64>());
    seconds.expect("a number") * SECOND_MS + us.expect("a number") / 1_000
}

/// Reads a reply and returns it with the time elapsed since `since`.
#[track_caller]
fn timed(client: &mut Client, since: Instant) -> (Reply, Duration) {
    let reply = client.recv();
    (reply, since.elapsed())
}

#[test]
fn the_clock_of_a_server_is_moved() {
    let clock = Clock::new();
    let server = clock.server();
    for ahead_ms in [0, -HOUR_MS, 3 * DAY_MS + 1, -DAY_MS - 999] {
        clock.set_for(&server, ahead_ms);
        // The module sees the same clock, so the server's TTL matches the lease.
        server.call("LOCK.ACQUIRE k a PX 60000").grant();
        let left_ms = server.call("PTTL k").int();
        assert!((30_000..=60_000).contains(&left_ms), "{left_ms}");
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    }
}

// ---- set back while the timer is pending

/// Sets the clock back by an hour while the server sleeps in a transaction, and returns the waiter
/// for `k`. The transaction has just deleted `k`, so the module's timer is pending.
#[track_caller]
fn set_back_while_the_timer_is_pending(server: &Server, clock: &Clock) -> Client {
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut sleeper = server.client();
    sleeper.send_batch(&[
        "MULTI",
        "DEL k",
        "DEBUG LOG asleep",
        "DEBUG SLEEP 1",
        "EXEC",
    ]);
    until("the server sleeps", || server.log().contains("asleep"));
    clock.set_ms(-HOUR_MS);
    for _ in 0..4 {
        sleeper.recv().value();
    }
    sleeper.recv().list();
    waiter
}

#[test]
fn a_waiter_is_granted_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = clock.server();
    let mut waiter = set_back_while_the_timer_is_pending(&server, &clock);
    let (reply, took) = timed(&mut waiter, Instant::now());
    assert_eq!(reply.grant().token, "b");
    assert!(took < IN_TIME, "{took:?}");
}

#[test]
fn a_wait_ends_in_time_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = clock.server();
    let _waiter = set_back_while_the_timer_is_pending(&server, &clock);
    server.call(format!("LOCK.ACQUIRE other a {LONG}")).grant();
    let since = Instant::now();
    let mut waiter = server.client();
    waiter.send("LOCK.WAIT other b BLOCK 300");
    let (reply, took) = timed(&mut waiter, since);
    reply.nil();
    assert!(took < IN_TIME, "{took:?}");
}

#[test]
fn a_lease_granted_after_the_clock_was_set_back_ends_in_time() {
    let clock = Clock::new();
    let server = clock.server();
    let _waiter = set_back_while_the_timer_is_pending(&server, &clock);
    let since = Instant::now();
    server.call("LOCK.ACQUIRE other a PX 300").grant();
    let mut waiter = server.client();
    waiter.send(format!("LOCK.WAIT other b {LONG}"));
    let (reply, took) = timed(&mut waiter, since);
    assert_eq!(reply.grant().token, "b");
    assert!(took < IN_TIME, "{took:?}");
}

#[test]
fn a_session_ends_with_its_connection_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = clock.server();
    let mut before = server.client();
    before.call("LOCK.ACQUIRE before s PX 3000 SESSION").grant();
    let _waiter = set_back_while_the_timer_is_pending(&server, &clock);
    let mut after = server.client();
    after.call("LOCK.ACQUIRE after s PX 600000 SESSION").grant();
    for (session, key) in [(before, "before"), (after, "after")] {
        let mut waiter = server.waiter(format!("LOCK.WAIT {key} b {LONG}"));
        let since = Instant::now();
        session.close();
        let (reply, took) = timed(&mut waiter, since);
        assert_eq!(reply.grant().token, "b", "{key}");
        assert!(took < IN_TIME, "{key}: {took:?}");
    }
}

// ---- set back and forward at any time

#[test]
fn a_wait_lasts_as_long_as_it_says_whatever_the_clock_does() {
    const SPAN: Duration = Duration::from_millis(1_500);
    for moved_ms in [-HOUR_MS, -3 * DAY_MS, -SECOND_MS, HOUR_MS, 3 * DAY_MS] {
        let clock = Clock::new();
        let server = clock.server();
        server.call(format!("LOCK.ACQUIRE k a {VERY_LONG}")).grant();
        let mut waiter = server.client();
        let since = Instant::now();
        waiter.send("LOCK.WAIT k b BLOCK 1500");
        server.until_blocked(&mut waiter);
        clock.set_ms(moved_ms);
        let (reply, took) = timed(&mut waiter, since);
        reply.nil();
        assert!(took >= SPAN - GRAIN, "moved by {moved_ms} ms: {took:?}");
        assert!(took < SPAN + IN_TIME, "moved by {moved_ms} ms: {took:?}");
    }
}

#[test]
fn a_wait_that_outlasts_many_moves_of_the_clock_ends_in_time() {
    const SPAN: Duration = Duration::from_millis(2_000);
    let clock = Clock::new();
    let server = clock.server();
    server.call(format!("LOCK.ACQUIRE k a {VERY_LONG}")).grant();
    let since = Instant::now();
    let mut waiter = server.client();
    waiter.send("LOCK.WAIT k b BLOCK 2000");
    server.until_blocked(&mut waiter);
    for round in 1..=10 {
        clock.set_ms(if round % 2 == 0 { round } else { -round } * HOUR_MS);
        // Settling the name between two moves must not restart the timeout.
        server.call("LOCK.ACQUIRE k c").nil();
        until("the next move is due", || {
            since.elapsed() > SPAN * round as u32 / 12
        });
    }
    let (reply, took) = timed(&mut waiter, since);
    reply.nil();
    assert!(took >= SPAN - GRAIN && took < SPAN + IN_TIME, "{took:?}");
}

/// Asserts that all times of a reply that end with `-ms` are those of a test that began just now.
#[track_caller]
fn assert_recent(fields: &Fields, names: &[&str], most_ms: i64, what: &str) {
    for name in names {
        let ms = fields.int(name);
        assert!((0..most_ms).contains(&ms), "{name}, {what}: {ms}");
    }
}

/// Waits, places, marks, and what LOCK.INFO, LOCK.HOT and INFO tell of them.
#[test]
fn waits_places_and_marks_last_and_are_told_whatever_the_clock_does() {
    const SPAN_MS: i64 = 60_000;
    for moved_ms in [-HOUR_MS, HOUR_MS, -3 * DAY_MS, 3 * DAY_MS] {
        let what = format!("moved by {moved_ms} ms");
        let clock = Clock::new();
        let server = clock.server();
        server.call(format!("LOCK.ACQUIRE k a {VERY_LONG}")).grant();
        server.call("LOCK.RELEASE k gone LEAVE 86400000").int();
        let _waiter = server.waiter("LOCK.WAIT k w BLOCK 600000");
        server.call("LOCK.QUEUE k q KEEP 600000").int();
        let lost = server.waiter("LOCK.WAIT k l KEEP 600000");
        clock.set_for(&server, moved_ms);
        lost.reset();
        until(&format!("its place is kept, {what}"), || {
            let queue = server.known_lock("k").queue;
            queue.len() == 3 && queue[2].text("kind") == "absent"
        });
        let queue = server.known_lock("k").queue;
        for waiter in &queue {
            assert_recent(waiter, &["waiting-ms"], SPAN_MS, &what);
        }
        for (place, name) in [(0, "timeout-ms"), (1, "keep-ms"), (2, "keep-ms")] {
            let left_ms = queue[place].int(name);
            let range = 600_000 - SPAN_MS..=600_000;
            assert!(range.contains(&left_ms), "{name}, {what}: {left_ms}");
        }
        let hot = Fields::of(server.call("LOCK.HOT").list().remove(0));
        assert_eq!(hot.int("waits"), 3, "{what}");
        assert_recent(&hot, &["longest-wait-ms"], SPAN_MS, &what);
        assert_recent(&hot, &["waited-ms"], 3 * SPAN_MS, &what);
        let oldest = server.info("lock", "lock_oldest_wait_ms");
        let oldest_ms: i64 = oldest.parse().expect("a number");
        assert!((1..SPAN_MS).contains(&oldest_ms), "{what}: {oldest_ms}");
        let late = server.call("LOCK.ACQUIRE k gone").error();
        assert!(late.starts_with("LEFT"), "{what}: {late}");
    }
}

/// The end of a session is a write that the server would refuse to a client now.
#[test]
fn what_is_postponed_is_done_soon_though_the_clock_was_set() {
    for moved_ms in [-HOUR_MS, HOUR_MS] {
        let clock = Clock::new();
        let server = clock.server();
        clock.set_for(&server, moved_ms);
        let deferred = |count: &str| {
            until(
                &format!("{count} postponed, moved by {moved_ms} ms"),
                || server.info("lock", "lock_deferred") == count,
            );
        };
        let mut session = server.client();
        session.call("LOCK.ACQUIRE k s PX 30000 SESSION").grant();
        server.call("CONFIG SET min-replicas-to-write 1").okay();
        session.close();
        deferred("1");
        server.call("CONFIG SET min-replicas-to-write 0").okay();
        deferred("0");
        until("the lock is free", || server.lock_info("k").is_none());
    }
}

#[test]
fn replies_that_wait_for_replicas_come_though_the_clock_was_set() {
    let clock = Clock::new();
    let (primary, replica) = (clock.server(), Server::start());
    replica.replica_of(&primary);
    primary.until_acknowledged_by(1);
    for moved_ms in [0, -HOUR_MS, HOUR_MS, -3 * DAY_MS, 0] {
        clock.set_for(&primary, moved_ms);
        let command = format!("LOCK.ACQUIRE k a {VERY_LONG} REPLICAS 1 WITHIN 600000");
        primary.call(command).grant();
        let since = Instant::now();
        // A replica that stands still never acknowledges.
        replica.freeze();
        let late = primary
            .call("LOCK.EXTEND k a PX 900000000 REPLICAS 1 WITHIN 100")
            .error();
        assert!(late.starts_with("NOREPLICAS"), "{late}");
        assert!(since.elapsed() < IN_TIME, "moved by {moved_ms} ms");
        replica.thaw();
    }
}

#[test]
fn leases_end_when_the_clock_is_set_beyond_them_and_the_next_is_told_soon() {
    const SOON: Duration = Duration::from_millis(200);
    let clock = Clock::new();
    let server = clock.server();
    let mut fastest = PATIENCE;
    for round in 1..=20 {
        // A busy machine may delay some rounds, but not every round.
        if round > 5 && fastest < SOON {
            break;
        }
        server
            .call(format!("LOCK.ACQUIRE k{round} a {LONG}"))
            .grant();
        server
            .call(format!("LOCK.ACQUIRE alone{round} a {LONG}"))
            .grant();
        let mut waiter = server.waiter(format!("LOCK.WAIT k{round} b {LONG}"));
        let since = Instant::now();
        clock.set_ms(round * HOUR_MS);
        let (reply, took) = timed(&mut waiter, since);
        assert_eq!(reply.grant().token, "b");
        fastest = fastest.min(took);
        assert_eq!(server.call(format!("LOCK.CHECK alone{round} a")).int(), 0);
        let left_ms = server.call(format!("LOCK.CHECK k{round} b")).int();
        assert!((1..=600_000).contains(&left_ms), "{left_ms}");
    }
    assert!(fastest < SOON, "{fastest:?}");
}

/// The server expires no key here, because other leases go on. And something else may arm the timer anew
/// between the set clock and the next comparison of the clocks: here a replica that attaches.
#[test]
fn a_clock_set_forward_ends_those_leases_of_several_that_it_passes() {
    for _ in 0..5 {
        let clock = Clock::new();
        let (primary, replica) = (clock.server(), Server::start());
        replica.replica_of(&primary);
        let (waiter, next) = share_with_two_waiters(&primary);
        set_beyond_one_lease_after_the_other(&clock, &primary, waiter, next);
        assert_same_data(&primary, &[&replica]);
    }
}

/// Grants `k` to three holders for 1, 3 and 5 hours. Returns two who wait for a permit.
#[track_caller]
fn share_with_two_waiters(server: &Server) -> (Client, Client) {
    for (token, hours) in [("a", 1), ("b", 3), ("c", 5)] {
        let lease_ms = hours * HOUR_MS;
        let command = format!("LOCK.ACQUIRE k {token} PX {lease_ms} SHARED LIMIT 3");
        server.call(command).grant();
    }
    let wait = |token| {
        let command = format!("LOCK.WAIT k {token} PX {DAY_MS} SHARED LIMIT 3");
        server.waiter(command)
    };
    (wait("w"), wait("x"))
}

#[track_caller]
fn set_beyond_one_lease_after_the_other(
    clock: &Clock,
    server: &Server,
    mut waiter: Client,
    mut next: Client,
) {
    let holders = || server.known_lock("k").holder_tokens();
    clock.set_for(server, 2 * HOUR_MS);
    waiter.recv().grant();
    assert_eq!(holders(), ["b", "c", "w"]);
    for (token, hours) in [("b", 1), ("c", 3), ("w", 24)] {
        let left_ms = server.call(format!("LOCK.CHECK k {token}")).int();
        let most = hours * HOUR_MS;
        let range = most - HOUR_MS / 2..=most;
        assert!(range.contains(&left_ms), "{token}: {left_ms} ms");
    }
    next.expect_silence();
    clock.set_for(server, 4 * HOUR_MS);
    next.recv().grant();
    assert_eq!(holders(), ["c", "w", "x"]);
}

#[test]
fn a_session_is_renewed_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = clock.server();
    let mut session = server.client();
    session.call("LOCK.ACQUIRE k s PX 1500 SESSION").grant();
    clock.set_for(&server, -HOUR_MS);
    // On the moved clock the lease runs an hour longer. EXTEND makes it 1500 ms again.
    assert_eq!(session.call("LOCK.EXTEND k s PX 1500").int(), 1);
    let since = Instant::now();
    until("several leases are over", || {
        since.elapsed() > 3 * Duration::from_millis(1500)
    });
    let info = server.known_lock("k");
    assert_eq!(info.holder().int("session"), 1);
    assert!(server.call("LOCK.CHECK k s").int() > 0);
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    session.close();
    assert_eq!(waiter.recv().grant().token, "b");
}

/// The server reads its clock once and then fires every timer that is due by that reading. A timer
/// armed meanwhile, on a clock set back by an hour, is due by the old reading, again and again.
#[test]
fn the_server_serves_on_though_the_clock_is_set_back_as_the_timer_fires() {
    let clock = Clock::new();
    let server = clock.server();
    let mut session = server.client();
    for hours in 1..400 {
        // The timer fires for one of the 40 keys all the time. Each key is acquired anew, because a
        // grant timed by Valkey 9's cached clock may have expired.
        let command = format!("LOCK.ACQUIRE k{} s PX 30 SESSION", hours % 40);
        session.call(command).grant();
        clock.set_after(1 + hours % 50, -hours * HOUR_MS);
        until("the server has read its clock that often", || {
            assert!(server.call("PING").is_ok());
            clock.ahead_ms() == -hours * HOUR_MS
        });
    }
}

#[test]
fn fences_rise_though_the_clock_was_set_back() {
    let clock = Clock::new();
    let server = clock.server();
    let mut last = 0;
    for moved_ms in [0, -HOUR_MS, HOUR_MS, -3 * DAY_MS, DAY_MS, 0] {
        clock.set_for(&server, moved_ms);
        let fence = server.call("LOCK.ACQUIRE k a").grant().fence;
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

/// The commands that save the whole data set, each with the settings that it needs.
const SAVES: [(&str, &[&str]); 4] = [
    ("SAVE", &["appendonly no"]),
    ("BGSAVE", &["appendonly no"]),
    ("BGREWRITEAOF", &["appendonly yes"]),
    (
        "BGREWRITEAOF",
        &["appendonly yes", "aof-use-rdb-preamble no"],
    ),
];

/// Waits until no background save is running and no AOF rewrite is running or scheduled.
#[track_caller]
fn until_saved(server: &Server) {
    until("it is saved", || {
        let is_over = |field: &str| server.info("persistence", field) == "0";
        is_over("rdb_bgsave_in_progress")
            && is_over("aof_rewrite_in_progress")
            && is_over("aof_rewrite_scheduled")
    });
}

#[test]
fn fences_rise_over_a_restart_though_the_last_lock_had_gone_and_the_clock_was_set_back() {
    for (how, settings) in SAVES {
        for moved_ms in [-10 * SECOND_MS, HOUR_MS - DAY_MS] {
            let clock = Clock::new();
            let builder = settings
                .iter()
                .fold(clock.builder(), |it, line| it.config(line));
            let mut server = builder.start();
            let last = server.call("LOCK.ACQUIRE k a").grant().fence;
            assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
            assert!(server.call(how).is_ok(), "{how}");
            until_saved(&server);
            assert_eq!(server.call("DBSIZE").int(), 0, "{how}: no key is visible");
            server.kill9();
            clock.set_ms(moved_ms);
            server.restart();
            let next = server.call("LOCK.ACQUIRE k a").grant().fence;
            let scene = format!("{how}, {settings:?}, {moved_ms} ms");
            assert!(next > last, "{scene}: {next} after {last}");
            assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
            assert_eq!(server.call("DBSIZE").int(), 0, "{scene}: nothing is left");
        }
    }
}

#[test]
fn fences_rise_over_a_restart_of_a_cluster_s_node_and_no_slot_is_taken_over() {
    for (how, settings) in SAVES {
        let clock = Clock::new();
        let builder = settings
            .iter()
            .fold(clock.builder(), |it, line| it.config(line));
        let mut node = builder
            .config("cluster-enabled yes")
            .config("cluster-require-full-coverage no")
            .start();
        // `k` is in slot 7629.
        node.call("CLUSTER ADDSLOTSRANGE 7000 8000").okay();
        let grant = |node: &Server| {
            eventually("it serves its slots", || {
                let mut client = node.client();
                let reply = client.call("LOCK.ACQUIRE k a").ok()?;
                Some(Ok(reply).grant().fence)
            })
        };
        let last = grant(&node);
        assert_eq!(node.call("LOCK.RELEASE k a").int(), 1);
        assert!(node.call(how).is_ok(), "{how}");
        until_saved(&node);
        node.kill9();
        clock.set_ms(-HOUR_MS);
        node.restart();
        let next = grant(&node);
        assert!(next > last, "{how}, {settings:?}: {next} after {last}");
        assert_eq!(node.call("LOCK.RELEASE k a").int(), 1);
        assert_eq!(node.call("DBSIZE").int(), 0, "{how}: nothing is left");
        assert!(!node.call("CLUSTER NODES").text().contains('['), "{how}");
        assert!(
            node.call("CLUSTER NODES").text().contains(" 7000-8000"),
            "{how}"
        );
    }
}

#[test]
fn fences_rise_on_a_promoted_replica_that_attached_without_a_lock_and_whose_clock_is_behind() {
    for diskless in ["no", "yes"] {
        let clock = Clock::new();
        clock.set_ms(-HOUR_MS);
        let setting = format!("repl-diskless-sync {diskless}");
        let primary = Server::builder()
            .config(&setting)
            .config("repl-diskless-sync-delay 0")
            .start();
        let last = primary.call("LOCK.ACQUIRE k a").grant().fence;
        assert_eq!(primary.call("LOCK.RELEASE k a").int(), 1);
        let (replica, in_time) = (clock.server(), Server::start());
        for follower in [&replica, &in_time] {
            follower.replica_of(&primary);
            follower.until_in_step(&primary);
        }
        until("neither the primary nor a replica has a key", || {
            let sizes = [&primary, &replica, &in_time].map(|it| it.call("DBSIZE").int());
            sizes == [0, 0, 0]
        });
        assert_same_data(&primary, &[&replica, &in_time]);
        replica.call("REPLICAOF NO ONE").okay();
        let next = replica.call("LOCK.ACQUIRE k a").grant().fence;
        assert!(next > last, "{setting}: {next} after {last}");
    }
}

#[test]
fn a_clock_set_back_by_more_than_a_day_bounds_the_last_fence_of_a_file() {
    for (how, settings) in SAVES {
        let clock = Clock::new();
        let builder = settings
            .iter()
            .fold(clock.builder(), |it, line| it.config(line));
        let mut server = builder.start();
        let last = server.call("LOCK.ACQUIRE k a").grant().fence;
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert!(server.call(how).is_ok(), "{how}");
        until_saved(&server);
        server.kill9();
        clock.set_ms(-3 * DAY_MS);
        let most = || unix_time_us() - 2 * DAY_MS * 1_000;
        let least = most();
        server.restart();
        let next = server.call("LOCK.ACQUIRE k a").grant().fence;
        let scene = format!("{how}, {settings:?}: {next}");
        assert!((least..=most()).contains(&next), "{scene}");
        let line = format!("the last fence of the loaded file, {last}, counts as a day ahead");
        assert!(server.log().contains(&line), "{scene}");
    }
}

#[test]
fn a_key_in_the_place_of_the_last_fence_that_has_expired_unseen_harms_no_save() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    primary.call("LOCK.ACQUIRE k a").grant();
    primary.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    // The primary deletes such a key on a replica that has just come online, so one try may fail.
    until("the replica has an expired key of this name", || {
        let set = ["SET", "redis-lock:last-fence:", "1", "PX", "300"];
        primary.call(&set).okay();
        replica.until_in_step(&primary);
        until("it has expired", || {
            replica.call("EXISTS redis-lock:last-fence:").int() == 0
        });
        replica.call("DBSIZE").int() == 2
    });
    for server in [&replica, &primary] {
        server.call("SAVE").okay();
        server.call("CLIENT PAUSE 100000 WRITE").okay();
        assert!(server.call("BGSAVE").is_ok());
        until("it is saved", || {
            server.info("persistence", "rdb_bgsave_in_progress") == "0"
        });
        assert_eq!(server.info("persistence", "rdb_last_bgsave_status"), "ok");
        server.call("CLIENT UNPAUSE").okay();
    }
}

// ---- clocks apart

/// Returns a RESTORE payload of a shared lock with three holders and leases of ten days. Their
/// fences are consecutive and end at `highest_fence`.
#[track_caller]
fn shared_by_three(server: &Server, highest_fence: i64) -> Vec<u8> {
    let holders: Vec<StoredHolder> = (0..3)
        .map(|number| {
            let holder = StoredHolder::new(format!("h{number}").as_bytes());
            StoredHolder {
                fence: u64::try_from(highest_fence - 2 + number).expect("a fence"),
                deadline_ms: holder.since_ms + 10 * DAY_MS as u64,
                ..holder
            }
        })
        .collect();
    Frame::from(server).payload(&body(1, &holders))
}

#[track_caller]
fn restore(server: &Server, key: &str, payload: &[u8]) -> Reply {
    server.call(&[b"RESTORE".as_slice(), key.as_bytes(), b"0", payload])
}

/// Returns a fence that a server accepts from RESTORE. The server's limit is one day ahead of its
/// clock; the fence is one second lower, a margin for a busy machine.
fn a_day_ahead_us() -> i64 {
    unix_time_us() + (DAY_MS - SECOND_MS) * 1_000
}

#[test]
fn a_replica_takes_what_its_primary_takes_however_far_their_clocks_are_apart() {
    for apart_ms in [-3 * SECOND_MS, -DAY_MS, -5 * DAY_MS, 3 * SECOND_MS, DAY_MS] {
        let clock = Clock::new();
        clock.set_ms(apart_ms);
        let (primary, replica) = (Server::start(), clock.server());
        replica.replica_of(&primary);
        let payload = shared_by_three(&primary, a_day_ahead_us());
        restore(&primary, "k", &payload).okay();
        primary
            .call(format!("LOCK.ACQUIRE own a {VERY_LONG}"))
            .grant();
        replica.until_in_step(&primary);
        for server in [&primary, &replica] {
            let info = server.known_lock("k");
            assert_eq!(info.holder_tokens(), ["h0", "h1", "h2"], "{apart_ms} ms");
        }
        assert_same_data(&primary, &[&replica]);
        // A replica that attaches later gets the whole data set at once.
        let late = clock.server();
        late.replica_of(&primary);
        assert_same_data(&primary, &[&replica, &late]);
        assert_eq!(late.known_lock("k").holders.len(), 3, "{apart_ms} ms");
        // After promotion, the replica's fences continue from the primary's, whatever its clock
        // says.
        let last = primary.call("LOCK.ACQUIRE last a").grant().fence;
        replica.until_in_step(&primary);
        replica.call("REPLICAOF NO ONE").okay();
        assert!(replica.call("LOCK.ACQUIRE next a").grant().fence > last);
    }
}

#[test]
fn a_server_whose_clock_was_put_right_takes_its_own_dump() {
    let clock = Clock::new();
    clock.set_ms(4 * DAY_MS);
    let server = clock.server();
    let grant = server.call(format!("LOCK.ACQUIRE k a {VERY_LONG}")).grant();
    clock.set_for(&server, 0);
    let dump = server.call("DUMP k").bytes();
    assert_eq!(server.call("DEL k").int(), 1);
    restore(&server, "k", &dump).okay();
    let again = server.call(format!("LOCK.ACQUIRE k a {VERY_LONG}")).grant();
    assert_eq!(again, grant);
    assert!(server.call("LOCK.ACQUIRE next a").grant().fence > grant.fence);
    server.call("DEBUG RELOAD").okay();
    assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
}

#[test]
fn a_forged_fence_more_than_a_day_ahead_of_clock_and_own_fences_is_refused() {
    let clock = Clock::new();
    let server = clock.server();
    server.call("LOCK.ACQUIRE own a").grant();
    let too_far_us = a_day_ahead_us() + 60 * SECOND_MS * 1_000;
    let payload = shared_by_three(&server, too_far_us);
    restore(&server, "k", &payload).error();
    assert_eq!(server.lock_info("k"), None);
    let next = server.call("LOCK.ACQUIRE next a").grant().fence;
    assert!(next < too_far_us - DAY_MS * 1_000 / 2, "{next}");
    restore(&server, "k", &shared_by_three(&server, a_day_ahead_us())).okay();
}

#[test]
fn forging_again_and_again_doesnt_lead_the_fences_away() {
    let server = Server::start();
    let limit_us = unix_time_us() + 2 * DAY_MS * 1_000;
    for round in 0..10 {
        let last: i64 = server
            .info("lock", "lock_last_fence")
            .parse()
            .expect("a fence");
        let ahead_us = last.max(unix_time_us()) + (DAY_MS - SECOND_MS) * 1_000;
        let payload = shared_by_three(&server, ahead_us);
        // Only the first payload's fences are at most a day ahead of the clock.
        let taken = restore(&server, &format!("k{round}"), &payload);
        assert_eq!(taken.is_ok(), round == 0, "round {round}: {taken:?}");
        // A grant numbered after the restored fence doesn't raise the limit for RESTORE.
        let fence = server
            .call(format!("LOCK.ACQUIRE own{round} a"))
            .grant()
            .fence;
        assert!(fence < limit_us, "round {round}: {fence}");
    }
}

#[test]
fn a_restore_by_a_client_of_a_writable_replica_leaves_numbers_for_later_fences() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    replica.until_in_step(&primary);
    replica.call("CONFIG SET replica-read-only no").okay();
    let greatest = StoredHolder {
        fence: u64::MAX,
        ..StoredHolder::new(b"h")
    };
    let payload = Frame::from(&primary).payload(&body(1, &[greatest]));
    drop(restore(&replica, "k", &payload));
    replica.call("REPLICAOF NO ONE").okay();

    let fences = [1, 2].map(|n| replica.call(format!("LOCK.ACQUIRE own{n} a")).grant().fence);

    assert!(0 < fences[0] && fences[0] < fences[1], "{fences:?}");
}

#[test]
fn fences_rise_over_a_shutdown_that_waits_for_a_replica_in_vain() {
    let clock = Clock::new();
    let (mut primary, replica) = (clock.server(), Server::start());
    replica.replica_of(&primary);
    replica.until_in_step(&primary);
    let last = primary.call("LOCK.ACQUIRE k a").grant().fence;
    assert_eq!(primary.call("LOCK.RELEASE k a").int(), 1);
    replica.freeze();
    primary.call("CONFIG SET shutdown-timeout 1").okay();
    // The replica doesn't acknowledge this, so the server pauses writes before it saves.
    primary.call("SET unacknowledged 1").okay();
    primary.shutdown("SAVE");
    clock.set_ms(HOUR_MS - DAY_MS);
    primary.restart();
    assert!(primary.call("LOCK.ACQUIRE k a").grant().fence > last);
}
