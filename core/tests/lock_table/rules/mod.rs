//! The rule book of the lock table. Each rule is a test, and most tests are scenes: a few lines of
//! commands with their replies.
//!
//! One lock:
//!
//! - `acquire_release`: acquire, repeat and release; holds and fences
//! - `leases`: the end of a lease, and LOCK.EXTEND
//! - `shared_and_limits`: SHARED, LIMIT and PERMITS
//! - `conversions`: upgrades and downgrades
//! - `several_keys`: several keys in one command
//! - `data`: DATA
//! - `raised_fences`: FENCE
//!
//! Waiters:
//!
//! - `queue_order`: the order in which waiters are granted
//! - `blocking_waits`: BLOCK, LOCK.CANCEL and `lock.max-waiters`
//! - `take_overs`: a token that sends its wait again
//! - `keep_and_lost_connections`: KEEP: waiters whose connection is lost
//! - `take_backs`: hand-overs to clients that were gone
//! - `places`: LOCK.QUEUE: waiters without a connection
//! - `notifications`: NOTIFY: the message when a place is granted
//!
//! Replicas:
//!
//! - `replicas`: REPLICAS: replies that are held back until replicas have acknowledged
//!
//! Connections:
//!
//! - `sessions`: SESSION: grants that end with their connection
//! - `kept_sessions`: SESSION KEEP: grants that outlive their connection for a while
//! - `session_deadlocks`: connections that would wait for each other forever
//!
//! Events and effects:
//!
//! - `keyspace_changes`: DEL, another type, RENAME, EXPIRE, a moved slot
//! - `timer`: names that are due
//! - `effects`: what is stored and replicated
//! - `contention`: LOCK.HOT: the waits, refusals and ends of holds of the last minutes
//!
//! # The notation of a scene
//!
//! - `ACQUIRE k a PX 50 -> granted`: a client sends LOCK.ACQUIRE and gets this reply: `granted`,
//!   `nil`, `waits` (the client is blocked), `held back` (it waits for replicas), `place 1`, a number or the text of an error.
//! - `A> ACQUIRE k a -> granted`: connection A sends the command. A line without a letter has a
//!   connection of its own.
//! - `+50`: 50 ms pass, and the timer fires. After `LATE 50` the timer doesn't fire yet.
//! - `< WAIT k b: granted | jobs: 17`: since the last such line, the client that sent `WAIT k b`
//!   got the reply `granted`, and the message `17` was published on the channel `jobs`.
//!   `< nothing`: there was no reply and no message.
//! - `= k a#1 b#2`: token a holds key k once, token b holds it twice. `= k`: the lock is free.
//!   `= k a#1:why`: the data of a's grant is `why`.
//! - `? k a:why b:`: a and b wait for key k in this order, a with the data `why`, b without data.
//! - `DEL k`, `RENAME k j`: the key is deleted or renamed. `SET k`: the key is overwritten with a
//!   value of another type.
//! - `HOT k waits 2 held-ms 50`: LOCK.HOT shows these numbers for key k. `HOT k nothing`: it doesn't
//!   show the key.
//! - `CLOSE line`: the connection that sent this line closes.
//! - `BYE line`: the connection that sent this line is lost while it waits.
//! - `REPLICAS 2`: from now on two replicas are online.
//! - `ACK 1`: one replica has acknowledged all effects so far, the others none.
//! - `CUT line`: an administrator cuts short the wait for replicas that this line began.
//! - `UNBLOCK line`: the server itself replies to the blocked client that sent this line.
//!
//! Without PX a lease is 1000 ms long, and without KEEP a place is kept for 500 ms. A lease of
//! 50 ms is in force after 50 ms and over after 51 ms. The first minute ends after 20,000 ms.

mod acquire_release;
mod blocking_waits;
mod contention;
mod conversions;
mod counters;
mod data;
mod effects;
mod keep_and_lost_connections;
mod kept_sessions;
mod keyspace_changes;
mod leases;
mod leaves;
mod notifications;
mod panics;
mod places;
mod queue_order;
mod raised_fences;
mod replicas;
mod scene;
mod session_deadlocks;
mod sessions;
mod several_keys;
mod shared_and_limits;
mod take_backs;
mod take_overs;
mod timer;
