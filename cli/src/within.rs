//! Work for which the program waits, with a time limit.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The interval in which a limit is counted.
const COUNTED_EVERY: Duration = Duration::from_millis(100);

/// The longest time that counts for one interval. A process that takes longer was stopped.
const COUNTED_AT_MOST: Duration = Duration::from_millis(500);

/// Returns the runtime of all connections. It never ends, because an end would wait for a name
/// server that doesn't answer.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.unwrap_or_else(|error| panic!("no descriptor is left: {error}"))
    })
}

/// Waits for work, and returns its result, or `None` if it takes longer than `limit`.
///
/// The time for which the process is stopped doesn't count.
pub fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    runtime().block_on(async {
        let mut work = pin!(work);
        let mut left = limit;
        loop {
            let began = Instant::now();
            match timeout(left.min(COUNTED_EVERY), &mut work).await {
                Ok(result) => return Some(result),
                Err(_) if left.is_zero() => return None,
                Err(_) => {
                    left = left.saturating_sub(began.elapsed().min(COUNTED_AT_MOST));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn what_takes_too_long_is_left_behind() {
        assert_eq!(within(Duration::from_secs(60), ready(7)), Some(7));
        let began = Instant::now();
        let limit = Duration::from_millis(230);
        assert_eq!(within(limit, pending::<()>()), None);
        assert!(began.elapsed() >= limit && began.elapsed() < limit * 100);
    }
}
