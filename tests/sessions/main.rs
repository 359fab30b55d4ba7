//! Locks tied to a connection.
//!
//! - `session`: SESSION, KEEP and NOSESSION
//! - `ends`: every way in which a session ends
//! - `keepalive`: how the server notices a machine that vanished

mod ends;
mod keepalive;
mod session;
