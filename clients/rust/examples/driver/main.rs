//! The driver of the conformance suite. Executes orders, each a line of JSON, with this library.

mod kinds;
mod order;
mod storm;

use std::collections::HashMap;
use std::env;
use std::io::{stdin, stdout, BufRead, Write};
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use kinds::{Kind, Tasks, Threads};
use order::{Order, Program, Refused};
use redis_lock_client::{Config, Error, Observer, Outcome, Subject};
use serde_json::{json, Value};
use storm::Storm;

fn main() {
    let kind = env::args().nth(1).unwrap_or_default();
    match kind.as_str() {
        "rust-sync" => Driver::<Threads>::obey_all(),
        "rust-tokio" => Driver::<Tasks>::obey_all(),
        _ => eprintln!("driver: {kind:?} is neither rust-sync nor rust-tokio"),
    }
}

/// A lock, and its latest grant.
struct Named<K: Kind> {
    lock: K::Lock,
    options: String,
    /// `None` if it was released.
    grant: Option<Arc<K::Grant>>,
    /// The fence and the token of the latest grant.
    latest: Option<(i64, String)>,
}

struct State<K: Kind> {
    program: Option<Program>,
    locks: Option<K::Locks>,
    named: HashMap<String, Named<K>>,
    /// The switches of the acquires in progress.
    stops: HashMap<u64, Arc<K::Stop>>,
}

struct Driver<K: Kind> {
    state: Mutex<State<K>>,
    names: Names,
}

/// The names of the locks by their numbers.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<HashMap<u64, String>>>);

impl Names {
    fn of(&self, subject: &Subject<'_>) -> Option<String> {
        self.locked().get(&subject.lock_id).cloned()
    }

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
        let ms = ms_of(waited);
        say(&json!({"event": "waited", "lock": self.of(lock), "ms": ms, "outcome": outcome}));
    }

    fn granted(&self, grant: &Subject<'_>) {
        say(&json!({"event": "granted", "lock": self.of(grant)}));
    }

    fn lost(&self, _: &Subject<'_>) {}

    fn unavailable(&self, error: &Error) {
        say(&json!({"event": "unavailable", "text": error.to_string()}));
    }
}

impl<K: Kind> Driver<K> {
    /// Obeys each order in a thread of its own, except those that others follow.
    fn obey_all() {
        let state = State {
            program: None,
            locks: None,
            named: HashMap::new(),
            stops: HashMap::new(),
        };
        let driver: Arc<Driver<K>> = Arc::new(Driver {
            state: Mutex::new(state),
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
            match order.does() {
                "connect" | "lock" => order.answer(driver.obey(&order)),
                "acquire" => {
                    driver.state().stops.insert(order.id(), Arc::default());
                    driver.begin(order);
                }
                _ => driver.begin(order),
            }
        }
        // The held locks are not released.
        exit(0);
    }

    fn begin(self: &Arc<Self>, order: Order) {
        let driver = Arc::clone(self);
        thread::spawn(move || {
            let obeyed = driver.obey(&order);
            driver.state().stops.remove(&order.id());
            order.answer(obeyed);
        });
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self, order: &Order) -> Result<Value, Refused> {
        match order.does() {
            "connect" => self.connect(order),
            "lock" => self.lock(order),
            "acquire" => self.acquire(order),
            "cancel" => {
                let stop = self.state().stops.get(&order.number("of")).cloned();
                stop.inspect(|stop| K::cancel(stop));
                Ok(ok(true))
            }
            "block" => self.block(order),
            "write" => self.write(order),
            "storm" => self.storm(order),
            "release" => {
                let grant = self.take(&order.lock()).ok_or(Refused::Misuse)?;
                Ok(ok(K::release(grant)?))
            }
            "extend" => {
                let lease = order.time("lease_ms")?.unwrap_or_default();
                let grant = self.grant(&order.lock()).ok_or(Refused::Misuse)?;
                Ok(ok(K::extend(&grant, lease)?))
            }
            "left" => {
                let grant = self.grant(&order.lock());
                let left = grant.map_or(Duration::ZERO, |grant| K::left(&grant));
                Ok(json!({"ok": true, "ms": left.as_micros().div_ceil(1000) as u64}))
            }
            "owned" => {
                let grant = self.grant(&order.lock());
                Ok(ok(grant.map_or(Ok(false), |grant| K::owned(&grant))?))
            }
            "release_all" => {
                let count = K::release_all(&self.locks())?;
                Ok(json!({"ok": true, "count": count}))
            }
            "state" => {
                let state = self.state();
                let named = &state.named[&order.lock()];
                let lost = named.grant.as_ref().is_some_and(|grant| K::is_lost(grant));
                let (fence, token) = named.latest.clone().unzip();
                Ok(json!({"ok": true, "lost": lost, "fence": fence, "token": token}))
            }
            "texts" => {
                let (locks, state) = (self.locks(), self.state());
                let Named {
                    lock,
                    options,
                    grant,
                    ..
                } = &state.named[&order.lock()];
                let text = format!("{lock:?} {lock:#?} {locks:?} {options} {grant:?}");
                Ok(json!({"ok": true, "text": text}))
            }
            other => panic!("no such order: {other}"),
        }
    }

    fn connect(&self, order: &Order) -> Result<Value, Refused> {
        let (config, program) = order.client()?;
        let config = match order.time("command_timeout_ms")? {
            Some(timeout) => config.command_timeout(timeout)?,
            None => config,
        };
        let config: Config = config.observer(self.names.clone());
        let mut state = self.state();
        state.locks = Some(K::locks(config));
        state.program = program;
        Ok(ok(true))
    }

    fn lock(&self, order: &Order) -> Result<Value, Refused> {
        let (name, options) = (order.lock(), order.options()?);
        let text = format!("{options:?}");
        let lock = K::lock(&self.locks(), order.keys()?, options)?;
        self.names.locked().insert(K::id(&lock), name.clone());
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
        let (lock, wait) = (self.named(order), order.time("wait_ms")?);
        let stop = self
            .state()
            .stops
            .get(&order.id())
            .cloned()
            .unwrap_or_default();
        let Some(grant) = K::acquire(&lock, wait, &stop)? else {
            return Ok(ok(false));
        };
        let (fence, token) = (K::fence(&grant), K::token(&grant));
        let mut state = self.state();
        if let Some(named) = state.named.get_mut(&order.lock()) {
            named.latest = Some((fence, token.clone()));
            let earlier = named.grant.replace(Arc::new(grant));
            // The drop of a grant that was lost would block all orders.
            drop(state);
            drop(earlier);
        }
        Ok(json!({"ok": true, "fence": fence, "token": token}))
    }

    fn block(&self, order: &Order) -> Result<Value, Refused> {
        let (lock, wait) = (self.named(order), order.time("wait_ms")?);
        let work = order.time("work_ms")?.unwrap_or_default();
        let enter = |_: &K::Grant| say(&json!({"event": "in", "lock": order.lock()}));
        let fence = K::block(&lock, wait, enter, work, |grant| match order.text("fail") {
            Some(text) => Err(Refused::Failed(text)),
            None => Ok(K::fence(grant)),
        })?;
        Ok(json!({"ok": true, "fence": fence}))
    }

    fn write(&self, order: &Order) -> Result<Value, Refused> {
        let (lock, wait) = (self.named(order), order.time("wait_ms")?);
        let program = self.state().program.clone();
        let write = program.ok_or(Refused::Misuse)?.writer(order.text("list"))?;
        K::write(&lock, wait, write)?;
        Ok(ok(true))
    }

    fn storm(&self, order: &Order) -> Result<Value, Refused> {
        let most_wait = order.time("most_wait_ms")?.unwrap_or_default();
        // It lasts as long as the process, which ends soon.
        let storm: &Storm = Box::leak(Box::new(Storm::new(order.number("seconds"), most_wait)));
        K::storm(&self.named(order), storm, order.number("tasks"));
        Ok(storm.reply())
    }

    /// Removes the latest grant of a lock, when no other order uses it any more.
    fn take(&self, name: &str) -> Option<K::Grant> {
        let mut grant = self.state().named.get_mut(name)?.grant.take()?;
        loop {
            match Arc::try_unwrap(grant) {
                Ok(grant) => return Some(grant),
                Err(used) => grant = used,
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn grant(&self, name: &str) -> Option<Arc<K::Grant>> {
        self.state().named.get(name)?.grant.clone()
    }

    fn named(&self, order: &Order) -> K::Lock {
        self.state().named[&order.lock()].lock.clone()
    }

    fn locks(&self) -> K::Locks {
        self.state().locks.clone().expect("it is connected")
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
