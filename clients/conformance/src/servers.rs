//! The servers under a behaviour: a single server, or a cluster of three.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use redis::{from_redis_value, Client, Connection, RedisResult, Value};
use redis_lock_rig::{free_port, Plan, Process};
use tempfile::TempDir;

const SLOTS: usize = 16_384;
const NODES: usize = 3;

/// The time limit for a state to appear, and the pause between two looks at it.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// A time within which an event comes on any machine. In the faulty case it comes much later, or
/// never.
pub const SOON: Duration = Duration::from_secs(5);

/// Every key of a test has this hash tag, so that one node of a cluster serves them all.
const TAG: &str = "{t}";

/// The kind of a setting's servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Standalone,
    Cluster,
}

/// The servers to start: their kind, program and module.
#[derive(Clone)]
pub struct Setting {
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
    owner: usize,
    _folder: TempDir,
}

impl Servers {
    /// Starts the servers of a setting. Every write is on the disk before its reply, so that a
    /// killed server restarts with everything that it has confirmed.
    pub fn start(setting: &Setting) -> Result<Servers> {
        let count = match setting.kind {
            Kind::Standalone => 1,
            Kind::Cluster => NODES,
        };
        let folder = tempfile::tempdir()?;
        let process = |number: usize| {
            let dir = folder.path().join(number.to_string());
            std::fs::create_dir(&dir)?;
            Process::start(plan(setting), &dir)
        };
        let processes = (0..count).map(process).collect::<Result<Vec<_>>>()?;
        let mut servers = Servers {
            kind: setting.kind,
            processes,
            owner: 0,
            _folder: folder,
        };
        if setting.kind == Kind::Cluster {
            servers.join()?;
        }
        Ok(servers)
    }

    /// Joins the nodes to a cluster.
    fn join(&mut self) -> Result<()> {
        let first = &self.processes[0];
        let bus: Vec<String> = ask(first, "CONFIG GET cluster-port")?;
        let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", first.port(), bus[1]);
        for (number, process) in self.processes.iter().enumerate() {
            let start = |number: usize| SLOTS * number / NODES;
            let (from, to) = (start(number), start(number + 1) - 1);
            let _: String = ask(process, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
            let _: String = ask(process, &format!("CLUSTER ADDSLOTSRANGE {from} {to}"))?;
            if number > 0 {
                let _: String = ask(process, &meet)?;
            }
        }
        for process in &self.processes {
            until("the cluster serves all slots", || {
                let info: RedisResult<String> = ask(process, "CLUSTER INFO");
                info.is_ok_and(|it| {
                    it.contains("cluster_state:ok")
                        && it.contains(&format!("cluster_known_nodes:{NODES}"))
                })
            });
        }
        let serves = |process: &Process| ask::<Value>(process, &format!("EXISTS {TAG}")).is_ok();
        self.owner = self
            .processes
            .iter()
            .position(serves)
            .context("no node serves the keys")?;
        Ok(())
    }

    /// Returns the addresses for clients.
    pub fn addresses(&self) -> Vec<String> {
        let processes = self.processes.iter();
        processes
            .map(|process| format!("127.0.0.1:{}", process.port()))
            .collect()
    }

    /// Sends a command, with its words separated by spaces, to the server of the tests' keys.
    pub fn try_call(&self, command: &str) -> RedisResult<Value> {
        ask(&self.processes[self.owner], command)
    }

    /// Sends a command like `try_call`, which must succeed.
    #[track_caller]
    pub fn call(&self, command: &str) -> Value {
        let reply = self.try_call(command);
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
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
                let _: i64 = ask(process, &command).expect("connections can be killed");
            }
        }
    }

    /// Kills the server of the tests' keys, and starts it again.
    pub fn restart(&mut self) {
        let process = &mut self.processes[self.owner];
        process.restart().expect("a restart");
    }

    /// Begins to move the slot of the tests' keys to the next node. From now on, that node serves
    /// the keys of the slot that don't exist at the source.
    pub fn begin_move(&self) {
        let (source, target, slot) = self.way();
        for (process, verb, other) in [(target, "IMPORTING", source), (source, "MIGRATING", target)]
        {
            let id = id_of(other);
            let begun: String = ask(process, &format!("CLUSTER SETSLOT {slot} {verb} {id}"))
                .expect("a slot can be moved");
            assert_eq!(begun, "OK");
        }
    }

    /// Moves these keys, and finishes the move of their slot.
    pub fn end_move(&mut self, keys: &[&str]) {
        let (source, target, slot) = self.way();
        for key in keys {
            let command = format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port());
            let moved: String = ask(source, &command).expect("a key can be moved");
            assert_eq!(moved, "OK");
        }
        let owns = format!("CLUSTER SETSLOT {slot} NODE {}", id_of(target));
        let others = self
            .processes
            .iter()
            .filter(|it| it.port() != target.port());
        for process in [target].into_iter().chain(others) {
            let told: String = ask(process, &owns).expect("a slot can be moved");
            assert_eq!(told, "OK");
        }
        self.owner = (self.owner + 1) % NODES;
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
    if setting.kind == Kind::Cluster {
        lines.push("cluster-enabled yes".to_owned());
        lines.push(format!("cluster-port {}", free_port()));
        lines.push("cluster-node-timeout 5000".to_owned());
        lines.push("cluster-announce-ip 127.0.0.1".to_owned());
    }
    Plan {
        module: Some(setting.module.clone()),
        lines,
        ..Plan::new(&setting.program)
    }
}

fn id_of(process: &Process) -> String {
    ask(process, "CLUSTER MYID").expect("a node of a cluster")
}

/// Sends a command on a new connection, because older connections may have been killed.
fn ask<T: redis::FromRedisValue>(process: &Process, command: &str) -> RedisResult<T> {
    let mut words = command.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(&mut connection(process)?)
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
