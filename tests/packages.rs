//! The Debian package and the release tarball, installed as docs/install.md says, in a copy of this machine
//! that is thrown away, and Debian's server there under what its systemd unit allows. It takes root, for
//! namespaces. `make test-packages` runs this.

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::free_port;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cargo builds into.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The newest file in a folder whose name ends so.
#[track_caller]
fn built(folder: &str, end: &str) -> PathBuf {
    let folder = target().join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let files = entries.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|file| file.to_string_lossy().ends_with(end));
    let modified = |file: &PathBuf| file.metadata().and_then(|it| it.modified()).expect("a time");
    files.max_by_key(modified).expect(end)
}

/// Runs tests/packages/<script> as root of a copy of this machine; whether it succeeded, and what it said.
#[track_caller]
fn played(script: &str, words: &[&str]) -> (bool, String) {
    let folder = root().join("tests/packages");
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .arg("sh")
        .arg(folder.join("copy_of_machine.sh"))
        .arg(folder.join(script))
        .args(words)
        .env("PORT", free_port().to_string())
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), said)
}
