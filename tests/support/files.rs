//! The files of a folder, and of the clone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lists all files in a folder and below it, sorted.
#[track_caller]
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Lists all files in a folder of the clone and below it, by their paths from the top of the clone.
#[track_caller]
pub fn files_below(folder: &str) -> BTreeSet<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = files_in(&top.join(folder)).into_iter();
    let names = files.map(|file| {
        let path = file.strip_prefix(&top).expect("a file of the clone");
        path.to_str().expect("a plain name").to_owned()
    });
    names.collect()
}
