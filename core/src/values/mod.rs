//! The values that the rest of the core is made of. Nothing here waits, changes a key or knows a
//! command.

pub mod codec;
pub mod data;
pub mod decimal;
pub mod fence;
pub mod holder;
pub mod holders;
pub mod lock;
pub mod name;
pub mod notification;
pub mod packed;
pub mod refusal;
pub mod request;
pub mod session_id;
pub mod short_bytes;
pub mod slot;
pub mod time;
pub mod token;
