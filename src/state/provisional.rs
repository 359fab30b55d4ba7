//! Hand-overs that may still be taken back: those whose answers are not sent yet.

use foldhash::HashMap;
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::queue::WaiterId;
use smallvec::SmallVec;

/// For how many there is room for ever.
const KEPT: usize = 1024;

/// Hand-overs that were answered since the server last slept. They are many, and hardly ever is one looked for:
/// so they are listed, and found by an index that is made when it is needed.
///
/// Invariant: the first `indexed` of them are in both maps, by their place in the list, unless taken out.
#[derive(Default)]
pub struct Provisional {
    list: Vec<(WaiterId, Option<HandOver>)>,
    indexed: usize,
    of_client: HashMap<u64, SmallVec<[usize; 1]>>,
    of_waiter: HashMap<WaiterId, usize>,
}

impl Provisional {
    /// Adds one.
    pub fn add(&mut self, waiter_id: WaiterId, hand_over: HandOver) {
        self.list.push((waiter_id, Some(hand_over)));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there may be one to this client.
    pub fn has_client(&mut self, client_id: u64) -> bool {
        self.index();
        self.of_client.contains_key(&client_id)
    }

    /// Takes out those to this client.
    pub fn take_of_client(&mut self, client_id: u64) -> Vec<HandOver> {
        self.index();
        let places = self.of_client.remove(&client_id).unwrap_or_default();
        let taken = places.into_iter().filter_map(|place| self.take(place));
        taken.collect()
    }

    /// Takes out the one to this waiter.
    pub fn take_of_waiter(&mut self, waiter_id: WaiterId) -> Option<HandOver> {
        self.index();
        let place = self.of_waiter.remove(&waiter_id)?;
        self.take(place)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.list.clear();
        self.list.shrink_to(KEPT);
        if self.indexed > 0 {
            self.indexed = 0;
            self.of_client.clear();
            self.of_waiter.clear();
        }
    }

    fn take(&mut self, place: usize) -> Option<HandOver> {
        self.list.get_mut(place)?.1.take()
    }

    fn index(&mut self) {
        let all = self.list.iter().enumerate();
        for (place, (waiter_id, hand_over)) in all.skip(self.indexed) {
            if let Some(HandOver { client_id, .. }) = hand_over {
                self.of_client.entry(*client_id).or_default().push(place);
                self.of_waiter.insert(*waiter_id, place);
            }
        }
        self.indexed = self.list.len();
    }
}
