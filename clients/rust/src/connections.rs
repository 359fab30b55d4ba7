//! The connections of a `Locks`: one that all calls share, and some for commands that block.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Shared;
use futures_util::FutureExt;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at, Instant};

use crate::background::Background;
use crate::error::Failure;
use crate::mutex::Mutex;
use crate::servers::{Servers, Wire};
use crate::tie::Tie;

/// The most unused connections that stay open.
const MOST_IDLE: usize = 16;

/// The attempts whose time one connection may take to open, because a dead sentinel or a dead node
/// costs an attempt each.
const ATTEMPTS_TO_OPEN: u32 = 5;

/// An open connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Link {
    id: u64,
    opened_at: Instant,
    wire: Wire,
}

impl Link {
    pub(crate) fn is_same(&self, other: &Link) -> bool {
        self.id == other.id
    }

    pub(crate) async fn send(&mut self, key: &[u8], command: &Cmd) -> RedisResult<Value> {
        self.wire.send(key, command).await
    }
}

/// The connection on which a command is sent.
pub(crate) enum Lane<'a> {
    /// One for all commands that don't block, so a release never waits behind a wait.
    Shared,
    /// One of an acquire, which returns it at its end.
    Own(&'a mut Option<Link>),
    /// One of a session.
    Tied(&'a Tie),
}

type Opened = Result<Link, Failure>;

/// A connection, or the attempt to open it. It goes on if a caller leaves.
type Opening = Shared<oneshot::Receiver<Opened>>;

pub(crate) struct Connections {
    pub(crate) servers: Servers,
    /// The longest time of one command.
    pub(crate) attempt: Duration,
    name: String,
    last_id: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shared: Option<Opening>,
    idle: Vec<Link>,
}

impl Connections {
    pub(crate) fn new(servers: Servers, attempt: Duration) -> Arc<Connections> {
        Arc::new(Connections {
            name: servers.name(),
            servers,
            attempt,
            last_id: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes the connection for the next command.
    pub(crate) async fn take(
        self: &Arc<Connections>,
        lane: &mut Lane<'_>,
        background: &Background,
        until: Instant,
    ) -> Opened {
        let ready = match lane {
            Lane::Shared => return self.shared(background, until).await,
            Lane::Own(link) => link.take(),
            Lane::Tied(tie) => tie.latest(),
        };
        let idle = || self.state.lock().idle.pop();
        match ready.or_else(idle) {
            Some(link) => Ok(link),
            None => self.opened(self.open(background), until).await,
        }
    }

    async fn shared(self: &Arc<Connections>, background: &Background, until: Instant) -> Opened {
        let opening = {
            let mut state = self.state.lock();
            let opening = state.shared.get_or_insert_with(|| self.open(background));
            opening.clone()
        };
        let opened = self.opened(opening.clone(), until).await;
        if opened.is_err() && opening.peek().is_some() {
            let mut state = self.state.lock();
            state.shared.take_if(|it| it.ptr_eq(&opening));
        }
        opened
    }

    async fn opened(&self, opening: Opening, until: Instant) -> Opened {
        let began = Instant::now();
        match timeout_at(until, opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(_)) => Err(Failure::outage(format!("no connection to {}", self.name))),
            Err(_) => Err(Failure::late(&self.name, until - began)),
        }
    }

    /// Opens a connection, whatever time that takes.
    fn open(self: &Arc<Connections>, background: &Background) -> Opening {
        let (send, receive) = oneshot::channel();
        let (connections, keeps) = (Arc::clone(self), background.clone());
        background.start(async move {
            let attempt = connections.attempt;
            let open = connections.servers.open(attempt);
            let opened = match timeout(attempt * ATTEMPTS_TO_OPEN, open).await {
                Ok(Ok(wire)) => Ok(Link {
                    id: connections.last_id.fetch_add(1, Ordering::Relaxed),
                    opened_at: Instant::now(),
                    wire,
                }),
                Ok(Err(error)) => Err(Failure::of(error, &connections.name, &[])),
                Err(_) => Err(Failure::late(&connections.name, attempt)),
            };
            // The caller has left.
            if let Err(Ok(link)) = send.send(opened) {
                connections.put_back(link, &keeps);
            }
        });
        receive.shared()
    }

    /// Keeps a connection for another caller, unless there are many.
    pub(crate) fn put_back(&self, link: Link, background: &Background) {
        let mut state = self.state.lock();
        if state.idle.len() < MOST_IDLE {
            state.idle.push(link);
            return;
        }
        drop(state);
        // Its runtime closes it.
        background.start(async move {
            drop(link);
            tokio::task::yield_now().await;
        });
    }

    /// Drops all connections that were open when a command was sent that failed. Their server may
    /// have died silently.
    pub(crate) fn forget(&self, sent_at: Instant) {
        let mut state = self.state.lock();
        state.idle.retain(|link| link.opened_at > sent_at);
        let is_older = |it: &mut Opening| match it.peek() {
            Some(Ok(Ok(link))) => link.opened_at <= sent_at,
            _ => false,
        };
        state.shared.take_if(is_older);
    }
}
