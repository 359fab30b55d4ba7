//! Deadlocks: connections that would wait for each other's sessions forever.

use support::{cluster_node, until, Client, Expect, Server, LONG};

const DEADLOCK: &str = "DEADLOCK connections would wait for each other's SESSION grants";

/// Returns a connection that holds `key` by SESSION under the token `<key>-token`.
fn tied(server: &Server, key: &str) -> Client {
    let mut client = server.client();
    let acquire = format!("LOCK.ACQUIRE {key} {key}-token {LONG} SESSION");
    client.call(acquire).grant();
    client
}

#[track_caller]
fn assert_deadlock(client: &mut Client, command: &str) {
    assert_eq!(client.call(command), Err(DEADLOCK.to_owned()), "{command}");
    // The client is usable again.
    assert_eq!(client.call("PING").text(), "PONG");
}

#[test]
fn the_wait_that_closes_a_circle_is_refused_whatever_its_length() {
    for length in [1, 2, 3, 20] {
        let server = Server::start();
        let key = |n: usize| format!("k{}", n % length);
        let mut clients: Vec<Client> = (0..length).map(|n| tied(&server, &key(n))).collect();
        for (n, client) in clients.iter_mut().enumerate().take(length - 1) {
            let wait = format!("LOCK.WAIT {} w{n} {LONG} SESSION", key(n + 1));
            server.block(client, wait);
        }
        let mut last = clients.pop().expect("a client");
        for options in ["", "BLOCK 50", "SESSION", "SHARED LIMIT 3"] {
            assert_deadlock(&mut last, &format!("LOCK.WAIT k0 last {LONG} {options}"));
        }
        assert_deadlock(&mut last, "LOCK.MWAIT 2 free k0 last");
        last.call("LOCK.ACQUIRE k0 last").nil();
        assert_eq!(server.waiters("k0"), 0);
        // When the last client closes, the others are granted one after another.
        last.close();
        for mut client in clients.into_iter().rev() {
            client.recv().grant();
            client.close();
        }
        until("all is free", || server.call("DBSIZE").int() == 0);
    }
}

#[test]
fn who_closes_its_connection_or_gives_up_opens_the_circle() {
    let server = Server::start();
    let (mut a, mut b) = (tied(&server, "x"), tied(&server, "y"));
    server.block(&mut a, format!("LOCK.WAIT y a {LONG}"));
    assert_deadlock(&mut b, "LOCK.WAIT x b");
    assert_eq!(server.call("LOCK.CANCEL y a").int(), 1);
    a.recv().error();
    server.block(&mut b, format!("LOCK.WAIT x b {LONG}"));
    assert_deadlock(&mut a, "LOCK.WAIT y a");
    let id = b.id();
    server.call(format!("CLIENT UNBLOCK {id}")).int();
    b.recv().nil();
    server.block(&mut a, format!("LOCK.WAIT y a {LONG}"));
    a.close();
    until("x is free", || server.call("EXISTS x").int() == 0);
    b.call(format!("LOCK.WAIT x b {LONG}")).grant();
}

#[test]
fn a_circle_through_the_queue_is_found() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k h {LONG}")).grant();
    let mut a = tied(&server, "y");
    let mut b = server.waiter(format!("LOCK.MWAIT 2 k y b {LONG}"));
    assert_deadlock(&mut a, "LOCK.WAIT k a");
    a.call("LOCK.RELEASE y y-token").int();
    server.block(&mut a, format!("LOCK.WAIT k a {LONG}"));
    server.call("LOCK.RELEASE k h").int();
    b.recv().grant();
}

#[test]
fn waits_sent_in_one_batch_close_no_circle() {
    let server = Server::start();
    let (mut a, mut b) = (tied(&server, "x"), tied(&server, "y"));
    a.send(format!("LOCK.WAIT y a {LONG}"));
    b.send(format!("LOCK.WAIT x b {LONG}"));
    // The server refuses the wait that it reads second.
    until("one client waits", || {
        server.waiters("x") + server.waiters("y") == 1
    });
    let (told, other) = match server.waiters("x") {
        1 => (a.recv(), &mut b),
        _ => (b.recv(), &mut a),
    };
    assert_eq!(told, Err(DEADLOCK.to_owned()));
    other.expect_silence();
}

#[test]
fn in_a_transaction_or_script_nothing_waits_and_nothing_is_refused() {
    let server = Server::start();
    let (mut a, mut b) = (tied(&server, "x"), tied(&server, "y"));
    server.block(&mut a, format!("LOCK.WAIT y a {LONG}"));
    let replies = b.call_batch(&["MULTI", "LOCK.WAIT x b", "EXEC"]);
    assert_eq!(format!("{:?}", replies[2]), "Ok(array([nil]))");
    let script = "return redis.call('LOCK.WAIT', KEYS[1], 'b')";
    b.call(&["EVAL", script, "1", "x"]).nil();
}

#[test]
fn a_session_of_a_closed_connection_is_in_no_circle() {
    let server = Server::start();
    let (mut a, mut b) = (tied(&server, "x"), tied(&server, "y"));
    server.block(&mut a, format!("LOCK.WAIT y a {LONG}"));
    let kill = format!("CLIENT KILL ID {}", a.id());
    b.send_batch(&[&kill, &format!("LOCK.WAIT x b {LONG}")]);
    assert_eq!(b.recv().int(), 1);
    assert_eq!(b.recv().grant().token, "b");
}

/// The search reads the lock anew, because it may not be as it was recorded.
#[test]
fn a_circle_through_a_lock_that_has_just_changed_is_found() {
    let server = Server::start();
    let (mut a, mut b) = (tied(&server, "x"), tied(&server, "y"));
    server.block(&mut a, format!("LOCK.WAIT y a {LONG}"));
    b.send_batch(&["PEXPIRE y 500000", "LOCK.WAIT x b"]);
    assert_eq!(b.recv().int(), 1);
    let error = b.recv().error();
    assert!(error.starts_with("DEADLOCK"), "{error}");
}

/// On newer servers, a command can look up keys of its own slot only.
#[test]
fn a_circle_over_two_slots_is_found() {
    let server = cluster_node();
    for (mode, wanted) in [
        ("", ""),
        ("", "SHARED"),
        ("SHARED", ""),
        ("SHARED LIMIT 3 PERMITS 2", "SHARED LIMIT 3 PERMITS 2"),
    ] {
        let (mut a, mut b) = (server.client(), server.client());
        a.call(format!("LOCK.ACQUIRE {{a}}x A {LONG} SESSION"))
            .grant();
        b.call(format!("LOCK.ACQUIRE {{b}}y B {LONG} {mode} SESSION"))
            .grant();
        let wait = format!("LOCK.WAIT {{b}}y A {LONG} {wanted} SESSION");
        server.block(&mut a, wait);
        assert_deadlock(&mut b, "LOCK.WAIT {a}x B");
        b.close();
        a.recv().grant();
        a.close();
        until("all is free", || {
            let keys = ["{a}x", "{b}y"];
            keys.iter()
                .all(|key| server.call(format!("EXISTS {key}")).int() == 0)
        });
    }
}

#[test]
fn a_circle_over_two_slots_through_upgrades_and_many_holders_is_found() {
    let server = cluster_node();
    let mut a = tied(&server, "{a}x");
    let shared = |n: usize| format!("LOCK.ACQUIRE {{b}}y t{n} {LONG} SHARED LIMIT 9 SESSION");
    let mut holders: Vec<Client> = (0..9).map(|_| server.client()).collect();
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.call(shared(n)).grant();
    }
    server.block(&mut a, format!("LOCK.WAIT {{b}}y a {LONG} SHARED LIMIT 9"));
    let mut last = holders.pop().expect("a holder");
    for (n, holder) in holders.iter_mut().enumerate() {
        server.block(holder, format!("LOCK.WAIT {{a}}x w{n} {LONG}"));
    }
    assert_deadlock(&mut last, "LOCK.WAIT {a}x last");
    // One release leaves room under LIMIT, so the waiter is granted.
    last.call("LOCK.RELEASE {b}y t8").int();
    a.recv().grant();
}

#[test]
fn a_search_for_a_deadlock_leaves_the_client_in_its_database() {
    let server = Server::start();
    // Only an absent client waits in the other database, so its lock is read and not recorded.
    let mut elsewhere = server.client();
    elsewhere.call("SELECT 1").okay();
    elsewhere.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut absent = server.client();
    absent.call("SELECT 1").okay();
    let id = absent.id();
    server.block(
        &mut absent,
        format!("LOCK.WAIT k absent {LONG} KEEP 600000"),
    );
    absent.close();
    until("the waiter is absent", || !server.is_connected(id));
    server.call(format!("LOCK.ACQUIRE q b {LONG}")).grant();
    let mut other = server.client();
    server.block(&mut other, format!("LOCK.WAIT q other {LONG}"));
    let mut client = server.client();
    for key in ["s1", "s2", "s3"] {
        client
            .call(format!("LOCK.ACQUIRE {key} x {LONG} SESSION"))
            .grant();
    }

    client.call("LOCK.WAIT q x BLOCK 50").nil();

    client.call("SET here 1").okay();
    assert_eq!(server.call("EXISTS here").int(), 1);
    assert_eq!(client.call("LOCK.RELEASE s1 x").int(), 1);
}
