//! Waiters that the server frees in every way that it frees a client, and the module's timer after
//! that.
//!
//! When Redis 7.0 asks whether a waiter's key is ready, it makes the waiter its current client. If
//! the key isn't ready, Redis keeps that pointer, even after it has freed the waiter. So each test
//! frees a waiter whose key was created anew, and lets the server use the memory for something
//! else. Then leases expire. The timer writes their hand-overs, and for that the server looks up
//! its current client.

use support::{until, Client, Expect, Server, LONG};

/// The size of a client in the server, in bytes.
const SIZE_OF_A_CLIENT: usize = 740;

/// The number of values of that size that surely reuse the memory of a freed client.
const VALUES: usize = 3_000;

/// The number of leases that expire while a client waits.
const EXPIRATIONS: usize = 20;

/// Starts a server with these configuration lines and an append-only file. Without a file to write
/// to, the server doesn't assemble the timer's writes.
#[track_caller]
fn server_that_writes(lines: &[&str]) -> Server {
    let builder = Server::builder().config("appendonly yes");
    lines
        .iter()
        .fold(builder, |builder, line| builder.config(line))
        .start()
}

/// Two waiters for `k`: a deletion has granted the first, and the second still waits.
struct Scene {
    server: Server,
    holder: Client,
    granted: Client,
    waiting: Client,
}

impl Scene {
    /// Sets the scene, with `second` behind the first waiter.
    #[track_caller]
    fn with(server: Server, mut second: Client) -> Scene {
        let mut holder = server.client();
        holder.call(format!("LOCK.ACQUIRE k h {LONG}")).grant();
        let mut granted = server.waiter(format!("LOCK.WAIT k w1 {LONG}"));
        server.block(&mut second, format!("LOCK.WAIT k w2 {LONG}"));
        assert_eq!(holder.call("DEL k").int(), 1);
        assert_eq!(granted.recv().grant().token, "w1");
        Scene {
            server,
            holder,
            granted,
            waiting: second,
        }
    }

    #[track_caller]
    fn new() -> Scene {
        let server = server_that_writes(&[]);
        let second = server.client();
        Scene::with(server, second)
    }

    /// Waits until the second waiter is freed, and asserts that everything else goes on.
    #[track_caller]
    fn assert_goes_on(mut self) {
        let id = self.waiting.id();
        let server = &self.server;
        until("the waiter is freed", || !server.is_connected(id));
        let value = "x".repeat(SIZE_OF_A_CLIENT);
        let sets: Vec<String> = (0..VALUES)
            .map(|number| format!("SET value:{number} {value}"))
            .collect();
        self.holder.call_all(&sets);
        for number in 0..EXPIRATIONS {
            let key = format!("expires:{number}");
            self.holder
                .call(format!("LOCK.ACQUIRE {key} a {LONG}"))
                .grant();
            let mut next = server.waiter(format!("LOCK.WAIT {key} b {LONG}"));
            let ends = format!("LOCK.EXTEND {key} a PX 5");
            assert_eq!(self.holder.call(ends).int(), 1);
            assert_eq!(next.recv().grant().token, "b");
        }
        assert_eq!(server.waiters("k"), 0);
        assert_eq!(self.granted.call("LOCK.RELEASE k w1").int(), 1);
        assert_eq!(server.lock_info("k"), None);
        until("no client waits", || {
            server.info("lock", "lock_waiters") == "0"
        });
    }
}

#[test]
fn a_waiter_is_killed() {
    let mut scene = Scene::new();
    let id = scene.waiting.id();
    assert_eq!(scene.holder.call(format!("CLIENT KILL ID {id}")).int(), 1);
    scene.assert_goes_on();
}

#[test]
fn a_waiter_is_killed_in_a_transaction() {
    let mut scene = Scene::new();
    let kill = format!("CLIENT KILL ID {}", scene.waiting.id());
    scene
        .holder
        .call_all(&["MULTI", "SET before 1", &kill, "SET behind 1", "EXEC"]);
    scene.assert_goes_on();
}

#[test]
fn a_waiter_is_killed_in_the_transaction_that_deletes_its_key() {
    let mut scene = Scene::new();
    let kill = format!("CLIENT KILL ID {}", scene.waiting.id());
    scene.holder.call_all(&["MULTI", "DEL k", &kill, "EXEC"]);
    scene
        .holder
        .call(format!("LOCK.ACQUIRE k w1 {LONG}"))
        .grant();
    scene.assert_goes_on();
}

#[test]
fn a_waiter_closes_its_connection() {
    for die in [Client::close, Client::reset] {
        let scene = Scene::new();
        let Scene {
            server,
            holder,
            granted,
            waiting,
        } = scene;
        let id = waiting.id();
        die(waiting);
        until("the waiter is freed", || !server.is_connected(id));
        // Another waiter in its place, which is killed.
        let second = server.waiter(format!("LOCK.WAIT k w3 {LONG}"));
        let kill = format!("CLIENT KILL ID {}", second.id());
        let scene = Scene {
            server,
            holder,
            granted,
            waiting: second,
        };
        scene.server.call(kill).int();
        scene.assert_goes_on();
    }
}

#[test]
fn a_waiter_is_evicted() {
    const MOST: usize = 4 << 20;
    let mut scene = Scene::new();
    // Data sent behind a wait stays in the server and counts as the client's memory.
    scene.waiting.send_bytes(&vec![b'x'; 2 * MOST]);
    // The server looks for clients to evict when the next command begins.
    let set = format!("CONFIG SET maxmemory-clients {MOST}");
    scene.holder.call_all(&[&set, "PING"]);
    let evicted = |server: &Server| server.info("stats", "evicted_clients");
    until("the waiter is evicted", || evicted(&scene.server) == "1");
    scene.server.call("CONFIG SET maxmemory-clients 0").okay();
    scene.assert_goes_on();
}

#[test]
fn the_user_of_a_waiter_is_deleted() {
    let server = server_that_writes(&[]);
    server.call("ACL SETUSER guest on >secret ~* +@all").okay();
    let mut second = server.client();
    second.call("AUTH guest secret").okay();
    let mut scene = Scene::with(server, second);
    assert_eq!(scene.holder.call("ACL DELUSER guest").int(), 1);
    scene.assert_goes_on();
}

#[test]
fn the_output_of_a_waiter_grows_beyond_its_limit() {
    let server = server_that_writes(&["client-output-buffer-limit normal 1mb 0 0"]);
    let mut second = server.client().into_resp3();
    second.call("CLIENT TRACKING ON BCAST PREFIX big").okay();
    let mut scene = Scene::with(server, second);
    // The server sends the waiter the names of changed keys, and the waiter doesn't read them.
    let key = format!("big{}", "x".repeat(2 << 20));
    let id = scene.waiting.id();
    until("the waiter's output exceeds its limit", || {
        scene.holder.call(&["SET", &key, "1"]).okay();
        !scene.server.is_connected(id)
    });
    scene.assert_goes_on();
}

#[test]
fn all_waiters_are_killed_by_their_type() {
    let mut scene = Scene::new();
    let crowd: Vec<Client> = (0..20)
        .map(|number| scene.server.waiter(format!("LOCK.WAIT k c{number} {LONG}")))
        .collect();
    // The server kills the harness's own connection too.
    let killed = scene.holder.call("CLIENT KILL TYPE normal").int();
    assert!(killed >= 22, "{killed}");
    drop(crowd);
    scene.server.reconnect();
    scene.granted = scene.server.client();
    scene.assert_goes_on();
}
