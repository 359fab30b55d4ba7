//! Waiters that the server frees, in every way in which it frees a client, and what the module's timer
//! does on the memory of the dead.
//!
//! Redis 7.0 remembers, of a waiter that was asked whether its key is ready and was not, that it is the
//! client at work, and doesn't forget it when that waiter is freed. So each test frees a waiter that
//! has seen its key made anew, has the server use the memory for something else, and then has leases
//! expire: their hand-overs are written by the timer, where the server looks who is at work.

mod support;

use support::{until, Client, Expect, Server, LONG};

/// As many bytes as a client takes in a server.
const SIZE_OF_A_CLIENT: usize = 740;

/// How many values of that size take the place of a freed client for certain.
const VALUES: usize = 3_000;

/// How many leases expire for somebody who waits.
const EXPIRATIONS: usize = 20;

/// A server with these lines of configuration. It has somewhere to write to: what the timer does is
/// only then put together for it.
#[track_caller]
fn server_that_writes(lines: &[&str]) -> Server {
    let builder = Server::builder().config("appendonly yes");
    lines
        .iter()
        .fold(builder, |builder, line| builder.config(line))
        .start()
}

/// Two waiters for `k`, of whom the first is granted by a deletion and the second still waits.
struct Scene {
    server: Server,
    holder: Client,
    granted: Client,
    waiting: Client,
}

impl Scene {
    /// `second` is who waits behind the first.
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

    /// The second waiter has been told to die: everything else goes on.
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
        until("nobody waits", || {
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
        // Somebody else in its place, who is gone by the same means.
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
    // What is sent behind a wait lies in the server and counts as the client's memory.
    scene.waiting.send_bytes(&vec![b'x'; 2 * MOST]);
    // The server looks for clients to evict as the next command begins.
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
    // It is told the names of keys that change, and doesn't read them.
    let key = format!("big{}", "x".repeat(2 << 20));
    let id = scene.waiting.id();
    until("more is to be read than may be", || {
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
    // The harness's own connection is one of those that are killed.
    let killed = scene.holder.call("CLIENT KILL TYPE normal").int();
    assert!(killed >= 22, "{killed}");
    drop(crowd);
    scene.server.reconnect();
    scene.granted = scene.server.client();
    scene.assert_goes_on();
}
