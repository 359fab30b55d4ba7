//! What can happen while a command runs or its lock is waited for, in the order in which it happens.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::Result;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use rustix::process::{self, Pid};
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
    /// Whether the command was sent it by the same act: typed on the terminal, it goes to the whole group.
    pub is_shared: bool,
}

/// Tells of signals from now on. Those that are ignored from the start stay so, here and in the command.
pub fn of_signals(news: Sender<News>) -> io::Result<()> {
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
                is_shared: is_shared(&origin),
            };
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Who is in our group and sends us a signal sends it to the group, or is the command itself.
fn is_shared(origin: &Origin) -> bool {
    let sender = origin
        .process
        .as_ref()
        .and_then(|sender| Pid::from_raw(sender.pid));
    match (origin.cause, sender) {
        (Cause::Kernel, _) => true,
        (_, Some(sender)) => {
            process::getpgid(Some(sender)).is_ok_and(|group| group == process::getpgrp())
        }
        (_, None) => false,
    }
}
