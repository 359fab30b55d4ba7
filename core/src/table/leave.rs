//! LEAVE: a token ends all that it has at a name, and for a time is granted nothing there.

use super::lock_table::WaitQueues;
use crate::decision::Answer;
use crate::operation::{Operation, ReleaseCount};
use crate::store::Environment;
use crate::transaction::Transaction;
use crate::values::name::Names;
use crate::values::refusal::Refusal;
use crate::values::token::Token;

impl WaitQueues {
    /// Returns true if an operation could grant or queue a token at a name that the token has left.
    #[inline(never)]
    pub(super) fn has_left(
        &self,
        operation: &Operation,
        environment: &mut Environment<'_, '_>,
    ) -> bool {
        let Operation { names, action, .. } = operation;
        let now_ms = environment.store.steady_ms();
        let marks = &self.leave_marks;
        action.is_request() && marks.contains_any(names, action.token(), now_ms)
    }

    /// Cancels all waits of a token that need one of these names, releases the names, and marks the
    /// token as having left them. Returns the number of names that it held.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if a key holds another type; then nothing changes.
    #[inline(never)]
    pub(super) fn leave(
        &mut self,
        names: &Names,
        token: &Token,
        leave_ms: u64,
        tx: &mut Transaction,
    ) -> Result<Answer, Refusal> {
        for name in names {
            tx.lock_at(name).ok_or(Refusal::WrongType)?;
        }
        // First, so that the release hands the token nothing.
        self.cancel(names, token, tx)?;
        let answer = self.release(names, token, ReleaseCount::AllBut(0), tx)?;
        let now_ms = tx.steady_ms();
        let end_ms = now_ms.saturating_add(leave_ms);
        let most = (tx.environment.limits)().max_tickets;
        for name in names {
            self.leave_marks.insert(name, token, end_ms, most, now_ms);
        }
        Ok(answer)
    }
}
