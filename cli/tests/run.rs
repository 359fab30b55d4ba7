//! Tests of `redis-lock run` without a terminal.
#![cfg(target_os = "linux")]

mod stage;

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, kill_process_group, Pid, Signal};
use stage::support::{eventually, free_port, server_with_holder, until, Expect, Fields, Server};
use stage::{done, outcome, redis_lock, shell, state, until_gone, written, Gate, Job};
use tempfile::TempDir;

/// A folder for the files that a command writes.
struct Notes {
    dir: TempDir,
}

impl Notes {
    fn new() -> Notes {
        Notes {
            dir: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the name of a file for a shell.
    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Waits for a file that a command writes, and returns its text.
    #[track_caller]
    fn read(&self, name: &str) -> String {
        written(&self.path(name))
    }

    /// Returns a script that notes TERM in the file `got`, and runs on.
    fn ignores_term(&self) -> String {
        format!(
            "trap 'echo TERM >{}' TERM; echo >{}; while :; do sleep 0.01; done",
            self.word("got"),
            self.word("ready")
        )
    }

    #[track_caller]
    fn number(&self, name: &str) -> Pid {
        let number = self.read(name).trim().parse().ok().and_then(Pid::from_raw);
        number.expect("the number of a process")
    }
}

/// Waits until `k` has a holder, and returns the only holder.
#[track_caller]
fn holder(server: &Server) -> Fields {
    until("somebody holds it", || is_held(server));
    server.known_lock("k").holder().clone()
}

fn is_held(server: &Server) -> bool {
    server
        .lock_info("k")
        .is_some_and(|lock| !lock.holders.is_empty())
}

#[track_caller]
fn until_free(server: &Server) {
    until("nobody holds it or waits", || {
        server.lock_info("k").is_none()
    });
}

/// Starts `run k` with a command that outlives the test.
fn sleeper(server: &Server, options: &[&str]) -> Job {
    let words = [&["run", "k"], options, &["--", "sleep", "600"]].concat();
    let job = Job::of(server, &words);
    job.command();
    job
}

/// Starts `run k` with a command that runs until the gate is opened.
fn gated(server: &Server, options: &[&str], gate: &Gate) -> Job {
    let words = [&["run", "k"], options, &["--"], &gate.command()].concat();
    let job = Job::of(server, &words);
    job.command();
    job
}

fn process_of(server: &Server) -> Pid {
    let number = server
        .info("server", "process_id")
        .parse()
        .ok()
        .and_then(Pid::from_raw);
    number.expect("the number of a process")
}

// --- codes ----------------------------------------------------------------------------------

#[test]
fn it_ends_as_the_command_does() {
    let server = Server::start();
    for (script, code) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let outcome = done(&server, &["run", "k", "--", "sh", "-c", script]);
        assert_eq!(
            (outcome.code(), outcome.err.as_str()),
            (code, ""),
            "{script}"
        );
        assert_eq!(server.lock_info("k"), None, "{script}");
    }
}

/// Some daemons start their children with SIGCHLD ignored.
#[test]
fn the_code_is_known_where_sigchld_was_ignored() {
    let server = Server::start();
    let mut command = redis_lock(server.port(), &["run", "k", "--", "sh", "-c", "exit 7"]);
    let ignore = || {
        // SAFETY: a system call that installs no handler function.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: a system call that allocates no memory.
    unsafe { command.pre_exec(ignore) };
    let outcome = outcome(&mut command);
    assert_eq!((outcome.code(), outcome.err.as_str()), (7, ""));
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_command_that_can_not_be_run_is_told_from_one_that_fails() {
    let server = Server::start();
    for (command, code) in [("/nowhere/at all", 127), ("/etc/passwd", 126), ("/", 126)] {
        let outcome = done(&server, &["run", "k", "--", command]);
        assert_eq!(outcome.code(), code, "{outcome:?}");
        assert!(outcome.err.contains(command), "{outcome:?}");
        assert_eq!(server.lock_info("k"), None);
    }
}

#[test]
fn not_got_has_a_code_of_its_own_and_the_command_does_not_run() {
    let server = server_with_holder();
    let notes = Notes::new();
    let note = notes.word("ran");
    for (options, code) in [
        (&["--wait", "0"][..], 75),
        (&["--nonblock"], 75),
        (&["--nb", "-E", "9"], 9),
        (&["-w", "0.1"], 75),
        (&["--timeout", "100ms", "--conflict-exit-code", "0"], 0),
    ] {
        let words = [&["run", "k"], options, &["--", "touch", &note]].concat();
        let outcome = done(&server, &words);
        assert_eq!(outcome.code(), code, "{outcome:?}");
        assert_eq!(outcome.err, "", "flock prints nothing");
        assert!(!notes.path("ran").exists());
        assert_eq!(server.known_lock("k").waiters, 0);
    }
}

#[test]
fn a_wait_is_no_shorter_than_asked_for() {
    let server = server_with_holder();
    let began = Instant::now();
    assert_eq!(
        done(&server, &["run", "k", "--wait", "700ms", "--", "true"]).code(),
        75
    );
    assert!(began.elapsed() >= Duration::from_millis(700));
}

#[test]
fn no_server_and_no_module_have_a_code_and_a_reason() {
    let nowhere = outcome(&mut redis_lock(free_port(), &["run", "k", "--", "true"]));
    assert_eq!(nowhere.code(), 69, "{nowhere:?}");
    assert!(
        nowhere.err.contains("no connection to 127.0.0.1:"),
        "{nowhere:?}"
    );
    let bare = Server::builder().without_module().start();
    for words in [
        &["run", "k", "--", "true"][..],
        &["ls"],
        &["info", "k"],
        &["break", "k"],
    ] {
        let outcome = done(&bare, words);
        assert_eq!(outcome.code(), 69, "{outcome:?}");
        assert!(
            outcome.err.contains("hasn't loaded the redis-lock module"),
            "{outcome:?}"
        );
    }
}

/// Simulates a log on a full disk.
#[test]
fn that_nothing_can_be_told_changes_nothing() {
    let server = Server::start();
    let loses = "redis-lock break --yes k >/dev/null; exit 4";
    for (options, command, code) in [
        (&["-v"][..], &["sh", "-c", "exit 7"][..], 7),
        (&[], &["/nowhere"], 127),
        (&[], &["sh", "-c", loses], 79),
        (&["--on-lost", "ignore"], &["sh", "-c", loses], 4),
    ] {
        let words = [&["run", "k"], options, &["--"], command].concat();
        let full = fs::File::options().write(true).open("/dev/full");
        let outcome = outcome(redis_lock(server.port(), &words).stderr(full.expect("a device")));
        assert_eq!(outcome.code(), code, "{words:?}");
        assert_eq!(server.lock_info("k"), None, "{words:?}");
    }
    let nowhere = ["ls", "-p", &free_port().to_string()];
    let full = fs::File::options().write(true).open("/dev/full");
    let outcome = outcome(redis_lock(1, &nowhere).stderr(full.expect("a device")));
    assert_eq!(outcome.code(), 69);
}

#[test]
fn what_the_server_refuses_is_told_once() {
    let server = Server::start();
    server.call("SET k text").okay();
    let refused = done(&server, &["run", "k", "--", "true"]);
    assert_eq!(refused.code(), 69, "{refused:?}");
    assert_eq!(refused.err.matches("WRONGTYPE").count(), 1, "{refused:?}");
}

// --- the lock -------------------------------------------------------------------------------

#[test]
fn the_command_knows_key_token_and_fence() {
    let server = Server::start();
    let notes = Notes::new();
    let script = format!(
        "echo $REDIS_LOCK_KEY $REDIS_LOCK_TOKEN $REDIS_LOCK_FENCE >{}; sleep 600",
        notes.word("env")
    );
    let _job = Job::of(&server, &["run", "k", "--", "sh", "-c", &script]);
    let told = notes.read("env");
    let holder = holder(&server);
    assert_eq!(
        told.trim(),
        format!("k {} {}", holder.text("token"), holder.int("fence"))
    );
}

#[test]
fn the_lock_outlasts_its_lease_while_the_command_runs() {
    let server = Server::start();
    let _job = sleeper(&server, &["--lease", "3s"]);
    let fence = holder(&server).int("fence");
    until("it is held for two leases", || {
        holder(&server).int("held-ms") > 6_000
    });
    assert_eq!(holder(&server).int("fence"), fence);
    assert!(holder(&server).int("lease-ms") <= 3_000);
}

#[test]
fn those_who_wait_come_one_after_the_other() {
    let server = Server::start();
    let notes = Notes::new();
    // Each command prints a message if another command is within.
    let script = format!(
        "mkdir {0} || echo two at once >&2; sleep 0.05; rmdir {0}",
        notes.word("within")
    );
    let jobs = (0..8).map(|_| {
        Job::of(
            &server,
            &["run", "k", "--lease", "5s", "--", "sh", "-c", &script],
        )
    });
    for mut job in jobs.collect::<Vec<Job>>() {
        let outcome = job.outcome();
        assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""));
    }
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_wait_longer_than_the_lease_ends_with_a_lock_that_is_held() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 5000").grant();
    let outcome = done(&server, &["run", "k", "--lease", "3s", "--", "sleep", "3"]);
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""));
}

#[test]
fn shared_holders_and_permits_admit_each_other_and_nobody_else() {
    let server = Server::start();
    let _first = sleeper(&server, &["--shared"]);
    assert_eq!(
        done(&server, &["run", "k", "--shared", "--nb", "--", "true"]).code(),
        0
    );
    assert_eq!(
        done(&server, &["run", "k", "--nb", "--", "true"]).code(),
        75
    );
    let _two_of_three = Job::of(
        &server,
        &["run", "p", "--permits", "2/3", "--", "sleep", "600"],
    );
    until("it is held", || server.lock_info("p").is_some());
    assert_eq!(
        done(
            &server,
            &["run", "p", "--nb", "--permits", "1/3", "--", "true"]
        )
        .code(),
        0
    );
    assert_eq!(
        done(
            &server,
            &["run", "p", "--nb", "--permits", "2/3", "--", "true"]
        )
        .code(),
        75
    );
}

#[test]
fn a_key_that_begins_as_an_option_stands_behind_two_dashes() {
    let server = Server::start();
    let script = ["sh", "-c", "redis-lock info -- -k >/dev/null"];
    let words = [&["run", "--", "-k"][..], &script].concat();
    assert_eq!(done(&server, &words).code(), 0);
}

#[test]
fn data_is_shown_to_those_who_look() {
    let server = Server::start();
    let _job = sleeper(&server, &["--data", "build 17"]);
    assert_eq!(holder(&server).text("data"), "build 17");
    let shown = done(&server, &["info", "k"]).ok();
    assert!(shown.contains(", data \"build 17\"\n"), "{shown}");
    let told = done(&server, &["info", "k", "--json"]).ok();
    assert!(told.contains("\"data\": \"build 17\""), "{told}");
    let mut waiting = Job::of(&server, &["run", "k", "--data", "b", "--", "true"]);
    until("it waits", || server.waiters("k") == 1);
    let shown = done(&server, &["why", "k"]).ok();
    assert!(shown.contains(", data b\n"), "{shown}");
    let too_long = "x".repeat(1025);
    let refused = done(
        &server,
        &["run", "other", "--data", &too_long, "--", "true"],
    );
    assert_eq!(refused.code(), 2);
    assert!(refused.err.contains("--data"), "{refused:?}");
    server.call("DEL k").int();
    assert_eq!(waiting.outcome().code(), 0);
}

#[test]
fn the_command_begins_when_enough_replicas_have_the_lock() {
    let (server, replica) = (Server::start(), Server::start());
    let run = ["run", "k", "--replicas", "1", "--", "true"];
    let refused = done(&server, &run);
    assert_eq!(refused.code(), 69);
    assert!(refused.err.contains("NOREPLICAS"), "{refused:?}");
    until_free(&server);
    replica.replica_of(&server);
    until("the replica is online", || done(&server, &run).code() == 0);
    until_free(&server);
    let more = ["run", "k", "--replicas", "2", "--", "true"];
    assert_eq!(done(&server, &more).code(), 69);
    let none = ["run", "k", "--replicas", "0", "--", "true"];
    assert_eq!(done(&server, &none).code(), 2);
}

#[test]
fn a_lock_that_replicas_do_not_acknowledge_in_time_is_given_back() {
    let (server, replica) = (Server::start(), Server::start());
    replica.replica_of(&server);
    let run = ["run", "k", "--replicas", "1", "--", "true"];
    until("the replica is online", || done(&server, &run).code() == 0);
    replica.freeze();
    let tries = [&["-t", "2s"], &run[..2], &["--nb"], &run[2..]].concat();
    for words in [&run[..], &tries] {
        let refused = done(&server, words);
        assert_eq!(refused.code(), 69);
        assert!(refused.err.contains("NOREPLICAS"), "{refused:?}");
        until_free(&server);
    }
    replica.thaw();
}

#[test]
fn several_keys_are_taken_all_or_none() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE c a PX 600000").grant();
    let words = [
        "run", "a", "--nb", "--keys", "b", "--keys", "c", "--", "true",
    ];
    assert_eq!(done(&server, &words).code(), 75);
    assert_eq!(server.lock_info("a"), None);
    let _job = Job::of(
        &server,
        &[
            "run", "a", "--keys", "b", "--keys", "d", "--", "sleep", "600",
        ],
    );
    until("all are held", || {
        ["a", "b", "d"]
            .iter()
            .all(|key| server.lock_info(key).is_some())
    });
    let fences = ["a", "b", "d"].map(|key| server.known_lock(key).holder().int("fence"));
    assert_eq!(fences, [fences[0]; 3]);
}

#[test]
fn the_loss_of_one_key_releases_the_others() {
    let server = Server::start();
    let loses = "redis-lock break --yes b >/dev/null; sleep 600";
    let words = ["run", "a", "--keys", "b", "--lease", "6s"];
    let words = [&words[..], &["--", "sh", "-c", loses]].concat();
    assert_eq!(done(&server, &words).code(), 79);
    // Without the release, the last renewal would keep it for 6 s.
    assert_eq!(server.lock_info("a"), None);
}

#[test]
fn verbose_tells_of_the_holder_and_of_the_grant() {
    let server = server_with_holder();
    let refused = done(&server, &["run", "-v", "k", "--nb", "--", "true"]);
    assert!(
        refused.err.contains("held by somebody at 127.0.0.1:"),
        "{refused:?}"
    );
    let got = done(&server, &["run", "-v", "free", "--", "true"]);
    assert!(got.err.contains("got it after"), "{got:?}");
}

// --- the command's input and output ---------------------------------------------------------

#[test]
fn the_command_has_our_input_and_output_and_nothing_else_of_ours() {
    let server = Server::start();
    let mut command = redis_lock(server.port(), &["run", "k", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child
        .stdin
        .take()
        .expect("its input")
        .write_all(b"for cat")
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"for cat");
    let listed = done(&server, &["run", "k", "--", "ls", "/proc/self/fd"]).ok();
    let without = outcome(&mut shell(server.port(), "exec ls /proc/self/fd")).ok();
    assert_eq!(listed, without);
}

#[test]
fn what_the_command_leaves_in_the_background_is_not_waited_for() {
    let server = Server::start();
    let notes = Notes::new();
    let script = format!(
        "exec >&- 2>&-; setsid sleep 600 & echo $! >{}; exit 3",
        notes.word("daemon")
    );
    let began = Instant::now();
    assert_eq!(
        done(&server, &["run", "k", "--", "sh", "-c", &script]).code(),
        3
    );
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(server.lock_info("k"), None);
    let daemon = notes.number("daemon");
    assert!(state(daemon).is_some());
    kill_process(daemon, Signal::KILL).expect("it is there");
}

// --- signals --------------------------------------------------------------------------------

#[test]
fn a_signal_ends_it_while_it_connects() {
    for signal in [Signal::TERM, Signal::INT] {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let words = ["-t", "600s", "run", "k", "--", "true"];
        let mut job = Job::start(&mut redis_lock(port, &words));
        let _connection = silent.accept().expect("a connection");
        job.send(signal);
        assert_eq!(job.ended_by(), Some(signal.as_raw()));
    }
}

#[test]
fn signals_are_passed_on_once() {
    let server = Server::start();
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let notes = Notes::new();
        let script = format!(
            "trap 'echo {name} >>{0}; over=yes' {name}; echo ready >{1}; until [ $over ]; do sleep 0.01; done; sleep 0.1; exit 5",
            notes.word("got"),
            notes.word("ready")
        );
        let mut job = Job::of(&server, &["run", "k", "--", "sh", "-c", &script]);
        notes.read("ready");
        job.send(signal);
        assert_eq!(job.outcome().code(), 5, "{name}");
        assert_eq!(notes.read("got"), format!("{name}\n"));
        assert_eq!(server.lock_info("k"), None, "{name}");
    }
}

#[test]
fn a_process_that_signals_the_whole_group_signals_the_command_twice() {
    let server = Server::start();
    // Two signals can reach a shell as one.
    eventually("it gets the signal twice", || {
        let notes = Notes::new();
        let script = format!(
            "trap 'echo TERM >>{0}; over=yes' TERM; echo ready >{1}; until [ $over ]; do sleep 0.01; done; sleep 0.1",
            notes.word("got"),
            notes.word("ready")
        );
        let words = ["run", "k", "--", "sh", "-c", &script];
        let mut job = Job::start(redis_lock(server.port(), &words).process_group(0));
        notes.read("ready");
        kill_process_group(job.id(), Signal::TERM).expect("it is there");
        assert_eq!(job.outcome().code(), 0);
        (notes.read("got") == "TERM\nTERM\n").then_some(())
    });
}

#[test]
fn a_command_that_ignores_term_is_waited_for() {
    let server = Server::start();
    let notes = Notes::new();
    let script = notes.ignores_term();
    let mut job = Job::of(&server, &["run", "k", "--", "sh", "-c", &script]);
    notes.read("ready");
    job.send(Signal::TERM);
    notes.read("got");
    assert!(!job.is_over());
    assert!(is_held(&server));
    kill_process(job.command(), Signal::KILL).expect("it is there");
    assert_eq!(job.outcome().code(), 137);
}

#[test]
fn what_was_ignored_from_the_start_stays_ignored() {
    let server = Server::start();
    let mut job = Job::start(&mut shell(
        server.port(),
        "trap '' HUP; exec redis-lock run k -- sh -c 'trap \"kill \\$!; exit 6\" USR1; sleep 600 & wait'",
    ));
    // The command traps the signal before it starts its child.
    stage::child_of(job.command());
    job.send(Signal::HUP);
    job.send(Signal::USR1);
    assert_eq!(job.outcome().code(), 6);
}

/// Some daemons start their children with signals blocked.
#[test]
fn signals_that_were_blocked_from_the_start_are_passed_on() {
    let server = Server::start();
    let mut command = redis_lock(server.port(), &["run", "k", "--", "sleep", "600"]);
    let block = || {
        // SAFETY: system calls on a set that is owned by this function.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: system calls that allocate no memory.
    unsafe { command.pre_exec(block) };
    let mut job = Job::start(&mut command);
    job.command();
    job.send(Signal::TERM);
    assert_eq!(job.outcome().code(), 143);
}

#[test]
fn stop_and_continue_are_passed_on() {
    let server = Server::start();
    let mut command = redis_lock(server.port(), &["run", "k", "--", "sleep", "600"]);
    // A separate group, like a shell's job. TSTP doesn't stop processes of an orphaned group.
    let job = Job::start(command.process_group(0));
    let command = job.command();
    for _ in 0..3 {
        job.send(Signal::TSTP);
        until("the command is stopped", || state(command) == Some('T'));
        until("and so is the job", || state(job.id()) == Some('T'));
        job.send(Signal::CONT);
        until("it goes on", || state(command) == Some('S'));
    }
}

#[test]
fn a_command_that_alone_is_stopped_keeps_the_lock() {
    let server = Server::start();
    let job = sleeper(&server, &["--lease", "3s"]);
    let fence = holder(&server).int("fence");
    kill_process(job.command(), Signal::STOP).expect("it is there");
    until("it is held for two leases", || {
        holder(&server).int("held-ms") > 6_000
    });
    assert_eq!(holder(&server).int("fence"), fence);
}

#[test]
fn nothing_is_left_of_a_wait_that_a_signal_ends() {
    let server = server_with_holder();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut job = Job::of(&server, &["run", "k", "--", "true"]);
        server.until_waiters("k", 1);
        job.send(signal);
        assert_eq!(job.ended_by(), Some(signal.as_raw()));
        assert_eq!(server.known_lock("k").waiters, 0);
    }
}

#[test]
fn the_process_that_waits_becomes_the_command() {
    let server = server_with_holder();
    let job = Job::of(&server, &["run", "k", "--", "sleep", "600"]);
    server.until_waiters("k", 1);
    let process = stage::child_of(job.id());
    let program = fs::read_link(format!("/proc/{process}/exe")).expect("a program");
    assert_eq!(program, fs::canonicalize(stage::PROGRAM).expect("a path"));
    server.call("LOCK.RELEASE k a").value();
    assert_eq!(job.command(), process);
}

#[test]
fn no_process_is_left_of_a_wait() {
    let server = server_with_holder();
    for (options, signal, is_stopped) in [
        (&["--wait", "0.5"][..], None, true),
        (&[], Some(Signal::TERM), true),
        (&["--if-killed", "ignore"], Some(Signal::KILL), false),
    ] {
        let words = [&["run", "k"], options, &["--", "sleep", "600"]].concat();
        let job = Job::of(&server, &words);
        server.until_waiters("k", 1);
        let process = stage::child_of(job.id());
        if is_stopped {
            kill_process(process, Signal::STOP).expect("it is there");
        }
        if let Some(signal) = signal {
            job.send(signal);
        }
        until_gone(process);
        until("nobody waits", || server.waiters("k") == 0);
    }
}

#[test]
fn a_wait_that_goes_on_after_a_stop_runs_the_command() {
    let server = server_with_holder();
    for signal in [Signal::TSTP, Signal::STOP] {
        let mut command = redis_lock(server.port(), &["run", "k", "--", "true"]);
        // A separate group, like a shell's job.
        let mut job = Job::start(command.process_group(0));
        server.until_waiters("k", 1);
        let process = stage::child_of(job.id());
        kill_process_group(job.id(), signal).expect("it is there");
        until("both are stopped", || {
            [job.id(), process].map(state) == [Some('T'); 2]
        });
        // Not to the group, unlike a shell's `fg`.
        job.send(Signal::CONT);
        server.call("LOCK.RELEASE k a").value();
        assert_eq!(job.outcome().code(), 0);
        server.call("LOCK.ACQUIRE k a PX 600000").grant();
    }
}

/// Sends the signal before the wait, during the wait, at the grant, and while the command runs.
#[test]
fn nothing_is_left_whenever_a_signal_comes() {
    let server = Server::start();
    for round in 0..40 {
        server.call("LOCK.ACQUIRE k a PX 600000").grant();
        let mut job = Job::of(&server, &["run", "k", "--", "sleep", "600"]);
        if round % 2 == 0 {
            server.until_waiters("k", 1);
        }
        let ended = match round % 4 {
            0 => server.call("LOCK.RELEASE k a").is_ok(),
            _ => false,
        };
        std::thread::sleep(Duration::from_micros(round * 100));
        job.send(Signal::TERM);
        job.outcome();
        if !ended {
            server.call("LOCK.RELEASE k a").value();
        }
        assert_eq!(server.lock_info("k"), None, "round {round}");
    }
}

// --- the loss -------------------------------------------------------------------------------

#[test]
fn a_lost_lock_ends_the_command_and_what_it_started() {
    let server = Server::start();
    for (options, signal) in [
        (&["--on-lost", "term"][..], "TERM"),
        (&["--on-lost", "kill"], "KILL"),
        (&[], "TERM"),
    ] {
        let notes = Notes::new();
        let script = format!(
            "trap 'echo TERM >{0}; exit 0' TERM; sleep 600 & echo $! >{1}; wait",
            notes.word("got"),
            notes.word("child")
        );
        let words = [
            &["run", "k", "--lease", "3s"],
            options,
            &["--", "sh", "-c", &script],
        ]
        .concat();
        let mut job = Job::of(&server, &words);
        let grandchild = notes.number("child");
        server.call("DEL k").int();
        let lost = Instant::now();
        let outcome = job.outcome();
        assert!(
            lost.elapsed() < Duration::from_secs(8),
            "not only after the grace"
        );
        assert_eq!(outcome.code(), 79, "{outcome:?}");
        assert!(outcome.err.contains("the lock k was lost"), "{outcome:?}");
        until_gone(grandchild);
        assert_eq!(notes.path("got").exists(), signal == "TERM");
    }
}

#[test]
fn a_command_that_is_stopped_is_told_of_the_loss_all_the_same() {
    let server = Server::start();
    let mut job = sleeper(&server, &["--lease", "3s", "--grace", "600s"]);
    holder(&server);
    kill_process(job.command(), Signal::STOP).expect("it is there");
    server.call("DEL k").int();
    assert_eq!(job.outcome().code(), 79);
}

#[test]
fn after_the_grace_it_is_killed() {
    let server = Server::start();
    let notes = Notes::new();
    let script = notes.ignores_term();
    let words = [
        "run",
        "k",
        "--lease",
        "3s",
        "--grace",
        "3s",
        "--lost-exit-code",
        "8",
    ];
    let mut job = Job::of(
        &server,
        &[&words[..], &["--", "sh", "-c", &script]].concat(),
    );
    notes.read("ready");
    server.call("DEL k").int();
    notes.read("got");
    let told = Instant::now();
    assert_eq!(job.outcome().code(), 8);
    assert!(told.elapsed() > Duration::from_secs(1));
}

#[test]
fn what_the_command_started_has_the_same_grace() {
    let server = Server::start();
    let notes = Notes::new();
    let script = format!(
        "sh -c 'trap \"\" TERM; echo $$ >{0}; while :; do sleep 0.01; done' & wait",
        notes.word("child")
    );
    let words = ["run", "k", "--lease", "3s", "--grace", "3s"];
    let mut job = Job::of(
        &server,
        &[&words[..], &["--", "sh", "-c", &script]].concat(),
    );
    let grandchild = notes.number("child");
    let command = job.command();
    server.call("DEL k").int();
    until_gone(command);
    assert!(state(grandchild).is_some());
    assert_eq!(job.outcome().code(), 79);
    until_gone(grandchild);
}

#[test]
fn a_command_that_starts_processes_all_the_time_is_killed_with_them() {
    let server = Server::start();
    let notes = Notes::new();
    let script = format!(
        "while :; do sleep 600 & echo $! >>{}; sleep 0.001; done",
        notes.word("started")
    );
    let words = ["run", "k", "--lease", "3s", "--on-lost", "kill"];
    let words = [&words[..], &["--", "sh", "-c", &script]].concat();
    let mut job = Job::of(&server, &words);
    notes.read("started");
    server.call("DEL k").int();
    assert_eq!(job.outcome().code(), 79);
    for id in notes.read("started").lines() {
        until_gone(id.parse().ok().and_then(Pid::from_raw).expect("a process"));
    }
}

#[test]
fn a_loss_can_be_ignored() {
    let server = Server::start();
    let gate = Gate::new();
    let options = ["--lease", "300ms", "--on-lost", "ignore"];
    let mut job = gated(&server, &options, &gate);
    server.call("DEL k").int();
    // Another token gets the lock and keeps it.
    server.call("LOCK.ACQUIRE k b PX 600000").grant();
    std::thread::sleep(Duration::from_millis(400));
    assert!(!job.is_over());
    gate.open();
    let outcome = job.outcome();
    assert_eq!(outcome.code(), 4);
    assert!(outcome.err.contains("the lock k was lost"), "{outcome:?}");
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

#[test]
fn a_loss_that_is_found_at_the_end_is_told() {
    let server = Server::start();
    let mut client = server.client();
    let gate = Gate::new();
    let mut job = gated(&server, &[], &gate);
    client.call("DEL k").int();
    gate.open();
    assert_eq!(job.outcome().code(), 79);
}

#[test]
fn a_server_that_dies_loses_the_lock_by_the_end_of_the_lease() {
    let mut server = Server::start();
    let mut job = sleeper(&server, &["--lease", "5s", "--on-lost", "kill"]);
    server.kill9();
    let died = Instant::now();
    assert_eq!(job.outcome().code(), 79);
    assert!(
        died.elapsed() < Duration::from_secs(15),
        "{:?}",
        died.elapsed()
    );
}

#[test]
fn errors_that_nobody_reads_do_not_stop_the_renewals() {
    let server = Server::start();
    let (_unread, errors) = std::io::pipe().expect("a pipe");
    // A pipe holds as many bytes as this.
    let mut fill = Command::new("head");
    fill.args(["-c", "65536", "/dev/zero"]);
    fill.stdout(errors.try_clone().expect("the pipe"));
    assert!(fill.status().expect("it runs").success());
    let mut run = redis_lock(
        server.port(),
        &[
            "-t", "1s", "run", "k", "--lease", "6s", "--", "sleep", "600",
        ],
    );
    run.stdout(Stdio::null()).stderr(errors);
    let mut run = run.spawn().expect("it runs");
    let fence = holder(&server).int("fence");
    let process = process_of(&server);
    kill_process(process, Signal::STOP).expect("it is there");
    let stopped = Instant::now();
    until("a renewal has failed", || {
        stopped.elapsed() > Duration::from_millis(3600)
    });
    kill_process(process, Signal::CONT).expect("it is there");
    until("it is held beyond its lease", || {
        holder(&server).int("held-ms") > 9_000
    });
    assert_eq!(holder(&server).int("fence"), fence);
    kill_process(Pid::from_child(&run), Signal::TERM).expect("it is there");
    run.wait().expect("its end");
}

#[test]
fn a_server_that_stands_still_beyond_the_lease_loses_the_lock() {
    let server = Server::start();
    let mut job = sleeper(&server, &["--lease", "5s", "--on-lost", "kill"]);
    let process = process_of(&server);
    kill_process(process, Signal::STOP).expect("it is there");
    let stood = Instant::now();
    let outcome = job.outcome();
    let ended = stood.elapsed();
    kill_process(process, Signal::CONT).expect("it is there");
    assert_eq!(outcome.code(), 79);
    assert!(ended < Duration::from_secs(15), "{ended:?}");
}

#[test]
fn a_server_that_comes_back_in_time_with_its_data_loses_nothing() {
    let mut server = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    let mut job = sleeper(&server, &["--lease", "10s"]);
    let fence = holder(&server).int("fence");
    server.kill9();
    server.restart();
    until("it is renewed", || holder(&server).int("lease-ms") > 9_000);
    assert_eq!(holder(&server).int("fence"), fence);
    assert!(!job.is_over());
}

#[test]
fn a_server_that_does_not_answer_at_the_end_is_not_waited_for() {
    let server = Server::start();
    let gate = Gate::new();
    let mut job = gated(&server, &[], &gate);
    let process = process_of(&server);
    kill_process(process, Signal::STOP).expect("it is there");
    gate.open();
    let began = Instant::now();
    let outcome = job.outcome();
    kill_process(process, Signal::CONT).expect("it is there");
    assert_eq!(outcome.code(), 4);
    assert!(
        outcome.err.contains("the lock stays until its lease ends"),
        "{outcome:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(15));
}

// --- redis-lock itself ----------------------------------------------------------------------

#[test]
fn a_killed_redis_lock_frees_the_lock_by_lease_or_session() {
    let server = Server::start();
    for (options, at_once) in [
        (&["--session", "--lease", "60s"][..], true),
        (&["--lease", "3s"], false),
    ] {
        let job = sleeper(&server, options);
        let (command, lease_ms) = (job.command(), holder(&server).int("lease-ms"));
        job.send(Signal::KILL);
        until_free(&server);
        assert_eq!(at_once, lease_ms > 10_000);
        until_gone(command);
    }
}

#[test]
fn what_a_killed_redis_lock_means_for_the_command_is_a_choice() {
    let server = Server::start();
    for (choice, signal) in [("kill", None), ("term", Some("TERM")), ("ignore", None)] {
        let notes = Notes::new();
        let script = format!(
            "trap 'echo TERM >{0}; exit 0' TERM; echo >{1}; while :; do sleep 0.01; done",
            notes.word("got"),
            notes.word("ready")
        );
        let job = Job::of(
            &server,
            &[
                "run",
                "k",
                "--session",
                "--if-killed",
                choice,
                "--",
                "sh",
                "-c",
                &script,
            ],
        );
        let command = job.command();
        notes.read("ready");
        job.send(Signal::KILL);
        until_free(&server);
        if choice == "ignore" {
            assert!(state(command).is_some());
            kill_process(command, Signal::KILL).expect("it is there");
        }
        until_gone(command);
        assert_eq!(notes.path("got").exists(), signal.is_some(), "{choice}");
    }
}

#[test]
fn a_session_keeps_the_lock_of_one_who_stands_still_and_a_lease_does_not() {
    let server = Server::start();
    let session = sleeper(&server, &["--session", "--lease", "3s"]);
    let fence = holder(&server).int("fence");
    session.send(Signal::STOP);
    until("it is held for two leases", || {
        holder(&server).int("held-ms") > 6_000
    });
    assert_eq!(holder(&server).int("fence"), fence);
    session.send(Signal::KILL);
    until_free(&server);

    let mut leased = sleeper(&server, &["--lease", "3s", "--on-lost", "kill"]);
    leased.send(Signal::STOP);
    until_free(&server);
    server.call("LOCK.ACQUIRE k b PX 600000").grant();
    leased.send(Signal::CONT);
    assert_eq!(leased.outcome().code(), 79);
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

/// Sets the wall clock back and forward. No time is measured by that clock.
#[test]
fn the_wall_clock_does_not_matter() {
    let server = Server::start();
    let notes = Notes::new();
    let library = support::compiled::shared_object("replication/moved.c", notes.dir.path());
    let offset = fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(notes.path("offset"));
    let offset = offset.expect("a file");
    offset.set_len(24).expect("a file of 24 bytes");
    let mut command = redis_lock(
        server.port(),
        &["run", "k", "--lease", "3s", "--", "sleep", "600"],
    );
    command
        .env("LD_PRELOAD", library)
        .env("LOCK_TEST_CLOCK", notes.path("offset"));
    let mut job = Job::start(&mut command);
    let fence = holder(&server).int("fence");
    for (ms, held_ms) in [(-3_600_000_i64, 4_000), (3_600_000, 8_000)] {
        use std::os::unix::fs::FileExt;
        offset
            .write_all_at(&ms.to_ne_bytes(), 0)
            .expect("it is written");
        until("it is held on", || holder(&server).int("held-ms") > held_ms);
    }
    assert_eq!(holder(&server).int("fence"), fence);
    server.call("DEL k").int();
    assert_eq!(job.outcome().code(), 79);
}
