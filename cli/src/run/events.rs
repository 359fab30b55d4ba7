//! The events during a wait for the lock and while the command runs, in the order of their
//! occurrence.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use rustix::process::Pid;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::Cause;

use super::lease::Lease;
use crate::signals;

/// The signals that are passed on to the command.
pub const FORWARDED: [i32; 8] = [
    SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// An event.
pub enum Event {
    /// The end of connecting.
    Connected(Result<Box<Lease>>),
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
    /// signal, except for a hangup, which may reach only the leader of the session.
    System,
    Process(Pid),
    Unknown,
}

/// Starts to send signals as events. A signal that is ignored from the start stays ignored, here
/// and in the command.
pub fn watch_signals(events: mpsc::Sender<Event>) -> io::Result<()> {
    let mut caught = Vec::new();
    for number in FORWARDED {
        if !signals::is_ignored(number)? {
            caught.push(number);
        }
    }
    // Blocked before the handlers are set: a signal between a handler and its registration would be
    // lost. On another thread than the one below, a signal would also interrupt a read of the
    // server's reply, because that read has a timeout.
    signals::block(&caught)?;
    let mut signals = SignalsInfo::<WithOrigin>::new(&caught)?;
    thread::spawn(move || {
        // If this failed, no signal would arrive at all, so a failure needs no report.
        let _ = signals::unblock(&caught);
        for origin in signals.forever() {
            let signal = Signal {
                number: origin.signal,
                sender: sender(&origin),
                at: Instant::now(),
            };
            if events.send(Event::Signal(signal)).is_err() {
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
