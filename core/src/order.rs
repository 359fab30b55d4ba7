//! What can be asked of the desk.

use std::sync::Arc;

use crate::hand_over::HandOver;
use crate::lock::Mode;
use crate::name::Name;
use crate::token::Token;

/// What a grant to a token that holds already does to its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Renews the lease, the holds stay: a command whose reply was lost can be sent again.
    Renews,
    /// Adds one hold (REENTRANT): each needs a RELEASE of its own.
    Counts,
}

/// What keeps a grant in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its lease alone.
    Lease,
    /// The caller's connection (SESSION): it is renewed while that lives, and ends with it.
    Session,
}

/// How much of its holds a RELEASE gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// One hold; the last one frees the lock.
    One,
    /// All of them at once.
    All,
}

/// What a token wants to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub token: Token,
    /// Alone or beside others.
    pub mode: Mode,
    /// The most holders it wants to be one of; 0: no limit.
    pub limit: u32,
    /// How long the grant is to last, counted from the grant.
    pub lease_ms: u64,
    /// What happens when it holds already.
    pub repeat: Repeat,
    /// What keeps the grant in force.
    pub life: Life,
}

/// The names an order is about. Cheap to clone. Invariant: sorted, none twice, so that equal sets are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(Arc<[Name]>);

impl Names {
    /// The one name.
    pub fn one(name: Name) -> Self {
        Self(Arc::from([name]))
    }

    /// A set of names; `None` where one is there twice.
    pub fn set(mut names: Vec<Name>) -> Option<Self> {
        let given = names.len();
        names.sort_unstable();
        names.dedup();
        (names.len() == given).then(|| Self(names.into()))
    }

    /// The names, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Name> {
        self.0.iter()
    }

    /// The names as a slice, in their order.
    pub fn as_slice(&self) -> &[Name] {
        &self.0
    }

    /// Whether this name is one of them.
    pub fn contains(&self, name: &Name) -> bool {
        self.0.binary_search(name).is_ok()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = std::slice::Iter<'a, Name>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One thing for the desk to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Grant it now or not at all.
    Acquire {
        /// All of them or none.
        names: Names,
        /// What is wanted.
        ask: Ask,
    },
    /// Grant it now, or queue for it.
    Wait {
        /// All of them or none.
        names: Names,
        /// What is wanted.
        ask: Ask,
        /// How long to wait; 0: for ever.
        block_ms: u64,
    },
    /// Set the lease anew.
    Extend {
        /// All of them or none.
        names: Names,
        /// Who holds.
        token: Token,
        /// Counted from now.
        lease_ms: u64,
        /// Whether the tie moves to the caller; [`Life::Lease`] leaves it as it is.
        life: Life,
    },
    /// Leave.
    Release {
        /// Those of them that the token holds.
        names: Names,
        /// Who holds.
        token: Token,
        /// One hold or all.
        leave: Leave,
    },
    /// Undo a hand-over whose client was gone before it could know of it.
    TakeBack(HandOver),
}

impl Order {
    /// What keeps the grants in force that it makes or renews.
    pub const fn life(&self) -> Life {
        match self {
            Self::Acquire { ask, .. } | Self::Wait { ask, .. } => ask.life,
            Self::Extend { life, .. } => *life,
            Self::Release { .. } | Self::TakeBack(_) => Life::Lease,
        }
    }

    /// The names it is about.
    pub const fn names(&self) -> &Names {
        match self {
            Self::Acquire { names, .. }
            | Self::Wait { names, .. }
            | Self::Extend { names, .. }
            | Self::Release { names, .. }
            | Self::TakeBack(HandOver { names, .. }) => names,
        }
    }
}
