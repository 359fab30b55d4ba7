//! A separate server for each test, and queries to it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::HashMap;
use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use redis::{from_redis_value, Client, FromRedisValue, Value};
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

/// The time limit of every wait of the tests.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server with the module, which ends when this is dropped.
pub struct Server {
    pub process: Process,
    _dir: TempDir,
}

impl Server {
    pub fn start() -> Server {
        Server::with_lines(&[])
    }

    /// Starts a server with these lines in its configuration.
    pub fn with_lines(lines: &[&str]) -> Server {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |variable| PathBuf::from(env::var_os(variable).expect(variable));
        let plan = Plan {
            module: Some(path("REDIS_LOCK_MODULE")),
            lines: lines.iter().map(|line| line.to_string()).collect(),
            ..Plan::new(&path("REDIS_SERVER"))
        };
        Server {
            process: Process::start(plan, dir.path()).expect("a server"),
            _dir: dir,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.process.port())
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("a client")
    }

    /// Returns the reply to a command whose words contain no spaces.
    pub fn call<T: FromRedisValue>(&self, command: &str) -> T {
        self.process.ask(command).expect(command)
    }

    pub fn acquire_as_other(&self) {
        self.call::<Value>("LOCK.ACQUIRE k other PX 60000");
    }

    pub fn release_as_other(&self) {
        self.call::<Value>("LOCK.RELEASE k other");
    }

    pub fn delete(&self, key: &str) {
        self.call::<Value>(&format!("DEL {key}"));
    }

    /// Returns the number of waiters for a key.
    pub fn waiters(&self, key: &str) -> u64 {
        let info: Option<HashMap<String, Value>> = self.call(&format!("LOCK.INFO {key}"));
        let waiters = info.map(|mut info| info.remove("waiters").expect("a number"));
        waiters.map_or(0, |it| from_redis_value(it).expect("a number"))
    }

    pub fn until_waiters(&self, key: &str, count: u64) {
        until("they wait", || self.waiters(key) == count);
    }

    pub fn is_free(&self, key: &str) -> bool {
        self.call::<Value>(&format!("LOCK.INFO {key}")) == Value::Nil
    }

    /// Waits until the key has neither a holder nor a waiter.
    pub fn until_free(&self, key: &str) {
        until("the lock is free", || self.is_free(key));
    }

    /// Kills all connections except the one that sends the command.
    pub fn kill_connections(&self) {
        self.call::<Value>("CLIENT KILL TYPE normal");
    }

    /// Returns the number of connections except the one that sends the command.
    pub fn connections(&self) -> usize {
        let list: String = self.call("CLIENT LIST");
        list.lines().filter(|it| !it.contains("cmd=client")).count()
    }
}

#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
