//! The orders. This file is compiled once for threads, and once for tasks.

use std::collections::HashMap;
use std::io::stdin;
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, Observer, Outcome, Subject};
use serde::Deserialize;
use serde_json::{json, Value};

use super::front::{acquire, at_once, cancel, done, run, sleep, with};
use super::front::{Grant, Lock, Locks, Stop, LOSS_ENDS_BLOCK};
use crate::order::{Opener, Order, Refused};
use crate::say;

/// The pause between two writes.
const PAUSE: Duration = Duration::from_millis(2);

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
    opener: Option<Opener>,
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
        self.0.lock().expect("no panic")
    }

    fn of(&self, lock: &Subject<'_>) -> Option<String> {
        self.locked().get(&lock.lock_id).cloned()
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
        let (name, ms) = (self.of(lock), waited.as_millis() as u64);
        say(&json!({"event": "waited", "lock": name, "ms": ms, "outcome": outcome}));
    }

    fn granted(&self, grant: &Subject<'_>) {
        say(&json!({"event": "granted", "lock": self.of(grant)}));
    }

    fn unavailable(&self, error: &Error) {
        say(&json!({"event": "unavailable", "text": error.to_string()}));
    }
}

/// Obeys each order in a thread of its own, except those that others follow.
pub fn obey_all() {
    let driver = Arc::<Driver>::default();
    for line in stdin().lines().map_while(Result::ok) {
        let fields: Value = serde_json::from_str(&line).expect("an order");
        let id = fields["id"].as_u64().expect("a number");
        let Ok(order) = Order::deserialize(fields) else {
            say(&json!({"id": id, "error": "unrepresentable"}));
            continue;
        };
        let is_followed = ["connect", "lock"].contains(&order.r#do.as_str());
        let stop = Arc::<Stop>::default();
        driver.state().stops.insert(id, Arc::clone(&stop));
        let driver = Arc::clone(&driver);
        let thread = thread::spawn(move || {
            let obeyed = run(driver.obey(&order, &stop));
            driver.state().stops.remove(&id);
            let mut reply = obeyed
                .unwrap_or_else(|Refused { error, text }| json!({"error": error, "text": text}));
            reply["id"] = json!(id);
            say(&reply);
        });
        if is_followed {
            thread.join().expect("no panic");
        }
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

    async fn obey(&self, order: &Order, stop: &Stop) -> Result<Value, Refused> {
        let name = &order.lock;
        let grant = || self.state().named.get(name)?.grant.clone();
        Ok(match order.r#do.as_str() {
            "connect" => self.connect(order)?,
            "lock" => self.lock(order)?,
            "acquire" => self.acquire(order, stop).await?,
            "block" => self.block(order).await?,
            "write" => self.write(order).await?,
            "storm" => self.storm(order).await,
            "cancel" => {
                let stop = self.state().stops.get(&order.of).cloned();
                stop.inspect(|stop| cancel(stop));
                ok(true)
            }
            "release" => ok(done(self.take(name).ok_or_else(Refused::misuse)?.release()).await?),
            "extend" => {
                let lease = order.lease_ms.unwrap_or_default().into();
                ok(done(grant().ok_or_else(Refused::misuse)?.extend(lease)).await?)
            }
            "left" => {
                let left = grant().map_or(Duration::ZERO, |grant| grant.left());
                json!({"ok": true, "ms": left.as_micros().div_ceil(1000) as u64})
            }
            "owned" => match grant() {
                Some(grant) => ok(done(grant.owned()).await?),
                None => ok(false),
            },
            "release_all" => json!({"ok": true, "count": done(self.locks().release_all()).await?}),
            "state" => {
                let lost = grant().is_some_and(|grant| grant.is_lost());
                let (fence, token) = self.state().named[name].latest.clone().unzip();
                json!({"ok": true, "lost": lost, "fence": fence, "token": token})
            }
            "texts" => {
                let (locks, grant, state) = (self.locks(), grant(), self.state());
                let Named { lock, options, .. } = &state.named[name];
                json!({"ok": true, "text": format!("{lock:?} {locks:?} {options} {grant:?}")})
            }
            other => panic!("no such order: {other}"),
        })
    }

    fn connect(&self, order: &Order) -> Result<Value, Refused> {
        let (mut config, opener) = order.client()?;
        if let Some(timeout) = order.command_timeout_ms {
            config = config.command_timeout(timeout.into())?;
        }
        let mut state = self.state();
        state.locks = Some(Locks::new(config.observer(self.names.clone())));
        state.opener = opener;
        Ok(ok(true))
    }

    fn lock(&self, order: &Order) -> Result<Value, Refused> {
        let (name, told) = (order.lock.clone(), order.lock.clone());
        let tell = move |_: &Subject<'_>| say(&json!({"event": "lost", "lock": told}));
        let options = order.options().on_lost(tell);
        let text = format!("{options:?}");
        let lock = self.locks().lock_with(order.keys.clone(), options)?;
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

    async fn acquire(&self, order: &Order, stop: &Stop) -> Result<Value, Refused> {
        let (lock, wait) = (self.named(order), order.wait_ms.map(Duration::from));
        let Some(grant) = acquire(&lock, wait, stop).await? else {
            return Ok(ok(false));
        };
        let fence = grant.fence();
        let token = String::from_utf8_lossy(grant.token()).into_owned();
        let reply = json!({"ok": true, "fence": fence, "token": token});
        let mut state = self.state();
        let named = state.named.get_mut(&order.lock).expect("a lock");
        named.latest = Some((fence, token));
        let earlier = named.grant.replace(Arc::new(grant));
        // The drop of a grant that was lost would block all orders.
        drop(state);
        drop(earlier);
        Ok(reply)
    }

    async fn guard<T>(
        &self,
        order: &Order,
        body: impl AsyncFnOnce(&Grant) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let (lock, wait) = (self.named(order), order.wait_ms.map(Duration::from));
        let grant = done(lock.acquire(wait)).await?.ok_or(Error::NotAcquired)?;
        with(grant, body).await
    }

    async fn block(&self, order: &Order) -> Result<Value, Refused> {
        let body = async |grant: &Grant| {
            say(&json!({"event": "in", "lock": order.lock}));
            sleep(order.work_ms.into()).await;
            match order.fail.clone() {
                Some(text) => Err(Refused::new("failed", text)),
                None => Ok(json!({"ok": true, "fence": grant.fence()})),
            }
        };
        self.guard(order, body).await
    }

    /// Writes the fence to a list until the loss of the lock ends the block.
    async fn write(&self, order: &Order) -> Result<Value, Refused> {
        let opener = self.state().opener.clone().ok_or_else(Refused::misuse)?;
        let mut connection = opener()?;
        let body = async move |grant: &Grant| {
            while LOSS_ENDS_BLOCK || !grant.is_lost() {
                let mut append = redis::cmd("RPUSH");
                append.arg(&order.list).arg(grant.fence());
                let _ = append.exec(&mut *connection);
                sleep(PAUSE).await;
            }
            Ok(ok(true))
        };
        self.guard(order, body).await
    }

    async fn storm(&self, order: &Order) -> Value {
        let (lock, until) = (
            self.named(order),
            Instant::now() + Duration::from_secs(order.seconds),
        );
        let most_wait = order.most_wait_ms.into();
        let work = || acquire_again_and_again(lock.clone(), until, most_wait);
        let mut releases = at_once(order.tasks, work).await.concat();
        releases.sort();
        let p99 = releases.get(releases.len() * 99 / 100).copied();
        json!({
            "ok": true,
            "grants": releases.len(),
            "release_p99_ms": p99.unwrap_or_default().as_secs_f64() * 1000.0,
        })
    }

    /// Removes the latest grant of a lock, when no other order uses it any more.
    fn take(&self, name: &str) -> Option<Grant> {
        let mut grant = self.state().named.get_mut(name)?.grant.take()?;
        loop {
            match Arc::try_unwrap(grant) {
                Ok(grant) => return Some(grant),
                Err(used) => grant = used,
            }
            thread::sleep(PAUSE);
        }
    }

    fn named(&self, order: &Order) -> Lock {
        self.state().named[&order.lock].lock.clone()
    }

    fn locks(&self) -> Locks {
        self.state().locks.clone().expect("it is connected")
    }
}

/// Acquires a lock with random limits. Returns how long the releases took.
async fn acquire_again_and_again(lock: Lock, until: Instant, most_wait: Duration) -> Vec<Duration> {
    let mut releases = Vec::new();
    while Instant::now() < until {
        let limit = most_wait.mul_f64(rand::random());
        let acquired = done(lock.acquire(limit)).await;
        if let Some(grant) = acquired.unwrap_or_default() {
            sleep(Duration::from_millis(1)).await;
            let began = Instant::now();
            let _ = done(grant.release()).await;
            releases.push(began.elapsed());
        }
    }
    releases
}
