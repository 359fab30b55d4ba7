//! Distributed locks of the redis-lock module, for programs that use the [`redis`] crate.
//!
//! [`Locks`] is for threads, `aio::Locks` for tokio. Both make a `Lock`, and that makes a `Guard`, which
//! holds the lock, renews its lease, and releases it when it goes out of scope.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod commands;
mod error;
mod grant;
mod mutex;
mod options;
mod owner;
mod sync;

#[cfg(feature = "tokio")]
pub mod aio;

pub use error::Error;
pub use options::{Keys, Options};
/// The crate that connects, in the version that this one uses.
pub use redis;
pub use sync::{Guard, Lock, Locks};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
