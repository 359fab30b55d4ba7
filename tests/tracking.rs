//! CLIENT TRACKING: who remembers what it read of a lock is told when that is no longer so, without
//! anybody touching the key.

mod support;

use redis::{PushKind, Value};
use support::{until, Client, Expect, Server, LONG};

/// How a client asks to be told.
const MODES: [&str; 2] = ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST"];

/// A client that has read of `k`, and is told when it changes.
#[track_caller]
fn tracker(server: &Server, mode: &str) -> Client {
    let mut client = server.client().into_resp3();
    client.call(mode).okay();
    remember(&mut client);
    client
}

#[track_caller]
fn remember(client: &mut Client) {
    client.call("LOCK.INFO k").value();
}

/// Asserts that the client is told that `k` has changed.
#[track_caller]
fn assert_told(client: &mut Client, what: &str) {
    let told = Value::Push {
        kind: PushKind::Invalidate,
        data: vec![Value::Array(vec![Value::BulkString(b"k".to_vec())])],
    };
    assert_eq!(client.recv(), Ok(told), "{what}");
}

#[test]
fn the_end_of_one_of_several_shared_leases_is_told() {
    for mode in MODES {
        let server = Server::start();
        server
            .call(format!("LOCK.ACQUIRE k stays {LONG} SHARED"))
            .grant();
        server.call("LOCK.ACQUIRE k first PX 400 SHARED").grant();
        server.call("LOCK.ACQUIRE k second PX 900 SHARED").grant();
        let mut client = tracker(&server, mode);
        assert_told(&mut client, mode);
        // It was told once the lease was over, not before: what it reads now is new.
        assert_eq!(client.call("LOCK.CHECK k first").int(), 0, "{mode}");
        remember(&mut client);
        assert_told(&mut client, mode);
        assert_eq!(client.call("LOCK.CHECK k second").int(), 0, "{mode}");
        assert!(client.call("LOCK.CHECK k stays").int() > 0, "{mode}");
        client.expect_silence();
    }
}

#[test]
fn the_end_of_a_shared_lease_is_told_while_others_wait() {
    for mode in MODES {
        let server = Server::start();
        server
            .call(format!("LOCK.ACQUIRE k stays {LONG} SHARED"))
            .grant();
        server.call("LOCK.ACQUIRE k goes PX 400 SHARED").grant();
        let _waiter = server.waiter(format!("LOCK.WAIT k w {LONG}"));
        let mut client = tracker(&server, mode);
        assert_told(&mut client, mode);
        assert_eq!(client.call("LOCK.CHECK k goes").int(), 0, "{mode}");
    }
}

#[test]
fn the_end_of_a_shared_lease_that_was_made_shorter_or_longer_is_told_then() {
    let server = Server::start();
    for (command, lease_ms) in [
        ("LOCK.EXTEND k goes PX 300", 600_000),
        ("LOCK.EXTEND k goes PX 900", 300),
        ("LOCK.ACQUIRE k goes PX 300 SHARED", 600_000),
    ] {
        server
            .call(format!("LOCK.ACQUIRE k stays {LONG} SHARED"))
            .grant();
        server
            .call(format!("LOCK.ACQUIRE k goes PX {lease_ms} SHARED"))
            .grant();
        server.call(command).value();
        let mut client = tracker(&server, MODES[0]);
        assert_told(&mut client, command);
        assert_eq!(client.call("LOCK.CHECK k goes").int(), 0, "{command}");
        server.call("DEL k").int();
    }
}

#[test]
fn a_transaction_that_watches_sees_the_end_of_a_shared_lease() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k stays {LONG} SHARED"))
        .grant();
    server.call("LOCK.ACQUIRE k goes PX 300 SHARED").grant();
    let mut client = server.client();
    client.call("WATCH k").okay();
    // A replica is told as well; here that is how one sees that it has happened.
    until("the lease is over for the module too", || {
        server.info("lock", "lock_lapses") == "1"
    });
    client.call("MULTI").okay();
    client.call("PING").text();
    client.call("EXEC").nil();
}

#[test]
fn a_lease_that_ends_elsewhere_tells_nothing_of_this_key() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED"))
        .grant();
    server
        .call(format!("LOCK.ACQUIRE l a {LONG} SHARED"))
        .grant();
    server.call("LOCK.ACQUIRE l b PX 100 SHARED").grant();
    let mut client = tracker(&server, MODES[0]);
    until("the lease is over for the module too", || {
        server.info("lock", "lock_lapses") == "1"
    });
    server.settle();
    client.expect_silence();
}
