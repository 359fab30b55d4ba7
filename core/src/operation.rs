//! Operations: the input of the lock table.

use crate::values::data::Data;
use crate::values::name::Names;
use crate::values::notification::Notification;
use crate::values::request::{LeaseKind, Replicas, Request};
use crate::values::token::Token;

/// The number of holds that a RELEASE gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseCount {
    /// One hold. Giving up the last one ends the grant.
    One,
    /// All holds beyond this number, if there are more.
    AllBut(u64),
}

/// The rule by which an extension sets a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRule {
    /// The lease is set, longer or shorter.
    Set,
    /// The lease is set only if it then ends later (GT).
    Lengthen,
}

/// One operation for the lock table to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The names that the operation is about.
    pub names: Names,
    /// The action at these names.
    pub action: Action,
    /// The replicas that must have the effects before the caller gets the reply of a success;
    /// `None`: it gets every reply at once.
    pub replicas: Option<Replicas>,
}

/// The action of an operation at its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Grants all names now, or none.
    Acquire(Request),
    /// Grants all names now, or queues for them.
    Wait {
        /// The token's request.
        request: Request,
        /// The longest time to wait, in ms; 0: no limit.
        block_ms: u64,
        /// The time to keep the position after the connection is lost, in ms; 0: the wait ends with
        /// the connection.
        // perf: 0 instead of an `Option`, because an action of more than 128 bytes is moved by a call.
        keep_ms: u64,
    },
    /// Grants all names now, or takes or keeps a place in the queue.
    Queue {
        /// The token's request.
        request: Request,
        /// The time to keep the place, in ms, and the longest time to claim a grant to it.
        keep_ms: u64,
        /// The message to publish when the place has ended.
        notification: Option<Notification>,
    },
    /// Ends all waits of a token that need one of the names.
    Cancel {
        /// The waiter's token.
        token: Token,
    },
    /// Sets the lease of all names, or of none.
    Extend {
        /// The holder's token.
        token: Token,
        /// The lease from now on, in ms; `None`: each grant's own length.
        lease_ms: Option<u64>,
        /// The rule by which the lease is set.
        lease_rule: LeaseRule,
        /// The tie to a connection after the extension.
        lease_kind: LeaseKind,
        /// The data of the holder from now on; `None`: as before.
        data: Option<Data>,
        /// The least fence of the grant from now on; `None`: as before.
        fence: Option<u64>,
    },
    /// Ends all that the token has at the names: its holds, and its waits that need one of them. For
    /// a time the token is granted nothing there.
    Leave {
        /// The token that leaves.
        token: Token,
        /// The time from now on in ms.
        leave_ms: u64,
    },
    /// Releases the names that the token holds.
    Release {
        /// The holder's token.
        token: Token,
        /// The number of holds to give up.
        release_count: ReleaseCount,
    },
}

impl Action {
    /// Returns the lease kind of the grants that the action makes or extends. Returns
    /// [`LeaseKind::Lease`] for an action that does neither.
    #[inline(always)]
    pub const fn lease_kind(&self) -> LeaseKind {
        match self {
            Self::Acquire(request) | Self::Wait { request, .. } | Self::Queue { request, .. } => {
                request.lease_kind
            }
            Self::Extend { lease_kind, .. } => *lease_kind,
            Self::Cancel { .. } | Self::Leave { .. } | Self::Release { .. } => LeaseKind::Lease,
        }
    }

    /// Returns the token of the action.
    #[inline(always)]
    pub const fn token(&self) -> &Token {
        match self {
            Self::Acquire(request) | Self::Wait { request, .. } | Self::Queue { request, .. } => {
                &request.token
            }
            Self::Cancel { token }
            | Self::Extend { token, .. }
            | Self::Leave { token, .. }
            | Self::Release { token, .. } => token,
        }
    }

    /// Returns true if the action can make grants or waits.
    pub const fn is_request(&self) -> bool {
        matches!(
            self,
            Self::Acquire(_) | Self::Wait { .. } | Self::Queue { .. }
        )
    }
}
