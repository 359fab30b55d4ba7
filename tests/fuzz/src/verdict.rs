//! What has to hold once all connections are closed.

use anyhow::{Context, Result};

use crate::server::Server;
use crate::stage::{Scene, Stage};

/// By how much the memory in use may have grown over a run: tables of the server that grow with what
/// it has seen, and what its allocator keeps.
const MEMORY_SLACK: u64 = 1 << 20;

/// What is gone once there are no keys.
const ALL_GONE: &[&str] = &[
    "lock_locks",
    "lock_waiters",
    "lock_sessions",
    "lock_deferred",
];

/// What is asked here has long answers, so this is put back first.
const NO_LIMIT: &[&[u8]] = &[
    b"CONFIG",
    b"SET",
    b"client-output-buffer-limit",
    b"normal 0 0 0",
];

/// Puts back what the run changed.
const RESETS: &[&str] = &[
    "CLIENT UNPAUSE",
    "DEBUG SET-ACTIVE-EXPIRE 1",
    "DEBUG SET-SKIP-CHECKSUM-VALIDATION 0",
    "CONFIG SET maxmemory 0",
    "CONFIG SET maxmemory-clients 0",
    "CONFIG SET min-replicas-to-write 0",
    "CONFIG SET busy-reply-threshold 5000",
    "CONFIG SET notify-keyspace-events KEA",
    "CONFIG SET hz 100",
    "CONFIG SET active-expire-effort 10",
];

/// Whether the module is loaded, and there are locks to be counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It is.
    Module,
    /// The server is a plain one.
    Nothing,
}

/// What a server uses, but for what it keeps to send to replicas.
pub struct Memory {
    used: u64,
}

impl Memory {
    /// As it is now.
    pub fn of(server: &Server) -> Result<Memory> {
        let all = server.info("memory", "used_memory")?;
        let buffers = server.info("memory", "mem_total_replication_buffers")?;
        Ok(Memory {
            used: all.saturating_sub(buffers),
        })
    }
}

/// All that is wrong.
pub fn faults(stage: &Stage, scene: Scene, loaded: Loaded, before: &Memory) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |result: Result<()>| {
        if let Err(fault) = result {
            faults.push(format!("{fault:#}"));
        }
    };
    for server in &stage.servers {
        check(put_back(server));
    }
    if loaded == Loaded::Module {
        for server in &stage.servers {
            check(no_more(server, fields_before_flush(scene)));
            check(locks_are_keys(server, scene));
        }
    }
    check(same_data(stage, scene));
    check(empty(stage));
    if loaded == Loaded::Module {
        for server in &stage.servers {
            check(no_more(server, ALL_GONE));
        }
    }
    check(memory_back(stage.primary(), before));
    faults
}

/// Deaths and what the logs tell, which need nobody to answer.
pub fn crashes(stage: &Stage) -> Vec<String> {
    let deaths = stage.servers.iter().filter_map(Server::death);
    let marks = stage.servers.iter().filter_map(Server::crash_mark);
    deaths.chain(marks).collect()
}

fn put_back(server: &Server) -> Result<()> {
    server.until("no limit of buffers", || {
        let _: () = server.ask_words(NO_LIMIT)?;
        Ok(true)
    })?;
    for reset in RESETS {
        server.until(reset, || {
            let _: () = server.ask(reset)?;
            Ok(true)
        })?;
    }
    Ok(())
}

/// What is gone as soon as all connections are. A slot that is not served may hold locks that the server
/// can't end: there ties go with the keys.
fn fields_before_flush(scene: Scene) -> &'static [&'static str] {
    match scene {
        Scene::Plain => &["lock_waiters", "lock_sessions", "lock_deferred"],
        Scene::Cluster => &["lock_waiters"],
    }
}

fn no_more(server: &Server, fields: &[&str]) -> Result<()> {
    for field in fields {
        let is_none = server.until(field, || Ok(server.info("lock", field)? == 0));
        is_none.with_context(|| format!("{field} is {:?}", server.info("lock", field).ok()))?;
    }
    Ok(())
}

/// In a cluster a lock may be there that SCAN doesn't tell of: one whose lease is over, in a slot that
/// isn't served, so that its key isn't reclaimed. And on a replica: what had expired when its primary
/// reloaded its data (DEBUG RELOAD) the primary drops without a word. After the flush none may be left.
fn locks_are_keys(server: &Server, scene: Scene) -> Result<()> {
    let mut last = (0, 0);
    let same = server.until("lock_locks is the number of keys", || {
        let keys = lock_keys(server, scene)?;
        last = (server.info("lock", "lock_locks")?, keys);
        let some_untold = scene == Scene::Cluster || server.is_replica()?;
        Ok(last.0 == last.1 || some_untold && last.0 > last.1)
    });
    same.with_context(|| format!("lock_locks is {}, {} keys hold locks", last.0, last.1))
}

fn lock_keys(server: &Server, scene: Scene) -> Result<u64> {
    let mut count = 0;
    for database in 0..scene.databases() {
        select(server, scene, database)?;
        let mut cursor = 0;
        loop {
            let scan = format!("SCAN {cursor} TYPE redislock COUNT 1000");
            let (next, keys): (u64, Vec<Vec<u8>>) = server.ask(&scan)?;
            count += keys.len() as u64;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(count)
}

fn same_data(stage: &Stage, scene: Scene) -> Result<()> {
    let (primary, replica) = (stage.primary(), stage.replica());
    let same = replica.until("DEBUG DIGEST as the primary's", || {
        let ours: String = primary.ask("DEBUG DIGEST")?;
        let theirs: String = replica.ask("DEBUG DIGEST")?;
        // What has expired a primary may have dropped without a word, see above.
        Ok(ours == theirs || digests(primary, scene)? == digests(replica, scene)?)
    });
    same.with_context(|| difference(stage, scene).unwrap_or_else(|error| format!("{error:#}")))
}

/// The keys in which the two differ.
fn difference(stage: &Stage, scene: Scene) -> Result<String> {
    let ours = digests(stage.primary(), scene)?;
    let theirs = digests(stage.replica(), scene)?;
    let only = |left: &[String], right: &[String]| {
        let mut only = left.to_vec();
        only.retain(|key| !right.contains(key));
        only.join(", ")
    };
    Ok(format!(
        "link {}, offsets {} and {}, only on the primary: [{}], only on the replica: [{}]",
        stage
            .replica()
            .info_text("replication", "master_link_status")?,
        stage.primary().info("replication", "master_repl_offset")?,
        stage.replica().info("replication", "slave_repl_offset")?,
        only(&ours, &theirs),
        only(&theirs, &ours)
    ))
}

/// Database, name, digest and time to expire of each key that hasn't expired, in order.
fn digests(server: &Server, scene: Scene) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for database in 0..scene.databases() {
        select(server, scene, database)?;
        let keys: Vec<Vec<u8>> = server.ask("KEYS *")?;
        for key in keys {
            let digest: Vec<String> = server.ask_words(&[b"DEBUG", b"DIGEST-VALUE", &key])?;
            // In a cluster this is answered for the slots that are served alone.
            let expires_ms: i64 = match scene {
                Scene::Plain => server.ask_words(&[b"PEXPIRETIME", &key])?,
                Scene::Cluster => 0,
            };
            found.push(format!(
                "{database} {} {} {expires_ms}",
                key.escape_ascii(),
                digest.join(" ")
            ));
        }
    }
    found.sort();
    Ok(found)
}

fn select(server: &Server, scene: Scene, database: u32) -> Result<()> {
    if scene.databases() > 1 {
        let _: () = server.ask(&format!("SELECT {database}"))?;
    }
    Ok(())
}

fn empty(stage: &Stage) -> Result<()> {
    for server in &stage.servers {
        if !server.is_replica()? {
            let _: () = server.ask("FLUSHALL SYNC")?;
            let _: () = server.ask("FUNCTION FLUSH SYNC")?;
        }
        let _: () = server.ask("SCRIPT FLUSH SYNC")?;
        let _: u64 = server.ask("ACL DELUSER u0 u1 u2")?;
    }
    Ok(())
}

fn memory_back(server: &Server, before: &Memory) -> Result<()> {
    let mut now = Memory { used: 0 };
    let back = server.until("memory is back", || {
        now = Memory::of(server)?;
        Ok(now.used < before.used + MEMORY_SLACK)
    });
    back.with_context(|| format!("used_memory was {} and is {}", before.used, now.used))
}
