//! Signal handling of this process.
//!
//! After a signal, the parent process sees the usual effect: an end by that signal, or a stop.

use std::io;
use std::process::ExitCode;
use std::ptr;

use libc::{c_int, sigaction, sigset_t, SIG_BLOCK, SIG_DFL, SIG_ERR, SIG_IGN, SIG_UNBLOCK};
use rustix::process::{self, Signal};

/// The number that a shell adds to a signal's number to form an exit code.
const BY_SIGNAL: u8 = 128;

/// A set of signals. Signal n is bit n - 1, like in /proc.
#[derive(Clone, Copy, Default, Debug)]
pub struct Signals(pub u64);

impl Signals {
    pub fn add(&mut self, number: c_int) {
        self.0 |= bit(number);
    }

    pub fn has(self, number: c_int) -> bool {
        self.0 & bit(number) != 0
    }

    /// Removes a signal. Returns true if the set contained it.
    pub fn take(&mut self, number: c_int) -> bool {
        let was_in = self.has(number);
        self.0 &= !bit(number);
        was_in
    }
}

fn bit(number: c_int) -> u64 {
    1 << (number - 1)
}

/// Ends the process by a signal. If the signal doesn't end the process, returns the exit code to
/// end with.
pub fn die_of(number: c_int) -> ExitCode {
    // If a call fails, the exit code carries the same information.
    let _ = unblock(&[number]);
    let _ = signal_hook::low_level::emulate_default_handler(number);
    ExitCode::from(code_of(number))
}

/// Returns the exit code for an end by this signal.
pub fn code_of(number: c_int) -> u8 {
    BY_SIGNAL.wrapping_add(u8::try_from(number).unwrap_or_default())
}

/// Stops the process until it is continued.
///
/// The stop is by SIGSTOP. SIGTSTP, the signal of ^Z, is handled here, so a stop by SIGTSTP would
/// have to remove the handler for a moment.
pub fn stop() -> io::Result<()> {
    Ok(process::kill_process(process::getpid(), Signal::STOP)?)
}

/// Blocks signals on this thread and on the threads that it starts.
pub fn block(numbers: &[c_int]) -> io::Result<()> {
    change_mask(SIG_BLOCK, numbers)
}

/// Unblocks signals on this thread.
pub fn unblock(numbers: &[c_int]) -> io::Result<()> {
    change_mask(SIG_UNBLOCK, numbers)
}

/// Returns the signals, from the given ones, that are pending for this thread or its process.
/// Allocates no memory.
pub fn pending(numbers: &[c_int]) -> io::Result<Signals> {
    let mut set = set_of(&[]);
    // SAFETY: the set is owned by this function.
    if unsafe { libc::sigpending(&mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut pending = Signals::default();
    for number in numbers {
        // SAFETY: the set is owned by this function, and was filled by the system.
        if unsafe { libc::sigismember(&set, *number) } == 1 {
            pending.add(*number);
        }
    }
    Ok(pending)
}

/// Restores the default action of a signal that this process handles. An ignored signal stays
/// ignored.
pub fn stop_handling(number: c_int) -> io::Result<()> {
    if is_ignored(number)? {
        return Ok(());
    }
    // SAFETY: a system call that installs no handler function.
    match unsafe { libc::signal(number, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Restores the default action of SIGCHLD, so that the system keeps the exit codes of children. It
/// keeps none if the parent process left SIGCHLD ignored.
pub fn keep_exit_codes() -> io::Result<()> {
    // SAFETY: a system call that installs no handler function.
    match unsafe { libc::signal(libc::SIGCHLD, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn set_of(numbers: &[c_int]) -> sigset_t {
    // SAFETY: all zeros is a valid value of the C struct, and it is overwritten.
    let mut set: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is owned by this function; an invalid number is refused and changes nothing.
    unsafe {
        libc::sigemptyset(&mut set);
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
    }
    set
}

/// Changes the signal mask of this thread.
fn change_mask(how: c_int, numbers: &[c_int]) -> io::Result<()> {
    let set = set_of(numbers);
    // SAFETY: the set is owned by this function, and the previous mask isn't requested.
    match unsafe { libc::pthread_sigmask(how, &set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Returns true if a signal is ignored. The parent process may have asked for that, like nohup.
pub fn is_ignored(number: c_int) -> io::Result<bool> {
    // SAFETY: all zeros is a valid value of the C struct, and it is overwritten.
    let mut current: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only reads the action, into a struct owned by this function.
    match unsafe { libc::sigaction(number, ptr::null(), &mut current) } {
        0 => Ok(current.sa_sigaction == SIG_IGN),
        _ => Err(io::Error::last_os_error()),
    }
}
