//! A run's knowledge of its servers and connections, for commands that name them.

use std::cell::{Cell, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::RngExt;

use crate::grammar::Surroundings;
use crate::payload::Payloads;

/// A server that connections send to.
pub struct Node {
    /// The port that the server listens on.
    pub port: u16,
    /// The node's name in the cluster, empty without a cluster.
    pub name: String,
    /// The index of the other node with slots, or the node's own index if there is none.
    pub other: usize,
}

/// The knowledge that all connections of a run share.
pub struct Known {
    /// Dumps of locks.
    pub payloads: Payloads,
    nodes: Vec<Node>,
    clients: RefCell<Vec<u64>>,
    deeds: Cell<u64>,
}

/// The knowledge from the view of one node's connections.
pub struct View<'a> {
    /// The shared knowledge.
    pub known: &'a Known,
    /// The node's index.
    pub node: usize,
}

impl Known {
    /// Returns the knowledge of a run with these nodes and this number of connections.
    pub fn new(nodes: Vec<Node>, connections: usize) -> Known {
        Known {
            payloads: Payloads::default(),
            nodes,
            clients: RefCell::new(vec![0; connections]),
            deeds: Cell::new(0),
        }
    }

    /// Returns the port of a node.
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Records a connection's client id at its server.
    pub fn is_now(&self, connection: usize, client: u64) {
        self.clients.borrow_mut()[connection] = client;
    }

    /// Returns the number of the next deed.
    pub fn next_number(&self) -> u64 {
        self.deeds.set(self.deeds.get() + 1);
        self.deeds.get()
    }
}

impl Surroundings for View<'_> {
    fn client(&self, rng: &mut StdRng) -> u64 {
        let clients = self.known.clients.borrow();
        clients[rng.random_range(0..clients.len())]
    }

    fn payload(&self, rng: &mut StdRng) -> Vec<u8> {
        self.known.payloads.draw(rng)
    }

    fn fence(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let next_second = now.map_or(0, |now| now.as_secs()) + 1;
        next_second * 1_000_000
    }

    fn own_node(&self) -> &str {
        &self.known.nodes[self.node].name
    }

    fn other_node(&self) -> &str {
        let other = self.known.nodes[self.node].other;
        &self.known.nodes[other].name
    }

    fn other_port(&self) -> u16 {
        let other = self.known.nodes[self.node].other;
        self.known.nodes[other].port
    }
}
