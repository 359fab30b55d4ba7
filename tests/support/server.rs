//! A server process of its own for a test.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::{InfoDict, Value};
use redis_lock_rig::sources::newer_than;
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

use super::client::{Client, Command, PATIENCE};
use super::lock_info::LockInfo;
use super::reply::{Expect, Reply};
use super::{eventually, until};

/// The time for which [`Server::sends_in_a_pause`] pauses all clients, in ms. Each pause that was too
/// short makes the next one longer.
static PAUSE_MS: AtomicU64 = AtomicU64::new(400);

/// The longest such pause, in ms.
const LONGEST_PAUSE_MS: u64 = 3_200;

/// The project that a server comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// redis-server.
    Redis,
    /// valkey-server.
    Valkey,
}

/// The plan of a server that isn't started yet.
pub struct Builder {
    plan: Plan,
}

impl Builder {
    /// Adds a line to the server's configuration file, after the module is loaded.
    pub fn config(mut self, line: &str) -> Builder {
        self.plan.lines.push(line.to_owned());
        self
    }

    /// Adds a word to the server's command line, after the configuration file.
    pub fn argument(mut self, word: &str) -> Builder {
        self.plan.arguments.push(word.to_owned());
        self
    }

    /// Sets a variable in the environment of the server's process.
    pub fn environment(mut self, name: &str, value: &str) -> Builder {
        self.plan
            .environment
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server with another build of the module.
    pub fn module(mut self, path: &Path) -> Builder {
        self.plan.module = Some(path.to_owned());
        self
    }

    /// Starts the server without the module.
    pub fn without_module(mut self) -> Builder {
        self.plan.module = None;
        self
    }

    /// Starts the server and waits until it replies.
    #[track_caller]
    pub fn start(self) -> Server {
        let dir = tempfile::Builder::new()
            .prefix("redis-lock-test-")
            .tempdir()
            .expect("a temporary directory");
        let process = match Process::start(self.plan, dir.path()) {
            Ok(process) => process,
            Err(refused) => panic!("{refused:#}"),
        };
        Server {
            control: Mutex::new(Client::connect(process.port())),
            process,
            dir,
            stopped: false,
        }
    }
}

/// A running server. It is killed, and its directory removed, when this goes out of scope.
pub struct Server {
    control: Mutex<Client>,
    process: Process,
    dir: TempDir,
    stopped: bool,
}

impl Server {
    /// Starts a server with the module, without persistence.
    #[track_caller]
    pub fn start() -> Server {
        Server::builder().start()
    }

    /// Builds a server with more configuration.
    pub fn builder() -> Builder {
        Builder {
            plan: Plan {
                module: Some(module_path()),
                patience: PATIENCE,
                ..Plan::new(&server_binary())
            },
        }
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.process.port()
    }

    /// Returns the port of the cluster's bus, if the server is a node of a cluster.
    pub fn bus_port(&self) -> u16 {
        self.process.bus_port()
    }

    /// Returns the server's working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns true if the test has not ended the server since its last start.
    pub fn is_running(&self) -> bool {
        !self.stopped
    }

    /// Returns everything in the server's log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Opens a new connection, in RESP2 and database 0.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.process.port())
    }

    /// Opens a new connection that blocks in `command` and is in the queue when this returns.
    #[track_caller]
    pub fn waiter(&self, command: impl Command) -> Client {
        let mut client = self.client();
        self.block(&mut client, command);
        client
    }

    /// Sends `command` on `client` and waits until the server reports it blocked.
    #[track_caller]
    pub fn block(&self, client: &mut Client, command: impl Command) {
        client.send(command);
        self.until_blocked(client);
    }

    /// Waits until the server reports `client` blocked. Fails the test if the client isn't blocked
    /// in time.
    #[track_caller]
    pub fn until_blocked(&self, client: &mut Client) {
        let id = client.id();
        until(&format!("client {id} is blocked"), || self.is_blocked(id));
    }

    /// Returns true if the server reports the client blocked.
    #[track_caller]
    pub fn is_blocked(&self, client_id: i64) -> bool {
        let list = self.call(format!("CLIENT LIST ID {client_id}")).text();
        let flags = list
            .split(' ')
            .find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    }

    /// Returns true if the server still knows the client.
    #[track_caller]
    pub fn is_connected(&self, client_id: i64) -> bool {
        !self
            .call(format!("CLIENT LIST ID {client_id}"))
            .text()
            .is_empty()
    }

    /// Runs a command on a connection that the harness keeps for itself.
    #[track_caller]
    pub fn call(&self, command: impl Command) -> Reply {
        self.control().call(command)
    }

    /// Runs several commands, sent in one write.
    #[track_caller]
    pub fn call_batch(&self, commands: &[&str]) -> Vec<Reply> {
        self.control().call_batch(commands)
    }

    /// Like `call_batch`, and asserts that no reply is an error. The server runs the commands in
    /// one pass of its loop, so its timers run before all or after all of them.
    #[track_caller]
    pub fn call_all(&self, commands: &[impl AsRef<str>]) {
        self.control().call_all(commands);
    }

    /// Returns LOCK.INFO of a key, or `None` if the key has neither a holder nor a waiter.
    #[track_caller]
    pub fn lock_info(&self, key: &str) -> Option<LockInfo> {
        LockInfo::of(self.call(&["LOCK.INFO", key]).value())
    }

    /// Like `lock_info`, of a key that must have a holder or a waiter.
    #[track_caller]
    pub fn known_lock(&self, key: &str) -> LockInfo {
        self.lock_info(key)
            .unwrap_or_else(|| panic!("{key} is unknown"))
    }

    /// Returns the number of waiters of a key.
    #[track_caller]
    pub fn waiters(&self, key: &str) -> i64 {
        self.lock_info(key).map_or(0, |info| info.waiters)
    }

    /// Waits until `count` waiters wait for a key.
    #[track_caller]
    pub fn until_waiters(&self, key: &str, count: i64) {
        until(&format!("{count} wait for {key}"), || {
            self.waiters(key) == count
        });
    }

    /// Waits until the server's current loop pass is over and its 0 ms timers have run.
    ///
    /// A timer with period 0 runs in the pass after the command that armed it. So it has run after
    /// two round trips.
    #[track_caller]
    pub fn settle(&self) {
        for _ in 0..3 {
            assert_eq!(self.call("PING").text(), "PONG");
        }
    }

    /// Waits until the server has read everything that this client sent: its end of the connection
    /// holds no unread bytes.
    #[track_caller]
    pub fn until_read(&self, client: &Client) {
        let ends = client.ends();
        until("the server has read it", || {
            ends.of_server().is_some_and(|end| end.unread_len == 0)
        });
    }

    /// Sends commands in this order while the server pauses all clients. Returns false if the pause
    /// may have ended before the last command arrived.
    #[track_caller]
    pub fn sends_in_a_pause(&self, sent: &mut [(&mut Client, &[&str])]) -> bool {
        let begun = Instant::now();
        let pause_ms = PAUSE_MS.load(Ordering::Relaxed);
        self.call(format!("CLIENT PAUSE {pause_ms} ALL")).okay();
        for (client, commands) in sent {
            client.send_batch(commands);
            self.until_read(client);
        }
        let in_time = begun.elapsed() < Duration::from_millis(pause_ms);
        if !in_time {
            PAUSE_MS.store(LONGEST_PAUSE_MS.min(2 * pause_ms), Ordering::Relaxed);
        }
        in_time
    }

    /// Opens the harness's own connection again, after the server or a Sentinel has closed it.
    #[track_caller]
    pub fn reconnect(&self) {
        *self.control() = self.client();
    }

    /// Returns one field of INFO.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> String {
        match self.find_info(section, field) {
            Some(value) => value,
            None => panic!("INFO {section} has no field {field}"),
        }
    }

    /// Returns one field of INFO that may be missing.
    #[track_caller]
    pub fn find_info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.call(&["INFO", section]).text();
        InfoDict::new(&text).get(field)
    }

    /// Returns the project that the server comes from.
    #[track_caller]
    pub fn flavour(&self) -> Flavour {
        match self.find_info("server", "valkey_version") {
            Some(_) => Flavour::Valkey,
            None => Flavour::Redis,
        }
    }

    /// Returns the server's own version in numbers.
    #[track_caller]
    pub fn version(&self) -> (u32, u32, u32) {
        let text = match self.find_info("server", "valkey_version") {
            Some(version) => version,
            None => self.info("server", "redis_version"),
        };
        let numbers: Vec<u32> = text
            .split('.')
            .filter_map(|part| part.parse().ok())
            .collect();
        match numbers.as_slice() {
            [major, minor, patch] => (*major, *minor, *patch),
            _ => panic!("not a version: {text}"),
        }
    }

    /// Waits until no rewrite of the append-only file is under way or due, and asserts that the
    /// last rewrite succeeded.
    #[track_caller]
    pub fn until_rewritten(&self) {
        until("the append-only file is rewritten", || {
            self.info("persistence", "aof_rewrite_in_progress") == "0"
                && self.info("persistence", "aof_rewrite_scheduled") == "0"
        });
        assert_eq!(self.info("persistence", "aof_last_bgrewrite_status"), "ok");
    }

    /// Makes this server a replica and waits until it is in step.
    #[track_caller]
    pub fn replica_of(&self, primary: &Server) {
        self.call(format!("REPLICAOF 127.0.0.1 {}", primary.port()))
            .okay();
        until("the replica's link is up", || {
            self.info("replication", "master_link_status") == "up"
        });
        self.until_in_step(primary);
    }

    /// Waits until this replica has applied everything that its primary has sent by now.
    #[track_caller]
    pub fn until_in_step(&self, primary: &Server) {
        let offset = |server: &Server, field| -> i64 {
            server
                .info("replication", field)
                .parse()
                .expect("an offset")
        };
        let sent = offset(primary, "master_repl_offset");
        until("the replica is in step", || {
            offset(self, "slave_repl_offset") >= sent
        });
    }

    /// Waits until `replicas` replicas have acknowledged a write. A replica that was just attached
    /// first acknowledges up to a second later, and WAIT waits for it until then.
    #[track_caller]
    pub fn until_acknowledged_by(&self, replicas: usize) {
        let wait = format!("WAIT {replicas} 1000");
        until("the replicas acknowledge", || {
            // A write without a key, which every node of a cluster takes.
            let answers = self.call_batch(&["FUNCTION FLUSH", &wait]);
            answers[1] == Ok(Value::Int(i64::try_from(replicas).expect("a count")))
        });
    }

    /// Stops the process (SIGSTOP). Everything that it is sent meanwhile stays in its sockets until
    /// [`thaw`](Server::thaw) continues the process.
    #[track_caller]
    pub fn freeze(&self) {
        self.process.freeze().expect("a process that runs");
    }

    /// Continues a stopped process (SIGCONT).
    #[track_caller]
    pub fn thaw(&self) {
        self.process.thaw().expect("a process that was stopped");
    }

    /// Ends the process without a chance to save anything.
    pub fn kill9(&mut self) {
        self.stopped = true;
        self.process.kill();
    }

    /// Ends the process by SHUTDOWN. `how` is SAVE or NOSAVE.
    #[track_caller]
    pub fn shutdown(&mut self, how: &str) {
        self.control().send(format!("SHUTDOWN {how}"));
        self.stopped = true;
        let status = eventually("the server has shut down", || self.ended());
        assert!(
            status.success(),
            "the server ended with {status}\n{}",
            self.process.log_tail()
        );
    }

    /// Starts the process again in the same directory and on the same port. Kills it first if it is
    /// still running.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill9();
        if let Err(refused) = self.process.restart() {
            panic!("{refused:#}");
        }
        self.control = Mutex::new(self.client());
        self.stopped = false;
    }

    /// Starts the process again with one more line of configuration.
    #[track_caller]
    pub fn restart_with(&mut self, line: &str) {
        self.process.add_line(line);
        self.restart();
    }

    /// Starts the process again with another build of the module.
    #[track_caller]
    pub fn restart_with_module(&mut self, path: &Path) {
        self.process.load_instead(path);
        self.restart();
    }

    /// Like `restart_with_module`, but asserts that the ended server doesn't start with that
    /// module. Returns the reason.
    #[track_caller]
    pub fn refused_with_module(&mut self, path: &Path) -> String {
        assert!(self.stopped, "the server is running");
        self.process.load_instead(path);
        match self.process.restart() {
            Ok(()) => panic!("the server has started"),
            Err(refused) => format!("{refused:#}"),
        }
    }

    fn control(&self) -> MutexGuard<'_, Client> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> Option<ExitStatus> {
        self.process.ended().expect("a child")
    }

    /// Returns the fault of the server, if there was one.
    fn fault(&self) -> Option<String> {
        if let (Some(status), false) = (self.ended(), self.stopped) {
            return Some(format!("the server ended by itself with {status}"));
        }
        let crash = self.process.crash()?;
        Some(format!("the server wrote {crash:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let fault = self.fault();
        self.process.kill();
        let log = self.process.log_tail();
        if thread::panicking() {
            eprintln!("{}\n{log}", fault.unwrap_or_default());
        } else if let Some(fault) = fault {
            panic!("{fault}\n{log}");
        }
    }
}

/// Returns the server program that tests start.
pub fn server_binary() -> PathBuf {
    if let Some(binary) = env::var_os("REDIS_SERVER") {
        return binary.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = ["redis-server", "valkey-server"].iter().find_map(|name| {
        env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|it| it.is_file())
    });
    found.expect("redis-server or valkey-server in PATH, or its path in REDIS_SERVER")
}

/// Returns the module that the server loads. If it is older than its sources, the test fails.
pub fn module_path() -> PathBuf {
    let path = env::var_os("REDIS_LOCK_MODULE").map_or_else(
        || {
            let name = format!("libredis_lock{}", env::consts::DLL_SUFFIX);
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../..")
                .join("target/release")
                .join(name)
        },
        PathBuf::from,
    );
    let hint = "build the module with `make build`, or name it in REDIS_LOCK_MODULE";
    let path = path
        .canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}: {hint}", path.display()));
    if let Some(newer) = newer_than(&path).expect("a module") {
        panic!(
            "{} is older than {}: run `make build`",
            path.display(),
            newer.display()
        );
    }
    path
}
