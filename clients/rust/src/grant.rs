//! One grant and its lease, by the local monotonic clock, until the lock is released or lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Backoff;
use crate::mutex::Mutex;
use crate::options::{Options, Renewal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// The last RELEASE is in flight, or has its reply.
    Released,
    Lost,
}

struct State {
    phase: Phase,
    holds: u32,
    lease: Duration,
    until: Instant,
    due: Instant,
    backoff: Backoff,
}

/// An observer of one grant.
pub(crate) trait Observer: Default {
    /// Notes that the grant was renewed or released.
    fn changed(&self);

    /// Notes that the grant was lost. `on_lost` has been called.
    fn lost(&self);
}

/// No observer.
impl Observer for () {
    fn changed(&self) {}

    fn lost(&self) {}
}

pub(crate) struct Grant<O> {
    pub(crate) fence: i64,
    pub(crate) observer: O,
    renewal: Renewal,
    renew_every: Duration,
    on_lost: Option<Arc<dyn Fn() + Send + Sync>>,
    state: Mutex<State>,
}

impl<O: Observer> Grant<O> {
    /// Returns a grant with one hold. Its lease counts from `sent`, when the granted command was
    /// sent, because the server starts the lease no earlier.
    pub(crate) fn new(fence: i64, sent: Instant, options: &Options) -> Grant<O> {
        let state = State {
            phase: Phase::Held,
            holds: 1,
            lease: options.lease,
            until: sent,
            due: sent,
            backoff: Backoff::new(),
        };
        let grant = Grant {
            fence,
            observer: O::default(),
            renewal: options.renewal,
            renew_every: options.renew_every,
            on_lost: options.on_lost.clone(),
            state: Mutex::new(state),
        };
        grant.renewed(sent, options.lease);
        grant
    }

    /// Notes that a command sent at `sent` has set the lease.
    pub(crate) fn renewed(&self, sent: Instant, lease: Duration) {
        let mut state = self.state.lock();
        state.lease = lease;
        state.until = later(sent, lease);
        state.due = match self.renewal {
            Renewal::Nobody => state.until,
            Renewal::Client | Renewal::Session => later(sent, self.renew_every.min(lease / 3)),
        };
        state.backoff = Backoff::new();
        drop(state);
        self.observer.changed();
    }

    /// Schedules another renewal after one that failed.
    pub(crate) fn not_renewed(&self) {
        let mut state = self.state.lock();
        let until = state.until;
        state.due = state.backoff.next(Some(until));
    }

    /// Returns the time of the next renewal, or the end of a lease without renewal. `None` if the
    /// grant has ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.phase == Phase::Held).then_some(state.due)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.state.lock().lease
    }

    pub(crate) fn until(&self) -> Instant {
        self.state.lock().until
    }

    pub(crate) fn holds(&self) -> u32 {
        self.state.lock().holds
    }

    pub(crate) fn set_holds(&self, holds: u32) {
        self.state.lock().holds = holds;
    }

    pub(crate) fn is_held(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Held && Instant::now() < state.until
    }

    pub(crate) fn is_lost(&self) -> bool {
        let state = self.state.lock();
        match state.phase {
            Phase::Held => Instant::now() >= state.until,
            Phase::Released => false,
            Phase::Lost => true,
        }
    }

    /// Marks a held grant as lost, and reports the loss once.
    pub(crate) fn lose(&self) {
        self.lose_from(&[Phase::Held]);
    }

    /// Marks a grant as lost after its release found the lock lost.
    pub(crate) fn lose_at_release(&self) {
        self.lose_from(&[Phase::Held, Phase::Released]);
    }

    fn lose_from(&self, phases: &[Phase]) {
        let mut state = self.state.lock();
        if phases.contains(&state.phase) {
            state.phase = Phase::Lost;
            drop(state);
            self.on_lost.iter().for_each(|on_lost| on_lost());
            self.observer.lost();
        }
    }

    /// Removes one hold; renewals end with the last one. Returns the remaining holds and the end of
    /// the lease. `None` if the grant is no longer held.
    pub(crate) fn release(&self) -> Option<(u32, Instant)> {
        let mut state = self.state.lock();
        if state.phase != Phase::Held || Instant::now() >= state.until {
            return None;
        }
        state.holds = state.holds.saturating_sub(1);
        let (holds, lease_ends) = (state.holds, state.until);
        if holds == 0 {
            state.phase = Phase::Released;
            drop(state);
            self.observer.changed();
        }
        Some((holds, lease_ends))
    }
}

/// Returns `from + by`, or 100 years after `from` if the clock cannot represent that.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    from.checked_add(by).unwrap_or(from + YEARS)
}
