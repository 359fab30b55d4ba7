//! What comes of an operation, and what ends a wait.

use crate::state::hand_over::HandOver;
use crate::state::place::User;
use crate::state::queue::{Position, WaiterId};
use crate::values::name::Names;
use crate::values::notice::Notice;
use crate::values::refusal::Refusal;
use crate::values::token::Token;

/// Room for how many deliveries of each kind is kept from one operation to the next.
const KEPT: usize = 16;

/// Who gives an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection's client id; 0 when there is none.
    pub client_id: u64,
    /// Under which number it waits, if it has to.
    pub waiter_id: WaiterId,
}

/// How a wait begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Its token didn't wait for these names before.
    New,
    /// It took over from another connection.
    TakenOver,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds, with this fence.
    Granted(u64),
    /// It doesn't, and it isn't waiting.
    NotNow,
    /// The caller waits, at this position.
    Queued(Arrival, Position),
    /// Its token has this place in the queue, counted from 1; whether it was taken just now.
    Place(usize, Arrival),
    /// How many names it changed.
    Count(usize),
}

/// Why a waiter's wait is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds now.
    Granted(HandOver),
    /// Its BLOCK is over.
    TimedOut,
    /// An error ends its wait.
    Refused(Refusal),
}

/// A waiter to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whom.
    pub waiter_id: WaiterId,
    /// With what.
    pub outcome: Outcome,
}

/// A message to publish, because a place is one no more: it was granted, or given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Whose place it was.
    pub token: Token,
    /// For what.
    pub names: Names,
    /// What is published where.
    pub notice: Notice,
    /// By whose rights.
    pub user: User,
}

/// All that follows from an operation but for its effects, which come first, so that nobody is told of
/// a grant that isn't there. To be done in this order: the blocking of a caller that was queued; the
/// deliveries.
#[derive(Debug)]
pub struct Decision {
    /// For the caller.
    pub answer: Result<Answer, Refusal>,
    /// For others, if it concerns any: most operations don't.
    pub deliveries: Option<Box<Deliveries>>,
}

/// What others than the caller are told.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// For those who waited.
    pub completions: Vec<Completion>,
    /// For those who listen.
    pub publications: Vec<Publication>,
}

impl Deliveries {
    /// Whether nobody is told anything.
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty() && self.publications.is_empty()
    }

    /// Forgets all, and much of the room for it where that is much.
    pub fn clear(&mut self) {
        self.completions.clear();
        self.completions.shrink_to(KEPT);
        self.publications.clear();
        self.publications.shrink_to(KEPT);
    }
}
