//! Distributed locks of the redis-lock module, for programs that use the [`redis`] crate.
//!
//! [`Locks`] is for threads, [`aio::Locks`] for tokio. Both have the same calls: a `Lock` is a handle,
//! whose `acquire` returns a `Guard`. The lease is renewed while the lock is held. A guard that goes
//! out of scope releases it.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod aio;
mod commands;
mod connections;
mod core;
mod error;
mod grant;
mod mutex;
mod observer;
mod options;
mod owner;
mod servers;
mod sync;

pub use error::Error;
pub use observer::{Observer, Outcome, Subject};
pub use options::{Keys, Options};
/// The `redis` crate, in the version that this crate uses.
pub use redis;
pub use servers::{Config, Connector, Stream};
pub use sync::{Guard, Lock, Locks};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
