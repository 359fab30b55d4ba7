//! What locks cost on a real server, measured beside what people use without this module.
//!
//! From the floor up: `reply` reads answers, `wire` and `clients` speak to a server, `stage` starts
//! one, `sheet` keeps what was measured, `rounds` interleaves those who are compared; each benchmark
//! is one file above them; `bounds`, `table`, `plot` and `document` judge and show a sheet.

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
pub mod reply;
pub mod rounds;
pub mod sheet;
pub mod stage;
pub mod table;
pub mod wire;
