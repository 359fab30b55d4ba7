//! `redis-lock run`.
//!
//! The main thread makes all decisions. It reads events from a channel, one after the other. Other
//! threads wait for the lock, for signals and for the end of the command, and send these events.

mod command;
mod family;
mod lease;
mod news;

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
use crate::shown;
use crate::signals;
use command::Child;
use family::Family;
use lease::Lease;
use news::{News, Sender, Signal};

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
    let mut child = match command::fork(options) {
        Ok(child) => child,
        Err(error) => return Ok(not_started(options, &error)),
    };
    let (sender, news) = mpsc::channel();
    news::of_signals(sender.clone())?;
    connect(server, options, sender.clone());
    let lease = match connected(&child, &news)? {
        ControlFlow::Continue(lease) => lease,
        ControlFlow::Break(number) => return Ok(ended_by(number, child)),
    };
    let began = Instant::now();
    let fence = match waited(&lease, &child, &news)? {
        Wait::Granted(fence) => fence,
        Wait::NotGot => return Ok(ExitCode::from(options.conflict_exit_code)),
        Wait::Ended(number) => return Ok(ended_by(number, child)),
    };
    let granted = Instant::now();
    if options.verbose {
        shown::tell(format_args!(
            "got it after {:.1?}, fence {fence}",
            began.elapsed()
        ));
    }
    child.start(&lease.token(), fence, sender);
    let mut guarded = Guarded {
        child,
        lease: &lease,
        options,
        is_lost: false,
        end: None,
        went_on: None,
    };
    let code = guarded.until_it_ends(&news);
    if let Some(error) = guarded.child.failure() {
        lease.release();
        return Ok(not_started(options, &error));
    }
    let is_lost = !given_back(&lease, options, granted) || guarded.is_lost;
    if is_lost {
        guarded.tell_of_the_loss();
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
fn given_back(lease: &Lease, options: &Run, granted: Instant) -> bool {
    let at_least = options.at_least.unwrap_or_default();
    let rest = at_least.saturating_sub(granted.elapsed());
    if rest.is_zero() {
        return lease.release();
    }
    if options.verbose && !lease.is_lost() {
        shown::tell(format_args!("keeps it for another {rest:.1?}"));
    }
    lease.release_after(rest)
}

/// Connects on another thread, because a signal ends this process meanwhile. The result is sent as
/// an event.
fn connect(server: &Server, options: &Run, news: mpsc::Sender<News>) {
    let (server, options) = (server.clone(), options.clone());
    thread::spawn(move || {
        let lease = opened(&server, &options, news.clone());
        // The receiver may be gone after a signal.
        let _ = news.send(News::Connected(lease.map(Box::new)));
    });
}

fn opened(server: &Server, options: &Run, news: mpsc::Sender<News>) -> Result<Lease> {
    let mut lease = Lease::new(server, options, news)?;
    if options.verbose {
        tell_of_rivals(&mut lease, options)?;
    }
    Ok(lease)
}

fn tell_of_rivals(lease: &mut Lease, options: &Run) -> Result<()> {
    if let Some(rivals) = lease.rivals(options.key.as_bytes())? {
        shown::tell(rivals.trim_end());
    }
    Ok(())
}

/// Waits for the connection. Breaks with the number of the signal that ends this process.
fn connected(child: &Child, news: &Receiver<News>) -> Result<ControlFlow<i32, Box<Lease>>> {
    loop {
        match news.recv()? {
            News::Connected(lease) => return Ok(ControlFlow::Continue(lease?)),
            News::Signal(signal) if is_stop_or_continue(signal) => follow(signal, child)?,
            News::Signal(signal) => return Ok(ControlFlow::Break(signal.number)),
            News::Waited(_) | News::Stopped | News::Ended | News::Lost => {}
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
    NotGot,
    /// The number of the signal that ended the wait.
    Ended(i32),
}

fn waited(lease: &Lease, child: &Child, news: &Receiver<News>) -> Result<Wait> {
    lease.wait();
    loop {
        match news.recv()? {
            News::Waited(fence) => match fence? {
                None => return Ok(Wait::NotGot),
                // This process was stopped for so long that the lock has expired.
                Some(_) if lease.is_lost() => lease.wait(),
                Some(fence) => return Ok(Wait::Granted(fence)),
            },
            News::Signal(signal) if is_stop_or_continue(signal) => follow(signal, child)?,
            News::Signal(signal) => {
                give_up(lease, news);
                return Ok(Wait::Ended(signal.number));
            }
            News::Connected(_) | News::Stopped | News::Ended | News::Lost => {}
        }
    }
}

/// Cancels the wait. Also releases a grant that arrived at the last moment.
fn give_up(lease: &Lease, news: &Receiver<News>) {
    lease.cancel();
    // The senders live as long as the lease, so only the end of the wait ends this.
    while let Ok(next) = news.recv() {
        if matches!(next, News::Waited(_)) {
            lease.release();
            lease.settle();
            return;
        }
    }
}

fn not_started(options: &Run, error: &io::Error) -> ExitCode {
    let name = shown::line(&options.command[0].to_string_lossy());
    shown::tell(format_args!("{name}: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(CANNOT_RUN),
    }
}

/// A command that runs under the lock.
struct Guarded<'a> {
    child: Child,
    lease: &'a Lease,
    options: &'a Run,
    is_lost: bool,
    /// The processes to kill, and the time to kill them if they still run.
    end: Option<(Instant, Family)>,
    /// The last time when this process was continued after a stop.
    went_on: Option<Instant>,
}

impl Guarded<'_> {
    /// Handles events until the command has ended, and returns its exit code.
    fn until_it_ends(&mut self, news: &Receiver<News>) -> Result<u8> {
        loop {
            match self.next(news)? {
                Some(News::Ended) => break,
                Some(News::Signal(signal)) => self.pass_on(signal),
                Some(News::Stopped) => self.stop_too()?,
                Some(News::Lost) if self.lease.is_lost() => self.lose(),
                // The loss concerns an earlier grant.
                Some(News::Lost | News::Waited(_) | News::Connected(_)) => {}
                None => self.kill(),
            }
        }
        if let Some((at, family)) = self.end.take() {
            // The command's descendants have the same deadline as the command.
            family.until_gone(at);
            kill(family);
        }
        self.child.exit_code()
    }

    /// Returns the next event, or `None` if the time to kill comes first.
    fn next(&self, news: &Receiver<News>) -> Result<Option<News>> {
        let Some((at, _)) = &self.end else {
            return Ok(Some(news.recv()?));
        };
        match news.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(error).context("nobody tells of the command"),
        }
    }

    /// Sends a signal to the command, unless the command has received the same signal with its
    /// group.
    fn pass_on(&mut self, signal: Signal) {
        // The system also discards earlier stops when a process is continued.
        let is_over = self.went_on.is_some_and(|went_on| signal.at < went_on);
        if signal.number == libc::SIGTSTP && is_over {
            return;
        }
        let has_it = match signal.sender {
            // A hangup of the terminal reaches the leader of the session alone.
            Sender::System => signal.number != libc::SIGHUP || !signals::is_session_leader(),
            // A descendant may signal its whole group, like an editor that stops its group.
            Sender::Process(sender) => self.child.family().has(sender),
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
        self.went_on = Some(Instant::now());
        Ok(())
    }

    fn lose(&mut self) {
        self.is_lost = true;
        match self.options.on_lost {
            OnLost::Ignore => {}
            OnLost::Kill => self.end = Some((Instant::now(), self.child.family())),
            OnLost::Term => {
                let family = self.child.family();
                family.send(Sent::TERM);
                // A stopped process handles TERM only after it is continued.
                family.send(Sent::CONT);
                self.end = Some((Instant::now() + self.options.grace, family));
            }
        }
    }

    fn kill(&mut self) {
        if let Some((_, family)) = self.end.take() {
            kill(family);
        }
    }

    fn tell_of_the_loss(&self) {
        let key = shown::word(self.options.key.as_bytes());
        shown::tell(format_args!(
            "the lock {key} was lost while the command ran"
        ));
    }
}

/// Kills a family, and the processes that it started meanwhile.
fn kill(mut family: Family) {
    let end = Instant::now() + KILLED_WITHIN;
    family.send(Sent::KILL);
    while family.grow() && Instant::now() < end {
        family.send(Sent::KILL);
    }
}
