//! Whether a request may be granted now: what its locks and the queues before it say.

use super::lock_table::Waiting;
use crate::branch::likely;
use crate::state::queue::{Position, Waiter};
use crate::transaction::Transaction;
use crate::values::lock::{Compatibility, Lack};
use crate::values::name::{Name, Names};
use crate::values::refusal::Refusal;
use crate::values::request::Request;

/// How a request stands to all its names and their queues.
pub(super) enum Admission {
    /// It can be granted, keeping this fence or with a new one.
    Granted { kept_fence: Option<u64> },
    /// It can't be granted now: its name with this number is the first that is in the way. Its token
    /// may hold there already, and lack permits.
    Blocked {
        upgrades: usize,
        by: usize,
        lack: Option<Lack>,
    },
}

/// How a request stands to one of its names and to the queue there.
enum Conflict {
    /// Nothing is in its way.
    Open,
    /// Its token holds there already, under this fence, in a mode that stays or is given freely.
    Held { fence: u64 },
    /// Its token holds there, alone, in another mode.
    Upgrade,
    /// Its token holds there beside others, in another mode.
    UpgradeBlocked,
    /// Its token shares and is to count as more holders than it does: there is room.
    Raise { fence: u64 },
    /// Its token shares and is to count as more holders than it does: there is no room.
    RaiseBlocked { lack: Lack },
    /// Somebody else holds, or comes before it.
    Blocked,
    /// Another type's key.
    OtherType,
}

/// The fences of what a token holds already, as long as they are one and the same.
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

    /// The fence that a grant of so many names keeps: all of them are held under it.
    fn of(self, names: usize) -> Option<u64> {
        self.fence.filter(|_| self.held == names && !self.mixed)
    }
}

impl Waiting {
    /// How a newcomer stands. All its names are looked at, for what it is refused for.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::PermitsRaised`], in this order.
    #[inline(always)]
    pub(super) fn newcomer_admission(
        &self,
        names: &Names,
        request: &Request,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Admission, Refusal> {
        for (by, name) in names.iter().enumerate() {
            let conflict = self.conflict_at(name, request, None, tx);
            if !likely(matches!(conflict, Conflict::Open)) {
                let rest = (by, conflict);
                return self.conflicting_admission(rest, names, request, tx);
            }
        }
        Ok(Admission::Granted { kept_fence: None })
    }

    /// As [`Waiting::newcomer_admission`], from the first name on that isn't open.
    #[inline(never)]
    fn conflicting_admission(
        &self,
        (first, conflict): (usize, Conflict),
        names: &Names,
        request: &Request,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Admission, Refusal> {
        let mut kept = Kept::default();
        let mut blocked = None;
        let mut upgrades = 0;
        let mut raised = false;
        let mut known = Some(conflict);
        for (by, name) in names.iter().enumerate().skip(first) {
            let conflict = known.take();
            let conflict = conflict.unwrap_or_else(|| self.conflict_at(name, request, None, tx));
            match conflict {
                Conflict::Open => {}
                Conflict::Held { fence } => kept.add(fence),
                Conflict::Upgrade => upgrades += 1,
                Conflict::UpgradeBlocked => {
                    upgrades += 1;
                    blocked = blocked.or(Some(by));
                }
                Conflict::Raise { .. } | Conflict::RaiseBlocked { .. } => raised = true,
                Conflict::Blocked => blocked = blocked.or(Some(by)),
                Conflict::OtherType => return Err(Refusal::WrongType),
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

    /// Whether it is a waiter's turn. The name that held it up before is looked at first: while that
    /// one does so still, the others need no look.
    ///
    /// # Errors
    /// [`Refusal::WrongType`]
    pub(super) fn waiter_admission(
        &self,
        position: Position,
        waiter: &Waiter,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Result<Admission, Refusal> {
        let blocked = |by, lack| Admission::Blocked {
            upgrades: 0,
            by,
            lack,
        };
        let names = waiter.names.as_slice();
        let mut known = self.queues.blocked_by_number(position).and_then(|by| {
            let name = names.get(by)?;
            let conflict = self.conflict_at(name, &waiter.request, Some(position), tx);
            Some((by, conflict))
        });
        match &known {
            Some((by, Conflict::UpgradeBlocked | Conflict::Blocked)) => {
                return Ok(blocked(*by, None))
            }
            Some((by, Conflict::RaiseBlocked { lack })) => return Ok(blocked(*by, Some(*lack))),
            Some((_, Conflict::OtherType)) => return Err(Refusal::WrongType),
            Some((
                _,
                Conflict::Open | Conflict::Held { .. } | Conflict::Raise { .. } | Conflict::Upgrade,
            ))
            | None => {}
        }
        let mut kept = Kept::default();
        for (by, name) in names.iter().enumerate() {
            let known = known.take_if(|(known_by, _)| *known_by == by);
            let conflict = match known {
                Some((_, conflict)) => conflict,
                None => self.conflict_at(name, &waiter.request, Some(position), tx),
            };
            match conflict {
                Conflict::UpgradeBlocked | Conflict::Blocked => return Ok(blocked(by, None)),
                Conflict::RaiseBlocked { lack } => return Ok(blocked(by, Some(lack))),
                Conflict::Open if tx.is_away(name) => return Ok(blocked(by, None)),
                Conflict::Open | Conflict::Upgrade => {}
                Conflict::Held { fence } | Conflict::Raise { fence } => kept.add(fence),
                Conflict::OtherType => return Err(Refusal::WrongType),
            }
        }
        Ok(Admission::Granted {
            kept_fence: kept.of(names.len()),
        })
    }

    /// Returns true if a request would be granted at once if it took up this position, where nobody stands now.
    #[inline(never)]
    pub(super) fn is_admissible_at(
        &self,
        position: Position,
        names: &Names,
        request: &Request,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> bool {
        names.iter().all(
            |name| match self.conflict_at(name, request, Some(position), tx) {
                Conflict::Open => !tx.is_away(name),
                Conflict::Held { .. } | Conflict::Raise { .. } | Conflict::Upgrade => true,
                Conflict::UpgradeBlocked
                | Conflict::RaiseBlocked { .. }
                | Conflict::Blocked
                | Conflict::OtherType => false,
            },
        )
    }

    /// How a request stands at one of its names: a newcomer without a position, or the waiter at `position`.
    ///
    /// What its token holds already needs no turn, or a holder could wait for those who wait for it.
    #[inline(never)]
    fn conflict_at(
        &self,
        name: &Name,
        request: &Request,
        position: Option<Position>,
        tx: &mut Transaction<'_, '_, '_>,
    ) -> Conflict {
        tx.steps += 1;
        // To read a lock costs more than all the rest. What is known of its holders holds as long as
        // nothing has happened to any key that the table was not told of.
        let knows_holders = tx.nothing_touched && !self.queues.is_empty();
        if knows_holders && position.is_none() && self.queues.is_behind(name, &request.token) {
            return Conflict::Blocked;
        }
        let Some(lock) = tx.lock_at(name) else {
            return Conflict::OtherType;
        };
        match lock.compatibility(request) {
            Compatibility::Repeat { fence } | Compatibility::Downgrade { fence } => {
                Conflict::Held { fence }
            }
            Compatibility::Upgrade => Conflict::Upgrade,
            Compatibility::UpgradeBlocked => Conflict::UpgradeBlocked,
            Compatibility::Raise { fence } => Conflict::Raise { fence },
            Compatibility::RaiseBlocked { lack } => Conflict::RaiseBlocked { lack },
            Compatibility::Blocked => Conflict::Blocked,
            Compatibility::Admitted if likely(self.queues.is_empty()) => Conflict::Open,
            Compatibility::Admitted => match self.queues.head(name) {
                Some(head) if position.is_none_or(|own| head < own) => Conflict::Blocked,
                _ => Conflict::Open,
            },
        }
    }
}
