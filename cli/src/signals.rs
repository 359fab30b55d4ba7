//! What this process does to itself upon signals, so that whoever started it sees what it expects: an end by
//! that signal, a stop.

use std::io;
use std::process::ExitCode;
use std::ptr;

use libc::{c_int, sigaction, sigset_t, SIG_BLOCK, SIG_DFL, SIG_ERR, SIG_IGN, SIG_UNBLOCK};
use rustix::process::{self, Signal};

/// What a shell adds to the number of a signal to make an exit code.
const BY_SIGNAL: u8 = 128;

/// Some signals: signal n is bit n - 1, as the system writes them in /proc.
#[derive(Clone, Copy, Default, Debug)]
pub struct Signals(pub u64);

impl Signals {
    pub fn add(&mut self, number: c_int) {
        self.0 |= bit(number);
    }

    pub fn has(self, number: c_int) -> bool {
        self.0 & bit(number) != 0
    }

    /// Takes one out, and tells whether it was in.
    pub fn take(&mut self, number: c_int) -> bool {
        let was_in = self.has(number);
        self.0 &= !bit(number);
        was_in
    }
}

fn bit(number: c_int) -> u64 {
    1 << (number - 1)
}

/// Ends the process by a signal. Answers only where the signal doesn't end it, with the exit code to
/// leave with instead.
pub fn die_of(number: c_int) -> ExitCode {
    // Where it can't be done the code says the same.
    let _ = unblock(&[number]);
    let _ = signal_hook::low_level::emulate_default_handler(number);
    ExitCode::from(code_of(number))
}

/// The exit code that stands for an end by this signal.
pub fn code_of(number: c_int) -> u8 {
    BY_SIGNAL.wrapping_add(u8::try_from(number).unwrap_or_default())
}

/// Stops the process until somebody continues it. Not by the signal that ^Z sends: that one is handled here,
/// and for a moment it would have to be handled otherwise.
pub fn stop() -> io::Result<()> {
    Ok(process::kill_process(process::getpid(), Signal::STOP)?)
}

/// Leaves signals to other threads, here and on the threads that this one starts.
pub fn block(numbers: &[c_int]) -> io::Result<()> {
    change_mask(SIG_BLOCK, numbers)
}

/// Takes them here again.
pub fn unblock(numbers: &[c_int]) -> io::Result<()> {
    change_mask(SIG_UNBLOCK, numbers)
}

/// Those of some signals that have come to this thread or its process, and that nobody has taken yet. It asks for no
/// memory.
pub fn pending(numbers: &[c_int]) -> io::Result<Signals> {
    let mut set = set_of(&[]);
    // SAFETY: the set is ours.
    if unsafe { libc::sigpending(&mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut pending = Signals::default();
    for number in numbers {
        // SAFETY: the set is ours, and was filled by the system.
        if unsafe { libc::sigismember(&set, *number) } == 1 {
            pending.add(*number);
        }
    }
    Ok(pending)
}

/// Has a signal that this process handles do what it does by default. One that is ignored stays so.
pub fn stop_handling(number: c_int) -> io::Result<()> {
    if is_ignored(number)? {
        return Ok(());
    }
    // SAFETY: a system call that names no function of ours.
    match unsafe { libc::signal(number, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Lets this process learn how its children end. If the process that started it ignores SIGCHLD, the system keeps no
/// exit codes.
pub fn keep_exit_codes() -> io::Result<()> {
    // SAFETY: a system call that names no function of ours.
    match unsafe { libc::signal(libc::SIGCHLD, SIG_DFL) } {
        SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn set_of(numbers: &[c_int]) -> sigset_t {
    // SAFETY: all zeros is a value of the C struct, and it is written over.
    let mut set: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; a number that is none is refused and changes nothing.
    unsafe {
        libc::sigemptyset(&mut set);
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
    }
    set
}

/// Changes which signals this thread takes.
fn change_mask(how: c_int, numbers: &[c_int]) -> io::Result<()> {
    let set = set_of(numbers);
    // SAFETY: the set is ours, and what was set before isn't asked for.
    match unsafe { libc::pthread_sigmask(how, &set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether whoever started this process wants a signal to be ignored, as nohup does.
pub fn is_ignored(number: c_int) -> io::Result<bool> {
    // SAFETY: all zeros is a value of the C struct, and it is written over.
    let mut current: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks alone; the struct is ours.
    match unsafe { libc::sigaction(number, ptr::null(), &mut current) } {
        0 => Ok(current.sa_sigaction == SIG_IGN),
        _ => Err(io::Error::last_os_error()),
    }
}
