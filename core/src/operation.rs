//! What the lock table can be told to carry out.

use crate::state::hand_over::HandOver;
use crate::values::grant::Grant;
use crate::values::name::Names;
use crate::values::notice::Notice;
use crate::values::request::{Life, Request};
use crate::values::token::Token;

/// How much of its holds a RELEASE gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// One hold; the last one frees the lock.
    One,
    /// All but so many, if there are more.
    AllBut(u64),
}

/// One thing for the table to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Grant it now or not at all.
    Acquire {
        /// All of them or none.
        names: Names,
        /// What is wanted.
        request: Request,
    },
    /// Grant it now, or queue for it.
    Wait {
        /// All of them or none.
        names: Names,
        /// What is wanted.
        request: Request,
        /// How long to wait; 0: for ever.
        block_ms: u64,
        /// How long its place stays if the connection is lost; `None`: it goes with that.
        keep_ms: Option<u64>,
    },
    /// Grant it now, or tell its place in the queue, which is taken or kept.
    Queue {
        /// All of them or none.
        names: Names,
        /// What is wanted.
        request: Request,
        /// How long the place is kept, and a grant to it waits to be claimed.
        keep_ms: u64,
        /// What is published as the place is granted, or given up.
        notice: Option<Notice>,
    },
    /// Give up all waits of a token that need one of these names.
    Cancel {
        /// Where it waits.
        names: Names,
        /// Who waits.
        token: Token,
    },
    /// Set the lease anew.
    Extend {
        /// All of them or none.
        names: Names,
        /// Who holds.
        token: Token,
        /// Counted from now; `None`: each grant's own length again.
        lease_ms: Option<u64>,
        /// What becomes of its tie to a connection.
        life: Life,
    },
    /// Leave.
    Release {
        /// Those of them that the token holds.
        names: Names,
        /// Who holds.
        token: Token,
        /// One hold, or all but so many.
        leave: Leave,
    },
    /// Undo a hand-over whose client was gone before it could know of it.
    TakeBack(HandOver),
}

impl Operation {
    /// What keeps the grants in force that it makes or renews.
    pub const fn life(&self) -> Life {
        match self {
            Self::Acquire { request, .. }
            | Self::Wait { request, .. }
            | Self::Queue { request, .. } => request.life,
            Self::Extend { life, .. } => *life,
            Self::Cancel { .. } | Self::Release { .. } | Self::TakeBack(_) => Life::Lease,
        }
    }

    /// Whose it is.
    pub const fn token(&self) -> &Token {
        match self {
            Self::Acquire { request, .. }
            | Self::Wait { request, .. }
            | Self::Queue { request, .. } => &request.token,
            Self::Cancel { token, .. }
            | Self::Extend { token, .. }
            | Self::Release { token, .. }
            | Self::TakeBack(HandOver {
                grant: Grant { token, .. },
                ..
            }) => token,
        }
    }

    /// The names it is about.
    pub const fn names(&self) -> &Names {
        match self {
            Self::Acquire { names, .. }
            | Self::Wait { names, .. }
            | Self::Queue { names, .. }
            | Self::Cancel { names, .. }
            | Self::Extend { names, .. }
            | Self::Release { names, .. }
            | Self::TakeBack(HandOver { names, .. }) => names,
        }
    }
}
