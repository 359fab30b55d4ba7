//! The C sources of the tests, compiled when a test needs them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `tests/<source>` to a shared object in `dir`.
#[track_caller]
pub fn shared_object(source: &str, dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(source);
    let object = dir
        .join(source.file_stem().expect("a file's name"))
        .with_extension(env::consts::DLL_EXTENSION);
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler)
        .args([
            "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o",
        ])
        .args([&object, &source])
        .arg("-ldl")
        .output()
        .expect("a C compiler");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", source.display());
    object
}
