//! The servers of a program's locks, and the server that has a key now.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::StreamExt;
use redis::aio::AsyncStream;
use redis::cluster_routing::Slot;
use redis::{from_redis_value, Client, Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::time::{timeout, Instant};

use crate::connections::Connection;
use crate::error::{Error, Failure, Outage};
use crate::observer::Observer;
use crate::options;

/// The time that slower sentinels get once one has answered. Another one may know of a newer
/// primary.
const SENTINELS_WITHIN: Duration = Duration::from_millis(100);

/// The servers of a `Locks`, and its settings. `Client::open(url)?.into()` is one server.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it is passed to `Locks::new`"]
pub struct Config {
    kind: Kind,
    pub(crate) command_timeout: Duration,
    /// `None` only logs.
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// `None` connects as the redis crate does.
    pub(crate) connector: Option<Connector>,
}

/// A connection to a server, before anything was sent.
pub type Stream = Pin<Box<dyn AsyncStream + Send + Sync>>;

/// A function that connects to a server.
pub type Connector =
    Arc<dyn Fn(&ConnectionAddr) -> BoxFuture<'static, io::Result<Stream>> + Send + Sync>;

#[derive(Clone)]
enum Kind {
    One(ConnectionInfo),
    Sentinel {
        name: String,
        sentinels: Vec<ConnectionInfo>,
        primary: ConnectionInfo,
    },
    Cluster(Vec<ConnectionInfo>),
}

impl From<Client> for Config {
    fn from(client: Client) -> Config {
        Config::of(Kind::One(client.get_connection_info().clone()))
    }
}

impl Config {
    fn of(kind: Kind) -> Config {
        Config {
            kind,
            command_timeout: Duration::from_secs(1),
            observer: None,
            connector: None,
        }
    }

    /// Returns the primary that the sentinels know by this name. `primary` has its user, password,
    /// database and TLS settings; its address isn't used.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = Client>,
        name: impl Into<String>,
        primary: Client,
    ) -> Config {
        Config::of(Kind::Sentinel {
            name: name.into(),
            sentinels: infos(sentinels),
            primary: primary.get_connection_info().clone(),
        })
    }

    /// Returns the cluster of these nodes. The other nodes are found, and have the same user,
    /// password and TLS settings.
    pub fn cluster(nodes: impl IntoIterator<Item = Client>) -> Config {
        Config::of(Kind::Cluster(infos(nodes)))
    }

    /// Sets the longest time of every call that doesn't wait for a lock, 1 s by default. It includes
    /// connecting, TLS, authentication and sending again.
    pub fn command_timeout(mut self, timeout: Duration) -> Result<Config, Error> {
        options::positive("command_timeout", timeout)?;
        self.command_timeout = timeout;
        Ok(self)
    }

    /// Sets an observer of all locks.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Config {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl Config {
    /// Sets how all connections are opened, for example with TLS settings that the redis crate
    /// doesn't have.
    pub fn connector(mut self, connector: Connector) -> Config {
        self.connector = Some(connector);
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the servers' settings, which have passwords.
        f.debug_struct("Config")
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

fn infos(clients: impl IntoIterator<Item = Client>) -> Vec<ConnectionInfo> {
    let infos = clients.into_iter();
    infos.map(|it| it.get_connection_info().clone()).collect()
}

/// The servers that have the keys, as last learned.
#[derive(Default)]
pub(crate) struct Map {
    /// The nodes of a cluster.
    slots: HashMap<Slot, Arc<ConnectionInfo>>,
    /// The server that has all other keys.
    rest: Option<Arc<ConnectionInfo>>,
    /// The configuration epoch of a primary of sentinels.
    epoch: u64,
}

impl Map {
    pub(crate) fn server(&self, slot: Slot) -> Option<&Arc<ConnectionInfo>> {
        self.slots.get(&slot).or(self.rest.as_ref())
    }

    pub(crate) fn has(&self, server: &ConnectionAddr) -> bool {
        let mut servers = self.slots.values().chain(&self.rest);
        servers.any(|it| it.addr() == server)
    }

    /// Returns the map after a MOVED error.
    pub(crate) fn moved(&self, slot: Slot, to: ConnectionInfo) -> Map {
        let mut slots = self.slots.clone();
        slots.insert(slot, Arc::new(to));
        Map {
            slots,
            rest: self.rest.clone(),
            epoch: self.epoch,
        }
    }
}

impl Config {
    pub(crate) fn has_sentinels(&self) -> bool {
        matches!(self.kind, Kind::Sentinel { .. })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// Returns the servers' name for people.
    pub(crate) fn name(&self) -> String {
        match &self.kind {
            Kind::One(server) => server.addr().to_string(),
            Kind::Sentinel { name, .. } => format!("{name} of the sentinels"),
            Kind::Cluster(_) => "of the key in the cluster".to_owned(),
        }
    }

    /// Returns where the keys are now. `last` is what was known, and `suspect` the server that
    /// didn't serve a key.
    pub(crate) async fn look_up(
        &self,
        last: Option<Arc<Map>>,
        suspect: Option<ConnectionAddr>,
    ) -> Result<Arc<Map>, Failure> {
        let map = match &self.kind {
            Kind::One(server) => Map {
                rest: Some(Arc::new(server.clone())),
                ..Map::default()
            },
            Kind::Sentinel {
                name,
                sentinels,
                primary,
            } => {
                let epoch = last.map_or(0, |last| last.epoch);
                self.newest_primary(name, sentinels, primary, epoch).await?
            }
            Kind::Cluster(seeds) => self.slots(seeds, last, suspect).await?,
        };
        Ok(Arc::new(map))
    }

    /// Asks all sentinels, and believes the one with the newest configuration. None older than the
    /// known one counts.
    async fn newest_primary(
        &self,
        name: &str,
        sentinels: &[ConnectionInfo],
        primary: &ConnectionInfo,
        known_epoch: u64,
    ) -> Result<Map, Failure> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(name);
        let asked = sentinels.iter().map(|it| self.ask_once(it, &command));
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut newest: Option<(u64, String)> = None;
        let mut failure = None;
        let mut end = Instant::now() + self.command_timeout;
        while let Ok(Some(answer)) = tokio::time::timeout_at(end, answers.next()).await {
            match answer.map(|answer| primary_of(answer, known_epoch)) {
                Ok(Some(found)) => {
                    newest = newest.max(Some(found));
                    end = end.min(Instant::now() + SENTINELS_WITHIN);
                }
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        let Some((epoch, address)) = newest else {
            let nobody = format!("no sentinel knows the primary {name}");
            return Err(failure.unwrap_or(Failure::Outage(Outage::new(nobody))));
        };
        Ok(Map {
            rest: Some(Arc::new(at(primary, &address))),
            epoch,
            ..Map::default()
        })
    }

    /// Asks the nodes of a cluster, the suspect only if no other one answers.
    async fn slots(
        &self,
        seeds: &[ConnectionInfo],
        last: Option<Arc<Map>>,
        suspect: Option<ConnectionAddr>,
    ) -> Result<Map, Failure> {
        let mut nodes: Vec<ConnectionInfo> = Vec::new();
        let known = last.iter().flat_map(|last| last.slots.values());
        for node in known.map(AsRef::as_ref).chain(seeds) {
            if !nodes.iter().any(|it| it.addr() == node.addr()) {
                nodes.push(node.clone());
            }
        }
        let is_suspect = |node: &ConnectionInfo| Some(node.addr()) == suspect.as_ref();
        let (suspects, others): (Vec<_>, Vec<_>) = nodes.into_iter().partition(is_suspect);
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failure = Failure::Outage(Outage::new("no node of the cluster is known".into()));
        for nodes in [others, suspects] {
            let asked = nodes.iter().map(|node| {
                let command = &command;
                async move { Ok(slots_of(self.ask_once(node, command).await?, node)) }
            });
            let mut answers: FuturesUnordered<_> = asked.collect();
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(slots) if !slots.is_empty() => {
                        return Ok(Map {
                            slots,
                            ..Map::default()
                        })
                    }
                    Ok(_) => {}
                    Err(error) => failure = error,
                }
            }
        }
        Err(failure)
    }

    /// Sends a command over a new connection.
    async fn ask_once(&self, server: &ConnectionInfo, command: &Cmd) -> Result<Value, Failure> {
        let within = self.command_timeout / 2;
        let end = Instant::now() + within;
        let opened = timeout(
            within,
            Connection::open(server.clone(), self.connector.clone()),
        )
        .await;
        let no_answer = Outage::no_answer(&server.addr().to_string(), within);
        let connection = opened.unwrap_or(Err(Failure::Outage(no_answer)))?;
        connection.ask(command, end, &[]).await
    }
}

/// Returns the epoch and address in the reply to SENTINEL MASTER, unless it is older than `epoch`.
fn primary_of(answer: Value, epoch: u64) -> Option<(u64, String)> {
    let fields: HashMap<String, String> = from_redis_value(answer).ok()?;
    let own_epoch = fields.get("config-epoch")?.parse().ok()?;
    let address = format!("{}:{}", fields.get("ip")?, fields.get("port")?);
    (own_epoch >= epoch).then_some((own_epoch, address))
}

/// Returns the nodes in the reply of `node` to CLUSTER SLOTS.
fn slots_of(answer: Value, node: &ConnectionInfo) -> HashMap<Slot, Arc<ConnectionInfo>> {
    let ranges: Vec<Vec<Value>> = from_redis_value(answer).unwrap_or_default();
    let mut slots = HashMap::new();
    for range in ranges {
        let [first, last, primary, ..] = range.as_slice() else {
            continue;
        };
        let (Value::Int(first), Value::Int(last), Value::Array(primary)) = (first, last, primary)
        else {
            continue;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else {
            continue;
        };
        let host: String = from_redis_value(host.clone()).unwrap_or_default();
        let primary = Arc::new(at(node, &format!("{host}:{port}")));
        let range = (*first..=*last).filter_map(|slot| Slot::new(u16::try_from(slot).ok()?));
        slots.extend(range.map(|slot| (slot, Arc::clone(&primary))));
    }
    slots
}

/// Returns the settings of a known server, with the address `host:port`. An empty host is the known
/// server's own.
pub(crate) fn at(known: &ConnectionInfo, address: &str) -> ConnectionInfo {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let mut addr = known.addr().clone();
    if let ConnectionAddr::Tcp(own, own_port)
    | ConnectionAddr::TcpTls {
        host: own,
        port: own_port,
        ..
    } = &mut addr
    {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if !host.is_empty() && host != "?" {
            *own = host.to_owned();
        }
        *own_port = port.parse().unwrap_or(*own_port);
    }
    known.clone().set_addr(addr)
}
