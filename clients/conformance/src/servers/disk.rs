//! A server's own disk, which chaos fills. Linux only, and for root: a file system in memory, mounted
//! by the program `mount`.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The size of a disk, in `mount`'s unit of MiB. The servers' files take some MiB.
const SIZE: &str = "size=32m";

/// A disk, mounted until this goes out of scope.
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts a disk on a folder. Returns `None` where that isn't allowed.
    pub fn mount(folder: &Path) -> Option<Disk> {
        let words = ["-t", "tmpfs", "-o", SIZE, "tmpfs"];
        let status = Command::new("mount")
            .args(words)
            .arg(folder)
            .stderr(Stdio::null())
            .status();
        let folder = folder.to_owned();
        status
            .is_ok_and(|it| it.success())
            .then_some(Disk { folder })
    }

    /// Fills the disk to the last byte.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file");
        for bytes in [&[0; 1 << 16][..], &[0]] {
            let full = loop {
                if let Err(error) = filler.write_all(bytes) {
                    break error;
                }
            };
            assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        }
    }

    /// Frees what `fill` took.
    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("a filled disk");
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(
            Command::new("umount")
                .arg("--lazy")
                .arg(&self.folder)
                .status(),
        );
    }
}
