//! The clients that the server holds blocked for the module.

use std::collections::HashMap;

use redis_lock_core::decision::Outcome;
use redis_lock_core::state::queue::WaiterId;
use redis_lock_core::values::hand_over::{HandOver, Origin};
use redis_module::raw;

/// The server's handle of a blocked client.
pub type Handle = *mut raw::RedisModuleBlockedClient;

/// A blocked client.
pub struct Blocked {
    /// Valid until one of the callbacks has run for it.
    pub handle: Handle,
    /// How its wait ended, once it has.
    pub outcome: Option<Outcome>,
    /// As of which [`rights_version`](super::State::rights_version) its user's rights were looked at.
    pub rights_version: u64,
}

/// Clients that the server holds blocked for the module, by number and by handle.
#[derive(Default)]
pub struct BlockedClients {
    /// By number.
    pub clients: HashMap<WaiterId, Blocked>,
    /// Their numbers, by handle.
    pub ids: HashMap<Handle, WaiterId>,
    /// Those with an outcome of whom the server is not told yet.
    pub decided: Vec<WaiterId>,
    /// Hand-overs since the server last slept, and whose they are.
    pub provisional: HashMap<WaiterId, HandOver>,
    /// The same by client.
    pub provisional_of: HashMap<u64, Vec<WaiterId>>,
}

impl BlockedClients {
    /// Records how a wait ended; the server is told next.
    pub fn record(&mut self, waiter_id: WaiterId, outcome: Outcome) {
        let Some(client) = self.clients.get_mut(&waiter_id) else {
            return;
        };
        if let Outcome::Granted(hand_over) = &outcome {
            if hand_over.origin == Origin::New {
                self.provisional.insert(waiter_id, hand_over.clone());
                let waiter_ids = self.provisional_of.entry(hand_over.client_id).or_default();
                waiter_ids.push(waiter_id);
            }
        }
        client.outcome = Some(outcome);
        self.decided.push(waiter_id);
    }

    /// Those whom the server is to be told of next: all who were granted something, whose hand-overs are
    /// provisional until they are sent, and at most `most` others. Tells whether some are left.
    pub fn take_decided(&mut self, most: usize) -> (Vec<WaiterId>, bool) {
        let mut others = 0;
        let clients = &self.clients;
        let (left, taken) = std::mem::take(&mut self.decided)
            .into_iter()
            .partition(|waiter_id| {
                let outcome = clients.get(waiter_id).map(|client| &client.outcome);
                let granted = matches!(outcome, Some(Some(Outcome::Granted(_))));
                others += usize::from(!granted);
                !granted && others > most
            });
        self.decided = left;
        (taken, !self.decided.is_empty())
    }

    /// The server is done with a client, or will be.
    pub fn forget(&mut self, handle: Handle) -> Option<(WaiterId, Option<Outcome>)> {
        let waiter_id = self.ids.remove(&handle)?;
        let blocked = self.clients.remove(&waiter_id)?;
        Some((waiter_id, blocked.outcome))
    }
}
