//! What everything else is made of. Nothing here waits, changes a key or knows a command.

pub mod codec;
pub mod decimal;
pub mod fence;
pub mod grant;
pub mod holder;
pub mod holders;
pub mod lock;
pub mod moment;
pub mod name;
pub mod notice;
pub mod packed;
pub mod refusal;
pub mod request;
pub mod session_id;
pub mod short_bytes;
pub mod slot;
pub mod token;
