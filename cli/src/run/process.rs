//! The process of the command.
//!
//! The process is forked before this process handles signals, and becomes the command once the lock
//! is held. So a signal to the process group, like ^C, reaches both processes whenever it comes.
//!
//! The command has no process group of its own, unlike a shell's job. With such a group, the rest of
//! a pipeline or script would lose the terminal and miss ^C. Without job control, two commands at
//! once would take the terminal from each other.

#[cfg(target_os = "linux")]
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use super::events::{Event, FORWARDED};
use super::process_tree::ProcessTree;
use super::NOT_FOUND;
use crate::arguments::{IfKilled, Run};
use crate::signals;

/// The environment variables of the command.
const KEY: &str = "REDIS_LOCK_KEY";
const TOKEN: &str = "REDIS_LOCK_TOKEN";
const FENCE: &str = "REDIS_LOCK_FENCE";

/// The process of the command. Until the command is started, the process is a copy of this process,
/// and is killed when this value goes out of scope.
pub struct Child {
    id: Pid,
    /// The channel on which the process reads the grant, and writes the error if it can't run the
    /// command. The end of this process closes it.
    channel: UnixStream,
    is_started: bool,
}

/// Forks the process. Only the main thread may call this, because `if_killed` acts on the end of
/// the calling thread. No other thread and no signal handler may exist yet.
pub fn fork(options: &Run) -> io::Result<Child> {
    let (channel, other_end) = UnixStream::pair()?;
    let parent = process::getpid();
    // SAFETY: no other thread exists, so the new process may run any code.
    let id = match unsafe { libc::fork() } {
        0 => {
            drop(channel);
            become_command(options, parent, other_end);
            // SAFETY: a system call that doesn't return.
            unsafe { libc::_exit(NOT_FOUND.into()) }
        }
        -1 => None,
        id => Pid::from_raw(id),
    };
    Ok(Child {
        id: id.ok_or_else(io::Error::last_os_error)?,
        channel,
        is_started: false,
    })
}

/// Waits for the grant, and runs the command in this process. Returns if there is no grant or the
/// command can't be run.
fn become_command(options: &Run, parent: Pid, mut channel: UnixStream) {
    if end_with(parent, options.if_killed).is_err() {
        return;
    }
    let mut grant = String::new();
    let read = channel.read_to_string(&mut grant);
    let Some((token, fence)) = grant.split_once(' ').filter(|_| read.is_ok()) else {
        return;
    };
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env(TOKEN, token).env(FENCE, fence);
    // An environment can't hold a key with a zero byte.
    if options.key.as_bytes().contains(&0) {
        command.env_remove(KEY);
    } else {
        command.env(KEY, &options.key);
    }
    // redis-lock unblocks these signals for itself too.
    let _ = signals::unblock(&FORWARDED);
    let error = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
    // Without a reader, redis-lock has ended.
    let _ = channel.write_all(&error.to_ne_bytes());
}

/// Asks the system to send this process a signal when its parent ends.
#[cfg(target_os = "linux")]
fn end_with(parent: Pid, if_killed: IfKilled) -> io::Result<()> {
    let signal = match if_killed {
        IfKilled::Kill => Signal::KILL,
        IfKilled::Term => Signal::TERM,
        IfKilled::Ignore => return Ok(()),
    };
    process::set_parent_process_death_signal(Some(signal))?;
    // The parent may have ended already.
    match process::getppid() == Some(parent) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with(_parent: Pid, _if_killed: IfKilled) -> io::Result<()> {
    Ok(())
}

/// Reports stops and the end of the command. The exit status is left for `exit_code`, so the system
/// can't reuse the process ID until then.
fn watch(id: Pid, events: &Sender<Event>) {
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let has_stopped = match process::waitid(WaitId::Pid(id), options) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(Some(status)) if status.stopped() => stopped_by_terminal(id),
            Ok(_) | Err(_) => {
                // The receiver may be gone. Then the event is not needed.
                let _ = events.send(Event::Ended);
                return;
            }
        };
        if has_stopped && events.send(Event::Stopped).is_err() {
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

impl Child {
    /// Starts the command, and reports its stops and its end as events.
    pub fn start(&mut self, token: &str, fence: i64, events: Sender<Event>) {
        self.is_started = true;
        // The process may have been killed. Then its end is reported.
        let _ = write!(self.channel, "{token} {fence}");
        let _ = self.channel.shutdown(Shutdown::Write);
        let id = self.id;
        thread::spawn(move || watch(id, &events));
    }

    /// Returns the error if the command couldn't be run. Call it after the process has ended.
    pub fn failure(&mut self) -> Option<io::Error> {
        let mut number = [0; size_of::<i32>()];
        self.channel.set_nonblocking(true).ok()?;
        self.channel.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    }

    /// Sends the command the signal with this number.
    pub fn send(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // The command may have ended just now.
            let _ = process::kill_process(self.id, signal);
        }
    }

    /// Returns the command and its living descendants. A process whose parent has ended is not
    /// among them.
    pub fn process_tree(&self) -> ProcessTree {
        ProcessTree::of(self.id)
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
    pub fn exit_code(&self) -> Result<u8> {
        let ended = process::waitpid(Some(self.id), WaitOptions::empty());
        let (_, status) = ended?.context("the end of the command")?;
        Ok(code(status))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_started {
            // A stopped process would not notice that the channel is closed.
            let _ = process::kill_process(self.id, Signal::KILL);
            let _ = self.exit_code();
        }
    }
}

fn code(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => signals::code_of(signal.unwrap_or_default()),
    }
}
