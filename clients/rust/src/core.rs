//! What the locks for threads and for tasks have in common.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{from_redis_value, Value};
use tokio::time::Instant;

use crate::acquire::Acquire;
use crate::background::{in_thread, Background, Users, Works};
use crate::commands::{Call, Commands};
use crate::crowd::Crowds;
use crate::error::Error;
use crate::hold::Hold;
use crate::mutex::Mutex;
use crate::options::{not_too_long, rule};
use crate::recipe::Recipe;
use crate::servers::Config;

/// The longest token.
const TOKEN_BYTES: usize = 256;

/// The longest time between two looks at the grants.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// The state of a `Locks`.
pub(crate) struct Core {
    pub(crate) commands: Arc<Commands>,
    pub(crate) crowds: Crowds,
    /// The works that go on without a caller.
    pub(crate) works: Works,
    held: Mutex<Held>,
    wakes: Condvar,
}

/// The grants that are held.
#[derive(Default)]
struct Held {
    grants: HashMap<usize, Arc<Hold>>,
    /// The time at which the thread that looks after the grants does so next. `None` without it.
    looks_at: Option<Instant>,
}

impl Core {
    pub(crate) fn new(config: Config, users: Users) -> Arc<Core> {
        Arc::new(Core {
            commands: Arc::new(Commands::new(config)),
            crowds: Crowds::default(),
            works: Works::new(users),
            held: Mutex::default(),
            wakes: Condvar::new(),
        })
    }

    /// Acquires a lock. Without a limit, the wait of its options counts.
    pub(crate) async fn acquire(
        self: &Arc<Core>,
        recipe: &Arc<Recipe>,
        limit: Option<Duration>,
    ) -> Result<Option<Arc<Hold>>, Error> {
        limit.map_or(Ok(()), |limit| not_too_long("limit", limit))?;
        let limit = limit.or(recipe.options.wait);
        let call = self.call(recipe, draw_token())?;
        let hold = Acquire::new(self, call, limit).run().await?;
        Ok(hold.inspect(|hold| self.granted(hold)))
    }

    /// Makes a grant of a token that another process acquired. Returns `None` if it has ended.
    pub(crate) async fn adopt(
        self: &Arc<Core>,
        recipe: &Arc<Recipe>,
        token: Vec<u8>,
        fence: i64,
    ) -> Result<Option<Arc<Hold>>, Error> {
        let is_token = (1..=TOKEN_BYTES).contains(&token.len()) && token != b"*";
        rule("token", is_token, "must be 1 to 256 bytes, and not *")?;
        let mut call = self.call(recipe, token)?;
        // A command of the first process may still arrive.
        call.unanswered = 1;
        let is_session = recipe.options.is_session;
        let session = is_session.then(|| self.commands.own(&call.background));
        let hold = Hold::new(self, call, fence, session);
        let adopted = hold.set_lease(recipe.first_lease()).await;
        // A late tie ends with its connection, which is closed.
        let is_held = adopted.inspect_err(|_| hold.untie(Duration::ZERO))?;
        Ok(is_held.then_some(hold).inspect(|hold| self.granted(hold)))
    }

    fn granted(self: &Arc<Core>, hold: &Arc<Hold>) {
        self.keep(hold);
        self.commands.tell(|it| it.granted(&hold.subject()));
    }

    /// Releases all grants that are held. Returns how many still held.
    pub(crate) async fn release_all(&self) -> Result<usize, Error> {
        let (mut count, mut failure) = (0, None);
        let held: Vec<Arc<Hold>> = self.held.lock().grants.values().cloned().collect();
        for released in join_all(held.iter().map(Hold::release)).await {
            match released {
                Ok(was_held) => count += usize::from(was_held),
                Err(Error::NotHeld) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(count), Err)
    }

    /// Returns true if any client holds one of the keys.
    pub(crate) async fn is_locked(&self, recipe: &Arc<Recipe>) -> Result<bool, Error> {
        let call = self.call(recipe, Vec::new())?;
        let infos = call.of_each_key("LOCK.INFO", &[b"WAITERS", b"0"]).await?;
        Ok(infos.into_iter().any(has_holders))
    }

    fn call(&self, recipe: &Arc<Recipe>, token: Vec<u8>) -> Result<Call, Error> {
        Ok(Call {
            commands: Arc::clone(&self.commands),
            recipe: Arc::clone(recipe),
            token,
            background: Background::new(&self.works)?,
            unanswered: 0,
        })
    }

    // --- the grants that are held ----------------------------------------------------------------

    /// Looks after a grant from now on: renews it, and notices its loss.
    fn keep(self: &Arc<Core>, hold: &Arc<Hold>) {
        let mut held = self.held.lock();
        held.grants.insert(id(hold), Arc::clone(hold));
        if held.looks_at.is_none() {
            let core = Arc::clone(self);
            let is_started = in_thread(move || core.look_after_all());
            held.looks_at = is_started.then(Instant::now);
        }
        drop(held);
        self.hurry(hold);
    }

    /// Looks after a grant no later than it is due.
    pub(crate) fn hurry(&self, hold: &Hold) {
        let looks_at = self.held.lock().looks_at;
        if looks_at.is_some_and(|at| hold.due() < at) {
            self.wakes.notify_one();
        }
    }

    /// Returns true if the program had the grant.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) -> bool {
        self.held.lock().grants.remove(&id(hold)).is_some()
    }

    /// Looks after all grants until none is held.
    fn look_after_all(&self) {
        let mut held = self.held.lock();
        while !held.grants.is_empty() {
            let now = Instant::now();
            let dues = held.grants.values().map(|hold| hold.due());
            let next = dues.fold(now + LOOKS_EVERY, Instant::min);
            held.looks_at = Some(next);
            if next > now {
                let waited = self.wakes.wait_timeout(held, next - now);
                (held, _) = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let is_due = |hold: &&Arc<Hold>| hold.due() <= now;
            let due: Vec<_> = held.grants.values().filter(is_due).cloned().collect();
            drop(held);
            due.iter().for_each(Hold::look);
            held = self.held.lock();
        }
        held.looks_at = None;
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// Returns the token of a new grant.
pub(crate) fn draw_token() -> Vec<u8> {
    format!("{:032x}", rand::random::<u128>()).into_bytes()
}

/// Returns a number that no other grant has as long as this one is there.
fn id(hold: &Arc<Hold>) -> usize {
    Arc::as_ptr(hold).addr()
}

/// Returns true if a reply of LOCK.INFO, a map or a flat list, has holders.
fn has_holders(info: Value) -> bool {
    let fields: HashMap<String, Value> = from_redis_value(info).unwrap_or_default();
    matches!(fields.get("holders"), Some(Value::Array(holders)) if !holders.is_empty())
}
