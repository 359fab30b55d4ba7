//! `INFO lock`: the module's counts and times.

use std::ffi::{c_int, CStr, CString};
use std::ptr;
use std::sync::atomic::Ordering;

use redis_lock_core::state::buckets::Buckets;
use redis_lock_core::state::durations::Summary;
use redis_lock_core::state::lost_holds::{LostHolds, UnlinkedHolds};
use redis_lock_core::table::{Counters, LockTable};
use redis_module::{raw, Context};

use crate::server::boundary;
use crate::server::calls::{self, function, Lent, Passed};
use crate::server::clock;
use crate::state::entered::{self, Entered};
use crate::state::{self, BYTES, FENCES, LOCKS};

/// Registers the section.
pub fn register(ctx: &Context) -> Result<(), String> {
    // SAFETY: the context is valid by its type. The callback requires what the server passes it.
    match unsafe { function!(RedisModule_RegisterInfoFunc)(ctx.ctx, Some(report)) } {
        0 => Ok(()),
        _ => Err("the server refused the INFO section".to_owned()),
    }
}

unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // Any thread may crash, without the server's lock.
    if for_crash_report != 0 && !entered::is_main_thread_alone() {
        return;
    }
    // SAFETY: the server calls this with its lock held, or it has crashed on the main thread while
    // no other thread was in the module. It keeps the section until this returns.
    let (entered, info) = unsafe { (Entered::new(), Lent::new(info)) };
    boundary::guard(entered, |_| {
        let Some(facts) = state::change(Facts::of) else {
            return;
        };
        let section = Section(info);
        section.begin();
        section.add_numbers(&facts);
        for (field, buckets) in [
            (c"wait_ms", facts.waits.buckets),
            (c"hold_ms", facts.holds.buckets),
            (c"lost_hold_ms", facts.lost_holds.times),
        ] {
            section.add_histogram(field, &buckets);
        }
    });
}

/// The counts of the lock table and the callbacks.
struct Facts {
    waiters: usize,
    left: usize,
    places: usize,
    oldest_wait_ms: u64,
    sessions: usize,
    counters: Counters,
    waits: Spread,
    holds: Spread,
    lost_holds: LostHolds,
    replica_waits: usize,
    acknowledged: u64,
    not_acknowledged: u64,
    acknowledgements: Summary,
}

/// The distribution of times.
struct Spread {
    summary: Summary,
    buckets: Buckets,
}

impl Facts {
    fn of(table: &mut LockTable) -> Self {
        let times = table.times();
        let [waits, holds] = [&mut times.waits, &mut times.holds].map(|durations| Spread {
            summary: durations.summary(),
            buckets: durations.buckets(),
        });
        let mut lost_holds = times.lost_holds;
        lost_holds.add(&state::with(|state| {
            state.unlinked(|unlinked| UnlinkedHolds::lost(unlinked))
        }));
        let acknowledgements = table.acknowledgements();
        let (acknowledged, not_acknowledged) = (
            acknowledgements.acknowledged,
            acknowledgements.not_acknowledged,
        );
        let acknowledgements = acknowledgements.times.summary();
        Self {
            replica_waits: table.replica_waits().len(),
            acknowledged,
            not_acknowledged,
            acknowledgements,
            waiters: table.queues().blocked_len(),
            places: table.queues().place_count(),
            left: table.leave_marks().len(),
            oldest_wait_ms: table.queues().oldest_wait_ms(clock::steady_ms()),
            sessions: table.sessions().len(),
            counters: *table.counters(),
            waits,
            holds,
            lost_holds,
        }
    }
}

/// The section while the server collects it.
struct Section<'a>(Lent<'a, raw::RedisModuleInfoCtx>);

impl Section<'_> {
    fn begin(&self) {
        // SAFETY: the section is valid by its type. Null stands for the module's own name.
        unsafe { function!(RedisModule_InfoAddSection)(self.0.raw(), ptr::null()) };
        let version = CString::new(env!("CARGO_PKG_VERSION")).unwrap_or_default();
        calls::info_add_field_cstring(self.0, c"version", &version);
    }

    fn add_numbers(&self, facts: &Facts) {
        let Facts {
            counters,
            waits: Spread { summary: waits, .. },
            holds: Spread { summary: holds, .. },
            lost_holds,
            ..
        } = facts;
        let deferred = state::pending(|pending| pending.postponed_len());
        let fields: [(&CStr, u64); 38] = [
            (c"locks", LOCKS.load(Ordering::Relaxed)),
            (c"waiters", facts.waiters as u64),
            (c"places", facts.places as u64),
            (c"left", facts.left as u64),
            (c"oldest_wait_ms", facts.oldest_wait_ms),
            (c"sessions", facts.sessions as u64),
            (c"bytes", BYTES.load(Ordering::Relaxed)),
            (c"deferred", deferred as u64),
            (c"last_fence", FENCES.last()),
            (c"grants", counters.grants),
            (c"hand_overs", counters.hand_overs),
            (c"expirations", counters.expirations),
            (c"timeouts", counters.timeouts),
            (c"lapsed_places", counters.lapses),
            (c"take_overs", counters.take_overs),
            (c"cancels", counters.cancels),
            (c"take_backs", counters.take_backs),
            (c"extensions", counters.extensions),
            (c"releases", counters.releases),
            (c"deadlocks", counters.deadlocks),
            (
                c"deadlock_searches_given_up",
                counters.deadlock_searches_given_up,
            ),
            (c"max_waiters_refusals", counters.max_waiters_refusals),
            (c"max_tickets_refusals", counters.max_tickets_refusals),
            (c"lost_expired", lost_holds.expired),
            (c"lost_deleted", lost_holds.deleted),
            (c"lost_disconnected", lost_holds.disconnected),
            (c"wait_p50_ms", waits.p50_ms),
            (c"wait_p99_ms", waits.p99_ms),
            (c"wait_max_ms", waits.max_ms),
            (c"hold_p50_ms", holds.p50_ms),
            (c"hold_p99_ms", holds.p99_ms),
            (c"hold_max_ms", holds.max_ms),
            (c"replica_waits", facts.replica_waits as u64),
            (c"acknowledged", facts.acknowledged),
            (c"not_acknowledged", facts.not_acknowledged),
            (c"acknowledge_p50_ms", facts.acknowledgements.p50_ms),
            (c"acknowledge_p99_ms", facts.acknowledgements.p99_ms),
            (c"acknowledge_max_ms", facts.acknowledgements.max_ms),
        ];
        for (field, value) in fields {
            self.add(field, value);
        }
    }

    /// Adds a field with a number for each bucket, cumulative like Prometheus counts.
    fn add_histogram(&self, field: &CStr, buckets: &Buckets) {
        calls::info_begin_dict_field(self.0, field);
        for (bound_ms, count) in buckets.cumulative() {
            let bound = bound_ms.map_or_else(|| "le_inf".to_owned(), |ms| format!("le_{ms}"));
            self.add(&CString::new(bound).unwrap_or_default(), count);
        }
        self.add(c"sum", buckets.sum_ms());
        self.add(c"count", buckets.count());
        calls::info_end_dict_field(self.0);
    }

    fn add(&self, field: &CStr, value: u64) {
        calls::info_add_field_number(self.0, field, value);
    }
}
