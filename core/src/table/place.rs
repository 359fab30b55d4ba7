//! Places: waits without a connection, by LOCK.QUEUE.

use super::admission::Admission;
use super::grants::Grantee;
use super::lock_table::WaitQueues;
use super::wait_request::{WaitRequest, WaitStart};
use crate::budget::PLACE_STEPS;
use crate::decision::{Answer, Publication};
use crate::state::waiter::{Place, Waiter, WaiterKind};
use crate::transaction::Transaction;
use crate::values::notification::Notification;
use crate::values::refusal::Refusal;

impl WaitQueues {
    /// Grants a request, or takes or keeps its place. If the place was granted while settling, the
    /// answer carries the grant and its notification is dropped.
    #[inline(never)]
    pub(super) fn queue(
        &mut self,
        wait: WaitRequest<'_>,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        let answer = self.place_or_grant(wait, tx)?;
        if let Answer::Granted(_) = answer {
            let is_other =
                |it: &Publication| it.token != wait.request.token || it.names != *wait.names;
            tx.lists.deliveries.publications.retain(is_other);
        }
        Ok(answer)
    }

    /// Returns the grant, or the number of the place, which is the greatest of its numbers in
    /// several queues.
    ///
    /// The place is looked up after everything that follows from taking it was settled. That may
    /// have granted it.
    fn place_or_grant(
        &mut self,
        wait: WaitRequest<'_>,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        let enqueued = match self.wait(wait, tx)? {
            WaitStart::Granted(fence) => return Ok(Answer::Granted(fence)),
            WaitStart::Queued(enqueued, _) => enqueued,
        };
        self.settle(&[], tx);
        let WaitRequest { names, request, .. } = wait;
        let Some(position) = self.queues.wait_for(&request.token, names) else {
            return self.claim(wait, tx);
        };
        let ranks = names.iter().map(|name| self.queues.rank(name, position));
        Ok(Answer::Place(ranks.max().unwrap_or(0), enqueued))
    }

    /// Claims the grant to a place that has ended.
    ///
    /// # Errors
    /// [`Refusal::NoPermission`] if the place ended without a grant, because its user lost the
    /// rights.
    fn claim(&mut self, wait: WaitRequest<'_>, tx: &mut Transaction) -> Result<Answer, Refusal> {
        match self.newcomer_admission(wait.names, wait.request, tx)? {
            Admission::Granted {
                kept_fence: kept @ Some(_),
            } => Ok(Answer::Granted(self.grant_at_once(wait, kept, tx))),
            Admission::Granted { kept_fence: None } | Admission::Blocked { .. } => {
                Err(Refusal::NoPermission)
            }
        }
    }

    #[inline(never)]
    pub(super) fn hand_over_to_place(
        &mut self,
        place: &Place,
        waiter: &Waiter,
        kept_fence: Option<u64>,
        tx: &mut Transaction,
    ) {
        let Waiter { names, request, .. } = waiter;
        let lease_ms = place.lease_ms(request);
        let to = Grantee::Place { lease_ms };
        self.grant_all(names.as_slice(), request, kept_fence, to, tx);
        tx.steps += PLACE_STEPS + names.count() as u64;
        publish(waiter, tx);
    }
}

#[inline(never)]
pub(super) fn place(
    keep_ms: u64,
    notification: Option<&Notification>,
    now_ms: u64,
    tx: &mut Transaction,
) -> Box<Place> {
    Box::new(Place {
        keep_ms,
        until_ms: now_ms.saturating_add(keep_ms),
        user: tx.environment.store.user(),
        notification: notification.cloned(),
    })
}

/// Adds the notification of a place to the messages to publish.
pub(super) fn publish(waiter: &Waiter, tx: &mut Transaction) {
    let WaiterKind::Place(place) = &waiter.kind else {
        return;
    };
    let Place {
        notification, user, ..
    } = place.as_ref();
    let publication = notification.clone().map(|notification| Publication {
        token: waiter.request.token.clone(),
        names: waiter.names.clone(),
        notification,
        user: user.clone(),
    });
    tx.lists.deliveries.publications.extend(publication);
}
