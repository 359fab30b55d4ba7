//! `LOCK.INFO`: replies the holders and the waiters of a lock.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use redis_lock_core::budget::{MOST_KEYS_SHOWN, MOST_WAITERS_SHOWN};
use redis_lock_core::grammar;
use redis_lock_core::grammar::syntax::{self, Keys, Syntax};
use redis_lock_core::state::waiter::Waiter;
use redis_lock_core::store::KeyState;
use redis_lock_core::table::{self, LockTable};
use redis_lock_core::values::data::Data;
use redis_lock_core::values::holder::Holder;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::session_id::SessionId;
use redis_lock_core::values::time::{self, Now};
use redis_lock_core::values::token::Token;
use redis_module::Context;

use super::command::{Call, Command};
use super::spec::{CommandDoc, Spec, SINCE_0_1_0};
use crate::engine::{recorder, store};
use crate::server::clients::{self, Client};
use crate::server::rights::Caller;
use crate::server::{clock, reply};
use crate::state;

pub struct Info;

impl Command for Info {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: &syntax::INFO,
            keys: Some(Keys::One),
        },
        about: CommandDoc {
            flags: c"readonly",
            summary: c"Returns the holders and the waiters of a lock.",
            complexity: c"O(N + M), N being the holders and M the waiters shown",
            history: SINCE_0_1_0,
        },
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        let ctx = call.ctx;
        let (name, shown) = grammar::info(call.words, &call.parse_context)?;
        let shown = usize::try_from(shown).unwrap_or(usize::MAX);
        let now = clock::now();
        let lock = match store::read_settled(ctx, &name) {
            KeyState::OtherType => return Err(Refusal::WrongType),
            KeyState::Empty => Lock::free(),
            KeyState::Lock(stored) => table::as_of(stored, now.ms()),
        };
        recorder::watch_leases(&name, &lock);
        let caller = Caller::of(ctx);
        let view = state::look(|table| View::of(table, &name, lock, shown, now, caller));
        let mut view = view.ok_or(Refusal::Reentered)?;
        view.look_up_clients(ctx);
        if view.lock.is_free() && view.waiters == 0 {
            reply::null_array(ctx);
        } else {
            view.reply(ctx);
        }
        Ok(())
    }
}

/// Returns the first waiters of a queue whose waits have not ended, at most `shown` and at most as
/// many as one command replies.
fn first_of<'q>(
    queue: impl Iterator<Item = &'q Waiter>,
    shown: usize,
    steady_ms: u64,
) -> impl Iterator<Item = Cow<'q, Waiter>> {
    let mut keys = 0;
    let queue = queue.filter_map(move |waiter| waiter.as_of(steady_ms));
    let queue = queue.take(shown.min(MOST_WAITERS_SHOWN));
    queue.take_while(move |waiter| {
        let is_first = keys == 0;
        keys += waiter.names.count();
        is_first || keys <= MOST_KEYS_SHOWN
    })
}

/// The reply for one name.
struct View {
    key: Vec<u8>,
    lock: Lock,
    waiters: usize,
    queue: Vec<Waiter>,
    /// The sessions that tie these holders to an open connection.
    with_session: HashSet<SessionId>,
    now: Now,
    caller: Caller,
    /// The connected clients of the holders and waiters, unless `tells_tokens` is false.
    clients: HashMap<u64, Client>,
    /// True if tokens and their clients are replied, because the caller may write to the key.
    tells_tokens: bool,
}

impl View {
    fn of(
        table: &LockTable,
        name: &Name,
        lock: Lock,
        shown: usize,
        now: Now,
        caller: Caller,
    ) -> Self {
        let queue = table.queues().queue(name);
        let queue = queue.map(|(_, waiter)| waiter);
        let sessions = lock.holders().iter().map(|holder| holder.session);
        Self {
            key: name.key().to_vec(),
            waiters: table.queues().queue_len(name),
            queue: first_of(queue, shown, now.steady_ms)
                .map(Cow::into_owned)
                .collect(),
            with_session: sessions
                .filter(|session| table.sessions().is_alive(*session))
                .collect(),
            lock,
            now,
            clients: HashMap::new(),
            tells_tokens: caller.may_write(name.key()),
            caller,
        }
    }

    // perf: the server needs some 1.2 us for a client's address, and one client can have many of the
    // holders.
    fn look_up_clients(&mut self, ctx: &Context) {
        if !self.tells_tokens {
            return;
        }
        let holders = self.lock.holders().iter().map(|holder| holder.client_id);
        let waiters = self.queue.iter().map(|waiter| waiter.client_id);
        let ids: HashSet<u64> = holders.chain(waiters).collect();
        let connected = ids.into_iter().filter_map(|id| {
            // SAFETY: the id was recorded with an operation, and `clients::caller` returns no id of
            // a client that runs scripts.
            let client = unsafe { clients::find(ctx, id) };
            Some((id, client?))
        });
        self.clients = connected.collect();
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
        let client = self.clients.get(&holder.client_id);
        reply::map(ctx, 9 + fields_of(client));
        self.token(ctx, &holder.token);
        number(ctx, "fence", holder.fence);
        number(ctx, "holds", holder.holds);
        number(ctx, "limit", holder.limit.into());
        number(ctx, "permits", holder.permits.into());
        number(
            ctx,
            "lease-ms",
            time::left_ms(holder.deadline_ms, self.now.ms()),
        );
        number(
            ctx,
            "held-ms",
            self.now.ms().saturating_sub(holder.since_ms),
        );
        number(
            ctx,
            "session",
            u64::from(self.with_session.contains(&holder.session)),
        );
        text(ctx, "data", holder.data.as_bytes());
        tell_client(ctx, client);
    }

    fn waiter(&self, ctx: &Context, waiter: &Waiter) {
        let client = self.clients.get(&waiter.client_id);
        reply::map(ctx, 10 + fields_of(client));
        self.token(ctx, &waiter.request.token);
        text(ctx, "kind", waiter.kind.as_str().as_bytes());
        text(ctx, "mode", waiter.request.mode.as_str().as_bytes());
        number(ctx, "limit", waiter.request.limit.into());
        number(ctx, "permits", waiter.request.permits.into());
        number(
            ctx,
            "waiting-ms",
            self.now.steady_ms.saturating_sub(waiter.since_ms),
        );
        number(ctx, "timeout-ms", self.left_ms(waiter.timeout_ms));
        let keep_ms = waiter.kind.keep_ms(self.now.steady_ms);
        number(ctx, "keep-ms", keep_ms.map_or(0, |ms| ms.max(1)));
        reply::bulk(ctx, b"keys");
        let keys = waiter.names.iter().map(Name::key);
        // The server has checked the right to read the command's own key.
        let is_shown = |key: &&[u8]| *key == self.key || self.caller.may_read(key);
        let keys: Vec<&[u8]> = keys.filter(is_shown).collect();
        reply::array(ctx, keys.len());
        for key in keys {
            reply::bulk(ctx, key);
        }
        let data = waiter.request.data.as_ref();
        text(ctx, "data", data.map_or(&[], Data::as_bytes));
        tell_client(ctx, client);
    }

    fn token(&self, ctx: &Context, token: &Token) {
        reply::bulk(ctx, b"token");
        if self.tells_tokens {
            reply::bulk(ctx, token.as_bytes());
        } else {
            reply::nil(ctx);
        }
    }

    /// Returns what is left of a waiter's BLOCK in ms, at least 1; 0: it has none.
    fn left_ms(&self, end_ms: Option<u64>) -> u64 {
        end_ms.map_or(0, |ms| time::left_ms(ms, self.now.steady_ms))
    }
}

fn fields_of(client: Option<&Client>) -> usize {
    client.map_or(0, |_| 3)
}

fn tell_client(ctx: &Context, client: Option<&Client>) {
    if let Some(Client { id, addr, name }) = client {
        number(ctx, "client-id", *id);
        text(ctx, "client-addr", addr.as_bytes());
        text(ctx, "client-name", name);
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
