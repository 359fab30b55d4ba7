//! The orders on the library for threads, each in a thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::Client;
use redis_lock_client::{Error, Guard, Lock, Locks};
use serde_json::{json, Value};

use crate::{ms_of, ok, text_of, Order};

#[derive(Default)]
struct State {
    locks: Option<Locks>,
    named: HashMap<String, Lock>,
    guards: HashMap<String, Vec<Guard>>,
    /// The lock of each acquire, by the order's number.
    waits: HashMap<u64, String>,
}

#[derive(Clone, Default)]
struct Driver(Arc<Mutex<State>>);

pub fn start() -> impl Fn(Order) {
    let driver = Driver::default();
    move |order| {
        if let ("acquire", Some(id)) = (order.text("do").as_str(), order.number("id")) {
            driver.state().waits.insert(id, order.text("lock"));
        }
        let driver = driver.clone();
        thread::spawn(move || order.answer(driver.obey(&order)));
    }
}

impl Driver {
    fn obey(&self, order: &Order) -> Result<Value, Error> {
        let name = order.text("lock");
        match order.text("do").as_str() {
            "connect" => {
                let locks = connect(order)?;
                self.state().locks = Some(locks);
                Ok(ok(true))
            }
            "lock" => {
                let locks = self.state().locks.clone().expect("it is connected");
                let lock = locks.lock_with(order.list("keys"), order.options());
                let token = text_of(lock.token());
                self.state().named.insert(name, lock);
                Ok(json!({"ok": true, "token": token}))
            }
            "acquire" => {
                let lock = self.lock(&name);
                let guard = match order.ms("wait_ms") {
                    None => Some(lock.acquire()?),
                    Some(Duration::ZERO) => lock.try_acquire()?,
                    Some(wait) => lock.acquire_within(wait)?,
                };
                let Some(guard) = guard else {
                    return Ok(ok(false));
                };
                let fence = guard.fence();
                self.state().guards.entry(name).or_default().push(guard);
                Ok(json!({"ok": true, "fence": fence}))
            }
            "cancel" => {
                let of = order.number("of").unwrap_or_default();
                let name = self.state().waits.get(&of).cloned().unwrap_or_default();
                self.lock(&name).cancel();
                Ok(ok(true))
            }
            "release" => {
                let guard = self.state().guards.entry(name).or_default().pop();
                Ok(ok(match guard {
                    Some(guard) => guard.release()?,
                    None => false,
                }))
            }
            "extend" => {
                let lease = order.ms("lease_ms").unwrap_or_default();
                let guard = self.state().guards.entry(name.clone()).or_default().pop();
                let Some(guard) = guard else {
                    return Ok(ok(false));
                };
                let extended = guard.extend(lease);
                self.state().guards.entry(name).or_default().push(guard);
                extended.map(ok)
            }
            "left" => {
                let left = self.lock(&name).left()?;
                Ok(json!({"ok": true, "ms": ms_of(left)}))
            }
            "state" => {
                let token = text_of(self.lock(&name).token());
                let state = self.state();
                let guard = state.guards.get(&name).and_then(|guards| guards.last());
                Ok(json!({
                    "ok": true,
                    "lost": guard.is_some_and(Guard::is_lost),
                    "fence": guard.map(Guard::fence),
                    "token": token,
                }))
            }
            other => panic!("no such order: {other}"),
        }
    }

    fn lock(&self, name: &str) -> Lock {
        self.state().named[name].clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(order: &Order) -> Result<Locks, Error> {
    if order.is("cluster") {
        return Locks::cluster(ClusterClientBuilder::new(order.urls()));
    }
    Ok(Locks::new(Client::open(order.urls().remove(0))?))
}
