//! What the locks for threads and for tasks have in common, and asks no server.

/// Makes the calls of locks and grants that return at once.
macro_rules! facts {
    ($locks:ident, $lock:ident, $grant:ident) => {
        impl $lock {
            /// Returns the keys.
            pub fn keys(&self) -> &Keys {
                &self.recipe.keys
            }

            /// Returns the number of the lock, which observers hear of. No other lock of the process
            /// has it.
            pub fn id(&self) -> u64 {
                self.recipe.id
            }
        }

        impl $grant {
            /// Returns the fencing token, which is greater than that of every earlier grant. The
            /// guarded resource compares it.
            pub fn fence(&self) -> i64 {
                self.hold.fence
            }

            /// Returns the token, which gives control of the lock: keep it out of logs.
            pub fn token(&self) -> &[u8] {
                &self.hold.token
            }

            /// Returns the keys.
            pub fn keys(&self) -> &Keys {
                &self.hold.recipe.keys
            }

            /// Returns true if the lock was lost: the server said so, or the deadline is over on the
            /// local monotonic clock. The server ends the lease a margin later.
            pub fn is_lost(&self) -> bool {
                self.hold.is_lost()
            }

            /// Returns the time until the loss if the lease isn't renewed, or zero if the grant has
            /// ended.
            pub fn left(&self) -> Duration {
                self.hold.left()
            }

            /// Leaves the grant to another process, which adopts it. It isn't renewed here any more.
            pub fn detach(self) -> Result<(), Error> {
                self.hold.detach()
            }
        }

        impl std::fmt::Debug for $locks {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Locks").finish_non_exhaustive()
            }
        }

        impl std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.recipe.fmt(f)
            }
        }

        impl std::fmt::Debug for $grant {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.hold.fmt(f)
            }
        }
    };
}

pub(crate) use facts;
