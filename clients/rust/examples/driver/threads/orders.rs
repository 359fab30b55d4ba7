//! The orders. This file is compiled once for threads, and once for tasks.

use std::collections::HashMap;
use std::io::{stdin, BufRead};
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Config, Error, Observer, Outcome, Subject};
use serde_json::{json, Value};

use super::front::{acquire, block, cancel, run, storm, write, Grant, Lock, Locks, Stop};
use crate::order::{Order, Program, Refused};
use crate::say;
use crate::storm::Storm;

/// A lock, and its latest grant.
struct Named {
    lock: Lock,
    options: String,
    /// `None` if it was released.
    grant: Option<Arc<Grant>>,
    /// The fence and the token of the latest grant.
    latest: Option<(i64, String)>,
}

#[derive(Default)]
struct State {
    program: Option<Program>,
    locks: Option<Locks>,
    named: HashMap<String, Named>,
    /// The switches of the acquires in progress.
    stops: HashMap<u64, Arc<Stop>>,
}

#[derive(Default)]
struct Driver {
    state: Mutex<State>,
    names: Names,
}

/// The names of the locks by their numbers.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<HashMap<u64, String>>>);

impl Names {
    fn locked(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Names {
    fn waited(&self, lock: &Subject<'_>, waited: Duration, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Granted => "granted",
            Outcome::NotAcquired => "not acquired",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
        };
        let (name, ms) = (
            self.locked().get(&lock.lock_id).cloned(),
            waited.as_millis() as u64,
        );
        say(&json!({"event": "waited", "lock": name, "ms": ms, "outcome": outcome}));
    }

    fn granted(&self, grant: &Subject<'_>) {
        let name = self.locked().get(&grant.lock_id).cloned();
        say(&json!({"event": "granted", "lock": name}));
    }

    fn lost(&self, _: &Subject<'_>) {}

    fn unavailable(&self, error: &Error) {
        say(&json!({"event": "unavailable", "text": error.to_string()}));
    }
}

/// Obeys each order in a thread of its own, except those that others follow.
pub fn obey_all() {
    let driver = Arc::<Driver>::default();
    for line in stdin().lock().lines().map_while(Result::ok) {
        let order = Order(serde_json::from_str(&line).expect("an order"));
        if ["connect", "lock"].contains(&order.does()) {
            order.answer(driver.obey(&order));
            continue;
        }
        if order.does() == "acquire" {
            driver
                .state()
                .stops
                .insert(order.number("id"), Arc::default());
        }
        let driver = Arc::clone(&driver);
        thread::spawn(move || {
            let obeyed = driver.obey(&order);
            driver.state().stops.remove(&order.number("id"));
            order.answer(obeyed);
        });
    }
    // The held locks are not released.
    exit(0);
}

fn ok(ok: bool) -> Value {
    json!({ "ok": ok })
}

impl Driver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self, order: &Order) -> Result<Value, Refused> {
        let name = order.lock();
        Ok(match order.does() {
            "connect" => self.connect(order)?,
            "lock" => self.lock(order)?,
            "acquire" => self.acquire(order)?,
            "block" => self.block(order)?,
            "storm" => self.storm(order),
            "cancel" => {
                let stop = self.state().stops.get(&order.number("of")).cloned();
                stop.inspect(|stop| cancel(stop));
                ok(true)
            }
            "write" => {
                let program = self.state().program.clone().ok_or(Refused::Misuse)?;
                let (mut connection, list) = (program.connect()?, order.text("list"));
                let append = |fence| {
                    let mut append = redis::cmd("RPUSH");
                    let _ = append.arg(&list).arg(fence).exec(&mut *connection);
                };
                write(&self.named(&name), order.time("wait_ms")?, append)?;
                ok(true)
            }
            "release" => ok(run(self.take(&name).ok_or(Refused::Misuse)?.release())?),
            "extend" => {
                let lease = order.time("lease_ms")?.unwrap_or_default();
                ok(run(self
                    .grant(&name)
                    .ok_or(Refused::Misuse)?
                    .extend(lease))?)
            }
            "left" => {
                let left = self
                    .grant(&name)
                    .map_or(Duration::ZERO, |grant| grant.left());
                json!({"ok": true, "ms": left.as_micros().div_ceil(1000) as u64})
            }
            "owned" => ok(self
                .grant(&name)
                .map_or(Ok(false), |grant| run(grant.owned()))?),
            "release_all" => json!({"ok": true, "count": run(self.locks().release_all())?}),
            "state" => {
                let lost = self.grant(&name).is_some_and(|grant| grant.is_lost());
                let (fence, token) = self.state().named[&name].latest.clone().unzip();
                json!({"ok": true, "lost": lost, "fence": fence, "token": token})
            }
            "texts" => {
                let (locks, grant, state) = (self.locks(), self.grant(&name), self.state());
                let Named { lock, options, .. } = &state.named[&name];
                json!({"ok": true, "text": format!("{lock:?} {locks:?} {options} {grant:?}")})
            }
            other => panic!("no such order: {other}"),
        })
    }

    fn connect(&self, order: &Order) -> Result<Value, Refused> {
        let (config, program) = order.client()?;
        let config = match order.time("command_timeout_ms")? {
            Some(timeout) => config.command_timeout(timeout)?,
            None => config,
        };
        let config: Config = config.observer(self.names.clone());
        let mut state = self.state();
        (state.locks, state.program) = (Some(Locks::new(config)), program);
        Ok(ok(true))
    }

    fn lock(&self, order: &Order) -> Result<Value, Refused> {
        let (name, options) = (order.lock(), order.options()?);
        let text = format!("{options:?}");
        let lock = self.locks().lock_with(order.keys()?, options)?;
        self.names.locked().insert(lock.id(), name.clone());
        let named = Named {
            lock,
            options: text,
            grant: None,
            latest: None,
        };
        self.state().named.insert(name, named);
        Ok(ok(true))
    }

    fn acquire(&self, order: &Order) -> Result<Value, Refused> {
        let (name, stop) = (
            order.lock(),
            self.state().stops[&order.number("id")].clone(),
        );
        let Some(grant) = acquire(&self.named(&name), order.time("wait_ms")?, &stop)? else {
            return Ok(ok(false));
        };
        let token = String::from_utf8_lossy(grant.token()).into_owned();
        let reply = json!({"ok": true, "fence": grant.fence(), "token": token});
        let mut state = self.state();
        if let Some(named) = state.named.get_mut(&name) {
            named.latest = Some((grant.fence(), token));
            let earlier = named.grant.replace(Arc::new(grant));
            // The drop of a grant that was lost would block all orders.
            drop(state);
            drop(earlier);
        }
        Ok(reply)
    }

    fn block(&self, order: &Order) -> Result<Value, Refused> {
        let (lock, wait) = (self.named(&order.lock()), order.time("wait_ms")?);
        let work = order.time("work_ms")?.unwrap_or_default();
        let enter = || say(&json!({"event": "in", "lock": order.lock()}));
        let fence = block(&lock, wait, enter, work, |grant| match order.text("fail") {
            Some(text) => Err(Refused::Failed(text)),
            None => Ok(grant.fence()),
        })?;
        Ok(json!({"ok": true, "fence": fence}))
    }

    fn storm(&self, order: &Order) -> Value {
        // It lasts as long as the process, which ends soon.
        let storms: &Storm = Box::leak(Box::new(Storm {
            until: Instant::now() + Duration::from_secs(order.number("seconds")),
            most_wait: Duration::from_millis(order.number("most_wait_ms")),
            releases: Mutex::default(),
            most_late: Mutex::default(),
        }));
        storm(&self.named(&order.lock()), storms, order.number("tasks"));
        storms.reply()
    }

    /// Removes the latest grant of a lock, when no other order uses it any more.
    fn take(&self, name: &str) -> Option<Grant> {
        let mut grant = self.state().named.get_mut(name)?.grant.take()?;
        loop {
            match Arc::try_unwrap(grant) {
                Ok(grant) => return Some(grant),
                Err(used) => grant = used,
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn grant(&self, name: &str) -> Option<Arc<Grant>> {
        self.state().named.get(name)?.grant.clone()
    }

    fn named(&self, name: &str) -> Lock {
        self.state().named[name].lock.clone()
    }

    fn locks(&self) -> Locks {
        self.state().locks.clone().expect("it is connected")
    }
}
