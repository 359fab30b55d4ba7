//! Tests of the build and of the packages.
//!
//! - `distribution`: make install, and what packages are made of
//! - `image`: the container image, without a container engine
//! - `hosted`: the workflows of the hosted CI
//! - `tooling`: make and scripts/deps.sh on machines that lack something

mod distribution;
mod hosted;
mod image;
mod tooling;

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn text_of(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
