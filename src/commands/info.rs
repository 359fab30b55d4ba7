//! `LOCK.INFO`: who holds, who waits.

use std::collections::HashSet;

use redis_lock_core::desk::{self, Desk, Slot};
use redis_lock_core::grammar;
use redis_lock_core::lock::{Holder, Lock};
use redis_lock_core::name::Name;
use redis_lock_core::queue::Waiter;
use redis_lock_core::refusal::Refusal;
use redis_lock_core::session::TieId;
use redis_lock_core::Moment;
use redis_module::Context;

use super::spec::{Arg, KeySpec, Kind, Spec};
use super::{setting, Command};
use crate::clients::{self, Client};
use crate::{clock, flow, keyspace, reply};

pub struct Info;

impl Command for Info {
    const SPEC: Spec = Spec {
        name: c"lock.info",
        flags: c"readonly",
        summary: c"Tells who holds a lock and who waits for it.",
        complexity: c"O(N + M), N being the holders and M the waiters shown",
        arity: -2,
        keys: KeySpec::One { reads_only: true },
        args: &[Arg::key(), Arg::option(c"count", Kind::Integer, c"WAITERS")],
    };

    fn run(ctx: &Context, words: &[&[u8]]) -> Result<(), Refusal> {
        let (name, shown) = grammar::info(words, &setting(ctx))?;
        let shown = usize::try_from(shown).unwrap_or(usize::MAX);
        let now = clock::now();
        let lock = match keyspace::read_settled(ctx, &name) {
            Slot::Foreign => return Err(Refusal::WrongType),
            Slot::Empty => Lock::free(),
            Slot::Lock(stored) => desk::seen(stored, now.ms()),
        };
        flow::look_after(&name, &lock);
        let view = flow::look(|desk| View::of(desk, &name, lock, shown, now));
        let view = view.ok_or(Refusal::Reentered)?;
        if view.lock.is_free() && view.waiters == 0 {
            reply::nil(ctx);
        } else {
            view.reply(ctx);
        }
        Ok(())
    }
}

/// What there is to tell of one name.
struct View {
    lock: Lock,
    waiters: usize,
    queue: Vec<Waiter>,
    /// The ties that bind these holders to a connection that lives.
    tied: HashSet<TieId>,
    now: Moment,
}

impl View {
    fn of(desk: &Desk, name: &Name, lock: Lock, shown: usize, now: Moment) -> Self {
        let queue = desk.queues().line(name).take(shown);
        let ties = lock.holders().iter().map(|holder| holder.tie);
        Self {
            waiters: desk.queues().line_len(name),
            queue: queue.map(|(_, waiter)| waiter.clone()).collect(),
            tied: ties.filter(|tie| desk.ties().is_alive(*tie)).collect(),
            lock,
            now,
        }
    }

    fn reply(&self, ctx: &Context) {
        let free = self.lock.is_free();
        let mode = if free {
            "free"
        } else {
            self.lock.mode().as_str()
        };
        reply::map(ctx, 4);
        text(ctx, "mode", mode.as_bytes());
        reply::bulk(ctx, b"holders");
        reply::array(ctx, self.lock.holders().len());
        for holder in self.lock.holders().iter() {
            self.holder(ctx, holder);
        }
        number(ctx, "waiters", self.waiters as u64);
        reply::bulk(ctx, b"queue");
        reply::array(ctx, self.queue.len());
        for waiter in &self.queue {
            self.waiter(ctx, waiter);
        }
    }

    fn holder(&self, ctx: &Context, holder: &Holder) {
        let client = clients::find(ctx, holder.client_id);
        reply::map(ctx, 7 + fields_of(client.as_ref()));
        text(ctx, "token", holder.token.as_bytes());
        number(ctx, "fence", holder.fence);
        number(ctx, "holds", holder.holds);
        number(ctx, "limit", holder.limit.into());
        number(
            ctx,
            "lease-ms",
            holder.deadline_ms.saturating_sub(self.now.ms()),
        );
        number(
            ctx,
            "held-ms",
            self.now.ms().saturating_sub(holder.since_ms),
        );
        number(ctx, "session", u64::from(self.tied.contains(&holder.tie)));
        tell_client(ctx, client);
    }

    fn waiter(&self, ctx: &Context, waiter: &Waiter) {
        let client = clients::find(ctx, waiter.client_id);
        reply::map(ctx, 6 + fields_of(client.as_ref()));
        text(ctx, "token", waiter.ask.token.as_bytes());
        text(ctx, "mode", waiter.ask.mode.as_str().as_bytes());
        number(ctx, "limit", waiter.ask.limit.into());
        number(
            ctx,
            "waiting-ms",
            self.now.steady_ms.saturating_sub(waiter.since_ms),
        );
        number(ctx, "timeout-ms", self.timeout_left_ms(waiter));
        reply::bulk(ctx, b"keys");
        reply::array(ctx, waiter.names.count());
        for Name { key, .. } in &waiter.names {
            reply::bulk(ctx, key);
        }
        tell_client(ctx, client);
    }

    /// What is left of a waiter's BLOCK; 0: it has none, so one that just ended still shows 1.
    fn timeout_left_ms(&self, waiter: &Waiter) -> u64 {
        waiter.timeout_ms.map_or(0, |timeout_ms| {
            timeout_ms.saturating_sub(self.now.steady_ms).max(1)
        })
    }
}

fn fields_of(client: Option<&Client>) -> usize {
    client.map_or(0, |_| 3)
}

fn tell_client(ctx: &Context, client: Option<Client>) {
    if let Some(Client { id, addr, name }) = client {
        number(ctx, "client-id", id);
        text(ctx, "client-addr", addr.as_bytes());
        text(ctx, "client-name", &name);
    }
}

fn text(ctx: &Context, field: &str, bytes: &[u8]) {
    reply::bulk(ctx, field.as_bytes());
    reply::bulk(ctx, bytes);
}

fn number(ctx: &Context, field: &str, value: u64) {
    reply::bulk(ctx, field.as_bytes());
    reply::integer(ctx, value);
}
