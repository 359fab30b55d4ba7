//! The statements of docs/operate/monitor.md about SLOWLOG and LATENCY.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use support::{until, Expect, Flavour, Server, LONG};

/// A threshold longer than any command here takes on a busy machine, and shorter than the waits.
const SLOW: Duration = Duration::from_millis(300);

fn names_in_slowlog(server: &Server) -> Vec<Vec<String>> {
    let entries = server.call("SLOWLOG GET 100").list();
    let words = |entry| {
        let words = Ok(Ok(entry).list().swap_remove(3)).list();
        words.into_iter().map(|word| Ok(word).text()).collect()
    };
    entries.into_iter().map(words).collect()
}

#[test]
fn the_time_that_a_client_waits_is_no_slow_command() {
    let server = Server::builder()
        .config(&format!("slowlog-log-slower-than {}", SLOW.as_micros()))
        .config(&format!("latency-monitor-threshold {}", SLOW.as_millis()))
        .start();
    for key in ["k", "l"] {
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    let mut one = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut many = server.waiter(format!("LOCK.MWAIT 2 k l c {LONG}"));
    // This waiting time must not count as a command's time.
    thread::sleep(2 * SLOW);
    server.call_all(&["LOCK.RELEASE k a", "LOCK.RELEASE l a"]);
    one.recv().grant();
    server.call("LOCK.RELEASE k b").int();
    many.recv().grant();
    let logged = names_in_slowlog(&server);
    let waits = logged.iter().filter(|words| words[0].contains("WAIT"));
    assert_eq!(waits.count(), 0, "{logged:?}");
    let stats = server.call("INFO commandstats").text();
    for name in ["lock.wait", "lock.mwait"] {
        let line = stats.lines().find(|line| line.contains(name)).expect(name);
        let (_, rest) = line.split_once("usec_per_call=").expect("a time");
        let microseconds: f64 = rest.split(',').next().unwrap().parse().unwrap();
        assert!(microseconds < SLOW.as_micros() as f64, "{line}");
    }
    // The monitor works: it has the event of a slow command.
    server
        .call(format!("DEBUG SLEEP {}", 2.0 * SLOW.as_secs_f64()))
        .okay();
    let latest = format!("{:?}", server.call("LATENCY LATEST"));
    assert_eq!(latest.matches("command").count(), 1, "{latest}");
}

#[test]
fn what_the_timer_does_is_in_no_command() {
    let server = Server::builder()
        .config("slowlog-log-slower-than 0")
        .start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    // This drops the entries of the server's start and of this test's own start.
    server.call("SLOWLOG RESET").okay();
    server.call("LOCK.EXTEND k a PX 30").int();
    waiter.recv().grant();
    let sent = [
        "LOCK.ACQUIRE",
        "LOCK.EXTEND",
        "LOCK.WAIT",
        "CLIENT",
        "INFO",
        "PING",
        "SLOWLOG",
    ];
    let sent = BTreeSet::from(sent.map(str::to_owned));
    for words in names_in_slowlog(&server) {
        let asks = words == ["LOCK.APPLY", "k", "ASK"];
        assert!(asks || sent.contains(&words[0].to_uppercase()), "{words:?}");
    }
}

#[test]
fn histograms_have_the_lock_commands() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a").grant();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    server.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    let has = |name: &str| {
        !server
            .call(format!("LATENCY HISTOGRAM {name}"))
            .list()
            .is_empty()
    };
    assert!(has("lock.acquire") && has("lock.release"));
    if server.flavour() == Flavour::Redis && server.version() < (7, 2, 0) {
        assert!(!has("lock.wait"));
    } else {
        until("the wait is counted", || has("lock.wait"));
    }
}
