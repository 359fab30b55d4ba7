//! The world of a behaviour: servers, the drivers of one client, and another holder of the same
//! locks.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use redis::{from_redis_value, Value};
use serde_json::json;
use tempfile::TempDir;

use crate::clients;
use crate::driver::{shows_token, Answer, Driver, Sightings};
use crate::servers::{until, within, Info, Kind, Servers, Setting, GROUP, SOON};
use crate::table::Ability;

/// Releases a lock if no waiter is absent.
const RELEASE_TO_THE_PRESENT: &str = r#"
    local info = cjson.encode(redis.call('LOCK.INFO', KEYS[1], 'WAITERS', 100))
    if info:find('"kind","absent"', 1, true) then
        return 0
    end
    return redis.call('LOCK.RELEASE', KEYS[1], 'other')
"#;

/// Servers, and the drivers of a client.
pub struct World {
    pub servers: Servers,
    pub setting: Setting,
    pub client: String,
    pub sightings: Arc<Sightings>,
    script: PathBuf,
    complaints: TempDir,
    drivers: Cell<usize>,
    late: bool,
}

impl World {
    pub fn new(script: &Path, client: &str, setting: &Setting) -> Result<World> {
        Ok(World {
            servers: Servers::start(setting)?,
            setting: setting.clone(),
            client: client.to_owned(),
            sightings: Arc::default(),
            script: script.to_owned(),
            complaints: tempfile::tempdir()?,
            drivers: Cell::new(0),
            late: false,
        })
    }

    /// Notes that the row fails because of its time alone.
    pub fn set_late(&mut self) {
        self.late = true;
    }

    /// Asserts that the best of some rounds was in time. If it wasn't, the row fails because of its
    /// time alone.
    #[track_caller]
    pub fn assert_in_time(&mut self, best: Option<Duration>, latest: Duration) {
        if best.is_none_or(|best| best > latest) {
            self.set_late();
            panic!("late in each round: {best:?}, due within {latest:?}");
        }
    }

    /// Tells whether the row fails because of its time alone.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// Returns a new driver, which is connected.
    #[track_caller]
    pub fn driver(&self) -> Driver {
        self.driver_with(json!({}))
    }

    /// Returns a new driver, which is connected with these fields in addition.
    #[track_caller]
    pub fn driver_with(&self, fields: serde_json::Value) -> Driver {
        let (driver, connected) = self.try_driver(fields);
        assert!(connected.ok());
        driver
    }

    /// Starts a driver, and returns it with its answer to the order to connect.
    #[track_caller]
    pub fn try_driver(&self, fields: serde_json::Value) -> (Driver, Answer) {
        let number = self.drivers.get();
        self.drivers.set(number + 1);
        let complaints = self.complaints.path().join(number.to_string());
        let driver = Driver::start(&self.script, &self.client, &complaints, &self.sightings);
        let driver = driver.unwrap_or_else(|error| panic!("{error:#}"));
        let mut order = self.connect_order();
        for (name, value) in fields.as_object().expect("fields are a map") {
            order[name] = value.clone();
        }
        let connected = driver.call(order);
        (driver, connected)
    }

    /// Returns the order to connect to the servers.
    pub fn connect_order(&self) -> serde_json::Value {
        let mut order = json!({
            "do": "connect",
            "servers": self.servers.addresses(),
            "cluster": self.servers.kind == Kind::Cluster,
        });
        if self.servers.kind == Kind::Sentinel {
            order["sentinel"] = json!(GROUP);
        }
        if self.servers.kind == Kind::Masters {
            order["masters"] = json!(true);
        }
        order
    }

    /// Returns the file for what another client's drivers write to stderr.
    pub fn complaints_of(&self, client: &str) -> PathBuf {
        self.complaints.path().join(client)
    }

    /// Returns what the drivers wrote of tokens where nobody asked for one.
    pub fn tokens_shown(&self) -> Option<String> {
        let mut shown = self.sightings.shown();
        let complaints = self.said_by_drivers();
        shown.extend(shows_token(&complaints).then_some(complaints));
        (!shown.is_empty()).then(|| format!("a token is shown:\n{}", shown.join("\n")))
    }

    /// Returns what the drivers wrote to stderr.
    pub fn said_by_drivers(&self) -> String {
        let text = |number: usize| {
            let file = self.complaints.path().join(number.to_string());
            let text = fs::read(file).unwrap_or_default();
            format!("--- driver {number}\n{}\n", String::from_utf8_lossy(&text))
        };
        (0..self.drivers.get()).map(text).collect()
    }

    /// Acquires the lock for the other holder, for ten minutes.
    #[track_caller]
    pub fn other_holds(&self, key: &str) {
        let grant = self
            .servers
            .call(&format!("LOCK.ACQUIRE {key} other PX 600000"));
        assert_ne!(grant, Value::Nil, "the lock {key} isn't free");
    }

    /// Releases the lock of the other holder.
    #[track_caller]
    pub fn other_releases(&self, key: &str) {
        assert_eq!(self.servers.int(&format!("LOCK.RELEASE {key} other")), 1);
    }

    /// Releases the lock of the other holder while no waiter is absent. Between two connections, or
    /// between two steps of a long wait, a waiter is absent for a moment, and the queue skips it.
    #[track_caller]
    pub fn other_hands_over(&self, key: &str) {
        let call = ["EVAL", RELEASE_TO_THE_PRESENT, "1", key];
        until("no waiter is absent", || {
            self.servers.call_words(&call) == Value::Int(1)
        });
    }

    /// Returns true if the other holder has the lock.
    #[track_caller]
    pub fn other_has(&self, key: &str) -> bool {
        self.left_of(key, "other") > 0
    }

    /// Returns the token of the lock's first holder.
    #[track_caller]
    pub fn holder(&self, key: &str) -> String {
        text(&self.servers.info(key).expect("it is held").holders[0]["token"])
    }

    /// Returns the token of the first waiter.
    #[track_caller]
    pub fn waiter(&self, key: &str) -> String {
        text(&self.servers.info(key).expect("it is held").queue[0]["token"])
    }

    /// Returns true if the first waiter is a client in LOCK.WAIT.
    #[track_caller]
    pub fn has_blocked(&self, key: &str) -> bool {
        let info = self.servers.info(key).expect("it is held");
        text(&info.queue[0]["kind"]) == "blocked"
    }

    /// Returns true if the client has an ability.
    pub fn has(&self, ability: Ability) -> bool {
        !clients::lacks(&self.client, ability)
    }

    /// Returns a token's remaining lease in milliseconds.
    #[track_caller]
    pub fn left_of(&self, key: &str, token: &str) -> i64 {
        self.servers.int(&format!("LOCK.CHECK {key} {token}"))
    }

    /// Returns the number of waiters, connected or not.
    #[track_caller]
    pub fn waiters(&self, key: &str) -> i64 {
        self.servers.info(key).map_or(0, |info| info.waiters)
    }

    /// Waits until `count` waiters are in the queue, each with a connection or a place.
    #[track_caller]
    pub fn until_waiting(&self, key: &str, count: usize) {
        let present = |info: &Info| {
            let kinds = info.queue.iter().map(|waiter| text(&waiter["kind"]));
            kinds.filter(|kind| kind != "absent").count()
        };
        until(&format!("{count} wait for {key}"), || {
            self.servers
                .info(key)
                .is_some_and(|it| present(&it) == count)
        });
    }

    /// Waits until the queue is empty, because a client that gives up may not wait for the server's
    /// reply. A waiter that a client leaves behind must stay in the queue for longer than this
    /// waits.
    #[track_caller]
    pub fn until_nobody_waits(&self, key: &str) {
        let nobody = || (self.waiters(key) == 0).then_some(());
        assert!(within(SOON, nobody).is_some(), "{key} has a waiter");
    }

    /// Waits until the lock has neither holders nor waiters.
    #[track_caller]
    pub fn until_free(&self, key: &str) {
        let free = || self.servers.info(key).is_none().then_some(());
        if within(SOON, free).is_none() {
            self.assert_free(key);
        }
    }

    /// Returns how often a command of the module was called.
    pub fn calls_of(&self, command: &str) -> u64 {
        let begin = format!("cmdstat_{command}:calls=");
        let stats = self.commands_of_locks();
        let calls = stats.iter().find_map(|line| line.strip_prefix(&begin));
        let count = calls.and_then(|it| it.split(',').next()?.parse().ok());
        count.unwrap_or_default()
    }

    /// Counts the commands of the module that the server has executed.
    pub fn commands_of_locks(&self) -> Vec<String> {
        let stats = text(&self.servers.call("INFO commandstats"));
        let lines = stats.lines().filter(|line| line.contains("cmdstat_lock."));
        lines.map(str::to_owned).collect()
    }

    /// Waits until the server replies and serves its keys.
    pub fn until_served(&self) {
        until("the server serves its keys", || {
            self.servers.try_call("EXISTS {t}").is_ok()
        });
    }

    /// Waits until the server refuses a write with this error.
    pub fn until_refused(&self, error: &str) {
        self.until_refuses("SET {t}refused 1", error);
    }

    /// Waits until the server is in a script. A primary without replicas would refuse a write with
    /// another error.
    pub fn until_busy(&self) {
        self.until_refuses("GET {t}refused", "BUSY");
    }

    fn until_refuses(&self, command: &str, error: &str) {
        until(
            &format!("the server refuses {command} with {error}"),
            || {
                let refused = self.servers.try_call(command).err();
                refused.is_some_and(|it| it.code() == Some(error))
            },
        );
    }

    /// Asserts that the lock has neither holders nor waiters.
    #[track_caller]
    pub fn assert_free(&self, key: &str) {
        if let Some(info) = self.servers.info(key) {
            let names = |list: &[std::collections::HashMap<String, Value>]| -> Vec<String> {
                list.iter().map(|one| text(&one["token"])).collect()
            };
            let (holders, queue) = (names(&info.holders), names(&info.queue));
            panic!("{key} is held by {holders:?}, waited for by {queue:?}");
        }
    }
}

/// Returns a value as text.
#[track_caller]
pub fn text(value: &Value) -> String {
    from_redis_value(value.clone()).expect("a text")
}
