//! Replication and persistence: the effects that replicas and files receive, and their use.
//!
//! - `stream`: the commands of the stream, word for word
//! - `propagation`: writes without a replica and without an append-only file
//! - `persistence`: RDB, AOF, DUMP and RESTORE
//! - `kinds`: shared locks and locks of several keys on replicas and in files
//! - `loading`: the server while it loads a file
//! - `clocks`: clocks that are set, or differ between servers
//! - `last_fence`: the last fence in files, and on a replica that becomes a primary

mod clocks;
mod kinds;
mod last_fence;
mod loading;
mod persistence;
mod propagation;
mod stream;
