//! Grants that are tied to a connection: renewed while the connection is open, released when it
//! closes.

use redis::Value;
use support::{
    eventually, unix_time_ms, until, Client, Expect, Fields, Flavour, Grant, Reply, Server, LONG,
};

/// Opens a connection and ties `key` to it, held by `token`.
#[track_caller]
fn tied(server: &Server, key: &str, token: &str) -> Client {
    let mut client = server.client();
    acquire_tied(&mut client, key, token);
    client
}

#[track_caller]
fn acquire_tied(client: &mut Client, key: &str, token: &str) -> Grant {
    client
        .call(format!("LOCK.ACQUIRE {key} {token} {LONG} SESSION"))
        .grant()
}

#[track_caller]
fn session(server: &Server, key: &str) -> i64 {
    server.known_lock(key).holder().int("session")
}

fn waiter(server: &Server, key: &str, token: &str) -> Client {
    server.waiter(format!("LOCK.WAIT {key} {token} {LONG}"))
}

#[track_caller]
fn until_free(server: &Server, key: &str) {
    until(&format!("{key} is free"), || {
        server.lock_info(key).is_none() && server.call(&["EXISTS", key]).int() == 0
    });
}

/// Closes a connection and waits until the server has noticed and acted on it.
#[track_caller]
fn close_and_settle(server: &Server, client: Client) {
    let id = client.id();
    client.close();
    until("the connection is gone", || !server.is_connected(id));
    server.settle();
}

/// Closes a connection that `key` isn't tied to, and asserts that `token` still holds `key`.
#[track_caller]
fn assert_survives(server: &Server, client: Client, key: &str, token: &str) {
    close_and_settle(server, client);
    assert_eq!(server.known_lock(key).holder_tokens(), [token]);
    assert!(server.call(format!("LOCK.CHECK {key} {token}")).int() > 0);
}

/// Watches the lease until it was renewed `times` times, and asserts that it never ends meanwhile.
#[track_caller]
fn assert_renewed(client: &mut Client, key: &str, token: &str, times: usize) {
    let mut before = i64::MAX;
    let mut renewals = 0;
    until("the lease is renewed", || {
        let left = client.call(format!("LOCK.CHECK {key} {token}")).int();
        assert!(left > 0, "the lease ended after {renewals} renewals");
        renewals += usize::from(left > before);
        before = left;
        renewals >= times
    });
}

/// Watches the lease until it ends, and asserts that it isn't renewed before.
#[track_caller]
fn assert_runs_out(server: &Server, key: &str, token: &str) {
    let mut before = i64::MAX;
    until("the lease ends", || {
        let left = server.call(format!("LOCK.CHECK {key} {token}")).int();
        assert!(left <= before, "renewed: {left} ms after {before} ms");
        before = left;
        left == 0
    });
}

// ---- while the connection lives

#[test]
fn a_session_outlives_its_lease_many_times() {
    let server = Server::start();
    let mut holder = server.client();
    let grant = holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    let mut next = waiter(&server, "k", "b");
    let start = unix_time_ms();
    let mut client = server.client();
    while unix_time_ms() - start < 3 * 1500 {
        let left = client.call("LOCK.CHECK k a").int();
        assert!((1..=1500).contains(&left), "{left} ms left");
    }
    next.expect_silence();
    let own = server.known_lock("k").holder().clone();
    assert_eq!(own.int("fence"), grant.fence);
    assert!(own.int("held-ms") >= 3 * 1500, "held since the one grant");
    assert_eq!(own.int("session"), 1);
    // The holder still has the lock, and its release grants the next waiter.
    assert_eq!(holder.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(next.recv().grant().token, "b");
}

#[test]
fn a_session_is_renewed_at_a_third_of_its_lease() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    // The test uses the server's own times, so its own delay doesn't matter. A lease ends 1500 ms
    // after its renewal, so its deadline gives the time of the renewal. That gives the rest of the
    // old lease.
    let mut deadline_ms = server.call("PEXPIRETIME k").int();
    let mut lows = [0; 5];
    for low in &mut lows {
        let before_ms = deadline_ms;
        deadline_ms = eventually("the lease is renewed", || {
            let now_ms = server.call("PEXPIRETIME k").int();
            (now_ms > before_ms).then_some(now_ms)
        });
        *low = before_ms - (deadline_ms - 1500);
    }
    // Two thirds are left, or less if the timer was late. If the test looks too late, it misses a
    // renewal and computes too little.
    lows.sort_unstable();
    let low = lows[2];
    assert!((625..=1050).contains(&low), "renewed with {low} ms left");
}

#[test]
fn every_kind_of_lock_can_be_a_session() {
    let server = Server::start();
    let mut holder = server.client();
    for command in [
        "LOCK.ACQUIRE k1 a PX 1500 SESSION",
        "LOCK.WAIT k2 a PX 1500 SESSION SHARED",
        "LOCK.ACQUIRE k3 a PX 1500 SHARED LIMIT 2 SESSION",
        "LOCK.MACQUIRE 2 k4 k5 a SESSION PX 1500",
        "LOCK.MWAIT 2 k6 k7 a PX 1500 REENTRANT SESSION",
    ] {
        holder.call(command).grant();
    }
    let mut client = server.client();
    for number in 1..=7 {
        let key = format!("k{number}");
        assert_renewed(&mut client, &key, "a", 2);
        assert_eq!(session(&server, &key), 1, "{key}");
    }
    holder.close();
    for number in 1..=7 {
        until_free(&server, &format!("k{number}"));
    }
}

// ---- the end of the connection

/// A way to end a connection.
type End = fn(&Server, Client);

const ENDS: [(&str, End); 3] = [
    ("FIN", |_, client| client.close()),
    ("RST", |_, client| client.reset()),
    ("CLIENT KILL", |server, client| {
        let kill = format!("CLIENT KILL ID {}", client.id());
        assert_eq!(server.call(kill).int(), 1);
    }),
];

#[test]
fn the_end_of_the_connection_releases_at_once() {
    for (way, end) in ENDS {
        let server = Server::start();
        let holder = tied(&server, "k", "a");
        let kept = server.known_lock("k").holder().int("fence");
        let mut next = waiter(&server, "k", "b");
        let mut behind = waiter(&server, "k", "c");
        end(&server, holder);
        let grant = next.recv().grant();
        assert!(grant.token == "b" && grant.fence > kept, "{way}");
        behind.expect_silence();
        assert_eq!(server.known_lock("k").holder_tokens(), ["b"], "{way}");
        // The session doesn't pass to the next holder.
        assert_eq!(session(&server, "k"), 0, "{way}");
        assert_survives(&server, next, "k", "b");
        let last = tied(&server, "k2", "a");
        end(&server, last);
        until_free(&server, "k2");
    }
}

#[test]
fn all_locks_of_a_connection_are_released() {
    let server = Server::start();
    let mut holder = server.client();
    for number in 0..100 {
        acquire_tied(&mut holder, &format!("k{number}"), &format!("t{number}"));
    }
    let acquire = |token: &str, options: &str| {
        server
            .call(format!(
                "LOCK.ACQUIRE shared {token} {LONG} SHARED {options}"
            ))
            .grant()
    };
    acquire("other", "");
    holder
        .call(format!("LOCK.ACQUIRE shared a {LONG} SHARED SESSION"))
        .grant();
    holder
        .call(format!("LOCK.MACQUIRE 3 m1 m2 m3 a {LONG} SESSION"))
        .grant();
    let mut elsewhere = waiter(&server, "m2", "b");
    let mut several = server.waiter(format!("LOCK.MWAIT 3 k0 k99 m3 c {LONG}"));
    // The holder waits for one more lock when its connection ends.
    server.call(format!("LOCK.ACQUIRE far z {LONG}")).grant();
    server.block(&mut holder, format!("LOCK.WAIT far a {LONG} SESSION"));
    holder.reset();
    elsewhere.recv().grant();
    several.recv().grant();
    assert_eq!(server.known_lock("k99").holder_tokens(), ["c"]);
    for number in 1..99 {
        until_free(&server, &format!("k{number}"));
    }
    until_free(&server, "m1");
    assert_eq!(server.known_lock("shared").holder_tokens(), ["other"]);
    assert_eq!(server.known_lock("far").holder_tokens(), ["z"]);
    server.until_waiters("far", 0);
}

#[test]
fn the_end_of_the_connection_drops_all_holds() {
    let server = Server::start();
    let mut holder = server.client();
    for _ in 0..3 {
        holder
            .call(format!("LOCK.ACQUIRE k a {LONG} REENTRANT SESSION"))
            .grant();
    }
    assert_eq!(server.known_lock("k").holder().int("holds"), 3);
    holder.close();
    until_free(&server, "k");
}

#[test]
fn one_tied_permit_of_several_admits_one() {
    let server = Server::start();
    let wait = |token: &str| format!("LOCK.WAIT k {token} {LONG} SHARED LIMIT 2 SESSION");
    let mut holders = ["a", "b"].map(|token| {
        let mut client = server.client();
        client.call(wait(token)).grant();
        client
    });
    let mut waiters = [server.waiter(wait("c")), server.waiter(wait("d"))];
    let [dying, staying] = &mut holders;
    std::mem::replace(dying, server.client()).reset();
    assert_eq!(waiters[0].recv().grant().token, "c");
    server.settle();
    waiters[1].expect_silence();
    assert_eq!(server.known_lock("k").holder_tokens(), ["b", "c"]);
    assert_eq!(staying.call("LOCK.RELEASE k b").int(), 1);
    assert_eq!(waiters[1].recv().grant().token, "d");
}

#[test]
fn a_connection_that_ends_during_a_pause_releases_after_it() {
    let server = Server::start();
    let holder = tied(&server, "k", "a");
    let mut next = waiter(&server, "k", "b");
    server.call("CLIENT PAUSE 600000 WRITE").okay();
    close_and_settle(&server, holder);
    next.expect_silence();
    server.call("CLIENT UNPAUSE").okay();
    assert_eq!(next.recv().grant().token, "b");
}

// ---- the connection of a session

#[test]
fn extend_moves_the_session_to_its_connection() {
    let server = Server::start();
    let first = tied(&server, "k", "a");
    let mut second = server.client();
    second.call("CLIENT SETNAME second").okay();
    let extend = format!("LOCK.EXTEND k a {LONG} SESSION");
    assert_eq!(second.call(extend).int(), 1);
    let own = server.known_lock("k").holder().clone();
    assert_eq!(
        (
            own.int("session"),
            own.int("client-id"),
            own.text("client-name")
        ),
        (1, second.id(), "second".to_owned())
    );
    assert_survives(&server, first, "k", "a");
    assert_eq!(session(&server, "k"), 1);
    second.close();
    until_free(&server, "k");
}

#[test]
fn extend_ties_a_lock_that_was_not_tied() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(session(&server, "k"), 0);
    let mut client = server.client();
    assert_eq!(client.call("LOCK.EXTEND k a PX 1500 SESSION").int(), 1);
    assert_renewed(&mut client, "k", "a", 3);
    client.reset();
    until_free(&server, "k");
}

#[test]
fn extend_with_nosession_unties() {
    let server = Server::start();
    let client = tied(&server, "k", "a");
    let mut second = server.client();
    second
        .call(format!("LOCK.MACQUIRE 2 k1 k2 a {LONG} SESSION"))
        .grant();
    assert_eq!(server.call("LOCK.EXTEND k a NOSESSION").int(), 1);
    assert_eq!(server.call("LOCK.MEXTEND 2 k1 k2 a nosession").int(), 2);
    // The client's fields still show the connection that was granted.
    for (key, id) in [("k", client.id()), ("k2", second.id())] {
        let own = server.known_lock(key).holder().clone();
        assert_eq!((own.int("session"), own.int("client-id")), (0, id));
    }
    assert_survives(&server, client, "k", "a");
    assert_survives(&server, second, "k2", "a");
    assert_eq!(server.call("LOCK.EXTEND k a PX 300 NOSESSION").int(), 1);
    assert_runs_out(&server, "k", "a");
}

#[test]
fn a_tied_grant_is_renewed_by_the_length_that_it_was_set_to() {
    let server = Server::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a PX 1500").grant();
    assert_eq!(client.call("LOCK.EXTEND k a SESSION").int(), 1);
    assert!(server.call("LOCK.CHECK k a").int() <= 1500);
    assert_renewed(&mut client, "k", "a", 2);
    assert_eq!(server.call("LOCK.EXTEND k a PX 2250").int(), 1);
    assert_eq!(server.call("LOCK.EXTEND k a").int(), 1);
    assert!((1500..=2250).contains(&server.call("LOCK.CHECK k a").int()));
    assert_renewed(&mut client, "k", "a", 2);
}

#[test]
fn a_kept_grant_ends_so_long_after_its_connection() {
    let server = Server::start();
    let mut client = server.client();
    for (key, lease) in [("short", "PX 900"), ("long", LONG)] {
        let acquire = format!("LOCK.ACQUIRE {key} a {lease} SESSION KEEP 100000");
        client.call(acquire).grant();
    }
    client
        .call(format!(
            "LOCK.MACQUIRE 2 m1 m2 a {LONG} SHARED SESSION KEEP 300"
        ))
        .grant();
    client
        .call(&[
            "EVAL",
            "return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'SESSION', 'KEEP', 100000)",
            "1",
            "scripted",
        ])
        .grant();
    let mut waiter = waiter(&server, "m2", "b");
    close_and_settle(&server, client);
    for key in ["short", "long", "scripted"] {
        until("it is untied", || session(&server, key) == 0);
        let left_ms = server.call(["LOCK.CHECK", key, "a"].as_slice()).int();
        assert!((50_000..=100_000).contains(&left_ms), "{key}: {left_ms}");
        let ttl_ms = server.call(["PTTL", key].as_slice()).int();
        assert!((left_ms - 5_000..=left_ms + 5).contains(&ttl_ms), "{key}");
    }
    assert_eq!(waiter.recv().grant().token, "b");
    until_free(&server, "m1");
    // The lease is plain now, also after a reload.
    server.call("DEBUG RELOAD").okay();
    assert!(server.call("LOCK.CHECK long a").int() > 50_000);
    assert_eq!(server.call("LOCK.EXTEND long a").int(), 1);
    assert!(
        server.call("LOCK.CHECK long a").int() > 500_000,
        "its own length"
    );
}

#[test]
fn a_kept_grant_of_a_killed_client_is_tied_again_by_its_token() {
    let server = Server::start();
    let mut client = server.client();
    client
        .call(format!("LOCK.WAIT k a {LONG} SESSION KEEP 60000"))
        .grant();
    let id = client.id();
    assert_eq!(server.call(format!("CLIENT KILL ID {id}")).int(), 1);
    until("it is untied", || session(&server, "k") == 0);
    let mut again = server.client();
    assert_eq!(again.call("LOCK.EXTEND k a PX 1500 SESSION").int(), 1);
    assert_renewed(&mut again, "k", "a", 2);
    // The latest SESSION has no KEEP.
    again.close();
    until_free(&server, "k");
}

#[test]
fn many_grants_of_one_connection_are_kept() {
    let server = Server::start();
    let mut client = server.client();
    let take = |number: usize| format!("LOCK.ACQUIRE k t{number} {LONG} SHARED SESSION KEEP 90000");
    let takes: Vec<String> = (0..1_000).map(take).collect();
    client.call_all(&takes);
    let take = |number: usize| format!("LOCK.ACQUIRE k{number} t {LONG} SESSION KEEP 90000");
    let takes: Vec<String> = (0..1_000).map(take).collect();
    client.call_all(&takes);
    close_and_settle(&server, client);
    until("no grant is tied", || {
        server.info("lock", "lock_sessions") == "0"
    });
    for check in ["LOCK.CHECK k t7", "LOCK.CHECK k t999", "LOCK.CHECK k999 t"] {
        let left_ms = server.call(check).int();
        assert!((40_000..=90_000).contains(&left_ms), "{check}: {left_ms}");
    }
    assert_eq!(server.call("DBSIZE").int(), 1_001);
}

#[test]
fn extend_ties_nothing_that_its_token_does_not_hold() {
    let server = Server::start();
    let mut client = server.client();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(client.call("LOCK.EXTEND k b SESSION").int(), 0);
    assert_eq!(session(&server, "k"), 0);
    assert_eq!(server.call("LOCK.EXTEND k a PX 30").int(), 1);
    until_free(&server, "k");
    assert_eq!(client.call("LOCK.EXTEND k a SESSION").int(), 0);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn mextend_moves_the_sessions_of_all_its_keys() {
    let server = Server::start();
    let mut first = server.client();
    first
        .call(format!("LOCK.MACQUIRE 3 k1 k2 k3 a {LONG} SESSION"))
        .grant();
    let mut second = server.client();
    let mextend = format!("LOCK.MEXTEND 2 k1 k2 a {LONG} SESSION");
    assert_eq!(second.call(mextend).int(), 2);
    first.close();
    until_free(&server, "k3");
    for key in ["k1", "k2"] {
        assert_eq!(session(&server, key), 1, "{key}");
    }
    second.close();
    for key in ["k1", "k2"] {
        until_free(&server, key);
    }
}

#[test]
fn a_repeat_with_session_moves_the_session_too() {
    for repeat in ["LOCK.ACQUIRE k", "LOCK.WAIT k", "LOCK.MACQUIRE 1 k"] {
        let server = Server::start();
        let mut first = server.client();
        let grant = acquire_tied(&mut first, "k", "a");
        let mut second = server.client();
        let again = second.call(format!("{repeat} a {LONG} SESSION")).grant();
        assert_eq!(again, grant);
        assert_survives(&server, first, "k", "a");
        second.close();
        until_free(&server, "k");
    }
}

#[test]
fn a_repeat_or_extend_without_session_leaves_the_tie() {
    for command in [
        "LOCK.ACQUIRE k a PX 1500",
        "LOCK.WAIT k a PX 1500 REENTRANT",
        "LOCK.EXTEND k a PX 1500",
        "LOCK.MACQUIRE 1 k a PX 1500",
        "LOCK.MEXTEND 1 k a PX 1500",
    ] {
        let server = Server::start();
        let first = tied(&server, "k", "a");
        let mut second = server.client();
        second.call(command).value();
        assert_eq!(session(&server, "k"), 1, "{command}");
        let left = server.call("LOCK.CHECK k a").int();
        assert!(left <= 1500, "{command}: {left} ms");
        // The new lease applies, and the server continues to renew it.
        assert_renewed(&mut second, "k", "a", 3);
        assert_survives(&server, second, "k", "a");
        first.close();
        until_free(&server, "k");
    }
}

#[test]
fn the_clients_fields_are_those_of_the_last_grant_or_tie() {
    let server = Server::start();
    let own = |server: &Server| -> Fields { server.known_lock("k").holder().clone() };
    let first = tied(&server, "k", "a");
    assert_eq!(own(&server).int("client-id"), first.id());
    let mut second = server.client();
    second.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(own(&server).int("client-id"), second.id());
    let mut third = server.client();
    assert_eq!(third.call(format!("LOCK.EXTEND k a {LONG}")).int(), 1);
    assert_eq!(own(&server).int("client-id"), second.id());
    close_and_settle(&server, second);
    assert!(!own(&server).has("client-id"));
    assert_eq!(own(&server).int("session"), 1, "tied to `first`");
    third.call(format!("LOCK.EXTEND k a {LONG} SESSION")).int();
    assert_eq!(own(&server).int("client-id"), third.id());
    assert!(own(&server).text("client-addr").starts_with("127.0.0.1:"));
    assert_eq!(own(&server).text("client-name"), "");
    assert_survives(&server, first, "k", "a");
}

#[test]
fn conversions_leave_the_tie() {
    let server = Server::start();
    let mut holder = tied(&server, "k", "a");
    let mut other = server.client();
    other.call("LOCK.ACQUIRE k a PX 1500 SHARED").grant();
    assert_eq!(session(&server, "k"), 1);
    assert_renewed(&mut other, "k", "a", 2);
    holder.call("LOCK.ACQUIRE k a PX 1500").grant();
    assert_eq!(
        (session(&server, "k"), server.known_lock("k").mode.as_str()),
        (1, "exclusive")
    );
    assert_survives(&server, other, "k", "a");
    holder.close();
    until_free(&server, "k");
}

#[test]
fn a_wait_is_tied_when_it_is_granted() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let wait = "LOCK.WAIT k b PX 1500 SESSION";
    let mut old = server.waiter(wait);
    let mut new = server.waiter(wait);
    assert!(old.recv().error().starts_with("UNBLOCKED "));
    let mut next = server.waiter("LOCK.WAIT k c PX 1500 SESSION");
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    new.recv().grant();
    assert_eq!(session(&server, "k"), 1);
    assert_eq!(server.known_lock("k").holder().int("client-id"), new.id());
    assert_renewed(&mut old, "k", "b", 3);
    // The newer connection took over the wait, so the grant isn't tied to the older connection.
    assert_survives(&server, old, "k", "b");
    new.reset();
    assert_eq!(next.recv().grant().token, "c");
    assert_eq!(session(&server, "k"), 1);
    next.close();
    until_free(&server, "k");
}

#[test]
fn a_session_that_dies_in_the_tick_of_its_grant_is_passed_on() {
    let server = Server::start();
    for round in 0..200 {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut killed = server.waiter(format!("LOCK.WAIT k killed {LONG} SESSION"));
        let mut next = server.waiter(format!("LOCK.WAIT k next {LONG} SESSION"));
        let kill = format!("CLIENT KILL ID {}", killed.id());
        server.call_batch(&["LOCK.RELEASE k a", &kill]);
        killed.replies_to_close();
        assert_eq!(next.recv().grant().token, "next", "round {round}");
        assert_eq!(session(&server, "k"), 1, "round {round}");
        next.close();
        until_free(&server, "k");
    }
}

#[test]
fn an_upgrade_that_dies_in_the_tick_of_its_grant_leaves_the_other_connections_session() {
    let server = Server::start();
    for options in ["", "REENTRANT"] {
        let mut holder = server.client();
        let own = holder
            .call("LOCK.ACQUIRE k a PX 1500 SHARED SESSION")
            .grant();
        server
            .call(format!("LOCK.ACQUIRE k b {LONG} SHARED"))
            .grant();
        let mut killed = server.waiter(format!("LOCK.WAIT k a PX 1500 {options}"));
        let kill = format!("CLIENT KILL ID {}", killed.id());
        server.call_batch(&["LOCK.RELEASE k b", &kill]);
        killed.replies_to_close();
        server.settle();
        let kept = server.known_lock("k");
        assert_eq!(kept.holder_tokens(), ["a"], "{options}");
        assert_eq!(kept.holder().int("fence"), own.fence, "{options}");
        assert_eq!(
            (kept.mode.as_str(), kept.holder().int("session")),
            ("shared", 1),
            "{options}"
        );
        // The open connection has its grant like before, and the session is its own.
        assert_renewed(&mut holder, "k", "a", 3);
        holder.close();
        until_free(&server, "k");
    }
}

/// Another client's command comes between the end of the connection and the take-back.
#[test]
fn an_upgrade_that_dies_in_the_tick_of_its_grant_lets_no_newcomer_in() {
    for newcomer in [
        "LOCK.ACQUIRE k x",
        "LOCK.WAIT k x BLOCK 1",
        "LOCK.CHECK k x",
    ] {
        let server = Server::start();
        for token in ["a", "b"] {
            let acquire = format!("LOCK.ACQUIRE k {token} {LONG} SHARED");
            server.call(acquire).grant();
        }
        let mut killed = server.waiter(format!("LOCK.WAIT k a {LONG} SESSION"));
        let kill = format!("CLIENT KILL ID {}", killed.id());
        let replies = server.call_batch(&["LOCK.RELEASE k b", &kill, newcomer]);
        let reply = format!("{:?}", replies[2]);
        assert!(["Ok(nil)", "Ok(int(0))"].contains(&&*reply), "{reply}");
        killed.replies_to_close();
        server.settle();
        let kept = server.known_lock("k");
        assert_eq!(kept.holder_tokens(), ["a"], "{newcomer}");
        assert_eq!(
            (kept.mode.as_str(), kept.holder().int("session")),
            ("shared", 0),
            "{newcomer}"
        );
    }
}

#[test]
fn a_session_begun_in_a_transaction_is_the_callers() {
    let server = Server::start();
    let mut client = server.client();
    client.call_batch(&[
        "MULTI",
        "LOCK.ACQUIRE k1 a PX 1500 SESSION",
        "LOCK.WAIT k2 a PX 1500 SESSION",
        "EXEC",
    ]);
    for key in ["k1", "k2"] {
        assert_eq!(
            server.known_lock(key).holder().int("client-id"),
            client.id()
        );
        assert_renewed(&mut client, key, "a", 2);
    }
    client.close();
    for key in ["k1", "k2"] {
        until_free(&server, key);
    }
}

#[test]
fn a_session_begun_in_a_script_is_the_callers() {
    let server = Server::start();
    let library = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], 'a', 'PX', '1500', 'SESSION')
        end)";
    server.call(&["FUNCTION", "LOAD", library]).text();
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', '1500', 'SESSION')";
    let extend = "return redis.call('LOCK.EXTEND', KEYS[1], 'a', 'PX', '1500', 'SESSION')";
    let mut client = server.client();
    client.call(&["EVAL", script, "1", "k1"]).grant();
    client.call("FCALL take 1 k2").grant();
    server.call("LOCK.ACQUIRE k3 a").grant();
    assert_eq!(client.call(&["EVAL", extend, "1", "k3"]).int(), 1);
    client.call("MULTI").okay();
    client.call(&["EVAL", script, "1", "k4"]).text();
    Ok(client.call("EXEC").list().remove(0)).grant();
    for key in ["k1", "k2", "k3", "k4"] {
        assert_eq!(session(&server, key), 1, "{key}");
        assert_eq!(
            server.known_lock(key).holder().int("client-id"),
            client.id()
        );
        assert_renewed(&mut client, key, "a", 2);
    }
    client.close();
    for key in ["k1", "k2", "k3", "k4"] {
        until_free(&server, key);
    }
}

/// Redis 7.0 doesn't give a command's client, so the commands here have words of different lengths.
#[test]
fn a_session_begun_in_a_script_that_a_pause_held_up_is_the_callers() {
    let server = Server::start();
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'a', 'PX', '60000', 'SESSION')";
    let mut callers = ["k", "k2", "k33"].map(|key| (key, server.client()));
    server.call("CLIENT PAUSE 60000 WRITE").okay();
    for (index, (key, client)) in callers.iter_mut().enumerate() {
        client.send(&["EVAL", script, "1", key]);
        until("the script is held up", || {
            let clients = server.call("CLIENT LIST").text();
            clients.matches("flags=b").count() == index + 1
        });
    }
    server.call("CLIENT UNPAUSE").okay();
    for (_, client) in &mut callers {
        client.recv().grant();
    }
    for (key, client) in callers {
        let lock = server.known_lock(key);
        assert_eq!(lock.holder().int("client-id"), client.id(), "{key}");
        client.close();
        until_free(&server, key);
    }
}

#[test]
fn the_caller_of_a_script_is_looked_up_once() {
    let server = Server::start();
    let script = "for index = 1, 20 do
            redis.call('LOCK.ACQUIRE', KEYS[1] .. index, 'a', 'PX', '60000', 'SESSION')
        end";
    let listings = || {
        let stats = server.call("INFO commandstats").text();
        let line = stats.lines().find(|line| line.contains("client|list"));
        let calls = line.and_then(|line| line.split([',', '=']).nth(1)?.parse::<u64>().ok());
        calls.unwrap_or(0)
    };
    let mut clients = [server.client(), server.client()];
    for (looked_up, client) in (1..).zip(&mut clients) {
        let before = listings();
        let key = format!("k{looked_up}-");
        client.call(&["EVAL", script, "1", &key]).nil();
        let lock = server.known_lock(&format!("{key}20"));
        assert_eq!(lock.holder().int("client-id"), client.id());
        // One listing finds the client, and one finds its socket.
        assert_eq!(listings() - before, 2);
    }
}

/// Returns true if the server gives a filter the command's client (from Redis 7.2 on).
fn tells_of_resets(server: &Server) -> bool {
    server.flavour() == Flavour::Valkey || server.version() >= (7, 2, 0)
}

#[test]
fn reset_ends_the_ties_where_the_server_tells_of_it() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    assert_eq!(holder.call("RESET").text(), "RESET");
    if !tells_of_resets(&server) {
        assert_renewed(&mut holder, "k", "a", 3);
        holder.close();
        until_free(&server, "k");
        return;
    }
    assert_eq!(server.call("LOCK.CHECK k a").int(), 0);
    until_free(&server, "k");
    // RESET counts in any case of letters, in a transaction and after other commands. A grant tied
    // after it is tied.
    let batch = [
        "LOCK.MACQUIRE 2 k l a PX 60000 SESSION",
        "MULTI",
        "rEsEt",
        "LOCK.ACQUIRE k b PX 60000 SESSION",
        "LOCK.ACQUIRE m b PX 60000 SESSION",
    ];
    for (command, reply) in batch.iter().zip(holder.call_batch(&batch)) {
        assert!(reply.is_ok_and(|reply| reply != Value::Nil), "{command}");
    }
    assert_eq!(session(&server, "k"), 1);
    assert_eq!(session(&server, "m"), 1);
    until_free(&server, "l");
    holder.close();
    until_free(&server, "k");
    until_free(&server, "m");
}

#[test]
fn who_waits_for_a_session_is_granted_upon_its_reset() {
    let server = Server::start();
    let mut holder = tied(&server, "k", "a");
    let mut waiter = waiter(&server, "k", "b");
    if tells_of_resets(&server) {
        holder.call("RESET").text();
        waiter.recv().grant();
    }
}

/// Returns the replies to commands that are sent while the server pauses all clients. Returns
/// `None` if the pause was over too soon.
#[track_caller]
fn replies_after_a_pause(
    server: &Server,
    sent: &mut [(&mut Client, &[&str])],
) -> Option<Vec<Reply>> {
    let in_time = server.sends_in_a_pause(sent);
    let received = |(client, commands): &mut (&mut Client, &[&str])| {
        commands.iter().map(|_| client.recv()).collect::<Vec<_>>()
    };
    let replies = sent.iter_mut().flat_map(received).collect();
    in_time.then_some(replies)
}

#[test]
fn a_reset_that_a_pause_holds_back_ends_the_ties_when_it_runs() {
    eventually("all commands arrive in the pause", || {
        let server = Server::start();
        if !tells_of_resets(&server) {
            return Some(());
        }
        let [mut before, mut behind] = [server.client(), server.client()];
        let mut holder = tied(&server, "k", "a");
        let mut sent: [(&mut Client, &[&str]); 3] = [
            (&mut before, &["LOCK.ACQUIRE k b"]),
            (&mut holder, &["RESET"]),
            (&mut behind, &["LOCK.WAIT k c PX 60000 BLOCK 20000"]),
        ];
        let replies = replies_after_a_pause(&server, &mut sent)?;
        let [before, reset, behind] = replies.try_into().expect("a reply each");
        assert_eq!(before, Ok(Value::Nil));
        assert_eq!(reset.text(), "RESET");
        assert_eq!(behind.grant().token, "c");
        Some(())
    });
}

#[test]
fn what_is_tied_behind_a_reset_that_a_pause_holds_back_is_tied() {
    eventually("all commands arrive in the pause", || {
        let server = Server::start();
        if !tells_of_resets(&server) {
            return Some(());
        }
        let mut holder = tied(&server, "k", "a");
        let pipeline: &[&str] = &["RESET", "LOCK.ACQUIRE k b PX 60000 SESSION"];
        let replies = replies_after_a_pause(&server, &mut [(&mut holder, pipeline)])?;
        let [reset, behind] = replies.try_into().expect("a reply each");
        assert_eq!(reset.text(), "RESET");
        assert_eq!(behind.grant().token, "b");
        assert_eq!(session(&server, "k"), 1);
        holder.close();
        until_free(&server, "k");
        Some(())
    });
}

#[test]
fn a_reset_that_is_refused_or_another_one_s_leaves_the_tie() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 60000 SESSION").grant();
    holder.call("RESET surplus").error();
    holder.call("RPUSH list RESET").int();
    assert_eq!(server.client().call("RESET").text(), "RESET");
    server.settle();
    assert_eq!(session(&server, "k"), 1);
}

#[test]
fn a_reset_that_the_server_has_not_or_has_by_another_name_leaves_the_tie() {
    for renamed in ["RESET \"\"", "RESET other-reset"] {
        let server = Server::builder();
        let server = server.config(&format!("rename-command {renamed}")).start();
        let mut holder = server.client();
        holder.call("LOCK.ACQUIRE k a PX 60000 SESSION").grant();
        let error = holder.call("RESET").error();
        assert!(error.starts_with("ERR unknown command"), "{error}");
        server.settle();
        assert_eq!(session(&server, "k"), 1, "{renamed}");
    }
}

// ---- the session moves with the lock

#[test]
fn rename_takes_the_session_along() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    let mut here = waiter(&server, "k", "b");
    server.call_batch(&["MULTI", "RENAME k x", "RENAMENX x y", "EXEC"]);
    here.recv().grant();
    assert_renewed(&mut holder, "y", "a", 3);
    assert_eq!((session(&server, "k"), session(&server, "y")), (0, 1));
    let mut there = waiter(&server, "y", "c");
    holder.close();
    assert_eq!(there.recv().grant().token, "c");
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

#[test]
fn rename_over_another_session_ends_that_one_alone() {
    let server = Server::start();
    let source = tied(&server, "source", "a");
    let target = tied(&server, "target", "b");
    server.call("RENAME source target").okay();
    assert_survives(&server, target, "target", "a");
    source.close();
    until_free(&server, "target");
}

#[test]
fn move_takes_the_session_along() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    let mut here = waiter(&server, "k", "b");
    assert_eq!(server.call("MOVE k 1").int(), 1);
    here.recv().grant();
    let mut there = server.client().into_db(1);
    assert_renewed(&mut there, "k", "a", 3);
    holder.close();
    until("the moved lock is free", || there.call("DBSIZE").int() == 0);
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

#[test]
fn swapdb_takes_the_sessions_along() {
    let server = Server::start();
    let mut there = server.client().into_db(1);
    let mut first = server.client();
    first.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    let mut second = server.client().into_db(1);
    second.call("LOCK.ACQUIRE k b PX 1500 SESSION").grant();
    server.call("SWAPDB 0 1").okay();
    assert_renewed(&mut there, "k", "a", 3);
    assert_renewed(&mut second.into_db(0), "k", "b", 1);
    // The line above dropped the second connection, so its lock in database 0 is released.
    until_free(&server, "k");
    assert_renewed(&mut there, "k", "a", 1);
    first.close();
    until("the other lock is free", || there.call("DBSIZE").int() == 0);
}

#[test]
fn a_connection_that_ends_in_the_tick_of_a_move_releases_what_was_moved() {
    for commands in [
        ["RENAME k x", "PING"],
        ["MOVE k 1", "SELECT 1"],
        ["SWAPDB 0 1", "SELECT 1"],
    ] {
        let server = Server::start();
        let holder = tied(&server, "k", "a");
        let kill = format!("CLIENT KILL ID {}", holder.id());
        let [a_move, select] = commands;
        server.call_batch(&[a_move, &kill, select]);
        until(a_move, || server.call("DBSIZE").int() == 0);
    }
}

#[test]
fn a_restored_lock_has_no_tie() {
    let server = Server::start();
    let holder = tied(&server, "k", "a");
    let payload = server.call("DUMP k").bytes();
    let restore = |key: &[u8]| {
        let words = [b"RESTORE".as_slice(), key, b"0", &payload, b"REPLACE"];
        server.call(&words).okay();
    };
    restore(b"copy");
    assert_eq!((session(&server, "copy"), session(&server, "k")), (0, 1));
    let other = tied(&server, "k2", "b");
    restore(b"k2");
    assert_eq!(session(&server, "k2"), 0);
    assert_survives(&server, other, "k2", "a");
    assert_survives(&server, holder, "copy", "a");
    until_free(&server, "k");
}

#[test]
fn a_restored_lock_can_be_tied_again() {
    let server = Server::start();
    let first = tied(&server, "k", "a");
    let payload = server.call("DUMP k").bytes();
    let words = [b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"];
    server.call(&words).okay();
    let mut second = server.client();
    let extend = format!("LOCK.EXTEND k a {LONG} SESSION");
    assert_eq!(second.call(extend).int(), 1);
    assert_survives(&server, first, "k", "a");
    second.close();
    until_free(&server, "k");
}

// ---- the session ends with the grant

#[test]
fn a_session_ends_with_its_grant() {
    type Part = fn(&Server, &mut Client);
    let ways: [(&str, Part); 6] = [
        ("RELEASE", |_, client| {
            assert_eq!(client.call("LOCK.RELEASE k a").int(), 1);
        }),
        ("MRELEASE", |_, client| {
            assert_eq!(client.call("LOCK.MRELEASE 2 k free a").int(), 1);
        }),
        ("DEL", |server, _| {
            assert_eq!(server.call("DEL k").int(), 1);
        }),
        ("UNLINK", |server, _| {
            assert_eq!(server.call("UNLINK k").int(), 1);
        }),
        ("FLUSHALL", |server, _| server.call("FLUSHALL").okay()),
        ("SET", |server, _| {
            server.call("SET k value").okay();
            assert_eq!(server.call("DEL k").int(), 1);
        }),
    ];
    for (way, part) in ways {
        let server = Server::start();
        let mut old = tied(&server, "k", "a");
        part(&server, &mut old);
        // The same token acquires the lock again, now without a session.
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        assert_eq!(session(&server, "k"), 0, "{way}");
        assert_survives(&server, old, "k", "a");
    }
}

#[test]
fn another_type_written_over_a_session_is_left_alone() {
    let server = Server::start();
    let holder = tied(&server, "k", "a");
    server.call("SET k value").okay();
    close_and_settle(&server, holder);
    assert_eq!(server.call("GET k").text(), "value");
}

// ---- restart, reload, failover

#[test]
fn after_a_restart_the_lease_runs_on_untied_until_it_is_taken_up_again() {
    for appendonly in ["appendonly yes", "appendonly no"] {
        let mut server = Server::builder()
            .config(appendonly)
            .config("appendfsync no")
            .start();
        let mut holder = server.client();
        let grant = acquire_tied(&mut holder, "k", "a");
        acquire_tied(&mut holder, "k2", "a");
        holder
            .call(format!("LOCK.ACQUIRE k3 a {LONG} SHARED LIMIT 3 SESSION"))
            .grant();
        if appendonly == "appendonly no" {
            server.call("SAVE").okay();
        }
        server.restart();
        for key in ["k", "k2", "k3"] {
            let own = server.known_lock(key).holder().clone();
            assert_eq!(own.int("session"), 0, "{key}");
            assert!(own.int("lease-ms") > 500_000 && !own.has("client-id"));
        }
        assert_eq!(server.known_lock("k").holder().int("fence"), grant.fence);
        let mut again = server.client();
        for key in ["k", "k3"] {
            let extend = format!("LOCK.EXTEND {key} a PX 1500 SESSION");
            assert_eq!(again.call(extend).int(), 1);
            assert_renewed(&mut again, key, "a", 2);
        }
        again.close();
        until_free(&server, "k");
        until_free(&server, "k3");
        assert_eq!(session(&server, "k2"), 0, "no connection took it up");
    }
}

#[test]
fn after_a_reload_the_lease_runs_on_untied() {
    let server = Server::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE short a PX 1500 SESSION").grant();
    let kept = tied(&server, "kept", "a");
    let mut next = waiter(&server, "short", "b");
    server.call("DEBUG RELOAD").okay();
    for key in ["short", "kept"] {
        assert_eq!(session(&server, key), 0, "{key}");
    }
    // The connection stays open, but the server renews nothing for it.
    assert_runs_out(&server, "short", "a");
    next.recv().grant();
    assert_survives(&server, kept, "kept", "a");
    let mut again = server.client();
    let extend = format!("LOCK.EXTEND kept a {LONG} SESSION");
    assert_eq!(again.call(extend).int(), 1);
    again.close();
    until_free(&server, "kept");
}

#[test]
fn after_a_failover_the_lease_runs_on_untied_until_it_is_taken_up_again() {
    let mut primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut holder = server_session(&primary, "kept", "PX 600000");
    let lost = server_session(&primary, "lost", "PX 1500");
    replica.until_in_step(&primary);
    for key in ["kept", "lost"] {
        let own = replica.known_lock(key).holder().clone();
        assert_eq!(own.int("session"), 0, "a replica knows of no session");
        assert!(!own.has("client-id"));
    }
    primary.kill9();
    drop(lost);
    assert!(holder.try_call("PING").is_err(), "the old primary is gone");
    replica.call("REPLICAOF NO ONE").okay();
    assert!(replica.call("LOCK.CHECK kept a").int() > 0);
    replica.call("LOCK.ACQUIRE kept b").nil();
    let mut holder = replica.client();
    let extend = format!("LOCK.EXTEND kept a {LONG} SESSION");
    assert_eq!(holder.call(extend).int(), 1);
    assert_eq!(session(&replica, "kept"), 1);
    let mut next = waiter(&replica, "lost", "b");
    assert_eq!(
        next.recv().grant().token,
        "b",
        "a lease that no connection took up ends"
    );
    holder.reset();
    until_free(&replica, "kept");
}

/// Opens a connection to `server` and ties `key` to it, held by `a`.
fn server_session(server: &Server, key: &str, lease: &str) -> Client {
    let mut client = server.client();
    client
        .call(format!("LOCK.ACQUIRE {key} a {lease} SESSION"))
        .grant();
    client
}

/// Makes the server a replica of a primary that never replies, and then a primary again.
fn demote_and_promote(server: &Server) {
    server.call("REPLICAOF 127.0.0.1 1").okay();
    server.settle();
    server.call("REPLICAOF NO ONE").okay();
    server.settle();
}

#[test]
fn on_a_demoted_server_the_lease_runs_on_untied() {
    let server = Server::start();
    let mut holder = server_session(&server, "k", "PX 600000");
    let other = server_session(&server, "other", "PX 600000");
    server.call("REPLICAOF 127.0.0.1 1").okay();
    until("the session is gone", || session(&server, "k") == 0);
    // Only the primary ends a grant.
    assert_survives(&server, other, "other", "a");
    server.call("REPLICAOF NO ONE").okay();
    server.settle();
    assert_eq!((session(&server, "k"), session(&server, "other")), (0, 0));
    let extend = format!("LOCK.EXTEND other a {LONG} SESSION");
    assert_eq!(holder.call(extend).int(), 1);
    close_and_settle(&server, holder);
    until_free(&server, "other");
    assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
}

#[test]
fn sessions_are_not_mixed_up_after_a_demotion() {
    let server = Server::start();
    let _old = server_session(&server, "old", "PX 600000");
    demote_and_promote(&server);
    assert_eq!(session(&server, "old"), 0);
    let new = server_session(&server, "new", "PX 600000");
    assert_eq!(
        session(&server, "old"),
        0,
        "the new holder's session is its own"
    );
    assert_eq!(server.call("LOCK.RELEASE old a").int(), 1);
    assert_eq!(session(&server, "new"), 1);
    new.close();
    until_free(&server, "new");
}

#[test]
fn scripts_that_a_pause_of_writes_lets_run_leave_no_memory_behind() {
    const RUNS: usize = 50_000;
    let server = Server::start();
    let used = || -> i64 {
        let used = server.info("memory", "used_memory");
        used.parse().expect("a number")
    };
    let mut client = server.client();
    server.call("CLIENT PAUSE 600000 WRITE").okay();
    client.call_batch(&["MULTI", "GET x", "EXEC"].repeat(100));
    let before = used();
    for _ in 0..RUNS / 500 {
        client.call_batch(&["MULTI", "GET x", "EXEC"].repeat(500));
    }
    let after = used();
    // Each record takes 48 bytes.
    assert!(after - before < 1 << 20, "{before} to {after} bytes");
    server.call("CLIENT UNPAUSE").okay();
}
