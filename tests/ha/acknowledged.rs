//! WAIT after a grant: its reply never counts a replica that lacks the grant.
//!
//! The tests stop the only replica, so it acknowledges no grant made after that.

use redis::Value;

use support::{until, Client, Expect, Grant, Server, LONG};

/// A primary and its only replica.
struct Pair {
    primary: Server,
    replica: Server,
}

impl Pair {
    #[track_caller]
    fn start() -> Pair {
        let primary = Server::builder()
            // The server checks the timeouts of blocked clients this many times a second.
            .config("hz 250")
            .config("busy-reply-threshold 50")
            .start();
        let replica = Server::builder()
            .config("appendonly yes")
            .config("appendfsync always")
            .start();
        replica.replica_of(&primary);
        Pair { primary, replica }
    }

    /// Stops the replica once it has acknowledged every grant so far. A later reply of WAIT then
    /// concerns only later grants.
    #[track_caller]
    fn freeze(&self) {
        until("the replica has acknowledged everything", || {
            let text = self.primary.call("INFO replication").text();
            let acknowledged = text.split("offset=").nth(1);
            let acknowledged = acknowledged.and_then(|rest| rest.split(',').next());
            let sent = text.split("master_repl_offset:").nth(1);
            let sent = sent.and_then(|rest| rest.lines().next());
            acknowledged.is_some() && acknowledged == sent
        });
        self.replica.freeze();
    }

    /// Asserts that WAIT counts the replica only once it has the grant. `client` must have been
    /// granted `key` since the replica stopped.
    #[track_caller]
    fn assert_wait_tells_the_truth(
        &self,
        client: &mut Client,
        key: &str,
        grant: &Grant,
        how: &str,
    ) {
        assert_eq!(client.call("WAIT 1 60").int(), 0, "{how}: on no replica");
        self.replica.thaw();
        assert_eq!(client.call("WAIT 1 15000").int(), 1, "{how}");
        // Look only once, because the grant must be there already.
        let info = self.replica.lock_info(key);
        let info = info.unwrap_or_else(|| panic!("{how}: {key} isn't at the replica"));
        let holders = info.holders.iter();
        let mut fences = holders.map(|it| (it.text("token"), it.int("fence")));
        assert!(
            fences.any(|(token, fence)| token == grant.token && fence == grant.fence),
            "{how}: {info:?} lacks {grant:?}"
        );
    }
}

/// An event that hands `k` over from `a` to the next waiter in the queue.
type HandOver = fn(&Server);

const HAND_OVERS: [(&str, HandOver); 10] = [
    ("a release", |server| {
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    }),
    ("the end of a lease", |server| {
        assert_eq!(server.call("LOCK.EXTEND k a PX 20").int(), 1);
    }),
    ("a lease that a stalled server finds over", |server| {
        server.call_batch(&["LOCK.EXTEND k a PX 20", "DEBUG SLEEP 0.05"]);
    }),
    ("DEL", |server| assert_eq!(server.call("DEL k").int(), 1)),
    ("UNLINK", |server| {
        assert_eq!(server.call("UNLINK k").int(), 1);
    }),
    ("RENAME", |server| server.call("RENAME k elsewhere").okay()),
    ("FLUSHALL", |server| server.call("FLUSHALL").okay()),
    ("a transaction", |server| {
        let commands = ["MULTI", "SET x 1", "LOCK.RELEASE k a", "SET y 1", "EXEC"];
        server.call_batch(&commands);
    }),
    ("a script", |server| {
        let script = "redis.call('SET','x',1) \
            redis.call('LOCK.RELEASE','k','a') redis.call('SET','y',1)";
        server.call(&["EVAL", script, "1", "k"]).nil();
    }),
    ("a release of several", |server| {
        assert_eq!(server.call("LOCK.MRELEASE 2 k l a").int(), 1);
    }),
];

#[test]
fn wait_covers_what_was_handed_over() {
    let pair = Pair::start();
    for hand_over in HAND_OVERS {
        assert_wait_covers(&pair, "LOCK.WAIT k b", hand_over);
    }
}

#[test]
fn wait_covers_what_was_handed_over_to_other_kinds_of_waiters() {
    let pair = Pair::start();
    let [release, expiration, ..] = HAND_OVERS;
    for hand_over in [release, expiration] {
        assert_wait_covers(&pair, "LOCK.WAIT k b SHARED", hand_over);
        assert_wait_covers(&pair, "LOCK.WAIT k b SESSION", hand_over);
        assert_wait_covers(&pair, "LOCK.MWAIT 2 k l b", hand_over);
    }
}

#[track_caller]
fn assert_wait_covers(pair: &Pair, command: &str, (how, hand_over): (&str, HandOver)) {
    pair.primary.call("FLUSHALL").okay();
    pair.primary
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant();
    let mut waiter = pair.primary.waiter(format!("{command} {LONG}"));
    pair.freeze();
    hand_over(&pair.primary);
    let grant = waiter.recv().grant();
    let how = format!("{how}, {command}");
    pair.assert_wait_tells_the_truth(&mut waiter, "k", &grant, &how);
}

#[test]
fn wait_covers_what_was_handed_over_where_it_was_sent_along() {
    let pair = Pair::start();
    let command = format!("LOCK.WAIT k b {LONG}");
    for (how, hand_over) in HAND_OVERS {
        pair.primary.call("FLUSHALL").okay();
        pair.primary
            .call(format!("LOCK.ACQUIRE k a {LONG}"))
            .grant();
        let mut waiter = pair.primary.client();
        waiter.send_batch(&[&command, "WAIT 1 60"]);
        pair.primary.until_blocked(&mut waiter);
        pair.freeze();
        hand_over(&pair.primary);
        waiter.recv().grant();
        assert_eq!(waiter.recv().int(), 0, "{how}");
        pair.replica.thaw();
    }
}

#[test]
fn wait_covers_a_grant_that_needed_no_waiting() {
    let pair = Pair::start();
    for (before, command) in [
        ("", "LOCK.ACQUIRE k b"),
        ("", "LOCK.WAIT k b"),
        ("", "LOCK.ACQUIRE k b SHARED LIMIT 3"),
        ("", "LOCK.ACQUIRE k b SESSION"),
        ("", "LOCK.MACQUIRE 2 k l b"),
        ("", "LOCK.MWAIT 2 k l b"),
        ("LOCK.ACQUIRE k b PX 1000", "LOCK.ACQUIRE k b"),
        ("LOCK.ACQUIRE k b PX 1000", "LOCK.WAIT k b"),
        ("LOCK.ACQUIRE k b PX 1000", "LOCK.WAIT k b REENTRANT"),
        ("LOCK.ACQUIRE k b PX 1000", "LOCK.ACQUIRE k b SHARED"),
        ("LOCK.MACQUIRE 2 k l b PX 1000", "LOCK.MACQUIRE 2 k l b"),
        // The first lease is over before the second command, so the server finds the key expired.
        ("LOCK.ACQUIRE k a PX 1", "LOCK.WAIT k b"),
    ] {
        pair.primary.call("FLUSHALL").okay();
        if !before.is_empty() {
            pair.primary.call(before).grant();
        }
        pair.freeze();
        let mut client = pair.primary.client();
        let grant = client.call(format!("{command} {LONG}")).grant();
        let how = format!("{before}; {command}");
        pair.assert_wait_tells_the_truth(&mut client, "k", &grant, &how);
    }
}

#[test]
fn wait_covers_an_extension_on_another_connection() {
    let pair = Pair::start();
    for command in [
        "LOCK.EXTEND k a",
        "LOCK.MEXTEND 1 k a",
        "LOCK.EXTEND k a SESSION",
    ] {
        pair.primary.call("FLUSHALL").okay();
        let mut client = pair.primary.client();
        pair.freeze();
        let grant = pair.primary.call("LOCK.ACQUIRE k a PX 60000").grant();
        assert_eq!(client.call(format!("{command} {LONG}")).int(), 1);
        pair.assert_wait_tells_the_truth(&mut client, "k", &grant, command);
    }
}

/// Attempts to hit the millisecond in which a command changes nothing.
const TRIES: usize = 60;

#[test]
fn wait_covers_a_command_that_changes_nothing_because_it_comes_in_the_same_millisecond() {
    let pair = Pair::start();
    let commands = [
        "LOCK.EXTEND k# a",
        "LOCK.MEXTEND 1 k# a",
        "LOCK.ACQUIRE k# a",
        "LOCK.WAIT k# a",
        "LOCK.MACQUIRE 1 k# a",
        "LOCK.MWAIT 1 k# a",
    ];
    let mut clients: Vec<Client> = (0..TRIES).map(|_| pair.primary.client()).collect();
    for command in commands {
        pair.primary.call("FLUSHALL").okay();
        pair.freeze();
        for (number, client) in clients.iter_mut().enumerate() {
            let number = number.to_string();
            let acquire = format!("LOCK.ACQUIRE k{number} a {LONG}");
            pair.primary.call(acquire).grant();
            let command = format!("{command} {LONG}").replace('#', &number);
            client.send_batch(&[&command, "WAIT 1 50"]);
        }
        let told_safe = clients.iter_mut().map(|client| {
            client.recv().value();
            client.recv().int()
        });
        let told_safe: i64 = told_safe.sum();
        assert_eq!(told_safe, 0, "{command}: of {TRIES}");
        pair.replica.thaw();
    }
}

/// A script that keeps the server busy for a while before and after it releases `k`.
const BUSY_RELEASE: &str = "
    local function now()
        local time = redis.call('TIME')
        return time[1] * 1000 + time[2] / 1000
    end
    local function work(ms)
        local start = now()
        while now() - start < ms do end
    end
    work(150)
    redis.call('LOCK.RELEASE', 'k', 'a')
    work(250)
    redis.call('SET', 'over', 1)";

#[test]
fn wait_covers_what_a_busy_script_handed_over() {
    let pair = Pair::start();
    pair.primary
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant();
    let mut waiter = pair.primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut script = pair.primary.client();
    pair.freeze();
    script.send(&["EVAL", BUSY_RELEASE, "1", "k"]);
    until("other clients get BUSY", || {
        let told = pair.primary.call("PING");
        told.is_err_and(|error| error.starts_with("BUSY "))
    });
    // The server reads and writes by now, but replicates the script's effects only at its end.
    waiter.expect_silence();
    let grant = waiter.recv().grant();
    script.recv().nil();
    pair.assert_wait_tells_the_truth(&mut waiter, "k", &grant, "a busy script");
}

#[test]
fn waitaof_covers_what_was_handed_over() {
    let pair = Pair::start();
    if pair.primary.call("WAITAOF 0 0 1").is_err() {
        // Redis 7.0 has no WAITAOF.
        return;
    }
    pair.primary
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant();
    let mut waiter = pair.primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    pair.freeze();
    assert_eq!(pair.primary.call("LOCK.RELEASE k a").int(), 1);
    waiter.recv().grant();
    let nobody = Ok(Value::Array(vec![Value::Int(0), Value::Int(0)]));
    assert_eq!(waiter.call("WAITAOF 0 1 60"), nobody);
    pair.replica.thaw();
    let one = Ok(Value::Array(vec![Value::Int(0), Value::Int(1)]));
    assert_eq!(waiter.call("WAITAOF 0 1 15000"), one);
}
