//! Which slots of a cluster this node serves, and which are another's.

use std::collections::HashSet;

use redis_lock_core::values::slot;

use crate::server::api;

/// The slots that other nodes serve, as far as this one knows, and that don't come here either.
pub struct Elsewhere(HashSet<u16>);

impl Elsewhere {
    /// As it is now.
    pub fn now() -> Self {
        let nodes = api::call_text(&api::own_context(), "CLUSTER", &["NODES"]).unwrap_or_default();
        let mut elsewhere = HashSet::new();
        let mut here = Vec::new();
        for line in String::from_utf8_lossy(&nodes).lines() {
            let (is_this_one, slots) = node(line);
            if is_this_one {
                here = slots;
            } else {
                elsewhere.extend(slots);
            }
        }
        for slot in here {
            elsewhere.remove(&slot);
        }
        Self(elsewhere)
    }

    /// Whether a key is another node's.
    pub fn has(&self, key: &[u8]) -> bool {
        self.0.contains(&slot::of_key(key))
    }
}

/// Whether a line of CLUSTER NODES is about this node, and which slots it tells of: `5`, `5-9`, or, on
/// their way here, `[5-<-other]`. The ones that leave, `[5->-other]`, are among the first two.
fn node(line: &str) -> (bool, Vec<u16>) {
    let mut words = line.split_whitespace();
    let flags = words.nth(2).unwrap_or_default();
    let is_this_one = flags.split(',').any(|flag| flag == "myself");
    let ranges = words.skip(5).filter_map(|word| {
        let (first, last) = match word.strip_prefix('[') {
            Some(on_its_way) => {
                let (slot, _) = on_its_way.split_once("-<-")?;
                (slot, slot)
            }
            None => word.split_once('-').unwrap_or((word, word)),
        };
        Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
    });
    (is_this_one, ranges.flatten().collect())
}
