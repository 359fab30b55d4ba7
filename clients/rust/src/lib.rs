//! Distributed locks of the redis-lock module, for programs that use the [`redis`] crate.
//!
//! [`Locks`] is for threads, [`aio::Locks`] for tokio. Both have the same calls: a `Lock` is a
//! recipe without state, and each acquire returns a `Grant`, which owns the lock. The lease is
//! renewed while the grant is held. A grant that goes out of scope is released.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redis_lock_client::Locks;
//!
//! let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
//! let lock = locks.lock("orders:42")?;
//! if let Some(grant) = lock.acquire(None)? {
//!     println!("fence {}", grant.fence());
//!     grant.release()?;
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
pub mod aio;
mod background;
mod commands;
mod core;
mod crowd;
mod error;
mod front;
mod hold;
mod mutex;
mod observer;
mod options;
mod recipe;
mod servers;
mod sync;

pub use error::Error;
pub use observer::{Observer, Outcome, Subject};
pub use options::{Keys, Options};
/// The `redis` crate, in the version that this crate uses.
pub use redis;
pub use servers::{Config, Opener};
pub use sync::{Cancel, Grant, Lock, Locks};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
