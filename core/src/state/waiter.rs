//! A waiter, and the ways in which it waits: on a blocked connection, in a place, or absent.

use std::borrow::Cow;
use std::sync::Arc;

use crate::values::name::Names;
use crate::values::notification::Notification;
use crate::values::request::{Replicas, Request};
use crate::values::time::has_passed;

/// The number of one wait of one connection, given by the module around the core; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// The wait of a token for a set of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The wait's number.
    pub waiter_id: WaiterId,
    /// The client id of the blocked client; 0 if there is none.
    pub client_id: u64,
    /// The way in which it waits: as a blocked client, in a place, or absent.
    pub kind: WaiterKind,
    /// All names that it waits for. They are granted together.
    pub names: Names,
    /// The request for each name.
    pub request: Request,
    /// The time since which its token waits for these names, on the steady clock in ms.
    pub since_ms: u64,
    /// Deadline of BLOCK on the steady clock in ms; `None`: no timeout.
    pub timeout_ms: Option<u64>,
    /// The replicas that must have the grant before the client gets it as its reply.
    // perf: boxed, because few waiters ask for replicas.
    pub replicas: Option<Box<Replicas>>,
}

impl Waiter {
    /// Returns the deadline of the wait, the earlier of BLOCK's and KEEP's, on the steady clock in
    /// ms.
    pub fn end_ms(&self) -> Option<u64> {
        let kept_until_ms = self.kind.kept_until_ms();
        self.timeout_ms.into_iter().chain(kept_until_ms).min()
    }

    /// Returns the same waiter as absent, kept until `until_ms` on the steady clock. No BLOCK counts
    /// while no command of its token waits.
    pub fn absent_until(&self, until_ms: u64) -> Self {
        Self {
            client_id: 0,
            kind: WaiterKind::Absent { until_ms },
            timeout_ms: None,
            ..self.clone()
        }
    }

    /// Returns the waiter as it is once a deadline that has passed takes effect: absent after its
    /// BLOCK if it has KEEP; `None` if the wait ends.
    pub fn as_of(&self, steady_ms: u64) -> Option<Cow<'_, Self>> {
        match self.kind {
            _ if !self.is_over(steady_ms) => Some(Cow::Borrowed(self)),
            WaiterKind::Blocked { keep_ms } => {
                let until_ms = steady_ms.saturating_add(keep_ms?);
                Some(Cow::Owned(self.absent_until(until_ms)))
            }
            _ => None,
        }
    }

    /// Returns true if its deadline has passed.
    pub fn is_over(&self, steady_ms: u64) -> bool {
        self.end_ms().is_some_and(|ms| has_passed(ms, steady_ms))
    }
}

/// The user for whom an operation runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// No user: the server itself or another module, which may do anything.
    #[default]
    NoUser,
    /// The user of this name.
    Named(Arc<[u8]>),
    /// Not known. Once rights may have changed, its places are granted nothing until the server
    /// admits a new LOCK.QUEUE.
    Unknown,
}

/// The user of a place, as of the last LOCK.QUEUE for it. Its rights are checked before a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The user's identity.
    pub identity: Identity,
    /// The version of all users' rights in which the server admitted that LOCK.QUEUE.
    pub rights_version: u64,
}

/// A place in the queue that needs no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// KEEP in ms, counted from the last LOCK.QUEUE. A grant to the place waits at most this long
    /// for its claim.
    pub keep_ms: u64,
    /// Deadline of KEEP, on the steady clock in ms. The place lapses then unless LOCK.QUEUE renews
    /// it.
    pub until_ms: u64,
    /// The user that took the place or kept it last.
    pub user: User,
    /// The message to publish when the place is granted, cancelled, or ended by a key of another
    /// type.
    pub notification: Option<Notification>,
}

/// The presence of a waiter at its position. Only a present waiter is granted when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The waiter is a blocked client or a place.
    Present,
    /// No command of the token waits. The position is skipped until the token takes it up again,
    /// see [`Queues::head`](crate::state::queue::Queues::head).
    Absent,
}

/// The way in which a waiter waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaiterKind {
    /// A blocked client, which gets the outcome as its reply.
    Blocked {
        /// KEEP in ms: how long the position stays after BLOCK has ended or the connection is lost;
        /// `None`: not at all.
        keep_ms: Option<u64>,
    },
    /// A place without a connection. The token repeats LOCK.QUEUE to get its rank or the grant.
    // perf: boxed, because most waiters are blocked clients.
    Place(Box<Place>),
    /// A waiter with KEEP whose BLOCK has ended or whose connection was lost. It is skipped, so it
    /// delays no other waiter.
    Absent {
        /// Deadline of KEEP, on the steady clock in ms. The position is removed then unless its
        /// token takes it up again.
        until_ms: u64,
    },
}

impl WaiterKind {
    /// Returns the name that LOCK.INFO replies.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Blocked { .. } => "blocked",
            Self::Place(_) => "place",
            Self::Absent { .. } => "absent",
        }
    }

    /// Returns the deadline of KEEP of a waiter without a connection, on the steady clock in ms.
    pub const fn kept_until_ms(&self) -> Option<u64> {
        match self {
            Self::Blocked { .. } => None,
            Self::Place(place) => Some(place.until_ms),
            Self::Absent { until_ms } => Some(*until_ms),
        }
    }

    /// Returns how long the waiter stays from now on without its client, in ms; `None`: not at all.
    /// The KEEP of a blocked client starts when its BLOCK ends or its connection is lost.
    pub fn keep_ms(&self, steady_ms: u64) -> Option<u64> {
        match self {
            Self::Blocked { keep_ms } => *keep_ms,
            Self::Place(place) => Some(place.until_ms.saturating_sub(steady_ms)),
            Self::Absent { until_ms } => Some(until_ms.saturating_sub(steady_ms)),
        }
    }

    /// Returns true if the waiter is a blocked client.
    pub const fn is_blocked(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// Returns the presence of the waiter.
    pub const fn presence(&self) -> Presence {
        match self {
            Self::Blocked { .. } | Self::Place(_) => Presence::Present,
            Self::Absent { .. } => Presence::Absent,
        }
    }

    /// Returns true if the waiter is absent.
    pub fn is_absent(&self) -> bool {
        self.presence() == Presence::Absent
    }
}

impl Place {
    /// Returns the lease in ms of a grant to the place until its token claims it.
    pub fn lease_ms(&self, request: &Request) -> u64 {
        self.keep_ms.min(request.lease_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(until_ms: u64) -> WaiterKind {
        WaiterKind::Place(Box::new(Place {
            keep_ms: 50,
            until_ms,
            user: User::default(),
            notification: None,
        }))
    }

    #[test]
    fn each_kind_has_its_name_and_its_keep() {
        let blocked = |keep_ms| WaiterKind::Blocked { keep_ms };
        for (kind, name, keep_ms) in [
            (blocked(None), "blocked", None),
            (blocked(Some(7)), "blocked", Some(7)),
            (place(110), "place", Some(10)),
            (WaiterKind::Absent { until_ms: 130 }, "absent", Some(30)),
            (WaiterKind::Absent { until_ms: 90 }, "absent", Some(0)),
        ] {
            assert_eq!(kind.as_str(), name);
            assert_eq!(kind.keep_ms(100), keep_ms, "{kind:?}");
        }
    }

    /// The state of a waiter whose deadline has passed.
    #[test]
    fn a_blocked_client_with_keep_is_absent_after_its_block() {
        use crate::values::holder::Mode;
        use crate::values::name::Name;
        use crate::values::request::{LeaseKind, Reentry};
        use crate::values::token::Token;
        let waiter = |kind, timeout_ms| Waiter {
            waiter_id: WaiterId(1),
            client_id: 9,
            kind,
            names: Names::one(Name::new(0, b"k")),
            request: Request {
                token: Token::new(b"a").unwrap(),
                mode: Mode::Exclusive,
                limit: 0,
                permits: 1,
                lease_ms: 10,
                reentry: Reentry::Renews,
                lease_kind: LeaseKind::Lease,
                data: None,
            },
            since_ms: 0,
            timeout_ms,
            replicas: None,
        };
        let blocked = |keep_ms| waiter(WaiterKind::Blocked { keep_ms }, Some(100));
        for (keep_ms, now_ms, expected) in [
            (None, 100, Some(blocked(None))),
            (None, 101, None),
            (Some(50), 100, Some(blocked(Some(50)))),
            (Some(50), 101, Some(blocked(Some(50)).absent_until(151))),
        ] {
            let found = blocked(keep_ms).as_of(now_ms).map(Cow::into_owned);
            assert_eq!(found, expected, "{keep_ms:?} at {now_ms}");
        }
        let absent = blocked(Some(50)).absent_until(151);
        assert_eq!((absent.client_id, absent.timeout_ms), (0, None));
        assert_eq!(absent.as_of(152), None);
        assert_eq!(waiter(place(110), None).as_of(111), None);
    }
}
