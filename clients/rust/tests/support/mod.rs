//! A separate server for each test, and queries to it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::collections::HashMap;
use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
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
        let process = Process::start(plan, dir.path()).expect("a server");
        Server { process, _dir: dir }
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

    /// Returns the number of waiters for a key.
    pub fn waiters(&self, key: &str) -> u64 {
        let info: Option<HashMap<String, Value>> = self.call(&format!("LOCK.INFO {key}"));
        let waiters = info.map(|mut info| info.remove("waiters").expect("a number"));
        waiters.map_or(0, |it| from_redis_value(it).expect("a number"))
    }

    pub fn until_waiters(&self, key: &str, count: u64) {
        until("they wait", || self.waiters(key) == count);
    }

    /// Returns true if the key has neither a holder nor a waiter.
    pub fn is_free(&self, key: &str) -> bool {
        self.call::<Value>(&format!("LOCK.INFO {key}")) == Value::Nil
    }

    pub fn until_free(&self, key: &str) {
        until("the lock is free", || self.is_free(key));
    }

    /// Kills all connections except the one that sends the command.
    pub fn kill_connections(&self) {
        self.call::<Value>("CLIENT KILL TYPE normal");
    }
}

/// Starts a proxy of a server. Each connection asks a new function whether it passes what the
/// client sent. The function may take its time. The end of a connection is an empty slice.
pub fn proxied<F: FnMut(&[u8]) -> bool + Send + 'static>(
    server: &Server,
    passes: impl Fn() -> F + Send + 'static,
) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    let target = server.process.port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut passes) = (client.expect("a connection"), passes());
            let mut server = TcpStream::connect(("127.0.0.1", target)).expect("a server");
            let mut replies = server.try_clone().expect("a connection");
            let mut back = client.try_clone().expect("a connection");
            thread::spawn(move || io::copy(&mut replies, &mut back));
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                loop {
                    let count = client.read(&mut bytes).unwrap_or(0);
                    if passes(&bytes[..count]) {
                        match count {
                            0 => drop(server.shutdown(Shutdown::Both)),
                            _ => drop(server.write_all(&bytes[..count])),
                        }
                    }
                    if count == 0 {
                        // The connection that isn't passed on stays open.
                        return thread::sleep(2 * PATIENCE);
                    }
                }
            });
        }
    });
    Client::open(format!("redis://127.0.0.1:{port}/")).expect("a client")
}

#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
