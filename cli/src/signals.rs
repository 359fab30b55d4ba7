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

/// Restores the default action of SIGCHLD, so that the system keeps the exit codes of children. It
/// keeps none if the parent process left SIGCHLD ignored.
pub fn keep_exit_codes() -> io::Result<()> {
    // SAFETY: a system call that installs no handler function.
    match unsafe { libc::signal(libc::SIGCHLD, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns true if this process leads its session, like the only command of an `ssh -t`.
pub fn is_session_leader() -> bool {
    process::getsid(None) == Ok(process::getpid())
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
