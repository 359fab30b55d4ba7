//! The clients that the server holds blocked for the module.

use std::collections::VecDeque;

use foldhash::HashMap;
use redis_lock_core::decision::Outcome;
use redis_lock_core::state::hand_over::{HandOver, Origin};
use redis_lock_core::state::queue::WaiterId;
use redis_module::raw;
use smallvec::SmallVec;

/// The server's handle of a blocked client.
pub type Handle = *mut raw::RedisModuleBlockedClient;

/// A blocked client.
pub struct Blocked {
    /// Valid until one of the callbacks has run for it.
    pub handle: Handle,
    /// Whose connection it is.
    pub client_id: u64,
    /// As of which [`rights_version`](super::State::rights_version) its user's rights were looked at.
    pub rights_version: u64,
}

/// What was known of a client that the server is done with.
pub struct Forgotten {
    /// Whose connection it is.
    pub client_id: u64,
    /// How its wait ended, if it has.
    pub outcome: Option<Outcome>,
}

/// Clients that the server holds blocked for the module.
#[derive(Default)]
pub struct BlockedClients {
    /// All of them.
    pub clients: HashMap<WaiterId, Blocked>,
    /// How the waits ended that have, of those whom the server hasn't answered yet.
    pub outcomes: HashMap<WaiterId, Outcome>,
    /// Those who were granted something and of whom the server is not told yet.
    granted: VecDeque<WaiterId>,
    /// Those whose wait ended otherwise and of whom the server is not told yet.
    pub refused: VecDeque<WaiterId>,
    /// Hand-overs since the server last slept, and whose they are.
    pub provisional: HashMap<WaiterId, HandOver>,
    /// The same by client.
    pub provisional_of: HashMap<u64, SmallVec<[WaiterId; 1]>>,
}

impl BlockedClients {
    /// Records how a wait ended; the server is told next.
    pub fn record(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        if !self.clients.contains_key(&waiter_id) {
            return;
        }
        let is_granted = matches!(outcome, Outcome::Granted(_));
        if let Outcome::Granted(hand_over) = &outcome {
            if hand_over.origin == Origin::New {
                self.provisional.insert(waiter_id, hand_over.clone());
                let waiter_ids = self.provisional_of.entry(hand_over.client_id).or_default();
                waiter_ids.push(waiter_id);
            }
        }
        self.outcomes.insert(waiter_id, outcome);
        let decided = if is_granted {
            &mut self.granted
        } else {
            &mut self.refused
        };
        decided.push_back(waiter_id);
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
        let Blocked { client_id, .. } = self.clients.remove(&waiter_id)?;
        let outcome = self.outcomes.remove(&waiter_id);
        Some(Forgotten { client_id, outcome })
    }
}
