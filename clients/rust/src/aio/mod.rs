//! Locks for tokio. All of them share one connection, so they wait by LOCK.QUEUE, and are told of their
//! turn by a message.
//!
//! Every future here can be dropped at any time. A dropped `acquire` gives its place up, and releases
//! what was granted meanwhile; a dropped `release` or `extend` is carried out all the same. That happens in
//! the background: see [`Locks::settled`].

mod background;
mod connections;
mod notifications;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::{Client, Cmd, RedisResult, Value};
use tokio::sync::{watch, Mutex};
use tokio::time::{sleep_until, timeout_at};

use crate::commands::{Commands, Request};
use crate::error::Error;
use crate::grant::{self, later, Observer};
use crate::options::{Keys, Options, Renewal};
use crate::owner::{Io, Owner, ANSWER_WITHIN};
use background::{Background, Waits, Work};
use connections::{Connection, Reconnecting};
use notifications::{Listener, Subscription, Waiter, Waiters};

/// By how much a wait may be late while its place is given up. After this that goes on without it.
const GRACE: Duration = Duration::from_millis(350);

/// Where there is no end to a wait.
const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Makes locks for tasks. Cheap to clone; all clones share one connection for commands and one that
/// listens, or in a cluster one for both to each node.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::aio::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.lock("orders:42").acquire().await?;
/// println!("fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Box<dyn Connection>,
    listener: Box<dyn Listener>,
    waiters: Arc<Waiters>,
    background: Arc<Background>,
}

/// One owner of a lock. Acquired again while it is held, it counts its holds; so tasks that are to
/// wait for each other need a `Lock` each.
#[derive(Clone)]
pub struct Lock {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    owner: Owner<Changes>,
    /// One acquires or releases at a time.
    turn: Mutex<()>,
}

/// The lock is held. When this goes out of scope a task releases it in the background.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    lock: Lock,
    grant: Arc<Grant>,
    released: bool,
}

type Grant = grant::Grant<Changes>;
/// Whether it is lost.
type Changes = watch::Sender<bool>;

impl Observer for Changes {
    fn changed(&self) {
        self.send_modify(|_| {});
    }

    fn lost(&self) {
        self.send_replace(true);
    }
}

impl Locks {
    /// Takes a connection for commands and one that listens from this client, when they are needed.
    ///
    /// Like all of these, it has to be called within a tokio runtime.
    pub fn new(client: Client) -> Locks {
        Locks::of(Reconnecting::new(client.clone(), None), client)
    }

    /// Sends commands over this connection, and listens on one from the client, which is also where a
    /// new one comes from when this one is lost.
    pub fn on_multiplexed(client: Client, connection: MultiplexedConnection) -> Locks {
        Locks::of(Reconnecting::new(client.clone(), Some(connection)), client)
    }

    /// Sends commands over this connection, and listens on one from the client.
    pub fn on_manager(client: Client, manager: ConnectionManager) -> Locks {
        Locks::of(manager, client)
    }

    fn of(connection: impl Connection + 'static, client: Client) -> Locks {
        let waiters: Arc<Waiters> = Arc::default();
        let listener = Subscription::new(client, Arc::clone(&waiters));
        Locks::with(connection, listener, waiters)
    }

    /// Locks in a cluster. The builder is set to RESP3 and to a push sender of this library: by
    /// these a task is told of its turn.
    #[cfg(feature = "cluster-async")]
    pub async fn cluster(builder: redis::cluster::ClusterClientBuilder) -> Result<Locks, Error> {
        let (sender, pushes) = tokio::sync::mpsc::unbounded_channel();
        let client = builder
            .use_protocol(redis::ProtocolVersion::RESP3)
            .push_sender(sender)
            .build()?;
        let connection = client.get_async_connection().await?;
        let waiters: Arc<Waiters> = Arc::default();
        let listener = notifications::ShardSubscriptions::new(
            connection.clone(),
            pushes,
            Arc::clone(&waiters),
        );
        Ok(Locks::with(connection, listener, waiters))
    }

    fn with(
        connection: impl Connection + 'static,
        listener: impl Listener + 'static,
        waiters: Arc<Waiters>,
    ) -> Locks {
        let shared = Shared {
            connection: Box::new(connection),
            listener: Box::new(listener),
            waiters,
            background: Arc::new(Background::new()),
        };
        Locks {
            shared: Arc::new(shared),
        }
    }

    /// An exclusive lock on a key, or on several at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Lock {
        self.lock_of(keys.into(), Options::new())
    }

    /// A lock as the options say. Sessions are [`Error::Unsupported`] here.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        match options.renewal {
            Renewal::Session => Err(Error::Unsupported),
            Renewal::Client | Renewal::Nobody => Ok(self.lock_of(keys.into(), options)),
        }
    }

    /// Comes back when all is done that dropped guards and futures have left to the background. A program
    /// that ends before that leaves those locks to the end of their leases.
    pub async fn settled(&self) {
        self.shared.background.settled().await;
    }

    fn lock_of(&self, keys: Keys, options: Options) -> Lock {
        let inner = Inner {
            shared: Arc::clone(&self.shared),
            owner: Owner::new(Commands::new(keys, options)),
            turn: Mutex::default(),
        };
        Lock {
            inner: Arc::new(inner),
        }
    }
}

impl Lock {
    /// Waits for the lock, for ever.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let end = later(Instant::now(), LONG);
        let taken = self.take(Request::Wait, end).await?;
        // Without an end to the time, not got is given up.
        taken.ok_or(Error::Cancelled)
    }

    /// Waits so long; `None` if that wasn't enough.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let end = later(Instant::now(), wait);
        self.take(Request::Wait, end).await
    }

    /// Takes the lock if it is free; `None` if it isn't.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let end = Instant::now() + ANSWER_WITHIN;
        self.take(Request::Try, end).await
    }

    /// What names the owner.
    pub fn token(&self) -> &[u8] {
        &self.inner.owner.commands.token
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.inner.owner.left(&mut self.inner.io()).await
    }

    async fn take(&self, request: Request, end: Instant) -> Result<Option<Guard>, Error> {
        let lock = self.clone();
        let take = |work| async move { lock.take_while(work, request, end).await };
        let taking = self.inner.shared.background.start(take);
        let taken = timeout_at((end + GRACE).into(), taking.done()).await;
        taken.unwrap_or(Ok(None))
    }

    /// Gives up when the work is left alone.
    async fn take_while(
        &self,
        work: Arc<Work>,
        mut request: Request,
        end: Instant,
    ) -> Result<Option<Guard>, Error> {
        let lock = &self.inner;
        let _turn = tokio::select! {
            turn = lock.turn.lock() => turn,
            () = sleep_until(end.into()) => return Ok(None),
            () = work.left_alone() => return Ok(None),
        };
        let waiter = Waiters::add(&lock.shared.waiters);
        if request == Request::Wait {
            let route = lock.owner.commands.route();
            request = Request::Place {
                channel: lock.shared.listener.channel(route, end).await,
                message: waiter.number,
            };
        }
        let mut io = Sharing {
            wait: Some((waiter, work)),
            ..lock.io()
        };
        let taken = lock.owner.take(&mut io, &request, Some(end)).await?;
        Ok(taken.map(|grant| self.hold(grant)))
    }

    fn hold(&self, grant: Arc<Grant>) -> Guard {
        // With its first hold it is new.
        if grant.holds() == 1 {
            let (lock, grant) = (Arc::clone(&self.inner), Arc::clone(&grant));
            tokio::spawn(async move { lock.renew(&grant).await });
        }
        Guard {
            lock: self.clone(),
            grant,
            released: false,
        }
    }
}

impl Guard {
    /// The number of this grant, greater than that of each one before it: what the guarded resource compares.
    pub fn fence(&self) -> i64 {
        self.grant.fence
    }

    /// What names the owner.
    pub fn token(&self) -> &[u8] {
        self.lock.token()
    }

    /// Whether the lock was lost: the server said so, or the lease is over by this machine's clock.
    pub fn is_lost(&self) -> bool {
        self.grant.is_lost()
    }

    /// Comes back when the lock is lost; never, if it is released before.
    pub async fn lost(&self) {
        let mut changes = self.grant.observer.subscribe();
        // It can't fail, as the sender is here.
        let _ = changes.wait_for(|lost| *lost).await;
    }

    /// What is left of the lease, as the server says: zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.lock.left().await
    }

    /// Sets the lease, from now on and for renewals. `false`: the lock is lost.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let (lock, grant) = (Arc::clone(&self.lock.inner), Arc::clone(&self.grant));
        let extend = |_| async move { lock.owner.extend(&mut lock.io(), &grant, lease).await };
        let background = &self.lock.inner.shared.background;
        background.start(extend).done().await
    }

    /// Releases the lock. `false`: it had been lost. It is tried until the lease is over.
    pub async fn release(mut self) -> Result<bool, Error> {
        self.released = true;
        self.begin_release(self.grant.until()).done().await
    }

    fn begin_release(&self, until: Instant) -> Waits<bool> {
        let (lock, grant) = (Arc::clone(&self.lock.inner), Arc::clone(&self.grant));
        let release = |_| async move { lock.release(&grant, until).await };
        self.lock.inner.shared.background.start(release)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            drop(self.begin_release(Instant::now() + ANSWER_WITHIN));
        }
    }
}

impl Inner {
    /// Renews a grant as long as it is held, and tells of its loss.
    async fn renew(&self, grant: &Grant) {
        let mut changes = grant.observer.subscribe();
        while let Some(due) = grant.due() {
            tokio::select! {
                () = sleep_until(due.into()) => {
                    let mut io = self.io();
                    // What isn't renewed by then is over, and next this tells of it.
                    let renewed = self.owner.renew(&mut io, grant);
                    let _ = timeout_at(grant.until().into(), renewed).await;
                }
                _ = changes.changed() => {}
            }
        }
    }

    async fn release(&self, grant: &Arc<Grant>, until: Instant) -> Result<bool, Error> {
        let lease_ends = grant.until();
        let Ok(_turn) = timeout_at(lease_ends.into(), self.turn.lock()).await else {
            grant.lose();
            return Ok(false);
        };
        self.owner.release(&mut self.io(), grant, until).await
    }

    fn io(&self) -> Sharing<'_> {
        Sharing {
            connection: &*self.shared.connection,
            wait: None,
        }
    }
}

/// Sends commands on the connection that is shared.
struct Sharing<'a> {
    connection: &'a dyn Connection,
    /// Who is told of the turn, and may be gone, where this is for a wait.
    wait: Option<(Waiter, Arc<Work>)>,
}

impl Io for Sharing<'_> {
    /// An answer is always waited for: what is sent behind a command must not overtake it.
    async fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
        self.connection.ask(command, route, within).await
    }

    async fn pause_until(&mut self, at: Instant) -> bool {
        let Some((waiter, work)) = &self.wait else {
            sleep_until(at.into()).await;
            return false;
        };
        tokio::select! {
            biased;
            () = work.left_alone() => true,
            () = waiter.told() => false,
            () = sleep_until(at.into()) => false,
        }
    }
}
