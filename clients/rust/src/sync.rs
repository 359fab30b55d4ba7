//! Locks for threads. A thread drives the runtime of its `Locks` while it waits for a call.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::background::{Background, Pump};
use crate::core::Core;
use crate::error::{Error, Failure};
use crate::facts::facts;
use crate::hold::{Hold, Phase};
use crate::options::{Keys, Options};
use crate::recipe::Recipe;
use crate::servers::Config;

/// The locks of a program, for threads. Clones are cheap and share their connections.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redis_lock_client::Locks;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let lock = locks.lock("orders:42")?;
/// if let Some(grant) = lock.acquire(None)? {
///     println!("fence {}", grant.fence());
///     grant.release()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    core: Arc<Core>,
    pump: Arc<OnceLock<Arc<Pump>>>,
}

/// A lock: keys and options. It has no state, so all threads may share it.
#[derive(Clone)]
#[must_use = "a lock protects nothing until it is acquired"]
pub struct Lock {
    locks: Locks,
    recipe: Arc<Recipe>,
}

/// A grant of a lock. Whoever has it may extend or release it, in any thread.
///
/// When it goes out of scope, the lock is released. That takes the command timeout at most, and
/// then goes on in the background.
#[must_use = "the lock is released at once if this isn't kept"]
pub struct Grant {
    hold: Arc<Hold>,
    pump: Arc<Pump>,
}

/// A switch that ends waits from another thread. Its clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// Makes a switch that is off.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the waits that have this switch, now and later: they fail with [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    async fn is_on(&self) {
        // It can't fail, because the sender is in `self`.
        let _ = self.0.subscribe().wait_for(|is_on| *is_on).await;
    }
}

impl Locks {
    /// Makes locks, which connect when they are needed.
    pub fn new(servers: impl Into<Config>) -> Locks {
        Locks {
            core: Core::new(servers.into()),
            pump: Arc::default(),
        }
    }

    /// Returns an exclusive lock on a key, or on several keys at once.
    pub fn lock(&self, keys: impl Into<Keys>) -> Result<Lock, Error> {
        self.lock_with(keys, Options::new())
    }

    /// Returns a lock with these options.
    pub fn lock_with(&self, keys: impl Into<Keys>, options: Options) -> Result<Lock, Error> {
        Ok(Lock {
            locks: self.clone(),
            recipe: Arc::new(Recipe::new(keys.into(), options)?),
        })
    }

    /// Returns a grant that another process acquired and detached, or `None` if it has ended.
    pub fn adopt(
        &self,
        keys: impl Into<Keys>,
        token: impl Into<Vec<u8>>,
        fence: i64,
        options: Options,
    ) -> Result<Option<Grant>, Error> {
        let (lock, pump) = (self.lock_with(keys, options)?, self.pump()?);
        let background = Background::Threads(Arc::clone(&pump));
        let adopted = self
            .core
            .adopt(&lock.recipe, token.into(), fence, background);
        let hold = pump.run(adopted)?;
        Ok(hold.map(|hold| Grant { hold, pump }))
    }

    /// Returns the result of `read`, or if that is `None` of `compute`: one caller computes at a
    /// time. The others wait, and then read all at once. So `compute` must store its result where
    /// `read` finds it.
    pub fn once<T, E: From<Error>>(
        &self,
        keys: impl Into<Keys>,
        options: Options,
        read: impl Fn() -> Result<Option<T>, E>,
        compute: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let keys = keys.into();
        let lock = self.lock_with(keys.clone(), options.clone())?;
        let readers = self.lock_with(keys, options.shared())?;
        if let Some(result) = read()? {
            return Ok(result);
        }
        let mut grant = lock.try_acquire()?;
        if grant.is_none() {
            if let Some(result) = readers.with(|_| read())? {
                return Ok(result);
            }
            // The caller that computed failed, so the others take turns.
            grant = lock.acquire(None)?;
        }
        grant.ok_or(Error::NotAcquired)?.with(|_| match read()? {
            Some(result) => Ok(result),
            None => compute(),
        })
    }

    /// Releases all grants of these locks. Returns how many still held.
    pub fn release_all(&self) -> Result<usize, Error> {
        self.pump()?.run(self.core.release_all())
    }

    /// Returns when the cleanups that calls left to the background are done. If the program ends
    /// before that, the server ends what is left with its lease.
    pub fn settled(&self) -> Result<(), Error> {
        self.pump()?.run(self.core.settled());
        Ok(())
    }

    fn pump(&self) -> Result<Arc<Pump>, Error> {
        if let Some(pump) = self.pump.get() {
            return Ok(Arc::clone(pump));
        }
        let core: Weak<Core> = Arc::downgrade(&self.core);
        let look = move || core.upgrade().and_then(|core| core.look());
        let pump = Pump::new(Box::new(look));
        let pump = pump.map_err(|error| Error::from(Failure::outage(error.to_string())))?;
        Ok(Arc::clone(self.pump.get_or_init(|| Arc::new(pump))))
    }
}

impl Lock {
    /// Returns a grant, or `None` if another client has the lock until the limit is over. `None`
    /// waits as long as the option `wait` says, for ever by default.
    pub fn acquire(&self, limit: impl Into<Option<Duration>>) -> Result<Option<Grant>, Error> {
        self.acquire_unless(limit, &Cancel::new())
    }

    /// Acquires the lock if it is free. Returns `None` if it isn't.
    pub fn try_acquire(&self) -> Result<Option<Grant>, Error> {
        self.acquire(Duration::ZERO)
    }

    /// Does what `acquire` does, and fails with [`Error::Cancelled`] once the switch is on.
    pub fn acquire_unless(
        &self,
        limit: impl Into<Option<Duration>>,
        cancel: &Cancel,
    ) -> Result<Option<Grant>, Error> {
        let pump = self.locks.pump()?;
        let background = Background::Threads(Arc::clone(&pump));
        let acquire = self
            .locks
            .core
            .acquire(&self.recipe, limit.into(), background);
        let hold = pump.run(async {
            tokio::select! {
                biased;
                () = cancel.is_on() => Err(Error::Cancelled),
                acquired = acquire => acquired,
            }
        })?;
        Ok(hold.map(|hold| Grant { hold, pump }))
    }

    /// Acquires the lock as `acquire(None)` does, and calls a function with the grant. Releases the
    /// lock after that.
    ///
    /// Returns the function's error if it fails, and otherwise [`Error::LockLost`] if the lock was
    /// lost. If only the release finds no server, the observer hears of it.
    pub fn with<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        self.acquire(None)?.ok_or(Error::NotAcquired)?.with(body)
    }

    /// Returns true if any client holds one of the keys.
    pub fn locked(&self) -> Result<bool, Error> {
        let pump = self.locks.pump()?;
        let background = Background::Threads(Arc::clone(&pump));
        pump.run(self.locks.core.is_locked(&self.recipe, background))
    }
}

facts!(Locks, Lock, Grant);

impl Grant {
    /// Asks the server whether this grant holds all its keys.
    pub fn owned(&self) -> Result<bool, Error> {
        self.pump.run(self.hold.is_owned())
    }

    /// Lets the lease end after `lease` from now, or later. Later renewals use it, too. Returns
    /// `false` if the lock was lost. After an error, the old lease and its renewal go on.
    pub fn extend(&self, lease: Duration) -> Result<bool, Error> {
        self.pump.run(self.hold.extend(lease))
    }

    /// Releases the lock. Returns `false` if it had been lost. After [`Error::Unavailable`], the
    /// release goes on in the background, until the lease ends.
    pub fn release(self) -> Result<bool, Error> {
        self.pump.run(self.hold.release(self.hold.release_ends()))
    }

    /// Lets the lock end after `rest` from now, and not with its connection. Nothing renews it any
    /// more. Returns `false` if it had been lost. A `rest` that is too long is refused, and the lock
    /// is released at once.
    pub fn release_after(self, rest: Duration) -> Result<bool, Error> {
        self.hold.stay(rest)?;
        self.release()
    }

    /// Calls a function with the grant and releases the lock, as [`Lock::with`] does.
    pub fn with<T, E: From<Error>>(
        self,
        body: impl FnOnce(&Grant) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = body(&self)?;
        match self.end() {
            Some(false) => Err(Error::LockLost.into()),
            Some(true) | None => Ok(result),
        }
    }

    /// Releases the lock, unless that was done. Returns `None` if only the observer hears of it.
    fn end(&self) -> Option<bool> {
        if self.hold.phase() == Phase::Left {
            return None;
        }
        let released = self.pump.run(self.hold.release(self.hold.release_ends()));
        let released = released.inspect_err(|error| self.hold.not_released(error));
        released.ok()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // Nobody waits for the end of what is lost, and a thread that ends can't drive a runtime.
        match self.is_lost() || Pump::is_out_of_reach() {
            true => self.hold.release_in_background(),
            false => drop(self.end()),
        }
    }
}
