//! The clients that the server holds blocked for the module.
//!
//! 1. A client is in `clients` from the call that blocks it until one of its callbacks has run.
//! 2. When its wait ends, the outcome is recorded and the client is queued to be unblocked.
//! 3. A hand-over is provisional from its reply until the server has slept. It is no longer taken
//!    back once a reply to another connection has confirmed the grant. The reply to a hand-over of the
//!    same token under the same fence or a later one does so once it was sent.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::mem;

use foldhash::{HashMap, HashSet};
use redis_lock_core::decision::Outcome;
use redis_lock_core::state::hand_over::{HandOver, TakeBack};
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::waiter::WaiterId;
use redis_lock_core::values::name::{Name, Names, Relocation};
use redis_lock_core::values::token::Token;
use redis_module::raw;

use super::provisional::Provisional;

/// The server's handle of a blocked client.
pub type Handle = *mut raw::RedisModuleBlockedClient;

/// A blocked client.
pub struct Blocked {
    /// The server's handle, valid until one of the client's callbacks has run.
    pub handle: Handle,
    /// The client id.
    pub client_id: u64,
    /// The position at which it was queued; `None`: it waits for replicas only.
    pub position: Option<Position>,
    /// The [version](super::rights_watch::RightsWatch::version) in which its user's rights were last
    /// checked.
    pub rights_version: u64,
}

/// The record of a client that the server no longer holds blocked.
pub struct Forgotten {
    /// The client id.
    pub client_id: u64,
    /// The position at which it was queued; `None`: it waited for replicas only.
    pub position: Option<Position>,
    /// The outcome of its wait, if the wait had ended.
    pub outcome: Option<Outcome>,
}

/// The fences under which hand-overs grant names to tokens, the greatest of each.
#[derive(Default)]
pub struct Granted(HashMap<(Token, Name), u64>);

impl Granted {
    /// Returns what these hand-overs grant.
    pub fn by<H: Borrow<HandOver>>(hand_overs: impl Iterator<Item = H>) -> Self {
        let mut granted = Self::default();
        for hand_over in hand_overs {
            let HandOver { grant, names, .. } = hand_over.borrow();
            for name in names {
                let pair = (grant.token.clone(), name.clone());
                let fence = granted.0.entry(pair).or_default();
                *fence = grant.fence.max(*fence);
            }
        }
        granted
    }

    /// Returns the greatest fence under which a hand-over's token is granted one of its names.
    pub fn fence_beside(&self, HandOver { grant, names, .. }: &HandOver) -> Option<u64> {
        let fence = |name: &Name| self.0.get(&(grant.token.clone(), name.clone()));
        names.iter().filter_map(fence).max().copied()
    }

    /// Returns true if this includes a hand-over of the same grant or a later one. Its reply tells the
    /// token of the grant.
    pub fn tells_of(&self, hand_over: &HandOver) -> bool {
        self.fence_beside(hand_over) >= Some(hand_over.grant.fence)
    }
}

/// The blocked clients and the hand-overs that may still be taken back.
#[derive(Default)]
pub struct BlockedClients {
    /// All blocked clients.
    pub clients: HashMap<WaiterId, Blocked>,
    /// The outcomes of waits that have ended and that the server hasn't replied yet.
    // perf: apart from `clients`, because only a few clients have one.
    outcomes: HashMap<WaiterId, Outcome>,
    /// Waiters with a grant that are still to be unblocked.
    granted: VecDeque<WaiterId>,
    /// Waiters whose wait ended without a grant and that are still to be unblocked.
    pub refused: VecDeque<WaiterId>,
    /// Hand-overs that the server has replied since it last slept.
    pub provisional: Provisional,
    /// (token, name) pairs confirmed to another connection since the last sleep. Their hand-overs
    /// can no longer be taken back.
    known: HashSet<(Token, Name)>,
}

impl BlockedClients {
    /// Records the outcome of a wait. The waiter is unblocked next.
    pub fn record(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        if !self.clients.contains_key(&waiter_id) {
            return;
        }
        let decided = match &outcome {
            Outcome::Granted(hand_over) => {
                if hand_over.is_revocable() {
                    forget_known(&mut self.known, hand_over);
                }
                &mut self.granted
            }
            Outcome::Acknowledged(_) => &mut self.granted,
            Outcome::TimedOut | Outcome::Refused(_) => &mut self.refused,
        };
        decided.push_back(waiter_id);
        self.outcomes.insert(waiter_id, outcome);
    }

    /// Records that the server has replied this outcome to the client.
    // perf: in line, like `forget`, so that the outcome is moved less often.
    #[inline(always)]
    pub fn record_answered(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        match outcome {
            Outcome::Granted(hand_over) => self.provisional.add(waiter_id, hand_over),
            Outcome::Acknowledged(_) | Outcome::TimedOut | Outcome::Refused(_) => {}
        }
    }

    /// Returns true if there is an outcome that the server may not have sent yet.
    pub fn has_unsent(&self) -> bool {
        !self.provisional.is_empty() || !self.outcomes.is_empty()
    }

    /// Records that a reply to a connection confirmed that its token holds these names. A hand-over
    /// of one of them to the same token is then not taken back, even if its client is gone.
    pub fn record_known(&mut self, token: &Token, names: &Names) {
        if self.has_unsent() {
            let pairs = names.iter().map(|name| (token.clone(), name.clone()));
            self.known.extend(pairs);
        }
    }

    /// Returns true if a reply to another connection has confirmed a hand-over's grant.
    pub fn is_known(&self, hand_over: &HandOver) -> bool {
        confirms(&self.known, hand_over)
    }

    /// Has the hand-overs that may still be taken back follow their locks. Those whose grant was
    /// confirmed stay confirmed.
    pub fn relocate(&mut self, relocation: &Relocation) {
        let known = mem::take(&mut self.known);
        for hand_over in self.unsent() {
            if confirms(&known, hand_over) {
                hand_over.take_back = TakeBack::Never;
            }
            hand_over.relocate(relocation);
        }
    }

    /// Returns the hand-overs whose replies may not be sent yet.
    pub fn unsent(&mut self) -> impl Iterator<Item = &mut HandOver> {
        let decided = self.outcomes.values_mut().filter_map(|it| match it {
            Outcome::Granted(hand_over) => Some(hand_over),
            Outcome::Acknowledged(_) | Outcome::TimedOut | Outcome::Refused(_) => None,
        });
        decided.chain(self.provisional.iter_mut())
    }

    /// Forgets the provisional hand-overs, because the server has sent its replies. They can't be
    /// taken back any more.
    pub fn forget_provisional(&mut self) {
        self.provisional.clear();
        if self.outcomes.is_empty() {
            self.known.clear();
        }
    }

    /// Returns the next client to unblock. All clients with a grant come first, because their
    /// hand-overs are provisional until they are sent. Then come at most `others_left` of the
    /// others.
    pub fn next_decided(&mut self, others_left: &mut usize) -> Option<Handle> {
        loop {
            let waiter_id = self.granted.pop_front().or_else(|| {
                *others_left = others_left.checked_sub(1)?;
                self.refused.pop_front()
            })?;
            if let Some(client) = self.clients.get(&waiter_id) {
                return Some(client.handle);
            }
        }
    }

    /// Removes a client that the server no longer holds blocked, or won't. Returns `None` if it was
    /// removed before.
    #[inline(always)]
    pub fn forget(&mut self, waiter_id: WaiterId) -> Option<Forgotten> {
        let Blocked {
            client_id,
            position,
            ..
        } = self.clients.remove(&waiter_id)?;
        Some(Forgotten {
            client_id,
            position,
            outcome: self.outcomes.remove(&waiter_id),
        })
    }
}

fn confirms(known: &HashSet<(Token, Name)>, HandOver { grant, names, .. }: &HandOver) -> bool {
    let is_known = |name: &Name| known.contains(&(grant.token.clone(), name.clone()));
    !known.is_empty() && names.iter().any(is_known)
}

/// Forgets earlier confirmations of a token's names, because no reply has confirmed this hand-over
/// yet.
fn forget_known(known: &mut HashSet<(Token, Name)>, HandOver { grant, names, .. }: &HandOver) {
    if !known.is_empty() {
        for name in names {
            known.remove(&(grant.token.clone(), name.clone()));
        }
    }
}
