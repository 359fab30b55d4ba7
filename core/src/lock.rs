//! A lock: who holds one key, in which mode, until when.
//!
//! The value decides about admission from its own fields and its arguments alone; queues are not
//! its concern. A deadline that equals now has ended.

use crate::holders::Holders;
use crate::order::Ask;
use crate::session::TieId;
use crate::token::Token;

/// How holders stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder, nobody beside it.
    Exclusive,
    /// Holders that admit each other, up to the smallest of their limits.
    Shared,
}

impl Mode {
    /// The mode as replies and effects spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

/// One grant that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who holds.
    pub token: Token,
    /// The number of the grant.
    pub fence: u64,
    /// How many RELEASEs it takes to leave; at least 1.
    pub holds: u64,
    /// The most holders that this one admits, itself included; 0: no limit.
    pub limit: u32,
    /// When the lease ends, in ms since the epoch.
    pub deadline_ms: u64,
    /// When the grant that gave the fence was made, in ms since the epoch.
    pub since_ms: u64,
    /// The connection last granted, 0 when unknown. Known to this server process only: neither
    /// stored nor replicated.
    pub client_id: u64,
    /// What ties the grant to a connection, if anything does. Neither stored nor replicated.
    pub tie: TieId,
}

/// The holders of one key.
///
/// Invariants: exclusive means one holder at most, with limit 0; tokens differ, and so do fences;
/// holders stand in the order of their fences, so that equal locks have equal bytes. A lock without
/// holders is free and is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    mode: Mode,
    holders: Holders,
}

/// How a request stands to a lock, apart from any queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The token holds in this mode: succeeds at once, with this fence.
    Repeat {
        /// The fence of the grant in force.
        fence: u64,
    },
    /// The token holds alone and wants to share: succeeds at once, with this fence.
    Downgrade {
        /// The fence of the grant in force.
        fence: u64,
    },
    /// The token shares with nobody and wants the lock for itself: succeeds with a new fence.
    Upgrade,
    /// The token shares with others and wants the lock for itself: has to wait for them.
    UpgradeBlocked,
    /// The holders admit this newcomer, if it is its turn.
    Admitted,
    /// The holders don't admit this newcomer.
    Blocked,
}

impl Default for Lock {
    fn default() -> Self {
        Self::free()
    }
}

impl Lock {
    /// A lock that nobody holds.
    pub fn free() -> Self {
        Self {
            mode: Mode::Exclusive,
            holders: Holders::new(),
        }
    }

    /// A lock held as told.
    ///
    /// Returns `None` where the holders break an invariant of the type.
    pub fn held(mode: Mode, holders: Vec<Holder>) -> Option<Self> {
        is_sound(mode, &holders).then(|| Self {
            mode,
            holders: holders.into_iter().collect(),
        })
    }

    /// How the holders share the lock; meaningless while it is free.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The holders, oldest grant first.
    pub const fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Whether nobody holds.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// The grant of this token, if it holds.
    pub fn holder(&self, token: &Token) -> Option<&Holder> {
        self.holders.get(token)
    }

    /// Changes the grant of this token; its token and fence stay. Tells whether it holds.
    pub fn update(&mut self, token: &Token, change: impl FnOnce(&mut Holder)) -> bool {
        self.holders.update(token, change)
    }

    /// When the first lease ends, in ms since the epoch; `None` when free.
    pub fn earliest_deadline_ms(&self) -> Option<u64> {
        self.holders.first_to_end().map(|own| own.deadline_ms)
    }

    /// When the last lease ends, in ms since the epoch; `None` when free.
    pub fn latest_deadline_ms(&self) -> Option<u64> {
        self.holders.last_to_end().map(|own| own.deadline_ms)
    }

    /// The greatest fence among the grants in force; 0 when free.
    pub fn highest_fence(&self) -> u64 {
        self.holders.last().map_or(0, |own| own.fence)
    }

    /// Bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.holders.heap_bytes()
    }

    /// How the request stands to the holders.
    pub fn standing(&self, ask: &Ask) -> Standing {
        if let Some(own) = self.holder(&ask.token) {
            return self.standing_of_holder(own, ask.mode);
        }
        let room = match (self.mode, ask.mode) {
            _ if self.is_free() => true,
            (Mode::Shared, Mode::Shared) => self.has_room(ask.limit),
            _ => false,
        };
        if room {
            Standing::Admitted
        } else {
            Standing::Blocked
        }
    }

    fn standing_of_holder(&self, own: &Holder, wanted: Mode) -> Standing {
        match (self.mode, wanted) {
            (Mode::Exclusive, Mode::Shared) => Standing::Downgrade { fence: own.fence },
            (Mode::Shared, Mode::Exclusive) if self.holders.len() == 1 => Standing::Upgrade,
            (Mode::Shared, Mode::Exclusive) => Standing::UpgradeBlocked,
            _ => Standing::Repeat { fence: own.fence },
        }
    }

    /// Whether one more holder fits: where limits differ, the smallest binds.
    fn has_room(&self, limit: u32) -> bool {
        let own = (limit > 0).then_some(limit);
        let smallest = self.holders.smallest_limit().into_iter().chain(own).min();
        smallest.is_none_or(|most| self.holders.len() < most as usize)
    }

    /// Takes a grant in. Between shared holders it joins them or renews its own; every other grant
    /// stands alone, so it replaces all that was before.
    pub fn grant(&mut self, mode: Mode, holder: Holder) {
        if mode == Mode::Exclusive || self.mode == Mode::Exclusive {
            self.mode = mode;
            self.holders = Holders::new();
        }
        self.holders.insert(holder);
    }

    /// Takes a grant out. Tells whether there was one.
    pub fn remove(&mut self, token: &Token) -> bool {
        self.holders.remove(token).is_some()
    }

    /// Ends the leases that have run out, but for those that `renewed` gives another deadline, which
    /// is later than now. Tells how many ended.
    pub fn lapse(&mut self, now_ms: u64, renewed: impl Fn(&Holder) -> Option<u64>) -> u64 {
        let mut ended = 0;
        while let Some(own) = self.holders.first_to_end() {
            if own.deadline_ms > now_ms {
                break;
            }
            let (token, deadline_ms) = (own.token.clone(), renewed(own));
            match deadline_ms.filter(|ms| *ms > now_ms) {
                Some(deadline_ms) => {
                    self.holders
                        .update(&token, |own| own.deadline_ms = deadline_ms);
                }
                None => {
                    self.holders.remove(&token);
                    ended += 1;
                }
            }
        }
        ended
    }

    /// Shortens every lease that goes beyond `expiry_ms`, as EXPIRE by hand does.
    pub fn shorten(&mut self, expiry_ms: u64) {
        while let Some(own) = self.holders.last_to_end() {
            if own.deadline_ms <= expiry_ms {
                break;
            }
            let token = own.token.clone();
            self.holders
                .update(&token, |own| own.deadline_ms = expiry_ms);
        }
    }
}

fn is_sound(mode: Mode, holders: &[Holder]) -> bool {
    let shape = match mode {
        Mode::Exclusive => holders.len() == 1 && holders.iter().all(|own| own.limit == 0),
        Mode::Shared => !holders.is_empty(),
    };
    let following = holders.iter().zip(holders.iter().skip(1));
    let ordered = following.into_iter().all(|(a, b)| a.fence < b.fence);
    let mut tokens: Vec<&Token> = holders.iter().map(|own| &own.token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let distinct = tokens.len() == holders.len();
    shape && ordered && distinct && holders.iter().all(|own| own.holds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(token: &str, fence: u64, limit: u32) -> Holder {
        Holder {
            token: Token::new(token.as_bytes()).unwrap(),
            fence,
            holds: 1,
            limit,
            deadline_ms: 100 + fence,
            since_ms: 0,
            client_id: 0,
            tie: TieId::NONE,
        }
    }

    fn lock(mode: Mode, holders: &[(&str, u32)]) -> Lock {
        let mut lock = Lock::free();
        for (fence, (token, limit)) in (1..).zip(holders) {
            if lock.is_free() {
                lock = Lock::held(mode, vec![holder(token, fence, *limit)]).unwrap();
            } else {
                lock.grant(mode, holder(token, fence, *limit));
            }
        }
        lock
    }

    fn ask(token: &str, mode: Mode, limit: u32) -> Ask {
        Ask {
            token: Token::new(token.as_bytes()).unwrap(),
            mode,
            limit,
            lease_ms: 10,
            repeat: crate::order::Repeat::Renews,
            life: crate::order::Life::Lease,
        }
    }

    #[test]
    fn standing_as_a_table() {
        use Mode::{Exclusive as X, Shared as S};
        use Standing::*;
        let table = [
            // holders, who asks in which mode and limit, how it stands, why
            (lock(X, &[]), ask("a", X, 0), Admitted, "free"),
            (
                lock(X, &[]),
                ask("a", S, 1),
                Admitted,
                "free, also for a semaphore of one",
            ),
            (
                lock(X, &[("a", 0)]),
                ask("b", X, 0),
                Blocked,
                "one at a time",
            ),
            (
                lock(X, &[("a", 0)]),
                ask("b", S, 0),
                Blocked,
                "shared waits for exclusive",
            ),
            (
                lock(X, &[("a", 0)]),
                ask("a", X, 0),
                Repeat { fence: 1 },
                "own lock again",
            ),
            (
                lock(X, &[("a", 0)]),
                ask("a", S, 0),
                Downgrade { fence: 1 },
                "exclusive to shared",
            ),
            (
                lock(S, &[("a", 0)]),
                ask("b", S, 0),
                Admitted,
                "shared admit each other",
            ),
            (
                lock(S, &[("a", 0)]),
                ask("b", X, 0),
                Blocked,
                "exclusive waits for shared",
            ),
            (lock(S, &[("a", 0)]), ask("a", X, 0), Upgrade, "alone"),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                ask("a", X, 0),
                UpgradeBlocked,
                "not alone",
            ),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                ask("b", S, 0),
                Repeat { fence: 2 },
                "own share again",
            ),
            (
                lock(S, &[("a", 2), ("b", 2)]),
                ask("c", S, 2),
                Blocked,
                "both permits are taken",
            ),
            (
                lock(S, &[("a", 3), ("b", 2)]),
                ask("c", S, 9),
                Blocked,
                "a holder's limit binds",
            ),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                ask("c", S, 2),
                Blocked,
                "its own limit binds",
            ),
            (
                lock(S, &[("a", 3), ("b", 3)]),
                ask("c", S, 0),
                Admitted,
                "no limit of its own",
            ),
            (
                lock(S, &[("a", 2), ("b", 2)]),
                ask("a", S, 1),
                Repeat { fence: 1 },
                "a repeat is never refused",
            ),
        ];
        for (lock, ask, standing, why) in table {
            assert_eq!(lock.standing(&ask), standing, "{why}");
        }
    }

    #[test]
    fn a_lease_that_ends_now_has_ended() {
        let mut lock = lock(Mode::Shared, &[("a", 0), ("b", 0)]);
        assert_eq!(lock.lapse(100, |_| None), 0);
        assert_eq!(lock.lapse(101, |_| None), 1);
        assert_eq!(lock.holders().len(), 1);
        assert_eq!(lock.lapse(102, |_| None), 1);
        assert!(lock.is_free());
    }

    #[test]
    fn holders_stand_in_the_order_of_their_fences() {
        let mut lock = lock(Mode::Shared, &[("a", 0), ("b", 0)]);
        lock.grant(Mode::Shared, holder("a", 9, 0));
        let tokens: Vec<_> = lock.holders().iter().map(|h| h.fence).collect();
        assert_eq!(tokens, [2, 9]);
    }

    #[test]
    fn unsound_locks_are_not_made() {
        let two = vec![holder("a", 1, 0), holder("b", 2, 0)];
        assert!(
            Lock::held(Mode::Exclusive, two.clone()).is_none(),
            "two exclusive holders"
        );
        assert!(Lock::held(Mode::Shared, two).is_some());
        assert!(Lock::held(Mode::Shared, vec![]).is_none(), "nobody");
        assert!(
            Lock::held(Mode::Exclusive, vec![holder("a", 1, 3)]).is_none(),
            "exclusive with a limit"
        );
        let twice = vec![holder("a", 1, 0), holder("a", 2, 0)];
        assert!(Lock::held(Mode::Shared, twice).is_none(), "one token twice");
        let unordered = vec![holder("a", 2, 0), holder("b", 1, 0)];
        assert!(
            Lock::held(Mode::Shared, unordered).is_none(),
            "fences out of order"
        );
        let equal = vec![holder("a", 1, 0), holder("b", 1, 0)];
        assert!(Lock::held(Mode::Shared, equal).is_none(), "one fence twice");
        let none = Holder {
            holds: 0,
            ..holder("a", 1, 0)
        };
        assert!(
            Lock::held(Mode::Exclusive, vec![none]).is_none(),
            "no holds"
        );
    }
}
