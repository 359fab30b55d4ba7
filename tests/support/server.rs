//! A server process of its own for a test.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use super::client::{Client, Command, PATIENCE};
use super::lock_info::LockInfo;
use super::reply::{Expect, Reply};
use super::{eventually, until};

/// What a server writes when it has met a fault in itself or in the module.
const CRASH_MARKS: [&str; 6] = [
    "=== REDIS BUG REPORT",
    "=== VALKEY BUG REPORT",
    "ASSERTION FAILED",
    "Sanitizer",
    "panicked at",
    "Guru Meditation",
];

const CONFIG_FILE: &str = "server.conf";
const LOG_FILE: &str = "server.log";
const STDERR_FILE: &str = "server.err";

/// Ports below those that a system gives to outgoing connections, so that no client of
/// another test can sit on one.
const PORTS: std::ops::Range<u16> = 11_000..31_000;

/// How many of them a process of tests takes for its own at a time.
const BLOCK: u16 = 100;

/// Whose server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// redis-server.
    Redis,
    /// valkey-server.
    Valkey,
}

/// A server to be started.
pub struct Builder {
    lines: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    module: bool,
}

impl Builder {
    /// Adds a line to the server's configuration file, after the module is loaded.
    pub fn config(mut self, line: &str) -> Builder {
        self.lines.push(line.to_owned());
        self
    }

    /// Adds a word to the server's command line, after the configuration file.
    pub fn argument(mut self, word: &str) -> Builder {
        self.arguments.push(word.to_owned());
        self
    }

    /// Sets a variable in the environment of the server's process.
    pub fn environment(mut self, name: &str, value: &str) -> Builder {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server without the module.
    pub fn without_module(mut self) -> Builder {
        self.module = false;
        self
    }

    /// Starts the server and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Server {
        let dir = new_dir();
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("dir \"{}\"", dir.display()),
            format!("logfile \"{}\"", dir.join(LOG_FILE).display()),
            "save \"\"".to_owned(),
            "enable-debug-command yes".to_owned(),
            "enable-module-command yes".to_owned(),
            // A replica is served at once instead of five seconds later.
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        if self.module {
            lines.push(format!("loadmodule \"{}\"", module_path().display()));
        }
        lines.extend(self.lines);
        for _ in 0..20 {
            let port = free_port();
            let plan = Plan {
                dir: dir.clone(),
                port,
                lines: lines.clone(),
                arguments: self.arguments.clone(),
                environment: self.environment.clone(),
            };
            match launch(&plan) {
                Ok((child, control)) => return Server::running(child, control, plan),
                Err(Refused::PortTaken) => {}
                Err(Refused::Other(reason)) => {
                    let log = log_tail(&dir);
                    drop(fs::remove_dir_all(&dir));
                    panic!("the server didn't start: {reason}\n{log}");
                }
            }
        }
        panic!("no free port for the server");
    }
}

/// A running server. It is killed, and its directory removed, when this goes out of scope.
pub struct Server {
    child: Child,
    control: Mutex<Client>,
    plan: Plan,
    stopped: bool,
}

/// What a server process is started with, the first time and after.
struct Plan {
    dir: PathBuf,
    port: u16,
    lines: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Server {
    /// Starts a server with the module, without persistence.
    #[track_caller]
    pub fn start() -> Server {
        Server::builder().start()
    }

    /// A server with more configuration.
    pub fn builder() -> Builder {
        Builder {
            lines: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            module: true,
        }
    }

    fn running(child: Child, control: Client, plan: Plan) -> Server {
        Server {
            child,
            control: Mutex::new(control),
            plan,
            stopped: false,
        }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.plan.port
    }

    /// Its working directory.
    pub fn dir(&self) -> &Path {
        &self.plan.dir
    }

    /// Whether it was started and not ended by the test.
    pub fn is_running(&self) -> bool {
        !self.stopped
    }

    /// Everything in its log so far.
    pub fn log(&self) -> String {
        read_text(&self.plan.dir.join(LOG_FILE))
    }

    /// A new connection, RESP2 and database 0.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.plan.port)
    }

    /// A new connection that blocks in `command` and is in the queue when this returns.
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

    /// Waits until the server reports `client` blocked. A reply instead fails the test.
    #[track_caller]
    pub fn until_blocked(&self, client: &mut Client) {
        let id = client.id();
        until(&format!("client {id} is blocked"), || self.is_blocked(id));
    }

    /// Whether the server reports the client blocked.
    #[track_caller]
    pub fn is_blocked(&self, client_id: i64) -> bool {
        let list = self.call(format!("CLIENT LIST ID {client_id}")).text();
        let flags = list
            .split(' ')
            .find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    }

    /// Whether the server still knows the client.
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

    /// As `call_batch`, where none of them may be answered with an error. The server runs them in
    /// one pass of its loop: what its timers do comes before all or behind all of them.
    #[track_caller]
    pub fn call_all(&self, commands: &[impl AsRef<str>]) {
        self.control().call_all(commands);
    }

    /// What LOCK.INFO tells of a key; none when nobody holds it or waits.
    #[track_caller]
    pub fn lock_info(&self, key: &str) -> Option<LockInfo> {
        LockInfo::of(self.call(&["LOCK.INFO", key]).value())
    }

    /// As `lock_info`, of a key that somebody holds or waits for.
    #[track_caller]
    pub fn known_lock(&self, key: &str) -> LockInfo {
        self.lock_info(key)
            .unwrap_or_else(|| panic!("{key} is unknown"))
    }

    /// How many wait for a key.
    #[track_caller]
    pub fn waiters(&self, key: &str) -> i64 {
        self.lock_info(key).map_or(0, |info| info.waiters)
    }

    /// Waits until so many wait for a key.
    #[track_caller]
    pub fn until_waiters(&self, key: &str, count: i64) {
        until(&format!("{count} wait for {key}"), || {
            self.waiters(key) == count
        });
    }

    /// Lets the server wait until its current loop pass is over: what a 0 ms timer does is
    /// done after it.
    ///
    /// A timer with period 0 runs in the pass after the command that armed it, so two round
    /// trips lie behind it.
    #[track_caller]
    pub fn settle(&self) {
        for _ in 0..3 {
            assert_eq!(self.call("PING").text(), "PONG");
        }
    }

    /// Makes the harness's own connection anew, where the server or a Sentinel has closed it.
    #[track_caller]
    pub fn reconnect(&self) {
        *self.control() = self.client();
    }

    /// One field of INFO.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> String {
        match self.find_info(section, field) {
            Some(value) => value,
            None => panic!("INFO {section} has no field {field}"),
        }
    }

    /// One field of INFO that may be missing.
    #[track_caller]
    pub fn find_info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.call(&["INFO", section]).text();
        find_info(&text, field)
    }

    /// Whose server it is.
    #[track_caller]
    pub fn flavour(&self) -> Flavour {
        match self.find_info("server", "valkey_version") {
            Some(_) => Flavour::Valkey,
            None => Flavour::Redis,
        }
    }

    /// The server's own version, as numbers.
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

    /// Waits until no rewrite of the append-only file is under way or due, and the last one went well.
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

    /// Waits until so many replicas have acknowledged a write. One that was just attached does so
    /// for the first time up to a second later, and until then WAIT waits for it.
    #[track_caller]
    pub fn until_acknowledged_by(&self, replicas: usize) {
        let wait = format!("WAIT {replicas} 1000");
        until("the replicas acknowledge", || {
            // A write without a key, which every node of a cluster takes.
            let answers = self.call_batch(&["FUNCTION FLUSH", &wait]);
            answers[1] == Ok(Value::Int(i64::try_from(replicas).expect("a count")))
        });
    }

    /// Stops the process where it stands (SIGSTOP). What it is sent meanwhile lies in its sockets,
    /// and it reads it once [`thaw`](Server::thaw) lets it go on.
    #[track_caller]
    pub fn freeze(&self) {
        let process = self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` is a place to write to, and the process is a child not waited for yet.
        let changed = unsafe { libc::waitpid(process, &raw mut status, libc::WUNTRACED) };
        assert!(
            changed == process && libc::WIFSTOPPED(status),
            "the process should stand still: {status:#x}"
        );
    }

    /// Lets a stopped process go on (SIGCONT).
    #[track_caller]
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    #[track_caller]
    fn signal(&self, signal: libc::c_int) -> libc::pid_t {
        let process = libc::pid_t::try_from(self.child.id()).expect("a process number");
        // SAFETY: takes numbers only; the process is a child that hasn't been waited for, so its
        // number is its own.
        let sent = unsafe { libc::kill(process, signal) };
        assert_eq!(sent, 0, "the server's process takes signals");
        process
    }

    /// Ends the process without a chance to save anything.
    pub fn kill9(&mut self) {
        self.stopped = true;
        kill(&mut self.child);
    }

    /// Ends the process by SHUTDOWN; `how` is SAVE or NOSAVE.
    #[track_caller]
    pub fn shutdown(&mut self, how: &str) {
        self.control().send(format!("SHUTDOWN {how}"));
        self.stopped = true;
        let child = &mut self.child;
        let status = eventually("the server has shut down", || {
            child.try_wait().expect("a child")
        });
        assert!(
            status.success(),
            "the server ended with {status}\n{}",
            log_tail(&self.plan.dir)
        );
    }

    /// Starts the process again in the same directory and on the same port. One that is still
    /// running is killed first.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill9();
        match launch(&self.plan) {
            Ok((child, control)) => {
                self.child = child;
                self.control = Mutex::new(control);
                self.stopped = false;
            }
            Err(refused) => panic!("no restart: {refused:?}\n{}", log_tail(&self.plan.dir)),
        }
    }

    /// Starts the process again with one more line of configuration.
    #[track_caller]
    pub fn restart_with(&mut self, line: &str) {
        self.plan.lines.push(line.to_owned());
        self.restart();
    }

    fn control(&self) -> MutexGuard<'_, Client> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What went wrong in the server, if anything did.
    fn fault(&mut self) -> Option<String> {
        let ended = self.child.try_wait().expect("a child");
        if let (Some(status), false) = (ended, self.stopped) {
            return Some(format!("the server ended by itself with {status}"));
        }
        let text =
            read_text(&self.plan.dir.join(LOG_FILE)) + &read_text(&self.plan.dir.join(STDERR_FILE));
        let mark = CRASH_MARKS.iter().find(|mark| text.contains(*mark))?;
        Some(format!("the server's log has {mark:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let fault = self.fault();
        kill(&mut self.child);
        let log = log_tail(&self.plan.dir);
        drop(fs::remove_dir_all(&self.plan.dir));
        if thread::panicking() {
            eprintln!("{}\n{log}", fault.unwrap_or_default());
        } else if let Some(fault) = fault {
            panic!("{fault}\n{log}");
        }
    }
}

/// Why a process didn't become a server.
#[derive(Debug)]
enum Refused {
    PortTaken,
    Other(String),
}

fn launch(plan: &Plan) -> Result<(Child, Client), Refused> {
    let Plan {
        dir,
        port,
        lines,
        arguments,
        environment,
    } = plan;
    let config = dir.join(CONFIG_FILE);
    fs::write(&config, format!("port {port}\n{}\n", lines.join("\n"))).expect("a config file");
    let stderr = OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(STDERR_FILE))
        .expect("a file for what the server says before it has a log");
    let mut child = process::Command::new(server_binary())
        .arg(&config)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(stderr.try_clone().expect("a second handle"))
        .stderr(stderr)
        .spawn()
        .expect("a server that can be run");
    match until_ready(&mut child, dir, *port) {
        Ok(control) => Ok((child, control)),
        Err(refused) => {
            kill(&mut child);
            Err(refused)
        }
    }
}

fn until_ready(child: &mut Child, dir: &Path, port: u16) -> Result<Client, Refused> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            let taken = log_tail(dir).contains("Address already in use");
            return Err(if taken {
                Refused::PortTaken
            } else {
                Refused::Other(format!("it ended with {status}"))
            });
        }
        if let Some(control) = answering(child.id(), port) {
            return Ok(control);
        }
        thread::sleep(Duration::from_millis(2));
    }
    Err(Refused::Other(format!("no answer within {PATIENCE:?}")))
}

/// A connection to the server, if it is this process that answers, and has loaded its data.
fn answering(process_id: u32, port: u16) -> Option<Client> {
    let mut client = Client::try_connect(port).ok()?;
    let info = client.try_call("INFO server").ok()?;
    let owner = find_info(&Ok(info).text(), "process_id")?;
    let pong = client.try_call("PING").ok()?;
    (owner == process_id.to_string() && Ok(pong).text() == "PONG").then_some(client)
}

fn find_info(text: &str, field: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(str::to_owned)
}

fn kill(child: &mut Child) {
    // It may have ended by itself: then there is nothing to kill, and only the wait matters.
    drop(child.kill());
    child.wait().expect("a child that can be waited for");
}

fn new_dir() -> PathBuf {
    static NEXT_DIR: AtomicU32 = AtomicU32::new(0);
    let number = NEXT_DIR.fetch_add(1, Ordering::Relaxed);
    let dir = env::temp_dir().join(format!("redis-lock-test-{}-{number}", process::id()));
    // A directory of an earlier process that had the same number.
    drop(fs::remove_dir_all(&dir));
    fs::create_dir_all(&dir).expect("a temporary directory");
    dir
}

/// A port that nobody listens on, and that no test of this or another process is given later: a
/// Sentinel goes on looking for the server that it knew there, and makes any other one its own. A
/// process that is no test can still take it before the server does: the start is tried again then.
pub fn free_port() -> u16 {
    static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks {
        held: Vec::new(),
        unused: 0..0,
    });
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match blocks.unused.next() {
            Some(port) if bound(port).is_some() => return port,
            Some(_) => {}
            None => blocks.take_one_more(),
        }
    }
}

/// The ports of this process. It listens on the first one of each block to tell others that the block
/// is taken.
struct Blocks {
    held: Vec<TcpListener>,
    unused: std::ops::Range<u16>,
}

impl Blocks {
    fn take_one_more(&mut self) {
        // Two processes that begin at once seldom meet.
        let count = PORTS.len() / usize::from(BLOCK);
        let first = process::id() as usize % count;
        let mut starts = PORTS.step_by(BLOCK.into()).cycle().skip(first).take(count);
        let taken = starts.find_map(|start| Some((bound(start)?, start)));
        let (listener, start) = taken.expect("a block of ports that nobody has taken");
        self.held.push(listener);
        self.unused = start + 1..start + BLOCK;
    }
}

fn bound(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

/// The server program that tests start.
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

/// The module that it loads.
pub fn module_path() -> PathBuf {
    let path = env::var_os("REDIS_LOCK_MODULE").map_or_else(
        || {
            let name = format!("libredis_lock{}", env::consts::DLL_SUFFIX);
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("target/release")
                .join(name)
        },
        PathBuf::from,
    );
    let hint = "build the module with `cargo build --release`, or name it in REDIS_LOCK_MODULE";
    path.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}: {hint}", path.display()))
}

fn log_tail(dir: &Path) -> String {
    let mut text = String::new();
    for name in [LOG_FILE, STDERR_FILE] {
        let all = read_text(&dir.join(name));
        let lines: Vec<&str> = all.lines().collect();
        let from = lines.len().saturating_sub(60);
        text.push_str(&format!(
            "--- the end of {name}\n{}\n",
            lines[from..].join("\n")
        ));
    }
    text
}

fn read_text(path: &Path) -> String {
    fs::read(path).map_or_else(
        |_| String::new(),
        |all| String::from_utf8_lossy(&all).into_owned(),
    )
}
