//! What can happen while a command runs or its lock is waited for, in the order in which it happens.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use rustix::process::Pid;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::Cause;
use signal_hook::low_level::{emulate_default_handler, register};

use crate::signals;

/// What is passed on to the command.
pub const PASSED_ON: [i32; 8] = [
    SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// One thing that happened.
pub enum News {
    /// The wait for the lock is over: its fence, or none where it wasn't got.
    Waited(Result<Option<i64>>),
    Signal(Signal),
    /// The command was stopped.
    Stopped,
    /// The command ended.
    Ended,
    /// The lock was lost.
    Lost,
}

/// A signal that this process was sent.
#[derive(Clone, Copy)]
pub struct Signal {
    pub number: i32,
    pub sender: Sender,
    /// When it came.
    pub at: Instant,
}

/// Where a signal came from.
#[derive(Clone, Copy)]
pub enum Sender {
    /// The system: it was typed on the terminal, or that was hung up. The whole group was sent it.
    System,
    Process(Pid),
    Unknown,
}

/// Tells of signals from now on. Those that are ignored from the start stay so, here and in the command.
pub fn of_signals(news: mpsc::Sender<News>) -> io::Result<()> {
    let mut caught = Vec::new();
    for number in PASSED_ON {
        if !signals::is_ignored(number)? {
            caught.push(number);
        }
    }
    let times = Arc::new(Times::of(&caught)?);
    let mut signals = SignalsInfo::<WithOrigin>::new(&caught)?;
    times.are_read.store(true, Ordering::SeqCst);
    // On other threads a signal would cut answers of the server off: those are waited for with a time limit.
    signals::block(&caught)?;
    thread::spawn(move || {
        // Without this no signal would come at all, so there is nothing to be told of a failure.
        let _ = signals::unblock(&caught);
        for origin in signals.forever() {
            let signal = Signal {
                number: origin.signal,
                sender: sender(&origin),
                at: times.of_last(origin.signal),
            };
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// When the last signal of each kind came.
struct Times {
    begin: Instant,
    /// In nanoseconds since then.
    of: Vec<(i32, Arc<AtomicU64>)>,
    /// Whether somebody is there to be told of signals.
    are_read: Arc<AtomicBool>,
}

impl Times {
    fn of(caught: &[i32]) -> io::Result<Times> {
        let mut times = Times {
            begin: Instant::now(),
            of: Vec::new(),
            are_read: Arc::default(),
        };
        for number in caught.iter().copied() {
            let time = Arc::default();
            times.note(number, Arc::clone(&time))?;
            times.of.push((number, time));
        }
        Ok(times)
    }

    /// Has the time of each signal of a kind noted. As long as nobody is told of it, it does what it does by
    /// default.
    fn note(&self, number: i32, time: Arc<AtomicU64>) -> io::Result<()> {
        let (begin, are_read) = (self.begin, Arc::clone(&self.are_read));
        let handler = move || {
            if !are_read.load(Ordering::SeqCst) {
                // Nobody is there to be told of a failure either.
                let _ = emulate_default_handler(number);
            }
            let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            time.store(ns, Ordering::SeqCst);
        };
        // SAFETY: it asks for the time, reads and writes atomics, and calls what is made to be
        // called in a handler.
        unsafe { register(number, handler) }.map(drop)
    }

    fn of_last(&self, number: i32) -> Instant {
        let time = self.of.iter().find(|(known, _)| *known == number);
        let ns = time.map_or(0, |(_, time)| time.load(Ordering::SeqCst));
        self.begin + Duration::from_nanos(ns)
    }
}

fn sender(origin: &Origin) -> Sender {
    let process = origin
        .process
        .as_ref()
        .and_then(|sender| Pid::from_raw(sender.pid));
    match (origin.cause, process) {
        (Cause::Kernel, _) => Sender::System,
        (_, Some(process)) => Sender::Process(process),
        (_, None) => Sender::Unknown,
    }
}
