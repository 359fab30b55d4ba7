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

/// Restores the default action of a signal.
pub fn reset(number: c_int) -> io::Result<()> {
    // SAFETY: a system call that installs no handler function.
    match unsafe { libc::signal(number, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Changes the signal mask of this thread.
fn change_mask(how: c_int, numbers: &[c_int]) -> io::Result<()> {
    // SAFETY: all zeros is a valid value of the C struct. The set is owned by this function, and
    // an invalid number is refused and changes nothing. The previous mask isn't requested.
    let error = unsafe {
        let mut set: sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
        libc::pthread_sigmask(how, &set, ptr::null_mut())
    };
    match error {
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
