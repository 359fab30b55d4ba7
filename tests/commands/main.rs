//! The commands one at a time: their words, replies and errors.
//!
//! - `verbs`: acquire, extend, release, check and info with one client
//! - `cancel`: LOCK.CANCEL
//! - `hostile_input`: bytes, sizes and payloads that no client should send
//! - `spelling`: every option in upper, lower and mixed case
//! - `metadata`: COMMAND INFO, COMMAND DOCS and LOCK.HELP

mod cancel;
mod hostile_input;
mod metadata;
mod spelling;
mod verbs;
