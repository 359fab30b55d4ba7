//! How the project is built and delivered.
//!
//! - `distribution`: tarballs and make install
//! - `tooling`: make and scripts/deps.sh on machines that lack something

mod distribution;
mod tooling;
