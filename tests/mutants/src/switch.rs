
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub mod mutant {
    //! The choice of a mutant. `build.rs` appends this module to the library.
    //!
    //! 1. `MUTANTS_ACTIVE` is the number of the mutant. `MUTANTS_RECORD` instead is a file, to which
    //!    the numbers of all mutants are written that are reached.
    //! 2. `MUTANTS_FUEL` is the number of choices after which the program exits with 97, because a
    //!    loop is endless.

    use std::io::Write;
    use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering::Relaxed};
    use std::sync::OnceLock;

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
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        match active {
            UNKNOWN => {
                let record = std::env::var_os("MUTANTS_RECORD").is_some();
                let active = number("MUTANTS_ACTIVE").unwrap_or(0) as usize;
                FUEL.store(number("MUTANTS_FUEL").unwrap_or(u64::MAX), Relaxed);
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
            line(&format!("{first} {count}\n"));
        }
        let calls = u64::MAX - FUEL.load(Relaxed);
        if calls.is_power_of_two() {
            line(&format!("calls {calls}\n"));
        }
    }

    fn line(line: &str) {
        static FILE: OnceLock<std::fs::File> = OnceLock::new();
        let file = FILE.get_or_init(|| {
            let path = std::env::var_os("MUTANTS_RECORD").unwrap_or_default();
            // Every server of a test adds to it.
            let mut options = std::fs::File::options();
            options.create(true).append(true).open(path).expect("a file for the record")
        });
        let mut file = file;
        file.write_all(line.as_bytes()).expect("a line of the record");
    }
}
