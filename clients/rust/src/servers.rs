//! The program's client, and connections that it opens.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::Error;
use crate::observer::{Log, Observer};
use crate::options;

/// The usual time in which a connection opens, with all messages that this takes.
const TIME_TO_CONNECT: Duration = Duration::from_secs(1);

/// The longest time for which a command to a node of a cluster blocks.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The client of a `Locks`, and its settings. `Client::open(url)?.into()` is one server; a
/// `ClusterClient` is a cluster, and a `SentinelClient` the primary that its sentinels know.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it is passed to `Locks::new`"]
pub struct Config {
    pub(crate) servers: Servers,
    pub(crate) command_timeout: Duration,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Config {
    fn of(servers: Servers) -> Config {
        Config {
            servers,
            command_timeout: Duration::from_secs(1),
            observer: Arc::new(Log),
        }
    }

    /// Returns the server to which a function connects, for example with TLS settings that the redis
    /// crate doesn't have. `name` is the server's name in errors.
    pub fn opened_by(name: impl Into<String>, open: Opener) -> Config {
        let name = name.into();
        Config::of(Servers::Opened { name, open })
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
        self.observer = Arc::new(observer);
        self
    }
}

/// A function that opens connections.
pub type Opener =
    Arc<dyn Fn() -> BoxFuture<'static, RedisResult<MultiplexedConnection>> + Send + Sync>;

impl From<Client> for Config {
    fn from(client: Client) -> Config {
        Config::of(Servers::One(client))
    }
}

impl From<ClusterClient> for Config {
    fn from(client: ClusterClient) -> Config {
        Config::of(Servers::Cluster(Box::new(client)))
    }
}

impl From<SentinelClient> for Config {
    fn from(client: SentinelClient) -> Config {
        Config::of(Servers::Sentinel(Arc::new(Mutex::new(client))))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the clients' settings, which have passwords.
        f.debug_struct("Config")
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

/// The program's client.
#[derive(Clone)]
pub(crate) enum Servers {
    One(Client),
    Cluster(Box<ClusterClient>),
    /// One task at a time asks the sentinels.
    Sentinel(Arc<Mutex<SentinelClient>>),
    Opened {
        name: String,
        open: Opener,
    },
}

impl Servers {
    /// Opens a connection. `within` is the longest time of one command.
    pub(crate) async fn open(&self, within: Duration) -> RedisResult<Wire> {
        match self {
            Servers::One(client) => one(client, within).await,
            Servers::Opened { open, .. } => in_time(open(), within).await,
            Servers::Sentinel(sentinels) => {
                // The redis crate limits each of its steps.
                let client = sentinels.lock().await.async_get_client().await?;
                one(&client, within).await
            }
            Servers::Cluster(client) => {
                // A node that is gone must not take the time of the others.
                let config = ClusterConfig::new()
                    .set_connection_timeout(within.min(TIME_TO_CONNECT))
                    .set_response_timeout(2 * within + LONGEST_WAIT);
                let opened = client.get_async_connection_with_config(config).await?;
                Ok(Wire::Cluster(opened))
            }
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Servers::Cluster(_))
    }

    /// Returns the servers' name for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Servers::One(client) => client.get_connection_info().addr().to_string(),
            Servers::Sentinel(_) => "the primary of the sentinels".to_owned(),
            Servers::Cluster(_) => "the cluster".to_owned(),
            Servers::Opened { name, .. } => name.clone(),
        }
    }
}

async fn one(client: &Client, within: Duration) -> RedisResult<Wire> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    in_time(
        client.get_multiplexed_async_connection_with_config(&config),
        within,
    )
    .await
}

/// Connects to one server, which may be slower than a command may.
async fn in_time(
    opens: impl Future<Output = RedisResult<MultiplexedConnection>>,
    within: Duration,
) -> RedisResult<Wire> {
    // A connection to a server that stood still may lead to one that is no primary any more.
    let opened = timeout(within.max(TIME_TO_CONNECT), opens).await;
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    opened.unwrap_or_else(late).map(Wire::One)
}

/// A connection of the redis crate. Clones share it, and it closes when the last one is dropped.
#[derive(Clone)]
pub(crate) enum Wire {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Wire {
    /// Sends a command to the server of a key, and returns its reply.
    pub(crate) async fn send(&mut self, key: &[u8], command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Wire::One(connection) => connection.send_packed_command(command).await?,
            Wire::Cluster(connection) => {
                let route = Route::with_slot(Slot::for_key(key), SlotAddr::Master);
                let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                connection.route_command(command.clone(), node).await?
            }
        };
        reply.extract_error()
    }
}
