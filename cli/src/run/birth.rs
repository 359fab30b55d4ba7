//! Detects if a command has received a signal that was sent to its whole process group.
//!
//! A process belongs to its group from its fork on, long before the parent knows that the command
//! has started. So the new process itself reports its pending signals and the time, while it still
//! blocks signals. A later signal isn't lost: it acts on the command like on any program that has
//! just begun.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::news::{Signal, PASSED_ON};
use crate::signals::{self, Signals};

/// The length of a new process's report: nanoseconds and signals, eight bytes each.
const REPORT_LEN: usize = 16;

/// The start of a process, and the signals around it.
pub struct Birth {
    /// The time when the process was about to unblock signals.
    at: Instant,
    /// The signals that were pending for the process at that time.
    reached: Signals,
    /// The signals that were pending for this process before the new process existed.
    earlier: Signals,
}

/// Returns true if a signal, one of `PASSED_ON`, ends a process that doesn't handle it.
pub fn ends(number: i32) -> bool {
    ![libc::SIGTSTP, libc::SIGCONT].contains(&number)
}

/// Starts a process. The calling thread must block the signals of `PASSED_ON`. The new process
/// unblocks them.
pub fn spawn(mut command: Command) -> io::Result<(Child, Birth)> {
    let (mut report, writer) = io::pipe()?;
    let began = Instant::now();
    let tell = move || {
        for number in PASSED_ON.into_iter().filter(|number| ends(*number)) {
            signals::stop_handling(number)?;
        }
        let reached = signals::pending(&PASSED_ON)?;
        (&writer).write_all(&written(began.elapsed(), reached))?;
        signals::unblock(&PASSED_ON)
    };
    // SAFETY: system calls that allocate no memory.
    unsafe { command.pre_exec(tell) };
    let earlier = signals::pending(&PASSED_ON)?;
    let child = command.spawn()?;
    // Closes the writing end of the pipe in this process too.
    drop(command);
    let mut bytes = [0; REPORT_LEN];
    let (after, reached) = match report.read_exact(&mut bytes) {
        Ok(()) => read(bytes),
        // The process was killed before its report, so it needs no further signals.
        Err(_) => (Duration::ZERO, Signals::default()),
    };
    let birth = Birth {
        at: began + after,
        reached,
        earlier,
    };
    Ok((child, birth))
}

fn written(after: Duration, reached: Signals) -> [u8; REPORT_LEN] {
    let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    (u128::from(ns) << u64::BITS | u128::from(reached.0)).to_ne_bytes()
}

fn read(bytes: [u8; REPORT_LEN]) -> (Duration, Signals) {
    let both = u128::from_ne_bytes(bytes);
    let low = |bits: u128| (bits & u128::from(u64::MAX)) as u64;
    let after = Duration::from_nanos(low(both >> u64::BITS));
    (after, Signals(low(both)))
}

impl Birth {
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Returns true if a signal to the group also reached the new process. Call it for all signals
    /// in the order of their arrival.
    pub fn had(&mut self, signal: Signal) -> bool {
        !self.earlier.take(signal.number)
            && (signal.at >= self.at || self.reached.has(signal.number))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::sync::Arc;

    use libc::{SIGINT, SIGTERM};

    use super::super::news::Sender;
    use super::*;

    fn signals(numbers: &[i32]) -> Signals {
        let mut signals = Signals::default();
        for number in numbers {
            signals.add(*number);
        }
        signals
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::null());
        command
    }

    #[test]
    fn who_had_a_signal_as_a_table() {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        let began = Instant::now();
        let at = began + second;
        for (earlier, reached, came, had) in [
            (&[][..], &[][..], at - ms, false),
            (&[], &[], at, true),
            (&[], &[], at + ms, true),
            (&[], &[SIGINT], at - ms, true),
            (&[], &[SIGTERM], at - ms, false),
            (&[SIGINT], &[], at + ms, false),
            (&[SIGTERM], &[], at + ms, true),
            (&[SIGINT], &[SIGINT], at + ms, false),
        ] {
            let (earlier, reached) = (signals(earlier), signals(reached));
            let mut birth = Birth {
                at,
                reached,
                earlier,
            };
            let signal = Signal {
                number: SIGINT,
                sender: Sender::System,
                at: came,
            };
            assert_eq!(birth.had(signal), had, "{earlier:?} {reached:?}");
            let next = Signal {
                at: at + second,
                ..signal
            };
            assert!(birth.had(next), "a pending signal counts once");
        }
    }

    #[test]
    fn a_report_is_read_as_it_is_written() {
        for after in [Duration::ZERO, Duration::from_nanos(u64::MAX)] {
            for reached in [signals(&[]), signals(&PASSED_ON)] {
                let (after_read, reached_read) = read(written(after, reached));
                assert_eq!(after_read, after);
                assert_eq!(reached_read.0, reached.0);
            }
        }
    }

    /// Starts a second process that holds the pipe by which `spawn` notices the start of the child.
    #[test]
    fn a_parent_that_learns_late_knows_when_it_began() {
        let late = Duration::from_millis(300);
        let mut command = shell("exit 4");
        let keep = move || {
            // SAFETY: only system calls, and the new process ends by a system call.
            unsafe {
                if libc::fork() == 0 {
                    libc::poll(std::ptr::null_mut(), 0, late.as_millis() as i32);
                    libc::_exit(0);
                }
            }
            Ok(())
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(keep) };
        let began = Instant::now();
        let (mut child, birth) = spawn(command).expect("a shell");
        assert!(began.elapsed() >= late, "nothing made it late");
        assert!(birth.at() >= began);
        assert!(birth.at() < began + late / 2, "{:?}", birth.at() - began);
        assert_eq!(child.wait().expect("its end").code(), Some(4));
    }

    #[test]
    fn what_comes_before_its_program_runs_ends_it_and_is_known_to_have_reached_it() {
        signal_hook::flag::register(SIGINT, Arc::default()).expect("it is handled here");
        signals::block(&PASSED_ON).expect("a mask");
        let mut command = shell("exit 4");
        let interrupt = || {
            // SAFETY: a system call.
            unsafe { libc::raise(SIGINT) };
            Ok(())
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(interrupt) };
        let (mut child, mut birth) = spawn(command).expect("a shell");
        assert_eq!(child.wait().expect("its end").signal(), Some(SIGINT));
        let before = birth.at() - Duration::from_millis(1);
        for (number, had) in [(SIGINT, true), (SIGTERM, false)] {
            let signal = Signal {
                number,
                sender: Sender::System,
                at: before,
            };
            assert_eq!(birth.had(signal), had, "{number}");
        }
    }

    #[test]
    fn what_waits_here_came_before_it() {
        signals::block(&PASSED_ON).expect("a mask");
        // SAFETY: a system call that sends the signal to this thread only.
        unsafe { libc::raise(SIGTERM) };
        let (mut child, mut birth) = spawn(shell("exit 4")).expect("a shell");
        assert_eq!(child.wait().expect("its end").code(), Some(4));
        let signal = Signal {
            number: SIGTERM,
            sender: Sender::System,
            at: Instant::now(),
        };
        assert!(!birth.had(signal));
        assert!(birth.had(signal));
    }
}
