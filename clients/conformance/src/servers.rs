//! The servers that a behaviour is tried on: one, or a cluster of three.

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

/// How long a state is waited for, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// How soon something comes on any machine that would else come much later, or never.
pub const SOON: Duration = Duration::from_secs(5);

/// Every key of a test has this hash tag, so that one node of a cluster serves them all.
const TAG: &str = "{t}";

/// One server or several.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Standalone,
    Cluster,
}

/// What servers are started, of which program, with which module.
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

/// What LOCK.INFO tells.
pub struct Info {
    pub waiters: i64,
    pub holders: Vec<HashMap<String, Value>>,
    pub queue: Vec<HashMap<String, Value>>,
}

/// Servers that run. They are killed when this goes out of scope.
pub struct Servers {
    pub kind: Kind,
    processes: Vec<Process>,
    owner: usize,
    _folder: TempDir,
}

impl Servers {
    /// Starts what the setting says. Every write is on the disk before it is answered, so that a server
    /// that is killed comes back with all that it has told.
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

    /// Makes a cluster of the nodes.
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

    /// Where clients connect to.
    pub fn addresses(&self) -> Vec<String> {
        let processes = self.processes.iter();
        processes
            .map(|process| format!("127.0.0.1:{}", process.port()))
            .collect()
    }

    /// Sends a command, its words parted by spaces, to the server that has the tests' keys.
    pub fn try_call(&self, command: &str) -> RedisResult<Value> {
        ask(&self.processes[self.owner], command)
    }

    /// The same, where it has to succeed.
    #[track_caller]
    pub fn call(&self, command: &str) -> Value {
        let reply = self.try_call(command);
        reply.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The same, where the answer is a number.
    #[track_caller]
    pub fn int(&self, command: &str) -> i64 {
        from_redis_value(self.call(command)).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// What is known of a lock: nothing where it is free and nobody waits.
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

    /// Closes every connection but those between servers.
    pub fn kill_connections(&self) {
        for process in &self.processes {
            for kind in ["normal", "pubsub"] {
                let command = format!("CLIENT KILL TYPE {kind} SKIPME yes");
                let _: i64 = ask(process, &command).expect("connections can be killed");
            }
        }
    }

    /// Kills the server that has the tests' keys, and starts it again.
    pub fn restart(&mut self) {
        let process = &mut self.processes[self.owner];
        process.restart().expect("a restart");
    }

    /// Begins to move the slot of the tests' keys to the next node: keys that aren't there are that one's
    /// from now on.
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

    /// Moves these keys, and ends the move of their slot.
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

    /// What tells of a fault in a server or in the module.
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

/// Sends a command on a connection of its own, so that it doesn't matter which ones were killed before.
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

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let came = within(PATIENCE, || is_so().then_some(()));
    assert!(came.is_some(), "not within {PATIENCE:?}: {what}");
}

/// What comes of something, if it does within a time.
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
