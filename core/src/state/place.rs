//! How one who waits stands in the queue: with its connection, or without.

use std::sync::Arc;

use crate::values::notice::Notice;
use crate::values::request::Request;

/// On whose behalf an operation is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Nobody's: the server's own or another module's, which may do anything.
    #[default]
    NoUser,
    /// The user of this name.
    Named(Arc<[u8]>),
    /// It can't be told: nothing may be granted that isn't let through anew.
    Unknown,
}

/// Whose rights are looked at when a place is granted: its user, as that was when it was last asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Who it is.
    pub identity: Identity,
    /// As of which change of anybody's rights it was let through.
    pub rights_version: u64,
}

/// A place in the queue that needs no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How long it is kept from its last QUEUE, and how long a grant to it waits to be claimed, in ms.
    pub keep_ms: u64,
    /// Deadline of its KEEP, on the steady clock in ms: it is gone then unless it is asked for again.
    pub until_ms: u64,
    /// Who took it, or kept it last.
    pub user: User,
    /// What is published as it is granted, or given up.
    pub notice: Option<Notice>,
}

/// Whether somebody stands at a position, and is granted what it waits for when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// By a connection, or by a place.
    Present,
    /// Nobody does, until the token takes it up again.
    Absent,
}

/// How one stands in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Its connection is blocked, and is answered.
    Blocked {
        /// How long its place stays if the connection is lost; `None`: it goes with that.
        keep_ms: Option<u64>,
    },
    /// It is told where it stands when it asks again. Boxed, for most wait with their connection.
    Place(Box<Place>),
    /// Its connection was lost. Nobody stands here: it is passed over, and holds nobody up.
    Absent {
        /// Deadline of its KEEP, on the steady clock in ms: it is gone then unless its token takes it up again.
        until_ms: u64,
    },
}

impl Stand {
    /// As LOCK.INFO has it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Blocked { .. } => "blocked",
            Self::Place(_) => "place",
            Self::Absent { .. } => "absent",
        }
    }

    /// Until when it is kept without a connection, on the steady clock in ms.
    pub const fn kept_until_ms(&self) -> Option<u64> {
        match self {
            Self::Blocked { .. } => None,
            Self::Place(place) => Some(place.until_ms),
            Self::Absent { until_ms } => Some(*until_ms),
        }
    }

    /// How long it is kept from now on, in ms, once nobody comes back to it; `None`: not at all. That
    /// doesn't run out while its connection is there.
    pub fn keep_ms(&self, steady_ms: u64) -> Option<u64> {
        match self {
            Self::Blocked { keep_ms } => *keep_ms,
            Self::Place(place) => Some(place.until_ms.saturating_sub(steady_ms)),
            Self::Absent { until_ms } => Some(until_ms.saturating_sub(steady_ms)),
        }
    }

    /// Whether a connection is blocked in it.
    pub const fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// Whether somebody stands here.
    pub const fn presence(&self) -> Presence {
        match self {
            Self::Blocked { .. } | Self::Place(_) => Presence::Present,
            Self::Absent { .. } => Presence::Absent,
        }
    }

    /// Whether nobody stands here.
    pub fn is_absent(&self) -> bool {
        self.presence() == Presence::Absent
    }
}

impl Place {
    /// How long the grant to a place lasts until it is claimed.
    pub fn lease_ms(&self, request: &Request) -> u64 {
        self.keep_ms.min(request.lease_ms)
    }
}
