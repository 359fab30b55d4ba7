//! The statements of docs/operate/sizing.md about memory and of docs/concepts/sessions.md about the server's own settings.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use support::{eventually, server_with_holder, until, Client, Expect, Server, LONG};

/// The number of clients: enough to make the server's other allocations negligible.
const CLIENTS: usize = 500;

#[track_caller]
fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the range of KB in the table row that starts with `what`.
#[track_caller]
fn documented_kb(what: &str) -> RangeInclusive<i64> {
    let text = text_of("docs/operate/sizing.md");
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let row = rows.find_map(|row| row.strip_prefix(what)).expect(what);
    let numbers: Vec<i64> = row
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let [least, most] = numbers[..] else {
        panic!("{what}: {row}")
    };
    least..=most
}

fn as_it_begins() -> RangeInclusive<i64> {
    documented_kb("with its connection, as it begins to wait")
}

fn later() -> RangeInclusive<i64> {
    documented_kb("with its connection, some seconds later")
}

#[track_caller]
fn used_memory(server: &Server) -> i64 {
    let bytes = server.info("memory", "used_memory");
    bytes.parse().expect("a number")
}

/// Returns the memory that each client has added since `before`, to the nearest KB.
#[track_caller]
fn added_kb(server: &Server, before: i64) -> i64 {
    let unit = 1024 * i64::try_from(CLIENTS).unwrap();
    (used_memory(server) - before + unit / 2) / unit
}

#[test]
fn a_waiter_with_its_connection_takes_the_memory_that_is_documented() {
    let server = server_with_holder();
    let before = used_memory(&server);
    let wait = |number| {
        let mut client = server.client();
        client.send(format!("LOCK.WAIT k t{number} {LONG}"));
        client
    };
    let _waiters: Vec<Client> = (0..CLIENTS).map(wait).collect();
    server.until_waiters("k", i64::try_from(CLIENTS).unwrap());
    // The server may have trimmed the first clients already.
    let begun = added_kb(&server, before);
    let possible = *later().start()..=*as_it_begins().end();
    assert!(possible.contains(&begun), "{begun} KB as they begin");
    eventually("waiters keep the memory that is documented", || {
        later().contains(&added_kb(&server, before)).then_some(())
    });
}

#[test]
fn a_connection_takes_the_memory_that_is_documented() {
    let server = Server::start();
    let before = used_memory(&server);
    let _clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    let documented = documented_kb("its connection alone");
    eventually("connections keep the memory that is documented", || {
        documented
            .contains(&added_kb(&server, before))
            .then_some(())
    });
}

#[test]
fn all_documents_tell_the_same_of_a_waiter() {
    let told = format!("{} to {} KB", later().start(), as_it_begins().end());
    for name in ["README.md", "DESIGN.md", "redis.conf.example"] {
        let text = text_of(name).replace("\n#", "");
        assert!(text.contains(&told), "{name} doesn't say {told}");
    }
}

#[test]
fn a_silent_connection_loses_its_session_grants_by_timeout_and_one_that_pings_does_not() {
    let server = Server::builder().config("timeout 1").start();
    let mut pinging = server.client();
    pinging
        .call(format!("LOCK.ACQUIRE pinging a {LONG} SESSION"))
        .grant();
    let mut silent = server.client();
    silent
        .call(format!("LOCK.ACQUIRE silent b {LONG} SESSION"))
        .grant();
    until("timeout ends the silent client's grant", || {
        pinging.call("PING").value();
        server.call("EXISTS silent").int() == 0
    });
    silent.expect_close();
    assert_eq!(server.call("EXISTS pinging").int(), 1);
}

#[test]
fn a_client_that_waits_is_not_closed_by_timeout() {
    let server = Server::builder().config("timeout 1").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    // The timeout has passed for the waiter when the server has closed a later connection.
    let id = server.client().id();
    let mut silent = server.client();
    until("timeout closes a silent connection", || {
        !server.is_connected(id) && !server.is_connected(silent.id())
    });
    silent.expect_close();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    waiter.recv().grant();
}
