//! Connections, on which many requests are in flight at once, and the messages that they receive.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::cluster_routing::Slot;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{timeout_at, Instant};

use crate::error::{Failure, Outage, Redirect};
use crate::mutex::Mutex;
use crate::servers::{self, Config, Connector, Map};

/// The shortest time limit of one attempt, unless the command timeout is shorter.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The most unused connections to one server that stay open.
const MOST_IDLE: usize = 16;

/// The longest time for which an unused connection is used again without a check.
const FRESH: Duration = Duration::from_secs(2);

/// The time limit of that check. A good connection that fails it costs only a new one.
const CHECK: Duration = Duration::from_millis(250);

/// The most redirections of one command.
const REDIRECTIONS: usize = 5;

/// A connection. Clones share it, and it closes when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Connection {
    opened: Arc<Opened>,
    /// True if the commands are preceded by ASKING.
    asks: bool,
}

struct Opened {
    server: ConnectionInfo,
    redis: MultiplexedConnection,
    inbox: Arc<Inbox>,
    channels: tokio::sync::Mutex<HashSet<String>>,
}

/// The messages of one connection.
#[derive(Default)]
struct Inbox {
    /// True if the connection was lost, or its replies don't belong to the requests any more.
    is_closed: AtomicBool,
    last: AtomicU64,
    waiters: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// A request that waits for a message. Messages contain its number instead of the token, which
/// stays secret.
pub(crate) struct Waiter {
    pub(crate) number: u64,
    notify: Arc<Notify>,
    connection: Connection,
}

impl Waiter {
    /// Returns when asking again is worthwhile: a message came, or the connection was lost.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn is_on(&self, connection: &Connection) -> bool {
        self.connection.is_same(connection)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.connection
            .opened
            .inbox
            .waiters
            .lock()
            .remove(&self.number);
    }
}

impl Inbox {
    /// Receives a message. Runs before the replies behind it are passed on.
    fn receive(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message | PushKind::SMessage, [_, Value::BulkString(message)]) => {
                let number = std::str::from_utf8(message).ok();
                let number: Option<u64> = number.and_then(|it| it.parse().ok());
                let waiters = self.waiters.lock();
                let waiter = number.and_then(|number| waiters.get(&number));
                waiter.inspect(|it| it.notify_one());
            }
            // The slot of a shard channel has moved. The redis crate takes this for the reply to a
            // request, so that all later replies go to wrong requests.
            (PushKind::Disconnection | PushKind::SUnsubscribe, _) => {
                self.is_closed.store(true, Ordering::Release);
                self.waiters.lock().values().for_each(|it| it.notify_one());
            }
            _ => {}
        }
    }
}

impl Connection {
    /// Opens a connection, by `connector` if there is one.
    pub(crate) async fn open(
        server: ConnectionInfo,
        connector: Option<Connector>,
    ) -> Result<Connection, Failure> {
        let inbox: Arc<Inbox> = Arc::default();
        let receives = Arc::clone(&inbox);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                receives.receive(&push);
                Ok::<(), ()>(())
            });
        let settings = server.redis_settings().clone();
        // Messages need RESP3, which also returns the text of a refused authentication.
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let opened = async {
            let Some(connector) = connector else {
                let client = Client::open(server.clone().set_redis_settings(settings))?;
                return client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await;
            };
            let stream = connector(server.addr()).await?;
            let opened = MultiplexedConnection::new_with_config(&settings, stream, config).await;
            let (connection, driver) = opened?;
            tokio::spawn(driver);
            Ok(connection)
        };
        let name = server.addr().to_string();
        let redis = opened
            .await
            .map_err(|error| Failure::of(error, &name, &[]))?;
        let opened = Opened {
            server,
            redis,
            inbox,
            channels: tokio::sync::Mutex::default(),
        };
        Ok(Connection {
            opened: Arc::new(opened),
            asks: false,
        })
    }

    /// Returns true if the connection was lost, so that nothing more can be sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.opened.inbox.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.opened, &other.opened)
    }

    pub(crate) fn server(&self) -> &ConnectionAddr {
        self.opened.server.addr()
    }

    /// Sends a command, and returns its reply. `token` is removed from the texts of errors.
    pub(crate) async fn ask(
        &self,
        command: &Cmd,
        end: Instant,
        token: &[u8],
    ) -> Result<Value, Failure> {
        let began = Instant::now();
        let server = self.server().to_string();
        let Ok(answer) = timeout_at(end, self.send(command)).await else {
            let within = end.saturating_duration_since(began);
            let outage = Outage::no_answer(&server, within);
            return Err(Failure::Outage(outage.after_sending()));
        };
        let answer = match answer.and_then(Value::extract_error) {
            Ok(_) if self.is_closed() => Err((ErrorKind::Io, "the connection was lost").into()),
            answer => answer,
        };
        answer.map_err(|error| {
            let is_refused = error.code().is_some();
            match Failure::of(error, &server, token) {
                Failure::Outage(outage) if !is_refused => Failure::Outage(outage.after_sending()),
                failure => failure,
            }
        })
    }

    async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut redis = self.opened.redis.clone();
        if !self.asks {
            return redis.send_packed_command(command).await;
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").ignore().add_command(command.clone());
        let answers = redis.send_packed_commands(&pipeline, 1, 1).await?;
        Ok(answers.into_iter().next().unwrap_or(Value::Nil))
    }

    pub(crate) fn waiter(&self) -> Waiter {
        let inbox = &self.opened.inbox;
        let number = inbox.last.fetch_add(1, Ordering::Relaxed);
        let notify: Arc<Notify> = Arc::default();
        inbox.waiters.lock().insert(number, Arc::clone(&notify));
        Waiter {
            number,
            notify,
            connection: self.clone(),
        }
    }

    async fn subscribe(&self, verb: &str, channel: &str, end: Instant) -> Result<(), Failure> {
        let subscribes = async {
            let mut channels = self.opened.channels.lock().await;
            if !channels.contains(channel) {
                let mut command = redis::cmd(verb);
                self.ask(command.arg(channel), end, &[]).await?;
                channels.insert(channel.to_owned());
            }
            Ok(())
        };
        let name = self.server().to_string();
        let within = end.saturating_duration_since(Instant::now());
        let late = |_| Err(Failure::Outage(Outage::no_answer(&name, within)));
        timeout_at(end, subscribes).await.unwrap_or_else(late)
    }
}

/// A future that runs in a task of its own, so that it ends though one of its callers leaves.
type Spawned<T> = Shared<BoxFuture<'static, Result<T, Failure>>>;

/// The way to the server of a lock, as its last redirection left it.
pub(crate) struct Route {
    pub(crate) slot: Slot,
    /// The node to ask once, while the slot moves there.
    asked: Option<Redirect>,
    redirections: usize,
}

impl Route {
    pub(crate) fn new(slot: Slot) -> Route {
        Route {
            slot,
            asked: None,
            redirections: 0,
        }
    }
}

/// All connections of a `Locks`.
pub(crate) struct Connections {
    config: Config,
    handle: Handle,
    /// The name of this program's channels.
    channel: String,
    /// The channels of a cluster's slots.
    slot_channels: Mutex<HashMap<Slot, String>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    map: Option<Arc<Map>>,
    /// The look-up that replaces the map, while it runs.
    look_up: Option<Spawned<Arc<Map>>>,
    /// The server that made the look-up necessary.
    suspect: Option<ConnectionAddr>,
    /// The connection that all requests to a server share.
    shared: HashMap<String, Spawned<Connection>>,
    /// Unused connections for requests that need one for themselves, since when they are unused.
    idle: Vec<(Connection, Instant)>,
}

impl Connections {
    pub(crate) fn new(config: Config, handle: Handle) -> Connections {
        Connections {
            config,
            handle,
            channel: format!("redis-lock:{:032x}", rand::random::<u128>()),
            slot_channels: Mutex::default(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> String {
        self.config.name()
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.config.command_timeout
    }

    /// Returns the longest time of one attempt. A long command timeout leaves time for a second one,
    /// at another node.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        let whole = self.config.command_timeout;
        (whole / 3).max(whole.min(SHORTEST_ATTEMPT))
    }

    /// Sends a command over the shared connection, and follows redirections.
    pub(crate) async fn ask(
        &self,
        slot: Slot,
        command: &Cmd,
        end: Instant,
        token: &[u8],
    ) -> Result<Value, Failure> {
        let mut route = Route::new(slot);
        loop {
            let connection = self.shared(&route, end).await?;
            let answer = connection.ask(command, end, token).await;
            match answer {
                Err(Failure::Moved(_)) => self.note(&mut route, &connection, &answer)?,
                answer => {
                    self.note(&mut route, &connection, &answer)?;
                    return answer;
                }
            }
        }
    }

    /// Learns from a reply: follows redirections, and drops the connections of a server that doesn't
    /// serve a key. Fails if the redirections don't end, or if the reply is that of an older primary.
    pub(crate) fn note(
        &self,
        route: &mut Route,
        connection: &Connection,
        answer: &Result<Value, Failure>,
    ) -> Result<(), Failure> {
        match answer {
            Ok(_) if self.is_superseded(connection) => {
                let old = format!("{} isn't the primary any more", connection.server());
                return Err(Failure::Outage(Outage::new(old).after_sending()));
            }
            Ok(_) | Err(Failure::Final(_)) => {
                route.redirections = 0;
                route.asked = None;
            }
            Err(Failure::Outage(_)) => {
                route.asked = None;
                self.suspect(connection);
            }
            Err(Failure::Moved(to)) => {
                route.redirections += 1;
                if route.redirections > REDIRECTIONS {
                    self.suspect(connection);
                    let circle = "the cluster redirects in circles".to_owned();
                    return Err(Failure::Outage(Outage::new(circle)));
                }
                if to.once {
                    route.asked = Some(to.clone());
                    return Ok(());
                }
                route.asked = None;
                let mut state = self.state.lock();
                let node = servers::at(&connection.opened.server, &to.address);
                state.map = state
                    .map
                    .as_ref()
                    .map(|map| Arc::new(map.moved(route.slot, node)));
            }
        }
        Ok(())
    }

    /// Returns true if the sentinels have named another primary than this server, which may believe
    /// that it still is the primary.
    fn is_superseded(&self, connection: &Connection) -> bool {
        self.config.has_sentinels() && self.state.lock().lists(connection) == Some(false)
    }

    fn suspect(&self, connection: &Connection) {
        let mut state = self.state.lock();
        let is_current = |it: &Spawned<Connection>| match it.peek() {
            Some(Ok(open)) => open.is_same(connection),
            _ => false,
        };
        state.shared.retain(|_, it| !is_current(it));
        state
            .idle
            .retain(|(it, _)| it.server() != connection.server());
        state.suspect = Some(connection.server().clone());
        drop(state.start_look_up(self));
    }

    fn open(
        &self,
        server: ConnectionInfo,
    ) -> impl Future<Output = Result<Connection, Failure>> + Send + 'static {
        open_within(
            server,
            self.config.connector.clone(),
            self.attempt_timeout(),
        )
    }

    async fn map(&self) -> Result<Arc<Map>, Failure> {
        let look_up = {
            let mut state = self.state.lock();
            if let (Some(map), None) = (&state.map, &state.look_up) {
                return Ok(Arc::clone(map));
            }
            let runs = state.look_up.clone();
            runs.unwrap_or_else(|| state.start_look_up(self))
        };
        let found = look_up.await;
        let mut state = self.state.lock();
        let is_first = state.look_up.take_if(|it| it.peek().is_some()).is_some();
        match found {
            Ok(map) => {
                if is_first {
                    state.adopt(&map);
                }
                Ok(map)
            }
            // The servers known so far may serve all the same.
            Err(failure) => state.map.clone().ok_or(failure),
        }
    }

    async fn server(&self, route: &Route) -> Result<ConnectionInfo, Failure> {
        let map = self.map().await?;
        let server = map.server(route.slot).map(|it| ConnectionInfo::clone(it));
        let server = server.ok_or_else(|| {
            drop(self.state.lock().start_look_up(self));
            Failure::Outage(Outage::new("no node of the cluster has the key".into()))
        })?;
        Ok(match &route.asked {
            Some(asked) => servers::at(&server, &asked.address),
            None => server,
        })
    }

    /// Returns the shared connection to the server of a key.
    pub(crate) async fn shared(&self, route: &Route, end: Instant) -> Result<Connection, Failure> {
        let mut connection = self.in_time(end, self.open_shared(route)).await?;
        connection.asks = route.asked.is_some();
        Ok(connection)
    }

    async fn open_shared(&self, route: &Route) -> Result<Connection, Failure> {
        let server = self.server(route).await?;
        let name = server.addr().to_string();
        let connecting = {
            let mut state = self.state.lock();
            let is_usable = |it: &Spawned<Connection>| match it.peek() {
                Some(Ok(open)) => !open.is_closed(),
                Some(Err(_)) => false,
                None => true,
            };
            let known = state.shared.get(&name).filter(|it| is_usable(it)).cloned();
            known.unwrap_or_else(|| {
                let opens = self.open(server.clone());
                let connecting = spawned(&self.handle, opens);
                state.shared.insert(name.clone(), connecting.clone());
                connecting
            })
        };
        self.learn_from(&server, connecting.await)
    }

    /// Returns a connection that no other request uses, until `give_back`.
    pub(crate) async fn own(&self, route: &Route, end: Instant) -> Result<Connection, Failure> {
        let opens = async {
            let server = self.server(route).await?;
            match self.idle(&server).await {
                Some(connection) => Ok(connection),
                None => self.learn_from(&server, self.open(server.clone()).await),
            }
        };
        let mut connection = self.in_time(end, opens).await?;
        connection.asks = route.asked.is_some();
        Ok(connection)
    }

    /// Returns the unused connection to a server that was used last, unless it died silently.
    async fn idle(&self, server: &ConnectionInfo) -> Option<Connection> {
        let (connection, since) = {
            let mut state = self.state.lock();
            state.idle.retain(|(it, _)| !it.is_closed());
            let mut idle = state.idle.iter();
            let at = idle.rposition(|(it, _)| it.server() == server.addr())?;
            state.idle.remove(at)
        };
        if since.elapsed() < FRESH {
            return Some(connection);
        }
        let soon = Instant::now() + CHECK;
        let checked = connection.ask(&redis::cmd("PING"), soon, &[]).await;
        if !matches!(checked, Err(Failure::Outage(_))) {
            return Some(connection);
        }
        // The others are older.
        let mut state = self.state.lock();
        state.idle.retain(|(it, _)| it.server() != server.addr());
        None
    }

    pub(crate) fn give_back(&self, connection: Connection) {
        let mut state = self.state.lock();
        let idle = state.idle.iter();
        let idle = idle.filter(|(it, _)| it.server() == connection.server());
        let count = idle.count();
        let is_usable = state.lists(&connection) == Some(true) && !connection.is_closed();
        if is_usable && count < MOST_IDLE {
            state.idle.push((connection, Instant::now()));
        }
    }

    /// Looks up the servers anew if one of them made no connection.
    fn learn_from(
        &self,
        server: &ConnectionInfo,
        opened: Result<Connection, Failure>,
    ) -> Result<Connection, Failure> {
        if let Err(Failure::Outage(_)) = &opened {
            let mut state = self.state.lock();
            state.suspect = Some(server.addr().clone());
            drop(state.start_look_up(self));
        }
        opened
    }

    async fn in_time<T>(
        &self,
        end: Instant,
        does: impl std::future::Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        timeout_at(end, does).await.unwrap_or_else(|_| {
            let within = end.saturating_duration_since(began);
            let server = self.config.name();
            Err(Failure::Outage(Outage::no_answer(&server, within)))
        })
    }

    /// Returns the channel for waiters at a connection, which is subscribed first.
    pub(crate) async fn channel(
        &self,
        connection: &Connection,
        route: &Route,
        key: &[u8],
        end: Instant,
    ) -> Result<String, Failure> {
        let (verb, channel) = match self.config.is_cluster() {
            true => ("SSUBSCRIBE", self.channel_in(route.slot, key)),
            false => ("SUBSCRIBE", self.channel.clone()),
        };
        connection.subscribe(verb, &channel, end).await?;
        Ok(channel)
    }

    /// Returns the channel for the keys of a slot, which is named after the first of them. So a
    /// connection has no more subscriptions than a cluster has slots.
    fn channel_in(&self, slot: Slot, key: &[u8]) -> String {
        let mut channels = self.slot_channels.lock();
        let named = || channel_in(slot, key, &self.channel);
        channels.entry(slot).or_insert_with(named).clone()
    }
}

impl State {
    /// Returns true if the map has the server of a connection. `None` before the first look-up.
    fn lists(&self, connection: &Connection) -> Option<bool> {
        let map = self.map.as_ref()?;
        Some(map.has(connection.server()))
    }

    /// Starts to look up the servers, unless that runs already. The map stays until it ends.
    fn start_look_up(&mut self, connections: &Connections) -> Spawned<Arc<Map>> {
        // Polled, because one that has ended unobserved is older than what makes this one necessary.
        let runs = |it: &&Spawned<_>| Spawned::clone(it).now_or_never().is_none();
        if let Some(runs) = self.look_up.as_ref().filter(runs) {
            return runs.clone();
        }
        let (config, last) = (connections.config.clone(), self.map.clone());
        let suspect = self.suspect.clone();
        let looks = async move { config.look_up(last, suspect).await };
        self.look_up
            .insert(spawned(&connections.handle, looks))
            .clone()
    }

    /// Uses a new map. Connections to servers that are not in it are not used any more.
    fn adopt(&mut self, map: &Arc<Map>) {
        self.map = Some(Arc::clone(map));
        self.idle.retain(|(it, _)| map.has(it.server()));
        let is_used = |it: &Spawned<Connection>| match it.peek() {
            Some(Ok(open)) => map.has(open.server()),
            _ => false,
        };
        self.shared.retain(|_, it| is_used(it));
    }
}

fn spawned<T: Clone + Send + Sync + 'static>(
    handle: &Handle,
    does: impl std::future::Future<Output = Result<T, Failure>> + Send + 'static,
) -> Spawned<T> {
    let task = handle.spawn(does);
    let ended = |_| Err(Failure::Outage(Outage::new("the runtime has ended".into())));
    task.map(move |done| done.unwrap_or_else(ended))
        .boxed()
        .shared()
}

async fn open_within(
    server: ConnectionInfo,
    connector: Option<Connector>,
    within: Duration,
) -> Result<Connection, Failure> {
    let name = server.addr().to_string();
    let late = |_| Err(Failure::Outage(Outage::no_answer(&name, within)));
    let opened = tokio::time::timeout(within, Connection::open(server, connector)).await;
    opened.unwrap_or_else(late)
}

/// Returns a channel name in this slot. Its hash tag is the key's or, if that one is in another
/// slot, a number.
fn channel_in(slot: Slot, key: &[u8], name: &str) -> String {
    let key = String::from_utf8_lossy(key);
    let tagged = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tagged
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(&key);
    let tags = iter::once(tag.to_owned()).chain((0..u32::MAX).map(|number| number.to_string()));
    let mut channels = tags.map(|tag| format!("{name}{{{tag}}}"));
    let found = channels.find(|channel| Slot::for_key(channel) == slot);
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_in_the_slot_of_its_key() {
        let keys = [
            "k", "{t}k", "a{}b", "}", "{", "a}b", "{}", "a{b}c}d", "\u{0}",
        ];
        let keys = keys
            .iter()
            .map(|key| key.as_bytes())
            .chain([&b"\xff\xfe"[..], b""]);
        for key in keys {
            let slot = Slot::for_key(key);
            let channel = channel_in(slot, key, "redis-lock:1");
            assert_eq!(Slot::for_key(&channel), slot, "{key:?}: {channel}");
        }
    }

    #[tokio::test]
    async fn a_look_up_that_ended_unobserved_does_not_stand_for_a_new_one() {
        let client = Client::open("redis://127.0.0.1:1/").expect("a client");
        let connections = Connections::new(Config::cluster([client]), Handle::current());
        let tasks = || Handle::current().metrics().num_alive_tasks();
        for _ in 0..2 {
            drop(connections.state.lock().start_look_up(&connections));
            assert_eq!(tasks(), 1);
            while tasks() > 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn keys_in_one_slot_have_one_channel() {
        let client = Client::open("redis://127.0.0.1:1/").expect("a client");
        let config = Config::cluster([client]);
        let connections = Connections::new(config, Handle::current());
        let channels = |tag: u32| {
            let key = format!("{{{tag}}}k");
            let slot = Slot::for_key(&key);
            (slot, connections.channel_in(slot, key.as_bytes()))
        };
        let distinct: HashSet<_> = (0..20_000).map(channels).collect();
        let slots: HashSet<_> = distinct.iter().map(|(slot, _)| slot).collect();
        assert_eq!(distinct.len(), slots.len());
    }
}
