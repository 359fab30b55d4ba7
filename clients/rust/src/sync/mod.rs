//! Locks for threads. Each wait has a connection to itself, so threads wait by LOCK.WAIT.

mod connections;
mod renewals;
mod turn;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, RedisResult, Value};

use crate::commands::{Commands, Request};
use crate::error::Error;
use crate::grant::{self, later};
use crate::mutex::Mutex;
use crate::options::{Keys, Options, Renewal};
use crate::owner::{Io, Owner, ANSWER_WITHIN};
use connections::{Pool, Session};
use renewals::Renewals;
use turn::{Doing, MyTurn, Turn};

/// A factory of locks for threads. Clones are cheap and share their connections.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.lock("orders:42").acquire()?;
/// println!("fence {}", guard.fence());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    renewals: Arc<Renewals>,
}

/// One owner of a lock. Acquiring it again while it is held adds a hold. So threads that exclude
/// each other need a `Lock` each.
#[derive(Clone)]
pub struct Lock {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    owner: Owner<()>,
    turn: Turn,
    session: Option<Mutex<Session>>,
    /// Locked during a renewal, and while no renewal may begin.
    renewal: Mutex<()>,
}

/// A held lock, which is released when the guard goes out of scope.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    lock: Lock,
    grant: Arc<Grant>,
    released: bool,
}

type Grant = grant::Grant<()>;

impl Locks {
    /// Makes locks over connections of this client, one for each command or wait in progress.
    pub fn new(client: Client) -> Locks {
        Locks::of(Pool::of_client(client))
    }

    /// Makes locks in a cluster. Sets the builder's `retries` to 0, because this library itself
    /// repeats commands.
    #[cfg(feature = "cluster")]
    pub fn cluster(builder: redis::cluster::ClusterClientBuilder) -> Result<Locks, Error> {
        Ok(Locks::of(Pool::of_cluster(builder.retries(0).build()?)))
    }

    fn of(pool: Pool) -> Locks {
        let renewals = Arc::default();
        Locks {
            shared: Arc::new(Shared { pool, renewals }),
        }
    }

    /// Returns an exclusive lock on a key, or on several keys at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Lock {
        self.lock_with(keys, Options::new())
    }

    /// Returns a lock with these options.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Lock {
        let is_session = options.renewal == Renewal::Session;
        let inner = Inner {
            shared: Arc::clone(&self.shared),
            owner: Owner::new(Commands::new(keys.into(), options)),
            turn: Turn::default(),
            session: is_session.then(Mutex::default),
            renewal: Mutex::default(),
        };
        Lock {
            inner: Arc::new(inner),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.renewals.close();
    }
}

impl Lock {
    /// Waits for the lock without a time limit.
    pub fn acquire(&self) -> Result<Guard, Error> {
        // Without a time limit, a wait ends without the lock only if it was cancelled.
        self.take(Request::Wait, None)?.ok_or(Error::Cancelled)
    }

    /// Waits for the lock for at most `wait`. Returns `None` if that time passed without a grant.
    pub fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.take(Request::Wait, Some(later(Instant::now(), wait)))
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.take(Request::Try, Some(Instant::now() + ANSWER_WITHIN))
    }

    /// Cancels the wait of another thread with this `Lock`: its `acquire` fails with
    /// [`Error::Cancelled`]. Returns true if a thread was waiting.
    pub fn cancel(&self) -> bool {
        let lock = &self.inner;
        lock.turn.cancel(|| done(lock.owner.cancel(&mut lock.io())))
    }

    /// Returns the owner's token.
    pub fn token(&self) -> &[u8] {
        &self.inner.owner.commands.token
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        done(self.inner.owner.left(&mut self.inner.io()))
    }

    fn take(&self, request: Request, end: Option<Instant>) -> Result<Option<Guard>, Error> {
        let does = match request {
            Request::Try => Doing::Tries,
            _ => Doing::Waits,
        };
        let lock = &self.inner;
        let Some(turn) = lock.turn.enter(does, end) else {
            return Ok(None);
        };
        let taken = done(lock.owner.take(&mut lock.io_of_wait(&turn), &request, end));
        lock.end_session();
        if let Ok(Some(grant)) = &taken {
            // A grant with one hold is new.
            if grant.holds() == 1 {
                let renewals = &lock.shared.renewals;
                renewals.add(self.clone(), Arc::clone(grant));
            }
        }
        if turn.ends_given_up() {
            if let Ok(Some(grant)) = &taken {
                let _ = lock.release(grant, Instant::now() + ANSWER_WITHIN);
            }
            return Err(Error::Cancelled);
        }
        let guard = |grant| Guard {
            lock: self.clone(),
            grant,
            released: false,
        };
        Ok(taken?.map(guard))
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

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        self.lock.left()
    }

    /// Sets the lease, which counts from now and is used by later renewals too. Returns `false` if
    /// the lock is lost.
    pub fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let lock = &self.lock.inner;
        let extended = done(lock.owner.extend(&mut lock.io(), &self.grant, lease));
        lock.shared.renewals.look_again();
        extended
    }

    /// Releases the lock. Returns `false` if it had been lost. Tries until the lease ends.
    pub fn release(mut self) -> Result<bool, Error> {
        self.released = true;
        self.release_until(self.grant.until())
    }

    /// Sets a last lease of `rest`, at whose end the lock is released. Nothing renews it any more,
    /// and a session no longer ends it. Returns `false` if the lock had been lost. Tries until the
    /// current lease ends.
    ///
    /// If other guards of the same [`Lock`] hold it too, only this guard's hold ends, and at once.
    pub fn release_after(mut self, rest: Duration) -> Result<bool, Error> {
        if self.is_lost() {
            return self.release();
        }
        self.released = true;
        self.in_turn(|lock| lock.release_after(&self.grant, rest))
    }

    fn release_until(&self, until: Instant) -> Result<bool, Error> {
        self.in_turn(|lock| lock.release(&self.grant, until))
    }

    fn in_turn(&self, end: impl Fn(&Inner) -> Result<bool, Error>) -> Result<bool, Error> {
        let lock = &self.lock.inner;
        let lease_ends = self.grant.until();
        let Some(_turn) = lock.turn.enter(Doing::Releases, Some(lease_ends)) else {
            self.grant.lose();
            return Ok(false);
        };
        end(lock)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            // A drop can't return an error. A lock that can't be released now ends with its lease.
            let _ = self.release_until(Instant::now() + ANSWER_WITHIN);
        }
    }
}

impl Inner {
    /// Releases the lock in the turn of this thread.
    fn release(&self, grant: &Arc<Grant>, until: Instant) -> Result<bool, Error> {
        let released = done(self.owner.release(&mut self.io(), grant, until));
        self.ended(grant);
        released
    }

    /// Leaves the lock to a last lease, in the turn of this thread. Waits for a renewal in
    /// progress, because it would undo the last lease if the server executed it later. Unties a
    /// session on its own connection, so the server can't see that connection close first.
    fn release_after(&self, grant: &Arc<Grant>, rest: Duration) -> Result<bool, Error> {
        let renewal = self.renewal.lock();
        let session = self.session.as_ref().map(Mutex::lock);
        let mut io = Blocking {
            session,
            ..self.io()
        };
        let released = done(self.owner.release_after(&mut io, grant, rest));
        drop((io, renewal));
        self.ended(grant);
        released
    }

    /// Ends the renewals of a grant and its session, if its last hold has ended.
    fn ended(&self, grant: &Arc<Grant>) {
        if grant.due().is_none() {
            self.shared.renewals.remove(grant);
        }
        self.end_session();
    }

    /// Closes the session's connections unless the lock is held. So nothing stays tied to them if
    /// the RELEASE didn't reach the server.
    fn end_session(&self) {
        if let (Some(session), false) = (&self.session, self.owner.is_held()) {
            *session.lock() = Session::default();
        }
    }

    /// Renews a grant, in the thread for renewals.
    fn renew(&self, grant: &Grant) {
        let Some(_renewal) = self.renewal.try_lock() else {
            return grant.not_renewed();
        };
        if grant.due().is_none() {
            return;
        }
        let mut io = self.io();
        if let Some(session) = &self.session {
            let Some(session) = session.try_lock() else {
                // Another acquire uses the session right now, and sets the lease as well.
                return grant.not_renewed();
            };
            io.session = Some(session);
        }
        done(self.owner.renew(&mut io, grant));
    }

    fn io(&self) -> Blocking<'_> {
        Blocking {
            pool: &self.shared.pool,
            session: None,
            turn: None,
        }
    }

    fn io_of_wait<'a>(&'a self, turn: &'a MyTurn<'a>) -> Blocking<'a> {
        Blocking {
            session: self.session.as_ref().map(Mutex::lock),
            turn: Some(turn),
            ..self.io()
        }
    }
}

/// An `Io` that blocks the thread until the reply.
struct Blocking<'a> {
    pool: &'a Pool,
    /// The session of the lock, if commands go over it.
    session: Option<MutexGuard<'a, Session>>,
    /// The turn of a wait that can be cancelled.
    turn: Option<&'a MyTurn<'a>>,
}

impl Io for Blocking<'_> {
    async fn ask(&mut self, command: &Cmd, route: &[u8], within: Duration) -> RedisResult<Value> {
        match &mut self.session {
            Some(session) => session.ask(self.pool, command, route, within),
            None => self.pool.ask(command, route, within),
        }
    }

    async fn pause_until(&mut self, at: Instant) -> bool {
        if let Some(turn) = self.turn {
            return turn.pause_until(at);
        }
        thread::sleep(at.saturating_duration_since(Instant::now()));
        false
    }
}

/// Returns the output of a future over [`Blocking`], which is ready at its first poll.
pub(crate) fn done<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a future over Blocking is never pending"),
    }
}
