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
