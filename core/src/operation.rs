//! What the lock table can be told to carry out.

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
pub struct Operation {
    /// The names it is about.
    pub names: Names,
    /// What is done there.
    pub action: Action,
}

/// What an operation does at its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Grant all of them now, or none.
    Acquire(Request),
    /// Grant all of them now, or queue for them.
    Wait {
        /// What is wanted.
        request: Request,
        /// How long to wait; 0: for ever.
        block_ms: u64,
        /// How long its place stays if the connection is lost; `None`: it goes with that.
        keep_ms: Option<u64>,
    },
    /// Grant all of them now, or tell its place in the queue, which is taken or kept.
    Queue {
        /// What is wanted.
        request: Request,
        /// How long the place is kept, and a grant to it waits to be claimed.
        keep_ms: u64,
        /// What is published as the place is granted, or given up.
        notice: Option<Notice>,
    },
    /// Give up all waits of a token that need one of the names.
    Cancel {
        /// Who waits.
        token: Token,
    },
    /// Set the lease anew, of all of them or of none.
    Extend {
        /// Who holds.
        token: Token,
        /// Counted from now; `None`: each grant's own length again.
        lease_ms: Option<u64>,
        /// What becomes of its tie to a connection.
        life: Life,
    },
    /// Leave those of them that the token holds.
    Release {
        /// Who holds.
        token: Token,
        /// One hold, or all but so many.
        leave: Leave,
    },
}

impl Action {
    /// What keeps the grants in force that it makes or renews.
    #[inline(always)]
    pub const fn life(&self) -> Life {
        match self {
            Self::Acquire(request) | Self::Wait { request, .. } | Self::Queue { request, .. } => {
                request.life
            }
            Self::Extend { life, .. } => *life,
            Self::Cancel { .. } | Self::Release { .. } => Life::Lease,
        }
    }

    /// Whose it is.
    #[inline(always)]
    pub const fn token(&self) -> &Token {
        match self {
            Self::Acquire(request) | Self::Wait { request, .. } | Self::Queue { request, .. } => {
                &request.token
            }
            Self::Cancel { token } | Self::Extend { token, .. } | Self::Release { token, .. } => {
                token
            }
        }
    }
}
