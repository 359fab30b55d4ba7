//! A module that panics on purpose, once in each kind of callback: the server goes on.
//!
//! `make test-panics` runs this with a module of the feature `planted-panics`, in which the variable
//! `REDIS_LOCK_PANIC` chooses the call of the boundary that panics when it comes first.

use std::fs;
use std::path::Path;
use std::time::Duration;

use redis_lock_rig::{Plan, Process};
use support::compiled::shared_object;
use support::files::files_below;
use support::{module_path, server_binary, until, Client, Expect, Flavour, Server};

/// The time after which a command counts as one that gets no reply.
const SOON: Duration = Duration::from_secs(2);

/// Returns the calls of the boundary in the sources, as `file:line`.
fn places() -> Vec<String> {
    let mut places = Vec::new();
    for file in files_below("src") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let text = fs::read_to_string(path).expect("a source");
        let calls = (1..)
            .zip(text.lines())
            .filter(|(_, line)| line.contains("boundary::guard"));
        places.extend(calls.map(|(number, _)| format!("{file}:{number}")));
    }
    places
}

/// Starts a server whose module panics at a place.
fn started(place: &str, dir: &Path) -> Result<Process, String> {
    let lines = [
        "enable-debug-command yes",
        "enable-module-command yes",
        "appendonly yes",
        "aof-use-rdb-preamble no",
    ];
    let plan = Plan {
        module: Some(module_path()),
        lines: lines.map(str::to_owned).into(),
        environment: vec![("REDIS_LOCK_PANIC".to_owned(), place.to_owned())],
        ..Plan::new(&server_binary())
    };
    Process::start(plan, dir).map_err(|refused| format!("{refused:#}"))
}

/// Sends commands, of which a step that panics may answer any, or none.
fn send_all(client: &mut Client, commands: &[&str]) {
    for command in commands {
        let _ = client.try_call_within(SOON, *command);
    }
}

/// Calls each callback of the module at least once.
fn call_everything(server: &Process, dir: &Path) {
    let mut client = Client::connect(server.port());
    let hearing = shared_object("contexts/hearing.c", dir);
    let other = Process::start(Plan::new(&server_binary()), &dir.join("other"));
    let other = other.expect("another server");
    send_all(
        &mut client,
        &[
            "LOCK.ACQUIRE k a PX 60000 SESSION",
            "MEMORY USAGE k",
            "DEBUG DIGEST-VALUE k",
            "INFO lock",
            "RENAME k l",
            "RENAME l k",
            "EXPIRE k 100",
            "SWAPDB 0 1",
            "SWAPDB 0 1",
            "DEBUG RELOAD",
            "CONFIG SET maxclients 900",
            "BGREWRITEAOF",
            "LOCK.ACQUIRE soon b PX 50",
            "UNLINK k",
            "LOCK.ACQUIRE k a PX 60000",
        ],
    );
    hand_over(server.port(), &mut client);
    send_all(
        &mut client,
        &[
            &format!("MODULE LOAD {}", hearing.display()),
            "FLUSHALL",
            &format!("REPLICAOF 127.0.0.1 {}", other.port()),
            "REPLICAOF NO ONE",
        ],
    );
    let mut replica = Client::connect(other.port());
    replica
        .call(format!("REPLICAOF 127.0.0.1 {}", server.port()))
        .okay();
    until("the replica is in step", || {
        let role = client.call("ROLE").list();
        !Ok(role[2].clone()).list().is_empty()
    });
}

/// Hands a lock over, and ends waits by a timeout, an error and a lost connection.
fn hand_over(port: u16, client: &mut Client) {
    let mut waiters: Vec<Client> = (0..4).map(|_| Client::connect(port)).collect();
    for (waiter, block) in waiters.iter_mut().zip([60_000, 100, 60_000, 60_000]) {
        waiter.send(format!("LOCK.WAIT k w{block} PX 60000 BLOCK {block}"));
        send_all(client, &["PING"]);
    }
    let unblock = format!("CLIENT UNBLOCK {} ERROR", waiters[2].id());
    drop(waiters.pop());
    send_all(client, &[&unblock, "LOCK.RELEASE k a"]);
    for waiter in &mut waiters {
        let first = waiter.try_call_within(SOON, "PING");
        let pong = Ok(redis::Value::SimpleString("PONG".to_owned()));
        assert_ne!(first, pong, "a wait got no reply");
    }
}

/// Asserts that locks work for a client that comes now.
#[track_caller]
fn assert_works(port: u16, place: &str) {
    let mut client = Client::connect(port);
    let mut waiter = Client::connect(port);
    client.call("LOCK.ACQUIRE after a PX 60000").grant();
    waiter.send("LOCK.WAIT after b PX 60000 BLOCK 60000");
    until("b waits", || {
        client.call("LOCK.INFO after WAITERS 1").value() != redis::Value::Nil
            && client.call("LOCK.CANCEL after nobody").int() == 0
            && client.call("CLIENT LIST").text().contains("cmd=lock.wait")
    });
    assert_eq!(client.call("LOCK.RELEASE after a").int(), 1, "{place}");
    waiter.recv().grant();
    assert_eq!(client.call("LOCK.RELEASE after b").int(), 1, "{place}");
}

#[test]
fn a_panic_in_each_callback_leaves_the_server_running() {
    let mut places = places();
    places.retain(|place| !place.starts_with("src/lib.rs:"));
    assert!(places.len() >= 26, "{places:?}");
    let mut unreached = Vec::new();
    for place in &places {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("other")).expect("a folder");
        let server = started(place, dir.path()).expect("a server");
        call_everything(&server, dir.path());
        assert!(server.ended().expect("a child").is_none(), "{place}");
        assert_works(server.port(), place);
        match server.crash() {
            None => unreached.push(place),
            Some(crash) => assert!(crash.contains(&format!("planted at {place}:")), "{crash}"),
        }
    }
    // Redis doesn't call the end of a blocked client.
    if Server::start().flavour() == Flavour::Redis {
        assert_eq!(unreached.len(), 1, "{unreached:?}");
        unreached.retain(|place| !place.starts_with("src/engine/blocking.rs:"));
    }
    assert!(unreached.is_empty(), "{unreached:?}");
}

#[test]
fn a_panic_at_load_ends_the_start_with_a_reason() {
    let mut places = places();
    places.retain(|place| place.starts_with("src/lib.rs:"));
    assert_eq!(places.len(), 1, "{places:?}");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let refused = started(&places[0], dir.path()).err().expect("a refusal");
    assert!(refused.contains("exit status: 1"), "{refused}");
    let log = fs::read_to_string(dir.path().join("server.log")).expect("a log");
    assert!(log.contains("loading it panicked"), "{log}");
}
