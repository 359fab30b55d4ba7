//! What a run knows of its servers and connections, for commands that name them.

use std::cell::{Cell, RefCell};

use rand::rngs::StdRng;
use rand::RngExt;

use crate::grammar::Surroundings;
use crate::payload::Payloads;

/// A server that connections send to.
pub struct Node {
    /// Where it listens.
    pub port: u16,
    /// Its name in the cluster, if there is one.
    pub name: String,
    /// The place of the other node with slots among the nodes; its own where there is none.
    pub other: usize,
}

/// What is the same for all connections of a run.
pub struct Known {
    /// Dumps of locks.
    pub payloads: Payloads,
    nodes: Vec<Node>,
    clients: RefCell<Vec<u64>>,
    deeds: Cell<u64>,
}

/// As the connections of one node see it.
pub struct View<'a> {
    /// All that is known.
    pub known: &'a Known,
    /// The node's place.
    pub node: usize,
}

impl Known {
    /// Of a run with these nodes and so many connections.
    pub fn new(nodes: Vec<Node>, connections: usize) -> Known {
        Known {
            payloads: Payloads::default(),
            nodes,
            clients: RefCell::new(vec![0; connections]),
            deeds: Cell::new(0),
        }
    }

    /// Where a node listens.
    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// A connection is this client of its server.
    pub fn is_now(&self, connection: usize, client: u64) {
        self.clients.borrow_mut()[connection] = client;
    }

    /// Counts what connections do.
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
