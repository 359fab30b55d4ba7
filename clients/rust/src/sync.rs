//! Locks for threads. The code for tokio does the work, in one background thread for each `Locks`, so
//! that a call returns in time whatever a server does. Each wait has a connection to itself, for
//! LOCK.WAIT.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::core::{Core, Waits};
use crate::error::Error;
use crate::grant::Grant;
use crate::options::{Keys, Options};
use crate::owner::Owner;
use crate::servers::Config;

/// The locks of a program, for threads. Clones are cheap and share their connections.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let guard = locks.acquire("orders:42")?;
/// println!("fence {}", guard.fence());
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    core: Arc<Core>,
    background: Arc<Background>,
}

/// A handle of a lock. It protects nothing until it is acquired.
///
/// A handle and its clones are one owner: if it is acquired, a second acquire waits for the release,
/// in order, as at a mutex.
#[derive(Clone, Debug)]
#[must_use = "a handle protects nothing until it is acquired"]
pub struct Lock {
    owner: Arc<Owner>,
    background: Arc<Background>,
}

/// A held lock. When the guard goes out of scope, the lock is released. That takes the command
/// timeout at most, and then goes on in the background.
#[derive(Debug)]
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Guard {
    owner: Arc<Owner>,
    background: Arc<Background>,
    grant: Arc<Grant>,
    is_released: bool,
}

impl Locks {
    /// Makes locks, which connect when they are needed, and starts their background thread.
    ///
    /// # Panics
    ///
    /// Panics if the system has no thread or descriptor left.
    pub fn new(servers: impl Into<Config>) -> Locks {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a descriptor for the background thread");
        let handle = runtime.handle().clone();
        let core = Arc::new(Core::new(servers.into(), handle.clone(), Waits::Blocked));
        let (stop, stopped) = oneshot::channel::<()>();
        let settled = core.settled();
        let serve = move || {
            runtime.block_on(async {
                let _ = stopped.await;
                settled.await;
            });
        };
        let thread = thread::Builder::new()
            .name("redis-lock".into())
            .spawn(serve);
        drop(thread.expect("the background thread"));
        Locks {
            core,
            background: Arc::new(Background {
                handle,
                _stop: stop,
            }),
        }
    }

    /// Returns a handle of an exclusive lock on a key, or on several keys at once.
    pub fn handle(&self, keys: impl Into<Keys>) -> Result<Lock, Error> {
        self.handle_with(keys, Options::new())
    }

    /// Returns a handle of a lock with these options.
    pub fn handle_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        let owner = Owner::new(Arc::clone(&self.core), keys.into(), options)?;
        Ok(Lock {
            owner: Arc::new(owner),
            background: Arc::clone(&self.background),
        })
    }

    /// Waits for an exclusive lock, for ever.
    pub fn acquire(&self, keys: impl Into<Keys>) -> Result<Guard, Error> {
        self.handle(keys)?.acquire()
    }

    /// Releases everything that these locks hold. Returns how many locks were still held.
    pub fn release_all(&self) -> Result<usize, Error> {
        self.background.wait(self.core.release_all())
    }

    /// Returns when the work that calls have left to the background is done. If the program ends
    /// before that, those locks end with their leases.
    pub fn settled(&self) {
        self.background.wait(self.core.settled());
    }
}

impl Lock {
    /// Waits for the lock, for ever or as long as the option `wait` says.
    pub fn acquire(&self) -> Result<Guard, Error> {
        Ok(self.guard(self.background.wait(self.owner.acquire())?))
    }

    /// Waits for the lock for at most `wait`. Returns `None` if someone else has it then.
    pub fn acquire_within(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        let grant = self
            .background
            .wait(self.owner.acquire_within(Some(wait)))?;
        Ok(grant.map(|grant| self.guard(grant)))
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.acquire_within(Duration::ZERO)
    }

    /// Cancels the acquires of this handle that are in progress: they fail with
    /// [`Error::Cancelled`]. Returns false if there are none.
    pub fn cancel(&self) -> bool {
        self.owner.cancel()
    }

    /// Returns the keys.
    pub fn keys(&self) -> &Keys {
        &self.owner.commands.keys
    }

    /// Returns the token of the latest acquire, which gives control of the lock: keep it out of logs.
    pub fn token(&self) -> Vec<u8> {
        self.owner.token()
    }

    /// Returns the fence of the latest grant, also after its end. `None` before the first grant.
    pub fn fence(&self) -> Option<i64> {
        self.owner.fence()
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        self.background.wait(self.owner.left(&self.owner.token()))
    }

    /// Asks the server whether this handle holds its keys now.
    pub fn owned(&self) -> Result<bool, Error> {
        Ok(!self.left()?.is_zero())
    }

    fn guard(&self, grant: Arc<Grant>) -> Guard {
        Guard {
            owner: Arc::clone(&self.owner),
            background: Arc::clone(&self.background),
            grant,
            is_released: false,
        }
    }
}

impl Guard {
    /// Returns the fence of this grant, which is greater than the fence of every earlier grant. The
    /// guarded resource compares it.
    pub fn fence(&self) -> i64 {
        self.grant.fence
    }

    /// Returns the owner's token, which gives control of the lock: keep it out of logs.
    pub fn token(&self) -> &[u8] {
        &self.grant.token
    }

    /// Returns true if the lock was lost: the server said so, or the lease has ended on the local
    /// monotonic clock.
    pub fn is_lost(&self) -> bool {
        self.grant.is_lost()
    }

    /// Returns the remaining lease on the server, or zero if the lock isn't held.
    pub fn left(&self) -> Result<Duration, Error> {
        self.background.wait(self.owner.left(&self.grant.token))
    }

    /// Asks the server whether the lock is held now.
    pub fn owned(&self) -> Result<bool, Error> {
        Ok(!self.left()?.is_zero())
    }

    /// Sets the lease, which counts from now and is used by later renewals too. Returns `false` if
    /// the lock is lost. After an error, the old lease and its renewal go on.
    pub fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.background.wait(self.owner.extend(&self.grant, lease))
    }

    /// Releases the lock. Returns `false` if it had been lost. After [`Error::Unavailable`], the
    /// release goes on in the background, until the lease ends.
    pub fn release(mut self) -> Result<bool, Error> {
        self.is_released = true;
        self.background.wait(self.owner.release(&self.grant))
    }

    /// Sets a last lease of `rest`, at whose end the lock is released. Nothing renews it any more,
    /// and a session no longer ends it. Returns `false` if the lock had been lost. If `rest` is
    /// longer than 2^53 - 1 ms, it is refused, and the lock is released at once.
    ///
    /// If the handle is reentrant and has other holds, only this guard's hold ends, and at once.
    pub fn release_after(mut self, rest: Duration) -> Result<bool, Error> {
        let released = self.owner.release_after(&self.grant, rest)?;
        self.is_released = true;
        self.background.wait(released)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            let _ = self.background.wait(self.owner.abandon(&self.grant));
        }
    }
}

/// The background thread, which ends when this is dropped and its jobs are done.
#[derive(Debug)]
struct Background {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Background {
    /// Blocks this thread until a future is ready, whose timers and connections are in the background
    /// thread.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let _context = self.handle.enter();
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(done) => return done,
                Poll::Pending => thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
