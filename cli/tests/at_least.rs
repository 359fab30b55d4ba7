//! Tests of `redis-lock run --at-least`, with which a lock outlasts a short command.
#![cfg(target_os = "linux")]

mod stage;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use stage::support::{
    server_with_holder, unix_time_ms, until, Builder, Expect, Fields, Server, LONG,
};
use stage::{done, outcome, redis_lock, shell, until_gone, Gate, Job, Outcome};
use tempfile::TempDir;

/// A span longer than any test, as an option and in ms.
const MINUTE: &str = "60s";
const MINUTE_MS: i64 = 60_000;

/// The longest extra time that a lock is kept on a busy machine.
const LATE_MS: i64 = 20_000;

/// Waits until the lock's client is disconnected, and returns the only holder.
#[track_caller]
fn left_holder(server: &Server, key: &str) -> Fields {
    until("the server has seen the connections close", || {
        let lock = server.lock_info(key);
        lock.is_none_or(|lock| !lock.holder().has("client-id"))
    });
    server.known_lock(key).holder().clone()
}

/// Asserts that the lock is kept for at least a minute from its grant, without a connection.
#[track_caller]
fn assert_kept(server: &Server, key: &str) {
    let holder = left_holder(server, key);
    assert_eq!(holder.int("session"), 0);
    let span_ms = holder.int("held-ms") + holder.int("lease-ms");
    assert!(
        (MINUTE_MS..MINUTE_MS + LATE_MS).contains(&span_ms),
        "{span_ms} ms"
    );
}

/// Returns `run k --at-least 60s` with more options and a command.
fn run_words<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let first = ["run", "k", "--at-least", MINUTE];
    [&first[..], options, &["--"], command].concat()
}

#[track_caller]
fn until_held(server: &Server) {
    until("it is held", || server.lock_info("k").is_some());
}

// --- locks that are kept --------------------------------------------------------------------

#[test]
fn the_lock_of_a_command_that_was_short_is_kept_for_the_rest() {
    let server = Server::start();
    for (script, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let outcome = done(&server, &run_words(&[], &["sh", "-c", script]));
        assert_eq!(
            (outcome.code(), outcome.err.as_str()),
            (code, ""),
            "{script}"
        );
        assert_kept(&server, "k");
        let next = ["run", "k", "--nonblock", "-E", "9", "--", "true"];
        assert_eq!(done(&server, &next).code(), 9, "{script}");
        server.call("DEL k").int();
    }
}

#[test]
fn it_is_kept_whichever_signal_ends_the_command() {
    let server = Server::start();
    for (signal, code) in [
        (Signal::INT, 130),
        (Signal::TERM, 143),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ] {
        let mut job = Job::of(&server, &run_words(&[], &["sleep", "600"]));
        job.command();
        job.send(signal);
        assert_eq!(job.outcome().code(), code);
        assert_kept(&server, "k");
        server.call("DEL k").int();
    }
}

#[test]
fn the_lock_of_a_command_that_took_longer_is_released() {
    let server = Server::start();
    let words = ["run", "k", "--at-least", "50ms", "--", "sleep", "0.1"];
    let outcome = done(&server, &words);
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""));
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn those_who_wait_come_when_the_rest_is_over() {
    let server = Server::start();
    let fence = |at_least| {
        let script = ["sh", "-c", "echo $REDIS_LOCK_FENCE"];
        let words = [&["run", "k", "--at-least", at_least, "--"][..], &script].concat();
        let fence = done(&server, &words).ok();
        fence.trim().parse::<i64>().expect("a fence")
    };
    // A fence is the time of the grant, in microseconds.
    let first = fence("1500ms");
    let second = fence("1ms");
    assert!(second - first >= 1_500_000, "{} us", second - first);
}

#[test]
fn every_kind_of_lock_is_kept() {
    let server = Server::start();
    for (options, same) in [
        (&["--session"][..], &[][..]),
        (&["--session", "--lease", "90s"], &[]),
        (&["--shared"], &[]),
        (&["--permits", "2/3"], &["--permits", "2/3"]),
        (&["--session", "--permits", "2/3"], &["--permits", "2/3"]),
    ] {
        assert_eq!(
            done(&server, &run_words(options, &["true"])).code(),
            0,
            "{options:?}"
        );
        assert_kept(&server, "k");
        let next = [&["run", "k", "--nb"], same, &["--", "true"]].concat();
        assert_eq!(done(&server, &next).code(), 75, "{options:?}");
        server.call("DEL k").int();
    }
    let permits = ["--permits", "2/3"];
    assert_eq!(done(&server, &run_words(&permits, &["true"])).code(), 0);
    let third = ["run", "k", "--nb", "--permits", "1/3", "--", "true"];
    assert_eq!(done(&server, &third).code(), 0);
}

#[test]
fn several_keys_are_kept_together() {
    let server = Server::start();
    for options in [
        &["--keys", "b", "--keys", "c"][..],
        &["--session", "--keys", "b", "--keys", "c"],
    ] {
        assert_eq!(done(&server, &run_words(options, &["true"])).code(), 0);
        for key in ["k", "b", "c"] {
            assert_kept(&server, key);
        }
        server.call("DEL k b c").int();
    }
}

#[test]
fn holds_that_the_command_took_itself_end_with_the_rest() {
    let server = Server::start();
    let gate = Gate::new();
    let mut job = Job::of(&server, &run_words(&[], &gate.command()));
    until_held(&server);
    let token = server.known_lock("k").holder().text("token");
    let again = format!("LOCK.ACQUIRE k {token} HOLDS 3 PX 1000");
    server.call(again).grant();
    gate.open();
    assert_eq!(job.outcome().code(), 4);
    let holder = server.known_lock("k").holder().clone();
    let span_ms = holder.int("held-ms") + holder.int("lease-ms");
    assert!(span_ms >= MINUTE_MS, "{span_ms} ms");
}

#[test]
fn verbose_tells_how_long_it_is_kept() {
    let server = Server::start();
    let told = done(&server, &run_words(&["-v"], &["true"])).err;
    assert!(told.contains("keeps it for another "), "{told}");
}

#[test]
fn it_is_kept_on_a_cluster() {
    let server = stage::support::cluster_node();
    let options = ["--session", "--keys", "{k}1"];
    let words = ["run", "{k}2", "--at-least", MINUTE];
    let words = [&words[..], &options, &["--", "true"]].concat();
    assert_eq!(done(&server, &words).code(), 0);
    assert_kept(&server, "{k}1");
    assert_kept(&server, "{k}2");
}

// --- locks that are not kept ----------------------------------------------------------------

#[test]
fn what_did_not_run_keeps_nothing() {
    let server = Server::start();
    for (command, code) in [("/nowhere/at all", 127), ("/etc/passwd", 126)] {
        assert_eq!(done(&server, &run_words(&[], &[command])).code(), code);
        assert_eq!(server.lock_info("k"), None);
    }
    let server = server_with_holder();
    let not_got = done(&server, &run_words(&["--nonblock", "-E", "0"], &["true"]));
    assert_eq!((not_got.code(), not_got.err.as_str()), (0, ""));
    let mut job = Job::of(&server, &run_words(&[], &["true"]));
    server.until_waiters("k", 1);
    job.send(Signal::INT);
    assert_eq!(job.ended_by(), Some(Signal::INT.as_raw()));
    assert_eq!(server.known_lock("k").waiters, 0);
    assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
}

#[test]
fn a_lock_that_was_lost_is_not_taken_from_the_next_one() {
    let server = Server::start();
    for (options, code) in [
        (&[][..], 79),
        (&["--lost-exit-code", "8"], 8),
        (&["--on-lost", "ignore"], 4),
        (&["--session"], 79),
        (&["--keys", "other"], 79),
    ] {
        let gate = Gate::new();
        let options = [options, &["--nb"]].concat();
        let mut job = Job::of(&server, &run_words(&options, &gate.command()));
        until_held(&server);
        job.command();
        server.call("DEL k").int();
        server.call(format!("LOCK.ACQUIRE k b {LONG}")).grant();
        gate.open();
        let outcome = job.outcome();
        assert_eq!(outcome.code(), code, "{outcome:?}");
        assert!(outcome.err.contains("the lock k was lost"), "{outcome:?}");
        let holder = server.known_lock("k").holder().clone();
        assert_eq!(holder.text("token"), "b");
        assert!(holder.int("lease-ms") > 500_000);
        server.call("DEL k other").int();
    }
}

/// The loss is noticed early although the lease is as long as `--at-least`.
#[test]
fn a_loss_is_noticed_as_soon_as_the_lease_says() {
    let server = Server::start();
    let words = ["run", "k", "--at-least", "1h", "--lease", "3s"];
    let words = [&words[..], &["--", "sleep", "600"]].concat();
    let mut job = Job::of(&server, &words);
    job.command();
    assert!(server.known_lock("k").holder().int("lease-ms") > 3_000_000);
    server.call("DEL k").int();
    assert_eq!(job.outcome().code(), 79);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn nonsense_is_refused() {
    for (span, reason) in [
        ("0", "must be more than 0"),
        ("0s", "must be more than 0"),
        ("-1", "must not be negative"),
        ("30days 1ms", "must be 30days or less"),
        ("9007199254740992ms", "--at-least"),
        ("10M", "must be 30days or less"),
        ("1e12", "must be 30days or less"),
        ("1e300", "--at-least"),
        ("inf", "--at-least"),
        ("nan", "--at-least"),
        ("soon", "--at-least"),
        ("", "--at-least"),
    ] {
        let words = ["run", "k", "--at-least", span, "--", "true"];
        let outcome = outcome(&mut redis_lock(1, &words));
        assert_eq!(outcome.code(), 2, "{outcome:?}");
        assert!(outcome.err.contains(reason), "{outcome:?}");
        assert!(outcome.err.contains("--at-least"), "{outcome:?}");
    }
}

// --- failures at the end --------------------------------------------------------------------

#[test]
fn it_is_kept_where_redis_lock_is_killed() {
    let server = Server::start();
    let job = Job::of(&server, &run_words(&["--lease", "3s"], &["sleep", "600"]));
    let command = job.command();
    job.send(Signal::KILL);
    until_gone(command);
    assert_kept(&server, "k");
}

#[test]
fn a_server_that_does_not_answer_at_the_end_keeps_it() {
    let server = Server::start();
    for (options, told) in [
        (
            &["--lease", "3s"][..],
            "the lock stays until its lease ends: ",
        ),
        (&["--session"], "the lock ends with its connection: "),
    ] {
        let gate = Gate::new();
        let mut job = Job::of(&server, &run_words(options, &gate.command()));
        until_held(&server);
        job.command();
        server.freeze();
        gate.open();
        let outcome = job.outcome();
        server.thaw();
        assert_eq!(outcome.code(), 4, "{outcome:?}");
        assert!(outcome.err.contains(told), "{outcome:?}");
        // The server reads the last command before it notices that the connection is closed.
        assert_kept(&server, "k");
        server.call("DEL k").int();
    }
}

/// Kills all connections except the session's. A command on another connection would have to
/// connect again, and the server would see the end of the session before it reads from the new
/// connection.
#[test]
fn a_session_is_untied_on_its_own_connection() {
    let server = Server::start();
    let gate = Gate::new();
    let mut job = Job::of(&server, &run_words(&["--session"], &gate.command()));
    until_held(&server);
    job.command();
    let session = server.known_lock("k").holder().int("client-id");
    let own = server.call("CLIENT ID").int();
    let clients = server.call("CLIENT LIST").text();
    let ids = clients.lines().filter_map(|line| {
        let id = line.strip_prefix("id=")?.split(' ').next()?;
        id.parse::<i64>().ok()
    });
    for id in ids.filter(|id| ![session, own].contains(id)) {
        server.call(format!("CLIENT KILL ID {id}")).int();
    }
    server.freeze();
    gate.open();
    let outcome = job.outcome();
    server.thaw();
    assert_eq!(outcome.code(), 4, "{outcome:?}");
    assert_kept(&server, "k");
}

#[test]
fn a_server_that_is_away_at_the_end_and_comes_back_keeps_it() {
    let mut server = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    let gate = Gate::new();
    let options = ["--lease", "30s"];
    let mut job = Job::of(&server, &run_words(&options, &gate.command()));
    until_held(&server);
    job.command();
    server.kill9();
    gate.open();
    let outcome = job.outcome();
    assert_eq!(outcome.code(), 4, "{outcome:?}");
    assert!(
        outcome.err.contains("the lock stays until its lease ends"),
        "{outcome:?}"
    );
    server.restart();
    assert_kept(&server, "k");
}

#[test]
fn signals_in_the_middle_of_the_last_command_change_nothing() {
    let server = Server::start();
    for (options, signal) in [
        (&[][..], Signal::TERM),
        (&[], Signal::INT),
        (&["--session"], Signal::TERM),
        (&["--session"], Signal::HUP),
    ] {
        let gate = Gate::new();
        let mut job = Job::of(&server, &run_words(options, &gate.command()));
        until_held(&server);
        let command = job.command();
        server.freeze();
        gate.open();
        until_gone(command);
        job.send(signal);
        job.send(signal);
        server.thaw();
        let outcome = job.outcome();
        assert_eq!(outcome.code(), 4, "{outcome:?}");
        assert_kept(&server, "k");
        server.call("DEL k").int();
    }
}

/// The last command may or may not have reached the server.
#[test]
fn a_kill_in_the_middle_of_the_last_command_leaves_it_to_its_lease() {
    let server = Server::start();
    let gate = Gate::new();
    let job = Job::of(&server, &run_words(&[], &gate.command()));
    until_held(&server);
    let command = job.command();
    server.freeze();
    gate.open();
    until_gone(command);
    job.send(Signal::KILL);
    server.thaw();
    assert_kept(&server, "k");
}

/// A server that processes a renewal after the last command would undo it. The session would be
/// tied again, to a connection that is about to close.
#[test]
fn a_renewal_that_is_under_way_does_not_undo_it() {
    for options in [&["--session"][..], &[]] {
        let server = Server::start();
        let gate = Gate::new();
        let (sender, renewed) = mpsc::channel();
        let port = delayed(server.port(), sender);
        let times = ["run", "k", "--lease", "12s", "--at-least", "8s"];
        let words = [&times[..], options, &["--"], &gate.command()].concat();
        let mut job = Job::start(&mut redis_lock(port, &words));
        renewed.recv().expect("a renewal");
        gate.open();
        let outcome = job.outcome();
        assert_eq!((outcome.code(), outcome.err.as_str()), (4, ""));
        until("the server has taken in both", || {
            server.info("lock", "lock_extensions") == "2"
        });
        let holder = left_holder(&server, "k");
        assert_eq!(holder.int("session"), 0);
        let span_ms = holder.int("held-ms") + holder.int("lease-ms");
        // The renewal alone would extend the span to at least sixteen seconds.
        assert!((8_000..14_000).contains(&span_ms), "{span_ms} ms");
    }
}

/// Starts a proxy to the server that delays the first renewal, and returns its port. `renewal` is
/// notified when the delay begins.
fn delayed(server: u16, renewal: Sender<()>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let is_first = Arc::new(AtomicBool::new(true));
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(("127.0.0.1", server)).expect("the server");
            let (answers, to) = (server.try_clone(), client.try_clone());
            let (mut answers, mut to) = (answers.expect("a socket"), to.expect("a socket"));
            thread::spawn(move || {
                // The copy ends when either connection closes.
                let _ = io::copy(&mut answers, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let (is_first, renewal) = (Arc::clone(&is_first), renewal.clone());
            thread::spawn(move || delay(client, server, &is_first, &renewal));
        }
    });
    port
}

fn delay(
    mut client: TcpStream,
    mut server: TcpStream,
    is_first: &AtomicBool,
    renewal: &Sender<()>,
) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]);
        if text.contains("LOCK.EXTEND") && is_first.swap(false, Ordering::SeqCst) {
            renewal.send(()).expect("the test waits for it");
            thread::sleep(Duration::from_millis(700));
        }
        if server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The connection may be closed already.
    let _ = server.shutdown(Shutdown::Both);
}

// --- once in a fleet ------------------------------------------------------------------------

const MINUTES_MS: i64 = 60_000;

/// The delay of the late machine's clock.
const APART_MS: i64 = 10 * MINUTES_MS;

/// The shift of all clocks after which the punctual machine's job is due.
const AHEAD_MS: i64 = 30 * MINUTES_MS;

/// The wall clocks of two machines and of the server. All advance together, and one machine is
/// late.
struct Clocks {
    dir: TempDir,
}

impl Clocks {
    fn new() -> Clocks {
        let dir = tempfile::tempdir().expect("a folder");
        support::compiled::shared_object("replication/moved.c", dir.path());
        let clocks = Clocks { dir };
        for name in ["punctual", "late", "server"] {
            let file = fs::File::create(clocks.path(name)).expect("a file");
            file.set_len(24).expect("a file of 24 bytes");
        }
        clocks.pass_ms(0);
        clocks
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sets all clocks to `ms` after the start, less the delay of the late machine.
    fn pass_ms(&self, ms: i64) {
        for (name, ms) in [("punctual", ms), ("late", ms - APART_MS), ("server", ms)] {
            let file = fs::File::options().write(true).open(self.path(name));
            let written = file.expect("a file").write_all_at(&ms.to_ne_bytes(), 0);
            written.expect("it is written");
        }
    }

    fn server(&self) -> Builder {
        let variables = self.variables("server");
        let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        variables
            .iter()
            .fold(Server::builder(), |builder, (name, path)| {
                builder.environment(name, &text(path))
            })
    }

    fn variables(&self, name: &str) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.path("moved.so")),
            ("LOCK_TEST_CLOCK", self.path(name)),
        ]
    }
}

/// Two machines with the same line in their crontabs. Their job records each run.
struct Fleet {
    server: Server,
    clocks: Clocks,
    began_ms: i64,
}

impl Fleet {
    fn new() -> Fleet {
        let clocks = Clocks::new();
        Fleet {
            server: clocks.server().start(),
            clocks,
            began_ms: unix_time_ms(),
        }
    }

    /// Starts a machine. Like cron, it waits until its clock shows the time, and then runs its
    /// line.
    fn machine(&self, name: &str, options: &str) -> Job {
        let at_s = (self.began_ms + AHEAD_MS) / 1_000;
        let ran = self.clocks.path("ran");
        let script = format!(
            "until [ $(date +%s) -ge {at_s} ]; do sleep 0.01; done; \
             exec redis-lock run nightly --nonblock -E 0 {options} -- sh -c 'echo ran >>{}'",
            ran.display()
        );
        let mut machine = shell(self.server.port(), &script);
        Job::start(machine.envs(self.clocks.variables(name)))
    }

    fn pass_ms(&self, ms: i64) {
        self.clocks.pass_ms(ms);
        // Valkey 9 reads the wall clock only now and then.
        until("the server has seen the time pass", || {
            let words = self.server.call("TIME").list();
            let s: i64 = Ok(words[0].clone()).text().parse().expect("a number");
            (s * 1_000 - unix_time_ms() - ms).abs() < MINUTES_MS / 2
        });
    }

    fn runs(&self) -> usize {
        let text = fs::read_to_string(self.clocks.path("ran")).unwrap_or_default();
        text.lines().count()
    }
}

#[track_caller]
fn assert_well(outcome: &Outcome) {
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""));
}

/// Returns the number of runs of the job of two machines whose clocks are ten minutes apart.
#[track_caller]
fn runs_in_a_fleet(options: &str) -> usize {
    let fleet = Fleet::new();
    let mut punctual = fleet.machine("punctual", options);
    let mut late = fleet.machine("late", options);
    fleet.pass_ms(AHEAD_MS);
    assert_well(&punctual.outcome());
    assert_eq!(fleet.runs(), 1);
    assert!(!late.is_over(), "it isn't time there");
    fleet.pass_ms(AHEAD_MS + APART_MS);
    assert_well(&late.outcome());
    let runs = fleet.runs();
    // The next night.
    fleet.pass_ms(2 * AHEAD_MS + APART_MS);
    until("it is free", || fleet.server.lock_info("nightly").is_none());
    runs
}

#[test]
fn a_short_job_of_machines_whose_clocks_differ_runs_twice_without_it() {
    assert_eq!(runs_in_a_fleet(""), 2);
    assert_eq!(runs_in_a_fleet("--at-least 9m"), 2, "less than the delay");
}

#[test]
fn a_short_job_of_machines_whose_clocks_differ_runs_once_with_it() {
    assert_eq!(runs_in_a_fleet("--at-least 30m"), 1);
    assert_eq!(runs_in_a_fleet("--at-least 30m --session"), 1);
}
