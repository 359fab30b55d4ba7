//! CLIENT TRACKING: a client that remembers its read of a lock is notified when the read becomes
//! stale. No client needs to touch the key for that.

use redis::{PushKind, Value};
use support::{eventually, until, Client, Expect, Reply, Server, LONG};

/// The commands by which a client requests notifications.
const MODES: [&str; 2] = ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST"];

/// Connects a client that has read `k` and is notified when it changes. The change is prepared in
/// the same pass of the server's loop, so that it can't come before the read.
#[track_caller]
fn tracker(server: &Server, mode: &str, prepared: &str) -> Client {
    let mut client = server.client().into_resp3();
    client.call_all(&[prepared, mode, "LOCK.INFO k"]);
    client
}

/// Returns the message that a client gets when `k` has changed.
fn changed() -> Value {
    changed_key("k")
}

fn changed_key(key: &str) -> Value {
    invalidated(Value::Array(vec![Value::BulkString(key.into())]))
}

fn invalidated(keys: Value) -> Value {
    Value::Push {
        kind: PushKind::Invalidate,
        data: vec![keys],
    }
}

/// Asserts that the client is notified that `k` has changed.
#[track_caller]
fn assert_told(client: &mut Client, what: &str) {
    assert_eq!(client.recv(), Ok(changed()), "{what}");
}

/// Waits until the client is notified that `key` has changed. A client that read the last key just
/// after its end may be notified of that one first.
#[track_caller]
fn await_told(client: &mut Client, key: &str) {
    let told = Ok(changed_key(key));
    until(key, || {
        let next = client.recv();
        assert!(next.is_ok(), "{key}: {next:?}");
        next == told
    });
}

/// Sends a command and returns its reply, past notifications that come before it.
#[track_caller]
fn reply(client: &mut Client, command: &str) -> Reply {
    client.send(command);
    eventually(command, || {
        let next = client.recv();
        let is_push = matches!(next, Ok(Value::Push { .. }));
        (!is_push).then_some(next)
    })
}

/// Like `reply`, of a command that replies with a number.
#[track_caller]
fn answer(client: &mut Client, command: &str) -> i64 {
    reply(client, command).int()
}

/// Asserts that the client is notified until `a` doesn't hold `key` any more.
#[track_caller]
fn assert_told_of_end(client: &mut Client, key: &str) {
    let check = format!("LOCK.CHECK {key} a");
    until(key, || {
        await_told(client, key);
        answer(client, &check) == 0
    });
}

/// Starts a server where these tokens share `k` with long leases.
#[track_caller]
fn server_with_sharers(tokens: &[&str]) -> Server {
    let server = Server::start();
    for token in tokens {
        server
            .call(format!("LOCK.ACQUIRE k {token} {LONG} SHARED"))
            .grant();
    }
    server
}

#[test]
fn the_end_of_one_of_several_shared_leases_is_told() {
    for mode in MODES {
        let server = server_with_sharers(&["stays", "first", "second"]);
        for goes in ["first", "second"] {
            let prepared = format!("LOCK.EXTEND k {goes} PX 300");
            let mut client = tracker(&server, mode, &prepared);
            assert_told(&mut client, mode);
            // The message came after the lease was over, so the client now reads the new state.
            assert_eq!(server.call(format!("LOCK.CHECK k {goes}")).int(), 0);
            client.expect_silence();
            client.close();
        }
        assert!(server.call("LOCK.CHECK k stays").int() > 0, "{mode}");
    }
}

#[test]
fn the_end_of_a_shared_lease_is_told_after_a_restart_too() {
    let mut server = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    for token in ["stays", "goes"] {
        let command = format!("LOCK.ACQUIRE k {token} {LONG} SHARED");
        server.call(command).grant();
    }
    for read in ["LOCK.CHECK k stays", "LOCK.INFO k"] {
        let goes = format!("LOCK.ACQUIRE k goes {LONG} SHARED");
        server.call(goes).grant();
        assert_eq!(server.call("LOCK.EXTEND k goes PX 4000").int(), 1);
        server.restart();
        let mut client = server.client().into_resp3();
        client.call_all(&["CLIENT TRACKING ON", read]);
        assert_told(&mut client, read);
        assert_eq!(server.call("LOCK.CHECK k goes").int(), 0, "{read}");
    }
}

#[test]
fn the_end_of_a_shared_lease_is_told_while_others_wait() {
    for mode in MODES {
        let server = server_with_sharers(&["stays", "goes"]);
        let _waiter = server.waiter(format!("LOCK.WAIT k w {LONG}"));
        let mut client = tracker(&server, mode, "LOCK.EXTEND k goes PX 300");
        assert_told(&mut client, mode);
        assert_eq!(server.call("LOCK.CHECK k goes").int(), 0, "{mode}");
    }
}

#[test]
fn the_end_of_a_shared_lease_that_was_set_anew_is_told_then() {
    for prepared in [
        "LOCK.EXTEND k goes PX 900",
        "LOCK.ACQUIRE k goes PX 300 SHARED",
        "LOCK.MEXTEND 1 k goes PX 300",
    ] {
        let server = server_with_sharers(&["stays", "goes"]);
        server.call("LOCK.EXTEND k goes PX 500000").int();
        let mut client = tracker(&server, MODES[0], prepared);
        assert_told(&mut client, prepared);
        assert_eq!(server.call("LOCK.CHECK k goes").int(), 0, "{prepared}");
    }
}

#[test]
fn a_transaction_that_watches_sees_the_end_of_a_shared_lease() {
    let server = server_with_sharers(&["stays", "goes"]);
    let mut client = server.client();
    client.call_all(&["LOCK.EXTEND k goes PX 300", "WATCH k"]);
    until("the lease is over for the module too", || {
        server.info("lock", "lock_expirations") == "1"
    });
    client.call("MULTI").okay();
    client.call("PING").text();
    client.call("EXEC").nil();
}

#[test]
fn a_lease_that_ends_elsewhere_tells_nothing_of_this_key() {
    let server = server_with_sharers(&["stays"]);
    for token in ["a", "b"] {
        server
            .call(format!("LOCK.ACQUIRE l {token} {LONG} SHARED"))
            .grant();
    }
    let mut client = tracker(&server, MODES[0], "LOCK.EXTEND l b PX 100");
    until("the lease is over for the module too", || {
        server.info("lock", "lock_expirations") == "1"
    });
    server.settle();
    client.expect_silence();
}

/// Connects a client that holds `k` by this command and has just read it.
#[track_caller]
fn holder(server: &Server, command: &str) -> Client {
    tracker(server, MODES[0], command)
}

#[test]
fn a_holder_is_told_whatever_ends_its_grant() {
    let alone = "LOCK.ACQUIRE k a PX 600000";
    let losses = [
        (alone, "DEL k", changed()),
        (alone, "LOCK.RELEASE k a", changed()),
        (alone, "SET k text", changed()),
        (alone, "FLUSHALL", invalidated(Value::Nil)),
        (alone, "FLUSHDB", invalidated(Value::Nil)),
    ];
    for (acquire, end, told) in losses {
        let server = Server::start();
        let mut client = holder(&server, acquire);
        assert!(server.call(end).is_ok(), "{end}");
        assert_eq!(client.recv(), Ok(told), "{end}");
        server.call("SET k text").okay();
        server.call("DEL k").int();
        assert_eq!(client.call("LOCK.CHECK k a"), Ok(Value::Int(0)), "{end}");
    }
    let server = Server::start();
    let mut client = holder(&server, "LOCK.ACQUIRE k a PX 300");
    assert_told_of_end(&mut client, "k");
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut next = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut client = holder(&server, "LOCK.EXTEND k a PX 300");
    assert_told_of_end(&mut client, "k");
    next.recv().grant();
}

/// A client that checks in the last millisecond of a lease whose key the server has expired early
/// still finds the lock. It is told again when the lease has ended.
#[test]
fn a_holder_that_checks_in_the_last_millisecond_is_told_again() {
    let server = Server::builder().config("hz 500").start();
    let mut client = server.client().into_resp3();
    client.call("CLIENT TRACKING ON").okay();
    for number in 0..100 {
        let key = format!("k{number}");
        reply(&mut client, &format!("LOCK.ACQUIRE {key} a PX 20")).grant();
        if answer(&mut client, &format!("LOCK.CHECK {key} a")) == 0 {
            continue; // The machine is busy, and the lease was over before.
        }
        assert_told_of_end(&mut client, &key);
    }
}

/// The release of such a lock changes no key of the server, but what its readers know.
#[test]
fn a_reader_is_told_of_a_release_in_the_last_millisecond() {
    let server = Server::builder().config("hz 500").start();
    let mut reader = server.client().into_resp3();
    reader.call("CLIENT TRACKING ON").okay();
    let mut holder = server.client();
    for number in 0..100 {
        let key = format!("k{number}");
        holder.call(format!("LOCK.ACQUIRE {key} a PX 20")).grant();
        let check = format!("LOCK.CHECK {key} a");
        if answer(&mut reader, &check) == 0 {
            continue; // The machine is busy, and the lease was over before.
        }
        await_told(&mut reader, &key);
        if answer(&mut reader, &check) > 0 {
            holder.call(format!("LOCK.RELEASE {key} a")).int();
            await_told(&mut reader, &key);
        }
    }
}

/// A change that leaves the holder its lock is notified too, so the holder has to check.
#[test]
fn a_holder_is_told_of_renewals_and_of_others_that_share() {
    let shared = "LOCK.ACQUIRE k a PX 600000 SHARED";
    for (acquire, change) in [
        (shared, "LOCK.EXTEND k a PX 500000"),
        (shared, "LOCK.ACQUIRE k b PX 600000 SHARED"),
        ("LOCK.ACQUIRE k a PX 1500 SESSION", "PING"),
    ] {
        let server = Server::start();
        let mut client = holder(&server, acquire);
        assert!(server.call(change).is_ok(), "{change}");
        assert_told(&mut client, change);
        assert!(client.call("LOCK.CHECK k a").int() > 0, "{change}");
    }
    let server = Server::start();
    let mut client = holder(&server, shared);
    client.send("LOCK.EXTEND k a PX 500000");
    let both = [client.recv(), client.recv()];
    assert!(both.contains(&Ok(changed())), "its own: {both:?}");
    client.call("LOCK.CHECK k a").int();
    client.call("PING").text();
}
