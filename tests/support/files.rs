//! The files of the clone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Lists all files in a folder of the clone and below it, by their paths from the top of the clone.
#[track_caller]
pub fn files_below(folder: &str) -> BTreeSet<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top.join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry of a folder");
            let name = entry.file_name();
            let path = format!("{folder}/{}", name.to_str().expect("a plain name"));
            if entry.path().is_dir() {
                folders.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    files
}
