//! The orders on the library for tokio, each in a task.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::Client;
use redis_lock_client::aio::{Guard, Lock, Locks};
use redis_lock_client::Error;
use serde_json::{json, Value};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::{ms_of, ok, text_of, Order};

#[derive(Default)]
struct State {
    locks: Option<Locks>,
    named: HashMap<String, Lock>,
    guards: HashMap<String, Vec<Guard>>,
    /// The acquires, by the order's number.
    waits: HashMap<u64, (Order, JoinHandle<()>)>,
}

#[derive(Clone, Default)]
struct Driver(Arc<Mutex<State>>);

pub fn start() -> impl Fn(Order) {
    let runtime = Runtime::new().expect("a runtime");
    let driver = Driver::default();
    move |order| {
        let obeys = driver.clone();
        let (asked, id) = (order.clone(), order.number("id").unwrap_or_default());
        let mut state = driver.state();
        let task = runtime.spawn(async move { asked.answer(obeys.obey(&asked).await) });
        if order.text("do") == "acquire" {
            state.waits.insert(id, (order, task));
        }
    }
}

impl Driver {
    async fn obey(&self, order: &Order) -> Result<Value, Error> {
        let name = order.text("lock");
        match order.text("do").as_str() {
            "connect" => {
                let locks = connect(order).await?;
                self.state().locks = Some(locks);
                Ok(ok(true))
            }
            "lock" => {
                let lock = self
                    .locks()
                    .lock_with(order.list("keys"), order.options())?;
                let token = text_of(lock.token());
                self.state().named.insert(name, lock);
                Ok(json!({"ok": true, "token": token}))
            }
            "acquire" => {
                let lock = self.lock(&name);
                let guard = match order.ms("wait_ms") {
                    None => Some(lock.acquire().await?),
                    Some(Duration::ZERO) => lock.try_acquire().await?,
                    Some(wait) => lock.acquire_within(wait).await?,
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
                let wait = self.state().waits.remove(&of);
                let (acquire, task) = wait.expect("an acquire");
                task.abort();
                if task.await.is_err() {
                    self.locks().settled().await;
                    acquire.answer(Err(Error::Cancelled));
                }
                Ok(ok(true))
            }
            "release" => {
                let guard = self.state().guards.entry(name).or_default().pop();
                Ok(ok(match guard {
                    Some(guard) => guard.release().await?,
                    None => false,
                }))
            }
            "extend" => {
                let lease = order.ms("lease_ms").unwrap_or_default();
                let guard = self.state().guards.entry(name.clone()).or_default().pop();
                let Some(guard) = guard else {
                    return Ok(ok(false));
                };
                let extended = guard.extend(lease).await;
                self.state().guards.entry(name).or_default().push(guard);
                extended.map(ok)
            }
            "left" => {
                let left = self.lock(&name).left().await?;
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

    fn locks(&self) -> Locks {
        self.state().locks.clone().expect("it is connected")
    }

    fn lock(&self, name: &str) -> Lock {
        self.state().named[name].clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn connect(order: &Order) -> Result<Locks, Error> {
    if order.is("cluster") {
        return Locks::cluster(ClusterClientBuilder::new(order.urls())).await;
    }
    Ok(Locks::new(Client::open(order.urls().remove(0))?))
}
