//! What the locks for threads and for tasks have in common.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, from_redis_value, Value};
use tokio::sync::watch;
use tokio::time::{sleep_until, Instant};

use crate::acquire::Acquire;
use crate::background::Background;
use crate::commands::{Call, Commands};
use crate::crowd::Crowds;
use crate::error::Error;
use crate::hold::Hold;
use crate::mutex::Mutex;
use crate::observer::tell;
use crate::options::not_too_long;
use crate::recipe::Recipe;
use crate::servers::Config;

/// The longest token.
const TOKEN_BYTES: usize = 256;

/// The state of a `Locks`.
pub(crate) struct Core {
    pub(crate) commands: Commands,
    pub(crate) crowds: Arc<Crowds>,
    last_id: AtomicU64,
    /// The grants that are held.
    held: Mutex<HashMap<u64, Arc<Hold>>>,
    /// The number of cleanups that go on without a caller.
    cleanups: watch::Sender<usize>,
}

impl Core {
    pub(crate) fn new(config: Config) -> Arc<Core> {
        Arc::new(Core {
            commands: Commands::new(config),
            crowds: Arc::default(),
            last_id: AtomicU64::new(0),
            held: Mutex::default(),
            cleanups: watch::Sender::new(0),
        })
    }

    /// Acquires a lock. Without a limit, the wait of its options counts.
    pub(crate) async fn acquire(
        self: &Arc<Core>,
        recipe: &Arc<Recipe>,
        limit: Option<Duration>,
        background: Background,
    ) -> Result<Option<Arc<Hold>>, Error> {
        limit.map_or(Ok(()), |limit| not_too_long("limit", limit))?;
        let token = format!("{:032x}", rand::random::<u128>()).into_bytes();
        let limit = limit.or(recipe.options.wait);
        let call = Call::new(token, background);
        let hold = Acquire::new(self, recipe, limit, call).run().await?;
        Ok(hold.inspect(|hold| self.granted(hold)))
    }

    /// Makes a grant of a token that another process acquired. Returns `None` if it has ended.
    pub(crate) async fn adopt(
        self: &Arc<Core>,
        recipe: &Arc<Recipe>,
        token: Vec<u8>,
        fence: i64,
        background: Background,
    ) -> Result<Option<Arc<Hold>>, Error> {
        if token.is_empty() || token.len() > TOKEN_BYTES || token == b"*" {
            let rule = "must be 1 to 256 bytes, and not *";
            return Err(Error::argument("token", rule));
        }
        let call = Call {
            // A command of the first process may still arrive.
            unanswered: 1,
            ..Call::new(token, background)
        };
        let hold = Hold::new(self, recipe, &call, fence);
        if !hold.take_over(recipe.first_lease()).await? {
            return Ok(None);
        }
        self.granted(&hold);
        Ok(Some(hold))
    }

    fn granted(&self, hold: &Arc<Hold>) {
        self.keep(hold);
        tell(|| self.commands.observer.granted(&hold.subject()));
    }

    /// Releases all grants that are held. Returns how many still held.
    pub(crate) async fn release_all(&self) -> Result<usize, Error> {
        let (mut count, mut failure) = (0, None);
        let until = Instant::now() + self.commands.timeout;
        let held: Vec<Arc<Hold>> = self.held.lock().values().cloned().collect();
        for hold in held {
            match hold.release(until).await {
                Ok(was_held) => count += usize::from(was_held),
                Err(Error::NotHeld) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(count), Err)
    }

    /// Returns true if any client holds one of the keys.
    pub(crate) async fn is_locked(
        &self,
        recipe: &Recipe,
        background: Background,
    ) -> Result<bool, Error> {
        let call = &mut Call::new(Vec::new(), background);
        let info = |key: &[u8]| {
            let mut command = cmd("LOCK.INFO");
            command.arg(key).arg("WAITERS").arg(0);
            command
        };
        let infos = self.commands.of_each_key(&recipe.keys, info, call).await?;
        Ok(infos.into_iter().any(has_holders))
    }

    // --- the background ---------------------------------------------------------------------------

    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks after a grant from now on: renews it, and notices its loss.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let Some(due) = hold.due() else {
            return;
        };
        let earlier = self.held.lock().insert(hold.id, Arc::clone(hold));
        match (&hold.background, earlier) {
            (Background::Threads(pump), _) => pump.look_at(due),
            (Background::Tasks(handle), None) => drop(handle.spawn(look_after(Arc::clone(hold)))),
            (Background::Tasks(_), Some(_)) => {}
        }
        // It was released meanwhile.
        if hold.due().is_none() {
            self.forget(hold);
        }
    }

    pub(crate) fn forget(&self, hold: &Hold) {
        self.held.lock().remove(&hold.id);
    }

    /// Does what is due for the grants that are held. Returns when the next thing is due.
    pub(crate) fn look(&self) -> Option<Instant> {
        let held: Vec<Arc<Hold>> = self.held.lock().values().cloned().collect();
        held.iter().filter_map(|hold| hold.look_after()).min()
    }

    /// Runs a cleanup in the background. If it fails, the server ends a lock with its lease.
    pub(crate) fn go_on(
        self: &Arc<Core>,
        background: &Background,
        cleanup: impl Future<Output = ()> + Send + 'static,
    ) {
        self.cleanups.send_modify(|count| *count += 1);
        let counted = Counted(Arc::clone(self));
        background.start(async move {
            let _counted = counted;
            cleanup.await;
        });
    }

    /// Returns when no cleanup goes on.
    pub(crate) async fn settled(&self) {
        let mut cleanups = self.cleanups.subscribe();
        // It can't fail, because the sender is in `self`.
        let _ = cleanups.wait_for(|count| *count == 0).await;
    }
}

struct Counted(Arc<Core>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.cleanups.send_modify(|count| *count -= 1);
    }
}

async fn look_after(hold: Arc<Hold>) {
    let mut changes = hold.changes();
    while let Some(due) = hold.look_after() {
        tokio::select! {
            () = sleep_until(due) => {}
            _ = changes.changed() => {}
        }
    }
}

/// Returns true if a reply of LOCK.INFO, a map or a flat list, has holders.
fn has_holders(info: Value) -> bool {
    let fields: HashMap<String, Value> = from_redis_value(info).unwrap_or_default();
    matches!(fields.get("holders"), Some(Value::Array(holders)) if !holders.is_empty())
}
