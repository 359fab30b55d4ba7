//! What can happen while a command runs or its lock is waited for, in the order in which it happens.

use std::io;
use std::sync::mpsc;
use std::thread;

use anyhow::Result;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use rustix::process::Pid;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::Cause;

use crate::signals;

const PASSED_ON: [i32; 8] = [
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
    let mut signals = SignalsInfo::<WithOrigin>::new(caught)?;
    thread::spawn(move || {
        for origin in signals.forever() {
            let signal = Signal {
                number: origin.signal,
                sender: sender(&origin),
            };
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
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
