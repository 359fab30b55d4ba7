//! Deployments and changes of roles that chaos alone plays: a primary with two replicas, five
//! masters, a cluster of six, slots that move as a whole, clocks that are set, and disks that are filled.

use std::time::{Duration, Instant};
use std::{slice, thread};

use anyhow::Result;
use redis::{RedisResult, Value};
use redis_lock_rig::Process;

use super::disk::Disk;
use super::{
    has_role, id_of, until, within, Kind, Servers, Setting, MASTERS, NODES, PATIENCE, TAG,
};
use crate::relay::Relay;

/// The time limit for one try of a failover, and the number of tries.
const ONE_TRY: Duration = Duration::from_secs(6);
const TRIES: usize = 4;

impl Servers {
    // ---- a primary with replicas

    /// Has the other servers follow the first one.
    pub(super) fn link(&mut self) -> Result<()> {
        let links = self.processes.iter().map(|it| Relay::start(it.port()));
        self.links = links.collect::<Result<Vec<_>>>()?;
        self.follow();
        Ok(())
    }

    /// Has the other servers follow the primary, and waits until they do.
    fn follow(&self) {
        let follow = format!("REPLICAOF 127.0.0.1 {}", self.links[self.owner].port());
        for replica in (0..NODES).filter(|it| *it != self.owner) {
            let told: String = self.processes[replica].ask(&follow).expect("a replica");
            assert!(told.starts_with("OK"), "{told}");
        }
        self.until_online(NODES - 1);
    }

    fn next(&self) -> usize {
        (self.owner + 1) % NODES
    }

    /// Leads the clients to another server, which is the primary from now on.
    fn lead_clients_to(&mut self, new: usize) {
        self.owner = new;
        let port = self.owner().port();
        let relay = self.relay();
        relay.lead_to(port);
        relay.reset();
        relay.pass();
    }

    /// Swaps the primary and a replica by hand. No write is lost, because the primary pauses writes
    /// until the replica has all of them.
    pub fn hand_over(&mut self) {
        let (old, new) = (self.owner, self.next());
        self.call("CLIENT PAUSE 60000 WRITE");
        until("the replica has everything", || {
            let [has, whole] = [new, old].map(|it| offset_of(&self.processes[it]));
            has.is_some() && has == whole
        });
        promote(&self.processes[new]);
        self.lead_clients_to(new);
        self.follow();
        let told: RedisResult<String> = self.processes[old].ask("CLIENT UNPAUSE");
        told.expect("a replica");
    }

    /// Has the primary hand over to a replica by FAILOVER with these words. The server may abort it.
    pub fn fail_over_by_command(&mut self, words: &str) {
        let (old, new) = (self.owner, self.next());
        let asked = format!(
            "FAILOVER TO 127.0.0.1 {} {words}",
            self.processes[new].port()
        );
        until("a failover begins", || {
            self.processes[old].ask::<String>(&asked).is_ok()
        });
        until("the failover ends", || {
            let info: RedisResult<String> = self.processes[old].ask("INFO replication");
            info.is_ok_and(|it| it.contains("master_failover_state:no-failover"))
        });
        if has_role(&self.processes[new], "master") {
            self.lead_clients_to(new);
        }
        self.follow();
    }

    /// Kills the primary, and promotes a replica. Replicas may lack the latest writes.
    pub fn replace_killed(&mut self) {
        let (old, new) = (self.owner, self.next());
        self.kill();
        promote(&self.processes[new]);
        self.lead_clients_to(new);
        self.processes[old].restart().expect("a restart");
        self.follow();
    }

    /// Cuts the primary off its replicas for a time, and promotes a replica meanwhile. The clients
    /// that were connected stay at the old primary until the end.
    pub fn replace_isolated(&mut self, time: Duration) {
        let (old, new) = (self.owner, self.next());
        self.links[old].swallow();
        let from = Instant::now();
        thread::sleep(time / 2);
        self.cuts.push((from, Instant::now()));
        promote(&self.processes[new]);
        let port = self.processes[new].port();
        self.relay().lead_to(port);
        thread::sleep(time / 2);
        self.lead_clients_to(new);
        self.follow();
        self.links[old].pass();
    }

    /// Loses all bytes between the primary and its replicas for a time.
    pub fn cut_replication(&mut self, time: Duration) {
        let link = &self.links[self.owner];
        link.swallow();
        let from = Instant::now();
        thread::sleep(time);
        self.cuts.push((from, Instant::now()));
        link.pass();
        self.until_online(NODES - 1);
    }

    // ---- masters

    /// Chooses the master that the next calls are about.
    pub fn choose_master(&mut self, master: usize) {
        self.owner = master % MASTERS;
    }

    /// Returns true if a lock has a holder or a waiter at a server of the tests' keys, of which masters
    /// are several.
    pub fn has_lock(&self, key: &str) -> bool {
        let servers = match self.kind {
            Kind::Masters => self.processes.as_slice(),
            _ => slice::from_ref(self.owner()),
        };
        let asked = format!("LOCK.INFO {key}");
        let has = |it: &Process| it.ask::<Value>(&asked).expect("a server") != Value::Nil;
        servers.iter().any(has)
    }

    /// Kills the chosen master, which loses its data and stays away for a time.
    pub fn forget(&mut self, time: Duration) {
        self.kill();
        let dir = self.dir();
        for data in ["appendonlydir", "dump.rdb"].map(|it| dir.join(it)) {
            let _absent = std::fs::remove_dir_all(&data).or_else(|_| std::fs::remove_file(&data));
        }
        thread::sleep(time);
        self.restart();
    }

    // ---- a cluster of six

    /// Gives each primary of the cluster a replica. Replicas start no failover themselves.
    pub fn add_standbys(&mut self, setting: &Setting) -> Result<()> {
        let (port, bus) = (self.processes[0].port(), self.processes[0].bus_port());
        for primary in 0..NODES {
            self.add_process(setting)?;
            let standby = self.standby(primary);
            let _: String = standby.ask(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
            let _: String = standby.ask("CONFIG SET cluster-replica-no-failover yes")?;
            let replicate = format!("CLUSTER REPLICATE {}", id_of(&self.processes[primary]));
            until("the node can follow its primary", || {
                standby.ask::<String>(&replicate).is_ok()
            });
        }
        self.until_online(1);
        Ok(())
    }

    fn standby(&self, primary: usize) -> &Process {
        &self.processes[primary + NODES]
    }

    /// Has the replica of the keys' node take over by CLUSTER FAILOVER with these words. The nodes may
    /// refuse it.
    pub fn fail_over_node(&mut self, words: &str) {
        let standby = self.standby(self.owner);
        let asked = format!("CLUSTER FAILOVER{words}");
        let old = self.owner();
        // A standby may win by the votes of an earlier failover, and is a replica again at once.
        let is_done = (0..TRIES).any(|_| {
            let _refused: RedisResult<String> = standby.ask(&asked);
            let is_over = || has_role(standby, "master") && has_role(old, "slave");
            within(ONE_TRY, || is_over().then_some(())).is_some()
        });
        if !is_done {
            return;
        }
        let (primary, standby) = (self.owner, self.owner + NODES);
        self.processes.swap(primary, standby);
        self.clocks.swap(primary, standby);
        self.disks.swap(primary, standby);
        self.relays.swap(primary, standby);
        until("the nodes know the new primary", || {
            self.processes.iter().all(|it| {
                it.ask::<Value>(&format!("EXISTS {TAG}")).is_ok()
                    == (it.port() == self.owner().port())
            })
        });
        self.until_online(1);
    }

    /// Moves the slot of the tests' keys to the next node as a whole. Returns false if the server can't.
    pub fn move_as_a_whole(&mut self, setting: &Setting) -> bool {
        let (source, target, slot) = self.way();
        let (at, words) = if setting.server_name.starts_with("Valkey") {
            let id = id_of(target);
            (
                source,
                format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"),
            )
        } else {
            (target, format!("CLUSTER MIGRATION IMPORT {slot} {slot}"))
        };
        if at.ask::<Value>(&words).is_err() {
            return false;
        }
        let moved = within(PATIENCE, || {
            let served: RedisResult<Value> = target.ask(&format!("EXISTS {TAG}"));
            served.ok()
        });
        if moved.is_some() {
            self.owner = self.next();
        }
        moved.is_some()
    }

    // ---- clocks

    /// Sets the clocks of all servers by so many ms, forward, or back if negative.
    pub fn set_clocks(&self, by_ms: i64) {
        for clock in &self.clocks {
            clock.set_ms(clock.ahead_ms() + by_ms);
        }
    }

    /// Sets the clock of one master by so many ms.
    pub fn set_clock(&self, by_ms: i64) {
        let clock = &self.clocks[self.owner];
        clock.set_ms(clock.ahead_ms() + by_ms);
    }

    // ---- disks

    /// Returns true if each server has a disk that can be filled.
    pub fn can_fill_disks(&self) -> bool {
        self.disks.iter().all(Option::is_some)
    }

    /// Fills the disk of the server of the tests' keys.
    pub fn fill_disk(&self) {
        self.disk().fill();
    }

    /// Frees the disk that is filled, and waits until the server serves its keys. Starts it again if it
    /// ends: it may do so a moment after there is space.
    pub fn free_disk(&mut self) {
        self.disk().free();
        until("the server serves its keys", || {
            if self.owner().ended().expect("a process").is_some() {
                self.restart();
            }
            self.try_call(&format!("EXISTS {TAG}")).is_ok()
        });
    }

    /// Has the server of the tests' keys write its append-only file anew, and waits for its end.
    pub fn rewrite_file(&self) {
        until("a rewrite begins", || self.try_call("BGREWRITEAOF").is_ok());
        until("the file is rewritten", || {
            let info: RedisResult<String> = self.owner().ask("INFO persistence");
            info.is_ok_and(|it| {
                it.contains("aof_rewrite_in_progress:0") && it.contains("aof_rewrite_scheduled:0")
            })
        });
    }

    fn disk(&self) -> &Disk {
        self.disks[self.owner].as_ref().expect("a disk")
    }
}

fn promote(process: &Process) {
    let told: String = process.ask("REPLICAOF NO ONE").expect("a replica");
    assert_eq!(told, "OK");
}

fn offset_of(process: &Process) -> Option<String> {
    let info: String = process.ask("INFO replication").ok()?;
    let offset = info
        .lines()
        .find(|line| line.starts_with("master_repl_offset:"));
    offset.map(str::to_owned)
}
