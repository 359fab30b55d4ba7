//! Distributed locks of the redis-lock module, for programs that use the [`redis`] crate.
//!
//! [`Locks`] is for threads, `aio::Locks` for tokio. Both make a `Lock`, whose `acquire` returns a
//! `Guard`. The lease is renewed while the lock is held. A guard that goes out of scope releases
//! it.
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
/// The `redis` crate, in the version that this crate uses.
pub use redis;
pub use sync::{Guard, Lock, Locks};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
