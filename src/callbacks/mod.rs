//! The callbacks that the server calls without a command. They must not write, and leave pending
//! events.

pub mod datatype;
pub mod events;
pub mod info_section;
