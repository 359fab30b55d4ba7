//! The driver of the conformance suite. Executes orders, each a line of JSON, with this library.

mod kinds;
mod order;

use std::collections::HashMap;
use std::env;
use std::io::{stdin, stdout, BufRead, Write};
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use kinds::{Kind, Tasks, Threads};
use order::{Order, Refused};
use redis_lock_client::{Config, Error, Observer, Outcome, Subject};
use serde_json::{json, Value};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::sleep;

fn main() {
    let kind = env::args().nth(1).unwrap_or_default();
    match kind.as_str() {
        "rust-sync" => Driver::<Threads>::obey_all(),
        "rust-tokio" => Driver::<Tasks>::obey_all(),
        _ => eprintln!("driver: {kind:?} is neither rust-sync nor rust-tokio"),
    }
}

struct State<K: Kind> {
    locks: Option<K::Locks>,
    named: HashMap<String, K::Lock>,
    guards: HashMap<String, Vec<Arc<K::Guard>>>,
    /// The lock of each acquire in progress, and what cancels it.
    waits: HashMap<u64, (String, Arc<Notify>)>,
    texts: HashMap<String, String>,
}

struct Driver<K: Kind> {
    state: Arc<Mutex<State<K>>>,
    names: Names,
}

/// The token of a lock, which an acquire may replace, and its name.
type Named = (Box<dyn Fn() -> Vec<u8> + Send>, String);

/// The names of the locks.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<Named>>>);

impl Names {
    fn of(&self, lock: &Subject<'_>) -> Option<String> {
        let names = self.locked();
        let mut latest = names.iter().rev();
        let named = latest.find(|(token, _)| token() == lock.token());
        named.map(|(_, name)| name.clone())
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Named>> {
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
        let ms = ms_of(waited);
        say(&json!({"event": "waited", "lock": self.of(lock), "ms": ms, "outcome": outcome}));
    }

    fn granted(&self, lock: &Subject<'_>) {
        say(&json!({"event": "granted", "lock": self.of(lock)}));
    }

    fn lost(&self, _: &Subject<'_>) {}

    fn unavailable(&self, error: &Error) {
        say(&json!({"event": "unavailable", "text": error.to_string()}));
    }
}

impl<K: Kind> Driver<K> {
    /// Obeys each order in a thread of its own.
    fn obey_all() {
        let runtime = Arc::new(Runtime::new().expect("a runtime"));
        let state = State {
            locks: None,
            named: HashMap::new(),
            guards: HashMap::new(),
            waits: HashMap::new(),
            texts: HashMap::new(),
        };
        let driver: Arc<Driver<K>> = Arc::new(Driver {
            state: Arc::new(Mutex::new(state)),
            names: Names::default(),
        });
        for line in stdin().lock().lines().map_while(Result::ok) {
            let order = match serde_json::from_str(&line) {
                Ok(order) => Order(order),
                Err(error) => {
                    eprintln!("driver: {line}: {error}");
                    continue;
                }
            };
            let id = order.id();
            if order.does() == "acquire" {
                let wait = (order.lock(), Arc::default());
                driver.state().waits.insert(id, wait);
            }
            let (driver, runtime) = (Arc::clone(&driver), Arc::clone(&runtime));
            thread::spawn(move || {
                let obeyed = runtime.block_on(driver.obey(&order));
                driver.state().waits.remove(&id);
                order.answer(obeyed);
            });
        }
        // The held locks are not released.
        exit(0);
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn obey(&self, order: &Order) -> Result<Value, Refused> {
        let name = order.lock();
        match order.does() {
            "connect" => self.connect(order),
            "lock" => self.make(order, name),
            "acquire" => {
                let guard = self.cancellable(order).await?;
                let Some(guard) = guard else {
                    return Ok(ok(false));
                };
                let fence = K::fence(&guard);
                let mut state = self.state();
                state.guards.entry(name).or_default().push(Arc::new(guard));
                Ok(json!({"ok": true, "fence": fence}))
            }
            "cancel" => {
                // The acquire may not have begun yet.
                while let Some((name, cancel)) = self.wait_of(order) {
                    K::cancel(&self.lock(&name), &cancel);
                    sleep(Duration::from_millis(2)).await;
                }
                Ok(ok(true))
            }
            "block" => self.block(order, &name).await,
            "release" => {
                let guard = self.pop(&name).await.ok_or(Refused::Misuse)?;
                Ok(ok(K::release(guard).await?))
            }
            "extend" => {
                let lease = order.time("lease_ms")?.unwrap_or_default();
                let guard = self.state().guards.entry(name).or_default().last().cloned();
                let guard = guard.ok_or(Refused::Misuse)?;
                Ok(ok(K::extend(&guard, lease).await?))
            }
            "left" => {
                let left = K::left(&self.lock(&name)).await?;
                Ok(json!({"ok": true, "ms": ms_of(left)}))
            }
            "owned" => Ok(ok(K::owned(&self.lock(&name)).await?)),
            "release_all" => {
                let count = K::release_all(&self.locks()).await?;
                Ok(json!({"ok": true, "count": count}))
            }
            "state" => {
                let lock = self.lock(&name);
                let state = self.state();
                let guard = state.guards.get(&name).and_then(|guards| guards.last());
                Ok(json!({
                    "ok": true,
                    "lost": guard.is_some_and(|guard| K::is_lost(guard)),
                    "fence": K::last_fence(&lock),
                    "token": String::from_utf8_lossy(&K::token(&lock)),
                }))
            }
            "texts" => {
                let (lock, locks, state) = (self.lock(&name), self.locks(), self.state());
                let (options, guards) = (&state.texts[&name], &state.guards.get(&name));
                let text = format!("{lock:?} {lock:#?} {locks:?} {options} {guards:?}");
                Ok(json!({"ok": true, "text": text}))
            }
            other => panic!("no such order: {other}"),
        }
    }

    fn connect(&self, order: &Order) -> Result<Value, Refused> {
        let mut clients = order.clients()?;
        let config = match (order.text("sentinel"), order.is("cluster")) {
            (Some(name), _) => Config::sentinel(clients.clone(), name, clients.remove(0)),
            (None, true) => Config::cluster(clients),
            (None, false) => clients.remove(0).into(),
        };
        let config = match order.time("command_timeout_ms")? {
            Some(timeout) => config.command_timeout(timeout)?,
            None => config,
        };
        let locks = K::locks(config.observer(self.names.clone()));
        self.state().locks = Some(locks);
        Ok(ok(true))
    }

    fn make(&self, order: &Order, name: String) -> Result<Value, Refused> {
        let options = order.options()?;
        let text = format!("{options:?}");
        let lock = K::lock(&self.locks(), order.keys()?, options)?;
        let token = K::token(&lock);
        let answer = json!({"ok": true, "token": String::from_utf8_lossy(&token)});
        let named = lock.clone();
        let named: Named = (Box::new(move || K::token(&named)), name.clone());
        self.names.locked().push(named);
        self.state().texts.insert(name.clone(), text);
        self.state().named.insert(name, lock);
        Ok(answer)
    }

    async fn cancellable(&self, order: &Order) -> Result<Option<K::Guard>, Refused> {
        let lock = self.lock(&order.lock());
        let wait = order.time("wait_ms")?;
        let cancel = self.state().waits[&order.id()].1.clone();
        tokio::select! {
            taken = K::acquire(&lock, wait) => Ok(taken?),
            () = cancel.notified() => Err(Error::Cancelled.into()),
        }
    }

    async fn block(&self, order: &Order, name: &str) -> Result<Value, Refused> {
        let wait = order.time("wait_ms")?;
        let Some(guard) = K::acquire(&self.lock(name), wait).await? else {
            return Err(Error::NotAcquired(wait.unwrap_or_default()).into());
        };
        let fence = K::fence(&guard);
        say(&json!({"event": "in", "lock": name}));
        sleep(order.time("work_ms")?.unwrap_or_default()).await;
        if let Some(text) = order.text("fail") {
            drop(guard);
            return Err(Refused::Failed(text));
        }
        match K::release(guard).await {
            Ok(false) => Err(Refused::Lost),
            // The work is done, and the lock ends with its lease at the latest.
            Ok(true) | Err(_) => Ok(json!({"ok": true, "fence": fence})),
        }
    }

    /// Removes the latest guard of a lock, when no other order uses it any more.
    async fn pop(&self, name: &str) -> Option<K::Guard> {
        let mut guard = self
            .state()
            .guards
            .entry(name.to_owned())
            .or_default()
            .pop()?;
        loop {
            match Arc::try_unwrap(guard) {
                Ok(guard) => return Some(guard),
                Err(used) => guard = used,
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    fn wait_of(&self, order: &Order) -> Option<(String, Arc<Notify>)> {
        self.state().waits.get(&order.number("of")).cloned()
    }

    fn locks(&self) -> K::Locks {
        self.state().locks.clone().expect("it is connected")
    }

    fn lock(&self, name: &str) -> K::Lock {
        self.state().named[name].clone()
    }
}

fn say(line: &Value) {
    let mut stdout = stdout().lock();
    // The reader may be gone, and then this driver ends soon as well.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn ok(ok: bool) -> Value {
    json!({ "ok": ok })
}

fn ms_of(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
