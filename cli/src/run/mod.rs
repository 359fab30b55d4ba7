//! `redis-lock run`.
//!
//! One thread decides: it takes what happens from a channel, one thing after the other. Others wait for the
//! lock, for signals and for the end of the command, and tell it.

mod birth;
mod command;
mod family;
mod lease;
mod news;

use std::io;
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
use command::Running;
use family::Family;
use lease::Lease;
use news::{News, Sender, Signal};

/// As a shell ends where a command can't be run, and where it isn't there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long a process that was killed is looked at for others that it started meanwhile.
const KILLED_WITHIN: Duration = Duration::from_millis(100);

/// How long a process group takes at most until all of it go on that were continued together, or stand
/// still that were stopped.
const TOGETHER_WITHIN: Duration = Duration::from_millis(30);

/// How often it is looked at meanwhile whether the command goes on.
const LOOKS_EVERY: Duration = Duration::from_millis(2);

pub fn run(server: &Server, options: &Run) -> Result<ExitCode> {
    signals::keep_exit_codes()?;
    let (sender, news) = mpsc::channel();
    news::of_signals(sender.clone())?;
    let mut lease = Lease::new(server, options, sender.clone())?;
    if options.verbose {
        tell_of_rivals(&mut lease, options)?;
    }
    let began = Instant::now();
    let fence = match waited(&mut lease, &news)? {
        Wait::Granted(fence) => fence,
        Wait::NotGot => return Ok(ExitCode::from(options.conflict_exit_code)),
        Wait::Ended(number) => return Ok(signals::die_of(number)),
    };
    let granted = Instant::now();
    if options.verbose {
        shown::tell(format_args!(
            "got it after {:.1?}, fence {fence}",
            began.elapsed()
        ));
    }
    let running = match command::start(options, lease.token(), fence, sender) {
        Ok(running) => running,
        Err(error) => {
            lease.release();
            return Ok(not_started(options, &error));
        }
    };
    let mut guarded = Guarded {
        running,
        lease: &lease,
        options,
        is_lost: false,
        end: None,
        went_on: None,
    };
    let code = guarded.until_it_ends(&news);
    let is_lost = !given_back(&lease, options, granted) || guarded.is_lost;
    if is_lost {
        guarded.tell_of_the_loss();
    }
    Ok(match is_lost && options.on_lost != OnLost::Ignore {
        true => ExitCode::from(options.lost_exit_code),
        false => ExitCode::from(code?),
    })
}

/// Gives the lock back, or leaves it for what is left of `--at-least`; false if it had been lost. The server granted
/// the lock before `granted`, and counts the rest from later than now, so it is no shorter than asked.
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

fn tell_of_rivals(lease: &mut Lease, options: &Run) -> Result<()> {
    if let Some(rivals) = lease.rivals(options.key.as_bytes())? {
        shown::tell(rivals.trim_end());
    }
    Ok(())
}

/// How a wait for the lock ended.
enum Wait {
    Granted(i64),
    NotGot,
    /// By this signal.
    Ended(i32),
}

fn waited(lease: &mut Lease, news: &Receiver<News>) -> Result<Wait> {
    lease.wait();
    loop {
        match news.recv()? {
            News::Waited(fence) => match fence? {
                None => return Ok(Wait::NotGot),
                // This process stood still for so long that the lock is over again.
                Some(_) if lease.is_lost() => lease.wait(),
                Some(fence) => return Ok(Wait::Granted(fence)),
            },
            News::Signal(Signal {
                number: libc::SIGCONT,
                ..
            }) => {}
            News::Signal(Signal {
                number: libc::SIGTSTP,
                ..
            }) => signals::stop()?,
            News::Signal(signal) => {
                give_up(lease, news);
                return Ok(Wait::Ended(signal.number));
            }
            News::Stopped | News::Ended | News::Lost => {}
        }
    }
}

/// Leaves nothing behind: no place in the queue, and no grant that came at the last moment.
fn give_up(lease: &Lease, news: &Receiver<News>) {
    lease.cancel();
    let end = Instant::now() + lease::ANSWER_WITHIN;
    while let Ok(next) = news.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if matches!(next, News::Waited(_)) {
            lease.release();
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
    running: Running,
    lease: &'a Lease,
    options: &'a Run,
    is_lost: bool,
    /// What is killed, and when, unless it has ended by then.
    end: Option<(Instant, Family)>,
    /// When this process was continued last, after it had stopped.
    went_on: Option<Instant>,
}

impl Guarded<'_> {
    /// The exit code of the command, once it has ended.
    fn until_it_ends(&mut self, news: &Receiver<News>) -> Result<u8> {
        loop {
            match self.next(news)? {
                Some(News::Ended) => break,
                Some(News::Signal(signal)) => self.pass_on(signal),
                Some(News::Stopped) => self.stop_too()?,
                Some(News::Lost) if self.lease.is_lost() => self.lose(),
                // It was a grant before this one.
                Some(News::Lost) | Some(News::Waited(_)) => {}
                None => self.kill(),
            }
        }
        if let Some((at, family)) = self.end.take() {
            // What the command started has no more time than itself.
            family.until_gone(at);
            kill(family);
        }
        self.running.exit_code()
    }

    /// What happens next; none where it is time to kill before.
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

    /// What the command has by the same act isn't sent to it again.
    fn pass_on(&mut self, signal: Signal) {
        // As the system has it: whoever is continued is rid of the stops that came before.
        let is_over = self.went_on.is_some_and(|went_on| signal.at < went_on);
        if signal.number == libc::SIGTSTP && is_over {
            return;
        }
        let has_it = match signal.sender {
            Sender::System => {
                self.running.was_there(signal) && !self.running.has_missed(signal.number)
            }
            // As an editor does that stops its whole group.
            Sender::Process(sender) => self.running.family().has(sender),
            Sender::Unknown => false,
        };
        if !has_it || (signal.number == libc::SIGTSTP && self.missed_a_stop()) {
            self.running.send(signal.number);
        }
    }

    /// Whether a stop that was sent to the whole group came to the command as it was just being started, and was
    /// lost: only what it does tells.
    fn missed_a_stop(&self) -> bool {
        let began = Instant::now();
        while self.running.is_new() && !self.running.is_stopped() {
            if began.elapsed() > TOGETHER_WITHIN {
                return true;
            }
            thread::sleep(LOOKS_EVERY);
        }
        false
    }

    /// Stops as the command did, so that the shell sees it, unless it is being continued: where the system has
    /// stopped both and both are continued, this process may go on before the command does, and nobody would
    /// continue it a second time.
    fn stop_too(&mut self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < TOGETHER_WITHIN {
            if !self.running.is_stopped() {
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
            OnLost::Kill => self.end = Some((Instant::now(), self.running.family())),
            OnLost::Term => {
                let family = self.running.family();
                family.send(Sent::TERM);
                // One that is stopped wouldn't see it.
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

/// Kills them all, and what they started while they were killed.
fn kill(mut family: Family) {
    let end = Instant::now() + KILLED_WITHIN;
    family.send(Sent::KILL);
    while family.grow() && Instant::now() < end {
        family.send(Sent::KILL);
    }
}
