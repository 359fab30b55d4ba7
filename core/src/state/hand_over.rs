//! Grants to those who waited.

use crate::state::queue::{Position, Waiter};
use crate::values::grant::Grant;
use crate::values::holder::{Holder, Mode};
use crate::values::name::{Name, Names};

/// Where a grant's fence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Given with this grant.
    New,
    /// Kept from a grant in force.
    Kept,
}

/// A grant that the token had before at one of the names, which the new one replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Where.
    pub name: Name,
    /// In which mode.
    pub mode: Mode,
    /// The grant.
    pub holder: Holder,
}

/// A grant to one who waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// What it is told.
    pub grant: Grant,
    /// What it holds.
    pub names: Names,
    /// The connection that waited.
    pub client_id: u64,
    /// Whether the fence is of this grant; otherwise it held before and nothing can be taken back.
    pub origin: Origin,
    /// What it held before. Taking the hand-over back gives it back.
    pub replaced: Vec<Replaced>,
    /// Who waited, and where, if its place is to stay should its connection be lost (KEEP). Taking the
    /// hand-over back gives it that back too.
    pub place: Option<Box<(Position, Waiter)>>,
}
