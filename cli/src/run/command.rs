//! The process of the command.

#[cfg(target_os = "linux")]
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};

use super::birth::{self, Birth};
use super::family::Family;
use super::news::News;
use crate::arguments::{IfKilled, Run};
use crate::signals::{self, Signals};

/// The names of what the command is told.
const KEY: &str = "REDIS_LOCK_KEY";
const TOKEN: &str = "REDIS_LOCK_TOKEN";
const FENCE: &str = "REDIS_LOCK_FENCE";

/// For how long after its start it may have missed what its group was sent: a busy machine needs so long to
/// tell of a signal.
const NEW_FOR: Duration = Duration::from_secs(1);

/// A command that runs.
pub struct Running {
    child: Child,
    id: Pid,
    birth: Birth,
}

/// Starts the command. It must be the main thread that does: the end of the thread that started it is what
/// `if_killed` takes for the end of the process.
pub fn start(options: &Run, token: &str, fence: i64, news: Sender<News>) -> io::Result<Running> {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env(TOKEN, token).env(FENCE, fence.to_string());
    // A key with a zero byte can't stand in an environment.
    if options.key.as_bytes().contains(&0) {
        command.env_remove(KEY);
    } else {
        command.env(KEY, &options.key);
    }
    end_with_this_process(&mut command, options.if_killed);
    let (child, birth) = birth::spawn(command)?;
    let id = Pid::from_child(&child);
    thread::spawn(move || watch(id, &news));
    Ok(Running { child, id, birth })
}

/// Has the system send the command a signal when this process is gone.
#[cfg(target_os = "linux")]
fn end_with_this_process(command: &mut Command, if_killed: IfKilled) {
    let signal = match if_killed {
        IfKilled::Kill => Signal::KILL,
        IfKilled::Term => Signal::TERM,
        IfKilled::Ignore => return,
    };
    let parent = process::getpid();
    let ask = move || {
        process::set_parent_process_death_signal(Some(signal))?;
        // It may be gone already.
        match process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: two system calls, and no memory is asked for.
    unsafe { command.pre_exec(ask) };
}

#[cfg(not(target_os = "linux"))]
fn end_with_this_process(_command: &mut Command, _if_killed: IfKilled) {}

/// Tells of stops and of the end. The end is left to be asked for, so that until then the number of the
/// process can't become another's.
fn watch(id: Pid, news: &Sender<News>) {
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let told = match process::waitid(WaitId::Pid(id), options) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(Some(status)) if status.stopped() => stopped_by_terminal(id),
            Ok(_) | Err(_) => {
                // Nobody listens any more: then it doesn't matter.
                let _ = news.send(News::Ended);
                return;
            }
        };
        if told && news.send(News::Stopped).is_err() {
            return;
        }
    }
}

/// Takes note of a stop. One by SIGSTOP is somebody's who means the command alone.
fn stopped_by_terminal(id: Pid) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let status = process::waitid(WaitId::Pid(id), options).ok().flatten();
    let signal = status.and_then(|status| status.stopping_signal());
    signal.is_some_and(|number| [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&number))
}

impl Running {
    pub fn send(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // It may have ended just now.
            let _ = process::kill_process(self.id, signal);
        }
    }

    /// The command with all that it started and that hasn't left it.
    pub fn family(&self) -> Family {
        Family::of(self.id)
    }

    /// Whether the command was there when its group was sent a signal. One that came before it was started
    /// reached nobody but this process.
    pub fn was_there(&mut self, signal: super::news::Signal) -> bool {
        self.birth.had(signal)
    }

    /// Whether a signal that ends its like was lost though it seems to have come when the command was there: it came
    /// just before, and this process was so late to handle it. A command that lives and takes it as the system does by
    /// default hasn't had it.
    #[cfg(target_os = "linux")]
    pub fn has_missed(&self, number: i32) -> bool {
        birth::ends(number) && self.is_new() && takes_by_default(self.id, number)
    }

    /// Not known on this system.
    #[cfg(not(target_os = "linux"))]
    pub fn has_missed(&self, _number: i32) -> bool {
        false
    }

    /// Whether it was started just now.
    pub fn is_new(&self) -> bool {
        self.birth.at().elapsed() < NEW_FOR
    }

    /// Whether it is stopped just now.
    #[cfg(target_os = "linux")]
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.id.as_raw_nonzero());
        let stat = fs::read(path).unwrap_or_default();
        // The state comes behind the program's name, which has any bytes and ends with the last parenthesis.
        let behind_name = stat.rsplit(|byte| *byte == b')').next();
        behind_name.is_some_and(|rest| rest.starts_with(b" T"))
    }

    /// Whether it wasn't continued since it was stopped.
    #[cfg(not(target_os = "linux"))]
    pub fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        !matches!(process::waitid(WaitId::Pid(self.id), options), Ok(Some(_)))
    }

    /// The exit code that stands for its end. It has ended.
    pub fn exit_code(&mut self) -> Result<u8> {
        let status = self.child.wait().context("the end of the command")?;
        Ok(code(status))
    }
}

/// Whether a process neither handles, nor ignores, nor holds back a signal.
#[cfg(target_os = "linux")]
fn takes_by_default(id: Pid, number: i32) -> bool {
    let path = format!("/proc/{}/status", id.as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(mask.trim(), 16).ok().map(Signals)
    };
    let is_out_of = |signals: Signals| !signals.has(number);
    ["SigCgt:", "SigIgn:", "SigBlk:"]
        .iter()
        .all(|name| field(name).is_some_and(is_out_of))
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => signals::code_of(signal.unwrap_or_default()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_a_process_does_with_a_signal_is_seen() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' INT; trap : TERM; echo; read line"]);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let mut ready = [0];
        let output = shell.stdout.as_mut().expect("its output");
        output.read_exact(&mut ready).expect("a line");
        let id = Pid::from_child(&shell);
        for (number, by_default) in [
            (libc::SIGINT, false),
            (libc::SIGTERM, false),
            (libc::SIGHUP, true),
            (libc::SIGUSR2, true),
        ] {
            assert_eq!(takes_by_default(id, number), by_default, "{number}");
        }
        drop(shell.stdin.take());
        shell.wait().expect("its end");
        assert!(!takes_by_default(id, libc::SIGHUP), "it is gone");
    }
}
