//! The meaning of each pending event to the lock table.

use foldhash::HashSet;
use redis_lock_core::hints::unlikely;
use redis_lock_core::state::hand_over;
use redis_lock_core::table::LockTable;

use crate::server::slots::ForeignSlots;
use crate::server::{api, clock, config, timer};
use crate::state::pending_events::{Event, ALL_DATABASES};
use crate::state::{self, State};

/// Has the lock table absorb the pending events.
pub fn absorb() {
    state::with(|state| state.change(|table| absorb_into(table, state)));
}

/// Has the table absorb the pending events. The names that they touch stay pending for the timer.
/// An operation that comes first settles its own names.
#[inline(always)]
pub fn absorb_into(table: &mut LockTable, state: &State) {
    if unlikely(!state.pending(|pending| pending.events.is_empty())) {
        absorb_all(table, state);
    }
}

#[inline(never)]
fn absorb_all(table: &mut LockTable, state: &State) {
    let events = state.pending(|pending| std::mem::take(&mut pending.events));
    let mut unlinked = HashSet::default();
    let mut foreign = None;
    let (mut touched, mut undelivered) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Unlinked(sessions) => unlinked.extend(sessions),
            Event::Arrived(sessions, name) => {
                for session in &sessions {
                    unlinked.remove(session);
                }
                table.relocate(&sessions, &name);
            }
            Event::Relocated(relocation) => {
                hand_over::relocate(&mut undelivered, &relocation);
                table.follow(&relocation);
            }
            Event::Demoted => touched.extend(table.demote(clock::steady_ms())),
            Event::Flushed(ALL_DATABASES) => {
                table.end_sessions_everywhere();
                table.forget_times_in(None);
                table.doubt_grants_in(None);
            }
            Event::Flushed(db) => {
                table.end_sessions_in(db);
                table.forget_times_in(Some(db));
                table.doubt_grants_in(Some(db));
            }
            Event::LockLeft(name, lock) => {
                // perf: the server is asked only if a client waits with that name.
                let is_elsewhere = table.replica_waits().concerns(&name)
                    && api::is_clustered()
                    && foreign
                        .get_or_insert_with(ForeignSlots::now)
                        .has(name.key());
                table.lose_grants_at(&name, &lock, is_elsewhere);
            }
            Event::Closed(client_id, ended_ms) => {
                state.pending(|pending| {
                    let taken_back = pending.undelivered.iter();
                    let of_client = taken_back.filter(|it| it.client_id == client_id);
                    of_client.for_each(|hand_over| table.untie(hand_over));
                });
                table.close_client(client_id, ended_ms);
            }
            Event::Left(waiter_id, position) => {
                if table.leave_replica_wait(waiter_id).is_none() {
                    let (position, now_ms) = (position.into_iter(), clock::steady_ms());
                    let leave = |at| table.leave(waiter_id, at, now_ms);
                    touched.extend(position.filter_map(leave));
                }
            }
            Event::Lost(waiter_id, position, lost_ms) => match table.lose_replica_wait(waiter_id) {
                Some(hand_over) => undelivered.extend(hand_over),
                None => {
                    let (position, most) = (position.into_iter(), config::max_tickets());
                    let lose = |at| table.lose(waiter_id, at, lost_ms, most);
                    touched.extend(position.filter_map(lose));
                }
            },
        }
    }
    table.end_session(unlinked);
    if !touched.is_empty() {
        state.pending(|pending| pending.touched.extend(touched));
    }
    if !undelivered.is_empty() {
        state.pending(|pending| pending.undelivered.append(&mut undelivered));
        timer::fire_soon();
    }
}
