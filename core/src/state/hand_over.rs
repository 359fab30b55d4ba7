//! Hand-overs: grants to blocked clients.

use std::mem;
use std::ops::Range;

use crate::state::queue::Position;
use crate::state::waiter::Waiter;
use crate::values::holder::{Holder, Mode};
use crate::values::name::{Name, Names, Relocation};
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// A grant in the form of the reply to its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantReply {
    /// The holder's token.
    pub token: Token,
    /// The fence of the grant.
    pub fence: u64,
}

/// The origin of a grant's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceOrigin {
    /// Drawn for this grant.
    New,
    /// Kept from a grant that was in force.
    Kept,
}

/// The losses of the reply that take a hand-over back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBack {
    /// The connection closed, or the client got an error from the server instead.
    IfUndelivered,
    /// The connection closed. The reply was held back until replicas had acknowledged, so an error
    /// of the server takes nothing back.
    IfClosed,
    /// None: another command of the token was told of the grant.
    Never,
}

/// A grant of the same token at one of the names, which the hand-over replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The name of the lock.
    pub name: Name,
    /// The mode in which the token held the lock.
    pub mode: Mode,
    /// The replaced grant.
    pub holder: Holder,
    /// The holds of the token after the hand-over.
    pub holds_after: u64,
}

/// A grant to a blocked client. A grant to a place has none of this, because no client waits for
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The token and the fence, which the client gets as its reply.
    pub grant: GrantReply,
    /// The names of the locks that were granted. They follow their locks, see
    /// [`relocate`](HandOver::relocate).
    pub names: Names,
    /// The client id of the waiter.
    pub client_id: u64,
    /// The time of the grant, on the steady clock in ms.
    pub granted_ms: u64,
    /// The origin of the fence. If it was kept, the token held all names before, so nothing is
    /// taken back.
    pub fence_origin: FenceOrigin,
    /// The losses of the reply that take it back.
    pub take_back: TakeBack,
    /// The grants that this one replaced, in the order of their names. Taking the hand-over back
    /// restores those in force.
    pub replaced: Vec<Replaced>,
    /// The numbers of the sessions that this grant began, if any.
    pub sessions: Range<SessionId>,
    /// The waiter and its position, if it waited with KEEP. Taking the hand-over back enqueues the
    /// waiter there again, as absent.
    pub kept: Option<Box<(Position, Waiter)>>,
}

impl HandOver {
    /// Returns true if it may still be taken back.
    pub fn is_revocable(&self) -> bool {
        self.fence_origin == FenceOrigin::New && self.take_back != TakeBack::Never
    }

    /// Records that the server moved locks to other names. The waiter's own names stay: its position
    /// is in their queues.
    pub fn relocate(&mut self, relocation: &Relocation) {
        if !self.names.iter().any(|it| relocation.concerns(it)) {
            return;
        }
        let moved = self.names.iter().filter_map(|it| relocation.follow(it));
        // If no lock is left, the names of the locks that are gone do no harm.
        if let Some(names) = Names::set(moved.collect()).filter(|names| names.count() > 0) {
            self.names = names;
            let replaced = mem::take(&mut self.replaced).into_iter();
            let moved = replaced.filter_map(|it| {
                let name = relocation.follow(&it.name)?;
                Some(Replaced { name, ..it })
            });
            self.replaced = moved.collect();
            self.replaced
                .sort_unstable_by(|one, other| one.name.cmp(&other.name));
        }
    }
}

/// Has hand-overs follow their locks, see [`HandOver::relocate`].
pub fn relocate<'h>(
    hand_overs: impl IntoIterator<Item = &'h mut HandOver>,
    relocation: &Relocation,
) {
    let hand_overs = hand_overs.into_iter();
    hand_overs.for_each(|it| it.relocate(relocation));
}
