//! The servers: one, or all primaries of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value,
};
use redis_lock_client::Opener;

use crate::arguments::Server;
use crate::hot::{self, HotKeys};
use crate::lock::Lock;
use crate::output;
use crate::streams::{self, Connector};
use crate::within::within;

const DEFAULT_PORT: u16 = 6379;

const URL_VARIABLE: &str = "REDIS_LOCK_URL";

/// The same variable as for redis-cli.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

/// The number of keys that SCAN visits per reply.
pub const PAGE: u32 = 1_000;

/// The number of locks that are requested at once.
const BATCH: usize = 500;

/// The most attempts of a command that nodes redirect.
const REDIRECTIONS: u32 = 5;

/// Locks by their keys.
pub type Locks = BTreeMap<Vec<u8>, Lock>;

/// Connections to the server, or to all primaries of a cluster.
pub struct Nodes {
    server: Server,
    nodes: Vec<Node>,
    /// The addresses of the primaries of a cluster.
    pub primaries: Vec<ConnectionAddr>,
}

/// A connection to one server.
pub struct Node {
    server: Server,
    database: i64,
    address: ConnectionAddr,
    /// The time limit of the last request.
    limit: Duration,
    /// The connection, or `None` if the node didn't reply in time: its late reply would be taken for
    /// the next one.
    connection: Option<MultiplexedConnection>,
}

/// The place of SCAN in the keyspace.
pub struct Cursor(Vec<u8>);

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor(b"0".to_vec())
    }
}

impl Cursor {
    /// Returns true at the start of the keyspace, which is also its end.
    pub fn is_start(&self) -> bool {
        self.0 == b"0"
    }
}

/// The locks among some keys, and the place of the next ones.
pub struct Page {
    pub next: Cursor,
    pub keys: Vec<Vec<u8>>,
}

impl Nodes {
    /// Connects to the server, and in a cluster to its other primaries.
    pub fn connect(server: &Server) -> Result<Nodes> {
        let mut first = Node::connect(server, None)?;
        first.require_module()?;
        let primaries = first.primaries();
        let others = primaries.iter().cloned();
        let nodes: Result<Vec<Node>> = match primaries.is_empty() {
            true => Ok(vec![first]),
            false => others.map(|it| Node::connect(server, Some(it))).collect(),
        };
        Ok(Nodes {
            server: server.clone(),
            nodes: nodes?,
            primaries,
        })
    }

    /// Returns the servers' name for people.
    pub fn name(&self) -> String {
        match self.nodes.as_slice() {
            [node] => node.address.to_string(),
            nodes => format!("{} and {} more", nodes[0].address, nodes.len() - 1),
        }
    }

    /// Returns all locks whose keys match a pattern.
    pub fn locks(&mut self, pattern: &[u8]) -> Result<Locks> {
        let mut locks = Locks::new();
        for node in &mut self.nodes {
            let mut keys = BTreeSet::new();
            let mut cursor = Cursor::default();
            loop {
                let page = node.page(&cursor, pattern)?;
                keys.extend(page.keys);
                cursor = page.next;
                if cursor.is_start() {
                    break;
                }
            }
            let keys: Vec<Vec<u8>> = keys.into_iter().collect();
            locks.extend(node.infos(&keys)?);
        }
        Ok(locks)
    }

    /// Returns the servers one by one.
    pub fn each(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut()
    }

    /// Returns a lock with up to `waiters` waiters in its queue, or `None` if it has no holder and
    /// no waiter.
    pub fn lock(&mut self, key: &[u8], waiters: u64) -> Result<Option<Lock>> {
        let mut command = redis::cmd("LOCK.INFO");
        command.arg(key).arg("WAITERS").arg(waiters);
        Lock::of(self.ask(&command)?)
    }

    /// Returns the hottest keys of the database, or `None` if a server has no LOCK.HOT, or this user
    /// may not call it.
    pub fn hottest(&mut self) -> Result<Option<HotKeys>> {
        let mut hottest = HotKeys::new();
        for node in &mut self.nodes {
            match node.hottest()? {
                Some(keys) => hottest.extend(keys),
                None => return Ok(None),
            }
        }
        Ok(Some(hottest))
    }

    /// Ends a grant. Returns false if the token no longer holds the lock.
    pub fn release(&mut self, key: &[u8], token: &[u8]) -> Result<bool> {
        let mut command = redis::cmd("LOCK.RELEASE");
        command.arg(key).arg(token).arg("ALL");
        Ok(self.ask(&command)? == Value::Int(1))
    }

    /// Sends a command to the node that has its key.
    fn ask(&mut self, command: &Cmd) -> Result<Value> {
        let mut index = 0;
        for _ in 0..REDIRECTIONS {
            let node = &mut self.nodes[index];
            let error = match node.query(command) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some((place, _)) = error.redirect_node() else {
                return Err(node.failed(&error));
            };
            let address = address_like(&node.address, place)?;
            index = self.index_of(address)?;
            if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                // The slot is on its way to this node, which serves it after ASKING only.
                let node = &mut self.nodes[index];
                let asked = node.query::<Value>(&redis::cmd("ASKING"));
                asked.map_err(|error| node.failed(&error))?;
            }
        }
        bail!("sent from node to node {REDIRECTIONS} times");
    }

    fn index_of(&mut self, address: ConnectionAddr) -> Result<usize> {
        let known = self.nodes.iter().position(|node| node.address == address);
        if let Some(index) = known {
            return Ok(index);
        }
        self.nodes.push(Node::connect(&self.server, Some(address))?);
        Ok(self.nodes.len() - 1)
    }
}

impl Node {
    fn connect(server: &Server, address: Option<ConnectionAddr>) -> Result<Node> {
        let mut info = connection_info(server)?;
        if let Some(address) = address {
            info = info.set_addr(address);
        }
        let (address, database) = (info.addr().clone(), info.redis_settings().db());
        let connector = streams::connector(&address, &server.tls)?;
        let limit = server.limit();
        match within(limit, open(&connector, &info)).unwrap_or_else(|| Err(silence())) {
            Ok(connection) => Ok(Node {
                server: server.clone(),
                database,
                address,
                limit,
                connection: Some(connection),
            }),
            Err(error) if error.is_timeout() => Err(no_answer(&address, limit)),
            Err(error) => Err(anyhow!(
                "no connection to {address}: {}",
                message_of(&error)
            )),
        }
    }

    /// Sends requests. Fails if the node takes longer than it may.
    fn talk<T>(
        &mut self,
        talk: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let connection = self.connection.as_mut().ok_or_else(silence)?;
        self.limit = self.server.limit();
        let talked = within(self.limit, talk(connection));
        talked.unwrap_or_else(|| {
            self.connection = None;
            Err(silence())
        })
    }

    fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.talk(async |connection| command.query_async(connection).await)
    }

    /// Fails if the server has no LOCK commands. Without this check, it would look like a server
    /// without locks.
    fn require_module(&mut self) -> Result<()> {
        match self.query::<Value>(&redis::cmd("LOCK.HELP")) {
            // A user without the right to LOCK.HELP can have the right to the other commands.
            Err(error) if error.code() == Some("NOPERM") => Ok(()),
            Err(error) => Err(self.failed(&error)),
            Ok(_) => Ok(()),
        }
    }

    /// Returns the primaries of the node's cluster, or an empty list without a cluster.
    fn primaries(&mut self) -> Vec<ConnectionAddr> {
        let address = self.address.clone();
        let slots = self.talk(async |connection| slots_of(connection, &address).await);
        let mut primaries: Vec<ConnectionAddr> = Vec::new();
        for (_, primary) in slots.unwrap_or_default() {
            if !primaries.contains(&primary) {
                primaries.push(primary);
            }
        }
        primaries
    }

    /// Returns the locks among the next keys whose names match a pattern.
    pub fn page(&mut self, cursor: &Cursor, pattern: &[u8]) -> Result<Page> {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor.0).arg("MATCH").arg(pattern);
        command.arg("COUNT").arg(PAGE).arg("TYPE").arg("redislock");
        let (next, keys) = self.query(&command).map_err(|error| self.failed(&error))?;
        Ok(Page {
            next: Cursor(next),
            keys,
        })
    }

    /// Returns the locks at these keys. Omits a lock that has ended, a key that has moved to another
    /// node, and a key that now has another type.
    pub fn infos(&mut self, keys: &[Vec<u8>]) -> Result<Locks> {
        let mut locks = Locks::new();
        for keys in keys.chunks(BATCH) {
            locks.extend(self.batch(keys)?);
        }
        Ok(locks)
    }

    /// Returns the locks at these keys, with all requests in one write.
    fn batch(&mut self, keys: &[Vec<u8>]) -> Result<Locks> {
        let mut requests = redis::pipe();
        for key in keys {
            requests.cmd("LOCK.INFO").arg(key).arg("WAITERS").arg(1);
        }
        let count = keys.len();
        let answers = self
            .talk(async |connection| connection.send_packed_commands(&requests, 0, count).await);
        let mut locks = Locks::new();
        for (key, answer) in keys
            .iter()
            .zip(answers.map_err(|error| self.failed(&error))?)
        {
            match answer.extract_error() {
                Ok(answer) => locks.extend(Lock::of(answer)?.map(|lock| (key.clone(), lock))),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(locks)
    }

    /// Returns the hottest keys of the database, or `None` if the server has no LOCK.HOT, or this
    /// user may not call it.
    pub fn hottest(&mut self) -> Result<Option<HotKeys>> {
        let mut command = redis::cmd("LOCK.HOT");
        command.arg("COUNT").arg(hot::MOST_KEYS);
        match self.query(&command) {
            Ok(answer) => hot::of(answer, self.database).map(Some),
            Err(error) if is_unknown_command(&error) => Ok(None),
            Err(error) if error.code() == Some("NOPERM") => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &RedisError) -> anyhow::Error {
        match error.is_timeout() {
            true => no_answer(&self.address, self.limit),
            false => anyhow!("{}: {}", self.address, message_of(error)),
        }
    }
}

/// Returns the error of a node that doesn't reply in time.
fn silence() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Returns a function that connects to the server, or in a cluster to the primary of a key. `nodes`
/// are the known primaries.
pub fn opener(server: &Server, key: Vec<u8>, nodes: Vec<ConnectionAddr>) -> Result<Opener> {
    let info = connection_info(server)?;
    let connector = streams::connector(info.addr(), &server.tls)?;
    let (known, key): (_, Arc<[u8]>) = (Arc::new(Mutex::new(nodes)), key.into());
    Ok(Arc::new(move || {
        let (info, connector) = (info.clone(), Arc::clone(&connector));
        let (known, key) = (Arc::clone(&known), Arc::clone(&key));
        Box::pin(async move { open_at_key(&connector, info, &key, &known).await })
    }))
}

/// Connects to the primary of a key in a cluster of the known nodes, or to the server if there are
/// none.
async fn open_at_key(
    connector: &Connector,
    info: ConnectionInfo,
    key: &[u8],
    known: &Mutex<Vec<ConnectionAddr>>,
) -> RedisResult<MultiplexedConnection> {
    let Some(asked) = next_of(known) else {
        return open(connector, &info).await;
    };
    let mut connection = open(connector, &info.clone().set_addr(asked.clone())).await?;
    let slots = slots_of(&mut connection, &asked).await?;
    let slot = Slot::for_key(key);
    let has_slot =
        |range: &RangeInclusive<u16>| range.clone().any(|it| Slot::new(it) == Some(slot));
    match slots.iter().find(|(range, _)| has_slot(range)) {
        Some((_, primary)) if *primary != asked => {
            open(connector, &info.set_addr(primary.clone())).await
        }
        _ => Ok(connection),
    }
}

/// Returns the node to ask. If it is gone, the next call returns another one.
fn next_of(known: &Mutex<Vec<ConnectionAddr>>) -> Option<ConnectionAddr> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let next = known.first().cloned();
    next.inspect(|_| known.rotate_left(1))
}

/// Returns the ranges of slots of a cluster and their primaries, as the node at this address knows
/// them.
async fn slots_of(
    connection: &mut MultiplexedConnection,
    known: &ConnectionAddr,
) -> RedisResult<Vec<(RangeInclusive<u16>, ConnectionAddr)>> {
    let mut command = redis::cmd("CLUSTER");
    let ranges: Vec<Vec<Value>> = command.arg("SLOTS").query_async(connection).await?;
    let primary_of = |range: Vec<Value>| {
        let mut words = range.into_iter();
        let first: u16 = redis::from_redis_value(words.next()?).ok()?;
        let last: u16 = redis::from_redis_value(words.next()?).ok()?;
        let node: Vec<Value> = redis::from_redis_value(words.next()?).ok()?;
        let mut words = node.into_iter();
        // The host can be empty; then it is the asked node's host.
        let host: Option<String> = redis::from_redis_value(words.next()?).ok()?;
        let port: u16 = redis::from_redis_value(words.next()?).ok()?;
        let address = address_like(known, &format!("{}:{port}", host.unwrap_or_default()));
        Some((first..=last, address.ok()?))
    };
    Ok(ranges.into_iter().filter_map(primary_of).collect())
}

async fn open(connector: &Connector, info: &ConnectionInfo) -> RedisResult<MultiplexedConnection> {
    let stream = connector(info.addr()).await?;
    // Each request has a limit anyway.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let settings = info.redis_settings();
    let opened = MultiplexedConnection::new_with_config(settings, stream, config).await;
    let (connection, driver) = opened?;
    tokio::spawn(driver);
    Ok(connection)
}

fn no_answer(address: &ConnectionAddr, limit: Duration) -> anyhow::Error {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    // The rest of a limit is a little less than the limit.
    let limit = output::span(limit_ms.next_multiple_of(10));
    anyhow!("no answer from the server {address} within {limit}")
}

/// Returns the message of the server or the system, without the library's own words.
///
/// The server quotes the words of an unknown command. The token can be among them, so that message
/// isn't used.
pub fn message_of(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        _ if is_unknown_command(error) => {
            "has no LOCK commands: it hasn't loaded the redis-lock module".to_owned()
        }
        (Some("LOADING"), _) => "the server is loading its data".to_owned(),
        (Some("READONLY"), _) => "the server is a replica, which grants no locks".to_owned(),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ if error.kind() == ErrorKind::AuthenticationFailed => "wrong user or password".to_owned(),
        _ if error.is_connection_refusal() => "connection refused".to_owned(),
        // A reply that ends in its middle.
        _ if error.is_connection_dropped() || error.kind() == ErrorKind::Parse => {
            "the connection was closed".to_owned()
        }
        _ => {
            let text = error.to_string();
            // The number of a system error tells people nothing.
            text.split(" (os error").next().unwrap_or(&text).to_owned()
        }
    }
}

fn is_unknown_command(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.starts_with("unknown command 'lock.")
}

fn is_gone(error: &RedisError) -> bool {
    let kinds = [ServerErrorKind::Moved, ServerErrorKind::Ask];
    kinds.iter().any(|kind| error.kind() == (*kind).into()) || error.code() == Some("WRONGTYPE")
}

/// Returns the address `host:port`, with the protocol of the known address. An empty host means the
/// same host.
fn address_like(known: &ConnectionAddr, place: &str) -> Result<ConnectionAddr> {
    let (host, port) = place.rsplit_once(':').context("a node without a port")?;
    let port = port
        .parse()
        .with_context(|| format!("{place:?} is no address"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = Some(host.to_owned()).filter(|host| !host.is_empty());
    let mut address = known.clone();
    match &mut address {
        ConnectionAddr::Tcp(own, own_port)
        | ConnectionAddr::TcpTls {
            host: own,
            port: own_port,
            ..
        } => {
            *own_port = port;
            *own = host.unwrap_or_else(|| own.clone());
        }
        _ => address = ConnectionAddr::Tcp(host.unwrap_or_else(default_host), port),
    }
    Ok(address)
}

/// Returns the address and settings of the server that the command line or the environment names.
pub fn connection_info(server: &Server) -> Result<ConnectionInfo> {
    let info = match url(server) {
        Some(url) => url
            .as_str()
            .into_connection_info()
            .context("the URL of the server")?,
        None => address(server).into_connection_info()?,
    };
    let info = with_tls(server, info);
    let mut settings = info.redis_settings().clone();
    if let Some(database) = server.database {
        settings = settings.set_db(database);
    }
    if let Some(user) = &server.user {
        settings = settings.set_username(user);
    }
    let own = settings.password().map(str::to_owned);
    let password = server.password.clone().or(own);
    if let Some(password) = password.or_else(|| env::var(PASSWORD_VARIABLE).ok()) {
        settings = settings.set_password(password);
    }
    Ok(info.set_redis_settings(settings))
}

/// Returns the URL of the server, if any. A host, port or socket option overrides the environment's
/// URL.
fn url(server: &Server) -> Option<String> {
    let is_named = server.host.is_some() || server.port.is_some() || server.socket.is_some();
    let of_environment = || env::var(URL_VARIABLE).ok().filter(|_| !is_named);
    server.url.clone().or_else(of_environment)
}

fn address(server: &Server) -> ConnectionAddr {
    match &server.socket {
        Some(path) => ConnectionAddr::Unix(path.clone()),
        None => {
            let host = server.host.clone().unwrap_or_else(default_host);
            ConnectionAddr::Tcp(host, server.port.unwrap_or(DEFAULT_PORT))
        }
    }
}

fn default_host() -> String {
    "127.0.0.1".to_owned()
}

fn with_tls(server: &Server, info: ConnectionInfo) -> ConnectionInfo {
    let (host, port, is_insecure) = match info.addr().clone() {
        ConnectionAddr::Tcp(host, port) if server.tls.tls => (host, port, false),
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            ..
        } => (host, port, insecure),
        _ => return info,
    };
    info.set_addr(ConnectionAddr::TcpTls {
        host,
        port,
        insecure: is_insecure || server.tls.insecure,
        tls_params: None,
    })
}
