//! Checks of the servers once all connections are closed.

use anyhow::{Context, Result};

use redis_lock_promises::{nothing_left, rebuilt};

use crate::server::Server;
use crate::stage::{Scene, Stage};

/// Growth of the memory in use that a run may cause, in bytes. It covers the server's tables that
/// grow with use, and memory that its allocator keeps.
const MEMORY_SLACK: u64 = 1 << 20;

/// Fields of INFO that are 0 once there are no keys.
const ALL_GONE: &[&str] = &[
    "lock_locks",
    "lock_waiters",
    "lock_sessions",
    "lock_deferred",
];

/// The reset of the output buffer limit. It comes first, because the checks get long replies.
const NO_LIMIT: &[&[u8]] = &[
    b"CONFIG",
    b"SET",
    b"client-output-buffer-limit",
    b"normal 0 0 0",
];

/// Commands that reset the settings that the run changed.
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

/// Presence of the module. Only with the module are there locks to count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// The module is loaded.
    Module,
    /// The server is plain.
    Nothing,
}

/// The memory that a server uses, without its replication buffers, in bytes.
pub struct Memory {
    used: u64,
}

impl Memory {
    /// Reads the memory in use now.
    pub fn of(server: &Server) -> Result<Memory> {
        let all = server.info("memory", "used_memory")?;
        let buffers = server.info("memory", "mem_total_replication_buffers")?;
        Ok(Memory {
            used: all.saturating_sub(buffers),
        })
    }
}

/// Resets, checks and empties the servers, and returns all faults.
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

/// Returns deaths, and crash reports in the logs. No server has to reply for that.
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

/// Returns the fields of INFO that are 0 once all connections are closed. In a cluster, a slot that
/// is not served may have locks that the server can't end, so their ties end with the keys.
fn fields_before_flush(scene: Scene) -> &'static [&'static str] {
    match scene {
        Scene::Plain => &[
            "lock_waiters",
            "lock_replica_waits",
            "lock_sessions",
            "lock_deferred",
        ],
        Scene::Cluster => &["lock_waiters", "lock_replica_waits"],
    }
}

fn no_more(server: &Server, fields: &[&str]) -> Result<()> {
    for field in fields {
        let mut left = 0;
        let is_none = server.until(field, || {
            left = server.info("lock", field)?;
            Ok(left == 0)
        });
        nothing_left([(*field, left)])?;
        is_none?;
    }
    Ok(())
}

/// Checks that `lock_locks` is the number of keys with locks that SCAN finds.
///
/// In a cluster `lock_locks` may be greater: the key of an expired lock is not reclaimed in a slot
/// that is not served, and SCAN skips the key. On a replica it may be greater too, because a
/// primary that reloads its data (DEBUG RELOAD) drops expired keys without replicating that. After
/// the flush no lock may be left.
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
        // A primary may have dropped expired keys without replicating that, see `locks_are_keys`.
        Ok(ours == theirs || rebuilt(&digests(primary, scene)?, &digests(replica, scene)?).is_ok())
    });
    same.with_context(|| difference(stage, scene).unwrap_or_else(|error| format!("{error:#}")))
}

/// Returns the keys in which the primary and its replica differ, and the state of their link.
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

/// Returns database, name, digest and expiry of each key that hasn't expired, sorted. In a cluster
/// the expiry is 0.
fn digests(server: &Server, scene: Scene) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for database in 0..scene.databases() {
        select(server, scene, database)?;
        let keys: Vec<Vec<u8>> = server.ask("KEYS *")?;
        for key in keys {
            let digest: Vec<String> = server.ask_words(&[b"DEBUG", b"DIGEST-VALUE", &key])?;
            // In a cluster PEXPIRETIME is answered only for slots that are served.
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
