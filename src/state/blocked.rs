//! The clients that the server holds blocked for the module.

use std::collections::VecDeque;

use foldhash::{HashMap, HashSet};
use redis_lock_core::decision::Outcome;
use redis_lock_core::state::hand_over::{HandOver, Origin};
use redis_lock_core::state::queue::{Position, WaiterId};
use redis_lock_core::values::name::{Name, Names};
use redis_lock_core::values::token::Token;
use redis_module::raw;

use super::provisional::Provisional;

/// The server's handle of a blocked client.
pub type Handle = *mut raw::RedisModuleBlockedClient;

/// A blocked client.
pub struct Blocked {
    /// Valid until one of the callbacks has run for it.
    pub handle: Handle,
    /// Whose connection it is.
    pub client_id: u64,
    /// Where it was queued.
    pub position: Position,
    /// The [version](super::rights::RightsWatch::version) in which its user's rights were looked at.
    pub rights_version: u64,
}

/// What was known of a client that the server is done with.
pub struct Forgotten {
    /// Whose connection it is.
    pub client_id: u64,
    /// Where it was queued.
    pub position: Position,
    /// How its wait ended, if it has.
    pub outcome: Option<Outcome>,
}

/// Clients that the server holds blocked for the module.
#[derive(Default)]
pub struct BlockedClients {
    /// All of them.
    pub clients: HashMap<WaiterId, Blocked>,
    /// How the waits ended that have, of those whom the server hasn't answered yet: few of all.
    outcomes: HashMap<WaiterId, Outcome>,
    /// Those who were granted something and of whom the server is not told yet.
    granted: VecDeque<WaiterId>,
    /// Those whose wait ended otherwise and of whom the server is not told yet.
    pub refused: VecDeque<WaiterId>,
    /// What was handed to those whom the server has answered since it last slept.
    pub provisional: Provisional,
    /// Which tokens another connection was told since then that they hold, and where: what was handed to
    /// them there is not taken back any more.
    known: HashSet<(Token, Name)>,
}

impl BlockedClients {
    /// Records how a wait ended; the server is told next.
    pub fn record(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        if !self.clients.contains_key(&waiter_id) {
            return;
        }
        let decided = match &outcome {
            Outcome::Granted(hand_over) => {
                if hand_over.origin == Origin::New {
                    forget_known(&mut self.known, hand_over);
                }
                &mut self.granted
            }
            Outcome::TimedOut | Outcome::Refused(_) => &mut self.refused,
        };
        decided.push_back(waiter_id);
        self.outcomes.insert(waiter_id, outcome);
    }

    /// The server has answered a client as its wait came to.
    pub fn record_answered(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        match outcome {
            Outcome::Granted(hand_over) if hand_over.origin == Origin::New => {
                self.provisional.add(waiter_id, hand_over);
            }
            Outcome::Granted(_) | Outcome::TimedOut | Outcome::Refused(_) => {}
        }
    }

    /// Whether anybody was handed something and wasn't sent that yet.
    pub fn has_unsent(&self) -> bool {
        !self.provisional.is_empty() || !self.outcomes.is_empty()
    }

    /// A connection was told that its token holds these names. Whoever else was handed one of them by the
    /// same token, and wasn't sent that yet, may be gone: somebody knows of it.
    pub fn record_known(&mut self, token: &Token, names: &Names) {
        if self.has_unsent() {
            let pairs = names.iter().map(|name| (token.clone(), name.clone()));
            self.known.extend(pairs);
        }
    }

    /// Whether somebody else than its client was told of a hand-over.
    pub fn is_known(&self, HandOver { grant, names, .. }: &HandOver) -> bool {
        let is_known = |name: &Name| self.known.contains(&(grant.token.clone(), name.clone()));
        !self.known.is_empty() && names.iter().any(is_known)
    }

    /// What the server had to send is sent: what was handed over before stays.
    pub fn forget_provisional(&mut self) {
        self.provisional.clear();
        if self.outcomes.is_empty() {
            self.known.clear();
        }
    }

    /// Whom the server is to be told of next: all who were granted something, whose hand-overs are
    /// provisional until they are sent, and then as many others as are left to be told of.
    pub fn next_decided(&mut self, others_left: &mut usize) -> Option<WaiterId> {
        self.granted.pop_front().or_else(|| {
            *others_left = others_left.checked_sub(1)?;
            self.refused.pop_front()
        })
    }

    /// The server is done with a client, or will be. Nothing where it was forgotten before.
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

/// Nobody was told of a hand-over that is made now.
fn forget_known(known: &mut HashSet<(Token, Name)>, HandOver { grant, names, .. }: &HandOver) {
    if !known.is_empty() {
        for name in names {
            known.remove(&(grant.token.clone(), name.clone()));
        }
    }
}
