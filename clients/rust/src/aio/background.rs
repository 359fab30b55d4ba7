//! Work in tasks of its own, which continues when its waiter is dropped.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::error::Error;

pub(super) struct Background {
    runtime: Handle,
    /// The count of unfinished work without a waiter.
    left_alone: watch::Sender<usize>,
}

/// A handle that exists until the work is done.
pub(super) struct Work {
    background: Arc<Background>,
    is_left_alone: watch::Sender<bool>,
}

/// The waiter for some work, which may be dropped at any time.
pub(super) struct Waits<T> {
    answer: oneshot::Receiver<Result<T, Error>>,
    work: Arc<Work>,
}

impl Background {
    /// Must be called within a tokio runtime.
    pub(super) fn new() -> Background {
        Background {
            runtime: Handle::current(),
            left_alone: watch::Sender::new(0),
        }
    }

    pub(super) fn start<T, F>(self: &Arc<Self>, run: impl FnOnce(Arc<Work>) -> F) -> Waits<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let work = Arc::new(Work {
            background: Arc::clone(self),
            is_left_alone: watch::Sender::new(false),
        });
        let (tell, answer) = oneshot::channel();
        let goes_on = Arc::clone(&work);
        let running = run(Arc::clone(&work));
        self.runtime.spawn(async move {
            // A result without a waiter is dropped here, while the work still counts.
            let _ = tell.send(running.await);
            drop(goes_on);
        });
        Waits { answer, work }
    }

    /// Returns when all work without a waiter is done.
    pub(super) async fn settled(&self) {
        let mut left_alone = self.left_alone.subscribe();
        // This can't fail, because the sender exists.
        let _ = left_alone.wait_for(|count| *count == 0).await;
    }
}

impl Work {
    /// Returns when the waiter for this work has been dropped.
    pub(super) async fn left_alone(&self) {
        let mut is_left_alone = self.is_left_alone.subscribe();
        let _ = is_left_alone.wait_for(|it| *it).await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // `Waits` counted it.
        self.background.left_alone.send_modify(|count| *count -= 1);
    }
}

impl<T> Waits<T> {
    pub(super) async fn done(mut self) -> Result<T, Error> {
        // Without a result the work has panicked.
        (&mut self.answer).await.unwrap_or(Err(Error::Cancelled))
    }
}

impl<T> Drop for Waits<T> {
    fn drop(&mut self) {
        let left_alone = &self.work.background.left_alone;
        left_alone.send_modify(|count| *count += 1);
        self.work.is_left_alone.send_replace(true);
    }
}
