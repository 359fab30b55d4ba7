//! Settings, the counts of INFO, loading the module, and the refusal to unload it.

use std::fs;
use std::time::{Duration, Instant};

use support::{eventually, until, Builder, Client, Expect, Fields, Server, LONG, PATIENCE};

#[track_caller]
fn setting(server: &Server, name: &str) -> String {
    Fields::of(server.call(&["CONFIG", "GET", name]).value()).text(name)
}

// ---- settings

#[test]
fn settings_are_taken_within_their_ranges_only() {
    let server = Server::start();
    for (name, good, bad) in [
        (
            "lock.default-lease",
            ["1", "5000", "9007199254740991"].as_slice(),
            ["0", "-1", "9007199254740992", "1.5", "", "soon"].as_slice(),
        ),
        (
            "lock.default-keep",
            &["1", "5000", "9007199254740991"],
            &["0", "-1", "9007199254740992", "1.5", "", "soon"],
        ),
        (
            "lock.max-tickets",
            &["0", "1", "4294967295"],
            &["-1", "4294967296", "1.5", "", "many"],
        ),
        (
            "lock.max-waiters",
            &["0", "1", "4294967295"],
            &["-1", "4294967296", "1.5", "", "many"],
        ),
        (
            "lock.replicas-timeout",
            &["1", "5000", "9007199254740991"],
            &["0", "-1", "9007199254740992", "1.5", "", "soon"],
        ),
    ] {
        for value in good {
            server.call(&["CONFIG", "SET", name, value]).okay();
            assert_eq!(setting(&server, name), *value);
        }
        let last = setting(&server, name);
        for value in bad {
            let error = server.call(&["CONFIG", "SET", name, value]).error();
            assert!(error.contains(name), "{name} {value:?}: {error}");
            assert_eq!(setting(&server, name), last);
        }
    }
    let all = Fields::of(server.call("CONFIG GET lock.*").value());
    let names = [
        "lock.default-keep",
        "lock.default-lease",
        "lock.max-tickets",
        "lock.max-waiters",
        "lock.replicas-timeout",
    ];
    assert_eq!(all.names(), names);
}

#[test]
fn a_new_default_lease_counts_for_grants_from_then_on() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE before a").grant();
    let mut waiter = server.waiter("LOCK.WAIT before b");
    server.call("CONFIG SET lock.default-lease 5000").okay();
    for acquire in [
        "LOCK.ACQUIRE k1 a",
        "LOCK.WAIT k2 a",
        "LOCK.ACQUIRE k3 a PX 5000",
    ] {
        server.call(acquire).grant();
    }
    for key in ["k1", "k2", "k3"] {
        let left_ms = server.call(&["LOCK.CHECK", key, "a"]).int();
        assert!((1_000..=5_000).contains(&left_ms), "{key}: {left_ms}");
    }
    assert!(
        server.call("LOCK.CHECK before a").int() > 5_000,
        "the holder keeps its lease"
    );
    // A waiter keeps the default lease of the time of its request.
    server.call("LOCK.RELEASE before a").int();
    waiter.recv().grant();
    assert!(server.call("LOCK.CHECK before b").int() > 5_000);
    assert_eq!(server.call("LOCK.EXTEND before b").int(), 1);
    let left_ms = server.call("LOCK.CHECK before b").int();
    assert!(left_ms > 5_000, "its own length: {left_ms}");
}

#[test]
fn a_lower_limit_sends_nobody_away() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiters: Vec<Client> = (0..3)
        .map(|number| server.waiter(format!("LOCK.WAIT k w{number} {LONG}")))
        .collect();
    server.call("CONFIG SET lock.max-waiters 1").okay();
    server.settle();
    assert_eq!(server.waiters("k"), 3);
    assert!(server
        .call("LOCK.WAIT k z")
        .error()
        .starts_with("MAXWAITERS "));
    server.call("CONFIG SET lock.max-waiters 3").okay();
    assert!(server
        .call("LOCK.WAIT k z")
        .error()
        .starts_with("MAXWAITERS "));
    server.call("CONFIG SET lock.max-waiters 4").okay();
    waiters.push(server.waiter(format!("LOCK.WAIT k z {LONG}")));
}

/// The limits of waiters as MAXWAITERS names them.
const OF_MAX_WAITERS: &str = "MAXWAITERS as many clients wait as lock.max-waiters allows";
const OF_MAX_CLIENTS: &str = "MAXWAITERS as many clients wait as nine tenths of maxclients";

/// Adds waiters for `k` until the server refuses one by this error, and returns the waiters.
#[track_caller]
fn waiters_until_refused(server: &Server, refusal: &str) -> Vec<Client> {
    let mut waiters = Vec::new();
    loop {
        let mut client = server.client();
        client.send(format!("LOCK.WAIT k w{} {LONG}", client.id()));
        let refused = eventually("it waits or is refused", || {
            match client.try_recv(Duration::from_millis(1)) {
                Some(reply) => Some(Some(reply.error())),
                None => server.is_blocked(client.id()).then_some(None),
            }
        });
        match refused {
            Some(error) => {
                assert_eq!(error, refusal);
                return waiters;
            }
            None => waiters.push(client),
        }
    }
}

#[test]
fn a_tenth_of_the_servers_connections_is_never_taken_by_waiters() {
    let of_clients = OF_MAX_CLIENTS;
    for (lines, refusal) in [
        (&["maxclients 50"][..], of_clients),
        (&["maxclients 50", "lock.max-waiters 0"], of_clients),
        (&["maxclients 50", "lock.max-waiters 46"], of_clients),
        (&["maxclients 50", "lock.max-waiters 45"], OF_MAX_WAITERS),
        (
            &["maxclients 50", "rename-command CONFIG other-config"],
            of_clients,
        ),
    ] {
        let server = lines
            .iter()
            .fold(Server::builder(), |server, line| server.config(line));
        let server = server.start();
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut waiters = waiters_until_refused(&server, refusal);
        assert_eq!(waiters.len(), 45, "{lines:?}");
        // A client that releases can still connect.
        assert_eq!(server.client().call("LOCK.RELEASE k a").int(), 1);
        waiters[0].recv().grant();
    }
}

#[test]
fn the_room_for_waiters_goes_with_the_servers_connections() {
    let server = Server::builder().config("maxclients 50").start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let waiters = waiters_until_refused(&server, OF_MAX_CLIENTS);
    assert_eq!(waiters.len(), 45);
    server.call("CONFIG SET maxclients 100").okay();
    let more = waiters_until_refused(&server, OF_MAX_CLIENTS);
    assert_eq!(more.len(), 45);
    server
        .call("CONFIG SET lock.max-waiters 0 maxclients 110")
        .okay();
    let yet_more = waiters_until_refused(&server, OF_MAX_CLIENTS);
    assert_eq!(yet_more.len(), 9);
    // Waiting clients stay when there is less room.
    server.call("CONFIG SET maxclients 105").okay();
    server.settle();
    assert_eq!(server.waiters("k"), 99);
    assert_eq!(waiters_until_refused(&server, OF_MAX_CLIENTS).len(), 0);
    server
        .call("CONFIG SET maxclients 1000 lock.max-waiters 100")
        .okay();
    assert_eq!(waiters_until_refused(&server, OF_MAX_WAITERS).len(), 1);
}

#[test]
fn settings_come_from_the_configuration_file_and_are_written_back_to_it() {
    let mut server = Server::builder()
        .config("lock.default-lease 12345")
        .config("lock.max-waiters 67")
        .start();
    assert_eq!(setting(&server, "lock.default-lease"), "12345");
    assert_eq!(setting(&server, "lock.max-waiters"), "67");
    server.call("LOCK.ACQUIRE k a").grant();
    assert!(server.call("LOCK.CHECK k a").int() <= 12_345);

    server
        .call("CONFIG SET lock.default-lease 54321 lock.max-waiters 0")
        .okay();
    server.call("CONFIG REWRITE").okay();
    let path = server.info("server", "config_file");
    let written = fs::read_to_string(path).expect("the configuration file");
    for line in ["lock.default-lease 54321", "lock.max-waiters 0"] {
        assert_eq!(written.matches(line).count(), 1, "{line} in\n{written}");
    }
    assert!(!written.contains("12345"), "{written}");
    // The server starts with the lines that it wrote.
    let lines: Vec<&str> = written
        .lines()
        .filter(|line| line.starts_with("lock."))
        .collect();
    for line in lines {
        server.restart_with(line);
    }
    assert_eq!(setting(&server, "lock.default-lease"), "54321");
    assert_eq!(setting(&server, "lock.max-waiters"), "0");
}

#[test]
fn a_bad_setting_in_the_configuration_file_keeps_the_server_from_starting() {
    for line in [
        "lock.default-lease 0",
        "lock.default-lease soon",
        "lock.max-waiters -1",
        "lock.unheard-of 5",
    ] {
        let start = || Server::builder().config(line).start();
        let attempt = std::panic::catch_unwind(start);
        assert!(attempt.is_err(), "the server started with {line}");
    }
}

// ---- loading and unloading

/// Returns the path of the module.
fn module_path() -> String {
    let server = Server::start();
    modules(&server)
        .into_iter()
        .find(|module| module.text("name") == "lock")
        .expect("the module")
        .text("path")
}

fn modules(server: &Server) -> Vec<Fields> {
    let list = server.call("MODULE LIST").list();
    list.into_iter().map(Fields::of).collect()
}

#[test]
fn the_module_can_be_loaded_into_a_running_server_with_settings() {
    let path = module_path();
    let server = Server::builder().without_module().start();
    assert!(server
        .call("LOCK.ACQUIRE k a")
        .error()
        .starts_with("ERR unknown command"));
    let load = [
        "MODULE",
        "LOADEX",
        &path,
        "CONFIG",
        "lock.default-lease",
        "7000",
        "CONFIG",
        "lock.max-waiters",
        "8",
    ];
    server.call(&load).okay();
    assert_eq!(setting(&server, "lock.default-lease"), "7000");
    assert_eq!(setting(&server, "lock.max-waiters"), "8");
    server.call("LOCK.ACQUIRE k a").grant();
    let left_ms = server.call("LOCK.CHECK k a").int();
    assert!((2_000..=7_000).contains(&left_ms), "{left_ms}");
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
}

/// Returns a builder whose configuration file loads the module with `arguments`, followed by
/// `lines`.
fn server_with_arguments(arguments: &str, lines: &[&str]) -> Builder {
    let module = support::module_path();
    let load = format!("loadmodule \"{}\" {arguments}", module.display());
    let builder = Server::builder().without_module().config(&load);
    lines
        .iter()
        .fold(builder, |builder, line| builder.config(line))
}

/// Returns `lock.default-lease` and `lock.max-waiters`.
fn settings(server: &Server) -> [String; 2] {
    ["lock.default-lease", "lock.max-waiters"].map(|name| setting(server, name))
}

#[test]
fn arguments_of_the_module_are_settings() {
    let arguments = "default-lease 1234 MAX-WAITERS 0";
    let server = server_with_arguments(arguments, &[]).start();
    assert_eq!(settings(&server), ["1234", "0"]);
    server.call("LOCK.ACQUIRE k a").grant();
    assert!(server.call("LOCK.CHECK k a").int() <= 1_234);
    server.call("CONFIG SET lock.max-waiters 5").okay();
    assert_eq!(settings(&server), ["1234", "5"]);
    let server = server_with_arguments("max-waiters 7", &[]).start();
    assert_eq!(settings(&server), ["30000", "7"]);
}

#[test]
fn what_the_configuration_says_wins_over_arguments() {
    let arguments = "default-lease 1234 max-waiters 99";
    let lines = ["lock.max-waiters 5"];
    let mut server = server_with_arguments(arguments, &lines).start();
    assert_eq!(settings(&server), ["1234", "5"]);
    // So a setting that CONFIG REWRITE has written applies after a restart.
    server.call("CONFIG SET lock.default-lease 30000").okay();
    server.call("CONFIG REWRITE").okay();
    let path = server.info("server", "config_file");
    let written = fs::read_to_string(path).expect("the configuration file");
    assert!(written.contains("lock.default-lease 30000"), "{written}");
    assert!(written.contains("default-lease 1234"), "{written}");
    server.restart_with("lock.default-lease 30000");
    assert_eq!(settings(&server), ["30000", "5"]);
}

#[test]
fn module_loadex_takes_settings_and_arguments() {
    let path = module_path();
    let server = Server::builder().without_module().start();
    let config = "CONFIG lock.default-lease 7000 ARGS default-lease 8000 max-waiters 9";
    let load = format!("MODULE LOADEX {path} {config}");
    server.call(load.as_str()).okay();
    assert_eq!(settings(&server), ["7000", "9"]);
}

#[test]
fn what_is_no_argument_is_refused_and_named_in_the_log() {
    let path = module_path();
    let server = Server::builder().without_module().start();
    let refused = [
        ("bogus 1", "'bogus' is no argument of this module"),
        (
            "lock.default-lease 1",
            "'lock.default-lease' is no argument of this module",
        ),
        ("default-lease", "the argument 'default-lease' has no value"),
        (
            "default-lease 5 max-waiters",
            "the argument 'max-waiters' has no value",
        ),
        (
            "default-lease 0",
            "the argument 'default-lease 0' is refused: the value must be 1 to 9007199254740991",
        ),
        (
            "max-waiters -1",
            "the argument 'max-waiters -1' is refused: the value must be 0 to 4294967295",
        ),
        (
            "max-waiters 99999999999999999999",
            "'max-waiters 99999999999999999999' is refused",
        ),
        ("max-waiters many", "'max-waiters many' is refused"),
        (
            "default-lease 5 default-lease 6",
            "the argument default-lease is given twice",
        ),
    ];
    for (arguments, told) in refused {
        let logged = server.log().len();
        server
            .call(format!("MODULE LOAD {path} {arguments}"))
            .error();
        until("the log says why", || {
            let log = server.log();
            log[logged..].contains("not loaded: ") && log[logged..].contains(told)
        });
    }
    server
        .call(&["MODULE", "LOAD", &path, "b\0g", "\r\n"])
        .error();
    until("the log shows bytes escaped", || {
        server.log().contains(r"'b\x00g' is no argument")
    });
    // The refused loads leave nothing behind.
    server.call(format!("MODULE LOAD {path}")).okay();
    assert_eq!(settings(&server), ["30000", "10000"]);
    // A second load's arguments don't change the settings of the first.
    server
        .call(format!("MODULE LOAD {path} default-lease 5"))
        .error();
    assert_eq!(settings(&server), ["30000", "10000"]);
    let start = || server_with_arguments("default-lease 0", &[]).start();
    assert!(std::panic::catch_unwind(start).is_err(), "it started");
}

#[test]
fn a_bad_value_given_with_module_loadex_is_an_error_and_the_server_goes_on() {
    let path = module_path();
    for (name, value) in [("lock.default-lease", "0"), ("lock.max-waiters", "many")] {
        let server = Server::builder().without_module().start();
        server
            .call(&["MODULE", "LOADEX", &path, "CONFIG", name, value])
            .error();
        // Locks work, whether or not the server has removed the module.
        if server.call("LOCK.HELP").is_err() {
            server.call(&["MODULE", "LOAD", &path]).okay();
        }
        assert_eq!(setting(&server, "lock.default-lease"), "30000");
        server.call("LOCK.ACQUIRE k a").grant();
        assert!(server.call("LOCK.CHECK k a").int() > 20_000);
    }
}

#[test]
fn the_module_cant_be_unloaded_and_everything_goes_on() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    for _ in 0..2 {
        let error = server.call("MODULE UNLOAD lock").error();
        assert!(error.contains("data types"), "{error}");
    }
    assert_eq!(server.waiters("k"), 1);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    let names = modules(&server).into_iter().map(|it| it.text("name"));
    assert!(names.into_iter().any(|name| name == "lock"));
}

#[test]
fn the_log_warns_of_policies_that_evict_locks_and_of_no_others() {
    for (policy, evicts) in [
        ("noeviction", false),
        ("allkeys-lru", true),
        ("allkeys-random", true),
        ("volatile-ttl", true),
        ("volatile-lfu", true),
    ] {
        let server = Server::builder()
            .config(&format!("maxmemory-policy {policy}"))
            .start();
        let log = server.log();
        let warning = log
            .lines()
            .find(|line| line.contains("maxmemory-policy") && line.contains("evicted"));
        assert_eq!(warning.is_some(), evicts, "{policy}: {log}");
        if let Some(line) = warning {
            assert!(
                line.contains(policy) && line.contains("noeviction"),
                "{line}"
            );
            // The log's mark for a warning.
            assert!(line.contains(" # "), "{line}");
        }
    }
}

// ---- INFO lock

/// The counts of INFO lock at the last check.
struct Counts {
    last: Vec<(String, i64)>,
}

/// The fields of INFO lock that count no events: bytes and durations.
const MEASURES: [&str; 11] = [
    "bytes",
    "wait_p50_ms",
    "wait_p99_ms",
    "wait_max_ms",
    "hold_p50_ms",
    "hold_p99_ms",
    "hold_max_ms",
    "acknowledge_p50_ms",
    "acknowledge_p99_ms",
    "acknowledge_max_ms",
    "oldest_wait_ms",
];

const FIELDS: [&str; 27] = [
    "locks",
    "waiters",
    "places",
    "left",
    "sessions",
    "deferred",
    "last_fence",
    "grants",
    "hand_overs",
    "expirations",
    "timeouts",
    "lapsed_places",
    "take_overs",
    "cancels",
    "take_backs",
    "extensions",
    "releases",
    "deadlocks",
    "deadlock_searches_given_up",
    "max_waiters_refusals",
    "max_tickets_refusals",
    "lost_expired",
    "lost_deleted",
    "lost_disconnected",
    "replica_waits",
    "acknowledged",
    "not_acknowledged",
];

impl Counts {
    #[track_caller]
    fn of(server: &Server) -> Vec<(String, i64)> {
        let text = server.call("INFO lock").text();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields
            .filter(|(name, _)| *name != "lock_version")
            .map(|(name, value)| {
                let name = name.strip_prefix("lock_").expect("the module's prefix");
                (name, value.trim())
            })
            // A field with several numbers is a histogram, tested in tests/server/info_times.rs.
            .filter(|(name, value)| !MEASURES.contains(name) && !value.contains('='))
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect()
    }

    #[track_caller]
    fn start(server: &Server) -> Counts {
        let last = Counts::of(server);
        let names: Vec<&str> = last.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, FIELDS);
        Counts { last }
    }

    /// Asserts the changes of all counts since the last check, except the last fence.
    ///
    /// Waits for the changes, because some servers free a value on another thread, and because the
    /// timer renews sessions.
    #[track_caller]
    fn moved(&mut self, server: &Server, expected: &[(&str, i64)], what: &str) {
        let mut now = Counts::of(server);
        let deadline = Instant::now() + PATIENCE;
        while self.moved_to(&now) != expected && Instant::now() < deadline {
            now = Counts::of(server);
        }
        assert_eq!(self.moved_to(&now), expected, "{what}");
        self.last = now;
    }

    fn moved_to<'a>(&self, now: &'a [(String, i64)]) -> Vec<(&'a str, i64)> {
        let pairs = now.iter().zip(&self.last);
        pairs
            .map(|((name, now), (_, before))| (name.as_str(), now - before))
            .filter(|(name, by)| *name != "last_fence" && *by != 0)
            .collect()
    }
}

#[track_caller]
fn measure(server: &Server, name: &str) -> u64 {
    let value = server.info("lock", &format!("lock_{name}"));
    value.parse().expect("a number")
}

/// Asserts that the median, the 99th percentile and the longest time are those of many short times,
/// three longer ones and one that is longer still.
#[track_caller]
fn assert_quantiles(server: &Server, kind: &str, [short, longer]: [u64; 2]) {
    let [p50, p99, max] =
        ["p50", "p99", "max"].map(|it| measure(server, &format!("{kind}_{it}_ms")));
    assert!(p50 <= short, "{kind}: {p50} {p99} {max}");
    assert!(short < p99 && p99 <= longer, "{kind}: {p50} {p99} {max}");
    assert!(longer < max && max < 30_000, "{kind}: {p50} {p99} {max}");
}

#[test]
fn info_tells_how_long_was_waited_and_held() {
    let server = Server::start();
    assert!(MEASURES[1..].iter().all(|name| measure(&server, name) == 0));
    let longest = || measure(&server, "wait_max_ms").max(measure(&server, "hold_max_ms"));
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let places = (0..100).map(|number| format!("LOCK.QUEUE k t{number} {LONG} SHARED"));
    let leaves = (0..100).map(|number| format!("LOCK.RELEASE k t{number}"));
    let all: Vec<String> = places
        .chain(["LOCK.RELEASE k a".to_owned()])
        .chain(leaves)
        .collect();
    server.call_all(&all);
    let short_ms = longest();
    let hold_beyond = |ms: u64| {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let begun = Instant::now();
        until("it was held for a while", || {
            begun.elapsed() > Duration::from_millis(2 * ms + 100)
        });
        server.call("LOCK.RELEASE k a").int();
        waiter.recv().grant();
        server.call("LOCK.RELEASE k b").int();
    };
    (0..3).for_each(|_| hold_beyond(short_ms));
    let longer_ms = longest();
    hold_beyond(longer_ms);
    for kind in ["wait", "hold"] {
        assert_quantiles(&server, kind, [short_ms, longer_ms]);
    }
}

#[test]
fn info_tells_how_long_replies_were_held_back() {
    let (server, replica) = (Server::start(), Server::start());
    replica.replica_of(&server);
    server.until_acknowledged_by(1);
    let longest = || measure(&server, "acknowledge_max_ms");
    for number in 0..100 {
        let acquire = format!("LOCK.ACQUIRE k{number} t {LONG} REPLICAS 1 WITHIN 60000");
        server.call(acquire).grant();
    }
    let short_ms = longest();
    let hold_back_beyond = |ms: u64| {
        replica.freeze();
        let mut client = server.client();
        client.send(format!("LOCK.EXTEND k0 t {LONG} REPLICAS 1 WITHIN 60000"));
        until("the reply is held back", || {
            measure(&server, "replica_waits") == 1
        });
        let begun = Instant::now();
        until("it was held back for a while", || {
            begun.elapsed() > Duration::from_millis(2 * ms + 100)
        });
        replica.thaw();
        assert_eq!(client.recv().int(), 1);
    };
    (0..3).for_each(|_| hold_back_beyond(short_ms));
    let longer_ms = longest();
    hold_back_beyond(longer_ms);
    assert_quantiles(&server, "acknowledge", [short_ms, longer_ms]);
}

#[test]
fn info_tells_the_bytes_in_use() {
    let server = Server::start();
    let before = measure(&server, "bytes");
    for key in 0..1_000 {
        server.call(format!("LOCK.ACQUIRE k{key} a {LONG}")).grant();
    }
    let taken = measure(&server, "bytes") - before;
    assert!((50_000..200_000).contains(&taken), "{taken}");
    server.call("FLUSHALL SYNC").text();
    until("most of it is free again", || {
        measure(&server, "bytes") < before + taken / 10
    });
}

#[test]
fn info_counts_what_the_documentation_says() {
    let server = Server::start();
    let mut counts = Counts::start(&server);
    assert!(
        counts.last.iter().all(|(_, count)| *count == 0),
        "a fresh server"
    );

    let fence = server
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant()
        .fence;
    assert_eq!(server.info("lock", "lock_last_fence"), fence.to_string());
    counts.moved(&server, &[("locks", 1), ("grants", 1)], "a grant");
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server
        .call(format!("LOCK.WAIT k a {LONG} REENTRANT"))
        .grant();
    counts.moved(&server, &[], "repeats");
    server.call("LOCK.ACQUIRE k b").nil();
    server.call("LOCK.EXTEND k b").int();
    server.call("LOCK.RELEASE k b").int();
    server.call("LOCK.CHECK k a").int();
    server.call(format!("LOCK.EXTEND k a {LONG}")).int();
    server.call("LOCK.RELEASE k a").int();
    let expected = [("extensions", 1), ("releases", 1)];
    counts.moved(
        &server,
        &expected,
        "refusals, an extension and one hold of two",
    );
    assert_eq!(server.info("lock", "lock_last_fence"), fence.to_string());

    let mut first = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let second = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    counts.moved(&server, &[("waiters", 2)], "two waiters");
    let mut newer = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    first.recv().error();
    counts.moved(&server, &[("take_overs", 1)], "a take-over");
    server.call("LOCK.RELEASE k a").int();
    let handed_over = newer.recv().grant();
    counts.moved(
        &server,
        &[
            ("waiters", -1),
            ("grants", 1),
            ("hand_overs", 1),
            ("releases", 1),
        ],
        "a hand-over",
    );
    assert_eq!(
        server.info("lock", "lock_last_fence"),
        handed_over.fence.to_string()
    );
    second.close();
    server.until_waiters("k", 0);
    counts.moved(&server, &[("waiters", -1)], "a waiter that closes");

    let mut cancelled = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(server.call("LOCK.CANCEL k c").int(), 1);
    cancelled.recv().error();
    assert_eq!(server.call("LOCK.CANCEL k c").int(), 0);
    counts.moved(&server, &[("cancels", 1)], "a cancelled wait");

    server.call("LOCK.QUEUE k c KEEP 600000").int();
    server.call("LOCK.MQUEUE 2 j k c KEEP 100").int();
    server.call("LOCK.QUEUE k c KEEP 600000").int();
    counts.moved(
        &server,
        &[("places", 1), ("lapsed_places", 1)],
        "two places, one of which lapses",
    );
    assert_eq!(server.call("LOCK.CANCEL k c").int(), 1);
    counts.moved(
        &server,
        &[("places", -1), ("cancels", 1)],
        "a cancelled place",
    );

    let mut impatient = server.client();
    impatient.send("LOCK.WAIT k c BLOCK 20");
    impatient.recv().nil();
    counts.moved(&server, &[("timeouts", 1)], "a timeout");

    server.call("LOCK.RELEASE k b").int();
    let expected = [("locks", -1), ("releases", 1)];
    counts.moved(&server, &expected, "a release");
}

#[test]
fn info_counts_what_is_refused() {
    let server = Server::start();
    server.call_all(&[
        "LOCK.ACQUIRE k a SHARED PX 60000",
        "LOCK.ACQUIRE k b SHARED PX 60000",
        "CONFIG SET lock.max-waiters 1",
    ]);
    let _upgrade = server.waiter("LOCK.WAIT k a");
    let mut counts = Counts::start(&server);
    server.call("LOCK.WAIT k b").error();
    counts.moved(&server, &[("deadlocks", 1)], "a second upgrade");
    let mut own = server.client();
    // A token of its own: one that waits elsewhere too could open the deadlock.
    own.call("LOCK.ACQUIRE own tied SESSION").grant();
    own.call("LOCK.WAIT own b").error();
    let expected = [
        ("locks", 1),
        ("sessions", 1),
        ("grants", 1),
        ("deadlocks", 1),
    ];
    counts.moved(&server, &expected, "a deadlock");
    server.call("LOCK.WAIT k c").error();
    server.call("LOCK.MWAIT 2 j k c").error();
    counts.moved(&server, &[("max_waiters_refusals", 2)], "too many");
    server.call("CONFIG SET lock.max-tickets 1").okay();
    server.call("LOCK.QUEUE own c").int();
    server.call("LOCK.QUEUE own d").error();
    let expected = [("places", 1), ("max_tickets_refusals", 1)];
    counts.moved(&server, &expected, "too many places");
    server.call("LOCK.MACQUIRE 2 m n a PX 60000").grant();
    server.call("LOCK.MEXTEND 2 m n a PX 60000").int();
    server.call("LOCK.MEXTEND 2 n k a PX 60000").int();
    server.call("LOCK.MEXTEND 2 n k b PX 60000").int();
    server.call("LOCK.MRELEASE 3 m n free a ALL").int();
    let expected = [("grants", 1), ("extensions", 4), ("releases", 2)];
    counts.moved(&server, &expected, "several keys");
}

#[test]
fn info_counts_leases_that_end() {
    let server = Server::start();
    server.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut counts = Counts::start(&server);
    server.call("LOCK.EXTEND k a PX 20").int();
    waiter.recv().grant();
    let expected = [
        ("waiters", -1),
        ("grants", 1),
        ("hand_overs", 1),
        ("expirations", 1),
        ("extensions", 1),
        ("lost_expired", 1),
    ];
    counts.moved(&server, &expected, "a lease that ends with a waiter");
}

#[test]
fn info_counts_sessions_and_what_is_held_back() {
    let server = Server::start();
    let mut counts = Counts::start(&server);
    let mut session = server.client();
    session.call("LOCK.ACQUIRE k a PX 3000 SESSION").grant();
    let expected = [("locks", 1), ("sessions", 1), ("grants", 1)];
    counts.moved(&server, &expected, "a session");
    // The session's renewal is a write that the server would refuse from a client.
    server.call("CONFIG SET min-replicas-to-write 1").okay();
    counts.moved(&server, &[("deferred", 1)], "a postponed renewal");
    server.call("CONFIG SET min-replicas-to-write 0").okay();
    counts.moved(&server, &[("deferred", -1)], "the renewal is done");
    session.close();
    let expected = [("locks", -1), ("sessions", -1), ("lost_disconnected", 1)];
    counts.moved(&server, &expected, "a session that closed");
}

#[test]
fn info_counts_grants_taken_back() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut counts = Counts::start(&server);
    let kill = format!("CLIENT KILL ID {}", waiter.id());
    server.call_batch(&["LOCK.RELEASE k a", &kill]);
    waiter.drain_to_close();
    until("the lock is free", || server.lock_info("k").is_none());
    let expected = [
        ("locks", -1),
        ("waiters", -1),
        ("grants", 1),
        ("hand_overs", 1),
        ("take_backs", 1),
        ("releases", 1),
    ];
    counts.moved(&server, &expected, "a grant to a dead client");
}

#[test]
fn info_counts_locks_however_they_come_and_go() {
    let server = Server::start();
    let locks = |count: i64, what: &str| {
        until(&format!("{count} locks: {what}"), || {
            server.info("lock", "lock_locks") == count.to_string()
        });
    };
    for key in ["k1", "k2", "k3"] {
        server.call(&["LOCK.ACQUIRE", key, "a"]).grant();
    }
    locks(3, "granted");
    let payload = server.call("DUMP k1").bytes();
    server
        .call(&[b"RESTORE".as_slice(), b"k4", b"0", &payload])
        .okay();
    locks(4, "restored");
    server.call("RENAME k1 k2").okay();
    locks(3, "renamed over another");
    server.call("SET k3 value").okay();
    locks(2, "written over");
    server.call("DEBUG RELOAD").okay();
    locks(2, "loaded anew");
    server.call("UNLINK k4").int();
    locks(1, "unlinked");
    server.call("FLUSHALL ASYNC").okay();
    locks(0, "flushed");
    server.call("LOCK.ACQUIRE k a PX 20").grant();
    locks(0, "expired");
}
