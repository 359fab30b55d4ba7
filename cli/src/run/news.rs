//! The events during a wait for the lock and while the command runs, in the order of their
//! occurrence.

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

/// The signals that are passed on to the command.
pub const PASSED_ON: [i32; 8] = [
    SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// An event.
pub enum News {
    /// The end of the wait: the fence of the grant, or `None` without a grant.
    Waited(Result<Option<i64>>),
    Signal(Signal),
    /// A stop of the command.
    Stopped,
    /// The end of the command.
    Ended,
    /// The loss of the lock.
    Lost,
}

/// A signal to this process.
#[derive(Clone, Copy)]
pub struct Signal {
    pub number: i32,
    pub sender: Sender,
    /// The time of arrival.
    pub at: Instant,
}

/// The sender of a signal.
#[derive(Clone, Copy)]
pub enum Sender {
    /// The system, because of a key on the terminal or a hangup. The whole group receives such a
    /// signal.
    System,
    Process(Pid),
    Unknown,
}

/// Starts to send signals as events. A signal that is ignored from the start stays ignored, here
/// and in the command.
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
    // On another thread, a signal would interrupt a read of the server's reply, because that read
    // has a timeout.
    signals::block(&caught)?;
    thread::spawn(move || {
        // If this failed, no signal would arrive at all, so a failure needs no report.
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

/// The time of the last signal of each kind.
struct Times {
    begin: Instant,
    /// The times, in nanoseconds since `begin`.
    of: Vec<(i32, Arc<AtomicU64>)>,
    /// True once a thread can receive the signals.
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

    /// Installs a handler that stores the time of each signal of a kind. Until `are_read` is set,
    /// the handler also takes the default action.
    fn note(&self, number: i32, time: Arc<AtomicU64>) -> io::Result<()> {
        let (begin, are_read) = (self.begin, Arc::clone(&self.are_read));
        let handler = move || {
            if !are_read.load(Ordering::SeqCst) {
                // A failure can't be reported here.
                let _ = emulate_default_handler(number);
            }
            let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            time.store(ns, Ordering::SeqCst);
        };
        // SAFETY: the handler reads the clock, reads and writes atomics, and calls a function that
        // is safe in handlers.
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
