//! The sources that a module was built from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

/// Returns a source that was changed or removed after this module was built, if there is one.
///
/// Cargo leaves a list of the sources next to its output. A module without that list, like an
/// installed module, counts as up to date. So does a module whose sources are all gone.
pub fn newer_than(module: &Path) -> Result<Option<PathBuf>> {
    let Ok(list) = fs::read_to_string(module.with_extension("d")) else {
        return Ok(None);
    };
    let built = changed(module).with_context(|| format!("no module at {}", module.display()))?;
    let sources = listed(&list);
    if sources.iter().all(|source| !source.exists()) {
        return Ok(None);
    }
    let manifests = sources.iter().flat_map(|source| manifests(source));
    let manifests: Vec<PathBuf> = manifests.filter(|path| path.exists()).collect();
    let mut all = sources.into_iter().chain(manifests);
    Ok(all.find(|path| changed(path).is_none_or(|changed| changed > built)))
}

/// Returns the files after the colon of a list in make's form. In that form a backslash precedes
/// each space of a name.
fn listed(list: &str) -> Vec<PathBuf> {
    let files = list.split_once(": ").map_or("", |(_, files)| files);
    let files = files.replace("\\ ", "\0");
    let files = files.split_whitespace();
    files.map(|file| file.replace('\0', " ").into()).collect()
}

/// Returns the manifests that cargo reads for a crate and doesn't list. Returns none if the file
/// isn't the crate's first file.
fn manifests(source: &Path) -> Vec<PathBuf> {
    let folder = source
        .ends_with("src/lib.rs")
        .then(|| source.ancestors().nth(2));
    let folder = folder.flatten().into_iter();
    let files =
        folder.flat_map(|folder| ["Cargo.toml", "Cargo.lock"].map(|name| folder.join(name)));
    files.collect()
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// Sets a file's modification time to `seconds` after a fixed moment.
    #[track_caller]
    fn change_at(path: &Path, seconds: u64) {
        let file = fs::File::options().write(true).open(path).expect("a file");
        let moment = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
        file.set_modified(moment).expect("its time");
    }

    #[test]
    fn a_module_that_is_older_than_what_it_is_built_from_is_found_out() {
        let dir = std::env::temp_dir().join(format!("sources-{}", std::process::id()));
        let clone = dir.join("a clone");
        let path = |name: &str| clone.join(name);
        let sources = [
            "src/lib.rs",
            "src/filter.rs",
            "core/src/lib.rs",
            "Cargo.toml",
            "Cargo.lock",
            "core/Cargo.toml",
        ];
        for folder in ["src", "core/src", "target/release"] {
            fs::create_dir_all(path(folder)).expect("a folder");
        }
        let module = path("target/release/libredis_lock.so");
        let listed: String = sources[..3]
            .iter()
            .map(|name| path(name).display().to_string().replace(' ', "\\ ") + " ")
            .collect();
        let list = module.with_extension("d");
        fs::write(&list, format!("libredis_lock.so: {listed}\n")).expect("a list");
        for source in sources.iter().map(|name| path(name)) {
            fs::write(&source, "").expect("a source");
            change_at(&source, 0);
        }
        fs::write(&module, "").expect("a module");
        change_at(&module, 10);
        let newer = || newer_than(&module).expect("a module");
        assert_eq!(newer(), None);
        for source in sources.iter().map(|name| path(name)) {
            change_at(&source, 20);
            assert_eq!(newer(), Some(source.clone()));
            change_at(&source, 10);
            assert_eq!(newer(), None, "{}", source.display());
        }
        fs::remove_file(path("src/filter.rs")).expect("a source");
        assert_eq!(newer(), Some(path("src/filter.rs")));
        // A module that was brought from elsewhere, with its list of sources or without.
        fs::remove_dir_all(path("src")).expect("the sources");
        fs::remove_dir_all(path("core")).expect("the sources");
        assert_eq!(newer(), None);
        fs::write(&list, "").expect("a list");
        assert_eq!(newer(), None);
        fs::remove_file(&list).expect("a list");
        assert_eq!(newer(), None);
        drop(fs::remove_dir_all(dir));
    }
}
