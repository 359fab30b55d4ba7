//! The module's one timer: it settles what is due when no command does.
//!
//! It is armed for the earliest lease end or timeout that somebody waits for, and at once when the
//! inbox has a note. It rings at or after the time it was armed for, never before.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use lazy_static::lazy_static;
use redis_lock_core::desk::{Caller, HandOver};
use redis_lock_core::name::Name;
use redis_lock_core::order::Order;
use redis_lock_core::queue::Seat;
use redis_module::{raw, Context, RedisGILGuard};

use crate::api::{self, server};
use crate::{boundary, clock, flow, inbox};

/// How many names and timeouts one ring settles: the server serves others in between.
const MOST_A_RING: usize = 1024;

/// When to look again while nothing may be written, as during CLIENT PAUSE, in ms.
const RETRY_MS: u64 = 5;

#[derive(Clone, Copy)]
struct Armed {
    timer: raw::RedisModuleTimerID,
    due_ms: u64,
}

lazy_static! {
    static ref ARMED: RedisGILGuard<Cell<Option<Armed>>> = RedisGILGuard::default();
}

/// Has the timer ring in the next pass of the server's loop.
pub fn ring_at_once() {
    arm(0);
}

/// Has the timer ring when the desk next has to settle something.
pub fn rearm() {
    let due_ms = flow::look(|desk| desk.next_due_ms()).flatten();
    if let Some(due_ms) = due_ms {
        arm(due_ms);
    }
}

/// Arms the timer for `due_ms`, unless it rings before that anyway.
fn arm(due_ms: u64) {
    let ctx = api::own_context();
    let armed = ARMED.lock(&ctx);
    if let Some(Armed {
        timer,
        due_ms: earlier_ms,
    }) = armed.get()
    {
        if earlier_ms <= due_ms {
            return;
        }
        server!(RedisModule_StopTimer(ctx.ctx, timer, ptr::null_mut()));
    }
    let period_ms = due_ms.saturating_sub(clock::now().ms());
    let period_ms = i64::try_from(period_ms).unwrap_or(i64::MAX / 1000);
    let timer = server!(RedisModule_CreateTimer(
        ctx.ctx,
        period_ms,
        Some(ring),
        ptr::null_mut()
    ));
    armed.set(timer.map(|timer| Armed { timer, due_ms }));
}

extern "C" fn ring(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    boundary::guard(|| {
        let ctx = Context::new(ctx);
        ARMED.lock(&ctx).set(None);
        if api::may_write_unasked(&ctx) {
            settle(&ctx);
            rearm();
        } else if api::is_replica(&ctx) {
            flow::stand_down(&ctx);
        } else {
            flow::carry_out_unasked(&ctx, |desk, world| desk.time_out_due(MOST_A_RING, world));
            arm(clock::now().ms().saturating_add(RETRY_MS));
        }
    });
}

fn settle(ctx: &Context) {
    for undelivered in inbox::with(|inbox| std::mem::take(&mut inbox.undelivered)) {
        take_back(ctx, undelivered);
    }
    let names = due_names();
    let settled = names.clone();
    flow::carry_out_unasked(ctx, |desk, world| {
        desk.settle_due(names, MOST_A_RING, world)
    });
    let more = inbox::with(|inbox| {
        for name in &settled {
            inbox.restored.remove(name);
        }
        !inbox.touched.is_empty() || !inbox.restored.is_empty()
    });
    if more {
        ring_at_once();
    }
}

fn take_back(ctx: &Context, HandOver { grant, names, .. }: HandOver) {
    let order = Order::TakeBack {
        names,
        token: grant.token,
        fence: grant.fence,
    };
    let nobody = Caller {
        client_id: 0,
        seat: Seat(0),
    };
    flow::carry_out_unasked(ctx, |desk, world| desk.carry_out(order, nobody, world));
}

/// The names of the inbox, as many as one ring takes on. Restored names stay noted as such until
/// they are settled here, so that a command in between reads them right.
fn due_names() -> Vec<Name> {
    let databases = inbox::with(|inbox| std::mem::take(&mut inbox.databases));
    if !databases.is_empty() {
        let touched = flow::look(|desk| {
            let names = desk.queues().names();
            names
                .filter(|name| databases.contains(&name.db) || databases.contains(&-1))
                .cloned()
                .collect()
        });
        let touched: Vec<Name> = touched.unwrap_or_default();
        inbox::with(|inbox| inbox.touched.extend(touched));
    }
    inbox::with(|inbox| {
        let touched = inbox.touched.iter().chain(&inbox.restored);
        let due: Vec<Name> = touched.take(MOST_A_RING).cloned().collect();
        for name in &due {
            inbox.touched.remove(name);
        }
        due
    })
}
