//! Locks that more than one token or more than one key takes part in.
//!
//! - `shared`: SHARED, LIMIT and PERMITS
//! - `several_keys`: LOCK.MACQUIRE, LOCK.MWAIT and the other commands of several keys
//! - `info`: what LOCK.INFO shows of them
//! - `data`: DATA, and FENCE of LOCK.EXTEND

mod data;
mod info;
mod several_keys;
mod shared;
