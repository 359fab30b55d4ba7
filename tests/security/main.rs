//! Rights: ACL users, and what the documentation promises about them.
//!
//! - `rights`: the rights of waiters, places and sessions
//! - `rights_docs`: the ACL rules in docs/operate/security.md
//! - `security_docs`: the other promises in docs/operate/security.md

mod rights;
mod rights_docs;
mod security_docs;
