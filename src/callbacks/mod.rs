//! Where the server calls the module without a command. These callbacks must not write: they leave
//! pending events.

pub mod datatype;
pub mod events;
pub mod info;
