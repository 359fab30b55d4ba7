//! The two packages whose mutants are played.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::trial::Bounds;

/// A package with mutants.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// The core, with its own tests
    Core,
    /// The module around the core, with tests that start servers
    Shell,
}

impl Subject {
    pub fn package(self) -> &'static str {
        match self {
            Self::Core => "redis-lock-core",
            Self::Shell => "redis-lock",
        }
    }

    /// Returns the name of its library.
    pub fn library(self) -> &'static str {
        match self {
            Self::Core => "redis_lock_core",
            Self::Shell => "redis_lock",
        }
    }

    /// Returns the folder of its sources.
    pub fn sources(self) -> &'static Path {
        Path::new(match self {
            Self::Core => "core/src",
            Self::Shell => "src",
        })
    }

    /// Returns the files and folders of the clone that its build needs.
    pub fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["Cargo.lock", "core", "tests/promises"],
            Self::Shell => &["Cargo.lock", "core", "tests/promises", "src"],
        }
    }

    /// Returns the beginnings of the sections of Cargo.toml that its build needs.
    pub fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Core => &["workspace."],
            Self::Shell => &[
                "workspace.",
                "package]",
                "lib]",
                "features]",
                "dependencies]",
                "lints]",
            ],
        }
    }

    pub fn bounds(self) -> Bounds {
        match self {
            Self::Core => Bounds {
                threads: 1,
                memory_kib: Some(4 << 20),
                first_group: Duration::from_millis(20),
                repeats: 0,
            },
            // Its tests mostly wait for servers.
            Self::Shell => Bounds {
                threads: 8,
                memory_kib: None,
                first_group: Duration::from_secs(4),
                repeats: 2,
            },
        }
    }
}

/// The test programs that start servers, except those with bounds on a server's speed and size.
pub const SERVER_TESTS: [&str; 7] = [
    "commands",
    "contexts",
    "kinds",
    "replication",
    "security",
    "sessions",
    "waiting",
];
