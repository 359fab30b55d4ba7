//! Helpers that start `redis-lock` for a test, with or without a terminal.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub use support;
pub mod places;
pub mod terminal;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{kill_process, Pid, Signal};
use support::{eventually, until, Server};
use tempfile::TempDir;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_redis-lock");

/// Returns a `redis-lock` command with arguments, for the server on a port.
pub fn redis_lock(port: u16, words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::null());
    set_environment(&mut command, port);
    command
}

/// Returns a shell command whose PATH contains `redis-lock`.
pub fn shell(port: u16, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null());
    set_environment(&mut command, port);
    command
}

fn set_environment(command: &mut Command, port: u16) {
    let folder = Path::new(PROGRAM).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("REDIS_LOCK_URL", format!("redis://127.0.0.1:{port}"))
        .env("PATH", format!("{}:{path}", folder.display()))
        .env_remove("REDISCLI_AUTH");
}

/// The result of a command that ended by itself.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Outcome {
    fn of(output: Output) -> Outcome {
        Outcome {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns the exit code. Panics if a signal ended the command.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Returns the output. Panics if the command failed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.out
    }
}

#[track_caller]
pub fn outcome(command: &mut Command) -> Outcome {
    Outcome::of(command.output().expect("it runs"))
}

/// Runs `redis-lock` with arguments until it ends.
#[track_caller]
pub fn done(server: &Server, words: &[&str]) -> Outcome {
    outcome(&mut redis_lock(server.port(), words))
}

/// A command that runs while the test goes on. It is killed when this value goes out of scope.
pub struct Job {
    child: Child,
}

impl Job {
    #[track_caller]
    pub fn start(command: &mut Command) -> Job {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Job {
            child: command.spawn().expect("it runs"),
        }
    }

    /// Starts `redis-lock` with arguments.
    #[track_caller]
    pub fn of(server: &Server, words: &[&str]) -> Job {
        Job::start(&mut redis_lock(server.port(), words))
    }

    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[track_caller]
    pub fn send(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("it is there");
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Waits for the end of the command, and returns its result.
    #[track_caller]
    pub fn outcome(&mut self) -> Outcome {
        let status = eventually("it ends", || self.child.try_wait().expect("a child"));
        let mut outcome = Outcome {
            status,
            out: String::new(),
            err: String::new(),
        };
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut outcome.out).expect("text");
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            pipe.read_to_string(&mut outcome.err).expect("text");
        }
        outcome
    }

    /// Waits for the end of the command, and returns the signal that ended it.
    #[track_caller]
    pub fn ended_by(&mut self) -> Option<i32> {
        self.outcome().status.signal()
    }

    /// Waits until the command of `redis-lock run` runs its own program, and returns its process.
    ///
    /// Before that, the process is a copy of `redis-lock`.
    #[track_caller]
    pub fn command(&self) -> Pid {
        let command = child_of(self.id());
        let program = |process| fs::read_link(format!("/proc/{process}/exe")).ok();
        until("the command runs its program", || {
            program(command) != program(self.id())
        });
        command
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The process may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until a process has a child, and returns its first child.
#[track_caller]
pub fn child_of(parent: Pid) -> Pid {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let first = || {
        fs::read_to_string(&path)
            .ok()?
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    eventually("it has a child", || first().and_then(Pid::from_raw))
}

/// Returns the letter of a process's state, or `None` if the process has ended.
pub fn state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?
        .1
        .chars()
        .next()
        .filter(|state| *state != 'Z')
}

#[track_caller]
pub fn until_gone(process: Pid) {
    until("the process has ended", || state(process).is_none());
}

/// Waits until a command has written a file, and returns its text. A text is complete if it ends
/// with a newline.
#[track_caller]
pub fn written(path: &Path) -> String {
    eventually("the file is written", || {
        fs::read_to_string(path)
            .ok()
            .filter(|text| text.ends_with('\n'))
    })
}

/// A command that runs until the gate is opened, and then ends with 4.
pub struct Gate {
    dir: TempDir,
    script: String,
}

impl Gate {
    pub fn new() -> Gate {
        let dir = tempfile::tempdir().expect("a folder");
        let script = format!(
            "until [ -e {} ]; do sleep 0.01; done; exit 4",
            dir.path().join("open").display()
        );
        Gate { dir, script }
    }

    pub fn command(&self) -> [&str; 3] {
        ["sh", "-c", &self.script]
    }

    pub fn open(&self) {
        fs::write(self.dir.path().join("open"), "").expect("a file");
    }
}
