//! The waiters of one name that lack permits there, found by the permits that are free.

use std::collections::BTreeSet;

use crate::state::slab::Position;
use crate::values::lock::Lack;

/// The bits of one digit, by which a prefix is longer than the next shorter prefix.
const BITS: u32 = 4;

/// The number of values of one digit.
const DIGITS: u64 = 1 << BITS;

/// The waiters of a name that lack permits there, each with its [`Lack`]. Every change and look-up
/// costs O(log n).
#[derive(Debug, Default)]
pub struct Lacking {
    by_permits: ByNumber,
    by_limit: ByNumber,
}

impl Lacking {
    /// Adds a waiter that is not listed yet.
    pub fn insert(&mut self, lack: Lack, position: Position) {
        self.listing(lack, |list, number| list.insert(number, position));
    }

    /// Removes a waiter.
    pub fn remove(&mut self, lack: Lack, position: Position) {
        self.listing(lack, |list, number| list.remove(number, position));
    }

    fn listing(&mut self, lack: Lack, change: impl FnOnce(&mut ByNumber, u32)) {
        match lack {
            Lack::Permits(permits_short) => change(&mut self.by_permits, permits_short),
            // A greater limit is met sooner, so limits are listed in reverse.
            Lack::Limit(most) => change(&mut self.by_limit, u32::MAX - most),
        }
    }

    /// Returns the first waiter in the queue whose lack is met. All holders together have `taken`
    /// permits, and `room` more are free under their limits.
    pub fn first_met(&self, taken: u64, room: u64) -> Option<Position> {
        let by_permits = self.by_permits.first_up_to(room);
        let unmet = u64::from(u32::MAX).checked_sub(taken);
        let by_limit = unmet.and_then(|most| self.by_limit.first_up_to(most));
        by_permits.into_iter().chain(by_limit).min()
    }

    /// Returns true if there is no waiter.
    pub fn is_empty(&self) -> bool {
        self.by_permits.0.is_empty() && self.by_limit.0.is_empty()
    }

    /// Returns the number of waiters.
    pub fn len(&self) -> usize {
        self.by_permits.len() + self.by_limit.len()
    }
}

/// Positions by number. A position is listed under each prefix of its number, so a few prefixes
/// cover all positions up to a number. The first position of a prefix is the first entry of its
/// range.
///
/// An entry is the count of digits that the prefix lacks, the prefix, and the position.
#[derive(Debug, Default)]
struct ByNumber(BTreeSet<(u32, u64, Position)>);

/// Returns the prefixes of a number, the number itself first, each with the count of digits it
/// lacks.
fn prefixes(number: u64) -> impl Iterator<Item = (u32, u64)> {
    (0..=u32::BITS / BITS).map(move |lacking| (lacking, number >> (lacking * BITS)))
}

impl ByNumber {
    fn insert(&mut self, number: u32, position: Position) {
        let entries = prefixes(number.into());
        self.0
            .extend(entries.map(|(lacking, prefix)| (lacking, prefix, position)));
    }

    fn remove(&mut self, number: u32, position: Position) {
        for (lacking, prefix) in prefixes(number.into()) {
            self.0.remove(&(lacking, prefix, position));
        }
    }

    fn len(&self) -> usize {
        self.0.len() / prefixes(0).count()
    }

    /// Returns the first position with a number of at most `most`.
    fn first_up_to(&self, most: u64) -> Option<Position> {
        if self.0.is_empty() {
            return None;
        }
        let mut first: Option<Position> = None;
        for (lacking, end) in prefixes(most.min(u64::from(u32::MAX)) + 1) {
            let whole = end - end % DIGITS..end;
            let found = whole.filter_map(|prefix| self.first_of(lacking, prefix));
            first = first.into_iter().chain(found).min();
        }
        first
    }

    fn first_of(&self, lacking: u32, prefix: u64) -> Option<Position> {
        let mut from = self.0.range((lacking, prefix, Position::LEAST)..);
        let (its_lacking, its_prefix, position) = from.next()?;
        ((*its_lacking, *its_prefix) == (lacking, prefix)).then_some(*position)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::slab::{End, Slab};

    fn lack() -> impl Strategy<Value = Lack> {
        let number = prop_oneof![0..40u32, any::<u32>(), Just(u32::MAX)];
        (any::<bool>(), number).prop_map(|(by_limit, number)| match by_limit {
            true => Lack::Limit(number),
            false => Lack::Permits(number),
        })
    }

    proptest! {
        #[test]
        fn the_first_whose_lack_is_met_is_found(
            lacks in proptest::collection::vec((lack(), any::<bool>()), 1..60),
            taken in prop_oneof![0..50u64, any::<u64>()],
            room in prop_oneof![0..50u64, any::<u64>()],
        ) {
            let (mut slab, mut lacking, mut left) = (Slab::default(), Lacking::default(), Vec::new());
            for (lack, stays) in &lacks {
                let position = slab.add(End::Back, ());
                lacking.insert(*lack, position);
                left.push((*lack, position, *stays));
            }
            for (lack, position, _) in left.extract_if(.., |(_, _, stays)| !*stays) {
                lacking.remove(lack, position);
            }
            let is_met = |lack| match lack {
                Lack::Permits(permits_short) => u64::from(permits_short) <= room,
                Lack::Limit(most) => taken <= u64::from(most),
            };
            let met = left.iter().filter(|(lack, ..)| is_met(*lack));
            let first = met.map(|(_, position, _)| *position).min();
            prop_assert_eq!(lacking.first_met(taken, room), first);
            prop_assert_eq!((lacking.len(), lacking.is_empty()), (left.len(), left.is_empty()));
        }
    }
}
