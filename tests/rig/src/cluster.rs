//! Clusters.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis::RedisResult;

use crate::Process;

const SLOTS: usize = 16_384;

/// The time limit for the nodes to agree, and the pause between two looks at them.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the lines of configuration that a node of a cluster needs.
pub fn node_lines() -> Vec<String> {
    vec![
        "cluster-enabled yes".to_owned(),
        "cluster-node-timeout 5000".to_owned(),
        "cluster-announce-ip 127.0.0.1".to_owned(),
    ]
}

/// Joins nodes to a cluster with equal parts of the slots, and waits until it serves all of them.
pub fn form_cluster(nodes: &[Process]) -> Result<()> {
    let (port, bus) = (nodes[0].port(), nodes[0].bus_port());
    let meet = format!("CLUSTER MEET 127.0.0.1 {port} {bus}");
    for (number, node) in nodes.iter().enumerate() {
        let start = |number: usize| SLOTS * number / nodes.len();
        let (from, to) = (start(number), start(number + 1) - 1);
        let _: String = node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
        let _: String = node.ask(&format!("CLUSTER ADDSLOTSRANGE {from} {to}"))?;
        if number > 0 {
            let _: String = node.ask(&meet)?;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let known = format!("cluster_known_nodes:{}", nodes.len());
    let serves = |node: &Process| {
        let info: RedisResult<String> = node.ask("CLUSTER INFO");
        info.is_ok_and(|it| it.contains("cluster_state:ok") && it.contains(&known))
    };
    while !nodes.iter().all(serves) {
        ensure!(Instant::now() < deadline, "no cluster within {PATIENCE:?}");
        thread::sleep(PAUSE);
    }
    Ok(())
}
