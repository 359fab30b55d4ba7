//! Every way to remove a client that the module knows, and to remove a lock for which a client
//! waits.

use std::net::Shutdown;
use std::thread;

use crate::{packed, until, Connection, Server, PATIENCE};
use anyhow::{bail, ensure, Result};
use redis::Value;

/// The name of an act, and its function.
pub type Act = (&'static str, fn(&Server) -> Result<()>);

/// All acts, each on connections of its own.
pub const ACTS: &[Act] = &[
    ("CLIENT KILL of waiters", killed),
    ("CLIENT KILL after a grant by the timer", killed_after_grant),
    ("CLIENT KILL in the tick of the grant", killed_in_tick),
    ("CLIENT KILL in EXEC", killed_in_exec),
    (
        "CLIENT KILL in a transaction of the holder's",
        killed_by_holder,
    ),
    ("eviction by maxmemory-clients", evicted),
    ("eviction after a grant by the timer", evicted_after_grant),
    ("a full output buffer", overflowed),
    ("ACL DELUSER", user_deleted),
    ("CLIENT UNBLOCK", unblocked),
    ("the ends of replies held back for a replica", held_back),
    ("QUIT behind a wait", quit),
    ("waiters that close", closed),
    ("leases that end by the timer", lapsed),
    ("BLOCKs that end", timed_out),
    ("an MWAIT that is killed", many_keys_killed),
    ("sessions that close", sessions_closed),
    ("sessions begun in scripts", sessions_in_scripts),
    ("SWAPDB", swapped),
    ("FLUSHALL", flushed),
    ("DEBUG RELOAD", reloaded),
    ("RENAME and MOVE", moved),
    ("another type over a lock", overwritten),
    ("DUMP and RESTORE", restored),
    ("BGREWRITEAOF", rewritten),
];

/// A lease longer than any act.
const LONG: &str = "PX 600000";

/// A lease that is renewed soon, and that even a slow server renews in time.
const RENEWED: &str = "PX 3000";

/// Size of a block that a server of version 7.0 frees with a client, in bytes.
const FILLER: usize = 740;
const FILLERS: usize = 3_000;

/// Bytes that a client sends so that the server evicts that client first.
const BALLAST: usize = 3_000_000;

/// More bytes than the server and the sockets buffer for one subscriber.
const FLOOD: usize = 16_000_000;

/// A server at which `h` holds `k`.
struct Scene<'a> {
    server: &'a Server,
    holder: Connection,
    waiting: usize,
}

/// A client that waits, and its client id.
struct Waiter {
    connection: Connection,
    id: i64,
}

impl Scene<'_> {
    fn new(server: &Server) -> Result<Scene<'_>> {
        let mut holder = server.connect()?;
        holder.granted(&format!("LOCK.ACQUIRE k h {LONG}"))?;
        Ok(Scene {
            server,
            holder,
            waiting: 0,
        })
    }

    fn waiter(&mut self, command: &str) -> Result<Waiter> {
        let connection = self.server.connect()?;
        self.waiter_on(connection, command)
    }

    fn waiter_on(&mut self, mut connection: Connection, command: &str) -> Result<Waiter> {
        let id = connection.count("CLIENT ID")?;
        connection.send(command)?;
        self.waiting += 1;
        self.holder.until_blocked(self.waiting)?;
        Ok(Waiter { connection, id })
    }

    /// Returns two waiters for `k`, of which the first has been granted `k` by the timer.
    fn one_granted_of_two(&mut self) -> Result<(Waiter, Waiter)> {
        let mut first = self.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
        let second = self.waiter(&format!("LOCK.WAIT k w2 {LONG}"))?;
        self.holder.call("DEL k")?;
        first.granted()?;
        Ok((first, second))
    }

    fn until_replicas(&mut self, count: &str) -> Result<()> {
        until("the number of replicas", PATIENCE, || {
            Ok(self.holder.info("replication", "connected_slaves")? == count)
        })
    }

    fn kill(&mut self, waiter: &mut Waiter) -> Result<()> {
        self.holder.call(&format!("CLIENT KILL ID {}", waiter.id))?;
        waiter.connection.drain_to_close()
    }
}

impl Waiter {
    fn granted(&mut self) -> Result<()> {
        ensure!(self.connection.reply()? != Value::Nil, "not granted");
        Ok(())
    }

    fn refused(&mut self) -> Result<()> {
        match self.connection.reply() {
            Ok(reply) => bail!("an error was expected, not {reply:?}"),
            Err(_) => Ok(()),
        }
    }
}

/// Waits until no client is blocked, and reuses the freed memory. Then lets a contended lease end,
/// so that the timer writes, whichever client sent the last command.
pub fn reuse_freed_memory(server: &Server) -> Result<()> {
    let mut client = server.connect()?;
    client.until_blocked(0)?;
    let filler = "x".repeat(FILLER);
    client.pipeline_granted((0..FILLERS).map(|key| format!("SET filler{key} {filler}")))?;
    client.granted("LOCK.ACQUIRE lapsing h PX 100")?;
    client.granted("LOCK.WAIT lapsing w PX 100")?;
    client.call("FLUSHALL")?;
    Ok(())
}

/// Begins a shutdown while clients hold locks and wait for locks, with sessions too.
pub fn shut_down(server: &Server) -> Result<impl Sized> {
    let mut scene = Scene::new(server)?;
    let first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG} SESSION"))?;
    let second = scene.waiter(&format!("LOCK.MWAIT 2 k free w2 {LONG}"))?;
    scene
        .holder
        .granted(&format!("LOCK.ACQUIRE session h {RENEWED} SESSION"))?;
    scene.holder.send("SHUTDOWN NOSAVE")?;
    Ok((scene.holder, first, second))
}

fn killed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.WAIT k w2 {LONG} SHARED SESSION"))?;
    scene.kill(&mut second)?;
    scene.kill(&mut first)
}

fn killed_after_grant(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let (_first, mut second) = scene.one_granted_of_two()?;
    scene.kill(&mut second)
}

fn killed_in_tick(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.WAIT k w2 {LONG}"))?;
    let kill = format!("CLIENT KILL ID {}", first.id);
    let batch = [packed("LOCK.RELEASE k h"), packed(&kill)].concat();
    scene.holder.send_bytes(&batch)?;
    first.connection.drain_to_close()?;
    second.granted()
}

fn killed_in_exec(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let command = format!("LOCK.WAIT k * SHARED {LONG}");
    let waiters = (0..10).map(|_| scene.waiter(&command));
    let waiters: Vec<Waiter> = waiters.collect::<Result<_>>()?;
    let Scene { mut holder, .. } = scene;
    for command in [
        "MULTI",
        "LOCK.RELEASE k h",
        "CLIENT KILL TYPE normal",
        "EXEC",
    ] {
        holder.call(command)?;
    }
    for mut waiter in waiters {
        waiter.connection.drain_to_close()?;
    }
    until("a free lock", PATIENCE, || {
        Ok(holder.count("EXISTS k")? == 0)
    })
}

fn killed_by_holder(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let (_first, mut second) = scene.one_granted_of_two()?;
    for command in [
        "MULTI",
        "DEL k",
        &format!("CLIENT KILL ID {}", second.id),
        "EXEC",
    ] {
        scene.holder.call(command)?;
    }
    second.connection.drain_to_close()
}

fn evicted(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    evict(&mut scene.holder, &mut waiter)
}

fn evicted_after_grant(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let (_first, mut second) = scene.one_granted_of_two()?;
    evict(&mut scene.holder, &mut second)
}

/// Lets the waiter send a command that never ends, until the server evicts the waiter.
fn evict(holder: &mut Connection, waiter: &mut Waiter) -> Result<()> {
    let command = packed(&format!("ECHO {}", "x".repeat(2 * BALLAST)));
    waiter.connection.send_bytes(&command[..BALLAST])?;
    holder.call("CONFIG SET maxmemory-clients 2mb")?;
    waiter.connection.drain_to_close()?;
    holder.call("CONFIG SET maxmemory-clients 0")?;
    Ok(())
}

/// Ends a waiter whose subscription overflows its buffer, on servers that block subscribers.
fn overflowed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    // Valkey blocks none from 8.1 on.
    let valkey = scene.holder.info("server", "valkey_version");
    if valkey.is_ok_and(|version| !version.starts_with("8.0")) {
        return Ok(());
    }
    let mut subscriber = server.connect()?;
    subscriber.call("HELLO 3")?;
    subscriber.call("SUBSCRIBE news")?;
    let mut waiter = scene.waiter_on(subscriber, &format!("LOCK.WAIT k w {LONG}"))?;
    let news = "x".repeat(FLOOD);
    scene.holder.call(&format!("PUBLISH news {news}"))?;
    waiter.connection.drain_to_close()
}

fn user_deleted(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    scene
        .holder
        .call("ACL SETUSER guest on nopass ~* &* +@all")?;
    let mut guest = server.connect()?;
    guest.call("AUTH guest any")?;
    let mut waiter = scene.waiter_on(guest, &format!("LOCK.WAIT k w {LONG} SESSION"))?;
    scene.holder.call("ACL DELUSER guest")?;
    waiter.connection.drain_to_close()
}

fn unblocked(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.WAIT k w2 {LONG}"))?;
    scene
        .holder
        .call(&format!("CLIENT UNBLOCK {} ERROR", first.id))?;
    first.refused()?;
    scene
        .holder
        .call(&format!("CLIENT UNBLOCK {}", second.id))?;
    ensure!(
        second.connection.reply()? == Value::Nil,
        "granted what another holds"
    );
    Ok(())
}

fn quit(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    waiter.connection.send("QUIT")?;
    scene.holder.call("LOCK.RELEASE k h")?;
    waiter.connection.drain_to_close()
}

/// Clients wait for a replica, and each is removed in another way.
fn held_back(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut replica = attached_replica(&mut scene)?;
    let acquire =
        |key: &str| format!("LOCK.ACQUIRE {key} w {LONG} SESSION REPLICAS 1 WITHIN 600000");
    let mut killed = scene.waiter(&acquire("a"))?;
    let mut unblocked = scene.waiter(&acquire("b"))?;
    let mut deleted = scene.waiter(&acquire("c"))?;
    let mut handed_over = scene.waiter(&format!(
        "LOCK.WAIT k w {LONG} KEEP 100 REPLICAS 1 WITHIN 600000"
    ))?;
    let closed = scene.waiter(&acquire("d"))?;
    scene.holder.call("LOCK.RELEASE k h")?;
    scene.kill(&mut handed_over)?;
    scene.kill(&mut killed)?;
    let unblock = format!("CLIENT UNBLOCK {} ERROR", unblocked.id);
    scene.holder.call(&unblock)?;
    unblocked.refused()?;
    scene.holder.call("DEL c")?;
    deleted.refused()?;
    drop(closed);
    let mut late = scene.server.connect()?;
    late.send("LOCK.ACQUIRE e w REPLICAS 1 WITHIN 300")?;
    ensure!(late.reply().is_err(), "no replica has acknowledged");
    scene.holder.until_blocked(0)?;
    scene.waiting = 0;
    let mut acknowledged = scene.waiter(&acquire("f"))?;
    replica.send("REPLCONF ACK 999999999999999")?;
    acknowledged.granted()?;
    replica.stream().shutdown(Shutdown::Both)?;
    scene.until_replicas("0")
}

/// Returns a connection that the server takes for a replica. It acknowledges nothing by itself.
fn attached_replica(scene: &mut Scene) -> Result<Connection> {
    scene.holder.call("CONFIG SET repl-diskless-sync no")?;
    let mut replica = scene.server.connect()?;
    let mut unread = replica.stream().try_clone()?;
    replica.send("PSYNC ? -1")?;
    thread::spawn(move || std::io::copy(&mut unread, &mut std::io::sink()));
    until("an attached replica", PATIENCE, || {
        let line = scene.holder.info("replication", "slave0");
        Ok(line.is_ok_and(|line| line.contains("state=online")))
    })?;
    Ok(replica)
}

fn closed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let second = scene.waiter(&format!("LOCK.WAIT k w2 {LONG}"))?;
    drop(second);
    scene.holder.call("LOCK.RELEASE k h")?;
    drop(first);
    scene.holder.until_blocked(0)
}

fn lapsed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let waiters = (0..20).map(|_| scene.waiter("LOCK.WAIT k * PX 5"));
    let waiters: Vec<Waiter> = waiters.collect::<Result<_>>()?;
    scene.holder.call("LOCK.RELEASE k h")?;
    for mut waiter in waiters {
        waiter.granted()?;
    }
    Ok(())
}

fn timed_out(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let first = scene.waiter("LOCK.WAIT k w1 BLOCK 300")?;
    let second = scene.waiter("LOCK.MWAIT 3 a k b w2 BLOCK 300")?;
    for mut waiter in [first, second] {
        ensure!(
            waiter.connection.reply()? == Value::Nil,
            "granted what another holds"
        );
    }
    Ok(())
}

fn many_keys_killed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    scene
        .holder
        .granted(&format!("LOCK.MACQUIRE 2 a b h {LONG}"))?;
    let mut first = scene.waiter(&format!("LOCK.MWAIT 3 a k b w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.MWAIT 3 b k c w2 {LONG} SHARED"))?;
    scene.holder.call("DEL a")?;
    scene.kill(&mut first)?;
    scene.holder.call("LOCK.MRELEASE 2 k b h")?;
    second.granted()
}

fn sessions_closed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut session = server.connect()?;
    let acquire = |key| format!("LOCK.ACQUIRE s{key} t {RENEWED} SESSION");
    session.pipeline_granted((0..50).map(acquire))?;
    let mut waiter = scene.waiter(&format!("LOCK.MWAIT 2 s0 s49 w {LONG} SESSION"))?;
    until_renewed(&mut scene.holder, "s49 t")?;
    drop(session);
    waiter.granted()?;
    scene.kill(&mut waiter)?;
    let holder = &mut scene.holder;
    until("free locks", PATIENCE, || {
        Ok(holder.count("EXISTS s0 s1 s49")? == 0)
    })
}

/// Waits until the lease of a key and token is longer than before.
fn until_renewed(asker: &mut Connection, hold: &str) -> Result<()> {
    let check = format!("LOCK.CHECK {hold}");
    let mut shortest = asker.count(&check)?;
    until("a renewal", PATIENCE, || {
        let left = asker.count(&check)?;
        let renewed = left > shortest;
        shortest = shortest.min(left);
        Ok(renewed)
    })
}

fn sessions_in_scripts(server: &Server) -> Result<()> {
    let mut caller = server.connect()?;
    let script = b"redis.call('LOCK.ACQUIRE', KEYS[1], 't', 'PX', 3000, 'SESSION') \
        return redis.call('LOCK.INFO', KEYS[1])";
    caller.call_words(&[b"EVAL", script, b"1", b"k"])?;
    let mut asker = server.connect()?;
    asker.call("LOCK.INFO k")?;
    until_renewed(&mut asker, "k t")?;
    drop(caller);
    until(
        "a free lock",
        PATIENCE,
        || Ok(asker.count("EXISTS k")? == 0),
    )
}

fn swapped(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    scene
        .holder
        .granted(&format!("LOCK.ACQUIRE s h {RENEWED} SESSION"))?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    scene.holder.call("SWAPDB 0 1")?;
    waiter.granted()?;
    scene.holder.call("SWAPDB 0 1")?;
    Ok(())
}

fn flushed(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.WAIT k w2 {LONG}"))?;
    scene.holder.call("FLUSHALL")?;
    first.granted()?;
    scene.holder.call("FLUSHALL ASYNC")?;
    second.granted()
}

fn reloaded(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    scene
        .holder
        .granted(&format!("LOCK.ACQUIRE s h {RENEWED} SESSION"))?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    scene.holder.call("DEBUG RELOAD")?;
    scene.holder.call("LOCK.RELEASE k h")?;
    waiter.granted()
}

fn moved(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    scene
        .holder
        .granted(&format!("LOCK.ACQUIRE s h {RENEWED} SESSION"))?;
    let mut first = scene.waiter(&format!("LOCK.WAIT k w1 {LONG}"))?;
    let mut second = scene.waiter(&format!("LOCK.WAIT s w2 {LONG}"))?;
    scene.holder.call("RENAME k other")?;
    first.granted()?;
    scene.holder.call("MOVE s 1")?;
    second.granted()?;
    scene.holder.call("RENAME other k")?;
    Ok(())
}

fn overwritten(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    scene.holder.call("SET k plain")?;
    waiter.refused()
}

fn restored(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let mut waiter = scene.waiter(&format!("LOCK.WAIT k w {LONG}"))?;
    let holder = &mut scene.holder;
    let Value::BulkString(dump) = holder.call("DUMP k")? else {
        bail!("no dump of a lock");
    };
    for index in 0..dump.len() {
        let mut flipped = dump.clone();
        flipped[index] ^= 1;
        ensure!(
            holder
                .call_words(&[b"RESTORE", b"flipped", b"0", &flipped])
                .is_err(),
            "a payload with byte {index} flipped was taken"
        );
    }
    holder.call_words(&[b"RESTORE", b"k", b"0", &dump, b"REPLACE"])?;
    holder.call("LOCK.RELEASE k h")?;
    waiter.granted()
}

fn rewritten(server: &Server) -> Result<()> {
    let mut scene = Scene::new(server)?;
    let holder = &mut scene.holder;
    holder.granted(&format!("LOCK.ACQUIRE s h {RENEWED} SHARED SESSION"))?;
    holder.call("CONFIG SET appendonly yes")?;
    let finished = |holder: &mut Connection| -> Result<bool> {
        Ok(
            holder.info("persistence", "aof_rewrite_in_progress")? == "0"
                && holder.info("persistence", "aof_rewrite_scheduled")? == "0",
        )
    };
    until("a rewritten file", PATIENCE, || finished(holder))?;
    holder.call("CONFIG SET appendonly no")?;
    Ok(())
}
