//! A separate server for each test, and queries to it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::env;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Commands, Value};
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

/// The time limit of every wait of the tests.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A server with the module, which ends when this is dropped.
pub struct Server {
    process: Process,
    _dir: TempDir,
}

impl Server {
    pub fn start() -> Server {
        Server::of(Plan {
            module: Some(module()),
            ..Plan::new(&program())
        })
    }

    pub fn without_hello() -> Server {
        Server::of(Plan {
            module: Some(module()),
            lines: vec!["rename-command HELLO \"\"".to_owned()],
            ..Plan::new(&program())
        })
    }

    fn of(plan: Plan) -> Server {
        let dir = tempfile::tempdir().expect("a folder");
        Server {
            process: Process::start(plan, dir.path()).expect("a server"),
            _dir: dir,
        }
    }

    /// Lets the server stand still until `resume`.
    pub fn pause(&self) {
        self.process.freeze().expect("a server that stands still");
    }

    pub fn resume(&self) {
        self.process.thaw().expect("a server that goes on");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.process.port())
    }

    pub fn client(&self) -> Client {
        Client::open(self.url()).expect("a client")
    }

    /// Returns the reply to a command whose words contain no spaces.
    pub fn call(&self, command: &str) -> Value {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| {
            cmd.arg(word);
        });
        let mut connection = self.client().get_connection().expect("a connection");
        cmd.query(&mut connection).expect(command)
    }

    /// Returns the number of waiters for a key.
    pub fn waiters(&self, key: &str) -> i64 {
        let Value::Array(info) = self.call(&format!("LOCK.INFO {key}")) else {
            return 0;
        };
        let at = info
            .iter()
            .position(|it| *it == Value::BulkString(b"waiters".to_vec()));
        match at.map(|at| &info[at + 1]) {
            Some(Value::Int(waiters)) => *waiters,
            other => panic!("no waiters: {other:?}"),
        }
    }

    pub fn until_waiters(&self, key: &str, count: i64) {
        until(&format!("{count} wait for {key}"), || {
            self.waiters(key) == count
        });
    }

    pub fn is_free(&self, key: &str) -> bool {
        self.call(&format!("LOCK.INFO {key}")) == Value::Nil
    }

    /// Waits until the key has neither a holder nor a waiter.
    pub fn until_free(&self, key: &str) {
        until(&format!("{key} is free"), || self.is_free(key));
    }

    /// Kills all connections except the one that sends the command.
    pub fn kill_connections(&self) {
        self.call("CLIENT KILL TYPE normal");
        self.call("CLIENT KILL TYPE pubsub");
    }

    /// Returns the ids of all connections except the one that sends the command.
    pub fn connections(&self) -> Vec<String> {
        let Value::BulkString(list) = self.call("CLIENT LIST") else {
            panic!("no list");
        };
        let list = String::from_utf8_lossy(&list);
        let others = list.lines().filter(|line| !line.contains("cmd=client"));
        let ids = others.filter_map(|line| line.split(' ').next());
        ids.map(str::to_owned).collect()
    }

    pub fn delete(&self, key: &str) {
        let mut connection = self.client().get_connection().expect("a connection");
        let _: i64 = connection.del(key).expect("DEL");
    }
}

#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

fn program() -> PathBuf {
    if let Some(program) = env::var_os("REDIS_SERVER") {
        return program.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).find_map(|dir| {
        let programs = ["redis-server", "valkey-server"].map(|name| dir.join(name));
        programs.into_iter().find(|it| it.is_file())
    });
    found.expect("redis-server or valkey-server in PATH, or its path in REDIS_SERVER")
}

fn module() -> PathBuf {
    let built = || {
        let name = format!("libredis_lock{}", env::consts::DLL_SUFFIX);
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../target/release")
            .join(name)
    };
    env::var_os("REDIS_LOCK_MODULE").map_or_else(built, PathBuf::from)
}
