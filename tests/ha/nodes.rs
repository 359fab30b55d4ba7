//! A real cluster of three primaries, with three replicas if a test asks for them.

use std::ops::RangeInclusive;
use std::time::Instant;

use support::{eventually, until, Client, Expect, Flavour, Grant, Server};

const SLOTS: usize = 16_384;
const PRIMARIES: usize = 3;

/// Time after which a silent node counts as failing. On a busy machine a node may be silent for a
/// large part of it.
pub const NODE_TIMEOUT_MS: u64 = 2_000;

/// The nodes of a cluster. The first three start as primaries with a third of the slots each.
/// Node `n + 3` starts as the replica of node `n`.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts three primaries, each with a replica that is in step.
    #[track_caller]
    pub fn start() -> Cluster {
        let cluster = Cluster::of(2 * PRIMARIES);
        for primary in 0..PRIMARIES {
            let replica = primary + PRIMARIES;
            let id = cluster.id(primary);
            until("the node can follow its primary", || {
                cluster
                    .node(replica)
                    .call(format!("CLUSTER REPLICATE {id}"))
                    .is_ok()
            });
        }
        for replica in PRIMARIES..2 * PRIMARIES {
            until("the replica's link is up", || {
                let server = cluster.node(replica);
                server.info("replication", "role") == "slave"
                    && server.info("replication", "master_link_status") == "up"
            });
        }
        cluster.until_all_see_replicas();
        for primary in 0..PRIMARIES {
            cluster.node(primary).until_acknowledged_by(1);
        }
        cluster
    }

    /// Starts three primaries without replicas.
    #[track_caller]
    pub fn of_primaries() -> Cluster {
        Cluster::of(PRIMARIES)
    }

    #[track_caller]
    fn of(count: usize) -> Cluster {
        let nodes: Vec<Server> = (0..count).map(|_| start_node()).collect();
        let cluster = Cluster { nodes };
        for primary in 0..PRIMARIES {
            let slots = slots_of(primary);
            let node = cluster.node(primary);
            node.call(format!("CLUSTER SET-CONFIG-EPOCH {}", primary + 1))
                .okay();
            node.call(format!(
                "CLUSTER ADDSLOTSRANGE {} {}",
                slots.start(),
                slots.end()
            ))
            .okay();
        }
        let first = &cluster.nodes[0];
        let (port, bus_port) = (first.port(), first.bus_port());
        for node in &cluster.nodes[1..] {
            node.call(format!("CLUSTER MEET 127.0.0.1 {port} {bus_port}"))
                .okay();
        }
        cluster.until_all_know_all();
        cluster.until_all_serve();
        cluster
    }

    /// Returns a node by its number.
    pub fn node(&self, number: usize) -> &Server {
        &self.nodes[number]
    }

    /// Returns a node by its number, to kill or restart it.
    pub fn node_mut(&mut self, number: usize) -> &mut Server {
        &mut self.nodes[number]
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns a node's id in the cluster.
    #[track_caller]
    fn id(&self, number: usize) -> String {
        self.node(number).call("CLUSTER MYID").text()
    }

    /// Returns the slot of a key.
    #[track_caller]
    pub fn slot(&self, key: impl AsRef<[u8]>) -> i64 {
        self.node(0)
            .call(&[b"CLUSTER".as_slice(), b"KEYSLOT", key.as_ref()])
            .int()
    }

    /// Waits until a running node serves the key, and returns its number.
    #[track_caller]
    pub fn owner(&self, key: impl AsRef<[u8]>) -> usize {
        let exists = [b"EXISTS".as_slice(), key.as_ref()];
        let serves = |node: &Server| node.is_running() && node.call(&exists).is_ok();
        eventually("some node serves the key", || {
            self.nodes.iter().position(serves)
        })
    }

    /// Waits until every running node sees all slots served.
    #[track_caller]
    pub fn until_all_serve(&self) {
        for node in self.running() {
            until("the cluster is up", || {
                node.call("CLUSTER INFO")
                    .text()
                    .contains("cluster_state:ok")
            });
        }
    }

    /// Waits until every running node says that the slot belongs to `owner`.
    #[track_caller]
    fn until_slot_is_at(&self, slot: i64, owner: usize) {
        let id = self.id(owner);
        for node in self.running() {
            until("the nodes agree on the slot's owner", || {
                owner_by(node, slot).as_deref() == Some(&id)
            });
        }
    }

    /// Returns the move of a key's slot from the node that serves the key to the next primary.
    #[track_caller]
    pub fn next_move(&self, key: impl AsRef<[u8]>) -> Move<'_> {
        let from = self.owner(&key);
        let to = (from + 1) % PRIMARIES;
        Move {
            cluster: self,
            slot: self.slot(&key),
            source: self.node(from),
            target: self.node(to),
            to,
        }
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    fn until_all_know_all(&self) {
        let ids: Vec<String> = (0..self.nodes.len())
            .map(|number| self.id(number))
            .collect();
        for node in &self.nodes {
            until("the nodes know each other", || {
                let text = node.call("CLUSTER NODES").text();
                ids.iter().all(|id| text.contains(id)) && !text.contains("handshake")
            });
        }
    }

    fn until_all_see_replicas(&self) {
        for node in &self.nodes {
            until("the nodes know all replicas", || {
                let text = node.call("CLUSTER NODES").text();
                text.lines().filter(|line| line.contains("slave")).count() == PRIMARIES
            });
        }
    }
}

/// The move of a slot from one node to another, key by key or atomically.
#[derive(Clone, Copy)]
pub struct Move<'a> {
    cluster: &'a Cluster,
    slot: i64,
    /// The number of the node that gets the slot.
    pub to: usize,
    /// The node that has the slot.
    pub source: &'a Server,
    /// The node that gets the slot.
    pub target: &'a Server,
}

impl<'a> Move<'a> {
    /// Ends the move and begins to move the slot back key by key. Returns the move back.
    ///
    /// The old node is stopped meanwhile. It reads the new node's announcement and both of its own
    /// commands in one pass of its event loop, so it redirects no waiter in between.
    #[track_caller]
    pub fn turn_back(self) -> Move<'a> {
        let slot = self.slot;
        let mut source = self.source.client();
        let source_id = source.call("CLUSTER MYID").text();
        let target_id = self.target.call("CLUSTER MYID").text();
        let is_the_targets = format!("CLUSTER SETSLOT {slot} NODE {target_id}");
        let comes_back = format!("CLUSTER SETSLOT {slot} IMPORTING {target_id}");
        let goes_back = format!("CLUSTER SETSLOT {slot} MIGRATING {source_id}");
        self.source.freeze();
        self.target.call_all(&[&is_the_targets, &goes_back]);
        source.send_batch(&[&is_the_targets, &comes_back]);
        self.source.thaw();
        for _ in 0..2 {
            source.recv().okay();
        }
        self.back()
    }

    /// Returns the move in the opposite direction, not yet begun.
    pub fn back(self) -> Move<'a> {
        Move {
            source: self.target,
            target: self.source,
            to: (self.to + PRIMARIES - 1) % PRIMARIES,
            ..self
        }
    }

    /// Begins to move the slot key by key. From then on each key is at one node or at the other.
    #[track_caller]
    pub fn begin(self) {
        let id = |server: &Server| server.call("CLUSTER MYID").text();
        let (slot, source_id, target_id) = (self.slot, id(self.source), id(self.target));
        self.target
            .call(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))
            .okay();
        self.source
            .call(format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))
            .okay();
    }

    /// Moves all keys of the slot that the source still has.
    #[track_caller]
    pub fn all_keys(self) {
        let slot = self.slot;
        loop {
            let page = self
                .source
                .call(format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            let page = page.list();
            if page.is_empty() {
                break;
            }
            for key in page {
                self.key(Ok(key).bytes());
            }
        }
    }

    /// Moves one key if the source has it.
    #[track_caller]
    pub fn key(self, key: impl AsRef<[u8]>) {
        let port = self.target.port().to_string();
        let command = [
            b"MIGRATE".as_slice(),
            b"127.0.0.1",
            port.as_bytes(),
            key.as_ref(),
            b"0",
            b"5000",
        ];
        let answer = self.source.call(&command).text();
        assert!(["OK", "NOKEY"].contains(&answer.as_str()), "{answer}");
    }

    /// Ends the move by assigning the slot to the target. Returns the time at which the target
    /// began to serve it.
    #[track_caller]
    pub fn end(self) -> Instant {
        let id = self.target.call("CLUSTER MYID").text();
        let command = format!("CLUSTER SETSLOT {} NODE {id}", self.slot);
        self.target.call(&command).okay();
        let since = Instant::now();
        let primary = |node: &&Server| node.info("replication", "role") == "master";
        for node in self.cluster.running().filter(primary) {
            node.call(&command).okay();
        }
        since
    }

    /// Cancels the move, so the slot stays at the source.
    #[track_caller]
    pub fn give_up(self) {
        for node in [self.source, self.target] {
            node.call(format!("CLUSTER SETSLOT {} STABLE", self.slot))
                .okay();
        }
    }

    /// Makes the servers move the slot atomically. Returns the error of a server that cannot.
    pub fn begin_as_a_whole(self) -> Result<(), String> {
        let (source, target, slot) = (self.source, self.target, self.slot);
        let moving = match source.flavour() {
            Flavour::Valkey => {
                let id = target.call("CLUSTER MYID").text();
                source.call(format!(
                    "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"
                ))
            }
            Flavour::Redis => target.call(format!("CLUSTER MIGRATION IMPORT {slot} {slot}")),
        };
        moving.map(drop)
    }

    /// Makes the target take the slot from the source, which deletes the keys as soon as it knows. A
    /// node does so whose configuration is newer than the source's.
    #[track_caller]
    pub fn take_over(self) {
        let id = self.target.call("CLUSTER MYID").text();
        self.target.call("CLUSTER BUMPEPOCH").text();
        let command = format!("CLUSTER SETSLOT {} NODE {id}", self.slot);
        self.target.call(command).okay();
    }

    /// Cancels the atomic move of the slot.
    #[track_caller]
    pub fn call_off(self) {
        match self.source.flavour() {
            Flavour::Valkey => self.source.call("CLUSTER CANCELSLOTMIGRATIONS").okay(),
            // The target requests the slot, so a cancel at the source would only restart the move.
            Flavour::Redis => drop(self.target.call("CLUSTER MIGRATION CANCEL ALL").value()),
        }
    }

    /// Waits until every node knows that the slot belongs to the target.
    #[track_caller]
    pub fn until_known(self) {
        self.cluster.until_slot_is_at(self.slot, self.to);
    }
}

/// The keys that [`hold_every_kind`] locks.
pub const EVERY_KIND: [&str; 4] = ["{t}x", "{t}s", "{t}m", "{t}n"];

/// Takes locks with long leases in the slot of `{t}`. Returns the grants to `a` and to `b`.
///
/// `a` holds `{t}x` twice. `p` with two permits and `q` with an extended lease share `{t}s`. `b`
/// holds `{t}m` and `{t}n`.
#[track_caller]
pub fn hold_every_kind(server: &Server) -> [Grant; 2] {
    for (token, permits) in [("p", 2), ("q", 1)] {
        server
            .call(format!(
                "LOCK.ACQUIRE {{t}}s {token} PX 600000 SHARED LIMIT 3 PERMITS {permits}"
            ))
            .grant();
    }
    assert_eq!(server.call("LOCK.EXTEND {t}s q PX 700000").int(), 1);
    for _ in 0..2 {
        server
            .call("LOCK.ACQUIRE {t}x a PX 600000 REENTRANT")
            .grant();
    }
    [
        "LOCK.ACQUIRE {t}x a PX 600000",
        "LOCK.MACQUIRE 2 {t}m {t}n b PX 600000",
    ]
    .map(|command| server.call(command).grant())
}

/// Returns the server's digests of the locks: holders, holds, deadlines and fences. The server may
/// still be importing their slot.
#[track_caller]
pub fn digests(server: &Server, keys: &[&str]) -> Vec<String> {
    let mut client = server.client();
    keys.iter()
        .map(|key| {
            client.call("ASKING").okay();
            let digest = client.call(format!("DEBUG DIGEST-VALUE {key}")).list();
            Ok(digest[0].clone()).text()
        })
        .collect()
}

/// Asserts that the waiters hold the key one after the other, with fences that rise above `last`.
#[track_caller]
pub fn assert_take_turns(
    server: &Server,
    key: &str,
    waiters: &mut [Client],
    tokens: &[&str],
    mut last: i64,
) {
    for (waiter, token) in waiters.iter_mut().zip(tokens) {
        let grant = waiter.recv().grant();
        assert_eq!(grant.token, *token);
        assert!(grant.fence > last, "{grant:?} after {last}");
        last = grant.fence;
        assert_eq!(server.call(format!("LOCK.RELEASE {key} {token}")).int(), 1);
    }
}

fn start_node() -> Server {
    Server::builder()
        .config("cluster-enabled yes")
        .config(&format!("cluster-node-timeout {NODE_TIMEOUT_MS}"))
        .config("cluster-allow-replica-migration no")
        .start()
}

fn slots_of(primary: usize) -> RangeInclusive<usize> {
    let first = |number: usize| SLOTS * number / PRIMARIES;
    first(primary)..=first(primary + 1) - 1
}

/// Returns the id of the node that serves a slot, according to `node`.
fn owner_by(node: &Server, slot: i64) -> Option<String> {
    let text = node.call("CLUSTER NODES").text();
    let line = text.lines().find(|line| {
        let ranges = line
            .split(' ')
            .skip(8)
            .filter(|range| !range.starts_with('['));
        ranges
            .filter_map(range_of)
            .any(|range| range.contains(&slot))
    });
    line?.split(' ').next().map(str::to_owned)
}

fn range_of(text: &str) -> Option<RangeInclusive<i64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Returns the port in an error like `MOVED 12182 127.0.0.1:7001`.
pub fn moved_to(error: &str) -> Option<u16> {
    address_in(error, "MOVED ")
}

/// Returns the port to which an error that starts with `first` redirects the client.
pub fn address_in(error: &str, first: &str) -> Option<u16> {
    let address = error.strip_prefix(first)?.split(' ').nth(1)?;
    address.rsplit(':').next()?.parse().ok()
}
