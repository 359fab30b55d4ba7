//! What a behaviour is tried in: servers, the drivers of one client, and somebody else who uses the same
//! locks.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use redis::{from_redis_value, Value};
use serde_json::json;
use tempfile::TempDir;

use crate::driver::Driver;
use crate::servers::{until, within, Info, Kind, Servers, Setting, SOON};

/// Servers, and the driver of a client.
pub struct World {
    pub servers: Servers,
    script: PathBuf,
    client: String,
    complaints: TempDir,
    drivers: Cell<usize>,
}

impl World {
    pub fn new(script: &Path, client: &str, setting: &Setting) -> Result<World> {
        Ok(World {
            servers: Servers::start(setting)?,
            script: script.to_owned(),
            client: client.to_owned(),
            complaints: tempfile::tempdir()?,
            drivers: Cell::new(0),
        })
    }

    /// A new driver that is connected.
    #[track_caller]
    pub fn driver(&self) -> Driver {
        let number = self.drivers.get();
        self.drivers.set(number + 1);
        let complaints = self.complaints.path().join(number.to_string());
        let driver = Driver::start(&self.script, &self.client, &complaints);
        let driver = driver.unwrap_or_else(|error| panic!("{error:#}"));
        let connected = driver.call(json!({
            "do": "connect",
            "servers": self.servers.addresses(),
            "cluster": self.servers.kind == Kind::Cluster,
        }));
        assert!(connected.ok());
        driver
    }

    /// What the drivers complained of.
    pub fn said_by_drivers(&self) -> String {
        let text = |number: usize| {
            let file = self.complaints.path().join(number.to_string());
            let text = fs::read(file).unwrap_or_default();
            format!("--- driver {number}\n{}\n", String::from_utf8_lossy(&text))
        };
        (0..self.drivers.get()).map(text).collect()
    }

    /// Somebody else takes the lock, for ten minutes.
    #[track_caller]
    pub fn other_holds(&self, key: &str) {
        let grant = self
            .servers
            .call(&format!("LOCK.ACQUIRE {key} other PX 600000"));
        assert_ne!(grant, Value::Nil, "the lock {key} isn't free");
    }

    /// Somebody else gives it back.
    #[track_caller]
    pub fn other_releases(&self, key: &str) {
        assert_eq!(self.servers.int(&format!("LOCK.RELEASE {key} other")), 1);
    }

    /// Whether somebody else holds it.
    #[track_caller]
    pub fn other_has(&self, key: &str) -> bool {
        self.left_of(key, "other") > 0
    }

    /// What a token has left of its lease.
    #[track_caller]
    pub fn left_of(&self, key: &str, token: &str) -> i64 {
        self.servers.int(&format!("LOCK.CHECK {key} {token}"))
    }

    /// How many wait, whether connected or not.
    #[track_caller]
    pub fn waiters(&self, key: &str) -> i64 {
        self.servers.info(key).map_or(0, |info| info.waiters)
    }

    /// Waits until so many stand in the queue, each with a connection or a place.
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

    /// Waits until nobody stands in the queue: a client that gives up tells the server, and may not wait for its
    /// answer. What isn't told has to stay there for longer than this waits.
    #[track_caller]
    pub fn until_nobody_waits(&self, key: &str) {
        let nobody = || (self.waiters(key) == 0).then_some(());
        assert!(within(SOON, nobody).is_some(), "somebody waits for {key}");
    }

    /// The same, and until nobody holds the lock.
    #[track_caller]
    pub fn until_free(&self, key: &str) {
        let free = || self.servers.info(key).is_none().then_some(());
        if within(SOON, free).is_none() {
            self.assert_free(key);
        }
    }

    /// Waits until the server answers, and its keys can be used.
    pub fn until_served(&self) {
        until("the server serves its keys", || {
            self.servers.try_call("EXISTS {t}").is_ok()
        });
    }

    /// Asserts that nobody holds the lock nor waits for it.
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

/// A value as text.
#[track_caller]
pub fn text(value: &Value) -> String {
    from_redis_value(value.clone()).expect("a text")
}
