//! The process of the command.
//!
//! The process is forked before this process handles signals, and becomes the command once the lock
//! is held. So a signal to the process group, like ^C, reaches both processes whenever it comes.
//!
//! The command has no process group of its own, unlike a shell's job. With such a group, the rest of
//! a pipeline or script would lose the terminal and miss ^C. Without job control, two commands at
//! once would take the terminal from each other.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result};
use rustix::io::retry_on_intr;
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions, WaitOptions};

use super::events::{Event, FORWARDED};
use crate::arguments::{IfKilled, Run};
use crate::signals;

/// The exit code of a shell if a command doesn't exist.
pub const NOT_FOUND: u8 = 127;

/// The environment variables of the command.
const KEY: &str = "REDIS_LOCK_KEY";
const TOKEN: &str = "REDIS_LOCK_TOKEN";
const FENCE: &str = "REDIS_LOCK_FENCE";

/// The process of the command. Until the command is started, the process is a copy of this process,
/// and is killed when this value goes out of scope.
pub struct Child {
    pub id: Pid,
    /// The channel on which the process reads the grant, and writes the error if it can't run the
    /// command. The end of this process closes it.
    channel: UnixStream,
    is_started: bool,
}

/// Forks the process. Only the main thread may call this, because `if_killed` acts on the end of
/// the calling thread. No other thread and no signal handler may exist yet.
pub fn fork(options: &Run) -> io::Result<Child> {
    let (channel, mut other_end) = UnixStream::pair()?;
    let parent = process::getpid();
    // SAFETY: no other thread exists, so the new process may run any code.
    let id = match unsafe { libc::fork() } {
        0 => {
            drop(channel);
            let Err(error) = become_command(options, parent, &mut other_end);
            let number = error.raw_os_error().unwrap_or(libc::EINVAL);
            // Without a reader, redis-lock has ended.
            let _ = other_end.write_all(&number.to_ne_bytes());
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

/// Waits for the grant, and runs the command in this process.
fn become_command(options: &Run, parent: Pid, channel: &mut UnixStream) -> io::Result<Infallible> {
    end_with(parent, options.if_killed)?;
    let mut grant = String::new();
    channel.read_to_string(&mut grant)?;
    // Without a grant, redis-lock has ended.
    let (token, fence) = grant.split_once(' ').ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    command.env(KEY, &options.key);
    command.env(TOKEN, token).env(FENCE, fence);
    // redis-lock unblocks these signals for itself too.
    signals::unblock(&FORWARDED)?;
    Err(command.exec())
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

/// Reports stops and the end of the command. The exit status is left for `exit_code`, so the
/// system can't reuse the process ID until then.
fn watch(id: Pid, events: &Sender<Event>) {
    let wait = |options| retry_on_intr(|| process::waitid(WaitId::Pid(id), options));
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let status = wait(options).ok().flatten();
        let Some(signal) = status.and_then(|status| status.stopping_signal()) else {
            // The receiver may be gone. Then the event is not needed.
            let _ = events.send(Event::Ended);
            return;
        };
        // Consumes the stop.
        let _ = wait(WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        // SIGSTOP is meant for the command alone.
        if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
            let _ = events.send(Event::Stopped);
        }
    }
}

impl Child {
    /// Starts the command, and sends its stops and its end as events.
    pub fn start(&mut self, token: &str, fence: i64, events: Sender<Event>) {
        self.is_started = true;
        // The process may have been killed. Then its end is an event.
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

    /// Sends the process the signal with this number.
    pub fn send(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // The process may have ended just now.
            let _ = process::kill_process(self.id, signal);
        }
    }

    /// Returns true if the command lives and wasn't continued since its last stop.
    pub fn is_stopped(&self) -> bool {
        let ends = WaitIdOptions::EXITED | WaitIdOptions::CONTINUED;
        let options = ends | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(process::waitid(WaitId::Pid(self.id), options), Ok(None))
    }

    /// Waits for the end of the process, and returns its exit code.
    pub fn exit_code(&self) -> Result<u8> {
        let ended = process::waitpid(Some(self.id), WaitOptions::empty());
        let (_, status) = ended?.context("the end of the command")?;
        let by_signal = || signals::code_of(status.terminating_signal().unwrap_or_default());
        let code = status.exit_status();
        Ok(code.map_or_else(by_signal, |code| u8::try_from(code).unwrap_or(u8::MAX)))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_started {
            // A stopped process would not notice that the channel is closed.
            self.send(libc::SIGKILL);
            let _ = self.exit_code();
        }
    }
}
