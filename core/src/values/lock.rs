//! A lock: the holders of one key, their mode and their deadlines.
//!
//! Compatibility depends on the lock and the request only. Queues play no part here. A lease whose
//! deadline equals now has not ended yet.

use crate::hints::likely;
use crate::values::holder::{Holder, Mode};
use crate::values::holders::Holders;
use crate::values::request::Request;
use crate::values::time::{has_passed, MAX_SPAN_MS};
use crate::values::token::Token;

/// The holders of one key.
///
/// A lock without holders is free and is not stored.
///
/// Invariants:
/// 1. An exclusive lock has at most one holder, and its limit is 0.
/// 2. No holder has more permits than its limit. A holder without a limit has one permit.
/// 3. Tokens differ.
/// 4. Holders are in the order of their fences, those with the same fence in the order of their
///    tokens. So equal locks have equal bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    mode: Mode,
    holders: Holders,
}

/// The compatibility of a request with the holders of a lock, apart from any queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// The token holds in this mode. The request succeeds at once, with this fence.
    Reentry {
        /// The fence of the grant in force.
        fence: u64,
    },
    /// The token holds exclusively and asks for shared. The request succeeds at once, with this
    /// fence.
    Downgrade {
        /// The fence of the grant in force.
        fence: u64,
    },
    /// The token is the only shared holder and asks for exclusive. The request succeeds with a new
    /// fence.
    Upgrade,
    /// The token is one of several shared holders and asks for exclusive. It has to wait for the
    /// other holders.
    UpgradeBlocked,
    /// The token is a shared holder and asks for more permits, which are free.
    Raise {
        /// The fence of the grant in force.
        fence: u64,
    },
    /// The token is a shared holder and asks for more permits, which are not free.
    RaiseBlocked {
        /// The permits that the token lacks.
        lack: Lack,
    },
    /// The token does not hold, and the holders admit it if it is its turn.
    Admitted,
    /// The token does not hold, and the holders do not admit it.
    Blocked,
}

/// The permits that a shared holder lacks for a request that asks for more than its grant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The number of permits that must be free under the limits of the other holders.
    Permits(u32),
    /// The most permits that all holders together may have, because of the request's own limit.
    Limit(u32),
}

impl Default for Lock {
    fn default() -> Self {
        Self::free()
    }
}

impl Lock {
    /// Returns a lock without holders.
    pub const fn free() -> Self {
        Self {
            mode: Mode::Exclusive,
            holders: Holders::new(),
        }
    }

    /// Returns a lock with these holders; `None` if they break an invariant of the type.
    pub fn held(mode: Mode, holders: Vec<Holder>) -> Option<Self> {
        is_sound(mode, &holders).then(|| Self {
            mode,
            holders: holders.into_iter().collect(),
        })
    }

    /// Returns the mode, which has no meaning while the lock is free.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the holders, oldest grant first.
    pub const fn holders(&self) -> &Holders {
        &self.holders
    }

    /// Returns true if there is no holder.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// Returns the grant of this token, if the token holds.
    #[inline(always)]
    pub fn holder(&self, token: &Token) -> Option<&Holder> {
        self.holders.get(token)
    }

    /// Changes the grant of this token. `change` must keep the token. Returns true if the token
    /// holds.
    pub fn update(&mut self, token: &Token, change: impl FnOnce(&mut Holder)) -> bool {
        self.holders.update(token, change)
    }

    /// Returns the deadline of the first lease to end, in ms since the epoch; `None` if the lock is
    /// free.
    #[inline(always)]
    pub fn earliest_deadline_ms(&self) -> Option<u64> {
        self.holders.first_to_end().map(|own| own.deadline_ms)
    }

    /// Returns the deadline of the last lease to end, in ms since the epoch; `None` if the lock is
    /// free.
    #[inline(always)]
    pub fn latest_deadline_ms(&self) -> Option<u64> {
        self.holders.last_to_end().map(|own| own.deadline_ms)
    }

    /// Returns the greatest fence of the grants; 0 if the lock is free.
    pub fn highest_fence(&self) -> u64 {
        self.holders.last().map_or(0, |own| own.fence)
    }

    /// Returns the bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.holders.heap_bytes()
    }

    /// Returns the compatibility of a request with the holders.
    #[inline(always)]
    pub fn compatibility(&self, request: &Request) -> Compatibility {
        if likely(self.is_free()) {
            Compatibility::Admitted
        } else {
            self.compatibility_of_held(request)
        }
    }

    #[inline(never)]
    fn compatibility_of_held(&self, request: &Request) -> Compatibility {
        if let Some(own) = self.holder(&request.token) {
            return self.compatibility_of_holder(own, request);
        }
        let admits = match (self.mode, request.mode) {
            (Mode::Shared, Mode::Shared) => {
                let taken = self.holders.permits();
                let asked = (request.limit, request.permits);
                has_room(asked, taken, self.holders.smallest_limit())
            }
            _ => false,
        };
        if admits {
            Compatibility::Admitted
        } else {
            Compatibility::Blocked
        }
    }

    fn compatibility_of_holder(&self, own: &Holder, request: &Request) -> Compatibility {
        match (self.mode, request.mode) {
            (Mode::Exclusive, Mode::Shared) => Compatibility::Downgrade { fence: own.fence },
            (Mode::Shared, Mode::Exclusive) if self.holders.len() == 1 => Compatibility::Upgrade,
            (Mode::Shared, Mode::Exclusive) => Compatibility::UpgradeBlocked,
            (Mode::Shared, Mode::Shared) if request.permits > own.permits => {
                self.compatibility_of_raise(own, request)
            }
            _ => Compatibility::Reentry { fence: own.fence },
        }
    }

    fn compatibility_of_raise(&self, own: &Holder, request: &Request) -> Compatibility {
        let taken = self.holders.permits() - u64::from(own.permits);
        let asked = (request.limit, request.permits);
        if has_room(asked, taken, self.holders.smallest_limit_beside(own)) {
            Compatibility::Raise { fence: own.fence }
        } else {
            let lack = self.lack_of(own, request);
            Compatibility::RaiseBlocked { lack }
        }
    }

    /// Returns the permits that a holder lacks, if its request does not fit beside the other
    /// holders.
    fn lack_of(&self, own: &Holder, request: &Request) -> Lack {
        let permits_short = request.permits - own.permits;
        let taken = self.holders.permits() + u64::from(permits_short);
        if request.limit > 0 && taken > u64::from(request.limit) {
            Lack::Limit(request.limit.saturating_sub(permits_short))
        } else {
            Lack::Permits(permits_short)
        }
    }

    /// Returns true if the holders admit this grant of another token.
    pub fn admits(&self, mode: Mode, other: &Holder) -> bool {
        let taken = self.holders.permits();
        let limit = self.holders.smallest_limit();
        let are_shared = (self.mode, mode) == (Mode::Shared, Mode::Shared);
        self.is_free() || (are_shared && has_room((other.limit, other.permits), taken, limit))
    }

    /// Returns the number of permits that are free under the smallest limit of the holders.
    pub fn room(&self) -> u64 {
        let limit = self.holders.smallest_limit();
        let limit = limit.map_or(u64::MAX, u64::from);
        limit.saturating_sub(self.holders.permits())
    }

    /// Returns a lock with one holder.
    #[inline(always)]
    pub fn sole(mode: Mode, holder: Holder) -> Self {
        Self {
            mode,
            holders: Holders::sole(holder),
        }
    }

    /// Returns true if a grant in this mode replaces all holders. A shared grant joins shared
    /// holders.
    pub fn is_replaced_by(&self, mode: Mode) -> bool {
        mode == Mode::Exclusive || self.mode == Mode::Exclusive
    }

    /// Adds a grant. A shared grant joins shared holders, or replaces the token's own grant among
    /// them. Every other grant replaces all holders.
    pub fn grant(&mut self, mode: Mode, holder: Holder) {
        if self.is_replaced_by(mode) {
            *self = Self::sole(mode, holder);
        } else {
            self.holders.insert(holder);
        }
    }

    /// Removes the grant of a token. Returns true if the token had one.
    pub fn remove(&mut self, token: &Token) -> bool {
        self.holders.remove(token).is_some()
    }

    /// Ends the leases that have run out, except those to which `renewed` gives a deadline that has
    /// not passed. Returns the number of leases that ended.
    pub fn expire(&mut self, now_ms: u64, renewed: impl Fn(&Holder) -> Option<u64>) -> u64 {
        let mut ended = 0;
        while let Some(own) = self.holders.first_to_end() {
            if !has_passed(own.deadline_ms, now_ms) {
                break;
            }
            let (token, deadline_ms) = (own.token.clone(), renewed(own));
            match deadline_ms.filter(|ms| !has_passed(*ms, now_ms)) {
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

    /// Shortens every lease with a deadline after `expiry_ms`, like an EXPIRE by hand.
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

/// A lock as it is stored in the keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The lock.
    pub lock: Lock,
    /// The expiry of the key itself, in ms since the epoch. It can differ from the last deadline
    /// because of an EXPIRE or PERSIST by hand.
    pub expiry_ms: Option<u64>,
}

/// Returns true if a grant with this limit and these permits fits beside holders that take `taken`
/// permits and have `limit` as
/// their smallest limit. If limits differ, the smallest one binds.
fn has_room((own_limit, permits): (u32, u32), taken: u64, limit: Option<u32>) -> bool {
    let own = (own_limit > 0).then_some(own_limit);
    let smallest = limit.into_iter().chain(own).min();
    let wanted = taken.saturating_add(permits.into());
    smallest.is_none_or(|most| wanted <= most.into())
}

fn is_sound(mode: Mode, holders: &[Holder]) -> bool {
    let shape = match mode {
        Mode::Exclusive => holders.len() == 1 && holders.iter().all(|own| own.limit == 0),
        Mode::Shared => !holders.is_empty(),
    };
    let following = holders.iter().zip(holders.iter().skip(1));
    let ordered = following.into_iter().all(|(a, b)| a.rank() < b.rank());
    let mut tokens: Vec<&Token> = holders.iter().map(|own| &own.token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let distinct = tokens.len() == holders.len();
    shape && ordered && distinct && holders.iter().all(is_sound_grant)
}

fn is_sound_grant(own: &Holder) -> bool {
    own.holds > 0
        && (1..=own.limit.max(1)).contains(&own.permits)
        && (1..=MAX_SPAN_MS).contains(&own.lease_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::data::Data;
    use crate::values::session_id::SessionId;

    fn holder(token: &str, fence: u64, limit: u32) -> Holder {
        Holder {
            token: Token::new(token.as_bytes()).unwrap(),
            fence,
            holds: 1,
            limit,
            permits: 1,
            deadline_ms: 100 + fence,
            lease_ms: 10,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
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

    fn request(token: &str, mode: Mode, limit: u32) -> Request {
        Request {
            token: Token::new(token.as_bytes()).unwrap(),
            mode,
            limit,
            permits: 1,
            lease_ms: 10,
            reentry: crate::values::request::Reentry::Renews,
            lease_kind: crate::values::request::LeaseKind::Lease,
            data: None,
        }
    }

    #[test]
    fn compatibility_as_a_table() {
        use Compatibility::*;
        use Mode::{Exclusive as X, Shared as S};
        let table = [
            // Holders; token, mode and limit of the request; compatibility; reason.
            (lock(X, &[]), request("a", X, 0), Admitted, "free"),
            (
                lock(X, &[]),
                request("a", S, 1),
                Admitted,
                "free, also for a semaphore of one",
            ),
            (
                lock(X, &[("a", 0)]),
                request("b", X, 0),
                Blocked,
                "one at a time",
            ),
            (
                lock(X, &[("a", 0)]),
                request("b", S, 0),
                Blocked,
                "shared waits for exclusive",
            ),
            (
                lock(X, &[("a", 0)]),
                request("a", X, 0),
                Reentry { fence: 1 },
                "own lock again",
            ),
            (
                lock(X, &[("a", 0)]),
                request("a", S, 0),
                Downgrade { fence: 1 },
                "exclusive to shared",
            ),
            (
                lock(S, &[("a", 0)]),
                request("b", S, 0),
                Admitted,
                "shared admit each other",
            ),
            (
                lock(S, &[("a", 0)]),
                request("b", X, 0),
                Blocked,
                "exclusive waits for shared",
            ),
            (lock(S, &[("a", 0)]), request("a", X, 0), Upgrade, "alone"),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                request("a", X, 0),
                UpgradeBlocked,
                "not alone",
            ),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                request("b", S, 0),
                Reentry { fence: 2 },
                "own share again",
            ),
            (
                lock(S, &[("a", 2), ("b", 2)]),
                request("c", S, 2),
                Blocked,
                "both permits are taken",
            ),
            (
                lock(S, &[("a", 3), ("b", 2)]),
                request("c", S, 9),
                Blocked,
                "a holder's limit binds",
            ),
            (
                lock(S, &[("a", 0), ("b", 0)]),
                request("c", S, 2),
                Blocked,
                "its own limit binds",
            ),
            (
                lock(S, &[("a", 3), ("b", 3)]),
                request("c", S, 0),
                Admitted,
                "no limit of its own",
            ),
            (
                lock(S, &[("a", 2), ("b", 2)]),
                request("a", S, 1),
                Reentry { fence: 1 },
                "a repeat is never refused",
            ),
        ];
        for (lock, request, compatibility, why) in table {
            assert_eq!(lock.compatibility(&request), compatibility, "{why}");
        }
    }

    #[test]
    fn permits_as_a_table() {
        use Compatibility::*;
        // Limit and permits of each holder; token, limit and permits of the request; compatibility;
        // reason.
        let table = [
            (&[(5, 3)][..], ("n", (5, 2)), Admitted, "both fit"),
            (&[(5, 3)], ("n", (5, 3)), Blocked, "one too many"),
            (&[(5, 3), (0, 1)], ("n", (0, 1)), Admitted, "counts as one"),
            (
                &[(5, 3), (0, 1)],
                ("n", (5, 2)),
                Blocked,
                "one without a limit counts",
            ),
            (&[(4, 4)], ("n", (0, 1)), Blocked, "all are taken"),
            (&[(5, 3)], ("n", (3, 1)), Blocked, "its own limit binds"),
            (
                &[(u32::MAX, u32::MAX)],
                ("n", (u32::MAX, u32::MAX)),
                Blocked,
                "no overflow",
            ),
            (&[(5, 3)], ("a", (5, 3)), Reentry { fence: 1 }, "as before"),
            (&[(5, 3)], ("a", (1, 1)), Reentry { fence: 1 }, "lowered"),
            (
                &[(5, 3), (5, 1)],
                ("a", (5, 4)),
                Raise { fence: 1 },
                "one is free",
            ),
            (
                &[(5, 3), (5, 2)],
                ("a", (5, 4)),
                RaiseBlocked {
                    lack: Lack::Limit(4),
                },
                "none is",
            ),
            (
                &[(3, 3), (5, 1)],
                ("a", (5, 4)),
                Raise { fence: 1 },
                "its old limit goes",
            ),
            (
                &[(5, 1), (5, 1)],
                ("a", (4, 4)),
                RaiseBlocked {
                    lack: Lack::Limit(1),
                },
                "its new one binds",
            ),
            (
                &[(9, 1), (3, 2)],
                ("a", (9, 3)),
                RaiseBlocked {
                    lack: Lack::Permits(2),
                },
                "another's limit binds",
            ),
        ];
        for (holders, (token, (limit, permits)), compatibility, why) in table {
            let holders = (1..).zip(["a", "b"]).zip(holders);
            let holders = holders.map(|((fence, token), (limit, permits))| Holder {
                permits: *permits,
                ..holder(token, fence, *limit)
            });
            let lock = Lock::held(Mode::Shared, holders.collect()).unwrap();
            let request = Request {
                permits,
                ..request(token, Mode::Shared, limit)
            };
            assert_eq!(lock.compatibility(&request), compatibility, "{why}");
            if matches!(compatibility, Raise { .. }) {
                let own = lock.holder(&request.token).unwrap();
                assert!(
                    lock.room() >= u64::from(permits - own.permits)
                        || lock.holders().alone_with_smallest_limit() == Some(own),
                    "{why}"
                );
            }
        }
    }

    #[test]
    fn a_lease_has_ended_when_now_is_greater_than_its_deadline() {
        let mut lock = lock(Mode::Shared, &[("a", 0), ("b", 0)]);
        assert_eq!(lock.expire(101, |_| None), 0);
        assert_eq!(lock.expire(102, |_| None), 1);
        assert_eq!(lock.holders().len(), 1);
        assert_eq!(lock.expire(103, |_| None), 1);
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
        assert!(Lock::held(Mode::Shared, vec![]).is_none(), "no holder");
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
        assert!(
            Lock::held(Mode::Shared, equal).is_some(),
            "one fence twice, by FENCE"
        );
        let unordered = vec![holder("b", 1, 0), holder("a", 1, 0)];
        assert!(
            Lock::held(Mode::Shared, unordered).is_none(),
            "tokens of one fence out of order"
        );
        let none = Holder {
            holds: 0,
            ..holder("a", 1, 0)
        };
        assert!(
            Lock::held(Mode::Exclusive, vec![none]).is_none(),
            "no holds"
        );
        for (mode, limit, permits) in [
            (Mode::Shared, 3, 0),
            (Mode::Shared, 3, 4),
            (Mode::Shared, 0, 2),
            (Mode::Exclusive, 0, 2),
        ] {
            let own = Holder {
                permits,
                ..holder("a", 1, limit)
            };
            let lock = Lock::held(mode, vec![own]);
            assert!(lock.is_none(), "{mode:?}: {permits} of {limit} permits");
        }
        for lease_ms in [0, MAX_SPAN_MS + 1] {
            let lasting = Holder {
                lease_ms,
                ..holder("a", 1, 0)
            };
            let lock = Lock::held(Mode::Exclusive, vec![lasting]);
            assert!(lock.is_none(), "a lease of {lease_ms} ms");
        }
    }

    #[test]
    fn its_bytes_are_those_of_its_holders() {
        let holders = vec![holder("a", 1, 0), holder("b", 2, 0)];
        let lock = Lock::held(Mode::Shared, holders).unwrap();
        assert_eq!(lock.heap_bytes(), lock.holders().heap_bytes());
        assert!(lock.heap_bytes() > 1);
    }

    /// The grants that a take-back restores, beside holders with a limit of 3 that take 2 permits.
    #[test]
    fn holders_admit_a_grant_of_another_token_within_their_limits() {
        let lock = Lock::held(Mode::Shared, vec![holder("a", 1, 3), holder("b", 2, 0)]).unwrap();
        assert_eq!(lock.room(), 1);
        let own = |limit, permits| Holder {
            permits,
            ..holder("c", 3, limit)
        };
        for (mode, limit, permits, is_admitted) in [
            (Mode::Shared, 0, 1, true),
            (Mode::Shared, 3, 1, true),
            (Mode::Shared, 2, 1, false),
            (Mode::Shared, 9, 2, false),
            (Mode::Exclusive, 0, 1, false),
        ] {
            let is_found = lock.admits(mode, &own(limit, permits));
            assert_eq!(is_found, is_admitted, "{mode:?} {limit} {permits}");
        }
        assert!(Lock::free().admits(Mode::Exclusive, &own(0, 1)));
        assert_eq!(Lock::free().room(), u64::MAX);
        let exclusive = Lock::sole(Mode::Exclusive, holder("a", 1, 0));
        assert!(!exclusive.admits(Mode::Shared, &own(0, 1)));
    }

    /// A holder asks for more permits than it has: which ones does it lack?
    #[test]
    fn a_holder_lacks_permits_of_others_or_of_its_own_limit() {
        let own = |permits| Holder {
            permits,
            ..holder("a", 1, 0)
        };
        let others = Holder {
            permits: 3,
            ..holder("b", 2, 4)
        };
        let lock = Lock::held(Mode::Shared, vec![own(1), others]).unwrap();
        for (limit, permits, lack) in [
            (0, 2, Lack::Permits(1)),
            (5, 2, Lack::Permits(1)),
            (4, 2, Lack::Limit(3)),
            (6, 3, Lack::Permits(2)),
            (5, 3, Lack::Limit(3)),
        ] {
            let request = Request {
                limit,
                permits,
                ..request("a", Mode::Shared, 0)
            };
            let found = lock.lack_of(lock.holder(&request.token).unwrap(), &request);
            assert_eq!(found, lack, "{permits} of {limit}");
        }
    }

    #[test]
    fn two_holders_of_one_rank_are_refused() {
        let twice = vec![holder("a", 1, 0), holder("a", 1, 0)];
        assert_eq!(Lock::held(Mode::Shared, twice), None);
    }
}
