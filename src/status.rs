//! `INFO lock`: what the module counts.

use std::ffi::{c_int, CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering};

use redis_lock_core::desk::Desk;
use redis_module::{raw, Context};

use crate::api::server;
use crate::{boundary, flow, inbox};

/// Values of the type that are alive, in keys or waiting to be freed.
static LOCKS: AtomicU64 = AtomicU64::new(0);

/// Counts a value of the type.
pub fn count_lock_made() {
    LOCKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a value of the type no more. Called on any thread.
pub fn count_lock_freed() {
    LOCKS.fetch_sub(1, Ordering::Relaxed);
}

/// Whether there is any lock on this server.
pub fn any_locks() -> bool {
    LOCKS.load(Ordering::Relaxed) > 0
}

/// Registers the section.
pub fn register(ctx: &Context) -> Result<(), String> {
    match server!(RedisModule_RegisterInfoFunc(ctx.ctx, Some(report))) {
        Some(0) => Ok(()),
        _ => Err("the server refused the INFO section".to_owned()),
    }
}

extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    boundary::guard(|| {
        let look = |desk: &Desk| (desk.queues().len(), desk.ties().len(), *desk.tally());
        let Some((waiters, sessions, tally)) = flow::look(look) else {
            return;
        };
        let held_back = inbox::with(|inbox| inbox.held_back.len() + inbox.undelivered.len());
        let fields: [(&CStr, u64); 11] = [
            (c"locks", LOCKS.load(Ordering::Relaxed)),
            (c"waiters", waiters as u64),
            (c"sessions", sessions as u64),
            (c"held_back", held_back as u64),
            (c"last_fence", flow::FENCES.last()),
            (c"grants", tally.grants),
            (c"hand_overs", tally.hand_overs),
            (c"lapses", tally.lapses),
            (c"timeouts", tally.timeouts),
            (c"take_overs", tally.take_overs),
            (c"take_backs", tally.take_backs),
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
