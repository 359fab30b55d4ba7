//! Locks that more than one token or more than one key takes part in.
//!
//! - `shared`: SHARED, LIMIT and PERMITS
//! - `several_keys`: LOCK.MACQUIRE, LOCK.MWAIT and the other commands of several keys
//! - `info`: what LOCK.INFO shows of them
//! - `data`: DATA, and FENCE of LOCK.EXTEND
//! - `hot`: LOCK.HOT, which shows where clients wait for them
//! - `together`: two features in one scene

mod data;
mod hot;
mod info;
mod several_keys;
mod shared;
mod together;
