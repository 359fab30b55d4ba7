//! The keepalive probes of connections with SESSION grants. The module has the kernel send them
//! soon, whatever `tcp-keepalive` is. Linux tells the time until the next probe.
//! `vanished.rs` tests that a vanished client loses its grants.
#![cfg(target_os = "linux")]

use std::net::{Ipv6Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use redis_lock_rig::{Plan, Process};
use support::{eventually, module_path, server_binary, until, Client, Expect, Server};

/// The longest silence before a probe with the module's setting, and a time that only the server's
/// own setting exceeds.
const SOON: Duration = Duration::from_secs(8);
const LATE: Duration = Duration::from_secs(100);

/// The server's default.
const TCP_KEEPALIVE: &str = "tcp-keepalive 300";

/// Waits until all data is acknowledged, so that the timer is for probes, and returns its time.
#[track_caller]
fn settled_probe(client: &Client) -> Duration {
    eventually("a timer for probes", || next_probe(client))
}

fn next_probe(client: &Client) -> Option<Duration> {
    let end = client.ends().of_server();
    end.expect("the server's end of the connection").next_probe
}

/// The commands of one connection, and true if they shorten the time until the next probe.
const WAYS: [(&[&str], bool); 14] = [
    (&["LOCK.ACQUIRE k t PX 600000 SESSION"], true),
    (&["LOCK.ACQUIRE k t PX 600000 SESSION KEEP 500"], true),
    (&["LOCK.MACQUIRE 2 k l t PX 600000 SHARED SESSION"], true),
    (&["LOCK.WAIT k t PX 600000 SESSION"], true),
    (&["LOCK.MWAIT 2 k l t PX 600000 SESSION"], true),
    (
        &["LOCK.ACQUIRE k t PX 600000", "LOCK.EXTEND k t SESSION"],
        true,
    ),
    (
        &["MULTI", "LOCK.ACQUIRE k t PX 600000 SESSION", "EXEC"],
        true,
    ),
    (
        &["EVAL return{redis.call('LOCK.ACQUIRE',KEYS[1],'t','SESSION')} 1 k"],
        true,
    ),
    (
        &["LOCK.ACQUIRE k t SESSION", "LOCK.RELEASE k t", "RESET"],
        true,
    ),
    (&["LOCK.ACQUIRE k t PX 600000"], false),
    (&["LOCK.WAIT k t PX 600000"], false),
    (&["LOCK.QUEUE k t KEEP 600000"], false),
    (&["MULTI", "LOCK.ACQUIRE k t PX 600000", "EXEC"], false),
    (
        &["EVAL return{redis.call('LOCK.ACQUIRE',KEYS[1],'t')} 1 k"],
        false,
    ),
];

#[test]
fn the_first_session_of_a_connection_has_it_probed_soon_and_nothing_else_does() {
    let server = Server::builder().config(TCP_KEEPALIVE).start();
    for (commands, shortens) in WAYS {
        server.call("FLUSHALL").okay();
        let mut client = server.client();
        client.call_all(commands);
        let probe = settled_probe(&client);
        let expected = if shortens {
            probe <= SOON
        } else {
            probe > LATE
        };
        assert!(expected, "{commands:?}: {probe:?}");
    }
}

#[test]
fn a_session_over_ipv6_has_its_connection_probed_soon() {
    let server = Server::builder()
        .config("bind 127.0.0.1 -::1")
        .config(TCP_KEEPALIVE)
        .start();
    let address = (Ipv6Addr::LOCALHOST, server.port());
    if TcpStream::connect(address).is_err() {
        return; // The machine has no IPv6.
    }
    let mut client = Client::connect_to(address);
    client.call("PING").text();
    assert!(settled_probe(&client) > LATE);
    client.call("LOCK.ACQUIRE k t PX 600000 SESSION").grant();
    assert!(settled_probe(&client) <= SOON);
}

#[test]
fn a_wait_that_is_queued_has_its_connection_probed_soon() {
    let server = support::server_with_holder();
    let waiter = server.waiter("LOCK.WAIT k t SESSION");
    assert!(settled_probe(&waiter) <= SOON);
}

#[test]
fn probes_that_the_server_sends_sooner_stay_as_they_are() {
    let server = Server::builder().config("tcp-keepalive 2").start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k t PX 600000 SESSION").grant();
    assert!(settled_probe(&client) <= Duration::from_secs(2));
}

#[test]
fn a_server_without_probes_sends_them_for_sessions() {
    let server = Server::builder().config("tcp-keepalive 0").start();
    let mut client = server.client();
    client.call("PING").text();
    until("all data is acknowledged", || next_probe(&client).is_none());
    client.call("LOCK.ACQUIRE k t PX 600000 SESSION").grant();
    assert!(settled_probe(&client) <= SOON);
}

#[test]
fn the_server_is_asked_for_a_socket_once_for_each_connection() {
    let server = Server::start();
    server.call("CONFIG RESETSTAT").okay();
    for _ in 0..3 {
        let mut client = server.client();
        for _ in 0..5 {
            client.call("LOCK.ACQUIRE k t PX 600000 SESSION").grant();
            client.call("LOCK.RELEASE k t").int();
        }
        client.close();
    }
    let calls = server.info("commandstats", "cmdstat_client|list");
    assert!(calls.starts_with("calls=3,"), "{calls}");
}

#[test]
fn a_session_over_a_unix_socket_works_and_nothing_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let path = path.display();
    let server = Server::builder()
        .config(&format!("unixsocket \"{path}\""))
        .start();
    let mut connection = connect(&format!("redis+unix://{path}"));
    acquire(&mut connection);
    assert_eq!(warning(&server.log()), None);
    drop(connection);
    until("the grant has ended", || server.lock_info("k").is_none());
}

#[test]
fn the_log_warns_once_if_sockets_cannot_be_set_and_the_server_s_setting_is_long() {
    for (seconds, warns) in [(0, true), (10, false), (14, false), (15, true), (300, true)] {
        let folder = tempfile::tempdir().expect("a folder");
        let server = server_without_client_command(folder.path(), seconds);
        for _ in 0..2 {
            acquire(&mut connect(&format!(
                "redis://127.0.0.1:{}",
                server.port()
            )));
        }
        let log = server.log();
        assert_eq!(warning(&log).is_some(), warns, "{seconds}: {log}");
        if let Some(line) = warning(&log) {
            assert!(line.contains(&format!(" {seconds} s")), "{line}");
            assert!(line.contains(" # "), "the mark of a warning: {line}");
            assert_eq!(log.matches("tcp-keepalive is").count(), 1, "{log}");
        }
        assert_eq!(server.crash(), None);
    }
}

#[test]
fn the_log_warns_of_no_server_whose_sockets_can_be_set() {
    for seconds in [0, 10, 300] {
        let line = format!("tcp-keepalive {seconds}");
        let server = Server::builder().config(&line).start();
        server.client().call("LOCK.ACQUIRE k t SESSION").grant();
        assert_eq!(warning(&server.log()), None, "{line}");
    }
}

/// Starts a server without CLIENT. It isn't a `Server`, because the harness asks for each
/// connection's id.
fn server_without_client_command(folder: &Path, seconds: u32) -> Process {
    let plan = Plan {
        module: Some(module_path()),
        lines: vec![
            format!("tcp-keepalive {seconds}"),
            "rename-command CLIENT \"\"".to_owned(),
        ],
        ..Plan::new(&server_binary())
    };
    match Process::start(plan, folder) {
        Ok(process) => process,
        Err(refused) => panic!("{refused:#}"),
    }
}

#[track_caller]
fn connect(url: &str) -> redis::Connection {
    let client = redis::Client::open(url).expect("an address");
    client
        .get_connection()
        .expect("the server takes connections")
}

/// Acquires a lock with SESSION, releases it and acquires it again.
#[track_caller]
fn acquire(connection: &mut redis::Connection) {
    let words = ["k", "t", "PX", "600000", "SESSION"];
    for command in ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.ACQUIRE"] {
        let words = if command == "LOCK.RELEASE" {
            &words[..2]
        } else {
            &words[..]
        };
        let reply: redis::Value = redis::cmd(command)
            .arg(words)
            .query(connection)
            .expect(command);
        assert_ne!(reply, redis::Value::Nil, "{command}");
    }
}

fn warning(log: &str) -> Option<&str> {
    log.lines().find(|line| line.contains("tcp-keepalive is"))
}
