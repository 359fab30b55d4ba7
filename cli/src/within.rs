//! Work with a time limit.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The longest part of a limit that is counted at once.
const COUNTED_EVERY: Duration = Duration::from_millis(100);

/// Runs `work` on another thread, and returns its result, or `None` if it takes longer than `limit`.
///
/// The work itself needs no time limit. That matters for sockets, because a read with a time limit
/// fails if the process is stopped and continued meanwhile. The limit is counted in small parts, so
/// the time for which the process is stopped doesn't count.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, results) = mpsc::channel();
    // The receiver is gone if the work took too long.
    thread::spawn(move || drop(sender.send(work())));
    let mut left = limit;
    loop {
        let part = left.min(COUNTED_EVERY);
        match results.recv_timeout(part) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => left -= part,
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_takes_too_long_is_left_behind() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let began = Instant::now();
        let (limit, long) = (Duration::from_millis(230), Duration::from_secs(60));
        assert_eq!(within(limit, move || thread::sleep(long)), None);
        assert!(began.elapsed() >= limit && began.elapsed() < long);
    }
}
