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

/// The environment variables of the command.
const KEY: &str = "REDIS_LOCK_KEY";
const TOKEN: &str = "REDIS_LOCK_TOKEN";
const FENCE: &str = "REDIS_LOCK_FENCE";

/// The time after its start in which the command may have missed a signal to its group. A busy
/// machine may report a signal that late.
const NEW_FOR: Duration = Duration::from_secs(1);

/// A running command.
pub struct Running {
    child: Child,
    id: Pid,
    birth: Birth,
}

/// Starts the command. Only the main thread may call this, because `if_killed` acts on the end of
/// the calling thread.
pub fn start(options: &Run, token: &str, fence: i64, news: Sender<News>) -> io::Result<Running> {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env(TOKEN, token).env(FENCE, fence.to_string());
    // An environment can't hold a key with a zero byte.
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

/// Asks the system to send the command a signal when this process ends.
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
        // The parent may have ended already.
        match process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    };
    // SAFETY: two system calls that allocate no memory.
    unsafe { command.pre_exec(ask) };
}

#[cfg(not(target_os = "linux"))]
fn end_with_this_process(_command: &mut Command, _if_killed: IfKilled) {}

/// Reports stops and the end of the command. The exit status is left for `exit_code`, so the system
/// can't reuse the process ID until then.
fn watch(id: Pid, news: &Sender<News>) {
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let told = match process::waitid(WaitId::Pid(id), options) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(Some(status)) if status.stopped() => stopped_by_terminal(id),
            Ok(_) | Err(_) => {
                // The receiver may be gone. Then the event is not needed.
                let _ = news.send(News::Ended);
                return;
            }
        };
        if told && news.send(News::Stopped).is_err() {
            return;
        }
    }
}

/// Consumes a stop. Returns true if a terminal signal caused it, because SIGSTOP is meant for the
/// command alone.
fn stopped_by_terminal(id: Pid) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    let status = process::waitid(WaitId::Pid(id), options).ok().flatten();
    let signal = status.and_then(|status| status.stopping_signal());
    signal.is_some_and(|number| [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&number))
}

impl Running {
    pub fn send(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // The command may have ended just now.
            let _ = process::kill_process(self.id, signal);
        }
    }

    /// Returns the command and its living descendants. A process whose parent has ended is not
    /// among them.
    pub fn family(&self) -> Family {
        Family::of(self.id)
    }

    /// Returns true if the command existed when its group received a signal. An earlier signal
    /// reached only this process.
    pub fn was_there(&mut self, signal: super::news::Signal) -> bool {
        self.birth.had(signal)
    }

    /// Returns true if the command has missed a signal that `was_there` ascribes to it.
    ///
    /// Such a signal came just before the command's start, and this process handled it late. Only a
    /// fatal signal shows this: a living command with the default action can't have received it.
    #[cfg(target_os = "linux")]
    pub fn has_missed(&self, number: i32) -> bool {
        birth::ends(number) && self.is_new() && takes_by_default(self.id, number)
    }

    /// Returns false, because this system doesn't show it.
    #[cfg(not(target_os = "linux"))]
    pub fn has_missed(&self, _number: i32) -> bool {
        false
    }

    /// Returns true if the command was started just now.
    pub fn is_new(&self) -> bool {
        self.birth.at().elapsed() < NEW_FOR
    }

    /// Returns true if the command is stopped.
    #[cfg(target_os = "linux")]
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.id.as_raw_nonzero());
        let stat = fs::read(path).unwrap_or_default();
        // The state follows the program's name. The name may contain any bytes, and ends with the
        // last parenthesis.
        let behind_name = stat.rsplit(|byte| *byte == b')').next();
        behind_name.is_some_and(|rest| rest.starts_with(b" T"))
    }

    /// Returns true unless the command was continued since the last call.
    #[cfg(not(target_os = "linux"))]
    pub fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        !matches!(process::waitid(WaitId::Pid(self.id), options), Ok(Some(_)))
    }

    /// Returns the exit code of the command. Call it after the command has ended, because it waits
    /// for the end.
    pub fn exit_code(&mut self) -> Result<u8> {
        let status = self.child.wait().context("the end of the command")?;
        Ok(code(status))
    }
}

/// Returns true if a process takes the default action on a signal: the signal is not handled,
/// ignored or blocked.
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
