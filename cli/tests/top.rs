//! Tests of `redis-lock top` in a terminal.

mod stage;

use std::time::{Duration, Instant};

use rustix::process::{kill_process, Signal};
use stage::support::{until, Expect, Server, LONG};
use stage::terminal::{words, Terminal};
use stage::{done, PROGRAM};

/// Returns a server with three locks: `quiet`, `busy` with two waiters, and `many` with three
/// holders.
#[track_caller]
fn server_with_locks() -> (Server, Vec<stage::support::Client>) {
    let server = Server::start();
    for command in [
        "quiet a",
        "busy a",
        "many a SHARED",
        "many b SHARED",
        "many c SHARED",
    ] {
        let (key, rest) = command.split_once(' ').expect("two words");
        let (token, mode) = rest.split_once(' ').unwrap_or((rest, ""));
        server
            .call(format!("LOCK.ACQUIRE {key} {token} {LONG} {mode}"))
            .grant();
        // Two locks of the same age would have no defined order by age.
        until("it is older than the next will be", || {
            let lock = server.known_lock(key);
            lock.holders
                .last()
                .is_some_and(|own| own.int("held-ms") > 1)
        });
    }
    let waiters = vec![
        server.waiter("LOCK.WAIT busy b"),
        server.waiter("LOCK.WAIT busy c"),
    ];
    (server, waiters)
}

fn top(server: &Server, options: &[&str], columns: u16, rows: u16) -> Terminal {
    let all = [&["top", "-d", "50ms"], options].concat();
    let terminal = Terminal::start(words(server.port(), PROGRAM, &all), columns, rows);
    terminal.until_shows("locks are shown", |text| text.contains("quiet"));
    terminal
}

/// Returns the keys in the order of their display.
fn keys(text: &str) -> Vec<&str> {
    let rows = text
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().next());
    rows.filter(|word| ["quiet", "busy", "many"].contains(word))
        .collect()
}

#[track_caller]
fn until_keys(terminal: &Terminal, order: [&str; 3]) {
    terminal.until_shows(&format!("the order is {order:?}"), |text| {
        keys(text) == order
    });
}

#[test]
fn locks_are_shown_and_sorted_and_followed() {
    let (server, _waiters) = server_with_locks();
    let mut terminal = top(&server, &[], 100, 12);
    terminal.until_shown("3 locks, 5 holders, 2 waiters at 127.0.0.1:");
    until_keys(&terminal, ["busy", "many", "quiet"]);
    terminal.type_in("h");
    until_keys(&terminal, ["many", "busy", "quiet"]);
    terminal.type_in("kr");
    until_keys(&terminal, ["quiet", "many", "busy"]);
    terminal.type_in("a");
    until_keys(&terminal, ["quiet", "busy", "many"]);
    server.call("DEL many").int();
    terminal.until_shown("2 locks, 2 holders, 2 waiters");
}

#[test]
fn locks_that_were_waited_for_come_first_even_if_they_are_free_now() {
    let server = Server::start();
    for key in ["busy", "quiet"] {
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    server.call("LOCK.WAIT quiet b BLOCK 50").nil();
    let mut terminal = top(&server, &[], 100, 12);
    let until_order = |order: [&str; 2]| {
        terminal.until_shows("their order", |text| keys(text) == order);
    };
    until_order(["quiet", "busy"]);
    server.call("DEL quiet").int();
    terminal.until_shown("1 locks, 1 holders");
    until_order(["quiet", "busy"]);
    terminal.type_in("k");
    terminal.until_shows("sorted by key", |text| keys(text) == ["busy", "quiet"]);
    terminal.type_in("t");
    terminal.until_shows("sorted by wait", |text| keys(text) == ["quiet", "busy"]);
    let mut with_pattern = top(&server, &["--sort", "key", "*"], 100, 12);
    with_pattern.until_shown("WAITED");
    with_pattern.type_in("q");
}

#[test]
fn without_the_right_to_lock_hot_the_waiters_decide() {
    let (server, _waiters) = server_with_locks();
    server
        .call("ACL SETUSER reader on >secret ~* +@all -lock.hot")
        .okay();
    let terminal = top(&server, &["--user", "reader", "-a", "secret"], 100, 12);
    until_keys(&terminal, ["busy", "many", "quiet"]);
}

#[test]
fn q_and_signals_leave_the_terminal_as_it_was() {
    let (server, _waiters) = server_with_locks();
    for (signal, code) in [
        (None, 0),
        (Some(Signal::TERM), 1),
        (Some(Signal::INT), 1),
        (Some(Signal::HUP), 1),
    ] {
        let mut terminal = top(&server, &[], 80, 24);
        assert!(terminal.is_taken() && !terminal.is_as_usual());
        match signal {
            None => terminal.type_in("q"),
            Some(signal) => kill_process(terminal.id(), signal).expect("it is there"),
        }
        let status = terminal.ended();
        assert_eq!(status.exit_code(), code, "{status:?}");
        assert_eq!(status.signal().is_some(), signal.is_some(), "{status:?}");
        until("the screen is given back", || !terminal.is_taken());
        assert!(terminal.is_as_usual());
        assert!(
            terminal.raw().ends_with(b"\x1b[?25h")
                || terminal.raw().windows(6).any(|it| it == b"\x1b[?25h")
        );
    }
}

#[test]
fn every_size_of_a_terminal_will_do() {
    let (server, _waiters) = server_with_locks();
    let terminal = top(&server, &[], 80, 24);
    for (columns, rows) in [(24, 5), (200, 50), (8, 2), (1, 1), (40, 10)] {
        terminal.resize(columns, rows);
        if columns >= 24 {
            terminal.until_shows("it is drawn anew", |text| {
                text.contains("busy")
                    && text.contains("WAITERS")
                    && text.contains("HOLDERS") == (columns >= 40)
                    && text.contains("q quit") == (rows >= 6)
            });
        }
    }
}

#[test]
fn what_does_not_change_is_not_drawn_again() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE quiet a").grant();
    let terminal = top(&server, &[], 80, 24);
    // Only the spans change.
    let before = terminal.raw().len();
    // Two for each picture: one because the lock is on the screen, one because it was found.
    until("it was drawn thirty times", || looks(&server) >= 60);
    let raw = terminal.raw();
    let drawn = looks(&server) / 2;
    let clears = raw[before..]
        .windows(4)
        .filter(|it| it == b"\x1b[2J")
        .count();
    assert_eq!(clears, 0);
    let bytes = raw.len() - before;
    assert!(bytes < 200 * drawn, "{bytes} bytes in {drawn} times");
}

/// A server with a million keys used two thirds of its processor time for `top`.
#[test]
fn a_large_keyspace_is_read_little_by_little() {
    let server = Server::start();
    let keys = "for n = 1, 120000 do redis.call('SET', 'key:' .. n, '') end";
    server.call(&["EVAL", keys, "0"]).nil();
    server.call(format!("LOCK.ACQUIRE quiet a {LONG}")).grant();
    server.call(format!("LOCK.ACQUIRE hot a {LONG}")).grant();
    server.call("LOCK.ACQUIRE hot b").nil();
    let (began, before) = (Instant::now(), calls(&server, "scan"));
    let options = ["top", "-d", "50ms", "-t", "30s"];
    let terminal = Terminal::start(words(server.port(), PROGRAM, &options), 100, 12);
    terminal.until_shown("hot");
    terminal.until_shown(" so far, ");
    terminal.until_shows("all is read", |text| {
        text.contains("quiet") && !text.contains(" so far, ")
    });
    // 120 calls visit all keys. 20 may come at once, and 20 in each second.
    let (took, scans) = (began.elapsed(), calls(&server, "scan") - before);
    assert!(took > Duration::from_millis(4_500), "{took:?}");
    let most = 20 + 20 * (took.as_secs() + 1);
    assert!(
        (120..=most).contains(&(scans as u64)),
        "{scans} in {took:?}"
    );
    terminal.until_shown("2 locks, 2 holders, 0 waiters at 127.0.0.1:");
    let age_s = |text: &str| -> Option<u64> {
        let (_, age) = text.split_once("at most ")?;
        age.split_once("s old")?.0.parse().ok()
    };
    terminal.until_shows("its age", |text| age_s(text) > Some(took.as_secs()));
    // The locks on the screen are read in each interval, not only when the survey finds them again.
    server.call("DEL quiet").int();
    let before = calls(&server, "scan");
    terminal.until_shown("1 locks, 1 holders");
    let scans = calls(&server, "scan") - before;
    assert!(scans < 100, "{scans} scans, and 120 find all keys again");
}

/// Returns the number of requests for the server's only lock.
fn looks(server: &Server) -> usize {
    calls(server, "lock.info")
}

fn calls(server: &Server, command: &str) -> usize {
    let stats = server.find_info("commandstats", &format!("cmdstat_{command}"));
    let Some(stats) = stats else {
        return 0;
    };
    let calls = stats
        .strip_prefix("calls=")
        .and_then(|rest| rest.split(',').next());
    calls
        .and_then(|it| it.parse().ok())
        .expect("a number of calls")
}

#[test]
fn a_server_that_goes_is_told_of_and_comes_back() {
    let (mut server, waiters) = server_with_locks();
    let terminal = top(&server, &[], 100, 12);
    drop(waiters);
    server.kill9();
    terminal.until_shown("NOT NOW: no connection to 127.0.0.1:");
    terminal.until_shown("busy");
    terminal.until_shown("at most 3s old");
    server.restart();
    terminal.until_shown("0 locks, 0 holders, 0 waiters");
}

#[test]
fn a_terminal_is_needed_and_nothing_of_a_key_is_obeyed() {
    let server = Server::start();
    server
        .call(&[&b"LOCK.ACQUIRE"[..], b"quiet\x1b[31m", b"a"])
        .grant();
    let refused = done(&server, &["top"]);
    assert!(
        refused.code() == 69 && refused.err.contains("needs a terminal"),
        "{refused:?}"
    );
    let terminal = top(&server, &[], 80, 24);
    terminal.until_shown(r#""quiet\x1b[31m""#);
    assert!(!terminal.raw().windows(5).any(|it| it == b"\x1b[31m"));
}
