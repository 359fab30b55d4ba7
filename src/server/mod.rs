//! The server's module API made safe. Nothing here knows a rule about locks.

pub mod api;
pub mod boundary;
pub mod calls;
pub mod clients;
pub mod clock;
pub mod config;
pub mod fence_key;
pub mod filter;
pub mod keepalive;
pub mod key;
pub mod key_events;
pub mod key_string;
pub mod lock_type;
pub mod memory;
pub mod propagation;
pub mod publish;
pub mod random;
pub mod replicas;
pub mod reply;
pub mod rights;
pub mod slots;
pub mod timer;
