//! Admission: a request is admissible if the holders and the queues of all its names let it be
//! granted now.

use super::lock_table::WaitQueues;
use crate::hints::likely;
use crate::state::queue::Position;
use crate::state::waiter::Waiter;
use crate::transaction::Transaction;
use crate::values::lock::Compatibility::{
    self, Admitted, Blocked, Downgrade, Raise, RaiseBlocked, Reentry, Upgrade, UpgradeBlocked,
};
use crate::values::lock::Lack;
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::Request;

/// The admission of a request at all its names.
pub(super) enum Admission {
    /// The request can be granted, with this fence or with a new one.
    Granted { kept_fence: Option<u64> },
    /// The request cannot be granted now. `by` is the number of its first name that blocks it.
    /// `lack` is set if the token holds that name already and lacks permits. `upgrades` counts the
    /// names at which a newcomer's token would convert its grant.
    Blocked {
        upgrades: usize,
        by: usize,
        lack: Option<Lack>,
    },
}

/// The waiters that a request stands behind at a name that its token does not hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Behind every waiter: the request is a newcomer's.
    Newcomer,
    /// Behind the waiters before this position, at which the request waits or shall go on waiting.
    At(Position),
    /// Behind every waiter except the one at this position, whose wait the request replaces.
    InsteadOf(Position),
}

/// The fence of the grants that a token has already, if it is the same for all of them.
#[derive(Default)]
struct Kept {
    held: usize,
    fence: Option<u64>,
    mixed: bool,
}

impl Kept {
    fn add(&mut self, fence: u64) {
        self.held += 1;
        self.mixed |= self
            .fence
            .replace(fence)
            .is_some_and(|other| other != fence);
    }

    /// Returns the fence that a grant of `names` names keeps. The token must hold all of them under
    /// that fence.
    fn of(self, names: usize) -> Option<u64> {
        self.fence.filter(|_| self.held == names && !self.mixed)
    }
}

impl WaitQueues {
    /// Returns the admission of a newcomer. Looks at all its names, because a later name can cause
    /// an error.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::PermitsRaised`], in this order.
    #[inline(always)]
    pub(super) fn newcomer_admission(
        &self,
        names: &Names,
        request: &Request,
        tx: &mut Transaction,
    ) -> Result<Admission, Refusal> {
        for (by, name) in names.iter().enumerate() {
            let compatibility = self.compatibility_at(name, request, Turn::Newcomer, tx);
            if !likely(matches!(compatibility, Some(Admitted))) {
                let rest = (by, compatibility);
                return self.conflicting_admission(rest, names, request, tx);
            }
        }
        Ok(Admission::Granted { kept_fence: None })
    }

    /// Like [`WaitQueues::newcomer_admission`], from the first name on that does not simply admit the
    /// request.
    #[inline(never)]
    fn conflicting_admission(
        &self,
        (first, compatibility): (usize, Option<Compatibility>),
        names: &Names,
        request: &Request,
        tx: &mut Transaction,
    ) -> Result<Admission, Refusal> {
        let mut kept = Kept::default();
        let mut blocked = None;
        let mut upgrades = 0;
        let mut raised = false;
        let mut known = Some(compatibility);
        for (by, name) in names.iter().enumerate().skip(first) {
            let compatibility = known.take();
            let compatibility = compatibility
                .unwrap_or_else(|| self.compatibility_at(name, request, Turn::Newcomer, tx));
            match compatibility {
                Some(Admitted) => {}
                Some(Reentry { fence } | Downgrade { fence }) => kept.add(fence),
                Some(Upgrade) => upgrades += 1,
                Some(UpgradeBlocked) => {
                    upgrades += 1;
                    blocked = blocked.or(Some(by));
                }
                Some(Raise { .. } | RaiseBlocked { .. }) => raised = true,
                Some(Blocked) => blocked = blocked.or(Some(by)),
                None => return Err(Refusal::WrongType),
            }
        }
        if raised {
            return Err(Refusal::PermitsRaised);
        }
        Ok(match blocked {
            Some(by) => Admission::Blocked {
                upgrades,
                by,
                lack: None,
            },
            None => Admission::Granted {
                kept_fence: kept.of(names.count()),
            },
        })
    }

    /// Returns the admission of a waiter. A free name whose lock may be on another server blocks
    /// the waiter too. The name that blocked the waiter before is looked at first. If it still
    /// blocks the waiter, the others need no look.
    ///
    /// # Errors
    /// [`Refusal::WrongType`]
    pub(super) fn waiter_admission(
        &self,
        position: Position,
        waiter: &Waiter,
        tx: &mut Transaction,
    ) -> Result<Admission, Refusal> {
        let blocked = |by, lack| Admission::Blocked {
            upgrades: 0,
            by,
            lack,
        };
        let names = tx.own(&waiter.names);
        let turn = Turn::At(position);
        let mut known = self.queues.blocked_by_number(position).and_then(|by| {
            let name = names.get(by)?;
            let compatibility = self.compatibility_at(name, &waiter.request, turn, tx);
            Some((by, compatibility))
        });
        match &known {
            Some((by, Some(UpgradeBlocked | Blocked))) => return Ok(blocked(*by, None)),
            Some((by, Some(RaiseBlocked { lack }))) => return Ok(blocked(*by, Some(*lack))),
            Some((_, None)) => return Err(Refusal::WrongType),
            Some((
                _,
                Some(Admitted | Reentry { .. } | Downgrade { .. } | Raise { .. } | Upgrade),
            ))
            | None => {}
        }
        let mut kept = Kept::default();
        for (by, name) in names.iter().enumerate() {
            let known = known.take_if(|(known_by, _)| *known_by == by);
            let compatibility = match known {
                Some((_, compatibility)) => compatibility,
                None => self.compatibility_at(name, &waiter.request, turn, tx),
            };
            match compatibility {
                Some(UpgradeBlocked | Blocked) => return Ok(blocked(by, None)),
                Some(RaiseBlocked { lack }) => return Ok(blocked(by, Some(lack))),
                Some(Admitted) if tx.is_away(name) => return Ok(blocked(by, None)),
                Some(Admitted | Upgrade) => {}
                Some(Reentry { fence } | Downgrade { fence } | Raise { fence }) => kept.add(fence),
                None => return Err(Refusal::WrongType),
            }
        }
        Ok(Admission::Granted {
            kept_fence: kept.of(names.len()),
        })
    }

    /// Returns true if a request in this turn can be granted now.
    #[inline(never)]
    pub(super) fn is_admissible(
        &self,
        turn: Turn,
        names: &Names,
        request: &Request,
        tx: &mut Transaction,
    ) -> bool {
        names.iter().all(
            |name| match self.compatibility_at(name, request, turn, tx) {
                Some(Admitted) => !tx.is_away(name),
                Some(Reentry { .. } | Downgrade { .. } | Raise { .. } | Upgrade) => true,
                Some(UpgradeBlocked | RaiseBlocked { .. } | Blocked) | None => false,
            },
        )
    }

    /// Returns the compatibility of a request with the lock of one of its names and the queue there, or
    /// `None` for a key of another type.
    ///
    /// A token needs no turn for a name that it holds. Otherwise a holder could wait for the
    /// waiters that wait for it.
    #[inline(never)]
    fn compatibility_at(
        &self,
        name: &Name,
        request: &Request,
        turn: Turn,
        tx: &mut Transaction,
    ) -> Option<Compatibility> {
        tx.steps += 1;
        // perf: reading the lock costs more than everything else here. The recorded holders are
        // right if no key may have changed since the table last settled it.
        let knows_holders = tx.nothing_touched && !self.queues.is_empty();
        if knows_holders && turn == Turn::Newcomer {
            let queue = tx.queue(name, &self.queues);
            if queue.is_some_and(|queue| self.queues.is_behind(queue, &request.token)) {
                return Some(Blocked);
            }
        }
        let lock = tx.lock_at(name)?;
        let compatibility = lock.compatibility(request);
        if !matches!(compatibility, Admitted) || likely(self.queues.is_empty()) {
            return Some(compatibility);
        }
        let queue = tx.queue(name, &self.queues);
        let is_behind = match turn {
            Turn::Newcomer => queue.and_then(|it| self.queues.head(it)).is_some(),
            Turn::At(own) => queue
                .and_then(|it| self.queues.head(it))
                .is_some_and(|head| head < own),
            Turn::InsteadOf(own) => queue.is_some_and(|it| self.queues.has_other(it, own)),
        };
        Some(if is_behind { Blocked } else { Admitted })
    }
}
