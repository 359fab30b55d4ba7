//! Tests of the build and of the packages.
//!
//! - `distribution`: tarballs and make install
//! - `tooling`: make and scripts/deps.sh on machines that lack something

mod distribution;
mod tooling;
