//! The calls that threads and tasks have in common.

/// Makes the calls of locks: `$run` runs a future of the library, for tasks with `async` and
/// `.await`.
macro_rules! front {
    (
        $run:path, $users:path, $Fn:ident, $FnOnce:ident,
        [$($async:tt)?], [$($await:tt)*]
    ) => {
        /// The locks of a program. Clones are cheap and share their connections.
        #[derive(Clone, Debug)]
        pub struct Locks {
            core: Arc<Core>,
        }

        /// A lock: keys and options. It has no state, so all threads and tasks may share it.
        #[derive(Clone, Debug)]
        #[must_use = "a lock protects nothing until it is acquired"]
        pub struct Lock {
            core: Arc<Core>,
            recipe: Arc<Recipe>,
        }

        impl Locks {
            /// Makes locks, which connect when they are needed.
            pub fn new(servers: impl Into<Config>) -> Locks {
                Locks {
                    core: Core::new(servers.into(), $users),
                }
            }

            /// Returns an exclusive lock on a key, or on several keys at once.
            pub fn lock(&self, keys: impl Into<Keys>) -> Result<Lock, Error> {
                self.lock_with(keys, Options::new())
            }

            /// Returns a lock with these options.
            pub fn lock_with(
                &self,
                keys: impl Into<Keys>,
                options: Options,
            ) -> Result<Lock, Error> {
                Ok(Lock {
                    core: Arc::clone(&self.core),
                    recipe: Arc::new(Recipe::new(keys.into(), options)?),
                })
            }

            /// Returns a grant that another process acquired and detached, or `None` if it has
            /// ended.
            pub $($async)? fn adopt(
                &self,
                keys: impl Into<Keys>,
                token: impl Into<Vec<u8>>,
                fence: i64,
                options: Options,
            ) -> Result<Option<Grant>, Error> {
                let lock = self.lock_with(keys, options)?;
                let hold = $run(self.core.adopt(&lock.recipe, token.into(), fence));
                Ok(hold $($await)* ?.map(|hold| Grant { hold }))
            }

            /// Returns the result of `read`, or if that is `None` of `compute`: one caller computes
            /// at a time. The others wait, and then read all at once. So `compute` must store its
            /// result where `read` finds it.
            pub $($async)? fn once<T, E: From<Error>>(
                &self,
                keys: impl Into<Keys>,
                options: Options,
                read: impl $Fn() -> Result<Option<T>, E>,
                compute: impl $FnOnce() -> Result<T, E>,
            ) -> Result<T, E> {
                let keys = keys.into();
                let lock = self.lock_with(keys.clone(), options.clone())?;
                let readers = self.lock_with(keys, options.shared())?;
                if let Some(result) = read() $($await)* ? {
                    return Ok(result);
                }
                let mut grant = lock.try_acquire() $($await)* ?;
                if grant.is_none() {
                    let read = $($async)? |_: &Grant| read() $($await)*;
                    if let Some(result) = readers.with(read) $($await)* ? {
                        return Ok(result);
                    }
                    // The caller that computed failed, so the others take turns.
                    grant = lock.acquire(None) $($await)* ?;
                }
                let body = $($async)? |_: &Grant| match read() $($await)* ? {
                    Some(result) => Ok(result),
                    None => compute() $($await)*,
                };
                grant.ok_or(Error::NotAcquired)?.with(body) $($await)*
            }

            /// Releases all grants of these locks. Returns how many still held.
            pub $($async)? fn release_all(&self) -> Result<usize, Error> {
                $run(self.core.release_all()) $($await)*
            }
        }

        impl Lock {
            /// Acquires the lock if it is free. Returns `None` if it isn't.
            pub $($async)? fn try_acquire(&self) -> Result<Option<Grant>, Error> {
                self.acquire(Duration::ZERO) $($await)*
            }

            /// Acquires the lock as `acquire(None)` does, and runs a function with the grant.
            /// Releases the lock after that, as [`Grant::with`] does.
            pub $($async)? fn with<T, E: From<Error>>(
                &self,
                body: impl $FnOnce(&Grant) -> Result<T, E>,
            ) -> Result<T, E> {
                let grant = self.acquire(None) $($await)* ?;
                grant.ok_or(Error::NotAcquired)?.with(body) $($await)*
            }

            /// Returns true if any client holds one of the keys.
            pub $($async)? fn locked(&self) -> Result<bool, Error> {
                $run(self.core.is_locked(&self.recipe)) $($await)*
            }

            /// Returns the keys.
            pub fn keys(&self) -> &Keys {
                &self.recipe.keys
            }

            /// Returns the number of the lock, which observers hear of. No other lock of the
            /// process has it.
            pub fn id(&self) -> u64 {
                self.recipe.id
            }
        }

        impl Grant {
            /// Returns the fencing token, which is greater than that of every earlier grant. The
            /// guarded resource compares it.
            pub fn fence(&self) -> i64 {
                self.hold.fence
            }

            /// Returns the token, which gives control of the lock: keep it out of logs.
            pub fn token(&self) -> &[u8] {
                &self.hold.call.token
            }

            /// Returns the keys.
            pub fn keys(&self) -> &Keys {
                &self.hold.call.recipe.keys
            }

            /// Returns true if the lock was lost: the server said so, or the deadline is over on
            /// the local monotonic clock. The server ends the lease a margin later.
            pub fn is_lost(&self) -> bool {
                self.hold.is_lost()
            }

            /// Returns the time until the loss if the lease isn't renewed, or zero if the grant has
            /// ended.
            pub fn left(&self) -> Duration {
                self.hold.left()
            }

            /// Leaves the grant to another process, which adopts it. It isn't renewed here any
            /// more.
            pub fn detach(self) -> Result<(), Error> {
                self.hold.detach()
            }

            /// Asks the server whether this grant holds all its keys.
            pub $($async)? fn owned(&self) -> Result<bool, Error> {
                $run(self.hold.is_owned()) $($await)*
            }

            /// Lets the lease end after `lease` from now, or later. Later renewals use it, too.
            /// Returns `false` if the lock was lost. After an error, the old lease and its renewal
            /// go on.
            pub $($async)? fn extend(&self, lease: Duration) -> Result<bool, Error> {
                $run(self.hold.extend(lease)) $($await)*
            }

            /// Releases the lock. Returns `false` if it had been lost. After
            /// [`Error::Unavailable`], the release goes on in the background, until the lease ends.
            pub $($async)? fn release(self) -> Result<bool, Error> {
                $run(self.hold.release()) $($await)*
            }

            /// Lets the lock end after `rest` from now, and not with its connection. Nothing renews
            /// it any more. Returns `false` if it had been lost. A `rest` that is too long is
            /// refused, and the lock is released at once.
            pub $($async)? fn release_after(self, rest: Duration) -> Result<bool, Error> {
                self.hold.stay(rest)?;
                self.release() $($await)*
            }
        }
    };
}

pub(crate) use front;
