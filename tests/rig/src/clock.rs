//! A wall clock of servers that a test moves, by `tests/replication/moved.c`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tempfile::TempDir;

use crate::compiled::shared_object;

/// The size that `moved.c` maps: three 64-bit numbers.
const MAPPED_BYTES: u64 = 24;

/// The wall clock of every server that has this clock's environment.
pub struct Clock {
    dir: TempDir,
    offset: File,
}

impl Clock {
    /// Returns a clock equal to the system's clock.
    #[track_caller]
    pub fn in_step() -> Clock {
        let dir = tempfile::tempdir().expect("a temporary directory");
        shared_object("replication/moved.c", dir.path());
        let offset = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(dir.path().join("offset"));
        let offset = offset.expect("a file");
        offset.set_len(MAPPED_BYTES).expect("a file of 24 bytes");
        let clock = Clock { dir, offset };
        clock.set_ms(0);
        clock
    }

    /// Sets the clock `ahead_ms` ahead of the system's clock, or behind it if negative.
    #[track_caller]
    pub fn set_ms(&self, ahead_ms: i64) {
        self.write(ahead_ms, 0);
    }

    /// Sets the clock `ahead_ms` ahead from the server's `looks`-th read of it on.
    #[track_caller]
    pub fn set_after(&self, looks: i64, ahead_ms: i64) {
        self.write(ahead_ms, 16);
        self.write(looks, 8);
    }

    #[track_caller]
    fn write(&self, number: i64, at: u64) {
        let written = self.offset.write_all_at(&number.to_ne_bytes(), at);
        written.expect("eight bytes");
    }

    /// Returns the clock's offset from the system's clock, in ms.
    #[track_caller]
    pub fn ahead_ms(&self) -> i64 {
        let mut bytes = [0; 8];
        let read = self.offset.read_exact_at(&mut bytes, 0);
        read.expect("eight bytes");
        i64::from_ne_bytes(bytes)
    }

    /// Returns the variables of the environment of a server with this clock.
    #[track_caller]
    pub fn environment(&self) -> [(String, String); 2] {
        let of = |variable: &str, name: &str| {
            let path = self.dir.path().join(name);
            let path = path.to_str().expect("a path in UTF-8").to_owned();
            (variable.to_owned(), path)
        };
        [
            of("LD_PRELOAD", "moved.so"),
            of("LOCK_TEST_CLOCK", "offset"),
        ]
    }
}
