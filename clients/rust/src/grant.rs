//! One grant, from when it was given until it is released or lost, by the local monotonic clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Backoff;
use crate::mutex::Mutex;
use crate::options::{Options, Renewal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// Its last RELEASE is on the way, or was answered.
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

/// Who else has to know of a grant.
pub(crate) trait Observer: Default {
    /// It was renewed or released.
    fn changed(&self);

    /// It is lost, and `on_lost` was called.
    fn lost(&self);
}

/// Nobody has to.
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
    /// `sent` is when the command went out that was answered with the grant: the server doesn't count
    /// from earlier.
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

    /// The server set the lease by a command that went out at `sent`.
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

    /// A renewal failed, and is to be tried again.
    pub(crate) fn not_renewed(&self) {
        let mut state = self.state.lock();
        let until = state.until;
        state.due = state.backoff.next(Some(until));
    }

    /// When it is to be renewed, or else is over. None: it has ended.
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

    /// What was held is lost. That is told once.
    pub(crate) fn lose(&self) {
        self.lose_from(&[Phase::Held]);
    }

    /// Its release found that it was lost.
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

    /// Takes one hold off; with the last one renewals end. How many are left, and until when there is time for the
    /// release. None: it is lost.
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

/// Far enough away where the clock has no such moment.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    from.checked_add(by).unwrap_or(from + YEARS)
}
