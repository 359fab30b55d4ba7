//! examples/cron_once.sh: when all machines of a fleet start a cron job, one machine runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::{server_binary, signal, until, Expect, Server};
use tempfile::TempDir;

/// Returns the command-line client: `REDIS_CLI`, else the one beside the server program, else
/// redis-cli in PATH.
pub fn client_program() -> PathBuf {
    if let Some(named) = std::env::var_os("REDIS_CLI") {
        return named.into();
    }
    let folder = server_binary().parent().map(Path::to_owned);
    let folder = folder.unwrap_or_default();
    let beside = ["redis-cli", "valkey-cli"].map(|name| folder.join(name));
    let beside = beside.into_iter().find(|path| path.is_file());
    beside.unwrap_or_else(|| "redis-cli".into())
}

/// A fleet's server, and a folder for the files that the cron job writes.
struct Fleet {
    server: Server,
    folder: TempDir,
}

impl Fleet {
    fn new() -> Fleet {
        Fleet {
            server: Server::start(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the cron job on one machine.
    fn machine(&self, window_ms: u64, command: &str) -> Child {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cron_once.sh");
        let cli = client_program();
        let cli = format!("{} -p {}", cli.display(), self.server.port());
        Command::new("sh")
            .arg(script)
            .args(["cron:job", &window_ms.to_string(), "sh", "-c", command])
            .current_dir(self.folder.path())
            .env("REDIS_CLI", cli)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh runs")
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn is_held(&self) -> bool {
        self.server.lock_info("cron:job").is_some()
    }
}

#[track_caller]
fn end(machine: Child) -> Output {
    machine.wait_with_output().expect("the script ends")
}

#[track_caller]
fn code(machine: Child) -> Option<i32> {
    end(machine).status.code()
}

const LONG_MS: u64 = 600_000;

#[test]
fn one_of_eight_machines_runs_it() {
    let fleet = Fleet::new();
    let job = "echo $LOCK_FENCE >> ran";
    let machines: Vec<Child> = (0..8).map(|_| fleet.machine(LONG_MS, job)).collect();
    for machine in machines {
        assert_eq!(code(machine), Some(0));
    }
    let ran = fleet.lines("ran");
    assert_eq!(ran.len(), 1, "{ran:?}");
    let fence = fleet.server.known_lock("cron:job").holder().int("fence");
    assert_eq!(ran, [fence.to_string()]);
    // A machine whose clock is late starts after the job has run.
    assert_eq!(code(fleet.machine(LONG_MS, job)), Some(0));
    assert_eq!(fleet.lines("ran").len(), 1);
}

#[test]
fn the_next_run_is_after_the_window() {
    let fleet = Fleet::new();
    assert_eq!(code(fleet.machine(300, "echo 1 >> ran")), Some(0));
    until("the window is over", || !fleet.is_held());
    assert_eq!(code(fleet.machine(300, "echo 2 >> ran")), Some(0));
    assert_eq!(fleet.lines("ran"), ["1", "2"]);
}

#[test]
fn a_command_that_takes_longer_than_the_window_keeps_the_lock() {
    let fleet = Fleet::new();
    let long = "touch began; until [ -e done ]; do sleep 0.05; done; echo 1 >> ran";
    let machine = fleet.machine(1500, long);
    until("the command runs", || fleet.path("began").exists());
    until("the lock was held for two windows", || {
        fleet.server.known_lock("cron:job").holder().int("held-ms") > 3000
    });
    assert_eq!(code(fleet.machine(1500, "echo 2 >> ran")), Some(0));
    fs::write(fleet.path("done"), "").expect("a file");
    assert_eq!(code(machine), Some(0));
    assert_eq!(fleet.lines("ran"), ["1"]);
    until("the lock is free", || !fleet.is_held());
}

#[test]
fn a_script_that_is_killed_ends_its_command_and_keeps_the_lock_for_a_window() {
    let fleet = Fleet::new();
    let job = "exec >/dev/null 2>&1; echo $PPID > script; \
               trap 'touch told; exit' TERM; while :; do sleep 0.05; done";
    let machine = fleet.machine(900, job);
    until("the command runs", || !fleet.lines("script").is_empty());
    until("its lease has been extended", || {
        fleet.server.known_lock("cron:job").holder().int("held-ms") > 900
    });
    let script = &fleet.lines("script")[0];
    assert!(signal(script, libc::SIGKILL), "the script runs");
    // Waits like cron does, because an ended process exists until its parent has read its status.
    drop(end(machine));
    until("the command gets SIGTERM", || fleet.path("told").exists());
    until("its lease is over", || !fleet.is_held());
    assert_eq!(code(fleet.machine(LONG_MS, "echo 2 >> ran")), Some(0));
    assert_eq!(fleet.lines("ran"), ["2"]);
}

#[test]
fn a_command_that_lost_the_lock_is_told_to_end() {
    let fleet = Fleet::new();
    let machine = fleet.machine(300, "touch began; exec sleep 600");
    until("the command runs", || fleet.path("began").exists());
    fleet.server.call("DEL cron:job").int();
    assert_eq!(code(machine), Some(76));
}

#[test]
fn the_command_s_own_code_comes_through() {
    let fleet = Fleet::new();
    assert_eq!(code(fleet.machine(LONG_MS, "exit 3")), Some(3));
}

#[test]
fn where_the_server_does_not_answer_nothing_runs() {
    let fleet = Fleet::new();
    fleet.server.call("SET cron:job text").okay();
    let output = end(fleet.machine(LONG_MS, "echo 1 >> ran"));
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("WRONGTYPE"), "{said}");
    assert!(fleet.lines("ran").is_empty());
}
