//! What this process does to itself upon signals, so that whoever started it sees what it expects: an end by
//! that signal, a stop.

use std::io;
use std::process::ExitCode;
use std::ptr;

use libc::{c_int, sigaction, SIGTSTP, SIG_DFL, SIG_IGN};

/// What a shell adds to the number of a signal to make an exit code.
const BY_SIGNAL: u8 = 128;

/// Ends the process by a signal. Answers only where the signal doesn't end it, with the exit code to
/// leave with instead.
pub fn die_of(number: c_int) -> ExitCode {
    // Where it can't be done the code says the same.
    let _ = signal_hook::low_level::emulate_default_handler(number);
    ExitCode::from(code_of(number))
}

/// The exit code that stands for an end by this signal.
pub fn code_of(number: c_int) -> u8 {
    BY_SIGNAL.wrapping_add(u8::try_from(number).unwrap_or_default())
}

/// Stops the process as ^Z would, until somebody continues it. Where nobody could, because no shell of its
/// session watches it, the system doesn't stop it.
pub fn stop() -> io::Result<()> {
    let own = disposition(SIGTSTP)?;
    let mut default = own;
    default.sa_sigaction = SIG_DFL;
    set_disposition(SIGTSTP, &default)?;
    let raised = signal_hook::low_level::raise(SIGTSTP);
    set_disposition(SIGTSTP, &own)?;
    raised
}

/// Whether whoever started this process wants a signal to be ignored, as nohup does.
pub fn is_ignored(number: c_int) -> io::Result<bool> {
    Ok(disposition(number)?.sa_sigaction == SIG_IGN)
}

fn disposition(number: c_int) -> io::Result<sigaction> {
    // SAFETY: all zeros is a value of the C struct, and it is written over.
    let mut current: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks alone; the struct is ours.
    match unsafe { libc::sigaction(number, ptr::null(), &mut current) } {
        0 => Ok(current),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_disposition(number: c_int, disposition: &sigaction) -> io::Result<()> {
    // SAFETY: what is set is what was there before, or the system's own default.
    match unsafe { libc::sigaction(number, disposition, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
