//! `redis-lock run`.
//!
//! The main thread makes all decisions. It reads events from a channel, one after the other. Other
//! threads wait for the lock, for signals and for the end of the command, and send these events.

mod events;
mod lease;
mod process;
mod process_tree;

use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal as Sent;

use crate::arguments::{OnLost, Run, Server};
use crate::output;
use crate::signals;
use events::{Event, Sender, Signal};
use lease::Lease;
use process::Child;
use process_tree::ProcessTree;

/// The exit codes of a shell if a command can't be run or doesn't exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The longest time to look for new children of a process that was killed.
const KILLED_WITHIN: Duration = Duration::from_millis(100);

/// The longest time until all processes of a group have stopped or continued after a signal to the
/// group.
const TOGETHER_WITHIN: Duration = Duration::from_millis(30);

/// The interval between two looks at the state of the command in that time.
const LOOKS_EVERY: Duration = Duration::from_millis(2);

pub fn run(server: &Server, options: &Run) -> Result<ExitCode> {
    signals::keep_exit_codes()?;
    let mut child = match process::fork(options) {
        Ok(child) => child,
        Err(error) => return Ok(not_started(options, &error)),
    };
    let (sender, events) = mpsc::channel();
    events::watch_signals(sender.clone())?;
    connect(server, options, sender.clone());
    let lease = match connected(&child, &events)? {
        ControlFlow::Continue(lease) => lease,
        ControlFlow::Break(number) => return Ok(ended_by(number, child)),
    };
    let began = Instant::now();
    let fence = match waited(&lease, &child, &events)? {
        Wait::Granted(fence) => fence,
        Wait::NotGranted => return Ok(ExitCode::from(options.conflict_exit_code)),
        Wait::Ended(number) => return Ok(ended_by(number, child)),
    };
    let granted = Instant::now();
    if options.verbose {
        output::log(format_args!(
            "got it after {:.1?}, fence {fence}",
            began.elapsed()
        ));
    }
    child.start(&lease.token(), fence, sender);
    let mut supervisor = Supervisor {
        child,
        lease: &lease,
        options,
        is_lost: false,
        end: None,
        continued_at: None,
    };
    let code = supervisor.until_it_ends(&events);
    if let Some(error) = supervisor.child.failure() {
        lease.release();
        return Ok(not_started(options, &error));
    }
    let is_lost = !release(&lease, options, granted) || supervisor.is_lost;
    if is_lost {
        supervisor.log_loss();
    }
    Ok(match is_lost && options.on_lost != OnLost::Ignore {
        true => ExitCode::from(options.lost_exit_code),
        false => ExitCode::from(code?),
    })
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

/// Connects on another thread, because a signal ends this process meanwhile. The result is sent as
/// an event.
fn connect(server: &Server, options: &Run, events: mpsc::Sender<Event>) {
    let (server, options) = (server.clone(), options.clone());
    thread::spawn(move || {
        let lease = opened(&server, &options, events.clone());
        // The receiver may be gone after a signal.
        let _ = events.send(Event::Connected(lease.map(Box::new)));
    });
}

fn opened(server: &Server, options: &Run, events: mpsc::Sender<Event>) -> Result<Lease> {
    let mut lease = Lease::new(server, options, events)?;
    if options.verbose {
        log_contenders(&mut lease, options)?;
    }
    Ok(lease)
}

fn log_contenders(lease: &mut Lease, options: &Run) -> Result<()> {
    if let Some(contenders) = lease.contenders(options.key.as_bytes())? {
        output::log(contenders.trim_end());
    }
    Ok(())
}

/// Waits for the connection. Breaks with the number of the signal that ends this process.
fn connected(child: &Child, events: &Receiver<Event>) -> Result<ControlFlow<i32, Box<Lease>>> {
    loop {
        match events.recv()? {
            Event::Connected(lease) => return Ok(ControlFlow::Continue(lease?)),
            Event::Signal(signal) if is_stop_or_continue(signal) => follow(signal, child)?,
            Event::Signal(signal) => return Ok(ControlFlow::Break(signal.number)),
            Event::Waited(_) | Event::Stopped | Event::Ended | Event::Lost => {}
        }
    }
}

fn ended_by(number: i32, child: Child) -> ExitCode {
    drop(child);
    signals::die_of(number)
}

fn is_stop_or_continue(signal: Signal) -> bool {
    [libc::SIGTSTP, libc::SIGCONT].contains(&signal.number)
}

/// Stops this process if the signal says so, before the command has begun.
fn follow(signal: Signal, child: &Child) -> Result<()> {
    if signal.number == libc::SIGTSTP {
        signals::stop()?;
    }
    // A stop of the group has stopped the command's process too.
    child.send(libc::SIGCONT);
    Ok(())
}

/// The outcome of a wait for the lock.
enum Wait {
    Granted(i64),
    NotGranted,
    /// The number of the signal that ended the wait.
    Ended(i32),
}

fn waited(lease: &Lease, child: &Child, events: &Receiver<Event>) -> Result<Wait> {
    lease.wait();
    loop {
        match events.recv()? {
            Event::Waited(fence) => match fence? {
                None => return Ok(Wait::NotGranted),
                // This process was stopped for so long that the lock has expired.
                Some(_) if lease.is_lost() => lease.wait(),
                Some(fence) => return Ok(Wait::Granted(fence)),
            },
            Event::Signal(signal) if is_stop_or_continue(signal) => follow(signal, child)?,
            Event::Signal(signal) => {
                cancel(lease, events);
                return Ok(Wait::Ended(signal.number));
            }
            Event::Connected(_) | Event::Stopped | Event::Ended | Event::Lost => {}
        }
    }
}

/// Cancels the wait. Also releases a grant that arrived at the last moment.
fn cancel(lease: &Lease, events: &Receiver<Event>) {
    lease.cancel();
    // The senders live as long as the lease, so only the end of the wait ends this.
    while let Ok(next) = events.recv() {
        if matches!(next, Event::Waited(_)) {
            lease.release();
            lease.settle();
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

/// A command that runs under the lock.
struct Supervisor<'a> {
    child: Child,
    lease: &'a Lease,
    options: &'a Run,
    is_lost: bool,
    /// The processes to kill, and the time to kill them if they still run.
    end: Option<(Instant, ProcessTree)>,
    /// The last time when this process was continued after a stop.
    continued_at: Option<Instant>,
}

impl Supervisor<'_> {
    /// Handles events until the command has ended, and returns its exit code.
    fn until_it_ends(&mut self, events: &Receiver<Event>) -> Result<u8> {
        loop {
            match self.next(events)? {
                Some(Event::Ended) => break,
                Some(Event::Signal(signal)) => self.forward(signal),
                Some(Event::Stopped) => self.stop_too()?,
                Some(Event::Lost) if self.lease.is_lost() => self.lose(),
                // The loss concerns an earlier grant.
                Some(Event::Lost | Event::Waited(_) | Event::Connected(_)) => {}
                None => self.kill(),
            }
        }
        if let Some((at, tree)) = self.end.take() {
            // The command's descendants have the same deadline as the command.
            tree.until_gone(at);
            kill(tree);
        }
        self.child.exit_code()
    }

    /// Returns the next event, or `None` if the time to kill comes first.
    fn next(&self, events: &Receiver<Event>) -> Result<Option<Event>> {
        let Some((at, _)) = &self.end else {
            return Ok(Some(events.recv()?));
        };
        match events.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(events) => Ok(Some(events)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(error).context("no thread watches the command"),
        }
    }

    /// Sends a signal to the command, unless the command has received the same signal with its
    /// group.
    fn forward(&mut self, signal: Signal) {
        // The system also discards earlier stops when a process is continued.
        let is_over = self
            .continued_at
            .is_some_and(|continued_at| signal.at < continued_at);
        if signal.number == libc::SIGTSTP && is_over {
            return;
        }
        let has_it = match signal.sender {
            // A hangup of the terminal reaches the leader of the session alone.
            Sender::System => signal.number != libc::SIGHUP || !signals::is_session_leader(),
            // A descendant may signal its whole group, like an editor that stops its group.
            Sender::Process(sender) => self.child.process_tree().has(sender),
            Sender::Unknown => false,
        };
        if !has_it {
            self.child.send(signal.number);
        }
    }

    /// Stops this process after the command has stopped, so that the shell sees the stop.
    ///
    /// Doesn't stop if the command is being continued. The system may have stopped and continued
    /// both processes, and this process may go on first. No second continue would then follow.
    fn stop_too(&mut self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < TOGETHER_WITHIN {
            if !self.child.is_stopped() {
                return Ok(());
            }
            thread::sleep(LOOKS_EVERY);
        }
        signals::stop()?;
        self.continued_at = Some(Instant::now());
        Ok(())
    }

    fn lose(&mut self) {
        self.is_lost = true;
        match self.options.on_lost {
            OnLost::Ignore => {}
            OnLost::Kill => self.end = Some((Instant::now(), self.child.process_tree())),
            OnLost::Term => {
                let tree = self.child.process_tree();
                tree.send(Sent::TERM);
                // A stopped process handles TERM only after it is continued.
                tree.send(Sent::CONT);
                self.end = Some((Instant::now() + self.options.grace, tree));
            }
        }
    }

    fn kill(&mut self) {
        if let Some((_, tree)) = self.end.take() {
            kill(tree);
        }
    }

    fn log_loss(&self) {
        let key = output::word(self.options.key.as_bytes());
        output::log(format_args!(
            "the lock {key} was lost while the command ran"
        ));
    }
}

/// Kills a tree, and the processes that it started meanwhile.
fn kill(mut tree: ProcessTree) {
    let end = Instant::now() + KILLED_WITHIN;
    tree.send(Sent::KILL);
    while tree.grow() && Instant::now() < end {
        tree.send(Sent::KILL);
    }
}
