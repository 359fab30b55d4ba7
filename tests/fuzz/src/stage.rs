//! The servers of a run: a primary with a replica, in a cluster or not.

use anyhow::Result;
use clap::ValueEnum;

use crate::commands::{Kind, CLUSTER_KINDS, KINDS};
use crate::crowd::CONNECTIONS;
use crate::known::{Known, Node};
use crate::server::{Server, Setup};

/// A part of a run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scene {
    /// A primary and its replica. Some connections send to the replica.
    Plain,
    /// A primary that has all slots, its replica, and another primary to which slots can move. Some
    /// connections send to the other primary.
    Cluster,
}

/// The servers of a scene: the primary, its replica, and any others.
pub struct Stage {
    /// All servers, the primary first and its replica second.
    pub servers: Vec<Server>,
    scene: Scene,
}

impl Scene {
    /// Returns the name of the scene.
    pub fn name(self) -> &'static str {
        match self {
            Scene::Plain => "plain",
            Scene::Cluster => "cluster",
        }
    }

    /// Returns the scene's share of a run's time, relative to the other scene.
    pub fn share(self) -> u32 {
        match self {
            Scene::Plain => 2,
            Scene::Cluster => 1,
        }
    }

    /// Returns the kinds to draw from.
    pub fn kinds(self) -> Vec<Kind> {
        match self {
            Scene::Plain => KINDS.to_vec(),
            Scene::Cluster => [KINDS, CLUSTER_KINDS].concat(),
        }
    }

    /// Returns the number of databases of each server.
    pub fn databases(self) -> u32 {
        match self {
            Scene::Plain => 4,
            Scene::Cluster => 1,
        }
    }

    /// Returns, for each connection, the index of the server that it sends to.
    pub fn targets(self) -> [usize; CONNECTIONS] {
        let second = match self {
            Scene::Plain => 1,
            Scene::Cluster => 2,
        };
        let mut targets = [0; CONNECTIONS];
        targets[CONNECTIONS - 2..].fill(second);
        targets
    }
}

impl Stage {
    /// Starts the servers, and waits until they know each other.
    pub fn set(scene: Scene, setup: &Setup) -> Result<Stage> {
        let servers = match scene {
            Scene::Plain => plain(setup)?,
            Scene::Cluster => cluster(setup)?,
        };
        let stage = Stage { servers, scene };
        stage.until_linked()?;
        Ok(stage)
    }

    /// Returns the primary.
    pub fn primary(&self) -> &Server {
        &self.servers[0]
    }

    /// Returns the primary's replica.
    pub fn replica(&self) -> &Server {
        &self.servers[1]
    }

    /// Returns the knowledge of the servers that connections need, with a few dumps to begin with.
    pub fn known(&self) -> Result<Known> {
        let mut nodes = Vec::new();
        for (number, server) in self.servers.iter().enumerate() {
            nodes.push(Node {
                port: server.port(),
                name: match self.scene {
                    Scene::Plain => String::new(),
                    Scene::Cluster => server.ask("CLUSTER MYID")?,
                },
                other: match (self.scene, number) {
                    (Scene::Cluster, 0) => 2,
                    (Scene::Cluster, _) => 0,
                    (Scene::Plain, _) => number,
                },
            });
        }
        let known = Known::new(nodes, CONNECTIONS);
        self.dump_some(&known);
        Ok(known)
    }

    /// Keeps dumps of a few locks. Without the module there are none.
    fn dump_some(&self, known: &Known) {
        let primary = self.primary();
        let makings = [
            ("x", "LOCK.ACQUIRE x t0 PX 3600000"),
            ("y", "LOCK.ACQUIRE y t1 PX 3600000 SHARED"),
            ("y", "LOCK.ACQUIRE y t2 PX 3600000 SHARED"),
            ("y", "LOCK.ACQUIRE y t3 PX 3600000 SHARED LIMIT 9"),
        ];
        for (key, making) in makings {
            drop(primary.ask::<redis::Value>(making));
            if let Ok(dump) = primary.ask::<Vec<u8>>(&format!("DUMP {key}")) {
                known.payloads.keep(&dump);
            }
        }
        drop(primary.ask::<u64>("DEL x y"));
    }

    fn until_linked(&self) -> Result<()> {
        self.replica().until("its link is up", || {
            let link = self
                .replica()
                .info_text("replication", "master_link_status")?;
            Ok(link == "up")
        })
    }
}

fn plain(setup: &Setup) -> Result<Vec<Server>> {
    let primary = Server::start(setup, "primary", &["appendonly yes"])?;
    let follows = format!("replicaof 127.0.0.1 {}", primary.port());
    let replica = Server::start(setup, "replica", &[&follows])?;
    Ok(vec![primary, replica])
}

fn cluster(setup: &Setup) -> Result<Vec<Server>> {
    // Roles never change, whatever slots move.
    let lines = [
        "cluster-enabled yes",
        "cluster-require-full-coverage no",
        "cluster-allow-replica-migration no",
        "cluster-replica-no-failover yes",
        "appendonly yes",
    ];
    let mut servers = Vec::new();
    for role in ["primary", "replica", "other primary"] {
        servers.push(Server::start(setup, role, &lines)?);
    }
    let [primary, replica, other] = servers.as_slice() else {
        return Ok(servers);
    };
    let _: () = primary.ask("CLUSTER ADDSLOTSRANGE 0 16383")?;
    // If both primaries claim a slot, this one wins until the other primary has a greater epoch.
    let _: () = primary.ask("CLUSTER SET-CONFIG-EPOCH 9")?;
    let _: () = other.ask("CLUSTER SET-CONFIG-EPOCH 7")?;
    for server in [replica, other] {
        let (port, bus) = (primary.port(), primary.bus_port());
        let _: () = server.ask(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    for server in &servers {
        server.until("it knows all nodes", || {
            let nodes: String = server.ask("CLUSTER NODES")?;
            let known = nodes.lines().filter(|line| line.contains(" connected"));
            Ok(known.count() == 3 && !nodes.contains("handshake"))
        })?;
    }
    let primary_name: String = primary.ask("CLUSTER MYID")?;
    replica.until("it is a replica", || {
        let _: () = replica.ask(&format!("CLUSTER REPLICATE {primary_name}"))?;
        Ok(true)
    })?;
    for server in &servers {
        server.until("the cluster is up", || {
            let info: String = server.ask("CLUSTER INFO")?;
            Ok(info.contains("cluster_state:ok"))
        })?;
    }
    Ok(servers)
}
