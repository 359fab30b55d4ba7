//! The connections of a `Locks`: one that all calls share, and others for commands that block.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use tokio::time::{sleep, Instant};

use crate::background::Background;
use crate::error::Failure;
use crate::mutex::Mutex;
use crate::servers::{Servers, Wire};

/// The most unused connections that stay open.
const MOST_IDLE: usize = 16;

/// The time in which a runtime closes a connection that was dropped.
const TIME_TO_CLOSE: Duration = Duration::from_millis(10);

/// A connection that is open, or opens. Clones are the same connection.
pub(crate) type Link = Shared<BoxFuture<'static, Result<Wire, Failure>>>;

pub(crate) struct Connections {
    pub(crate) servers: Servers,
    /// The longest time of one command.
    pub(crate) attempt: Duration,
    /// The connection that calls share, and when it began to open.
    shared: Mutex<Option<(Instant, Link)>>,
    idle: Mutex<Vec<Link>>,
}

impl Connections {
    pub(crate) fn new(servers: Servers, attempt: Duration) -> Connections {
        Connections {
            servers,
            attempt,
            shared: Mutex::default(),
            idle: Mutex::default(),
        }
    }

    /// Returns the connection for all commands that don't block, so a release never waits behind a
    /// wait.
    pub(crate) fn shared(&self, background: &Background) -> Link {
        let mut shared = self.shared.lock();
        let (_, link) = shared.get_or_insert_with(|| (Instant::now(), self.open(background)));
        link.clone()
    }

    /// Returns a connection that no other caller has.
    pub(crate) fn own(&self, background: &Background) -> Link {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| self.open(background))
    }

    /// Opens a connection, also if its caller leaves meanwhile.
    fn open(&self, background: &Background) -> Link {
        let (name, opened) = (self.servers.name.clone(), (self.servers.open)(self.attempt));
        let opened = opened.map(move |it| it.map_err(|error| Failure::of(error, &name, &[])));
        let link = opened.boxed().shared();
        background.start(link.clone().map(drop));
        link
    }

    /// Keeps a connection for another caller, unless there are many.
    pub(crate) fn put_back(&self, link: Link) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push(link);
        }
    }

    /// Drops the connections that were there when a command was sent that failed. Their server may
    /// have died silently.
    pub(crate) fn forget(&self, sent_at: Instant) {
        self.idle.lock().clear();
        let mut shared = self.shared.lock();
        shared.take_if(|(opened_at, _)| *opened_at <= sent_at);
    }
}

/// Closes a connection after a time.
pub(crate) fn close(link: Link, after: Duration, background: &Background) {
    background.start(async move {
        sleep(after).await;
        drop(link);
        sleep(TIME_TO_CLOSE).await;
    });
}
