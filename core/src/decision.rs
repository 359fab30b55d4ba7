//! The results of an operation: the caller's answer, the outcomes of waits, and the messages to
//! publish.

use crate::state::hand_over::{GrantReply, HandOver};
use crate::state::queue::Position;
use crate::state::replica_waits::{DueReply, End};
use crate::state::waiter::{User, WaiterId};
use crate::values::name::Names;
use crate::values::notification::Notification;
use crate::values::refusal::Refusal;
use crate::values::token::Token;

/// The most deliveries of each kind whose memory is kept for the next operation.
const KEPT: usize = 16;

/// The client that sends an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection's client id; 0 for a caller without a connection.
    pub client_id: u64,
    /// The number of the caller's wait, if it has to wait.
    pub waiter_id: WaiterId,
}

/// The start of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The token did not wait for these names before.
    New,
    /// The wait replaces the token's older wait for these names. A place that is kept by another
    /// LOCK.QUEUE is one too.
    TakenOver,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The token holds the names, with this fence.
    Granted(u64),
    /// The names were not granted, and the caller does not wait.
    NotNow,
    /// The caller waits at this position.
    Queued(Enqueued, Position),
    /// The token has a place with this number in the queue, counted from 1. [`Enqueued::New`] if
    /// this operation took the place.
    Place(usize, Enqueued),
    /// The command has succeeded, and its reply is held back until replicas have acknowledged it.
    HeldBack,
    /// The number of names that changed. For LOCK.CANCEL: 1 if a wait was cancelled, else 0.
    Count(usize),
}

/// The reason why a wait is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The waiter's token holds the names now.
    Granted(HandOver),
    /// The reply was held back, and replicas have acknowledged the command. Nothing is taken back.
    Acknowledged(Acknowledged),
    /// The wait's BLOCK or KEEP has ended.
    TimedOut,
    /// An error ends the wait.
    Refused(Refusal),
}

/// The reply to a command that succeeded at once and that replicas have acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// The grant.
    Grant(GrantReply),
    /// The number of names that were extended.
    Count(usize),
}

/// The end of a blocked client's wait, to reply to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the wait.
    pub waiter_id: WaiterId,
    /// The outcome of the wait.
    pub outcome: Outcome,
}

impl Completion {
    /// Returns the completion of a replica wait that has ended.
    pub fn of_replica_wait(waiter_id: WaiterId, end: End) -> Self {
        let outcome = match end {
            End::Acknowledged(DueReply::HandOver(hand_over)) => Outcome::Granted(hand_over),
            End::Acknowledged(DueReply::Grant(grant)) => {
                Outcome::Acknowledged(Acknowledged::Grant(grant))
            }
            End::Acknowledged(DueReply::Count(count)) => {
                Outcome::Acknowledged(Acknowledged::Count(count))
            }
            End::GrantLost => Outcome::Refused(Refusal::GrantLost),
            End::TimedOut => Outcome::Refused(Refusal::NotAcknowledged),
        };
        Self { waiter_id, outcome }
    }
}

/// A message to publish because a place has ended: it was granted, cancelled, or its key got
/// another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The token that had the place.
    pub token: Token,
    /// The names that the place was for.
    pub names: Names,
    /// The channel and the message.
    pub notification: Notification,
    /// The user whose rights are checked before the message is published.
    pub user: User,
}

/// Everything that follows from an operation, except its effects. The server acts on it in this
/// order:
///
/// 1. It applies the effects, so that no client is notified of a grant that is not stored.
/// 2. It blocks the caller if the answer is [`Answer::Queued`].
/// 3. It carries out the deliveries.
#[derive(Debug)]
pub struct Decision {
    /// The answer to the caller.
    pub answer: Result<Answer, Refusal>,
    /// Replies and messages to other clients. Most operations have none.
    pub deliveries: Option<Box<Deliveries>>,
}

impl Decision {
    /// Returns the decision to refuse an operation before anything is settled.
    pub const fn refused(why: Refusal) -> Self {
        Self {
            answer: Err(why),
            deliveries: None,
        }
    }
}

/// The replies and messages to clients other than the caller.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// Replies to blocked clients whose wait is over.
    pub completions: Vec<Completion>,
    /// Messages to publish.
    pub publications: Vec<Publication>,
}

impl Deliveries {
    /// Returns true if there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.publications.is_empty()
    }

    /// Removes all deliveries, and frees the memory beyond `KEPT` of each kind.
    pub fn clear(&mut self) {
        self.completions.clear();
        self.completions.shrink_to(KEPT);
        self.publications.clear();
        self.publications.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleared_deliveries_are_gone_with_the_memory_of_many() {
        let completion = Completion {
            waiter_id: WaiterId(1),
            outcome: Outcome::TimedOut,
        };
        let mut deliveries = Deliveries {
            completions: vec![completion; 10 * KEPT],
            publications: Vec::new(),
        };
        deliveries.clear();
        assert!(deliveries.is_empty());
        assert!(deliveries.completions.capacity() < 2 * KEPT);
    }
}
