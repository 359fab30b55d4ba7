//! The cost of locks on a real server, compared with the alternatives without this module.
//!
//! The modules, lowest first: `reply` parses replies, `wire` and `clients` talk to a server,
//! `stage` starts a server, `sheet` stores results, and `rounds` interleaves the contestants. Each
//! benchmark is one file above these. `bounds`, `table`, `plot` and `document` judge and show a
//! sheet.

pub mod block_end;
pub mod bounds;
pub mod clients;
pub mod contended;
pub mod document;
pub mod handoff;
pub mod instructions;
pub mod lateness;
pub mod lease_end;
pub mod mass_end;
pub mod memory;
pub mod pair;
pub mod pairs;
pub mod peers;
pub mod plot;
pub mod replicas;
pub mod reply;
pub mod rounds;
pub mod sheet;
pub mod stage;
pub mod table;
pub mod wire;
