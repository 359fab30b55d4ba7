//! Acknowledgements: the looks at the replicas while clients wait for them (REPLICAS).
//!
//! 1. Before the server sleeps, the effects of all commands so far were replicated. The module then
//!    notes the offset of the stream for clients that have begun to wait, and asks the replicas for
//!    acknowledgements, once.
//! 2. The command filter sees the acknowledgements. Then the module looks how far the replicas have
//!    come. One look serves all clients that wait, and there is at most one in [`LOOK_US`].
//! 3. The timer looks again after [`LOOK_AGAIN_MS`], and when the first WITHIN ends.
//! 4. A replica answers a request when it has come to it, however late. It only loses one with its
//!    connection. So the replicas are asked again when one has come or gone, and not otherwise: to
//!    the server each request is a change that it has yet to save.

use redis_lock_core::budget::MOST_A_FIRING;
use redis_lock_core::hints::unlikely;
use redis_module::Context;

use crate::engine::execute;
use crate::server::replicas::{self, LOOK_AGAIN_MS};
use crate::server::{api, clock, timer};
use crate::state::{self, State};

/// The least time between two looks at the replicas, in microseconds.
// perf: a look makes the server write a section of INFO, which takes some 10 us.
const LOOK_US: u64 = 100;

/// Notes the offset of new replica waits and asks for acknowledgements, and looks at the replicas if
/// a look is wanted. Called before the server sleeps, so what is asked is sent at once.
#[inline(always)]
pub fn before_sleep(ctx: &Context, state: &State) {
    if unlikely(state.replica_waits.get() > 0) {
        look_and_ask(ctx, state);
    }
}

#[inline(never)]
fn look_and_ask(ctx: &Context, state: &State) {
    if api::is_replica() {
        return;
    }
    if state.is_look_wanted.replace(false) {
        look(ctx);
    }
    if state::look(|table| table.replica_waits().has_unsent()) == Some(true) {
        let offset = replicas::stream_offset(ctx);
        state::change(|table| table.record_offset(offset));
        replicas::want_acknowledgements();
    }
    ask_if_wanted(ctx);
}

/// Looks how far the replicas have come, and replies to the clients whose wait has ended.
fn look(ctx: &Context) {
    if !state::with(|state| is_due(state, clock::steady_us())) {
        replicas::request_check_in_next_pass();
        return;
    }
    let progress = replicas::progress(ctx);
    if execute::acknowledge(ctx, &progress, MOST_A_FIRING) {
        replicas::request_check_in_next_pass();
    }
}

/// Returns true if the last look was long enough ago. Then this is the last look.
fn is_due(state: &State, now_us: u64) -> bool {
    let is_due = now_us >= state.looked_at_replicas_us.get().saturating_add(LOOK_US);
    if is_due {
        state.looked_at_replicas_us.set(now_us);
    }
    is_due
}

/// Asks the replicas for acknowledgements if they are wanted, unless nobody waits any more.
fn ask_if_wanted(ctx: &Context) {
    let is_wanted = state::with(|state| state.is_ask_wanted.get());
    if is_wanted && state::any_replica_waits() && api::may_write_unasked(ctx) {
        state::with(|state| state.is_ask_wanted.set(false));
        replicas::ask(ctx);
    }
}

/// Wants another look while clients wait for replicas. Called when the module's timer fires.
pub fn go_on() {
    if !state::any_replica_waits() || api::is_replica() {
        return;
    }
    replicas::request_check();
    let next_ms = state::look(|table| table.replica_waits().next_timeout_ms()).flatten();
    let again_ms = clock::steady_ms().saturating_add(LOOK_AGAIN_MS);
    timer::arm(next_ms.map_or(again_ms, |ms| again_ms.min(ms.saturating_add(1))));
}
