
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub mod mutant {
    //! The choice of a mutant. `build.rs` appends this module to the library.
    //!
    //! 1. `MUTANTS_ACTIVE` is the number of the mutant. `MUTANTS_RECORD` instead is a file, to which
    //!    the numbers of all mutants are written that are reached.
    //! 2. `MUTANTS_FUEL` is the number of choices after which the program exits with 97, because a
    //!    loop is endless.
    //! 3. Nothing here allocates, because the module's allocator has mutants too, and needs a server.

    use std::ffi::{c_char, CStr, OsStr};
    use std::fmt::Arguments;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering::Relaxed};
    use std::sync::OnceLock;

    extern "C" {
        fn getenv(name: *const c_char) -> *const c_char;
    }

    const UNKNOWN: usize = usize::MAX;
    const RECORD: usize = usize::MAX - 1;
    static ACTIVE: AtomicUsize = AtomicUsize::new(UNKNOWN);
    static FUEL: AtomicU64 = AtomicU64::new(0);
    static SEEN: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

    /// Returns the number of the mutant that is played, 0 for none. A constant is as it is.
    #[inline]
    pub const fn at(first: usize, count: usize) -> usize {
        std::intrinsics::const_eval_select((first, count), at_compile_time, at_run_time)
    }

    const fn at_compile_time(_: usize, _: usize) -> usize {
        0
    }

    #[inline]
    fn at_run_time(first: usize, count: usize) -> usize {
        let fuel = FUEL.load(Relaxed);
        FUEL.store(fuel.wrapping_sub(1), Relaxed);
        let active = ACTIVE.load(Relaxed);
        if fuel == 0 || active >= RECORD {
            return seldom(first, count, active);
        }
        active
    }

    #[cold]
    fn seldom(first: usize, count: usize, active: usize) -> usize {
        match active {
            UNKNOWN => {
                let record = variable(c"MUTANTS_RECORD").is_some();
                let active = number(c"MUTANTS_ACTIVE").unwrap_or(0) as usize;
                FUEL.store(number(c"MUTANTS_FUEL").unwrap_or(u64::MAX), Relaxed);
                ACTIVE.store(if record { RECORD } else { active }, Relaxed);
                at_run_time(first, count)
            }
            RECORD => {
                record(first, count);
                0
            }
            // An endless loop.
            active => {
                std::process::exit(if active == 0 { 98 } else { 97 });
            }
        }
    }

    fn record(first: usize, count: usize) {
        if SEEN[first].swap(1, Relaxed) == 0 {
            line(format_args!("{first} {count}\n"));
        }
        let calls = u64::MAX - FUEL.load(Relaxed);
        if calls.is_power_of_two() {
            line(format_args!("calls {calls}\n"));
        }
    }

    fn line(line: Arguments<'_>) {
        static FILE: OnceLock<File> = OnceLock::new();
        let mut file = FILE.get_or_init(|| {
            let path = OsStr::from_bytes(variable(c"MUTANTS_RECORD").unwrap_or_default().to_bytes());
            // Every server of a test adds to it.
            let mut options = File::options();
            options.create(true).append(true).open(path).expect("a file for the record")
        });
        let mut text = [0; 64];
        let mut rest = &mut text[..];
        rest.write_fmt(line).expect("a short line");
        let free = rest.len();
        file.write_all(&text[..text.len() - free]).expect("a line of the record");
    }

    fn number(name: &CStr) -> Option<u64> {
        variable(name)?.to_str().ok()?.parse().ok()
    }

    /// Returns a variable of the environment. `std::env` would copy it to new memory.
    fn variable(name: &CStr) -> Option<&'static CStr> {
        // SAFETY: both are strings that end with 0, and neither a server nor a test changes its own
        // environment while this runs.
        let text = unsafe { getenv(name.as_ptr()) };
        // SAFETY: as above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    }
}
