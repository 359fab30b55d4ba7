//! Thousands of connections, keys, sessions, places and marks that come and go. The counts of the
//! module come back to zero, the server's memory to what it was, and the server rests.

use std::fs;
use std::thread;
use std::time::Duration;

use support::{until, Client, Expect, Server};

/// Clients of a round. Each ends without saying goodbye.
const CLIENTS: usize = 400;

/// Rounds whose end is compared with the end of the first.
const ROUNDS: usize = 6;

/// The number of bytes by which used memory may vary by itself.
const SLACK: i64 = 600_000;

/// Clients that come and go one after another.
const MANY: usize = 4_000;

/// The number of bytes by which used memory may grow when as many have come and gone again. A list of
/// them has doubled then, to more than that.
const LITTLE: i64 = 40_000;

/// A span of time, and what a server which rests does in it at most: the times that it is run, and
/// its CPU time in ns. It looks after its own state ten times a second. A timer that fires each ms has
/// it run 300 times, and one that fires at once uses all of a core.
const SPAN: Duration = Duration::from_millis(300);
const RUNS_AT_REST: u64 = 60;
const CPU_NS_AT_REST: u64 = 20_000_000;

/// Commands of a client, in a pipeline. `#` stands for the client's number.
///
/// The last command of some blocks. All locks are sessions, as a waiter may be granted one before the
/// server notices its end.
const LIVES: [&[&str]; 9] = [
    &["LOCK.ACQUIRE k# t# PX 600000 SESSION"],
    &[
        "LOCK.ACQUIRE k# t# PX 600000 SESSION KEEP 1",
        "LOCK.EXTEND k# t# PX 500000 DATA why",
    ],
    &[
        "LOCK.ACQUIRE s t# PX 600000 SHARED SESSION",
        "LOCK.WAIT s t# SESSION",
    ],
    &[
        "LOCK.ACQUIRE p t# PX 600000 SHARED LIMIT 50 PERMITS 2 SESSION",
        "LOCK.WAIT p u# SHARED LIMIT 50 SESSION",
    ],
    &[
        "LOCK.MACQUIRE 3 a# b# d# t# PX 600000 SESSION",
        "LOCK.MWAIT 2 a# s u# SESSION KEEP 1",
    ],
    &["LOCK.RELEASE k# t# LEAVE 10", "LOCK.RELEASE s u# LEAVE 10"],
    &["LOCK.QUEUE s q# PX 600000 KEEP 10 NOTIFY channel n#"],
    &[
        "SELECT 3",
        "LOCK.ACQUIRE k# t# PX 600000 SESSION",
        "RENAME k# l#",
        "MOVE l# 4",
    ],
    &[
        "MULTI",
        "LOCK.ACQUIRE k# t# PX 10",
        "LOCK.ACQUIRE m# t# PX 600000 SESSION",
        "EXEC",
        "LOCK.WAIT m# w# SESSION KEEP 1",
    ],
];

/// Fields of `INFO lock` that count what is there now. Those of clients come back at once.
const COUNTS: [&str; 6] = [
    "lock_locks",
    "lock_waiters",
    "lock_places",
    "lock_sessions",
    "lock_deferred",
    "lock_replica_waits",
];

const MEMORY: [(&str, &str); 2] = [("memory", "used_memory"), ("lock", "lock_bytes")];

/// Lets all clients of a round live at once, and end. Returns when the server has noticed.
fn churn(server: &Server) {
    thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                let numbers = (first..CLIENTS).step_by(4);
                let clients: Vec<Client> = numbers.map(|number| live(server, number)).collect();
                if let Some(last) = clients.last() {
                    server.until_read(last);
                }
                for client in clients {
                    client.reset();
                }
            });
        }
    });
    (0..20).for_each(|_| grant_many_at_once(server));
    for field in COUNTS {
        until_zero(server, field);
    }
}

/// Sends all of a client's commands, and reads the replies of all but the last.
fn live(server: &Server, number: usize) -> Client {
    let mut client = server.client();
    let mut commands = LIVES[number % LIVES.len()]
        .iter()
        .map(|it| it.replace('#', &number.to_string()));
    let last = commands.next_back().expect("a command");
    for command in commands {
        client.call(command.as_str()).expect("a reply");
    }
    client.send(last.as_str());
    client
}

/// Hands a lock over in a pass of the server's loop in which many others are granted.
fn grant_many_at_once(server: &Server) {
    server.call("LOCK.ACQUIRE h a PX 600000").grant();
    let mut waiter = server.waiter("LOCK.WAIT h w PX 600000 SESSION");
    let mut commands = vec!["LOCK.RELEASE h a".to_owned()];
    for number in 0..12 {
        let key = format!("{number}{}", "k".repeat(500));
        commands.extend([format!("LOCK.ACQUIRE {key} *"), format!("DEL {key}")]);
    }
    server.call_all(&commands);
    waiter.recv().grant();
    server.call("LOCK.RELEASE h w").int();
}

#[track_caller]
fn until_zero(server: &Server, field: &str) {
    until(&format!("{field} is 0"), || {
        server.info("lock", field) == "0"
    });
}

fn bytes(server: &Server, section: &str, field: &str) -> i64 {
    server.info(section, field).parse().expect("a number")
}

#[test]
fn what_comes_and_goes_leaves_neither_counts_nor_memory_behind() {
    let server = Server::start();
    churn(&server);
    let [used, own] = MEMORY.map(|(section, field)| bytes(&server, section, field));
    for _ in 0..ROUNDS {
        churn(&server);
    }
    // A mark counts until the server removes it, within ten seconds of its end.
    until_zero(&server, "lock_left");
    assert_eq!(server.call("INFO keyspace").text().trim(), "# Keyspace");
    for ((section, field), before) in MEMORY.into_iter().zip([used, own]) {
        until(&format!("{field} is {before} again"), || {
            bytes(&server, section, field) < before + SLACK
        });
    }
}

/// The module takes note of a connection that asks for a session, and of one that may change rights.
#[test]
fn what_is_noted_of_a_connection_goes_with_it() {
    let server = Server::start();
    let used_after_many = || {
        for _ in 0..MANY {
            let mut client = Client::unidentified(server.port()).expect("a connection");
            client.call_batch(&["LOCK.ACQUIRE k t PX 600000 SESSION", "ACL WHOAMI"]);
            client.reset();
        }
        until_zero(&server, "lock_sessions");
        bytes(&server, "memory", "used_memory")
    };
    let before = used_after_many();
    let grown = used_after_many() - before;
    assert!(grown < LITTLE, "{grown} bytes");
}

/// With all that a lock can have, and after everything has come and gone.
#[test]
fn a_server_that_nobody_asks_rests() {
    let server = Server::start();
    let number = server.info("server", "process_id");
    let used = || {
        let text = fs::read_to_string(format!("/proc/{number}/task/{number}/schedstat"));
        let text = text.expect("the numbers of the server's thread");
        let mut numbers = text.split_whitespace().map(|it| it.parse::<u64>());
        let mut next = || numbers.next().expect("three numbers").expect("a number");
        let (cpu_ns, _waited_ns, runs) = (next(), next(), next());
        (cpu_ns, runs)
    };
    let until_rest = |what: &str| {
        until(&format!("the server rests {what}"), || {
            let before = used();
            thread::sleep(SPAN);
            let (cpu_ns, runs) = used();
            cpu_ns - before.0 < CPU_NS_AT_REST && runs - before.1 < RUNS_AT_REST
        });
    };
    until_rest("from the start");
    let clients: Vec<Client> = (0..LIVES.len())
        .map(|number| live(&server, number))
        .collect();
    server.call("LOCK.QUEUE s q PX 600000 KEEP 600000").int();
    server.call("LOCK.RELEASE s l LEAVE 600000").int();
    until_rest("while its clients hold and wait");
    for client in clients {
        client.reset();
    }
    until_rest("after its clients have gone");
    server.call_all(&["SWAPDB 0 4", "FLUSHDB", "FLUSHALL"]);
    until_rest("after its databases were emptied");
}
