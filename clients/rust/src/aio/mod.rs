//! Locks for tokio. All locks share one connection, so tasks wait by LOCK.QUEUE, and a message
//! notifies each task of its turn.
//!
//! Every future here can be dropped at any time. A dropped `acquire` gives up its place, and
//! releases a lock that was granted meanwhile. A dropped `release` or `extend` is carried out all
//! the same. That happens in the background: see [`Locks::settled`].

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

/// The longest delay of a wait's end while its place is given up. After it, the cleanup continues
/// without the wait.
const GRACE: Duration = Duration::from_millis(350);

/// The time limit of a wait that has none.
const LONG: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A factory of locks for tasks. Clones are cheap and share one connection for commands and another
/// one for messages. In a cluster they share one connection for both to each node.
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

/// One owner of a lock. Acquiring it again while it is held adds a hold. So tasks that exclude each
/// other need a `Lock` each.
#[derive(Clone)]
pub struct Lock {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    owner: Owner<Changes>,
    /// Locked while a task acquires or releases.
    turn: Mutex<()>,
}

/// A held lock. When the guard goes out of scope, a task releases the lock in the background.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    lock: Lock,
    grant: Arc<Grant>,
    released: bool,
}

type Grant = grant::Grant<Changes>;
/// The channel of a grant's changes: true if the grant is lost.
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
    /// Makes locks over two connections of this client, one for commands and one for messages,
    /// which open when they are needed.
    ///
    /// Must be called within a tokio runtime, like the other functions that make a `Locks`.
    pub fn new(client: Client) -> Locks {
        Locks::of(Reconnecting::new(client.clone(), None), client)
    }

    /// Makes locks that send commands over this connection, and listen on another one of the
    /// client. If this connection is lost, a new one comes from the client too.
    pub fn on_multiplexed(client: Client, connection: MultiplexedConnection) -> Locks {
        Locks::of(Reconnecting::new(client.clone(), Some(connection)), client)
    }

    /// Makes locks that send commands over this manager, and listen on a connection of the client.
    pub fn on_manager(client: Client, manager: ConnectionManager) -> Locks {
        Locks::of(manager, client)
    }

    fn of(connection: impl Connection + 'static, client: Client) -> Locks {
        let waiters: Arc<Waiters> = Arc::default();
        let listener = Subscription::new(client, Arc::clone(&waiters));
        Locks::with(connection, listener, waiters)
    }

    /// Makes locks in a cluster. Sets the builder to RESP3 and to a push sender of this library,
    /// which notify a task of its turn.
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

    /// Returns an exclusive lock on a key, or on several keys at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Lock {
        self.lock_of(keys.into(), Options::new())
    }

    /// Returns a lock with these options, or [`Error::Unsupported`] for a session or for replicas.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        match options.renewal {
            Renewal::Session => Err(Error::Unsupported),
            _ if options.replicas.is_some() => Err(Error::Unsupported),
            Renewal::Client | Renewal::Nobody => Ok(self.lock_of(keys.into(), options)),
        }
    }

    /// Returns when the background has finished the work of all dropped guards and futures. If the
    /// program ends before that, those locks end with their leases.
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
    /// Waits for the lock without a time limit.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let end = later(Instant::now(), LONG);
        let taken = self.take(Request::Wait, end).await?;
        // Without a time limit, a wait that gets no grant was given up.
        taken.ok_or(Error::Cancelled)
    }

    /// Waits for the lock for at most `wait`. Returns `None` if that time passed without a grant.
    pub async fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let end = later(Instant::now(), wait);
        self.take(Request::Wait, end).await
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        let end = Instant::now() + ANSWER_WITHIN;
        self.take(Request::Try, end).await
    }

    /// Returns the owner's token.
    pub fn token(&self) -> &[u8] {
        &self.inner.owner.commands.token
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
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

    /// Acquires the lock, and gives up when the waiter for the work is dropped.
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
        // A grant with one hold is new.
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
    /// Returns the fence of this grant, which is greater than the fence of every earlier grant. The
    /// guarded resource compares it.
    pub fn fence(&self) -> i64 {
        self.grant.fence
    }

    /// Returns the owner's token.
    pub fn token(&self) -> &[u8] {
        self.lock.token()
    }

    /// Returns true if the lock was lost: the server said so, or the lease has ended on the local
    /// monotonic clock.
    pub fn is_lost(&self) -> bool {
        self.grant.is_lost()
    }

    /// Returns when the lock is lost, and never if it is released first.
    pub async fn lost(&self) {
        let mut changes = self.grant.observer.subscribe();
        // This can't fail, because the sender exists.
        let _ = changes.wait_for(|lost| *lost).await;
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub async fn left(&self) -> Result<Duration, Error> {
        self.lock.left().await
    }

    /// Sets the lease, which counts from now and is used by later renewals too. Returns `false` if
    /// the lock is lost.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let (lock, grant) = (Arc::clone(&self.lock.inner), Arc::clone(&self.grant));
        let extend = |_| async move { lock.owner.extend(&mut lock.io(), &grant, lease).await };
        let background = &self.lock.inner.shared.background;
        background.start(extend).done().await
    }

    /// Releases the lock. Returns `false` if it had been lost. Tries until the lease ends.
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
    /// Renews a grant while it is held, and reports its loss.
    async fn renew(&self, grant: &Grant) {
        let mut changes = grant.observer.subscribe();
        while let Some(due) = grant.due() {
            tokio::select! {
                () = sleep_until(due.into()) => {
                    let mut io = self.io();
                    // A lease that isn't renewed by then has ended; the next round reports the
                    // loss.
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

/// An `Io` over the shared connection.
struct Sharing<'a> {
    connection: &'a dyn Connection,
    /// The waiter that messages notify, and its work. `None` if this isn't for a wait.
    wait: Option<(Waiter, Arc<Work>)>,
}

impl Io for Sharing<'_> {
    /// Always waits for the reply, because a later command must not overtake this one.
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
