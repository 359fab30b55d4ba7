//! The events during a wait for the lock and while the command runs, in the order of their
//! occurrence.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Instant;

use anyhow::Result;
use libc::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::Cause;

use crate::signals;

/// The signals that are forwarded to the command.
pub const FORWARDED: [i32; 8] = [
    SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// An event.
pub enum Event {
    /// The end of the wait: the fence of the grant, or `None` without a grant.
    Waited(Result<Option<i64>>),
    Signal(Signal),
    /// A stop of the command by the terminal or a shell.
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
    /// True if the system sent it, because of a key on the terminal or a hangup.
    pub is_from_system: bool,
    /// The time of arrival.
    pub at: Instant,
}

/// Starts to send signals as events. All threads that start later block these signals. A signal that
/// is ignored from the start stays ignored, here and in the command.
pub fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut caught = Vec::new();
    for number in FORWARDED {
        if !signals::is_ignored(number)? {
            caught.push(number);
        }
    }
    // Blocked before the handlers are set, because a signal between a handler and its registration
    // would be lost.
    signals::block(&caught)?;
    let mut info = SignalsInfo::<WithOrigin>::new(&caught)?;
    thread::spawn(move || {
        // If this failed, no signal would arrive at all, so a failure needs no report.
        let _ = signals::unblock(&caught);
        for origin in info.forever() {
            let signal = Signal {
                number: origin.signal,
                is_from_system: matches!(origin.cause, Cause::Kernel),
                at: Instant::now(),
            };
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
