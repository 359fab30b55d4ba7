//! `redis-lock run`.
//!
//! The main thread makes all decisions. It reads events from a channel, one after the other. Other
//! threads wait for the lock, for signals and for the command, and send these events.

mod events;
mod lease;
mod process;
mod process_tree;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use libc::{SIGCHLD, SIGCONT, SIGHUP, SIGTSTP};
use redis::ConnectionAddr;
use rustix::process::Signal as Sent;

use crate::arguments::{OnLost, Run, Server};
use crate::info;
use crate::nodes::Nodes;
use crate::output;
use crate::signals;
use events::{Event, Signal};
use lease::Lease;
use process::{Child, NOT_FOUND};
use process_tree::ProcessTree;

/// The exit code of a shell if a command can't be run.
const CANNOT_RUN: u8 = 126;

/// The longest time until all processes of a group have continued after a signal to the group.
const CONTINUED_WITHIN: Duration = Duration::from_millis(30);

pub fn run(server: &Server, options: &Run) -> Result<ExitCode> {
    // If the parent process ignores SIGCHLD, the system keeps no exit codes.
    signals::reset(SIGCHLD)?;
    let mut child = match process::fork(options) {
        Ok(child) => child,
        Err(error) => return Ok(not_started(options, &error)),
    };
    let deadline = deadline(options);
    // Until the wait begins, a signal ends or stops this process like any other.
    let primaries = connect(server, options, deadline)?;
    let (sender, events) = mpsc::channel();
    events::watch_signals(sender.clone())?;
    let lease = Lease::new(server, options, deadline, primaries, sender.clone())?;
    let began = Instant::now();
    let waited = wait(&lease, &child, &events);
    if !matches!(waited, Ok(Wait::Granted(_))) {
        lease.settle();
    }
    let fence = match waited? {
        Wait::Granted(fence) => fence,
        Wait::NotGranted => return Ok(ExitCode::from(options.conflict_exit_code)),
        Wait::Interrupted(number) => {
            drop(child);
            return Ok(signals::die_of(number));
        }
    };
    let granted = Instant::now();
    if options.verbose {
        let waited = began.elapsed();
        output::log(format_args!("got it after {waited:.1?}, fence {fence}"));
    }
    child.start(&lease.token(), fence, sender);
    let mut supervisor = Supervisor {
        child,
        lease: &lease,
        options,
        is_lost: false,
        kill_at: None,
        continued_at: None,
    };
    let code = supervisor.wait(&events);
    if let Some(error) = supervisor.child.failure() {
        lease.release();
        return Ok(not_started(options, &error));
    }
    let is_lost = !release(&lease, options, granted) || supervisor.is_lost;
    if is_lost {
        let key = output::word(options.key.as_bytes());
        output::log(format_args!(
            "the lock {key} was lost while the command ran"
        ));
    }
    Ok(match is_lost && options.on_lost != OnLost::Ignore {
        true => ExitCode::from(options.lost_exit_code),
        false => ExitCode::from(code?),
    })
}

/// Returns the end of the wait for the lock, or `None` if it has none.
fn deadline(options: &Run) -> Option<Instant> {
    let wait = match options.nonblock {
        true => Some(Duration::ZERO),
        false => options.wait,
    };
    wait.and_then(|wait| Instant::now().checked_add(wait))
}

/// Connects once before the wait, so that a missing server, right or module is reported at once.
/// Returns the primaries of a cluster.
fn connect(
    server: &Server,
    options: &Run,
    deadline: Option<Instant>,
) -> Result<Vec<ConnectionAddr>> {
    let mut server = server.clone();
    // Without a wait, the deadline has passed, and only `-t` limits the time.
    server.end = deadline.filter(|end| *end > Instant::now());
    let mut nodes = Nodes::connect(&server)?;
    if options.verbose {
        let key = options.key.as_bytes();
        if let Some(lock) = nodes.lock(key, 0)? {
            output::log(info::text(key, &lock.without_tokens()).trim_end());
        }
    }
    Ok(nodes.primaries)
}

/// Releases the lock, or leaves it for the rest of `--at-least`. Returns false if the lock had been
/// lost.
///
/// The lock is held at least as long as asked. The server granted the lock before `granted`, and
/// counts the rest from a time after now.
fn release(lease: &Lease, options: &Run, granted: Instant) -> bool {
    let at_least = options.at_least.unwrap_or_default();
    let rest = at_least.saturating_sub(granted.elapsed());
    if rest.is_zero() {
        return lease.release();
    }
    if options.verbose && !lease.is_lost() {
        output::log(format_args!("keeps it for another {rest:.1?}"));
    }
    lease.release_after(rest)
}

/// The outcome of a wait for the lock.
enum Wait {
    Granted(i64),
    NotGranted,
    /// The number of the signal that ended the wait.
    Interrupted(i32),
}

fn wait(lease: &Lease, child: &Child, events: &Receiver<Event>) -> Result<Wait> {
    lease.wait();
    loop {
        match events.recv()? {
            Event::Waited(fence) => match fence? {
                None => return Ok(Wait::NotGranted),
                // This process was stopped for so long that the lock has expired.
                Some(_) if lease.is_lost() => lease.wait(),
                Some(fence) => return Ok(Wait::Granted(fence)),
            },
            Event::Signal(Signal { number, .. }) => {
                if ![SIGTSTP, SIGCONT].contains(&number) {
                    cancel(lease, events);
                    return Ok(Wait::Interrupted(number));
                }
                if number == SIGTSTP {
                    signals::stop()?;
                }
                // A stop of the group has stopped the command's process too.
                child.send(SIGCONT);
            }
            _ => {}
        }
    }
}

/// Cancels the wait. Also releases a grant that arrived at the last moment.
fn cancel(lease: &Lease, events: &Receiver<Event>) {
    lease.cancel();
    // The senders live as long as the lease, so only the end of the wait ends this.
    while let Ok(event) = events.recv() {
        if matches!(event, Event::Waited(_)) {
            lease.release();
            return;
        }
    }
}

fn not_started(options: &Run, error: &io::Error) -> ExitCode {
    let name = output::line(&options.command[0].to_string_lossy());
    output::log(format_args!("{name}: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(CANNOT_RUN),
    }
}

/// Supervises a command that runs under the lock.
struct Supervisor<'a> {
    child: Child,
    lease: &'a Lease,
    options: &'a Run,
    is_lost: bool,
    /// The processes to kill, and the time to kill them if they still run.
    kill_at: Option<(Instant, ProcessTree)>,
    /// The last time when this process was continued after a stop.
    continued_at: Option<Instant>,
}

impl Supervisor<'_> {
    /// Handles events until the command has ended, and returns its exit code.
    fn wait(&mut self, events: &Receiver<Event>) -> Result<u8> {
        loop {
            let left = self.kill_at.as_ref().map_or(Duration::MAX, |(at, _)| {
                at.saturating_duration_since(Instant::now())
            });
            match events.recv_timeout(left) {
                Ok(Event::Ended) => break,
                Ok(Event::Signal(signal)) => self.forward(signal),
                Ok(Event::Stopped) => self.stop_too()?,
                Ok(Event::Lost) if self.lease.is_lost() => self.lose(),
                // The loss concerns an earlier grant.
                Ok(Event::Lost | Event::Waited(_)) => {}
                Err(RecvTimeoutError::Timeout) => self.kill(),
                Err(error) => return Err(error.into()),
            }
        }
        // The command's descendants have the same deadline as the command.
        if let Some((at, tree)) = &self.kill_at {
            tree.wait_until(*at);
        }
        self.kill();
        self.child.exit_code()
    }

    /// Sends a signal to the command, unless the system has sent it to the whole group.
    fn forward(&mut self, signal: Signal) {
        // The system also discards earlier stops when a process is continued.
        let is_over = self.continued_at.is_some_and(|at| signal.at < at);
        if signal.number == SIGTSTP && is_over {
            return;
        }
        // A hangup may reach the leader of the session alone.
        if !signal.is_from_system || signal.number == SIGHUP {
            self.child.send(signal.number);
        }
    }

    /// Stops this process after the command has stopped, so that the shell sees the stop.
    ///
    /// Doesn't stop if the command is being continued. The system may have stopped and continued
    /// both processes, and this process may go on first. No second continue would then follow.
    fn stop_too(&mut self) -> Result<()> {
        thread::sleep(CONTINUED_WITHIN);
        if self.child.is_stopped() {
            signals::stop()?;
            self.continued_at = Some(Instant::now());
        }
        Ok(())
    }

    fn lose(&mut self) {
        self.is_lost = true;
        let tree = || ProcessTree::of(self.child.id);
        match self.options.on_lost {
            OnLost::Ignore => {}
            OnLost::Kill => tree().kill(),
            OnLost::Term => {
                let tree = tree();
                tree.send(Sent::TERM);
                // A stopped process handles TERM only after it is continued.
                tree.send(Sent::CONT);
                self.kill_at = Some((Instant::now() + self.options.grace, tree));
            }
        }
    }

    fn kill(&mut self) {
        if let Some((_, tree)) = self.kill_at.take() {
            tree.kill();
        }
    }
}
