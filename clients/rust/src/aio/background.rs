//! Work in tasks of its own: it goes on where nobody waits for it any more.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::error::Error;

pub(super) struct Background {
    runtime: Handle,
    /// How much work goes on that nobody waits for.
    left_alone: watch::Sender<usize>,
}

/// Is there until the work is done.
pub(super) struct Work {
    background: Arc<Background>,
    is_left_alone: watch::Sender<bool>,
}

/// Waits for the work. It may be dropped at any time.
pub(super) struct Waits<T> {
    answer: oneshot::Receiver<Result<T, Error>>,
    work: Arc<Work>,
}

impl Background {
    /// Within a runtime.
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
            // What nobody takes is dropped here, while the work still counts.
            let _ = tell.send(running.await);
            drop(goes_on);
        });
        Waits { answer, work }
    }

    /// Comes back when all is done that was left alone.
    pub(super) async fn settled(&self) {
        let mut left_alone = self.left_alone.subscribe();
        // It can't fail, as the sender is here.
        let _ = left_alone.wait_for(|count| *count == 0).await;
    }
}

impl Work {
    /// Comes back when nobody waits for this any more.
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
        // Without an answer the work has panicked.
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
