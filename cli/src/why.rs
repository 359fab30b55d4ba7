//! `redis-lock why`.

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;

use crate::arguments::{Server, Why};
use crate::hot::Hot;
use crate::info;
use crate::json;
use crate::nodes::Nodes;
use crate::output;

/// The exit code for a free lock without contention in the last two minutes.
const NO_REASON: u8 = 1;

/// Prints what blocks a key, and its contention of the last two minutes.
pub fn explain(server: &Server, options: &Why) -> Result<ExitCode> {
    let key = options.lock.key.as_bytes();
    let mut nodes = Nodes::connect(server)?;
    let lock = nodes.lock(key, options.lock.waiters)?;
    let hottest = nodes.hottest()?;
    let is_known = hottest.is_some();
    let contention = hottest.and_then(|mut keys| keys.remove(key));
    let text = match options.json {
        true => json::of_reasons(key, lock.as_ref(), contention.as_ref())?,
        false => {
            let now = info::text_or_free(key, lock.as_ref());
            now + &recently(contention.as_ref(), is_known)
        }
    };
    output::print(&text)?;
    Ok(match lock.is_some() || contention.is_some() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NO_REASON),
    })
}

/// Returns the contention of the last minutes as lines of text.
fn recently(contention: Option<&Hot>, is_known: bool) -> String {
    let Some(hot) = contention else {
        let why = match is_known {
            true => "no contention",
            false => "unknown, because the server has no LOCK.HOT for this user",
        };
        return format!("in the last two minutes: {why}\n");
    };
    let mut text = format!(
        "in the last two minutes: {} waits began, {} refused\n",
        hot.waits, hot.refused
    );
    if hot.waited_ms > 0 {
        text += &format!(
            "  waited {}, the longest {}\n",
            output::span(hot.waited_ms),
            output::span(hot.longest_wait_ms)
        );
    }
    if let Some(each_ms) = hot.held_ms.checked_div(hot.grants) {
        text += &format!(
            "  {} holders while others waited, for {} each\n",
            hot.grants,
            output::span(each_ms)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_happen_is_not_printed() {
        let mut hot = Hot {
            waited_ms: 0,
            longest_wait_ms: 0,
            waiters: 0,
            waits: 0,
            refused: 3,
            grants: 0,
            held_ms: 0,
        };
        assert_eq!(
            recently(Some(&hot), true),
            "in the last two minutes: 0 waits began, 3 refused\n"
        );
        hot = Hot {
            waited_ms: 61_000,
            longest_wait_ms: 1_000,
            grants: 2,
            held_ms: 3_000,
            ..hot
        };
        assert!(recently(Some(&hot), true).ends_with(
            "  waited 1m01s, the longest 1.0s\n  2 holders while others waited, for 1.5s each\n"
        ));
        assert!(recently(None, false).contains("unknown"));
        assert!(recently(None, true).contains("no contention"));
    }
}
