//! `INFO lock`: what the module counts.

use std::ffi::{c_int, CStr, CString};
use std::sync::atomic::Ordering;

use redis_lock_core::table::LockTable;
use redis_module::{raw, Context};

use crate::server::api::server;
use crate::server::boundary;
use crate::state::{self, BYTES, FENCES, LOCKS};

/// Registers the section.
pub fn register(ctx: &Context) -> Result<(), String> {
    match server!(RedisModule_RegisterInfoFunc(ctx.ctx, Some(report))) {
        Some(0) => Ok(()),
        _ => Err("the server refused the INFO section".to_owned()),
    }
}

extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    boundary::guard(|| {
        let look = |table: &LockTable| {
            (
                table.queues().blocked_len(),
                table.queues().place_count(),
                table.sessions().len(),
                *table.counters(),
                table.times().waits.summary(),
                table.times().holds.summary(),
            )
        };
        let Some((waiters, places, sessions, counters, waits, holds)) = state::look(look) else {
            return;
        };
        let deferred = state::pending(|pending| pending.deferred.len() + pending.undelivered.len());
        let fields: [(&CStr, u64); 27] = [
            (c"locks", LOCKS.load(Ordering::Relaxed)),
            (c"waiters", waiters as u64),
            (c"places", places as u64),
            (c"sessions", sessions as u64),
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
            (c"wait_p50_ms", waits.p50_ms),
            (c"wait_p99_ms", waits.p99_ms),
            (c"wait_max_ms", waits.max_ms),
            (c"hold_p50_ms", holds.p50_ms),
            (c"hold_p99_ms", holds.p99_ms),
            (c"hold_max_ms", holds.max_ms),
        ];
        server!(RedisModule_InfoAddSection(info, std::ptr::null()));
        let version = CString::new(env!("CARGO_PKG_VERSION")).unwrap_or_default();
        server!(RedisModule_InfoAddFieldCString(
            info,
            c"version".as_ptr(),
            version.as_ptr()
        ));
        for (field, value) in fields {
            server!(RedisModule_InfoAddFieldULongLong(
                info,
                field.as_ptr(),
                value
            ));
        }
    });
}
