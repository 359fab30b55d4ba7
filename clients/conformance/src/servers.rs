//! The servers under a behaviour: a single server, a cluster of three, or a primary and a replica
//! with a Sentinel. [`deployments`] has what only chaos plays.

mod deployments;
mod disk;

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use redis::{from_redis_value, Client, Connection, RedisResult, Value};
use redis_lock_rig::{form_cluster, node_lines, packed, Clock, Plan, Process};
use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

use self::disk::Disk;
use crate::relay::Relay;

const NODES: usize = 3;
const MASTERS: usize = 5;

/// The time limit for a state to appear, and the pause between two looks at it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// A time within which an event comes on any machine. In the faulty case it comes much later, or
/// never.
pub const SOON: Duration = Duration::from_secs(5);

/// The name under which the Sentinel knows the primary.
pub const GROUP: &str = "locks";

/// The time after which the Sentinel takes a silent primary for dead, in ms.
const DOWN_AFTER_MS: u32 = 500;

/// Every key of a test has this hash tag, so that one node of a cluster serves them all.
const TAG: &str = "{t}";

/// The kind of a setting's servers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Standalone,
    Cluster,
    Sentinel,
    /// A primary with two replicas. An address leads to the primary. Only chaos plays it
    Replicas,
    /// Five independent masters. Only chaos plays it
    Masters,
}

/// The machines of the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Machines {
    /// Each server has the system's clock and disk.
    Shared,
    /// Each server has a clock that can be set, and a disk that can be filled where that is allowed.
    Own,
}

/// The servers to start: their kind, program, module and machines.
#[derive(Clone)]
pub struct Setting {
    pub machines: Machines,
    pub program: PathBuf,
    pub module: PathBuf,
    pub server_name: String,
    pub kind: Kind,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Standalone => f.write_str(&self.server_name),
            Kind::Cluster => write!(f, "{} cluster", self.server_name),
            Kind::Sentinel => write!(f, "{} sentinel", self.server_name),
            Kind::Replicas => write!(f, "{} replicas", self.server_name),
            Kind::Masters => write!(f, "{} masters", self.server_name),
        }
    }
}

/// The reply of LOCK.INFO.
pub struct Info {
    pub waiters: i64,
    pub holders: Vec<HashMap<String, Value>>,
    pub queue: Vec<HashMap<String, Value>>,
}

/// Running servers, which are killed when this goes out of scope.
pub struct Servers {
    pub kind: Kind,
    processes: Vec<Process>,
    sentinel: Option<Process>,
    /// A replica, or a server without the module.
    beside: Option<Process>,
    relays: Vec<Relay>,
    /// The clocks of the servers, if they can be set.
    clocks: Vec<Clock>,
    /// The disks of the servers that have one of their own, if they can be filled.
    disks: Vec<Option<Disk>>,
    /// The relays between a primary and its replicas: one in front of each server.
    links: Vec<Relay>,
    /// The times in which nothing passed between the primary and its replicas.
    pub cuts: Vec<(Instant, Instant)>,
    owner: usize,
    /// Connections with a command whose reply nobody reads.
    unread: Vec<TcpStream>,
    /// The connection of commands to a server that takes no new connections.
    kept: Option<Connection>,
    folder: TempDir,
}

impl Servers {
    /// Starts the servers of a setting. Every write is on the disk before its reply, so that a
    /// killed server restarts with everything that it has confirmed.
    pub fn start(setting: &Setting) -> Result<Servers> {
        let count = match setting.kind {
            Kind::Standalone => 1,
            Kind::Cluster | Kind::Replicas => NODES,
            Kind::Sentinel => 2,
            Kind::Masters => MASTERS,
        };
        let folder = tempfile::tempdir()?;
        let mut servers = Servers {
            kind: setting.kind,
            processes: Vec::new(),
            sentinel: None,
            beside: None,
            relays: Vec::new(),
            clocks: Vec::new(),
            disks: Vec::new(),
            links: Vec::new(),
            cuts: Vec::new(),
            owner: 0,
            unread: Vec::new(),
            kept: None,
            folder,
        };
        for _ in 0..count {
            servers.add_process(setting)?;
        }
        match setting.kind {
            Kind::Standalone | Kind::Masters => {}
            Kind::Replicas => servers.link()?,
            Kind::Cluster => servers.join()?,
            Kind::Sentinel => servers.watch(setting)?,
        }
        Ok(servers)
    }

    /// Starts one more server, on a machine of its own if the setting has such.
    fn add_process(&mut self, setting: &Setting) -> Result<()> {
        let folder = self.new_folder(&self.processes.len().to_string())?;
        let mut plan = plan(setting);
        if setting.machines == Machines::Own {
            self.disks.push(Disk::mount(&folder));
            let clock = Clock::in_step();
            plan.environment.extend(clock.environment());
            self.clocks.push(clock);
        }
        self.processes.push(Process::start(plan, &folder)?);
        Ok(())
    }

    /// Makes the second server a replica of the first, and starts a Sentinel that watches them.
    fn watch(&mut self, setting: &Setting) -> Result<()> {
        let port = self.processes[0].port();
        let replicate = format!("REPLICAOF 127.0.0.1 {port}");
        let _: String = self.processes[1].ask(&replicate)?;
        let plan = Plan {
            lines: vec![
                format!("sentinel monitor {GROUP} 127.0.0.1 {port} 1"),
                format!("sentinel down-after-milliseconds {GROUP} {DOWN_AFTER_MS}"),
                format!("sentinel failover-timeout {GROUP} 2000"),
            ],
            arguments: vec!["--sentinel".to_owned()],
            ..Plan::new(&setting.program)
        };
        let sentinel = Process::start(plan, &self.new_folder("sentinel")?)?;
        let _: String = sentinel.ask("SENTINEL DEBUG info-period 200")?;
        until("the Sentinel knows the replica", || {
            let replicas = sentinel.ask::<Vec<Value>>(&format!("SENTINEL REPLICAS {GROUP}"));
            replicas.is_ok_and(|it| it.len() == 1)
        });
        self.sentinel = Some(sentinel);
        self.until_replicated(1);
        Ok(())
    }

    fn new_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder)?;
        Ok(folder)
    }

    /// Waits until so many replicas have acknowledged everything. WAIT wouldn't do, because it looks
    /// at what its own connection has written.
    pub fn until_replicated(&self, replicas: usize) {
        until("the replicas have everything", || {
            let info: RedisResult<String> = self.owner().ask("INFO replication");
            info.is_ok_and(|info| {
                let whole = info
                    .lines()
                    .find_map(|line| line.strip_prefix("master_repl_offset:"));
                let has_all = format!("state=online,offset={},", whole.unwrap_or_default().trim());
                info.matches(&has_all).count() == replicas
            })
        });
    }

    /// Waits until the primary sends so many replicas what it writes.
    pub fn until_online(&self, replicas: usize) {
        until("the replicas are online", || {
            let info: RedisResult<String> = self.owner().ask("INFO replication");
            info.is_ok_and(|info| info.matches("state=online").count() >= replicas)
        });
    }

    /// Joins the nodes to a cluster.
    fn join(&mut self) -> Result<()> {
        form_cluster(&self.processes)?;
        let serves = |process: &Process| process.ask::<Value>(&format!("EXISTS {TAG}")).is_ok();
        self.owner = self
            .processes
            .iter()
            .position(serves)
            .context("no node serves the keys")?;
        Ok(())
    }

    /// Returns the addresses for clients: of the Sentinel if there is one, of the relays if there are
    /// some.
    pub fn addresses(&self) -> Vec<String> {
        let ports: Vec<u16> = match (&self.sentinel, self.relays.as_slice()) {
            (Some(sentinel), _) => vec![sentinel.port()],
            (None, []) if self.kind == Kind::Replicas => vec![self.owner().port()],
            (None, []) => self.processes.iter().map(Process::port).collect(),
            (None, relays) => relays.iter().map(Relay::port).collect(),
        };
        let address = |port| format!("127.0.0.1:{port}");
        ports.into_iter().map(address).collect()
    }

    fn owner(&self) -> &Process {
        &self.processes[self.owner]
    }

    /// Sends a command, with its words separated by spaces, to the server of the tests' keys.
    pub fn try_call(&self, command: &str) -> RedisResult<Value> {
        self.owner().ask(command)
    }

    /// Sends a command like `try_call`, which must succeed.
    #[track_caller]
    pub fn call(&self, command: &str) -> Value {
        let reply = self.try_call(command);
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Sends a command with words that may have spaces, which must succeed.
    pub fn call_words(&self, command: &[&str]) -> Value {
        let mut words = redis::cmd(command[0]);
        words.arg(&command[1..]);
        let reply = connection(self.owner()).and_then(|mut it| words.query(&mut it));
        reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Sends a command like `call` to each server.
    pub fn call_each(&self, command: &str) {
        for process in &self.processes {
            let reply: RedisResult<Value> = process.ask(command);
            reply.unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }

    /// Stops the node of the tests' keys, and has the next node take over their slot.
    pub fn take_over(&mut self) {
        let (source, target, slot) = self.way();
        signal(source, Signal::STOP);
        let owns = format!("CLUSTER SETSLOT {slot} NODE {}", id_of(target));
        let others = self
            .processes
            .iter()
            .filter(|it| it.port() != source.port());
        for process in others {
            // The slots of the node that hangs are served by no node.
            let go_on = "CONFIG SET cluster-require-full-coverage no";
            for command in [go_on, &owns] {
                let told: String = process.ask(command).expect("a slot can be taken over");
                assert_eq!(told, "OK");
            }
        }
        self.owner = (self.owner + 1) % NODES;
    }

    /// Sends CLUSTER with a verb and the slot of the tests' keys to their node.
    pub fn set_slot(&self, verb: &str) {
        let slot = self.int(&format!("CLUSTER KEYSLOT {TAG}"));
        self.call(&format!("CLUSTER {verb} {slot}"));
    }

    /// Sends a command like `call`, whose reply must be a number.
    #[track_caller]
    pub fn int(&self, command: &str) -> i64 {
        from_redis_value(self.call(command)).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Returns the state of a lock, or `None` if it has neither holders nor waiters.
    #[track_caller]
    pub fn info(&self, key: &str) -> Option<Info> {
        let mut fields = match self.call(&format!("LOCK.INFO {key} WAITERS 100")) {
            Value::Nil => return None,
            some => fields_of(some),
        };
        let mut maps = |name: &str| {
            let list = fields.remove(name).expect("a field of LOCK.INFO");
            let list: Vec<Value> = from_redis_value(list).expect("a list");
            list.into_iter().map(fields_of).collect()
        };
        let (holders, queue) = (maps("holders"), maps("queue"));
        let waiters = fields.remove("waiters").expect("a field of LOCK.INFO");
        Some(Info {
            waiters: from_redis_value(waiters).expect("a number"),
            holders,
            queue,
        })
    }

    /// Closes every connection except the connections between servers.
    pub fn kill_connections(&self) {
        for process in &self.processes {
            for kind in ["normal", "pubsub"] {
                let command = format!("CLIENT KILL TYPE {kind} SKIPME yes");
                let _: i64 = process.ask(&command).expect("connections can be killed");
            }
        }
    }

    /// Returns the number of connections to the server of the tests' keys, except this one.
    pub fn connections(&self) -> usize {
        let clients = self.call("CLIENT LIST TYPE normal");
        let clients: String = from_redis_value(clients).expect("a text");
        clients.lines().count() - 1
    }

    /// Kills the server of the tests' keys, and starts it again.
    pub fn restart(&mut self) {
        let process = &mut self.processes[self.owner];
        process.restart().expect("a restart");
    }

    /// Kills the server of the tests' keys.
    pub fn kill(&self) {
        self.owner().kill();
    }

    /// Stops the server of the tests' keys: it keeps its connections and doesn't reply.
    pub fn stop(&self) {
        signal(self.owner(), Signal::STOP);
    }

    /// Continues the server that was stopped.
    pub fn go_on(&self) {
        signal(self.owner(), Signal::CONT);
    }

    /// Starts a relay in front of each server, unless there are some, and returns that of the
    /// server of the tests' keys.
    pub fn relay(&mut self) -> &Relay {
        if self.relays.is_empty() {
            let start = |process: &Process| Relay::start(process.port()).expect("a relay");
            self.relays = match self.kind {
                Kind::Replicas => vec![start(self.owner())],
                _ => self.processes.iter().map(start).collect(),
            };
        }
        match self.kind {
            Kind::Replicas => return &self.relays[0],
            Kind::Cluster => self.announce_relays(),
            _ => {}
        }
        &self.relays[self.owner]
    }

    /// Has the nodes give clients the addresses of their relays.
    fn announce_relays(&self) {
        for (process, relay) in self.processes.iter().zip(&self.relays) {
            let announce = format!("CONFIG SET cluster-announce-port {}", relay.port());
            let _: String = process.ask(&announce).expect("a port can be announced");
        }
        until("the nodes know the relays", || {
            self.processes.iter().all(|process| {
                let nodes: String = process.ask("CLUSTER NODES").expect("a cluster");
                self.relays
                    .iter()
                    .all(|relay| nodes.contains(&format!(":{}@", relay.port())))
            })
        });
    }

    /// Sends a command to the server of the tests' keys, and doesn't wait for its reply.
    pub fn begin_call(&mut self, command: &[&str]) {
        let address = (Ipv4Addr::LOCALHOST, self.owner().port());
        let mut stream = TcpStream::connect(address).expect("a server");
        stream.write_all(&packed(command)).expect("a connection");
        self.unread.push(stream);
    }

    /// Sends a command on one connection, which stays open.
    pub fn call_on_kept(&mut self, command: &str) {
        let kept = self.kept.take();
        let mut kept = kept.unwrap_or_else(|| connection(self.owner()).expect("a connection"));
        let reply = words(command).query::<Value>(&mut kept);
        reply.unwrap_or_else(|error| panic!("{command}: {error}"));
        self.kept = Some(kept);
    }

    /// Returns the folder of the server of the tests' keys.
    pub fn dir(&self) -> &Path {
        self.owner().dir()
    }

    /// Starts a replica of the server of the tests' keys.
    pub fn add_replica(&mut self, setting: &Setting) {
        let folder = self.new_folder("replica").expect("a folder");
        let replica = Process::start(plan(setting), &folder).expect("a replica");
        let replicate = format!("REPLICAOF 127.0.0.1 {}", self.owner().port());
        let _: String = replica.ask(&replicate).expect("a replica");
        self.beside = Some(replica);
        self.until_replicated(1);
    }

    /// Starts a server without the module, and returns its port.
    pub fn start_without_module(&mut self, setting: &Setting) -> u16 {
        let folder = self.new_folder("bare").expect("a folder");
        let bare = Process::start(Plan::new(&setting.program), &folder).expect("a server");
        let port = bare.port();
        self.beside = Some(bare);
        port
    }

    /// Sends a command to the replica, which must succeed.
    pub fn at_replica(&self, command: &str) -> Value {
        let reply = self.beside().ask(command);
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Stops the replica.
    pub fn stop_replica(&self) {
        signal(self.beside(), Signal::STOP);
    }

    fn beside(&self) -> &Process {
        self.beside.as_ref().expect("another server")
    }

    /// Sets the time after which the Sentinel takes a silent primary for dead.
    pub fn set_down_after(&self, time: Duration) {
        let sentinel = self.sentinel.as_ref().expect("a Sentinel");
        let ms = time.as_millis();
        let set = format!("SENTINEL SET {GROUP} down-after-milliseconds {ms}");
        let set: String = sentinel.ask(&set).expect("a Sentinel");
        assert_eq!(set, "OK");
    }

    /// Stops the primary, and waits until the Sentinel has promoted the replica, which serves the
    /// keys from now on.
    pub fn supersede(&mut self) {
        self.stop();
        self.until_promoted();
    }

    /// Has the Sentinel swap the primary and its replica.
    pub fn fail_over(&mut self) {
        let sentinel = self.sentinel.as_ref().expect("a Sentinel");
        let asked = format!("SENTINEL FAILOVER {GROUP}");
        // The Sentinel refuses while it takes the replica for unfit, and may give up what it began.
        let promoted = within(PATIENCE, || {
            let _refused: RedisResult<String> = sentinel.ask(&asked);
            within(SOON, || self.is_promoted().then_some(()))
        });
        assert!(promoted.is_some(), "the Sentinel doesn't fail over");
        self.owner = 1 - self.owner;
        self.until_superseded_follows();
    }

    /// Waits until the server that was superseded is a replica.
    pub fn until_superseded_follows(&self) {
        let old = &self.processes[1 - self.owner];
        let follows = within(PATIENCE, || has_role(old, "slave").then_some(()));
        assert!(follows.is_some(), "the old primary isn't made a replica");
    }

    /// Waits until the Sentinel has promoted the replica, which serves the keys from now on.
    fn until_promoted(&mut self) {
        let promoted = within(PATIENCE, || self.is_promoted().then_some(()));
        assert!(promoted.is_some(), "the replica isn't promoted");
        self.owner = 1 - self.owner;
    }

    /// Returns true if the Sentinel has promoted the replica.
    fn is_promoted(&self) -> bool {
        let sentinel = self.sentinel.as_ref().expect("a Sentinel");
        let new = &self.processes[1 - self.owner];
        let asked = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {GROUP}");
        let named: Vec<String> = sentinel.ask(&asked).expect("a Sentinel");
        named[1] == new.port().to_string() && has_role(new, "master")
    }

    /// Continues the server that was superseded. It believes that it is the primary, until the
    /// Sentinel tells it otherwise some seconds later.
    pub fn bring_back_superseded(&self) {
        signal(&self.processes[1 - self.owner], Signal::CONT);
    }

    /// Returns true if the server that was superseded has a lock.
    pub fn superseded_has(&self, key: &str) -> bool {
        let old = &self.processes[1 - self.owner];
        let info: Value = old
            .ask(&format!("LOCK.INFO {key}"))
            .expect("the old primary replies");
        info != Value::Nil
    }

    /// Begins to move the slot of the tests' keys to the next node. From now on, that node serves
    /// the keys of the slot that don't exist at the source.
    pub fn begin_move(&self) {
        let (source, target, slot) = self.way();
        for (process, verb, other) in [(target, "IMPORTING", source), (source, "MIGRATING", target)]
        {
            let id = id_of(other);
            let begun: String = process
                .ask(&format!("CLUSTER SETSLOT {slot} {verb} {id}"))
                .expect("a slot can be moved");
            assert_eq!(begun, "OK");
        }
    }

    /// Moves these keys, and finishes the move of their slot.
    pub fn end_move(&mut self, keys: &[&str]) {
        let (source, target, slot) = self.way();
        for key in keys {
            assert_eq!(migrate(source, target, key), "OK");
        }
        let owns = format!("CLUSTER SETSLOT {slot} NODE {}", id_of(target));
        let others = self.processes[..NODES]
            .iter()
            .filter(|it| it.port() != target.port());
        for process in [target].into_iter().chain(others) {
            let told: String = process.ask(&owns).expect("a slot can be moved");
            assert_eq!(told, "OK");
        }
        self.owner = (self.owner + 1) % NODES;
    }

    /// Moves the keys of the slot that the source has now. A key may end meanwhile.
    pub fn move_keys(&self) {
        let (source, target, slot) = self.way();
        let keys: Vec<String> = source
            .ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1000"))
            .expect("the keys of a slot");
        for key in keys {
            let moved = migrate(source, target, &key);
            assert!(["OK", "NOKEY"].contains(&moved.as_str()), "{moved}");
        }
    }

    fn way(&self) -> (&Process, &Process, i64) {
        let (source, target) = (self.owner, (self.owner + 1) % NODES);
        let slot = self.int(&format!("CLUSTER KEYSLOT {TAG}"));
        (&self.processes[source], &self.processes[target], slot)
    }

    /// Returns the report of a crash of a server or the module, if there was a crash.
    pub fn crash(&self) -> Option<String> {
        self.processes.iter().find_map(Process::crash)
    }
}

fn plan(setting: &Setting) -> Plan {
    let mut lines = vec!["appendonly yes".to_owned(), "appendfsync always".to_owned()];
    match setting.kind {
        Kind::Cluster => lines.extend(node_lines()),
        Kind::Replicas => lines.extend([
            "min-replicas-to-write 1".to_owned(),
            "min-replicas-max-lag 2".to_owned(),
        ]),
        Kind::Standalone | Kind::Sentinel | Kind::Masters => {}
    }
    Plan {
        module: Some(setting.module.clone()),
        lines,
        ..Plan::new(&setting.program)
    }
}

fn has_role(process: &Process, role: &str) -> bool {
    let told: RedisResult<Vec<Value>> = process.ask("ROLE");
    told.is_ok_and(|it| it[0] == Value::BulkString(role.into()))
}

/// Moves a key to another node. Returns the reply.
fn migrate(source: &Process, target: &Process, key: &str) -> String {
    let command = format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port());
    source.ask(&command).expect("a key can be moved")
}

fn id_of(process: &Process) -> String {
    process.ask("CLUSTER MYID").expect("a node of a cluster")
}

fn signal(process: &Process, signal: Signal) {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    kill_process(id.expect("a process"), signal).expect("a signal can be sent");
}

fn words(command: &str) -> redis::Cmd {
    let mut words = command.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

fn connection(process: &Process) -> RedisResult<Connection> {
    let url = format!("redis://127.0.0.1:{}", process.port());
    Client::open(url)?.get_connection()
}

fn fields_of(map: Value) -> HashMap<String, Value> {
    from_redis_value(map).expect("a map")
}

/// Waits until a condition is true, and fails after the time limit.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let came = within(PATIENCE, || is_so().then_some(()));
    assert!(came.is_some(), "not within {PATIENCE:?}: {what}");
}

/// Repeats a look until it returns a value. Returns `None` if the time is over before.
pub fn within<T>(time: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + time;
    loop {
        let found = look();
        if found.is_some() || Instant::now() > deadline {
            return found;
        }
        thread::sleep(PAUSE);
    }
}
