//! The program's client, and connections that it opens.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, TryFutureExt};
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

/// The attempts whose time one connection may take to open, because a dead sentinel or a dead node
/// costs an attempt each.
const ATTEMPTS_TO_OPEN: u32 = 5;

/// The longest time for which a command to a node of a cluster blocks.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The client of a `Locks`, and its settings. `Client::open(url)?.into()` is one server; a
/// `ClusterClient` is a cluster, and a `SentinelClient` the primary that its sentinels know.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it is passed to `Locks::new`"]
pub struct Config {
    /// The servers' name for people.
    pub(crate) name: String,
    pub(crate) is_cluster: bool,
    /// Opens a connection. Its argument is the longest time of one command.
    connect: Arc<dyn Fn(Duration) -> BoxFuture<'static, RedisResult<Wire>> + Send + Sync>,
    pub(crate) command_timeout: Duration,
    pub(crate) observer: Arc<dyn Observer>,
}

/// A function that opens connections.
pub type Opener =
    Arc<dyn Fn() -> BoxFuture<'static, RedisResult<MultiplexedConnection>> + Send + Sync>;

impl Config {
    fn of<F>(name: String, open: impl Fn(Duration) -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = RedisResult<Wire>> + Send + 'static,
    {
        Config {
            name,
            is_cluster: false,
            connect: Arc::new(move |within| open(within).boxed()),
            command_timeout: Duration::from_secs(1),
            observer: Arc::new(Log),
        }
    }

    /// Returns the server to which a function connects, for example with TLS settings that the
    /// redis crate doesn't have. `name` is the server's name in errors.
    pub fn opened_by(name: impl Into<String>, open: Opener) -> Config {
        Config::of(name.into(), move |_| open().map_ok(Wire::One))
    }

    /// Sets the longest time of every call that doesn't wait for a lock, 1 s by default. It
    /// includes connecting, TLS, authentication and sending again.
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

    /// Opens a connection. `within` is the longest time of one command.
    pub(crate) async fn open(self, within: Duration) -> Result<Wire, Error> {
        let longest = (ATTEMPTS_TO_OPEN * within).max(TIME_TO_CONNECT);
        match timeout(longest, (self.connect)(within)).await {
            Ok(opened) => opened.map_err(|error| Error::of(error, &self.name, &[])),
            Err(_) => Err(Error::late(&self.name, longest)),
        }
    }
}

impl From<Client> for Config {
    fn from(client: Client) -> Config {
        let name = client.get_connection_info().addr().to_string();
        Config::of(name, move |within| connect(client.clone(), within))
    }
}

impl From<SentinelClient> for Config {
    fn from(client: SentinelClient) -> Config {
        // One task at a time asks the sentinels.
        let sentinels = Arc::new(Mutex::new(client));
        let name = "the primary of the sentinels".to_owned();
        Config::of(name, move |within| {
            let sentinels = Arc::clone(&sentinels);
            async move {
                let client = sentinels.lock().await.async_get_client().await?;
                connect(client, within).await
            }
        })
    }
}

impl From<ClusterClient> for Config {
    fn from(client: ClusterClient) -> Config {
        let mut config = Config::of("the cluster".to_owned(), move |within| {
            let client = client.clone();
            // A node that is gone must not take the time of the others.
            let config = ClusterConfig::new()
                .set_connection_timeout(within.min(TIME_TO_CONNECT))
                .set_response_timeout(2 * within + LONGEST_WAIT);
            async move {
                let opened = client.get_async_connection_with_config(config).await?;
                Ok(Wire::Cluster(opened))
            }
        });
        config.is_cluster = true;
        config
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

/// Connects to one server, which may be slower than a command may.
async fn connect(client: Client, within: Duration) -> RedisResult<Wire> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(within.max(TIME_TO_CONNECT)))
        .set_response_timeout(None);
    let opened = client.get_multiplexed_async_connection_with_config(&config);
    opened.await.map(Wire::One)
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
