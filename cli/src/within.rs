//! Work for which the program waits, with a time limit.

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The longest part of a limit that is counted at once.
const COUNTED_EVERY: Duration = Duration::from_millis(100);

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
/// The limit is counted in small parts, so the time for which the process is stopped doesn't count.
pub fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    runtime().block_on(async {
        let mut work = pin!(work);
        let mut left = limit;
        loop {
            let part = left.min(COUNTED_EVERY);
            match timeout(part, &mut work).await {
                Ok(result) => return Some(result),
                Err(_) if left.is_zero() => return None,
                Err(_) => left -= part,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Instant;

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
