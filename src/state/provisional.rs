//! Provisional hand-overs: their replies are not sent yet, so they may still be taken back.

use foldhash::HashMap;
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::waiter::WaiterId;
use smallvec::SmallVec;

/// The number of entries whose memory is kept.
const KEPT: usize = 1024;

/// Hand-overs that were replied since the server last slept.
///
/// Invariant: the first `indexed` of them are in both maps, by their index in the list, unless
/// taken out.
// perf: they are many and rarely looked up, so the maps are filled only at a look-up.
#[derive(Default)]
pub struct Provisional {
    list: Vec<(WaiterId, Option<HandOver>)>,
    indexed: usize,
    of_client: HashMap<u64, SmallVec<[usize; 1]>>,
    of_waiter: HashMap<WaiterId, usize>,
}

impl Provisional {
    /// Adds a hand-over.
    #[inline(always)]
    pub fn add(&mut self, waiter_id: WaiterId, hand_over: HandOver) {
        self.list.push((waiter_id, Some(hand_over)));
    }

    /// Returns true if there is no hand-over.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns true if there may be a hand-over to this client.
    pub fn has_client(&mut self, client_id: u64) -> bool {
        self.index();
        self.of_client.contains_key(&client_id)
    }

    /// Removes the hand-overs to this client. Returns them.
    pub fn take_of_client(&mut self, client_id: u64) -> Vec<HandOver> {
        self.index();
        let places = self.of_client.remove(&client_id).unwrap_or_default();
        let taken = places.into_iter().filter_map(|place| self.take(place));
        taken.collect()
    }

    /// Removes the hand-over to this waiter. Returns it.
    pub fn take_of_waiter(&mut self, waiter_id: WaiterId) -> Option<HandOver> {
        self.index();
        let place = self.of_waiter.remove(&waiter_id)?;
        self.take(place)
    }

    /// Returns all hand-overs that were not taken out.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut HandOver> {
        self.list.iter_mut().filter_map(|(_, it)| it.as_mut())
    }

    /// Removes all hand-overs.
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
